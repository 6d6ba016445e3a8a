"""Solution of exercise 6: dropout by hand."""

from minigrad import uniform


def dropout(x, p=0.5, training=True):
    """Return the Tensor x with a fraction p of its elements dropped."""
    if not training or p == 0.0:
        return x
    keep = uniform(0.0, 1.0, x.shape) >= p
    return x * keep / (1.0 - p)
