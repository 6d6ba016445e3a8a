"""Exercise 8 (middle): find the planted bug.

Three operations, each with its rule. One rule is wrong – not everywhere, so a quick
look at one value may miss it. ``gradcheck(f, inputs)`` compares every element with a
difference quotient and names the input and the index that differ. Find the rule with
it, understand the message, and mend the rule. (``gradcheck`` takes the inputs of ``f``
and makes them float64 itself; ``f`` returns a Tensor. Try negative values too.)

    python -m pytest examples/exercises -k ex08
"""

from minigrad import Function


class Bell(Function):
    """y = exp(-x² / 2)"""

    def forward(x):
        return (-0.5 * x * x).exp()

    def dx(g, x, y):
        return -g * x * y


class SignedSquare(Function):
    """y = x |x|"""

    def forward(x):
        return x * abs(x)

    def dx(g, x):
        return g * 2 * x


class Share(Function):
    """y = a / (a + b)"""

    def forward(a, b):
        return a / (a + b)

    def da(g, a, b):
        return g * b / ((a + b) * (a + b))

    def db(g, a, b):
        return -g * a / ((a + b) * (a + b))
