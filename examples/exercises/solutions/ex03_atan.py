"""Solution of exercise 3: add an operation, atan."""

import math

from minigrad import Function, NDArray


class Atan(Function):
    def forward(x):
        numbers = [math.atan(v) for v in x.flatten().tolist()]
        return NDArray(numbers, dtype=x.dtype).reshape(x.shape)

    def dx(g, x):
        return g / (1.0 + x * x)


def atan(x):
    """Return the arc tangent of a Tensor, element by element."""
    return Atan.apply(x)
