"""Exercise 3 (easy): add an operation, atan.

minigrad has no arc tangent. Add it: forward gets NDArrays and may compute as it likes
(``math.atan`` for each number is fine here: ``x.flatten().tolist()`` gives the numbers,
``NDArray(numbers, x.dtype).reshape(x.shape)`` takes them back); the rule ``dx`` gets
the upstream gradient ``g`` and whatever else it names, ``x`` or the output ``y``.
d atan(x)/dx = 1/(1 + x²). Write the rule in names that NDArray and Tensor share, and
second derivatives work too.

    python -m pytest examples/exercises -k ex03
"""

from minigrad import Function


class Atan(Function):
    def forward(x):
        raise NotImplementedError("your turn: an NDArray of x's shape and dtype")

    def dx(g, x):
        raise NotImplementedError("your turn: the upstream gradient times the slope")


def atan(x):
    """Return the arc tangent of a Tensor, element by element."""
    return Atan.apply(x)
