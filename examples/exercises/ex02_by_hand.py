"""Exercise 2 (easy): do by hand what backward does.

For y = (x1 + x2) * x3 + x1, return (dy/dx1, dy/dx2, dy/dx3) for three Python numbers,
in plain arithmetic, without minigrad. Note that x1 is used twice.
``python -m examples.trace`` shows the same walk.

    python -m pytest examples/exercises -k ex02
"""

def gradients(x1, x2, x3):
    """Return the three derivatives of (x1 + x2) * x3 + x1."""
    raise NotImplementedError("your turn: one product rule and one sum")
