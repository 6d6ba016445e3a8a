"""Solution of exercise 14: second derivatives through your own operation."""

import math

from minigrad import Function, grad


class LogCosh(Function):
    def forward(x):  # cosh(x) = exp(|x|) (1 + exp(-2|x|)) / 2
        size = abs(x)
        return size + (1.0 + (-2.0 * size).exp()).log() - math.log(2.0)

    def dx(g, x):
        return g * x.tanh()


def log_cosh(x):
    return LogCosh.apply(x)


def curvature(f, x):
    """Return f''(x), element by element."""
    (slope,) = grad(f(x), [x], create_graph=True)
    return grad(slope, [x], create_graph=True)[0]
