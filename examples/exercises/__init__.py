"""Exercises: one file each, red until solved; answers are in ``solutions``."""
