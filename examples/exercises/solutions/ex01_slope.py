"""Solution of exercise 1: the slope of a function, by difference."""

def slope(f, x, eps=1e-5):
    """Return df/dx at the number x.

    The bend costs about eps², the lost digits about 1e-16 / eps: 1e-5 balances them.
    """
    return (f(x + eps) - f(x - eps)) / (2 * eps)
