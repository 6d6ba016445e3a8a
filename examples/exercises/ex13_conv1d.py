"""Exercise 13 (hard): a one-dimensional convolution from a window view.

``x.sliding_window(size, stride, axes)`` shows every window of an axis as a view, with
no copy: the axis becomes the window's number, a new last axis runs along the window.
A convolution is then one matrix product over it. Write the layer:

    x (n, in, length)  ->  (n, out, (length - kernel) // stride + 1)
    y[n, o, i] = b[o] + sum over c, k of W[o, c, k] * x[n, c, i * stride + k]

Parameters ``W`` of shape (out, in, kernel) and ``b`` (out,) are Tensors that require a
gradient. No loop over samples, channels or positions.

    python -m pytest examples/exercises -k ex13
"""

from minigrad import Module


class Conv1d(Module):
    def __init__(self, in_channels, out_channels, kernel, stride=1):
        raise NotImplementedError("your turn: W and b")

    def forward(self, x):
        raise NotImplementedError("your turn: windows, a reshape, one matmul")
