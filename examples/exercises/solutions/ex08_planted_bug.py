"""Solution of exercise 8: find the planted bug."""

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

    def dx(g, x):  # |x| was missing: 2 x is right for x >= 0 only
        return g * 2 * abs(x)


class Share(Function):
    """y = a / (a + b)"""

    def forward(a, b):
        return a / (a + b)

    def da(g, a, b):
        return g * b / ((a + b) * (a + b))

    def db(g, a, b):
        return -g * a / ((a + b) * (a + b))
