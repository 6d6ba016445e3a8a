"""Programs that use minigrad; run each as ``python -m examples.NAME``."""
