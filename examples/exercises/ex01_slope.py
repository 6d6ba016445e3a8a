"""Exercise 1 (easy): the slope of a function, by difference.

Write ``slope(f, x)``: the derivative at x of a Python function of one number, as a
central difference, ``(f(x + eps) - f(x - eps)) / (2 eps)``. Choose eps so that the
tests' 1e-6 is met: too large and the curve bends, too small and the digits cancel.
This is how every rule in minigrad is checked (``numerical_gradient``).

    python -m pytest examples/exercises -k ex01
"""

def slope(f, x):
    """Return df/dx at the number x."""
    raise NotImplementedError("your turn: a central difference")
