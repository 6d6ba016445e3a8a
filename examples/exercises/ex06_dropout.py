"""Exercise 6 (easy): dropout by hand.

In training each element of x is set to 0 with probability p, on its own, and those that
stay are divided by 1 - p, so that the expected value does not change. Otherwise x goes
through untouched. Use ``uniform(low, high, shape)`` and a comparison; do not use
``Dropout``. The gradient must be 0 just where the output was dropped.

    python -m pytest examples/exercises -k ex06
"""

def dropout(x, p=0.5, training=True):
    """Return the Tensor x with a fraction p of its elements dropped."""
    raise NotImplementedError("your turn: a mask, and a scale")
