# SPDX-License-Identifier: MIT
# mypy: allow-untyped-defs, allow-untyped-calls
# mypy: no-check-untyped-defs, no-warn-return-any
"""A deep-learning micro-framework in one file of pure Python, made to be read.

What really happens in `loss.backward()`? Everything needed to answer that, and to train
real models, is in this file, on the standard library alone: strided arrays, automatic
differentiation of any order, layers, losses, optimisers, and tools to look inside.

>>> manual_seed(0)
>>> model = Sequential(Linear(1, 16), ReLU(), Linear(16, 1))
>>> optimizer = SGD(model.parameters(), lr=0.01)
>>> for step in range(300):
...     x = Tensor(uniform(-3, 3, (32, 1)))
...     loss = mse_loss(model(x), Tensor(x.data.sin()))
...     loss.backward()
...     optimizer.step()
...     optimizer.zero_grad()
>>> loss.item() < 0.3
True

Contents, in reading order. A section uses only those above it; within 2 and 3 the
helpers come before their class.

1. Shapes and strides   pure functions on tuples
2. NDArray              numbers in a strided storage: views, arithmetic, indexing,
                        reductions, matrix products, printing, random numbers
3. Tensor and the tape  Function, backward, grad, no_grad, detect_anomaly
4. Operations           the formula sheet: each forward beside its derivative
5. Modules              Module, Linear, Embedding, norms, convolution, pooling
6. Losses               mse_loss, cross_entropy and others
7. Optimisers           SGD, Adam, AdamW, clip_grad_norm_
8. Seeing and checking  print_graph, to_dot, gradcheck
9. Files                save and load in the safetensors format

At a first reading skip 2a, 2d, 2f to 2i, 2l, 3a, 4d, 4f, 5b, 8 and 9; come back when
you need them.

Glossary. Throughout this file
    x, y       are an operation's input and output, a, b two operands,
    W, b       a layer's weights and bias,
    g          the gradient of the loss with respect to an output ("upstream"),
    dx, da     a rule: from g to the gradient with respect to x, a,
    n, m, k    sizes; in a matrix product (m, k) @ (k, n),
    p, q       flat runs of numbers (and p the numbers of a parameter),
    t          a Tensor; in a loss, the target,
    axis, step which axis, and how far apart its neighbours lie in the storage,
    axes       numbers of axes; of a walk through a storage, its (size, step) pairs.

Conventions. Arrays and tensors speak NumPy (axis, keepdims, ddof=0), everything around
them PyTorch (requires_grad, backward, Module, state_dict, lr). Numbers are float32
unless a dtype says otherwise, and so is what is computed of integers; IEEE 754 decides
the rest (1 / 0 is inf), never a Python exception. Shape errors are ValueError, index
errors IndexError, wrong kinds of argument TypeError. Names with an underscore are
private. `python minigrad.py` runs the examples in this file, so any copy can check
itself.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import sys
from array import array
from collections import namedtuple
from contextvars import ContextVar
from functools import lru_cache, partial, wraps
from itertools import repeat
from math import copysign, fsum, inf, isfinite, isinf, isnan, nan, prod
from operator import (
    add, and_, attrgetter, eq, ge, gt, index, le, lt, mul, ne, neg, or_, sub, truediv
)  # fmt: skip
from struct import Struct, calcsize, error as StructError, iter_unpack
from weakref import ref

TYPE_CHECKING = False  # type checkers take it for True; `typing` is slow to import
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import IO, Any, Callable, TypeVar, Union

    _Kind = TypeVar("_Kind", bound="_Common")  # a method returns what it was called on
    _M = TypeVar("_M", bound="Module")
    _Axis = Union[int, tuple[int, ...], list[int], None]
    _ShapeLike = Union[int, Sequence[int]]
    _Binary = Callable[[Any, Any], Any]
    _TensorBinary = Callable[[Any, Any], "Tensor"]

__version__ = "0.1.0"
__all__ = [
    # 2. arrays
    "AxisError", "NDArray", "arange", "eye", "full", "linspace", "manual_seed", "ones",
    "ones_like", "permutation", "randint", "randn", "uniform", "zeros", "zeros_like",
    # 3. tensors
    "Context", "Function", "Tensor", "detect_anomaly", "grad", "graph", "no_grad",
    # 4. operations on both kinds
    "clip", "concatenate", "gelu", "leaky_relu", "log_softmax", "logsumexp", "matmul",
    "maximum", "minimum", "relu", "sigmoid", "softmax", "split", "stack", "tanh",
    "where",
    # 5. modules
    "AvgPool2d", "BatchNorm1d", "BatchNorm2d", "Conv2d", "Dropout", "Embedding",
    "Flatten", "GELU", "LayerNorm", "LeakyReLU", "Linear", "LogSoftmax", "MaxPool2d",
    "Module", "ReLU", "Sequential", "Sigmoid", "Softmax", "Tanh", "conv2d", "summary",
    # 6. losses
    "binary_cross_entropy_with_logits", "cross_entropy", "l1_loss", "mse_loss",
    "nll_loss",
    # 7. optimisers
    "Adam", "AdamW", "Optimizer", "SGD", "clip_grad_norm_",
    # 8. seeing and checking
    "gradcheck", "numerical_gradient", "print_graph", "to_dot",
    # 9. files
    "load", "save",
]  # fmt: skip

_new = object.__new__  # makes an object without the checks of its __init__


# ======================================================================================
# 1. Shapes and strides
# ======================================================================================
#
# Pure functions on tuples; no array yet. A shape says how many elements each axis has,
# a stride how far apart in the storage two neighbours along that axis lie. Element
# (i, j) of a matrix is storage[offset + i * strides[0] + j * strides[1]], and that one
# formula is all there is to slices, transposes, reversals and broadcasting: each is the
# same storage with other numbers in it. A stride of 0 repeats an element for ever.
# The next section needs nearly all of it.


_PYPY = sys.implementation.name == "pypy"
if _PYPY:

    def _cached(function):
        """Remember results in a dict, which PyPy compiles (its `lru_cache` is slow).
        That 1 and 1.0 are one key here is harmless, and to tell them apart would cost a
        training step a fifth of its time."""
        memory = {}

        @wraps(function)
        def remember(*args):
            try:
                return memory[args]
            except KeyError:
                if len(memory) > 4096:
                    memory.clear()
                return memory.setdefault(args, function(*args))

        return remember

else:
    _cached = lru_cache(maxsize=4096, typed=True)  # typed: 1 and True are two things


class AxisError(ValueError, IndexError):
    """An axis that the array does not have, or index arrays whose shapes do not fit:
    both a shape and an index error."""


@_cached
def _row_major(shape):
    """Return the strides of an array stored row after row.

    >>> _row_major((2, 3, 4))
    (12, 4, 1)
    """
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def _shape(op, shape, least=0):
    """Return `shape`, given as one number or as a sequence of them, as a tuple."""
    try:
        # An int64 array has an __index__ too; with axes it is a sequence.
        one = hasattr(shape, "__index__") and not getattr(shape, "ndim", 0)
        sizes = tuple([int(index(n)) for n in ((shape,) if one else shape)])
    except TypeError:
        raise TypeError(f"{op}: a shape is an integer or a sequence of integers, not "
                        f"{shape!r}") from None
    if sizes and min(sizes) < least:
        raise ValueError(f"{op}: shape {sizes} has a negative size")
    if prod(sizes) > sys.maxsize // 8:
        raise ValueError(f"{op}: shape {sizes} has more elements than memory")
    return sizes


@_cached
def _broadcast(op, *shapes):
    """Return the common shape of operands, aligned from the right.

    >>> _broadcast("add", (4, 1, 3), (2, 1))
    (4, 2, 3)
    """
    ndim = max(map(len, shapes))
    result = []
    for sizes in zip(*[(1,) * (ndim - len(shape)) + shape for shape in shapes]):
        wide = set(sizes) - {1}
        if len(wide) > 1:
            kind = AxisError if op == "index" else ValueError
            raise kind(f"{op}: shapes {' and '.join(map(str, shapes))} cannot be "
                       "broadcast together; aligned from the right, sizes must be "
                       "equal or 1")
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def _axis(op, axis, ndim):
    """Return `axis` counted from the front."""
    if axis.__class__ is int and -ndim <= axis < ndim:
        return axis % ndim
    try:
        number = index(axis)
    except TypeError:
        raise TypeError(f"{op}: an axis is an integer, not {axis!r}") from None
    if not -ndim <= number < ndim:
        known = f", -{ndim} to {ndim - 1}" if ndim else ""
        raise AxisError(f"{op}: axis {number} is out of range for {ndim} axes{known}")
    return number % ndim


def _axes(op, axis, ndim):
    """Return the axes meant by `None` (all), a number or several, sorted. Where there
    are none, 0 and -1 mean none, as in NumPy."""
    if axis is None or (ndim == 0 and axis.__class__ is int and axis in (0, -1)):
        return tuple(range(ndim))
    numbers = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = sorted(_axis(op, number, ndim) for number in numbers)
    if len(set(axes)) < len(axes):
        raise ValueError(f"{op}: axis {axis} names an axis twice (of {ndim})")
    return tuple(axes)


@_cached
def _kept(shape, axes):
    """Return `shape` with the given axes (`None`: all) reduced to size 1."""
    axes = _axes("keepdims", axes, len(shape))
    return tuple([1 if i in axes else n for i, n in enumerate(shape)])


@_cached
def _order(axes, ndim):
    """Return the order of axes meant by the arguments of `transpose`: numbers, one
    tuple of them, or nothing (reversed)."""
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], tuple)):
        axes = axes[0] or ()
    axes = axes or range(ndim)[::-1]
    order = tuple([_axis("transpose", axis, ndim) for axis in axes])
    if sorted(order) != list(range(ndim)):
        raise ValueError(f"transpose: {axes} must name each of the axes 0 to "
                         f"{ndim - 1} once")
    return order


@_cached
def _swapped(a, b, ndim):
    """Return the order of axes with a and b exchanged."""
    order = list(range(ndim))
    a, b = _axis("swapaxes", a, ndim), _axis("swapaxes", b, ndim)
    order[a], order[b] = b, a
    return tuple(order)


def _join(axes):
    """Join neighbouring (size, stride) axes that walk the storage as one would.

    >>> _join([(2, 12), (3, 4), (4, 1)])  # a contiguous block: one axis of 24
    [(24, 1)]
    >>> _join([(4, 1), (3, 4)])  # a transposed one: two axes
    [(4, 1), (3, 4)]
    """
    joined = []
    for n, step in axes:
        if n == 1:
            continue
        if joined and joined[-1][1] == n * step:
            joined[-1] = (joined[-1][0] * n, step)
        else:
            joined.append((n, step))
    return joined


@_cached
def _restride(shape, strides, new):
    """Return the new shape, its one -1 filled in, and the strides that show the same
    elements in it without a copy, or None where there are none: a new axis may split
    an old run of elements, never cross two.

    >>> _restride((4, 6), (6, 1), (4, -1, 2)), _restride((4, 6), (1, 4), (24,))
    (((4, 3, 2), (6, 2, 1)), ((24,), None))
    """
    size = prod(shape)
    known = prod([n for n in new if n != -1])
    if new.count(-1) == 1 and known and size % known == 0:
        new = tuple([size // known if n == -1 else n for n in new])
    if any([n < 0 for n in new]) or prod(new) != size:
        raise ValueError(f"reshape: {size} elements of shape {shape} do not fit {new}; "
                         "one size at most may be -1")
    if size == 0:
        return new, _row_major(new)
    runs = _join(zip(shape, strides))
    # From the last axis to the first: `left` elements of the run are not yet shared out
    # among new axes, and the next new axis takes every `step`-th of them.
    result, left, step = [], 1, 1
    for n in reversed(new):
        if left == 1 and n != 1:
            left, step = runs.pop()
        if left % n:
            return new, None
        result.append(step)
        left //= n
        step *= n
    return new, tuple(reversed(result))


# ======================================================================================
# 2. NDArray: numbers in a strided storage
# ======================================================================================
#
# An NDArray is one flat `array.array` (the buffer) plus shape, strides and offset. A
# view is another NDArray over the same buffer: it copies nothing and sees every write.
# Always:
#
# * `_base` is the array that owns the buffer (None: this one does). Each write stamps
#   the owner with the next tick of a clock; section 3 reads the stamp to find out
#   whether a value has changed since it was used.
# * `_flat` is the buffer if walking it from end to end walks the array in logical
#   order, else None. That is the fast case; everything else is first copied out flat,
#   a long operand of an elementwise kernel piece by piece.
# * Arithmetic is done in double precision and rounded once, when it is stored.
#
# Section 3 needs: the class with its methods, `_Common`, `_ticks` and stamps, `_fresh`,
# `_view`, `_run`, `_operand`; the others use helpers from here by name.

_CODES = {"float32": "f", "float64": "d", "int64": "q", "bool": "b"}  # array's letters
_RANK = ("bool", "int64", "float32", "float64")  # the wider of two comes later
_FLOATS = ("float32", "float64")  # what can have a gradient
_ZERO = {dtype: array(code, [0]) for dtype, code in _CODES.items()}
_ONE = {dtype: array(code, [1]) for dtype, code in _CODES.items()}
# What Python says to 1 / 0, log(0), exp(1000), and to storing what does not fit.
_NONFINITE = (ValueError, OverflowError, ZeroDivisionError, StructError)
_CONSTANT = (repeat, float, int, bool)  # in place of a run; not cut into chunks
_CHUNK = 4096  # elements computed between two stores: they stay in the cache
_ticks = itertools.count(1)  # the clock of writes (here) and of operations (section 3)


def _wider(*dtypes):
    """Return the dtype that can hold all of these."""
    return max(dtypes, key=_RANK.index)


# --- 2a. Flat runs: any walk through a storage as a few slices ------------------------

# A walk over the storage has a start and axes. An axis is a pair (size, step), or, from
# index arrays, a list of distances from the start.


def _distances(axis):
    """Return how far from the start each element of an axis lies: as a range; as the
    list from index arrays; or as a tuple of zeros where the step is 0 (which a range
    cannot have)."""
    if axis.__class__ is list:
        return axis
    n, step = axis
    return range(0, n * step, step) if step else (0,) * n


def _regular(axis):
    """Return the length of an axis that one slice can walk, else 0."""
    return axis[0] if axis.__class__ is tuple and axis[1] else 0


def _positions(start, axes):
    """Return where in the storage every element lies, in logical order."""
    places = [start]
    for axis in axes:
        distances = _distances(axis)
        places = [p + d for p in places for d in distances]
    return places


def _runs(start, axes):
    """Cut a walk into slices along its longest axis. Yields pairs: where a run lies in
    the storage, and where in a flat copy."""
    lengths = [_regular(axis) for axis in axes]
    if lengths[-1] > 16:  # a slice without gaps in the flat copy costs a quarter
        lengths[-1] *= 4
    # Of equally long axes the last, whose gaps in the flat copy are the smallest.
    inner = max(range(len(axes)), key=lambda i: (lengths[i], i))
    n, step = axes[inner]
    size = prod([len(_distances(axis)) for axis in axes])
    sources, targets, gap = [start], [0], 1
    for i, axis in enumerate(axes):
        distances = _distances(axis)
        size //= len(distances)
        if i == inner:
            gap = size
        else:
            sources = [s + d for s in sources for d in distances]
            targets = [t + size * k for t in targets for k in range(len(distances))]
    for s, t in zip(sources, targets):
        stop = s + n * step  # below 0 only when walking backwards to the very front
        yield slice(s, stop if stop >= 0 else None, step), slice(t, t + n * gap, gap)


def _simplify(axes):
    """Join the axes before, between and after lists of distances."""
    result, pairs = [], []
    for axis in axes:
        if axis.__class__ is tuple:
            pairs.append(axis)
        else:
            result += [*_join(pairs), axis]
            pairs = []
    return result + _join(pairs)


def _stretch(flat, times):
    """Repeat each element, by the fewer of strided writes and repeated runs."""
    out = flat * times
    if times <= len(flat):
        for i in range(times):
            out[i::times] = flat
    else:
        for i in range(len(flat)):
            out[i * times : (i + 1) * times] = flat[i : i + 1] * times
    return out


def _best_by_rows(rows, n, step, longest):
    """Return whether so many rows of n elements, `step` apart, are best copied one
    after the other. Slices along the longest axis are fewer, but are interleaved.

    Measured, in units of 5 ns: a row takes 30, a slice 60, to begin with slices 800. An
    element of a row takes 1 less than one of a slice; of a row that is read in steps
    as well, only the first 14 do.
    """
    saved = n if step == 1 else min(n, 14)
    slices = rows * n / longest
    return 30 * rows - saved * rows < 60 * slices + 800


def _rows(buffer, start, starts, n, step):
    """Copy rows of n elements, `step` apart, one after the other."""
    flat = buffer[:0]
    for first in starts:
        flat += buffer[start + first : start + first + n * step : step]
    return flat


def _gather(buffer, start, axes):
    """Copy the elements along `axes` (the fewer, the faster: see `_join`) into a new
    flat array, in logical order."""
    if len(axes) == 1 and axes[0].__class__ is tuple and axes[0][1] > 0:
        ((n, step),) = axes
        return buffer[start : start + n * step : step]
    if len(axes) == 2 and axes[1].__class__ is tuple and axes[1][1] > 0:
        starts, (n, step) = _distances(axes[0]), axes[1]
        few = len(starts) <= 32 or _best_by_rows(len(starts), n, step, len(starts))
        if few and starts.__class__ is not tuple:
            return _rows(buffer, start, starts, n, step)  # the common case, at once
    if axes and axes[0][1:] == (0,):  # a stride of 0: the whole again and again
        return _gather(buffer, start, axes[1:]) * axes[0][0]
    if axes and axes[-1][1:] == (0,):  # each element again and again
        return _stretch(_gather(buffer, start, axes[:-1]), axes[-1][0])
    size = prod([len(_distances(axis)) for axis in axes])
    if size == 0:
        return buffer[:0]
    longest = max(map(_regular, axes), default=0)
    if longest and axes[-1].__class__ is tuple and axes[-1][1] > 0:
        *outer, (n, step) = axes
        if _best_by_rows(size // n, n, step, longest):
            return _rows(buffer, start, _positions(0, outer), n, step)
    if longest < 4:
        return array(buffer.typecode, map(buffer.__getitem__, _positions(start, axes)))
    flat = buffer[:1] * size
    for source, target in _runs(start, axes):
        flat[target] = buffer[source]
    return flat


def _scatter(buffer, start, axes, flat, adding=False):
    """Write a flat array along `axes`, or add it. Of two writes to one place the later
    wins; of additions all count."""
    axes = _simplify(axes)
    if not len(flat):
        return
    if max(map(_regular, axes), default=0) < 4:
        for place, value in zip(_positions(start, axes), flat):
            buffer[place] = buffer[place] + value if adding else value
        return
    for target, source in _runs(start, axes):
        run = flat[source]
        if adding:
            run = array(buffer.typecode, list(map(add, buffer[target], run)))
        buffer[target] = run


# --- 2b. Kernels: one pass over flat runs ---------------------------------------------


def _safe(function, answer):
    """Let `function` answer, with `answer` for the arguments that make it raise."""

    def careful(*numbers):
        try:
            return function(*numbers)
        except _NONFINITE:
            return answer(*numbers)

    return careful


def _quotient(x, y):
    """Return x / 0, as IEEE 754 has it."""
    if x != x or x == 0:
        return nan  # nan / 0, 0 / 0
    return copysign(inf, x) * copysign(1.0, y)  # 0 has a sign too


def _power(x, y):
    """Return x ** y where `math.pow` raises."""
    odd = y % 2 == 1
    if x == 0:  # 0 ** -1
        return copysign(inf, x) if odd else inf
    if x < 0 and y != int(y):  # a root of a negative number
        return nan
    return -inf if x < 0 and odd else inf  # an overflow


def _powers(p, q):
    """Raise each of p to its power in q (a `repeat` is endless: looking costs none)."""
    if q.__class__ is repeat and next(q) == 2:  # a square is a product, and cheaper
        return map(mul, p, p)
    return map(math.pow, p, q)


def _each(function, answer=None):
    """Make the kernel of a scalar function; `answer` is its value where it raises
    (None: it never does)."""
    careful = partial(map, _safe(function, answer)) if answer else None
    return partial(map, function), careful


# Name: (plain, careful). The careful pass runs only after the plain one has raised;
# None: that raises for nothing that can be stored. See `_compute`, below.
_KERNELS = {
    **{f.__name__: _each(f) for f in (add, sub, mul, eq, ne, lt, le, gt, ge, neg, abs)},
    "div": _each(truediv, _quotient),
    "pow": (_powers, _each(math.pow, _power)[1]),
    "and": _each(and_),
    "or": _each(or_),
    "exp": _each(math.exp, lambda x: inf),
    "log": _each(math.log, lambda x: nan if x < 0 else -inf),
    "sqrt": _each(math.sqrt, lambda x: nan),
    "sin": _each(math.sin, lambda x: nan),
    "cos": _each(math.cos, lambda x: nan),
    "tanh": _each(math.tanh),
    "erf": _each(math.erf),
    "sigmoid": (
        lambda p: [1.0 / (1.0 + math.exp(-x)) for x in p],
        # Where exp(-x) overflows, 1 / (1 + exp(-x)) is exp(x).
        partial(map, _safe(lambda x: 1.0 / (1.0 + math.exp(-x)), math.exp)),
    ),
    "logistic_loss": (  # max(x, 0) - x t + log(1 + exp(-|x|))
        lambda p, q: [
            (0.0 if x <= 0.0 else x) - x * t + math.log1p(math.exp(-abs(x)))
            for x, t in zip(p, q)
        ],
        None,
    ),
    # NaN compares false with everything, even itself, and takes the last branch here.
    "relu": (lambda p: [0.0 if x <= 0.0 else x for x in p], None),
    "maximum": (lambda p, q: [x if x > y or x != x else y for x, y in zip(p, q)], None),
    "minimum": (lambda p, q: [x if x < y or x != x else y for x, y in zip(p, q)], None),
    "clip": (
        lambda p, low, high: [high if x > high else low if x < low else x for x in p],
        None,
    ),
    "where": (lambda c, p, q: [x if t else y for t, x, y in zip(c, p, q)], None),
}
# The two that are common in training: a comprehension takes 0.8 to 0.9 of the time of a
# map with `repeat`.
_WITH_NUMBER = {
    "add": (lambda p, c: [x + c for x in p], None),
    "mul": (lambda p, c: [x * c for x in p], None),
}


@_cached
def _packer(code, n):
    """Return a function that stores n numbers at once (a compiled `struct`)."""
    return Struct(f"{n}{code}").pack_into


if _PYPY:
    # PyPy compiles `list` and `array` loops; its `struct` is slow and refuses 1e39.
    def _store(out, start, n, values):
        out[start : start + n] = array(out.typecode, list(values))

else:
    # CPython stores through `struct` in 0.75 to 0.8 of the time of `array(list)`.
    def _store(out, start, n, values):
        _packer(out.typecode, n)(out, start * out.itemsize, *values)


def _infinite(plain):
    """Return the careful pass of a kernel that raises only where integers are too large
    for the floats they are to be stored as: there they are infinite."""

    def careful(*runs):
        return map(_safe(float, lambda x: inf if x > 0 else -inf), plain(*runs))

    return careful


def _compute(kernel, runs, n, dtype, out=None):
    """Run a kernel once over flat runs (and constants) and store n results.

    A kernel is a pair: the plain pass at full speed, and a careful one that answers as
    IEEE 754 does where Python would raise. The second is tried only after the first
    has raised, so special values cost nothing until they occur. Working in chunks keeps
    the Python floats of a pass few, and a chunk that raises has stored nothing yet.
    """
    plain, careful = kernel
    if out is None and (n <= 32 or _PYPY):
        try:
            return array(_CODES[dtype], list(plain(*runs)))
        except _NONFINITE:
            careful = careful or _infinite(plain)
            return array(_CODES[dtype], list(careful(*runs)))
    if out is None:
        out = _ZERO[dtype] * n
    for start in range(0, n, _CHUNK):
        count, parts = min(_CHUNK, n - start), runs
        if count < n:
            stop = start + count
            parts = [p if p.__class__ in _CONSTANT else p[start:stop] for p in runs]
        try:
            _store(out, start, count, plain(*parts))
        except _NONFINITE:
            careful = careful or _infinite(plain)
            _store(out, start, count, careful(*parts))
    return out


# --- 2c. Making arrays and walking them -----------------------------------------------


def _fresh(buffer, dtype, shape, strides=None):
    """Return an array that owns `buffer`, stored row after row (`strides`: where they
    are known already)."""
    a = _new(NDArray)
    a.buffer = a._flat = buffer
    a.dtype = dtype
    a.shape = shape
    a.strides = strides or _row_major(shape)
    a.offset = a._stamp = 0
    a._base = None
    return a


def _view(a, shape, strides, offset):
    """Return another way to walk the storage of `a`."""
    v = _new(NDArray)
    v.buffer = buffer = a.buffer
    v.dtype = a.dtype
    v.shape = shape
    v.strides = strides
    v.offset = offset
    v._stamp = 0
    v._base = a if a._base is None else a._base
    # As many elements as the buffer, row after row: then the offset can only be 0.
    whole = strides == _row_major(shape) and prod(shape) == len(buffer)
    v._flat = buffer if whole else None
    return v


@_cached
def _walk(shape, strides):
    """Return the axes of a walk through all elements, joined."""
    return tuple(_join(zip(shape, strides)))


def _run(a):
    """Return the elements of `a` in logical order as one flat array: the storage
    itself where possible, so nobody may write into it."""
    if a._flat is not None:
        return a._flat
    return _gather(a.buffer, a.offset, _walk(a.shape, a.strides))


@_cached
def _widened(shape, strides, wide):
    """Return the strides of an array broadcast to the shape `wide`: 0 repeats."""
    lead = len(wide) - len(shape)
    pairs = zip(wide, (1,) * lead + shape, (0,) * lead + strides)
    return tuple([step if n == m else 0 for n, m, step in pairs])


def _spread(a, shape):
    """Return the run of `a` broadcast to `shape`."""
    if a.shape == shape:
        return _run(a)
    if a.shape == shape[len(shape) - len(a.shape) :]:
        return _run(a) * prod(shape[: len(shape) - len(a.shape)])
    strides = _widened(a.shape, a.strides, shape)
    return _gather(a.buffer, a.offset, _walk(shape, strides))


def _repeats(a):
    """Return whether one place stands for many elements of `a` (a stride of 0)."""
    axes = zip(a.shape, a.strides)
    return 0 not in a.shape and any([n > 1 and not step for n, step in axes])


def _refuse_repeats(op, a):
    """Refuse to write where one place stands for many elements of `a`."""
    if _repeats(a):
        raise ValueError(f"{op}: this view of shape {a.shape} repeats elements (a "
                         "stride of 0, from broadcast_to); write to a copy() of it")


def _mark_written(a):
    """Stamp the owner of the storage: all its views share the stamp."""
    owner = a if a._base is None else a._base
    owner._stamp = next(_ticks)


# --- 2d. Taking in what people have ---------------------------------------------------


def _dtype_name(op, dtype):
    """Return `dtype`, or raise if there is no such one."""
    if not isinstance(dtype, str) or dtype not in _CODES:
        hint = "; a shape is one tuple" if isinstance(dtype, int) else ""
        raise TypeError(f"{op}: dtype is one of {', '.join(_CODES)}, not {dtype!r}"
                        f"{hint}")
    return dtype


def _cast(op, values, dtype):
    """Return numbers as a new flat array of `dtype`, each rounded once."""
    kind = {"int64": int, "bool": bool}.get(dtype)
    try:
        return array(_CODES[dtype], map(kind, values) if kind else values)
    except _NONFINITE:
        problem = f"{op}: a value is out of the range of {dtype} ({values!r:.60})"
        raise (ValueError if kind else OverflowError)(problem) from None


def _is_number(x):
    """Return whether x is a Python number, or converts to one, but is no array."""
    if isinstance(x, (int, float)):
        return True
    other = isinstance(x, (complex, type)) or hasattr(x, "shape")
    return hasattr(x, "__float__") and not other


def _is_scalar(x):
    """Return whether x is a number or an array of no axes, as NumPy's numbers are."""
    return _is_number(x) or getattr(x, "shape", None) == ()


def _need_numbers(op, *numbers):
    """Refuse what is no number."""
    for x in numbers:
        if not _is_scalar(x):
            raise TypeError(f"{op}: {x!r:.60} is no number")


_FORMATS = {  # an element's type in NumPy's array interface: in `struct` and `array`
    "b1": "?", "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I",
    "i8": "q", "u8": "Q", "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip


def _numbers(raw, order, code):
    """Return the numbers in bytes, given the order and the letter of `struct`."""
    if code in "?e" or array(code).itemsize != calcsize(order + code):
        # `array` has no such letter, or means another width by it
        return [x for (x,) in iter_unpack(order + code, raw)]
    flat = array(code, raw)
    if order in (">!" if sys.byteorder == "little" else "<"):
        flat.byteswap()
    return flat


def _interface_bytes(face, shape):
    """Return the bytes of elements in logical order, as `memoryview.tobytes` does."""
    if 0 in shape:
        return b""
    width = int(face["typestr"][2:])
    steps = face.get("strides") or [step * width for step in _row_major(shape)]
    spans = [(n - 1) * step for n, step in zip(shape, steps)]
    first = sum([min(0, span) for span in spans])  # negative strides reach back
    extent = sum(map(abs, spans)) + width
    if isinstance(face["data"], tuple):
        from ctypes import string_at

        memory = string_at(face["data"][0] + first, extent)
    else:
        start = face.get("offset", 0) + first
        memory = bytes(memoryview(face["data"]).cast("B")[start : start + extent])
    if len(memory) < extent:
        raise ValueError(f"NDArray: shape {shape} reaches outside the memory it is in")
    axes = _join([*zip(shape, steps), (width, 1)])
    return _gather(array("B", memory), -first, axes).tobytes()


def _read_memory(data):
    """Return (flat values, shape) of an object that exposes its memory by the buffer
    protocol or NumPy's array interface, else None."""
    face = getattr(data, "__array_interface__", None)
    try:
        view = memoryview(data)
        kind, shape, raw = view.format, view.shape, view.tobytes
    except (TypeError, ValueError, BufferError):
        if face is None:
            return None
        shape = tuple(face["shape"])
        raw = partial(_interface_bytes, face, shape)
    kind = face["typestr"] if face else kind  # a date's memory pretends to be bytes
    name = kind.lstrip("@=<>!|")
    order, code = kind[: len(kind) - len(name)], _FORMATS.get(name, name)
    if code not in (*_FORMATS.values(), "l", "L"):
        raise TypeError(f"NDArray: elements of type {kind!r} are no numbers")
    return _numbers(raw(), order.replace("|", "=") or "@", code), shape


def _read(data, where="", op="NDArray"):
    """Return any data as (flat values, shape). For the messages, `where`: its place in
    outer lists, such as "[0][2]", `op`: what asks for it (of memory: NDArray)."""
    if not isinstance(data, (list, tuple, range)):
        if isinstance(data, _Common):
            return _run(data._data), data.shape
        if _is_number(data):
            return [data], ()
        memory = _read_memory(data)
        if memory:
            return memory
        if hasattr(data, "tolist"):  # the arrays of PyTorch, pandas and others
            return _read(data.tolist(), where, op)
        unordered = isinstance(data, (str, dict, set, frozenset))
        if unordered or not hasattr(data, "__iter__"):
            what = f"element {where}" if where else f"a {type(data).__name__}"
            raise TypeError(f"{op}: {what} is no array of numbers: {data!r:.60}")
        data = list(data)
    if data.__class__ is range or set(map(type, data)) <= {int, float, bool}:
        return data, (len(data),)  # the common row, at full speed
    values, shapes = [], []
    for i, item in enumerate(data):
        part, shape = _read(item, f"{where}[{i}]", op)
        values += part
        shapes.append(shape)
        if shape != shapes[0]:
            raise ValueError(f"{op}: ragged lists: element {where}[{i}] has shape "
                             f"{shape}, but {where}[0] has shape {shapes[0]}")
    return values, (len(data), *shapes[0])


def _natural(values):
    """Return the narrowest of bool, int64 and float32 that suits numbers (none: int64,
    whatever holds none)."""
    if isinstance(values, array) and len(values):
        return "float32" if values.typecode in "fd" else "int64"
    kinds = set(map(type, values))
    return "bool" if kinds == {bool} else "int64" if kinds <= {bool, int} else "float32"


def _natural_array(op, data, fractions="float32", huge=False):
    """Return any data as an array of the narrowest dtype that suits it; `fractions`:
    the one for numbers that are not all whole, and if `huge`, for integers beyond
    int64."""
    values, shape = _read(data, op=op)
    face = getattr(data, "__array_interface__", None)
    if len(values) or not face:
        dtype = _natural(values)
        if huge and not all([-(2**63) <= x < 2**63 for x in values]):
            dtype = "float32"
    else:  # of nothing, NumPy alone knows the kind
        dtype = {"b": "bool", "f": "float32"}.get(face["typestr"][1], "int64")
    dtype = fractions if dtype == "float32" else dtype
    return _fresh(_cast(op, values, dtype), dtype, shape)


_single = Struct("f")  # rounds a number to float32
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _operand(op, x, like):
    """Return an operand beside the array `like`: an NDArray, a Python number rounded
    as if stored there (beside integers: as it is), or NotImplemented for neither."""
    if x.__class__ is NDArray or (x.__class__ is int and -16777216 <= x <= 16777216):
        return x  # up to 2 ** 24, integers are exact in float32
    if x.__class__ is float and like.dtype == "float32" and -3e38 < x < 3e38:
        # (clear of the largest float32, 3.4e38)
        return _single.unpack(_single.pack(x))[0]
    if isinstance(x, NDArray):  # of a subclass: the array in it
        return _view(x, x.shape, x.strides, x.offset)
    if isinstance(x, _Common):
        return x._data if op == "setitem" else NotImplemented  # a Tensor's turn
    whole = like.dtype not in _FLOATS
    wide = "float64" if whole else like.dtype
    if _is_number(x):
        rounded = _cast(op, [x], wide)[0]
        return x if whole and x.__class__ in (int, float, bool) else rounded
    if not isinstance(x, (list, tuple)) and not hasattr(x, "__array_interface__"):
        return NotImplemented
    # Beside integers, a list is float32, but keeps its digits to be stored or compared
    # (and then int64 must hold them).
    exact = not whole or op in ("setitem", *_COMPARISONS)
    huge = not (exact and whole)
    return _natural_array(op, x, wide if exact else "float32", huge)


# --- 2e. Elementwise ------------------------------------------------------------------


def _floating(*dtypes):
    """Return the dtype of arithmetic, also between integers."""
    return "float64" if "float64" in dtypes else "float32"


def _parts_of(buffer, start, axes, most):
    """Yield the elements along `axes`, in logical order, in arrays of at most `most`
    (that is at least 1): whole rows, steps along the first axis, or parts of one."""
    (n, step), *rest = axes
    row = prod([size for size, _ in rest])
    if row > most:
        for i in range(n):
            yield from _parts_of(buffer, start + i * step, rest, most)
        return
    by = most // row
    for i in range(0, n, by):
        count = min(by, n - i)
        yield _gather(buffer, start + i * step, ((count, step), *rest))


class _Pieces:
    """A long strided run that is not copied out whole. `_compute` asks for it chunk by
    chunk, from front to back, and about a sixteenth of it is gathered at a time. Larger
    pieces would take more memory, smaller ones more time, since gathering works by
    slices across a piece."""

    __slots__ = ("size", "parts", "start", "piece")

    def __init__(self, a, axes):
        self.size = prod([n for n, _ in axes])
        self.parts = _parts_of(a.buffer, a.offset, axes, max(self.size // 16, _CHUNK))
        self.start, self.piece = 0, a.buffer[:0]

    def __len__(self):
        return self.size

    def __getitem__(self, wanted):
        while wanted.stop > self.start + len(self.piece):
            left = self.piece[wanted.start - self.start :]
            self.start, self.piece = wanted.start, left + next(self.parts)
        return self.piece[wanted.start - self.start : wanted.stop - self.start]


def _side(x, shape):
    """Return what a kernel gets of an operand: a constant, its run, or a long one in
    pieces."""
    if not isinstance(x, NDArray):
        return repeat(x)
    if shape and not x.shape:
        return repeat(x.buffer[x.offset])
    if x.shape == shape and x._flat is not None:
        return x._flat
    if _PYPY or prod(shape) <= 16 * _CHUNK:  # little memory, or a list on PyPy
        return _spread(x, shape)
    return _Pieces(x, _walk(shape, _widened(x.shape, x.strides, shape)))


def _elementwise(op, dtype, *operands):
    """Apply the kernel `op` to arrays and numbers, broadcast together. The result is
    of `dtype`; None is arithmetic's: float64 if a float64 takes part, else float32."""
    arrays = [x for x in operands if isinstance(x, NDArray)]
    shapes = [x.shape for x in arrays]
    shape = shapes[0] if len(shapes) == 1 else _broadcast(op, *shapes)
    runs = [_side(x, shape) for x in operands]
    dtype = dtype or _floating(*[x.dtype for x in arrays])
    return _fresh(_compute(_KERNELS[op], runs, prod(shape), dtype), dtype, shape)


def _mapped(kernel, a, *numbers):
    """Apply a kernel of one run, and numbers, to one array."""
    run = _side(a, a.shape) if a._flat is None else a._flat
    plain, careful = kernel
    dtype = "float64" if a.dtype == "float64" else "float32"  # `_floating`, at once
    # A call saved is a tenth of the time of a small array.
    if not careful and len(run) <= 32 and a.dtype == "float32":
        flat = array("f", list(plain(run, *numbers)))
    else:
        flat = _compute(kernel, (run, *numbers), len(run), dtype)
    # Where `_flat` is set, the strides are those of a new array, already known (an
    # empty one counts as not set, and they are looked up).
    return _fresh(flat, dtype, a.shape, a._flat and a.strides)


def _unary(op: str, doc: str) -> Callable[[NDArray], NDArray]:
    """Make the method of an elementwise function of one array."""
    kernel = _KERNELS[op]

    def method(self):
        return _mapped(kernel, self)

    method.__name__, method.__doc__ = op, doc
    return method


def _write_result(op, a, other):
    """Write `a OP other` into `a`, through views, and return `a`."""
    axes = list(zip(a.shape, a.strides))
    _refuse_repeats(op, a)
    if other.__class__ is NDArray:
        shape = _broadcast(op, a.shape, other.shape)
        if shape != a.shape:
            raise ValueError(f"{op}: a result of shape {shape} cannot be written into "
                             f"an array of shape {a.shape}")
        # In pieces, unless they might read, through a view of a, what has just been
        # written there. The pass over integers takes whole runs.
        safe = a.dtype in _FLOATS and not (other.buffer is a.buffer is a._flat)
        dtype, other = other.dtype, (_side if safe else _spread)(other, a.shape)
    else:
        dtype, other = _natural([other]), repeat(other)
    # A quotient or a power is no integer.
    dtype = _wider(dtype, "float32" if op in ("div", "pow") else a.dtype)
    run = _run(a)
    if a.dtype in _FLOATS:  # straight into the storage where that is the run
        flat = _compute(_KERNELS[op], (run, other), len(run), a.dtype, run)
    elif dtype == a.dtype:
        flat = _cast(op, list(_KERNELS[op][0](run, other)), a.dtype)
    else:
        raise TypeError(f"{op}: a result of {dtype} cannot be written into {a.dtype}")
    if flat is not a.buffer:
        _scatter(a.buffer, a.offset, axes, flat)
    _mark_written(a)
    return a


def _binary(op: str, compute: _Binary) -> _Binary:
    """Make the method of an operator: `compute` gets the array and, as `_operand` makes
    it, whatever stands beside it."""

    def method(self, other):
        other = _operand(op, other, self)
        return other if other is NotImplemented else compute(self, other)

    return method


def _arithmetic(op: str) -> tuple[_Binary, _Binary, _Binary]:
    """Make the methods of x OP y, y OP x and x OP= y."""
    kernel, with_number = _KERNELS[op], _WITH_NUMBER.get(op)
    plain, careful = kernel

    def forward(self, other):
        if other.__class__ is not NDArray:
            other = _operand(op, other, self)
            if other is NotImplemented:
                return other
            if with_number and other.__class__ is not NDArray:
                return _mapped(with_number, self, other)
        elif self.dtype == other.dtype == "float32":  # the common case, at once
            shape = self.shape
            if shape == other.shape:
                p = _side(self, shape) if self._flat is None else self._flat
                q = _side(other, shape) if other._flat is None else other._flat
                n, strides = len(p), self._flat and self.strides
            else:
                shape, strides = _broadcast(op, shape, other.shape), None
                p, q, n = _side(self, shape), _side(other, shape), prod(shape)
            if n <= 32 and not careful:  # as in `_mapped`
                flat = array("f", list(plain(p, q)))
            else:
                flat = _compute(kernel, (p, q), n, "float32")
            return _fresh(flat, "float32", shape, strides)
        return _elementwise(op, None, self, other)

    def swapped(a, b):
        return _elementwise(op, None, b, a)

    def in_place(self, other):
        other = _operand(op, getattr(other, "_data", other), self)
        return other if other is NotImplemented else _write_result(op, self, other)

    commutes = op in ("add", "mul")  # y + x is x + y
    return forward, _binary(op, forward if commutes else swapped), in_place


def _comparison(op: str) -> _Binary:
    """Make the method of a comparison; its result is bool."""
    return _binary(op, partial(_elementwise, op, "bool"))


def _masking(op: str) -> _Binary:
    """Make the method of & or |, for masks; both operands are bool."""

    def combine(a, b):
        kind = getattr(b, "dtype", type(b).__name__)
        if a.dtype != "bool" or kind != "bool":
            raise TypeError(f"{op}: both operands must be masks (bool), not {a.dtype} "
                            f"and {kind}; compare first")
        return _elementwise(op, "bool", a, b)

    return _binary(op, combine)


def _operands(op, like, operands):
    """Return operands beside the array `like`; raise for what is none."""
    checked = [_operand(op, x, like) for x in operands]
    if any([x is NotImplemented for x in checked]):
        kinds = ", ".join([type(x).__name__ for x in operands])
        raise TypeError(f"{op}: operands are arrays or numbers, not {kinds}")
    return checked


def _choose(op, *operands):
    """Apply a kernel that only selects: the result has the widest operand's dtype."""
    skip = 1 if op == "where" else 0  # its condition does not count
    like = next((x for x in operands[skip:] if x.__class__ is NDArray), operands[0])
    checked = _operands(op, like, operands)
    sources = checked[skip:]
    dtypes = [x.dtype if x.__class__ is NDArray else _natural([x]) for x in sources]
    dtype = _wider(*dtypes)
    if dtype == "int64":  # refuse a number that it does not hold
        _cast(op, [x for x in sources if x.__class__ is not NDArray], dtype)
    return _elementwise(op, dtype, *checked)


# --- 2f. Indexing ---------------------------------------------------------------------


def _index_part(part):
    """Return one part of an index as None, ..., a slice, an int or an index array."""
    if part.__class__ is int or part.__class__ is slice or part is None or part is ...:
        return part
    if isinstance(part, _Common):
        a = part._data
        a = a if a.__class__ is NDArray else _view(a, a.shape, a.strides, a.offset)
    elif isinstance(part, (list, tuple)) or hasattr(part, "__array_interface__"):
        try:
            a = _natural_array("NDArray", part)
        except (TypeError, ValueError) as error:
            raise IndexError(f"index: {part!r:.60} is no index: {error}") from None
    elif isinstance(part, bool):
        a = NDArray(part, "bool")
    elif hasattr(part, "__index__"):
        return index(part)
    else:
        raise IndexError("index: an index is an integer, a slice, None, ..., an "
                         f"integer array or a mask, not {part!r:.60}")
    if a.dtype in _FLOATS:
        raise IndexError(f"index: an array of {a.dtype} and shape {a.shape} is no "
                         "index; use int64, or a bool mask")
    # An int64 of no axes is an integer, a bool of none still a mask.
    return a if a.shape or a.dtype == "bool" else a.item()


def _is_mask(part):
    """Return whether a part of an index selects by truth."""
    return part.__class__ is NDArray and part.dtype == "bool"


def _where_true(mask, shape):
    """Return the index arrays, one an axis, of the true elements of a mask."""
    if mask.shape != shape:
        raise IndexError(f"index: a mask of shape {mask.shape} does not fit axes of "
                         f"shape {shape}")
    places = list(itertools.compress(range(mask.size), _run(mask)))
    return [
        _fresh(array("q", [p // step % n for p in places]), "int64", (len(places),))
        for n, step in zip(shape, _row_major(shape))
    ]


def _from_front(part, axis, n):
    """Return an integer or index array counted from the front of its axis, which has
    size n."""
    run = (part,) if part.__class__ is int else _run(part)
    if len(run) and not -n <= min(run) <= max(run) < n:
        wrong = next(i for i in run if not -n <= i < n)
        raise IndexError(f"index: {wrong} is out of range for axis {axis} of size {n}")
    if part.__class__ is int:
        return part % n
    return _fresh(array("q", [i % n for i in run]), "int64", part.shape)


def _index_parts(a, key):
    """Return the parts of an index, whole axes filled in at the ..., so that they use
    up all axes of `a`; and whether all integers and arrays are neighbours."""
    parts = list(map(_index_part, key if key.__class__ is tuple else (key,)))
    spots = [i for i, p in enumerate(parts) if p.__class__ in (int, NDArray)]
    together = not spots or spots[-1] - spots[0] < len(spots)
    dots = [i for i, part in enumerate(parts) if part is ...]
    plain = [p for p in parts if not (p is None or p is ...)]
    used = sum([p.ndim if _is_mask(p) else 1 for p in plain])
    if used > a.ndim or len(dots) > 1:
        what = "two ellipses" if len(dots) > 1 else f"{used} indices"
        raise IndexError(f"index: {what} for an array of shape {a.shape}; at most "
                         f"{a.ndim} indices and one ellipsis fit")
    at = dots[0] if dots else len(parts)  # whole axes fill in here
    parts[at : at + 1] = [slice(None)] * (a.ndim - used)
    return parts, together


def _locate(a, key):
    """Resolve a[key] into (shape, axes, start): a walk over the storage of `a`.

    Integers, slices, None and ... only change start and strides: every axis is then a
    pair (size, step), and the result is a view. Index arrays, broadcast together,
    become one list of distances from the start. It stands where NumPy puts their axes:
    in their place if they are neighbours (an integer counts as one of them), else in
    front.
    """
    parts, together = _index_parts(a, key)
    start, shape, axes, arrays, where = a.offset, [], [], [], None
    walk = zip(range(a.ndim), a.shape, a.strides)
    for part in parts:
        # A new axis (None) is a slice over one of size 1 that leads nowhere; a mask of
        # no axes selects from such a one.
        new = part is None or (part.__class__ is NDArray and not part.shape)
        axis, n, step = (None, 1, 0) if new else next(walk)
        if part is None or part.__class__ is slice:
            first, stop, by = (part or slice(None)).indices(n)
            count = len(range(first, stop, by))
            start += first * step if count else 0
            shape.append(count)
            axes.append((count, by * step))
            continue
        where = len(axes) if where is None else where
        if part.__class__ is int:
            start += _from_front(part, axis, n) * step
        elif _is_mask(part):  # over this axis and as many more as it has
            part = part if part.shape else part.reshape(1)
            more = itertools.islice(walk, part.ndim - 1)
            _, sizes, steps = zip((axis, n, step), *more)
            arrays += zip(_where_true(part, sizes), steps)
        else:
            arrays.append((_from_front(part, axis, n), step))
    if arrays:
        where = where if together else 0
        common = _broadcast("index", *[indices.shape for indices, _ in arrays])
        runs = [[i * step for i in _spread(part, common)] for part, step in arrays]
        axes.insert(where, list(map(sum, zip(*runs))))
        shape[where:where] = common
    return tuple(shape), axes, start


# --- 2g. Reductions -------------------------------------------------------------------


@_cached
def _reduction(op, shape, axis, keepdims):
    """Return how to reduce `shape` along `axis`: the order of the axes that brings the
    reduced ones side by side (or None); how many blocks there are, of how many elements
    to reduce, each how far from the next; and the result's shape and strides."""
    axes = _axes(op, axis, len(shape))
    result = _kept(shape, axes)
    if not keepdims:
        result = tuple([n for i, n in enumerate(shape) if i not in axes])
    first, after = (axes[0], axes[-1] + 1) if axes else (len(shape), len(shape))
    order = None
    if after - first > len(axes):
        order = (*[i for i in range(len(shape)) if i not in axes], *axes)
        shape = tuple([shape[i] for i in order])
        first, after = len(shape) - len(axes), len(shape)
    sizes = prod(shape[:first]), prod(shape[first:after]), prod(shape[after:])
    return order, sizes, result, _row_major(result)


_SHORT = 16  # up to here a tuple made by `zip` beats a slice


def _groups(flat, blocks, n, inner):
    """Return the runs of elements that are reduced to one each, in the order of the
    results: n elements of a block, `inner` apart."""
    if n * inner == 0:
        return [flat[:0]] * (blocks * inner)
    if blocks * inner == 1:
        return [flat]
    if inner == 1 and n <= _SHORT:
        return zip(*[iter(flat)] * n)  # the same iterator n times: n elements a group
    if inner == 1:
        return [flat[i : i + n] for i in range(0, len(flat), n)]
    if n <= _SHORT:  # few long rows: n of them at a time, one element from each
        rows = [flat[i : i + inner] for i in range(0, len(flat), inner)]
        if blocks == 1:
            return zip(*rows)
        return itertools.chain.from_iterable(map(zip, *[iter(rows)] * n))
    block = n * inner
    starts = range(0, len(flat), block)
    return (flat[i : b + block : inner] for b in starts for i in range(b, b + inner))


def _reduce(op, x, axis, keepdims, function, dtype=None):
    """Apply `function` to each group of elements along `axis`."""
    axis = tuple(axis) if axis.__class__ is list else axis
    order, sizes, shape, strides = _reduction(op, x.shape, axis, keepdims)
    x = x if order is None else x.transpose(*order)
    dtype = dtype or _floating(x.dtype)
    values = list(map(function, _groups(_run(x), *sizes)))
    return _fresh(array(_CODES[dtype], values), dtype, shape, strides)


def _exact_sum(run):
    """Return the sum, rounded once."""
    try:
        return fsum(run)
    except _NONFINITE:  # inf - inf, or an overflow
        return sum(run)


def _adder(dtype):
    """Return how to add up a run: float32 in double, float64 without any error."""
    return _exact_sum if dtype == "float64" else sum


def _over(x, n):
    """Return x / n, where n may be 0, as IEEE 754 has it."""
    return x / n if n else _quotient(x, 0.0)


def _variance(dtype, ddof):
    """Return how to take the variance of a run, in two passes."""
    _need_numbers("var: ddof", ddof)
    total = _adder(dtype)

    def variance(run):
        mean, n = _over(total(run), len(run)), max(len(run) - ddof, 0)
        return _over(total([(x - mean) * (x - mean) for x in run]), n)

    return variance


def _extreme(op, x, axis, keepdims, best):
    """Reduce by Python's `max` or `min`, which compare, and so can miss a nan: its
    presence shows in the sum, one cheap pass, and only then each group is searched (and
    where the sum is inf - inf, in vain)."""
    place = op.startswith("arg")
    if place and axis is not None and not hasattr(axis, "__index__"):
        raise TypeError(f"{op}: axis is one integer or None, not {axis!r}")
    if prod([x.shape[i] for i in _axes(op, axis, x.ndim)]) == 0:
        raise ValueError(f"{op}: no element along axis {axis} of shape {x.shape}")

    def choose(group):
        return group.index(best(group)) if place else best(group)

    def choose_nan(group):
        spot = next((i for i, v in enumerate(group) if v != v), None)
        return choose(group) if spot is None else spot if place else nan

    some_nan = x.dtype in _FLOATS and isnan(sum(_run(x)))
    plain = choose if place else best
    dtype = "int64" if place else x.dtype
    return _reduce(op, x, axis, keepdims, choose_nan if some_nan else plain, dtype)


# Rows: softmax, its logarithm, and the shared shift by the maximum, which changes
# nothing in exact arithmetic but keeps exp from overflowing: its largest value is 1.


def _log_sum_exp_apart(row):
    """Return two terms of log(sum(exp(x))) over a row: the maximum, and what the sum
    adds to it. Added up at once, the second would be lost beside a large first."""
    top = max(row, default=-inf)
    if isinf(top):  # nothing to shift: the sum is it, or nan where the row has one
        return sum([x for x in row if not x < top], -inf if top < 0 else 0.0), 0.0
    return top, math.log(sum([math.exp(x - top) for x in row]))


def _log_sum_exp(row):
    """Return log(sum(exp(x))) over a row."""
    return sum(_log_sum_exp_apart(row))


def _softmax_row(row):
    """Return exp(x) / sum(exp(x)) for each x of a row."""
    top = max(row)
    powers = [math.exp(x - top) for x in row]
    total = sum(powers)
    return [p / total for p in powers]


def _log_softmax_row(row):
    """Return log(softmax(x)), which is x - log(sum(exp(x))), for each x of a row."""
    top, rest = _log_sum_exp_apart(row)
    return [x - top - rest for x in row]


def _normal_row(row, eps):
    """Shift a row to mean 0, scale it to variance 1; also return the scale."""
    mean = sum(row) / len(row)
    centred = [x - mean for x in row]
    spread = math.sqrt(sum(map(mul, centred, centred)) / len(row) + eps) or nan  # 0 / 0
    return [x / spread for x in centred], spread


def _by_rows(op, axis, function, *arrays):
    """Apply a function row by row: from a row of each array, all of one shape, along
    the given axes, it makes a row of the result."""
    x = arrays[0]
    axes = _axes(op, axis, x.ndim)
    order = (*[i for i in range(x.ndim) if i not in axes], *axes)
    plain = order == tuple(range(x.ndim))
    moved = arrays if plain else [a.transpose(order) for a in arrays]
    n, dtype = prod([x.shape[i] for i in axes]), _floating(x.dtype)
    rows = [_groups(_run(a), x.size // n, n, 1) for a in moved] if x.size else ()
    values = list(itertools.chain.from_iterable(map(function, *rows))) if rows else []
    result = _fresh(array(_CODES[dtype], values), dtype, moved[0].shape)
    back = tuple(map(order.index, range(x.ndim)))
    return result if plain else result.transpose(back).copy()


# --- 2h. Matrix product ---------------------------------------------------------------
#
# C[i, j] is the dot product of row i of A and column j of B. Both are cut once, by
# strided slices, so a transposed operand costs nothing extra. Two ways:
#
# * Written out, a * p + b * q + ..., in one comprehension over all of C, since a short
#   dot product is mostly the call: it takes 0.2 (inner size 1) to 0.5 (8) of the time
#   of dot products. Without `math.sumprod` longer sums too, in parts of 32, 16 and 8
#   products and of what is left, which are then added up.
# * Dot products: for longer sums by `math.sumprod` (3.12 on; for PyPy, a loop of our
#   own), and without it, by a `map` of products, only where C has few elements.
#
# Written out, a bias costs no pass of its own: x @ W + b is [x, 1] @ [W; b].
# In the table a, b, ... are the numbers of one row of A, p, q, ... of one column of B.

_WRITTEN_OUT = {
    1: lambda A, B: [a * p for a, in A for p, in B],
    2: lambda A, B: [a * p + b * q for a, b in A for p, q in B],
    3: lambda A, B: [a * p + b * q + c * r for a, b, c in A for p, q, r in B],
    4: lambda A, B: [
        a * p + b * q + c * r + d * s for a, b, c, d in A for p, q, r, s in B
    ],
    5: lambda A, B: [
        a * p + b * q + c * r + d * s + e * t
        for a, b, c, d, e in A for p, q, r, s, t in B
    ],
    6: lambda A, B: [
        a * p + b * q + c * r + d * s + e * t + f * u
        for a, b, c, d, e, f in A for p, q, r, s, t, u in B
    ],
    7: lambda A, B: [
        a * p + b * q + c * r + d * s + e * t + f * u + g * v
        for a, b, c, d, e, f, g in A for p, q, r, s, t, u, v in B
    ],
    8: lambda A, B: [
        a * p + b * q + c * r + d * s + e * t + f * u + g * v + h * w
        for a, b, c, d, e, f, g, h in A for p, q, r, s, t, u, v, w in B
    ],
    16: lambda A, B: [
        a * p + b * q + c * r + d * s + e * t + f * u + g * v + h * w
        + a2 * p2 + b2 * q2 + c2 * r2 + d2 * s2 + e2 * t2 + f2 * u2 + g2 * v2 + h2 * w2
        for a, b, c, d, e, f, g, h, a2, b2, c2, d2, e2, f2, g2, h2 in A
        for p, q, r, s, t, u, v, w, p2, q2, r2, s2, t2, u2, v2, w2 in B
    ],
    32: lambda A, B: [
        a * p + b * q + c * r + d * s + e * t + f * u + g * v + h * w
        + a2 * p2 + b2 * q2 + c2 * r2 + d2 * s2 + e2 * t2 + f2 * u2 + g2 * v2 + h2 * w2
        + a3 * p3 + b3 * q3 + c3 * r3 + d3 * s3 + e3 * t3 + f3 * u3 + g3 * v3 + h3 * w3
        + a4 * p4 + b4 * q4 + c4 * r4 + d4 * s4 + e4 * t4 + f4 * u4 + g4 * v4 + h4 * w4
        for a, b, c, d, e, f, g, h, a2, b2, c2, d2, e2, f2, g2, h2,
            a3, b3, c3, d3, e3, f3, g3, h3, a4, b4, c4, d4, e4, f4, g4, h4 in A
        for p, q, r, s, t, u, v, w, p2, q2, r2, s2, t2, u2, v2, w2,
            p3, q3, r3, s3, t3, u3, v3, w3, p4, q4, r4, s4, t4, u4, v4, w4 in B
    ],
}  # fmt: skip

_LONGEST = 8 if _PYPY or hasattr(math, "sumprod") else sys.maxsize  # written out
_sumprod = getattr(math, "sumprod", lambda p, q: sum(map(mul, p, q)))
if _PYPY:
    # It compiles loops by index, but each for one kind of operand: for lists, here.
    def _sumprod(p, q):
        """Return the dot product of two lists."""
        total = 0.0
        for i in range(len(p)):
            total += p[i] * q[i]
        return total


def _lines(buffer, start, n, step, k, inner, often=False):
    """Return n lines of k numbers, `step` apart, `inner` from number to number: lists
    if they are used often, else slices, since one use does not repay the copy."""
    starts = range(start, start + n * step, step) if step else [start] * n
    if _PYPY:
        return [[buffer[first + i * inner] for i in range(k)] for first in starts]
    if inner == 0:
        return [[buffer[first]] * k for first in starts]
    if inner > 0:
        lines = [buffer[first : first + k * inner : inner] for first in starts]
    else:  # forwards, then reversed: a slice cannot end before the first element
        back = (k - 1) * inner
        lines = [buffer[first + back : first + 1 : -inner][::-1] for first in starts]
    return [line.tolist() for line in lines] if often else lines


def _tuples(buffer, start, n, step, k, inner, last=None):
    """Return n tuples of k numbers, `step` apart, `inner` from number to number, and
    one more from each of `last`, if given."""
    if inner == 1 and (step == k or n == 1) and not last:  # all in one block
        return zip(*[iter(buffer[start : start + n * k])] * k)
    # Cut across: k lines of n numbers; `zip` makes of them n tuples of k.
    lines = _lines(buffer, start, k, inner, n, step)
    return zip(*lines, last) if last else zip(*lines)


def _matmul_2d(a, b, m, k, n, bias):
    """Return the m * n numbers of the product of two matrices, each given as buffer,
    start, and steps from row to row (down, below) and column to column (right, beside).
    """
    (a, i, down, right), (b, j, below, beside) = a, b
    if not k:
        return (bias or [0.0] * n) * m
    if k > _LONGEST or m * n <= k:  # few sums: cutting 2 k lines would be most of it
        rows = _lines(a, i, m, down, k, right, n > 1)
        columns = _lines(b, j, n, beside, k, below, m > 1)
        sums = [_sumprod(row, column) for row in rows for column in columns]
        return list(map(add, sums, bias * m)) if bias else sums
    # Where no narrow part is left to take the bias along, the sums begin with it.
    at, sums = 0, bias * m if bias and k % 8 == 0 else None
    while at < k:
        rest = k - at
        width = 32 if rest >= 32 else 16 if rest >= 16 else min(rest, 8)
        last = bias if width < 8 else None  # as one product more
        left = _tuples(a, i + at * right, m, down, width, right, last and [1.0] * m)
        top = _tuples(b, j + at * below, n, beside, width, below, last)
        if n == 1:  # the inner loop of the comprehensions should be the long one
            left, top = top, left
        part = _WRITTEN_OUT[width + bool(last)](left, list(top))
        sums = list(map(add, sums, part)) if sums else part
        at += width
    return sums


@_cached
def _product(a, b):
    """Return how NumPy reads a @ b for the shapes a and b: the shape of the stack of
    matrices, the sizes m, k and n of each, and the shape of the result."""
    if not a or not b:
        raise ValueError(f"matmul: shapes {a} and {b}: each operand needs at least 1 "
                         "axis; use * to scale")
    rows, columns = a[-2:-1], (b[-1:] if len(b) > 1 else ())
    (m, k), (inner, n) = (1, *a)[-2:], (b if columns else (*b, 1))[-2:]
    if k != inner:
        raise ValueError(f"matmul: shapes {a} and {b} do not fit: the inner sizes {k} "
                         f"and {inner} must be equal")
    stack = _broadcast(f"matmul: stacks of {a} and {b}", a[:-2], b[:-2])
    return stack, m, k, n, stack + rows + columns


def _matmul(a, b, bias=None):
    """Multiply matrices, or stacks of them, by NumPy's rules; add a bias of shape
    (n,)."""
    stack, m, k, n, shape = _product(getattr(a, "shape", ()), getattr(b, "shape", ()))
    if stack and len(b.shape) == 2 and a._flat is not None:  # as one tall matrix
        m, stack = prod(stack) * m, ()
    # A 1-D operand is a row on the left, a column on the right.
    down, right = a.strides[-2:] if len(a.shape) > 1 else (0, *a.strides)
    below, beside = b.strides[-2:] if len(b.shape) > 1 else (*b.strides, 0)
    dtype = _floating(*[x.dtype for x in (a, b, bias) if x is not None])
    bias = None if bias is None else _run(bias).tolist()
    out = _ZERO[dtype] * prod(shape)
    starts = [(a.offset, b.offset)]
    if stack:
        steps = [_widened(x.shape[:-2], x.strides[:-2], stack) for x in (a, b)]
        walks = [_positions(x.offset, zip(stack, s)) for x, s in zip((a, b), steps)]
        starts = zip(*walks)
    for s, (i, j) in enumerate(starts):
        A, B = (a.buffer, i, down, right), (b.buffer, j, below, beside)
        _store(out, s * m * n, m * n, _matmul_2d(A, B, m, k, n, bias))
    return _fresh(out, dtype, shape)


# --- 2i. Printing ---------------------------------------------------------------------
#
# NumPy's layout: columns aligned, as few digits as tell a number from its neighbours in
# its own dtype (0.1, not 0.10000000149011612), at most 8 after the point; exponents
# when the range asks for them; beyond 1,000 elements three at either end of an axis.


def _decimals(x, style, dtype):
    """Return how many digits after the point tell x from its neighbours, at most 8."""
    for digits in range(8):
        if _cast("repr", [float(f"{x:.{digits}{style}}")], dtype)[0] == x:
            return digits
    mantissa = f"{x:.8{style}}".partition("e")[0]
    return len(mantissa.rstrip("0").partition(".")[2])


def _float_texts(values, dtype):
    """Return floats as texts, the points of finite ones equally far from the end."""
    sizes = [abs(x) for x in values if x and isfinite(x)]
    low, high = min(sizes, default=1.0), max(sizes, default=1.0)
    most = 1e6 if dtype == "float32" else 1e8  # as NumPy has it since 2.3
    least, ratio = _cast("repr", [1e-4, high / low], dtype)
    style = "e" if high >= most or low < least or ratio > 1000.0 else "f"
    places = [_decimals(x, style, dtype) if isfinite(x) else None for x in values]
    right = max([own for own in places if own is not None], default=0)
    if style == "e":
        return [f"{x:#.{right}e}" for x in values]  # "#" keeps the point of "1."
    return [
        f"{x:f}" if own is None else f"{x:#.{own}f}" + " " * (right - own)
        for x, own in zip(values, places)
    ]


def _texts(a):
    """Return the elements of `a` as texts of one width."""
    values = a.flatten().tolist()
    floats = a.dtype in _FLOATS
    texts = _float_texts(values, a.dtype) if floats else list(map(str, values))
    booleans = a.dtype == "bool" and a.ndim
    width = len("False") if booleans else max(map(len, texts), default=0)
    return [text.rjust(width) for text in texts]


def _append(text, separator, part, limit, newline):
    """Return `text` with one more part, on a new line where the last one is full."""
    column = len(text) - text.rfind("\n") - 1 + len(separator)
    if column + len(part) <= limit:
        return text + separator + part
    return (text + separator).rstrip() + newline + part


def _layout(a, separator, indent):
    """Return the elements between brackets; later lines start at column `indent`."""
    cut = [a.size > 1000 and n > 6 for n in a.shape]
    for axis, short in enumerate(cut):
        if short:
            a = a[(slice(None),) * axis + ([0, 1, 2, -3, -2, -1],)]
    texts = iter(_texts(a))

    def block(axis, indent):
        if axis == a.ndim:
            return next(texts)
        parts = [block(axis + 1, indent + 1) for _ in range(a.shape[axis])]
        if cut[axis]:
            parts.insert(3, "...")
        deep = a.ndim - 1 - axis  # blocks of several axes are that many lines apart
        newline = "\n" * max(deep, 1) + " " * (indent + 1)
        # NumPy's width is 75, and each open bracket will need a closing one.
        limit = 0 if deep else 76 - a.ndim - len(separator)
        text = " " * indent + "[" + parts[0]
        for part in parts[1:]:
            text = _append(text, separator, part, limit, newline)
        return text[indent:] + "]"

    return block(0, indent) if a.size else "[]"


def _render(name, a, notes=()):
    """Return the text of `repr`: a name, the elements, the dtype unless it is float32,
    and notes."""
    text = f"{name}({_layout(a, ', ', len(name) + 1)}"
    if a.dtype != "float32":
        notes = [f"dtype={a.dtype!r}", *notes]
    if a.size == 0 and a.shape != (0,) or a.size > 1000:
        notes = [f"shape={a.shape}", *notes]
    if not notes:
        return text + ")"
    return _append(text, ", ", ", ".join(notes) + ")", 75, "\n" + " " * (len(name) + 1))


# --- 2j. What arrays and tensors have in common ---------------------------------------


class _Common:
    """Names that mean the same for NDArray and Tensor, written in names both have."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves `np.float32(2) * x` to x.__rmul__

    if TYPE_CHECKING:  # what both kinds provide
        _data: Any
        shape: Any
        dtype: Any
        item: Any
        copy: Any
        reshape: Any
        transpose: Any
        __getitem__: Any

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    @property
    def T(self: _Kind) -> _Kind:
        """The transpose: all axes reversed. A view."""
        return self.transpose()

    def flatten(self: _Kind) -> _Kind:
        """Return all elements along one axis; a view where strides allow."""
        return self.reshape(-1)

    def swapaxes(self: _Kind, a: int, b: int) -> _Kind:
        """Exchange two axes. A view.

        >>> zeros((2, 3, 4)).swapaxes(0, -1).shape
        (4, 3, 2)
        """
        return self.transpose(_swapped(a, b, self.ndim))

    def unsqueeze(self: _Kind, axis: int | tuple[int, ...]) -> _Kind:
        """Insert axes of size 1 at the given places of the result. A view.

        >>> zeros((2, 3)).unsqueeze(-1).shape
        (2, 3, 1)
        """
        many = axis if isinstance(axis, (tuple, list)) else (axis,)
        ndim = self.ndim + len(many)
        axes = _axes("unsqueeze", many, ndim)
        old = iter(self.shape)
        return self.reshape(tuple([1 if i in axes else next(old) for i in range(ndim)]))

    def squeeze(self: _Kind, axis: _Axis = None) -> _Kind:
        """Remove the given axes, which must have size 1 (`None`: all that do). A view.

        >>> zeros((2, 1, 3)).squeeze(1).shape
        (2, 3)
        """
        ones = tuple([i for i, n in enumerate(self.shape) if n == 1])
        axes = ones if axis is None else _axes("squeeze", axis, self.ndim)
        for i in axes:
            if i not in ones:
                raise ValueError(f"squeeze: axis {i} of shape {self.shape} has size "
                                 f"{self.shape[i]}; only an axis of size 1 can be "
                                 "removed")
        kept = [n for i, n in enumerate(self.shape) if i not in axes]
        return self.reshape(tuple(kept))

    def flip(self: _Kind, axis: _Axis = None) -> _Kind:
        """Reverse the order along the given axes (`None`: all). A view.

        >>> arange(3).flip(0).tolist()
        [2.0, 1.0, 0.0]
        """
        axes = _axes("flip", axis, self.ndim)
        back, same = slice(None, None, -1), slice(None)
        return self[tuple([back if i in axes else same for i in range(self.ndim)])]

    def contiguous(self: _Kind) -> _Kind:
        """Return a copy stored row after row (the name PyTorch's users look for)."""
        return self.copy()

    def matmul(self: _Kind, other: Any) -> _Kind:
        """Return the matrix product by NumPy's rules, as `@`: 1-D operands are a row on
        the left and a column on the right, leading axes are a stack that broadcasts.

        >>> (ones((5, 1, 2, 3)) @ ones((4, 3, 2))).shape
        (5, 4, 2, 2)
        """
        return self @ other

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len: an array of 0 axes has no length; see item()")
        return self.shape[0]

    def __iter__(self: _Kind) -> Iterator[_Kind]:
        return iter([self[i] for i in range(len(self))])

    def __contains__(self, value: object) -> bool:
        same = self == value
        return isinstance(same, _Common) and bool(same._data.any())

    def _one(self, what):
        """Return the only element, or explain why `what` needs one."""
        if self.size != 1:
            raise ValueError(f"{what}: an array of shape {self.shape} has {self.size} "
                             "elements; only one element converts to a Python number "
                             "(see any(), all(), tolist())")
        return self.item()

    def __bool__(self) -> bool:
        return bool(self._one("bool"))

    def __float__(self) -> float:
        return float(self._one("float"))

    def __int__(self) -> int:
        return int(self._one("int"))

    def __index__(self) -> int:
        if self.dtype != "int64" or self.size != 1:
            raise TypeError("index: only one int64 element can serve as an integer, "
                            f"not {self.dtype} of shape {self.shape}")
        return int(self.item())

    def __format__(self, spec: str) -> str:
        return format(self._one("format") if spec else str(self), spec)


# --- 2k. The array --------------------------------------------------------------------


class NDArray(_Common):
    """An n-dimensional array of float32 (or float64, int64, bool) numbers.

    `data` is a number, nested lists or tuples, any iterable, another array, or an
    object with the buffer protocol or `__array_interface__` (a NumPy array); it is
    copied.
    `dtype` defaults to "float32", whatever the input's was. Raises ValueError for
    ragged lists, naming where, and TypeError for what is no number.

    >>> a = NDArray([[1, 2, 3], [4, 5, 6]])
    >>> a.shape, a.strides, a[1, 0].item()
    ((2, 3), (3, 1), 4.0)
    >>> column = a[:, 1]            # a view: the same storage, walked in steps of 3
    >>> column.strides, column.offset
    ((3,), 1)
    >>> column += 10                # so a write through it is seen in `a`
    >>> a
    NDArray([[ 1., 12.,  3.],
             [ 4., 15.,  6.]])
    """

    __slots__ = (
        "buffer", "dtype", "shape", "strides", "offset", "_base", "_flat", "_stamp"
    )  # fmt: skip

    buffer: array[Any]
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    _base: NDArray | None
    _flat: array[Any] | None
    _stamp: int

    def __init__(self, data: Any, dtype: str | None = None) -> None:
        name = _dtype_name("NDArray", "float32" if dtype is None else dtype)
        values, shape = _read(data)
        fresh = _fresh(_cast("NDArray", values, name), name, shape)
        for slot in NDArray.__slots__:
            setattr(self, slot, getattr(fresh, slot))

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.buffer.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements (a view's may be shared or repeated)."""
        return self.size * self.itemsize

    @property
    def _data(self):
        return self

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """NumPy's view of the same memory: `np.asarray(a)` copies nothing."""
        letter = {"f": "f4", "d": "f8", "q": "i8", "b": "b1"}[self.buffer.typecode]
        order = "|" if letter == "b1" else "<" if sys.byteorder == "little" else ">"
        memory = memoryview(self.buffer)  # NumPy keeps it, and it keeps the storage
        return {
            "version": 3,
            "typestr": order + letter,
            "shape": self.shape,
            "strides": tuple([step * self.itemsize for step in self.strides]),
            "data": memory.toreadonly() if _repeats(self) else memory,
            "offset": self.offset * self.itemsize,
        }

    def __reduce__(self):
        return _fresh, (_run(self)[:], self.dtype, self.shape)

    # Leaving for Python

    def item(self) -> float:
        """Return the only element as a Python number."""
        if self.size != 1:
            self._one("item")  # raises
        value = self.buffer[self.offset]
        return bool(value) if self.dtype == "bool" else value

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers (0 axes: a number)."""
        values = _run(self).tolist()
        if self.dtype == "bool":
            values = list(map(bool, values))
        for i in range(self.ndim - 1, 0, -1):
            n, count = self.shape[i], prod(self.shape[:i])
            values = [values[k * n : (k + 1) * n] for k in range(count)]
        return values if self.shape else values[0]

    # Views: new numbers over the old storage

    def transpose(self, *axes: Any) -> NDArray:
        """Return the axes in another order (default: reversed). A view.

        >>> zeros((2, 3, 4)).transpose(1, 0, 2).strides
        (4, 12, 1)
        """
        axes = (tuple(axes[0]),) if axes and hasattr(axes[0], "__iter__") else axes
        order = _order(axes, len(self.shape))
        shape = tuple([self.shape[i] for i in order])
        return _view(self, shape, tuple([self.strides[i] for i in order]), self.offset)

    def reshape(self, *shape: Any) -> NDArray:
        """Return the same elements in another shape; one size may be -1. A view where
        the strides allow one, else a copy.

        >>> arange(6).reshape(2, -1).shape
        (2, 3)
        """
        new = _shape("reshape", shape[0] if len(shape) == 1 else shape, -1)
        new, strides = _restride(self.shape, self.strides, new)
        if strides is None:
            return _fresh(_run(self), self.dtype, new)
        return _view(self, new, strides, self.offset)

    def broadcast_to(self, shape: _ShapeLike) -> NDArray:
        """Repeat axes of size 1, and new ones in front, by a stride of 0. A view, not
        to be written through.

        >>> ones((3, 1)).broadcast_to((2, 3, 4)).strides
        (0, 1, 0)
        """
        new = _shape("broadcast_to", shape)
        if _broadcast("broadcast_to", self.shape, new) != new:
            raise ValueError(f"broadcast_to: shape {self.shape} does not broadcast to "
                             f"{new}; only axes of size 1 can be repeated")
        strides = _widened(self.shape, self.strides, new)
        return _view(self, new, strides, self.offset)

    def sliding_window(self, size: _ShapeLike, stride: _ShapeLike = 1,
                       axes: _Axis = None) -> NDArray:
        """Return every window of the given size along `axes` (`None`: all), one axis
        for the windows' places where the old was, new last axes inside the window.
        A view: neighbouring windows share elements. NumPy's `sliding_window_view`.

        >>> arange(5).sliding_window(3).tolist()
        [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]
        """
        sizes = _shape("sliding_window", size)
        where: Any = range(self.ndim) if axes is None else axes
        where = where if hasattr(where, "__iter__") else [where]
        where = [_axis("sliding_window", axis, self.ndim) for axis in where]
        steps = _shape("sliding_window", stride)
        steps = steps * len(sizes) if len(steps) == 1 else steps
        if not len(sizes) == len(where) == len(steps):
            raise ValueError(f"sliding_window: {len(sizes)} sizes and {len(steps)} "
                             f"strides for {len(where)} axes of shape {self.shape}")
        shape, strides = list(self.shape), list(self.strides)
        for n, step, axis in zip(sizes, steps, where):
            if not 1 <= n <= shape[axis] or step < 1:
                raise ValueError(f"sliding_window: a window of {n} with stride {step} "
                                 f"does not fit axis {axis} of shape {self.shape}")
            shape[axis] = (shape[axis] - n) // step + 1
            shape.append(n)
            strides.append(strides[axis])
            strides[axis] *= step
        return _view(self, tuple(shape), tuple(strides), self.offset)

    def __getitem__(self, index: Any) -> NDArray:
        shape, axes, start = _locate(self, index)
        if list in map(type, axes):
            flat = _gather(self.buffer, start, _simplify(axes))
            return _fresh(flat, self.dtype, shape)
        return _view(self, shape, tuple([step for _, step in axes]), start)

    # Copies

    def copy(self) -> NDArray:
        """Return the same elements in a storage of their own, row after row."""
        if self._flat is None:
            return _fresh(_run(self), self.dtype, self.shape)
        return _fresh(self._flat[:], self.dtype, self.shape, self.strides)

    def astype(self, dtype: str) -> NDArray:
        """Return a copy in another dtype; into int64, fractions are cut off.

        >>> NDArray([1.7, -1.7]).astype("int64").tolist()
        [1, -1]
        """
        name = _dtype_name("astype", dtype)
        if name == self.dtype:
            return self.copy()
        return _fresh(_cast("astype", _run(self), name), name, self.shape)

    # Writing

    def __setitem__(self, index: Any, value: Any) -> None:
        shape, axes, start = _locate(self, index)
        _refuse_repeats("setitem", self)
        source = _operand("setitem", value, self)
        if source is NotImplemented:
            raise TypeError(f"setitem: a {type(value).__name__} cannot be written into "
                            f"an array of shape {self.shape}; give a number, an array "
                            "or nested lists")
        if source.__class__ is not NDArray:
            source = _fresh(_cast("setitem", [source], self.dtype), self.dtype, ())
        while source.ndim > len(shape) and source.shape[0] == 1:  # as NumPy allows
            source = source.reshape(source.shape[1:])
        if _broadcast("setitem", source.shape, shape) != shape:
            raise ValueError(f"setitem: a value of shape {source.shape} does not fit "
                             f"the shape {shape} that the index selects")
        flat = _spread(source, shape)
        if source.dtype != self.dtype:
            flat = _cast("setitem", flat, self.dtype)
        elif flat is self.buffer:  # a[::-1] = a reads what it writes
            flat = flat[:]
        _scatter(self.buffer, start, axes, flat)
        _mark_written(self)

    # Arithmetic and comparison: see `_arithmetic` and `_comparison` above

    __add__, __radd__, __iadd__ = _arithmetic("add")
    __sub__, __rsub__, __isub__ = _arithmetic("sub")
    __mul__, __rmul__, __imul__ = _arithmetic("mul")
    __truediv__, __rtruediv__, __itruediv__ = _arithmetic("div")
    __pow__, __rpow__, __ipow__ = _arithmetic("pow")
    __hash__ = object.__hash__  # an `__eq__` takes it away
    __eq__, __ne__ = map(_comparison, ("eq", "ne"))
    __lt__, __le__ = map(_comparison, ("lt", "le"))
    __gt__, __ge__ = map(_comparison, ("gt", "ge"))
    __and__ = __rand__ = _masking("and")
    __or__ = __ror__ = _masking("or")

    __neg__ = _unary("neg", "Return -x.")
    __abs__ = _unary("abs", "Return |x|.")

    def __invert__(self) -> NDArray:
        if self.dtype != "bool":
            raise TypeError(f"invert: ~ is for masks (bool), not {self.dtype}")
        return self == 0

    abs = _unary("abs", "Return |x|, elementwise.")
    exp = _unary("exp", "Return e ** x, elementwise; inf where it overflows.")
    log = _unary("log", "Return the natural logarithm; -inf at 0, nan below.")
    sqrt = _unary("sqrt", "Return the square root; nan below 0.")
    sin = _unary("sin", "Return the sine of x in radians.")
    cos = _unary("cos", "Return the cosine of x in radians.")
    tanh = _unary("tanh", "Return the hyperbolic tangent.")
    erf = _unary("erf", "Return the error function.")
    sigmoid = _unary("sigmoid", "Return 1 / (1 + exp(-x)).")
    relu = _unary("relu", "Return x where it is positive, else 0.")

    def leaky_relu(self, slope: float = 0.01) -> NDArray:
        """Return x where it is positive, else slope * x."""
        _need_numbers("leaky_relu", slope)
        return _choose("where", self > 0, self, self * slope)

    def maximum(self, other: Any) -> NDArray:
        """Return the larger of two, elementwise; nan if either is."""
        return _choose("maximum", self, other)

    def minimum(self, other: Any) -> NDArray:
        """Return the smaller of two, elementwise; nan if either is."""
        return _choose("minimum", self, other)

    def clip(self, min: Any = None, max: Any = None) -> NDArray:
        """Return x limited to [min, max]; `None` is no limit.

        >>> arange(4).clip(1, 2).tolist()
        [1.0, 1.0, 2.0, 2.0]
        """
        bounds = -inf if min is None else min, inf if max is None else max
        low, high = _operands("clip", self, bounds)
        plain = isinstance(low, (int, float)) and isinstance(high, (int, float))
        if plain and self.dtype in _FLOATS and low <= high:  # one pass
            return _mapped(_KERNELS["clip"], self, low, high)
        result = self if min is None else self.maximum(min)
        result = result if max is None else result.minimum(max)
        return self.copy() if result is self else result

    # Reductions: over all axes, one, or several

    def sum(self, axis: _Axis = None, keepdims: bool = False) -> NDArray:
        """Return the sum over `axis`, added up in double precision.

        >>> ones((2, 3)).sum(axis=0).tolist()
        [2.0, 2.0, 2.0]
        """
        return _reduce("sum", self, axis, keepdims, _adder(self.dtype))

    def mean(self, axis: _Axis = None, keepdims: bool = False) -> NDArray:
        """Return the mean over `axis`; nan of nothing. It cannot overflow where its
        sum would: it is divided before it is rounded."""
        total = _adder(self.dtype)

        def mean(run):
            return _over(total(run), len(run))

        return _reduce("mean", self, axis, keepdims, mean)

    def var(self, axis: _Axis = None, ddof: int = 0, keepdims: bool = False) -> NDArray:
        """Return the variance over `axis`, sum((x - mean) ** 2) / (n - ddof).

        >>> arange(4).var().item(), NDArray([1, 3]).var(ddof=1).item()
        (1.25, 2.0)
        """
        return _reduce("var", self, axis, keepdims, _variance(self.dtype, ddof))

    def std(self, axis: _Axis = None, ddof: int = 0, keepdims: bool = False) -> NDArray:
        """Return the standard deviation over `axis`, the square root of the
        variance."""
        variance = _variance(self.dtype, ddof)

        def deviation(run):
            return math.sqrt(variance(run))

        return _reduce("std", self, axis, keepdims, deviation)

    def max(self, axis: _Axis = None, keepdims: bool = False) -> NDArray:
        """Return the largest element over `axis`; nan if there is one. Raises
        ValueError for none."""
        return _extreme("max", self, axis, keepdims, max)

    def min(self, axis: _Axis = None, keepdims: bool = False) -> NDArray:
        """Return the smallest element over `axis`; nan if there is one. Raises
        ValueError for none."""
        return _extreme("min", self, axis, keepdims, min)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> NDArray:
        """Return where the largest element is (the first of ties, a nan if there is
        one), as int64: along one axis, or in the flattened array.

        >>> NDArray([[1, 3, 3], [5, 5, 2]]).argmax(axis=1).tolist()
        [1, 0]
        """
        return _extreme("argmax", self, axis, keepdims, max)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> NDArray:
        """Return where the smallest element is; otherwise as `argmax`."""
        return _extreme("argmin", self, axis, keepdims, min)

    def any(self, axis: _Axis = None, keepdims: bool = False) -> NDArray:
        """Return whether any element is not 0."""
        return _reduce("any", self, axis, keepdims, any, "bool")

    def all(self, axis: _Axis = None, keepdims: bool = False) -> NDArray:
        """Return whether no element is 0."""
        return _reduce("all", self, axis, keepdims, all, "bool")

    # By rows: softmax and its relatives, in one pass over each row

    def softmax(self, axis: _Axis = -1) -> NDArray:
        """Return exp(x) / sum(exp(x)) along `axis`. The row's maximum is subtracted
        first, which changes nothing but keeps exp in range."""
        return _by_rows("softmax", axis, _softmax_row, self)

    def log_softmax(self, axis: _Axis = -1) -> NDArray:
        """Return log(softmax(x)) along `axis`, exact where softmax would round to 0."""
        return _by_rows("log_softmax", axis, _log_softmax_row, self)

    def logsumexp(self, axis: _Axis = -1, keepdims: bool = False) -> NDArray:
        """Return log(sum(exp(x))) over `axis`, shifted by the maximum."""
        return _reduce("logsumexp", self, axis, keepdims, _log_sum_exp)

    # Matrices

    __matmul__ = _binary("matmul", _matmul)
    __rmatmul__ = _binary("matmul", lambda a, b: _matmul(b, a))

    # Printing

    def __repr__(self) -> str:
        return _render("NDArray", self)

    def __str__(self) -> str:
        return _layout(self, " ", 0)


def _as_array(x):
    """Return an operand of either kind as it is, everything else as an NDArray."""
    return x if isinstance(x, _Common) else NDArray(x)


# --- 2l. Making arrays ----------------------------------------------------------------


def _filled(op, value, shape, dtype):
    """Return an array that holds `value` everywhere."""
    shape, dtype = _shape(op, shape), _dtype_name(op, dtype)
    _need_numbers(op, value)
    return _fresh(_cast(op, [value], dtype) * prod(shape), dtype, shape)


def zeros(shape: _ShapeLike, dtype: str = "float32") -> NDArray:
    """Return an array of zeros.

    >>> zeros((2, 3)).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return _filled("zeros", 0, shape, dtype)


def ones(shape: _ShapeLike, dtype: str = "float32") -> NDArray:
    """Return an array of ones."""
    return _filled("ones", 1, shape, dtype)


def full(shape: _ShapeLike, value: float, dtype: str = "float32") -> NDArray:
    """Return an array that holds `value` everywhere.

    >>> full((2, 2), 0.5).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    return _filled("full", value, shape, dtype)


def zeros_like(a: NDArray | Tensor, dtype: str | None = None) -> NDArray:
    """Return zeros in the shape and dtype (unless given) of `a`."""
    a = _as_array(a)
    return zeros(a.shape, dtype or a.dtype)


def ones_like(a: NDArray | Tensor, dtype: str | None = None) -> NDArray:
    """Return ones in the shape and dtype (unless given) of `a`."""
    a = _as_array(a)
    return ones(a.shape, dtype or a.dtype)


def arange(start: float, stop: float | None = None, step: float = 1,
           dtype: str = "float32") -> NDArray:
    """Return start, start + step, ... up to, without, stop (`arange(n)`: from 0).

    >>> arange(1, 2, 0.25).tolist()
    [1.0, 1.25, 1.5, 1.75]
    """
    first, last = (0, start) if stop is None else (start, stop)
    _need_numbers("arange", first, last, step)
    length = _over(last - first, step)
    if not abs(length) < sys.maxsize // 8 or step == 0:
        raise ValueError(f"arange: steps of {step} from {first} do not reach {last}")
    count = max(0, math.ceil(length))
    values: Iterable[float] = (first + i * step for i in range(count))
    if isinstance(first, int) and isinstance(step, int):
        values = range(first, first + count * step, step)
    dtype = _dtype_name("arange", dtype)
    return _fresh(_cast("arange", values, dtype), dtype, (count,))


def linspace(start: float, stop: float, n: int = 50, dtype: str = "float32") -> NDArray:
    """Return n evenly spaced numbers from start to stop, both included.

    >>> linspace(0, 1, 5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    _need_numbers("linspace", start, stop)
    (n,), dtype = _shape("linspace", [n]), _dtype_name("linspace", dtype)
    values = [start + (stop - start) * i / (n - 1) for i in range(n - 1)]
    if n > 0:
        values.append(stop if n > 1 else start)
    return NDArray(values, dtype)


def eye(n: int, m: int | None = None, dtype: str = "float32") -> NDArray:
    """Return an (n, m) matrix, m = n by default, of ones on the diagonal, else 0.

    >>> eye(2, 3).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    m = n if m is None else m
    result = _filled("eye", 0, (n, m), dtype)
    result.buffer[: min(n, m) * m : m + 1] = _ONE[dtype] * min(n, m)
    return result


_source: list[Any] = []


def _generator():
    """Return the source of random numbers, made when it is first asked for: to import
    `random` would be an eighth of what importing this file takes."""
    if not _source:
        from random import Random

        _source.append(Random())
    return _source[0]  # should two threads have come at once, both take the first


def manual_seed(seed: int) -> None:
    """Start the random numbers of this module from a fixed point, on every platform.

    >>> manual_seed(0); a = uniform(0, 1, 3); manual_seed(0); b = uniform(0, 1, 3)
    >>> (a == b).all().item()
    True
    """
    if not hasattr(seed, "__index__"):
        raise TypeError(f"manual_seed: a seed is an integer, not {seed!r:.60}")
    _generator().seed(index(seed))


def _drawn(op, draw, shape, dtype):
    """Return numbers drawn one by one, in chunks like any other pass."""
    shape, dtype = _shape(op, shape), _dtype_name(op, dtype)
    kernel = (lambda places: [draw() for _ in places]), None
    n = prod(shape)
    return _fresh(_compute(kernel, (range(n),), n, dtype), dtype, shape)


def uniform(low: float = 0.0, high: float = 1.0, shape: _ShapeLike = (),
            dtype: str = "float32") -> NDArray:
    """Return numbers drawn evenly from [low, high] (rounding may reach `high`)."""
    _need_numbers("uniform(low, high, shape)", low, high)
    low, high = _cast("uniform", [low, high], "float64")
    result = _drawn("uniform", _generator().random, shape, dtype)
    width = high - low
    kernel = (lambda run: [low + width * x for x in run]), None
    return _mapped(kernel, result) if (low, high) != (0, 1) else result


def randn(shape: _ShapeLike = (), dtype: str = "float32") -> NDArray:
    """Return numbers drawn from the normal distribution of mean 0 and variance 1."""
    return _drawn("randn", partial(_generator().gauss, 0.0, 1.0), shape, dtype)


def randint(low: int, high: int, shape: _ShapeLike = ()) -> NDArray:
    """Return int64 numbers drawn evenly from low to high - 1. Raises ValueError where
    there are none, or int64 does not hold them.

    >>> randint(0, 10, (2, 3)).dtype, randint(3, 4, 2).tolist()
    ('int64', [3, 3])
    """
    if not hasattr(low, "__index__") or not hasattr(high, "__index__"):
        raise TypeError(f"randint: bounds are integers, not {low!r} and {high!r}")
    if not -(2**63) <= low < high <= 2**63:
        raise ValueError(f"randint: there is no int64 from {low} to below {high}")
    return _drawn("randint", partial(_generator().randrange, low, high), shape, "int64")


def permutation(n: int) -> NDArray:
    """Return the numbers 0 to n - 1 in random order, as int64.

    >>> sorted(permutation(4).tolist())
    [0, 1, 2, 3]
    """
    order = list(range(*_shape("permutation", [n])))
    _generator().shuffle(order)
    return NDArray(order, "int64")


# ======================================================================================
# 3. Tensor and the tape: what happens in loss.backward()
# ======================================================================================
#
# A Tensor is an NDArray with a history: which operation made it (`_ctx.op`) out of
# which Tensors (`_ctx.inputs`). Every operation on tensors that require a gradient adds
# one link; together the links are the graph, or "tape". `backward` walks it from the
# newest result to the oldest input and applies the chain rule at each step: from
# g = d loss / d output and the operation's own rule, d loss / d input. Always:
#
# * One rule, two readings: a rule is ordinary maths in names that NDArray and Tensor
#   share. Given NDArrays it computes numbers (`backward`), given Tensors it records a
#   graph in turn (`grad(..., create_graph=True)`), and so can be differentiated again.
# * A rule reads only what its parameters name, so the engine knows which values must
#   not have changed, evaluates nothing for inputs that need no gradient, and undoes
#   broadcasting itself, in `_fit`, in one place.
# * A link points only backwards, from results to inputs: no cycles, so Python's
#   reference counting alone frees a graph.
# * The history of a Tensor is four fields: `_needs` (does it require a gradient?),
#   `_function` and `_args` (what made it, out of what), `_time` (the clock's tick when
#   it first required a gradient; 0 before, _RELEASED once its history is gone).
#
# Section 4 needs `Function`; whoever trains a model, `backward` and `no_grad`.
#
# At first reading, skip the modes (3a); the heart is `Function.apply` and `_reverse`.


# --- 3a. Modes: recording or not, watching for anomalies or not -----------------------

# (recording, watching, the mode outside). A ContextVar is private to each thread and to
# each asyncio task, and with no state in the `with` object itself, nesting is free.
_OUTERMOST = (True, False, None)
_mode: ContextVar[Any] = ContextVar("minigrad_mode", default=_OUTERMOST)


class _Switch:
    """A context manager and decorator that changes the mode within."""

    _recording: bool | None = None  # within; None: as outside
    _watching: bool | None = None

    def __new__(cls, function: Any = None) -> Any:
        """Return a switch, or, as `@no_grad` without parentheses, what it decorates."""
        switch = _new(cls)
        return switch if function is None else switch(function)

    def __enter__(self):
        recording, watching, _ = outside = _mode.get()
        recording = recording if self._recording is None else self._recording
        watching = watching if self._watching is None else self._watching
        _mode.set((recording, watching, outside))
        return self

    def __exit__(self, *error: object) -> None:
        # Nothing is outside the outermost mode: then this exit runs in a context
        # (of asyncio) that its enter did not reach.
        _mode.set(_mode.get()[2] or _OUTERMOST)

    def __call__(self, function: Any) -> Any:
        from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

        if isasyncgenfunction(function):
            raise TypeError(f"{type(self).__name__}: an asynchronous generator cannot "
                            f"be decorated; write `with {type(self).__name__}():` "
                            "inside it")

        def call(*args, **options):
            with self:
                return function(*args, **options)

        async def call_async(*args, **options):
            with self:
                return await function(*args, **options)

        def call_generator(*args, **options):
            return self._steps(function(*args, **options))

        within = call_generator if isgeneratorfunction(function) else call
        within = call_async if iscoroutinefunction(function) else within
        return wraps(function)(within)

    def _steps(self, generator):
        """Run a generator with the mode on inside it, off wherever it pauses."""
        resume, value, paused = generator.send, None, None
        while True:
            with self:
                within = _mode.get()
                _mode.set(paused or within)  # it may have paused in a mode of its own
                try:
                    item = resume(value)
                except StopIteration as stop:
                    return stop.value
                finally:
                    paused = None if _mode.get() is within else _mode.get()
                    _mode.set(within)  # as __exit__ expects it
            try:
                resume, value = generator.send, (yield item)
            except BaseException as error:  # close() too: it throws a GeneratorExit
                resume, value = generator.throw, error


class no_grad(_Switch):
    """Record nothing within: `with no_grad():`, or `@no_grad` on a function.

    >>> x = Tensor([2.0], requires_grad=True)
    >>> with no_grad():
    ...     y = x * 3
    >>> y.requires_grad
    False
    """

    _recording = False


class _recorded(_Switch):
    """Record within, even inside `no_grad`: for `grad(..., create_graph=True)`."""

    _recording = True


class _unwatched(_Switch):
    """Watch for no anomaly within: a rule is judged as a whole, by its result."""

    _watching = False


class detect_anomaly(_Switch):
    """Raise FloatingPointError at the first operation within that makes a NaN or an
    infinity out of finite inputs, in forward or backward, naming the operation, the
    shapes, and the line of your code that called it.

    >>> with detect_anomaly():
    ...     Tensor([0.0]).log()
    Traceback (most recent call last):
    FloatingPointError: log made -inf out of finite inputs of shape (1,), called at ...
    """

    _watching = True


def _caller():
    """Return the file and line of the code outside this file that led here."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename == _caller.__code__.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _check_finite(what, result, sources, place):
    """Raise if finite sources made a result that is not."""
    arrays = [x for x in sources if isinstance(x, _Common)]
    bad = next((x for x in _run(result) if not isfinite(x)), None)
    numbers = [x for x in sources if isinstance(x, float)]
    if bad is None or not all(map(isfinite, numbers)):
        return
    if not all([all(map(isfinite, _run(x._data))) for x in arrays]):
        return
    shapes = " and ".join([str(x.shape) for x in arrays])
    raise FloatingPointError(f"{what} made {bad} out of finite inputs of shape "
                             f"{shapes}, called at {place}")


# --- 3b. Function: an operation and its derivatives -----------------------------------


# This file's operations by name. The methods of Tensor look them up when they are
# called, since section 4, which defines them, needs Tensor first.
_FUNCTIONS: dict[str, Any] = {}


def _tensor(data):
    """Return a Tensor over `data` itself, without history."""
    t = _new(Tensor)
    t._data = data
    t._grad = t._function = None
    t._needs = False
    t._args = ()
    t._time = 0
    return t


def _record(function, args, data):
    """Return a Tensor of `data`, with its history if an input requires a gradient."""
    recording, watching, _ = _mode.get()
    place = None
    if watching:
        place = _caller()
        _check_finite(function.op, data, args, place)
    if recording and data.dtype in _FLOATS:  # not inside no_grad()
        for x in args:
            if isinstance(x, Tensor) and x._needs:
                t = _new(Tensor)  # `_tensor` written out: a call saved
                t._data = data
                t._grad = None
                t._needs = True
                t._function = function
                t._args = args
                t._time = next(_ticks)
                t._place = place
                return t
    return _tensor(data)


class Function:
    """An operation: `forward`, and for each input one rule, its derivative.

    `forward` takes NDArrays (and numbers or other options) and returns a new NDArray.
    The rule for its parameter `x` is called `dx`. It takes `g`, the gradient of the
    loss with respect to the output, and by name whatever else it reads: the output `y`,
    any parameter of `forward`, or only the shape of one, `x_shape`. It returns the
    gradient with respect to x, in names that NDArray and Tensor share, so that the same
    rule computes numbers and records graphs. Neither writes to what it is given. Use it
    through `apply`:

    >>> class Cube(Function):
    ...     def forward(x): return x * x * x
    ...     def dx(g, x): return g * 3 * x * x
    >>> x = Tensor([2.0], requires_grad=True)
    >>> y = Cube.apply(x)
    >>> y.backward()
    >>> y.item(), x.grad.item()
    (8.0, 12.0)

    An input that was broadcast needs no care: the engine sums its gradient back to its
    shape. An input without a rule must not require a gradient. With `*xs` in `forward`,
    the rule `dxs` serves each of them and may ask for its number `i`.
    """

    op = "function"
    forward: Any
    _parameters: tuple[str, ...] = ()
    _defaults: tuple[Any, ...] = ()  # of the last parameters
    _rules: dict[int, Any] = {}  # position: (rule, what it reads after g)

    def __init_subclass__(cls, **options: Any) -> None:
        """Read off the signatures which rule belongs to which input, and what it
        reads."""
        super().__init_subclass__(**options)
        cls.op = vars(cls).get("op", cls.__name__.lower())
        if cls.__module__ == __name__:
            _FUNCTIONS[cls.op] = cls
        code = getattr(getattr(cls, "forward", None), "__code__", None)
        if code is None or code.co_kwonlyargcount:
            raise TypeError(f"{cls.__name__}: forward must be a plain function, "
                            "without keyword-only parameters")
        count, star = code.co_argcount, bool(code.co_flags & 4)  # 4: there is a *xs
        names = code.co_varnames[: count + star]
        cls._parameters, cls._defaults = names[:count], cls.forward.__defaults__ or ()
        reads = {"y": ("value", -1), "i": ("number", count)}
        each = list(enumerate(names[:count]))
        reads.update({f"{name}_shape": ("shape", i) for i, name in each})
        taken = set(names) & {"g", "self", "cls", "ctx", *reads}
        reads.update({name: ("value", i) for i, name in each})
        cls._rules = {}
        for name in [name for name in dir(cls) if name[0] == "d"]:
            rule = getattr(cls, name)
            code = getattr(getattr(rule, "__wrapped__", rule), "__code__", None)
            takes = code.co_varnames[: code.co_argcount] if code else ()
            named, upstream, asked = name[1:] in names, takes[:1] == ("g",), takes[1:]
            if not upstream and not (named and code):  # not a rule
                continue
            asks = set(asked) <= set(reads) and not (code and code.co_kwonlyargcount)
            if not (named and upstream and asks):
                raise TypeError(f"{cls.__name__}: the rule {name}"
                                f"({', '.join(takes)}) must be named after one of "
                                f"({', '.join(names)}) and take g, then any of "
                                f"{', '.join(reads)}; there is no self")
            cls._rules[names.index(name[1:])] = (rule, [reads[part] for part in asked])
        if taken or not cls._rules:
            raise TypeError(f"{cls.__name__}: forward({', '.join(names)}) needs a rule "
                            "for each input, such as `def dx(g): ...` for x, and no "
                            "parameter called g, y, i, self, cls, ctx or ..._shape")

    def __init__(self, *args: Any, **options: Any) -> None:
        if args or options:
            name = type(self).__name__
            raise TypeError(f"{name}: an operation is not called; use {name}.apply(x)")

    @classmethod
    def _star_rule(cls, i):
        """Return the rule that serves each of *xs, for argument i."""
        star = len(cls._parameters)
        if i < star or star not in cls._rules:
            raise TypeError(f"{cls.__name__}: argument {i} requires a gradient, but "
                            "has no rule; define one, or pass detach() of the tensor")
        return cls._rules[star]

    @classmethod
    def apply(cls, *args: Any, **options: Any) -> Tensor:
        """Compute the operation on Tensors, numbers and options, and record it if a
        Tensor requires a gradient. Raises TypeError for arguments that do not fit
        `forward`, or if it returns no NDArray."""
        missing = len(cls._parameters) - len(args)
        if options or missing > len(cls._defaults):
            args = cls._bind(args, options)
        elif missing > 0:  # as `_bind` would, at once
            args += cls._defaults[-missing:]
        data = cls.forward(*[x._data if isinstance(x, Tensor) else x for x in args])
        if data.__class__ is not NDArray:
            raise TypeError(f"{cls.__name__}: forward must return an NDArray, not a "
                            f"{type(data).__name__}; it gets tensors as NDArrays, but "
                            "not those in lists: pass each by itself")
        return _record(cls, args, data)

    @classmethod
    def _bind(cls, args, options):
        """Put options given by name, and defaults, in their positions."""
        rest = cls._parameters[len(args) :]
        known = dict(zip(cls._parameters[::-1], cls._defaults[::-1]))
        known.update(options)
        if not set(options) <= set(rest) <= set(known):
            raise TypeError(f"{cls.op}: the arguments are "
                            f"({', '.join(cls._parameters)}); got {len(args)} by "
                            f"position and {', '.join(options) or 'none'} by name")
        return args + tuple([known[name] for name in rest])


# --- 3c. The walk back ----------------------------------------------------------------


_time_of = attrgetter("_time")
_RELEASED = -1  # the time of a tensor whose history a backward has released


def _behind(t, needing=False):
    """Return t and every tensor it was computed from (`needing`: that requires a
    gradient, and did when it was used), in the order of their times.

    An operation can only use what already exists, so among those that require a
    gradient inputs come before outputs, and sorting is all that is needed.
    """
    found, seen = [t], {t}
    for t in found:  # it grows on the way
        for x in t._args:
            if isinstance(x, Tensor) and x not in seen and (
                not needing or (x._needs and x._time < t._time)
            ):
                seen.add(x)
                found.append(x)
    found.sort(key=_time_of)  # so the released come first
    return found


def graph(t: Tensor) -> list[Tensor]:
    """Return every tensor that `t` was computed from, and `t`: inputs before outputs.

    >>> x = Tensor([1.0], requires_grad=True)
    >>> [u._ctx.op if u._ctx else "leaf" for u in graph((x + 1) * x)]
    ['leaf', 'add', 'mul']
    """
    if not isinstance(t, Tensor):
        raise TypeError(f"graph: {t!r:.60} is no Tensor, so it has no history")
    # A leaf may have come to require a gradient after operations that used it.
    return sorted(_behind(t), key=lambda u: u._time if u._function else 0)


def _check_unchanged(y, data):
    """Refuse a value that was written to after the operation that made y read it."""
    owner = data if data._base is None else data._base
    # The storage's stamp is for writes, the view's own for `t.data = ...`.
    if owner._stamp > y._time or data._stamp > y._time:
        raise RuntimeError(f"backward of {y._function.op}: a value of shape "
                           f"{data.shape} that its derivative reads has been written "
                           "to since; run backward first, or write to a copy")


def _fit(function, i, part, shape, result):
    """Undo broadcasting: sum a gradient over the axes along which its input was
    repeated. Those have size 1 (or are missing) in the input, and the operation's
    result is as wide along them as the gradient."""
    ndim = len(part.shape)
    small = (1,) * (ndim - len(shape)) + shape
    wide = ((1,) * ndim + result)[-ndim:] if ndim else ()
    axes = [k for k, (n, m) in enumerate(zip(part.shape, small)) if n != m]
    repeated = [small[k] == 1 and wide[k] == part.shape[k] for k in axes]
    if len(small) > ndim or not all(repeated):
        raise ValueError(f"{function.__name__}: the rule for argument {i} returned a "
                         f"gradient of shape {part.shape} for an input of shape "
                         f"{shape}")
    part = part.sum(tuple(axes)) if axes else part
    return part if part.shape == shape else part.reshape(shape)


def _chain(y, i, x, g, differentiable, watching):
    """Apply one link of the chain rule: from g, the gradient of y, to that of x, which
    is argument i of the operation that made y."""
    function = y._function
    rule, reads = function._rules.get(i) or function._star_rule(i)
    values = [g]
    for kind, k in reads:  # k: the argument's position, -1 for the output
        if kind == "number":  # which one of *xs, that begin at k
            values.append(i - k)
            continue
        source = y if k < 0 else y._args[k]
        if kind == "shape":
            source = getattr(source, "shape", ())
        elif isinstance(source, _Common):
            _check_unchanged(y, source._data)
            source = source if differentiable else source._data
        values.append(source)
    part = (_unwatched(rule) if watching else rule)(*values)
    if part.__class__ is not g.__class__:
        raise TypeError(f"{function.__name__}: the rule for argument {i} must return "
                        f"one gradient, a {type(g).__name__}, not a "
                        f"{type(part).__name__}")
    if watching:
        place = y._place or "a place outside detect_anomaly()"
        _check_finite(f"backward of {function.op}", part._data, values, place)
    data = x._data
    if part.shape != data.shape:
        part = _fit(function, i, part, data.shape, y._data.shape)
    if part.dtype != data.dtype:
        part = part.astype(data.dtype)
    if differentiable:
        return part
    if part is g:  # passed on as it is: a `copy`, written out to save a call
        return _fresh(g.buffer[:], g.dtype, g.shape, g.strides)
    for other in values:  # a gradient shares its storage with nothing else
        if part is other:
            return part.copy()
    return part if part._base is None else part.copy()


def _paths(order, wanted):
    """Return the tensors whose rules are to run, those between the output and the
    wanted ones; and these and the wanted ones together."""
    through, needed, reached = set(), set(wanted), set(order)
    for i, t in enumerate(wanted):
        if t not in reached:
            raise ValueError(f"grad: the output does not depend on input {i}, of shape "
                             f"{t.shape}, or that input requires no gradient")
    for t in order:
        inputs = [x for x in t._args if isinstance(x, Tensor) and x._time < t._time]
        if not needed.isdisjoint(inputs):
            through.add(t)
            needed.add(t)
    return through, needed


def _reverse(output, gradient, keep, before, wanted=None, differentiable=False):
    """Run the graph backwards. With `before`, a list: add its complete gradient to
    every tensor's `.grad`, and note there what it was before, to be put back after an
    error. With `wanted`, for `grad`: return {tensor: gradient}, and run only the rules
    that these need.

    The order is newest first: when a tensor's turn comes, all its uses have had theirs,
    so the sum of what they sent is complete. `differentiable`: hand the rules Tensors
    instead of NDArrays. Unless `keep`, a tensor's history is released once its rules
    have run, and what nobody else holds is freed.
    """
    order = _behind(output, needing=True)
    through = needed = found = None  # backward: all tensors
    for t in order:
        if t._time != _RELEASED:
            break  # the released come first
        # What is wanted may have been behind it, unless it is all that is wanted, as in
        # grad(t, t), which is 1 whatever t was made of.
        if not (wanted and {t} == set(wanted)):
            raise RuntimeError("backward: the graph behind a tensor of shape "
                               f"{t.shape} was released by an earlier backward; give "
                               "that one retain_graph=True to go through it again, or "
                               "detach() what is carried over from an earlier step")
    if wanted is not None:
        through, needed = _paths(order, wanted)
        found = dict.fromkeys(wanted)
        order = [t for t in order if t in needed]
    watching, sums = _mode.get()[1], {output: gradient}
    while order:
        t = order.pop()
        g = sums.pop(t)
        if found is None:
            old = t._grad
            # Held weakly, since it may be freed on the way; a leaf plainly, which takes
            # less time and keeps it until the end.
            before.append((ref(t) if t._args else t, old))
            t._grad = g if old is None else old + g
        elif t in found:
            found[t] = g
        if t._function is None:
            continue
        for i, x in enumerate(t._args):
            if not isinstance(x, Tensor) or not x._needs or x._time > t._time:
                continue  # it requires no gradient, or did not yet when t was made
            if needed is None or x in needed:
                part = _chain(t, i, x, g, differentiable, watching)
                sums[x] = sums[x] + part if x in sums else part
        if not keep and (through is None or t in through):
            # Cut the links: what only they hold is freed here.
            t._function, t._args, t._time = None, (), _RELEASED
    return found


# --- 3d. Tensor -----------------------------------------------------------------------


def _fixed(name, x, like):
    """Return an argument in a form that nobody can change unseen before backward reads
    it: an operand, which only three methods take, as an array of its own; a list among
    the options as a tuple."""
    if name in ("maximum", "minimum", "clip"):  # operands, perhaps lists or NumPy's
        kept = x is None or isinstance(x, Tensor)
        return x if kept else _operands(name, like, [x])[0]
    return tuple(x) if x.__class__ is list else x


def _method(name: str) -> Callable[..., Tensor]:
    """Make the Tensor method that applies the operation `name` of section 4."""

    operate, op = getattr(NDArray, name), name.strip("_")

    @wraps(operate)
    def method(self, *args, **options):
        function = _FUNCTIONS[op]
        if not args and not options:  # the short way, past `apply`
            data = operate(self._data)
            return _record(function, (self, *function._defaults), data)
        args = [_fixed(name, x, self._data) for x in args]
        options = {key: _fixed(name, x, self._data) for key, x in options.items()}
        return function.apply(self, *args, **options)

    return method


def _tensor_operator(op: str, operate: Any) -> tuple[_TensorBinary, _TensorBinary]:
    """Make the methods of x OP y and y OP x; `operate` is OP itself, on NDArrays."""

    def forward(self, other):
        if other.__class__ is Tensor:  # the short way from `a + b` to the kernel
            data = operate(self._data, other._data)
            return _record(_FUNCTIONS[op], (self, other), data)
        if not isinstance(other, Tensor):
            other = _operand(op, other, self._data)
            if other is NotImplemented:
                return other
        return _FUNCTIONS[op].apply(self, other)

    def reflected(self, other):
        other = _operand(op, other, self._data)
        return other if other is NotImplemented else _FUNCTIONS[op].apply(other, self)

    return forward, reflected


def _untracked(name: str) -> Callable[..., Tensor]:
    """Make the Tensor method of an operation without derivative: its result, of bool
    or int64, has no history."""

    @wraps(getattr(NDArray, name))
    def method(self, *args, **options):
        values = [x._data if isinstance(x, Tensor) else x for x in args]
        result = getattr(self._data, name)(*values, **options)
        return result if result is NotImplemented else _tensor(result)

    return method


def _frozen(part):
    """Return an index array that later writes to the original cannot change."""
    part = _index_part(part)
    return part.copy() if isinstance(part, NDArray) else part


def _rebuild(data, needs):
    """Rebuild a leaf from a pickle; its gradient stays behind, as in PyTorch."""
    t = _tensor(data)
    t.requires_grad = needs
    return t


def _start(t, grad, op):
    """Return the gradient to start from, in the shape and dtype of t."""
    if not t._needs:
        raise RuntimeError(f"{op}: this tensor of shape {t.shape} requires no "
                           "gradient: it does not depend on any tensor made with "
                           "requires_grad=True, or was computed under no_grad()")
    if grad is None:
        data = t._data
        flat = _ONE[data.dtype] * prod(data.shape)
        return _fresh(flat, data.dtype, data.shape, data._flat and data.strides)
    gradient = NDArray(grad, t.dtype)
    if gradient.shape != t.shape:
        raise ValueError(f"{op}: the gradient to start from has shape "
                         f"{gradient.shape}, the tensor {t.shape}; they must be equal")
    return gradient


class Context(namedtuple("Context", "op inputs function args")):
    """The history of a tensor, `t._ctx`: the name of the operation that made it, the
    tensors it was made from, the Function, and all that it was given."""


class Tensor(_Common):
    """An array with a history, from which gradients are computed.

    `data` as for NDArray, copied; an NDArray or Tensor keeps its dtype, everything else
    becomes float32 unless `dtype` says otherwise. Raises TypeError if a gradient is
    required of int64 or bool. With `requires_grad=True` the operations on
    it are recorded, and `backward` on a result puts the gradient into `.grad`.

    >>> x1 = Tensor([1.0], requires_grad=True)
    >>> x2 = Tensor([2.0], requires_grad=True)
    >>> x3 = Tensor([4.0], requires_grad=True)
    >>> y = (x1 + x2) * x3
    >>> y._ctx.op, y._ctx.inputs[1] is x3
    ('mul', True)
    >>> y.backward()
    >>> x1.grad, x3.grad           # dy/dx1 = x3, dy/dx3 = x1 + x2
    (NDArray([4.]), NDArray([3.]))
    """

    __slots__ = (
        "_data", "_grad", "_needs", "_function", "_args", "_time", "_place",
        "__weakref__",
    )  # fmt: skip

    _data: NDArray
    _grad: NDArray | None
    _needs: bool  # whether it requires a gradient
    _function: Any  # the operation that made it, or None: a leaf, or released
    _args: tuple[Any, ...]  # what the operation was given
    _time: int  # the tick at which it first required a gradient, 0 before; or _RELEASED
    _place: str | None  # the user's line that made it, if anomalies were watched for

    def __init__(self, data: Any, requires_grad: bool = False,
                 dtype: str | None = None) -> None:
        if isinstance(data, _Common) and dtype in (None, data.dtype):
            self._data = data._data.copy()
        else:
            self._data = NDArray(data, dtype)
        self._grad = self._function = None
        self._args, self._time, self._needs = (), 0, False
        self.requires_grad = requires_grad

    @property
    def data(self) -> NDArray:
        """The numbers. Writing to them in place is allowed, and noticed by `backward`.
        Setting it to an array shares that array's memory."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        if value is self._data:  # where `x.data += 1` ends
            return
        new = value._data if isinstance(value, _Common) else NDArray(value, self.dtype)
        if new.shape != self.shape:
            raise ValueError(f"data: shape {new.shape} does not fit {self.shape}; make "
                             "a new Tensor for another shape")
        if self._needs and new.dtype not in _FLOATS:
            raise TypeError(f"data: {new.dtype} cannot require a gradient")
        self._data = _view(new, new.shape, new.strides, new.offset)
        self._data._stamp = next(_ticks)  # what was recorded read the old numbers

    @property
    def grad(self) -> NDArray | None:
        """What calls of `backward` have added up here, or None. Setting it takes an
        array of this shape (shared if it has this dtype, else copied), or None."""
        return self._grad

    @grad.setter
    def grad(self, value: Any) -> None:
        if value is not None:
            same = isinstance(value, _Common) and value.dtype == self.dtype
            value = value._data if same else NDArray(value, self.dtype)
            if value.shape != self.shape:
                raise ValueError(f"grad: shape {value.shape} does not fit a tensor of "
                                 f"shape {self.shape}")
            value = value.copy() if _repeats(value) else value  # to be written to
        self._grad = value

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient is computed for this tensor. May be set on a leaf, and
        counts for all operations since it was first set."""
        return self._needs

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and self.dtype not in _FLOATS:
            raise TypeError(f"Tensor: {self.dtype} cannot require a gradient; only "
                            "float32 and float64 can")
        if not self.is_leaf and not value:
            raise RuntimeError(f"requires_grad: this tensor of shape {self.shape} is "
                               "the result of an operation and follows its inputs; use "
                               "detach()")
        if value and self._time == 0:
            self._time = next(_ticks)
        self._needs = bool(value)

    @property
    def _ctx(self) -> Context | None:
        """The operation that made this tensor, or None: for a leaf, and once
        released."""
        if self._function is None:
            return None
        inputs = tuple([x for x in self._args if isinstance(x, Tensor)])
        return Context(self._function.op, inputs, self._function, self._args)

    @property
    def is_leaf(self) -> bool:
        """Whether this tensor was made by the user and not by a recorded operation."""
        return self._function is None and self._time != _RELEASED

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements along each axis."""
        return self._data.shape

    @property
    def dtype(self) -> str:
        """The name of the element type."""
        return self._data.dtype

    @property
    def device(self) -> str:
        """Where the numbers are: always "cpu"."""
        return "cpu"

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._data.__array_interface__

    def to(self, device: str) -> Tensor:
        """Return this tensor, if `device` is "cpu"; there is no other."""
        if device != "cpu":
            raise ValueError(f"Tensor: the only device is 'cpu', not {device!r}")
        return self

    def item(self) -> float:
        """Return the only element as a Python number."""
        return self._data.item()

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return self._data.tolist()

    def detach(self) -> Tensor:
        """Return a tensor over the same memory, without history."""
        return _tensor(self._data)

    def backward(self, grad: Any = None, retain_graph: bool = False) -> None:
        """Compute the gradient of this tensor with respect to every tensor behind it
        that requires one, and add it to their `.grad`.

        `grad`: the gradient to start from, in this tensor's shape (default: ones, so
        that of a non-scalar is the gradient of its sum). The graph is released on the
        way unless `retain_graph`. Raises RuntimeError if no gradient is required, the
        graph was released before, or a value that a rule reads was written to since;
        ValueError for a `grad` of another shape. An error leaves every `.grad` as it
        was; the part of the graph already passed is released.

        >>> x = Tensor([1.0, 2.0], requires_grad=True)
        >>> (x * x).backward()
        >>> x.grad.tolist()
        [2.0, 4.0]
        """
        gradient = _start(self, grad, "backward")
        before: list[Any] = []
        try:
            _reverse(self, gradient, retain_graph, before)
        except BaseException:
            for held, old in before:
                t = held() if isinstance(held, ref) else held
                if t is not None:
                    t._grad = old
            raise

    __add__, __radd__ = _tensor_operator("add", add)
    __sub__, __rsub__ = _tensor_operator("sub", sub)
    __mul__, __rmul__ = _tensor_operator("mul", mul)
    __truediv__, __rtruediv__ = _tensor_operator("div", truediv)
    __pow__, __rpow__ = _tensor_operator("pow", pow)
    __matmul__, __rmatmul__ = _tensor_operator("matmul", operator.matmul)
    __hash__ = object.__hash__
    __eq__, __ne__ = map(_untracked, ("__eq__", "__ne__"))  # type: ignore[assignment]
    __lt__, __le__ = map(_untracked, ("__lt__", "__le__"))
    __gt__, __ge__ = map(_untracked, ("__gt__", "__ge__"))
    __and__, __or__, __invert__ = map(_untracked, ("__and__", "__or__", "__invert__"))
    __rand__, __ror__ = map(_untracked, ("__rand__", "__ror__"))
    argmax, argmin, any, all = map(_untracked, ("argmax", "argmin", "any", "all"))

    __neg__, __abs__ = map(_method, ("__neg__", "__abs__"))

    abs, exp, log, sqrt = map(_method, ("abs", "exp", "log", "sqrt"))
    sin, cos, tanh, erf = map(_method, ("sin", "cos", "tanh", "erf"))
    sigmoid, relu, leaky_relu = map(_method, ("sigmoid", "relu", "leaky_relu"))
    maximum, minimum, clip = map(_method, ("maximum", "minimum", "clip"))
    sum, mean, var, std = map(_method, ("sum", "mean", "var", "std"))
    max, min = map(_method, ("max", "min"))
    softmax, log_softmax = map(_method, ("softmax", "log_softmax"))
    logsumexp, sliding_window = map(_method, ("logsumexp", "sliding_window"))
    broadcast_to, astype, copy = map(_method, ("broadcast_to", "astype", "copy"))

    def reshape(self, *shape: Any) -> Tensor:
        """Return the same elements in another shape; one size may be -1."""
        new = shape[0] if len(shape) == 1 else shape
        return _FUNCTIONS["reshape"].apply(self, new)

    def transpose(self, *axes: Any) -> Tensor:
        """Return the axes in another order (default: reversed)."""
        axes = (tuple(axes[0]),) if axes and hasattr(axes[0], "__iter__") else axes
        return _FUNCTIONS["transpose"].apply(self, _order(axes, self.ndim))

    def __getitem__(self, key: Any) -> Tensor:
        parts = key if key.__class__ is tuple else (key,)
        return _FUNCTIONS["index"].apply(self, tuple(map(_frozen, parts)))

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError("setitem: a Tensor cannot be written in place, its history "
                        "would be wrong; select with where(mask, new, x), or write to "
                        "x.data, which backward notices")

    def __repr__(self) -> str:
        leaf = ["requires_grad=True"] if self._needs else []
        notes = [f"op={self._ctx.op!r}"] if self._ctx else leaf
        return _render("Tensor", self._data, notes)

    def __reduce__(self):
        if not self.is_leaf:
            raise RuntimeError("Tensor: only leaves can be copied or pickled; this one "
                               "is the result of an operation, and its history would "
                               "be lost: use detach(), or save its data")
        return _rebuild, (self._data, self._needs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        build, parts = self.__reduce__()
        twin = build(*parts)
        twin._data = self._data.copy()
        twin.grad = None if self.grad is None else self.grad.copy()
        return memo.setdefault(id(self), twin)


def grad(output: Tensor, inputs: Tensor | Sequence[Tensor], grad_output: Any = None,
         create_graph: bool = False,
         retain_graph: bool | None = None) -> tuple[Tensor, ...]:
    """Return the gradients of `output` with respect to each of `inputs`, as Tensors,
    and leave every `.grad` alone.

    With `create_graph=True` the result has a history, and can be differentiated again;
    the graph is then kept, as with `retain_graph=True`, else what lies between output
    and inputs is released. Raises ValueError for an input that the output does not
    depend on, RuntimeError as `backward`.

    >>> x = Tensor([3.0], requires_grad=True)
    >>> (first,) = grad(x * x * x, x, create_graph=True)
    >>> (second,) = grad(first, x)
    >>> first.tolist(), second.tolist()    # 3 x ** 2 and 6 x
    ([27.0], [18.0])
    """
    several = hasattr(inputs, "__iter__") and not isinstance(inputs, Tensor)
    wanted = tuple(inputs) if several else (inputs,)
    for t in (output, *wanted):
        if not isinstance(t, Tensor):
            raise TypeError(f"grad: {t!r:.60} is no Tensor")
    gradient = _start(output, grad_output, "grad")
    if create_graph:
        history = isinstance(grad_output, Tensor)
        gradient = grad_output if history else _tensor(gradient)
    keep = create_graph if retain_graph is None else retain_graph
    with _recorded() if create_graph else no_grad():
        found = _reverse(output, gradient, keep, None, wanted, create_graph)
    return tuple([found[t] if create_graph else _tensor(found[t]) for t in wanted])


# ======================================================================================
# 4. Operations: each forward beside its derivative
# ======================================================================================
#
# The formula sheet. In each class `forward` computes numbers, and the rule `dx` returns
# d loss / dx from g = d loss / dy. Read a rule as the derivative times g. Broadcasting
# does not appear: the engine undoes it. Always: a rule does not write to what it is
# given. (TanH, Relu, Logistic, ...: the usual names are those of section 5's layers.)
# Section 5 needs the operators and methods of Tensor, `where` and the functions at the
# end, and, through `_either`, what has no method: Affine, Normalize, Pad; section 6 the
# losses.


def _either(function, *args):
    """Apply an operation to whichever kind is given: numbers or tensors."""
    for x in args:
        if isinstance(x, Tensor):
            return function.apply(*args)
    return function.forward(*args)


def _for_numbers(fast):
    """Give a rule a faster form for NDArrays, one pass instead of several. The rule
    itself serves Tensors, for second derivatives; the tests hold both together."""

    def decorate(rule):
        @wraps(rule)
        def either(g, *rest):
            return (fast if g.__class__ is NDArray else rule)(g, *rest)

        return either  # `wraps` has kept the rule as `either.__wrapped__`

    return decorate


def _in_one_pass(kernel):
    """Give a rule of g and y its faster form by a kernel; the engine gives both one
    shape."""

    def fast(g, y):
        runs = _side(g, g.shape), _side(y, g.shape)
        flat = _compute((kernel, None), runs, g.size, g.dtype)
        return _fresh(flat, g.dtype, g.shape)

    return _for_numbers(fast)


class Where(Function):
    """a where the condition holds, else b."""
    def forward(condition, a, b): return _choose("where", condition, a, b)
    def da(g, condition): return where(condition, g, 0)
    def db(g, condition): return where(condition, 0, g)


def where(condition: Any, a: Any, b: Any) -> Any:
    """Return a where the condition holds, else b, broadcast together.

    >>> where(NDArray([1, 0, 1]) > 0, arange(3), -1.0).tolist()
    [0.0, -1.0, 2.0]
    """
    if _is_number(condition) and _is_number(a) and _is_number(b):
        return a if condition else b
    if isinstance(condition, Tensor):
        condition = condition.detach()
    elif not isinstance(condition, NDArray):
        condition = NDArray(condition, "float64")  # in float32, 1e-50 would be false
    return _either(Where, condition, a, b)


# --- 4a. Arithmetic -------------------------------------------------------------------


class Add(Function):
    """a + b."""
    def forward(a, b): return a + b
    def da(g): return g
    def db(g): return g


class Sub(Function):
    """a - b."""
    def forward(a, b): return a - b
    def da(g): return g
    def db(g): return -g


class Mul(Function):
    """a * b."""
    def forward(a, b): return a * b
    def da(g, b): return g * b
    def db(g, a): return g * a


class Div(Function):
    """a / b."""
    def forward(a, b): return a / b
    def da(g, b): return g / b
    def db(g, y, b): return -g * y / b


class Neg(Function):
    """-x."""
    def forward(x): return -x
    def dx(g): return -g


def _exponent(a, b):
    """Return b, but 1 where a ** (b - 1) would be 0 ** -1 though the slope is 0."""
    constant = _is_number(b) and b != 0
    return b if constant else where((a == 0) * (b == 0), 1, b)


def _logarithm(a, b):
    """Return log(a), but 0 where a is 0 and b is not negative."""
    if not _is_number(a):
        return where((a == 0) * (b >= 0), 1, a).log()
    if a == 0:
        return where(b >= 0, 0, -inf)
    return math.log(a) if a > 0 else nan


class Pow(Function):
    """a ** b. Where b is 0 the slope in a is 0, also at a = 0; where a is 0 the slope
    in b is 0 for b >= 0: the power 0 ** -1, the logarithm of 0 must not be formed."""
    def forward(a, b): return a**b
    def da(g, a, b): return g * (b * a ** (_exponent(a, b) - 1))
    def db(g, y, a, b): return g * (y * _logarithm(a, b))


class Abs(Function):
    """|x|."""
    def forward(x): return abs(x)
    def dx(g, x): return g * ((x > 0) - (x < 0))  # the sign; 0 at 0


# --- 4b. Elementwise functions --------------------------------------------------------


class Exp(Function):
    """e ** x."""
    def forward(x): return x.exp()
    def dx(g, y): return g * y


class Log(Function):
    """The natural logarithm."""
    def forward(x): return x.log()
    def dx(g, x): return g / x


class Sqrt(Function):
    """The square root."""
    def forward(x): return x.sqrt()
    def dx(g, y): return g / (y * 2)


class Sin(Function):
    """The sine of x in radians."""
    def forward(x): return x.sin()
    def dx(g, x): return g * x.cos()


class Cos(Function):
    """The cosine of x in radians."""
    def forward(x): return x.cos()
    def dx(g, x): return -g * x.sin()


class TanH(Function):
    """The hyperbolic tangent."""
    def forward(x): return x.tanh()
    @_in_one_pass(lambda g, y: [a * (1.0 - b * b) for a, b in zip(g, y)])
    def dx(g, y): return g * (1 - y * y)


class Logistic(Function):
    """1 / (1 + exp(-x)), the sigmoid."""
    op = "sigmoid"
    def forward(x): return x.sigmoid()
    @_in_one_pass(lambda g, y: [a * b * (1.0 - b) for a, b in zip(g, y)])
    def dx(g, y): return g * (y * (1 - y))


class Erf(Function):
    """The error function; its slope is the bell curve."""
    def forward(x): return x.erf()
    def dx(g, x): return g * ((-x * x).exp() * (2 / math.sqrt(math.pi)))


class Relu(Function):
    """x where it is positive, else 0; the slope at 0 is 0."""
    def forward(x): return x.relu()
    @_in_one_pass(lambda g, y: [0.0 if b <= 0.0 else a for a, b in zip(g, y)])
    def dx(g, y): return where(y <= 0, 0, g)


class LeakyRelu(Function):
    """x where it is positive, else slope * x."""
    op = "leaky_relu"
    def forward(x, slope=0.01): return x.leaky_relu(slope)
    def dx(g, x, slope): return where(x > 0, g, g * slope)


class Maximum(Function):
    """Ties share the gradient equally."""
    def forward(a, other): return a.maximum(other)
    def da(g, a, other): return where(a < other, 0, where(a == other, g * 0.5, g))
    def dother(g, a, other): return where(other < a, 0, where(a == other, g * 0.5, g))


class Minimum(Function):
    """Ties share the gradient equally."""
    def forward(a, other): return a.minimum(other)
    def da(g, a, other): return where(a > other, 0, where(a == other, g * 0.5, g))
    def dother(g, a, other): return where(other > a, 0, where(a == other, g * 0.5, g))


class Clip(Function):
    """x limited to [min, max]. The gradient passes at the bounds themselves."""
    def forward(x, min=None, max=None): return x.clip(min, max)
    def dx(g, x, min, max):
        above = True if min is None else x >= min
        below = True if max is None else x <= max
        return where(above * below, g, 0)

    def dmin(g, x, min, max):
        return where((x < min) * (True if max is None else min < max), g, 0)

    def dmax(g, x, min, max):
        beyond = x > max  # and where min > max, the result is max everywhere
        return where(beyond if min is None else where(min > max, 1, beyond), g, 0)


class AsType(Function):
    """The same numbers in another dtype."""
    def forward(x, dtype): return x.astype(dtype)
    def dx(g): return g


class Copy(Function):
    """The same numbers in a storage of their own."""
    def forward(x): return x.copy()
    def dx(g): return g


# --- 4c. Reductions -------------------------------------------------------------------
#
# `_kept` gives the shape that keeps the reduced axes with size 1; reshaped to it, the
# gradient of a result stands beside the elements it was made from and broadcasts.


class Expand(Function):
    """What a sum over `axis` took together, spread again over the given shape."""

    def forward(x, shape, axis):
        x = x.reshape(_kept(shape, axis)) if x.shape else x
        flat = _spread(x, shape)
        return _fresh(flat[:] if flat is x.buffer else flat, x.dtype, shape)

    def dx(g, x_shape, axis): return g.sum(axis).reshape(x_shape)


class Sum(Function):
    """The sum over `axis`: every element counts once."""
    def forward(x, axis=None, keepdims=False): return x.sum(axis, keepdims)
    def dx(g, x_shape, axis): return _either(Expand, g, x_shape, axis)


class Mean(Function):
    """The mean over `axis`: every element counts 1 / n."""
    def forward(x, axis=None, keepdims=False): return x.mean(axis, keepdims)
    def dx(g, x_shape, axis):
        n = prod(x_shape) // max(prod(g.shape), 1)
        return _either(Expand, g / n, x_shape, axis)


class Var(Function):
    """The variance over `axis`."""
    def forward(x, axis=None, ddof=0, keepdims=False):
        return x.var(axis, ddof, keepdims)

    def dx(g, x, axis, ddof):
        n = x.size // max(g.size, 1)
        g = g.reshape(_kept(x.shape, axis))
        return g * (x - x.mean(axis, keepdims=True)) * 2 / max(n - ddof, 0)


class Std(Function):
    """The square root of the variance; where that is 0, the gradient is 0."""
    def forward(x, axis=None, ddof=0, keepdims=False):
        return x.std(axis, ddof, keepdims)

    def dx(g, x, y, axis, ddof):
        n = x.size // max(g.size, 1)
        g, y = g.reshape(_kept(x.shape, axis)), y.reshape(_kept(x.shape, axis))
        spread = where(y == 0, 1, y) * max(n - ddof, 0)
        return g * (x - x.mean(axis, keepdims=True)) / spread


class Max(Function):
    """Ties share the gradient equally."""
    def forward(x, axis=None, keepdims=False): return x.max(axis, keepdims)
    def dx(g, x, y, axis):
        kept = _kept(x.shape, axis)
        best = x == y.reshape(kept)
        return (g.reshape(kept) / best.sum(axis, keepdims=True)) * best


class Min(Max):
    """Ties share the gradient equally."""
    def forward(x, axis=None, keepdims=False): return x.min(axis, keepdims)


class SoftMax(Function):
    """exp(x) / sum(exp(x)) along `axis`."""
    def forward(x, axis=-1): return x.softmax(axis)
    def dx(g, y, axis): return y * (g - (g * y).sum(axis, keepdims=True))


class LogSoftMax(Function):
    """log(softmax(x)) along `axis`."""
    op = "log_softmax"
    def forward(x, axis=-1): return x.log_softmax(axis)
    def dx(g, y, axis): return g - y.exp() * g.sum(axis, keepdims=True)


class LogSumExp(Function):
    """log(sum(exp(x))) over `axis`; its slope is softmax."""
    def forward(x, axis=-1, keepdims=False): return x.logsumexp(axis, keepdims)
    def dx(g, x, axis): return g.reshape(_kept(x.shape, axis)) * x.softmax(axis)


class Normalize(Function):
    """(x - mean) / sqrt(var + eps) over some axes. Mean and variance depend on x too:
    their shares take the mean of g, and the mean of g along y, out of the gradient."""

    def forward(x, axes, eps):
        return _by_rows("normalize", axes, lambda row: _normal_row(row, eps)[0], x)

    def _dx_in_one_pass(g, x, y, axes, eps):
        def row(g, x, y):
            _, spread = _normal_row(x, eps)
            mean, along = sum(g) / len(g), sum(map(mul, g, y)) / len(g)
            return [(a - mean - b * along) / spread for a, b in zip(g, y)]

        return _by_rows("normalize", axes, row, g, x, y)

    @_for_numbers(_dx_in_one_pass)
    def dx(g, x, y, axes, eps):
        spread = (x.var(axes, keepdims=True) + eps).sqrt()
        along = (g * y).mean(axes, keepdims=True)
        return (g - g.mean(axes, keepdims=True) - y * along) / spread


class MSE(Function):
    """The mean of (prediction - target) ** 2, in one pass."""

    def forward(prediction, target):
        dtype = _floating(prediction.dtype, target.dtype)
        pairs = zip(_run(prediction), _run(target))
        total = _adder(dtype)([(x - t) * (x - t) for x, t in pairs])
        return NDArray(_over(total, prediction.size), dtype)

    def dprediction(g, prediction, target):
        return (prediction - target) * (g * _over(2, prediction.size))

    def dtarget(g, prediction, target):
        return (target - prediction) * (g * _over(2, prediction.size))


class LogisticLoss(Function):
    """max(x, 0) - x t + log(1 + exp(-|x|)): minus the log-likelihood of a target t
    under the probability sigmoid(x)."""
    def forward(x, target): return _elementwise("logistic_loss", None, x, target)
    def dx(g, x, target): return g * (x.sigmoid() - target)
    def dtarget(g, x): return -g * x


class CrossEntropy(Function):
    """-log(softmax(x)) at each row's label, 0 where it is not kept. The derivative is
    the distance between what was predicted and what was true."""
    def forward(x, labels, kept):
        rows, losses = _groups(_run(x), labels.size, x.shape[-1], 1), []
        for row, label, valid in zip(rows, _run(labels), _run(kept)):
            top, rest = _log_sum_exp_apart(row) if valid else (0.0, 0.0)
            losses.append(top - row[label] + rest if valid else 0.0)
        dtype = _floating(x.dtype)
        return _fresh(array(_CODES[dtype], losses), dtype, labels.shape)

    def _dx_in_one_pass(g, x, labels, kept):
        rows, values = _groups(_run(x), labels.size, x.shape[-1], 1), []
        for row, label, scale, valid in zip(rows, *map(_run, (labels, g, kept))):
            if valid:
                row = _softmax_row(row)
                row[label] -= 1.0
            values += [p * scale for p in row] if valid else [0.0] * len(row)
        return _fresh(array(_CODES[x.dtype], values), x.dtype, x.shape)

    @_for_numbers(_dx_in_one_pass)
    def dx(g, x, labels, kept):
        truth = arange(x.shape[-1], dtype="int64") == labels.unsqueeze(-1)
        return where(kept.unsqueeze(-1), (x.softmax(-1) - truth) * g.unsqueeze(-1), 0)


# --- 4d. Views and selections ---------------------------------------------------------


class Reshape(Function):
    """The same elements in another shape."""
    def forward(x, shape): return x.reshape(shape)
    def dx(g, x_shape): return g.reshape(x_shape)


class Transpose(Function):
    """The axes in another order; back again, the inverse order."""
    def forward(x, order): return x.transpose(order)
    def dx(g, order): return g.transpose(tuple(map(order.index, range(g.ndim))))


class BroadcastTo(Function):
    """x repeated; the engine sums the gradient over the copies."""
    op = "broadcast_to"
    def forward(x, shape): return x.broadcast_to(shape)
    def dx(g): return g


class Spread(Function):
    """Zeros of the given shape, to which `parts` are added at the places that an index,
    or the windows, select; what is selected several times adds up. The derivative of
    selecting, and its derivative is to select again."""
    def forward(parts, shape, key, window):
        total = zeros(shape, parts.dtype)
        if window is None:
            _, axes, start = _locate(total, key)
            lists = [axis for axis in axes if axis.__class__ is list]
            once = all([len(set(axis)) == len(axis) for axis in lists])
        else:
            view = total.sliding_window(*window)
            axes, start, once = list(zip(view.shape, view.strides)), view.offset, False
        if once:  # no place is selected twice: to write is to add
            _scatter(total.buffer, start, axes, _run(parts))
            return total
        double = _ZERO["float64"] * total.size  # added up in double, rounded once
        _scatter(double, start, axes, _run(parts), adding=True)
        return _fresh(_cast("spread", double, parts.dtype), parts.dtype, shape)

    def dparts(g, key, window):
        return g[key] if window is None else g.sliding_window(*window)


class Index(Function):
    """x[key]."""
    def forward(x, key): return x[key]
    def dx(g, x_shape, key): return _either(Spread, g, x_shape, key, None)


class SlidingWindow(Function):
    """Every window of x along some axes."""
    op = "sliding_window"
    def forward(x, size, stride=1, axes=None):
        return x.sliding_window(size, stride, axes)

    def dx(g, x_shape, size, stride, axes):
        return _either(Spread, g, x_shape, None, (size, stride, axes))


def _inside(shape, widths):
    """Return the index of what a border surrounds."""
    sizes = shape[len(shape) - len(widths) :]
    return (..., *[slice(w, w + n) for w, n in zip(widths, sizes)])


class Pad(Function):
    """x with a border of `value` around its last axes, `widths` wide on either side."""
    def forward(x, widths, value):
        inside = _inside(x.shape, widths)
        lead = x.ndim - len(widths)
        wide = [n + 2 * w for n, w in zip(x.shape[lead:], widths)]
        result = full((*x.shape[:lead], *wide), value, x.dtype)
        result[inside] = x
        return result

    def dx(g, x_shape, widths): return g[_inside(x_shape, widths)]


def _part(i, axis, starts):
    """Return the index of part i along an axis."""
    return (slice(None),) * axis + (slice(starts[i], starts[i + 1]),)


class Concatenate(Function):
    """Each of xs lies from starts[i] to starts[i + 1] along the axis."""
    def forward(axis, starts, *xs):
        shape = (*xs[0].shape[:axis], starts[-1], *xs[0].shape[axis + 1 :])
        result = zeros(shape, _wider(*[x.dtype for x in xs]))
        for i, x in enumerate(xs):
            result[_part(i, axis, starts)] = x
        return result

    def dxs(g, i, axis, starts): return g[_part(i, axis, starts)]


# --- 4e. Matrix product ---------------------------------------------------------------


class MatMul(Function):
    """a @ b. For matrices, dA = G @ B.T and dB = A.T @ G: the only products of matching
    shapes. A 1-D operand is a matrix with one row (left) or one column (right); the
    missing axis is put back, used, and taken out again."""
    def forward(a, b): return a @ b
    def da(g, a_shape, b):
        if b.ndim == 1:
            return g.unsqueeze(-1) * b
        if len(a_shape) == 1:
            return (g.unsqueeze(-2) @ b.swapaxes(-1, -2)).squeeze(-2)
        return g @ b.swapaxes(-1, -2)

    def db(g, a, b_shape):
        if a.ndim == 1:
            return a * g if len(b_shape) == 1 else a.unsqueeze(-1) * g.unsqueeze(-2)
        if len(b_shape) == 1:
            return (a.swapaxes(-1, -2) @ g.unsqueeze(-1)).squeeze(-1)
        if len(b_shape) == 2 < a.ndim:  # a stack times one matrix: as one tall matrix
            rows = prod(a.shape[:-1])
            a, g = a.reshape(rows, a.shape[-1]), g.reshape(rows, g.shape[-1])
        return a.swapaxes(-1, -2) @ g


class Affine(MatMul):
    """a @ b + bias, for the layers: the bias of shape (n,) is added within the
    product."""
    def forward(a, b, bias): return _matmul(a, b, bias)
    def dbias(g): return g


# --- 4f. Functions of both kinds ------------------------------------------------------


def _function(name: str) -> Callable[..., Any]:
    """Make the function f(x, ...) of the method x.f(...), for arrays and tensors."""

    @wraps(getattr(NDArray, name))
    def function(x, *args, **options):
        x = _as_array(x)
        others = (*args, *options.values())
        if x.__class__ is NDArray and any([isinstance(y, Tensor) for y in others]):
            x = _tensor(x)
        return getattr(x, name)(*args, **options)

    return function


relu, leaky_relu, matmul = map(_function, ("relu", "leaky_relu", "matmul"))
sigmoid, tanh, logsumexp = map(_function, ("sigmoid", "tanh", "logsumexp"))
softmax, log_softmax = map(_function, ("softmax", "log_softmax"))
clip, maximum, minimum = map(_function, ("clip", "maximum", "minimum"))


def gelu(x: Any) -> Any:
    """Return x times the probability that a standard normal number is below x, that is
    x / 2 * (1 + erf(x / sqrt(2))); Hendrycks and Gimpel 2016 (arXiv 1606.08415).

    >>> gelu(NDArray([-100, 0, 100])).tolist()
    [-0.0, 0.0, 100.0]
    """
    x = _as_array(x)
    return x * ((x * math.sqrt(0.5)).erf() + 1) * 0.5


def _arrays(op, xs):
    """Return what is to be joined as a list of arrays or tensors."""
    if not hasattr(xs, "__iter__"):
        raise TypeError(f"{op}: give a list of arrays, not {xs!r:.60}")
    return list(map(_as_array, xs))


def concatenate(xs: Sequence[Any], axis: int = 0) -> Any:
    """Join arrays or tensors of the same shape, but for `axis`, along it. A copy, in
    the widest dtype. Raises ValueError for none, and for shapes that differ elsewhere.

    >>> concatenate([ones((1, 2)), zeros((2, 2))]).tolist()
    [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]]
    """
    parts = _arrays("concatenate", xs)
    if not parts or not parts[0].ndim:
        raise ValueError("concatenate: needs at least one array of at least one axis, "
                         f"not {[x.shape for x in parts]}; stack makes an axis")
    axis = _axis("concatenate", axis, parts[0].ndim)
    rests = {(x.ndim, x.shape[:axis], x.shape[axis + 1 :]) for x in parts}
    if len(rests) > 1:
        raise ValueError("concatenate: shapes "
                         f"{' and '.join([str(x.shape) for x in parts])} must be equal "
                         f"but for axis {axis}")
    starts = (0, *itertools.accumulate([x.shape[axis] for x in parts]))
    return _either(Concatenate, axis, starts, *parts)


def stack(xs: Sequence[Any], axis: int = 0) -> Any:
    """Join arrays or tensors of one shape along a new axis. A copy, as `concatenate`.

    >>> stack([zeros(2), ones(2)], axis=-1).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    parts = _arrays("stack", xs)
    if len({x.shape for x in parts}) != 1:
        raise ValueError("stack: needs arrays of one shape, not "
                         f"{' and '.join([str(x.shape) for x in parts]) or 'none'}")
    axis = _axis("stack", axis, parts[0].ndim + 1)
    return concatenate([x.unsqueeze(axis) for x in parts], axis)


def split(x: Any, n_or_positions: int | Sequence[int], axis: int = 0) -> list[Any]:
    """Cut x along an axis into n equal parts, or at the given positions. Views. Raises
    ValueError if the parts would not be equal.

    >>> [part.tolist() for part in split(arange(4), [1, 2])]
    [[0.0], [1.0], [2.0, 3.0]]
    """
    x = _as_array(x)
    axis = _axis("split", axis, x.ndim)
    n = x.shape[axis]
    if hasattr(n_or_positions, "__index__") and not getattr(n_or_positions, "ndim", 0):
        count = index(n_or_positions)
        if count < 1 or n % count:
            raise ValueError(f"split: axis {axis} of shape {x.shape} does not divide "
                             f"into {count} equal parts; give the positions to cut at "
                             "instead")
        cuts = list(range(0, n + 1, n // count)) if n else [0] * (count + 1)
    else:
        try:
            cuts = [0, *map(index, tuple(n_or_positions)), n]  # type: ignore[arg-type]
        except TypeError:
            raise TypeError("split: give a number of parts or a list of positions, not "
                            f"{n_or_positions!r:.60}") from None
    return [x[_part(i, axis, cuts)] for i in range(len(cuts) - 1)]


# ======================================================================================
# 5. Modules: parameters and the functions that use them
# ======================================================================================
#
# A Module is any object with a `forward`. Its attributes are all there is to know: a
# Tensor that requires a gradient is a parameter, another Tensor or an NDArray a buffer
# (part of the state, but not trained), a Module, or a list, tuple or dict of these, a
# part of the tree. Nothing is registered, so nothing can be forgotten. Always: a path
# such as "layers.0.W" names the same thing in parameters, state and messages. Section 6
# needs the checks of labels, section 7 a list of parameters, `_check` and `_fitted`.


def _check(fits, message, kind=ValueError):
    """Raise an error unless a condition holds; for where its text costs little."""
    if not fits:
        raise kind(message)


def _fitted(op, state, own, strict=True):
    """Return the entries of a state that `own` has too, copied, in its dtypes. Raises
    one ValueError for all that are missing, unexpected (if `strict`) or misshapen."""
    if not hasattr(state, "keys"):
        raise TypeError(f"{op}.load_state_dict: {state!r:.60} is no dict of arrays, as "
                        "state_dict() and load() return")
    new = {}
    wrong = [f"missing {k}" for k in own if strict and k not in state]
    wrong += [f"unexpected {k}" for k in state if strict and k not in own]
    for k in [k for k in own if k in state]:
        try:
            new[k] = NDArray(state[k], own[k].dtype)
        except (TypeError, ValueError, OverflowError) as error:
            wrong.append(f"{k}: {error}")
            continue
        if new[k].shape != own[k].shape:
            wrong.append(f"{k} has shape {new[k].shape}, not {own[k].shape}")
    _check(not wrong, f"{op}.load_state_dict: {'; '.join(wrong)}")
    return new


def _parts(items, above=(), path=""):
    """Yield (path, item) for every Module, Tensor and NDArray among a module's items,
    and in lists, tuples and dicts there, but not for what is inside another module."""
    items = items if isinstance(items, dict) else dict(enumerate(items))
    for name, item in items.items():
        name = f"{path}.{name}" if path else str(name)
        if isinstance(item, (_Common, Module)):
            if not any([item is m for m in above]):  # a child may know its parent
                yield name, item
        elif isinstance(item, (list, tuple, dict)):
            yield from _parts(item, above, name)


def _tree(item, kind, path="", above=(), seen=None):
    """Yield (path, item) for everything of a kind in an item, which may be one too.
    `seen`: a set of modules already gone through, to enter a shared one only once."""
    if isinstance(item, kind):
        yield path, item
    if isinstance(item, Module) and (seen is None or item not in seen):
        above = (*above, item)
        if seen is not None:
            seen.add(item)
        for name, part in _parts(vars(item), above, path):
            yield from _tree(part, kind, name, above, seen)


def _module_text(module, above=()):
    """Return a module as PyTorch prints it, its parts indented."""
    above = (*above, module)
    body = "".join([
        f"\n({path}): {_module_text(part, above)}".replace("\n", "\n  ")
        for path, part in _parts(vars(module), above) if isinstance(part, Module)
    ])  # fmt: skip
    body += "\n" if body else ""
    return f"{type(module).__name__}({module._describe()}{body})"


class Module:
    """A part of a model: override `forward`, keep in attributes what belongs to it.

    A Tensor that requires a gradient is a parameter. Another Tensor or NDArray is a
    buffer: part of the state, but not trained; write to it in place. Modules may also
    stand in lists, tuples and dicts. A Python number is none of these. So hand out an
    activation that is only to be looked at, instead of keeping it in an attribute, and
    make a parameter at once, `Tensor(randn(3) * 0.1, requires_grad=True)`: the result
    of an operation cannot be trained. `training` says whether `train()` or `eval()`
    came last. `super().__init__()` is not needed.

    >>> class Scale(Module):
    ...     def __init__(self):
    ...         self.factor = Tensor([2.0], requires_grad=True)
    ...         self.calls = zeros(1)
    ...     def forward(self, x):
    ...         self.calls += 1
    ...         return x * self.factor
    >>> scale = Scale()
    >>> scale(ones(2)).tolist(), [name for name, _ in scale.named_parameters()]
    ([2.0, 2.0], ['factor'])
    >>> scale.state_dict()
    {'factor': NDArray([2.]), 'calls': NDArray([1.])}
    """

    training = True
    _shown = ""  # the arguments that `repr` shows, "{name}" for an attribute's value

    def forward(self, *inputs: Any) -> Any:
        """Compute the output; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__}: define forward(self, ...)")

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.forward(*inputs, **options)

    def named_parameters(self) -> list[tuple[str, Tensor]]:
        """Return (dotted path, parameter) in order of definition, a shared one once."""
        first: dict[int, tuple[str, Tensor]] = {}
        for path, t in _tree(self, Tensor, seen=set()):
            if t.requires_grad:
                first.setdefault(id(t), (path, t))
        return list(first.values())

    def parameters(self) -> list[Tensor]:
        """Return the parameters in order of definition, each once."""
        return [t for _, t in self.named_parameters()]

    def modules(self) -> list[Module]:
        """Return this module and all those in it, each once."""
        return list(dict.fromkeys([m for _, m in _tree(self, Module, seen=set())]))

    def train(self: _M, mode: bool = True) -> _M:
        """Switch the whole tree to training (Dropout drops, BatchNorm measures)."""
        for module in self.modules():
            module.training = mode
        return self

    def eval(self: _M) -> _M:
        """Switch the whole tree to evaluation."""
        return self.train(False)

    def zero_grad(self) -> None:
        """Forget the gradients of all parameters."""
        for p in self.parameters():
            p.grad = None

    def state_dict(self) -> dict[str, NDArray]:
        """Return all parameters and buffers by dotted path, sharing their memory."""
        entries: dict[str, NDArray] = {}
        for path, a in _tree(self, _Common):
            _check(entries.setdefault(path, a._data) is a._data,
                   f"{type(self).__name__}: two entries of the state are called {path}")
        return entries

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> None:
        """Copy a state into this module. Raises one ValueError that lists every
        missing, unexpected (if `strict`) and misshapen entry, and changes nothing."""
        own = self.state_dict()
        for name, a in _fitted(type(self).__name__, state, own, strict).items():
            own[name][...] = a

    def _describe(self):
        """Return the arguments that `repr` shows."""
        return self._shown.format_map(vars(self))

    def __repr__(self) -> str:
        return _module_text(self)


def _table(rows, last=str.ljust):
    """Return rows of cells as lines of aligned columns; `last`: how to pad the last."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([*map(str.ljust, cells, widths), last(cell, widths[-1])])
        for *cells, cell in rows
    ]


def summary(model: Module) -> str:
    """Return a table of the layers that own parameters, their shapes and counts.

    >>> print(summary(Sequential(Linear(2, 3), ReLU())))
    layer  kind    parameters        count
    --------------------------------------
    0      Linear  W (2, 3), b (3,)      9
    --------------------------------------
    total                                9
    """
    if not isinstance(model, Module):
        raise TypeError(f"summary: {model!r:.60} is no Module")
    rows = [("layer", "kind", "parameters", "count")]
    counted: set[Tensor] = set()
    for path, module in _tree(model, Module):
        items = [pair for pair in _parts(vars(module)) if isinstance(pair[1], Tensor)]
        own = {name: t for name, t in items if t.requires_grad}
        if own:
            shapes = ", ".join([f"{name} {t.shape}" for name, t in own.items()])
            size = sum([t.size for t in {*own.values()} - counted])
            counted.update(own.values())
            rows.append((path or "-", type(module).__name__, shapes, f"{size:,}"))
    rows.append(("total", "", "", f"{sum([t.size for t in counted]):,}"))
    head, *lines, total = _table(rows, str.rjust)
    rule = "-" * len(head)
    return "\n".join([head, rule, *lines, rule, total])


# --- 5a. Layers -----------------------------------------------------------------------


_parameter = partial(Tensor, requires_grad=True)


def _check_positive(op, **sizes):
    """Refuse a size, or one in a tuple of them, that is no integer above 0."""
    for name, n in sizes.items():
        for part in n if isinstance(n, tuple) else (n,):
            what = f"{op}: {name} must be a positive integer, not {n!r}"
            _check(hasattr(part, "__index__"), what, TypeError)
            _check(index(part) >= 1, what)


def _initial(op, init, shape, fan_in, fan_out):
    """Return weights drawn so that signals keep their size from layer to layer.

    He et al. 2015 (arXiv 1502.01852): variance 2 / fan_in, for ReLU. Xavier: Glorot and
    Bengio 2010, 2 / (fan_in + fan_out), for tanh. "zeros" is there to see it fail: all
    neurons of a layer compute the same, receive the same gradient, and so stay the same
    for ever.
    """
    variances = {"he": 2 / fan_in, "xavier": 2 / (fan_in + fan_out)}
    name = str(init)
    if name in variances:
        bound = math.sqrt(3 * variances[name])  # the variance of U(-a, a) is a * a / 3
        return _parameter(uniform(-bound, bound, shape))
    if name == "zeros":
        return _parameter(zeros(shape))
    normals = {f"{name}_normal": math.sqrt(v) for name, v in variances.items()}
    spread = normals.get(name, init)
    _check(_is_scalar(spread) and spread >= 0,
           f"{op}: init is 'he', 'he_normal', 'xavier', 'xavier_normal', 'zeros' or "
           f"the standard deviation of a normal distribution, not {init!r}")
    return _parameter(randn(shape) * spread)


class Linear(Module):
    """y = x @ W + b, with W of shape (in_features, out_features) and b (out_features,).

    x has shape (..., in_features). `init`: "he" (uniform), "he_normal", "xavier",
    "xavier_normal", "zeros", or the standard deviation of a normal. Raises ValueError
    for an x of another width.

    >>> layer = Linear(2, 3)
    >>> layer.W.shape, layer.b.shape, layer(ones((5, 2))).shape
    ((2, 3), (3,), (5, 3))
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 init: Any = "he") -> None:
        _check_positive("Linear", in_features=in_features, out_features=out_features)
        shape = in_features, out_features
        self.W = _initial("Linear", init, shape, *shape)
        self.b = _parameter(zeros(out_features)) if bias else None

    def forward(self, x: Any) -> Any:
        """Return x @ W + b."""
        x = _as_array(x)
        if x.shape[-1:] != self.W.shape[:1]:
            raise ValueError(f"{self!r}: the last axis of x, of shape {x.shape}, must "
                             f"be {self.W.shape[0]}")
        return x @ self.W if self.b is None else _either(Affine, x, self.W, self.b)

    def _describe(self):
        n, m = self.W.shape
        return f"in_features={n}, out_features={m}, bias={self.b is not None}"


def _integers(op, labels):
    """Return labels as an int64 NDArray."""
    a = labels._data if isinstance(labels, _Common) else _natural_array(op, labels)
    if a.dtype != "int64" and a.size:
        raise TypeError(f"{op}: labels are int64, not {a.dtype} ({labels!r:.60}); see "
                        "astype")
    return a.astype("int64")


def _check_labels(op, labels, count, ignore=None):
    """Refuse a label that is neither in 0..count-1 nor the one to ignore."""
    for place, label in enumerate(_run(labels)):
        if not 0 <= label < count and label != ignore:
            raise IndexError(f"{op}: label {label} at position {place} is not one of 0 "
                             f"to {count - 1}")


class Embedding(Module):
    """A table of `number` vectors: integers of any shape in, (..., width) out. Raises
    IndexError for one that is not in 0..number-1.

    >>> Embedding(10, 4)([[1, 2, 3]]).shape
    (1, 3, 4)
    """

    _shown = "{W.shape[0]}, {W.shape[1]}"

    def __init__(self, number: int, width: int, init: Any = 1.0) -> None:
        _check_positive("Embedding", number=number, width=width)
        self.W = _initial("Embedding", init, (number, width), number, width)

    def forward(self, ids: Any) -> Tensor:
        """Return the rows of W that `ids` names."""
        ids = _integers("Embedding", ids)
        _check_labels("Embedding", ids, self.W.shape[0])
        return self.W[ids]


class Sequential(Module):
    """Modules applied one after the other.

    >>> model = Sequential(Linear(2, 3), ReLU())
    >>> model
    Sequential(
      (0): Linear(in_features=2, out_features=3, bias=True)
      (1): ReLU()
    )
    """

    def __init__(self, *layers: Module) -> None:
        for i, layer in enumerate(layers):
            _check(isinstance(layer, Module),
                   f"Sequential: layer {i} is a {type(layer).__name__}, not a Module; "
                   "use ReLU() for relu, *layers for a list", TypeError)
            setattr(self, str(i), layer)  # so that paths read "0.W", as in PyTorch

    def forward(self, x: Any) -> Any:
        """Return the last layer's output."""
        for layer in self:
            x = layer(x)
        return x

    def __iter__(self) -> Iterator[Module]:
        return iter([item for item in vars(self).values() if isinstance(item, Module)])

    def __len__(self) -> int:
        return sum([1 for _ in self])  # list(self) would ask this method in turn

    def __getitem__(self, i: int | slice) -> Module:
        part: Any = list(self)[i]
        return Sequential(*part) if isinstance(i, slice) else part


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Any) -> Any:
        """Return x where it is positive, else 0."""
        return relu(x)


class LeakyReLU(Module):
    """x where it is positive, else slope * x."""

    _shown = "slope={slope}"

    def __init__(self, slope: float = 0.01) -> None:
        self.slope = slope

    def forward(self, x: Any) -> Any:
        """Return x where it is positive, else slope * x."""
        return leaky_relu(x, self.slope)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Any:
        """Return 1 / (1 + exp(-x))."""
        return sigmoid(x)


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, x: Any) -> Any:
        """Return the hyperbolic tangent."""
        return tanh(x)


class GELU(Module):
    """x times the probability that a standard normal number is below x."""

    def forward(self, x: Any) -> Any:
        """Return gelu(x)."""
        return gelu(x)


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `axis`."""

    _shown = "axis={axis}"

    def __init__(self, axis: int = -1) -> None:
        self.axis = axis

    def forward(self, x: Any) -> Any:
        """Return the softmax along the axis."""
        return softmax(x, self.axis)


class LogSoftmax(Softmax):
    """log(softmax(x)) along `axis`."""

    def forward(self, x: Any) -> Any:
        """Return the logarithm of the softmax along the axis."""
        return log_softmax(x, self.axis)


class Flatten(Module):
    """(n, ...) in, (n, everything else) out.

    >>> Flatten()(ones((2, 3, 4))).shape
    (2, 12)
    """

    def forward(self, x: Any) -> Any:
        """Join all axes but the first."""
        x = _as_array(x)
        if not x.ndim:
            raise ValueError("Flatten: x needs at least 1 axis, but has shape ()")
        return x.reshape(x.shape[0], prod(x.shape[1:]))


class Dropout(Module):
    """In training, zero each element with probability p and divide the rest by 1 - p,
    so that the mean stays; in evaluation, change nothing. Srivastava et al. 2014.

    >>> drop = Dropout(0.5)
    >>> set(drop(ones(100)).tolist()) <= {0.0, 2.0}, drop.eval()(ones(2)).tolist()
    (True, [1.0, 1.0])
    """

    _shown = "p={p}"

    def __init__(self, p: float = 0.5) -> None:
        what = f"Dropout: p is a probability from 0 to 1, not {p!r}"
        _check(_is_scalar(p), what, TypeError)
        _check(0 <= p <= 1, what)
        self.p = p

    def forward(self, x: Any) -> Any:
        """Return x with elements dropped."""
        x = _as_array(x)
        if not self.training or self.p == 0:
            return x
        kept = uniform(0, 1, x.shape) >= self.p
        return x * (kept * (1 / (1 - self.p) if self.p < 1 else 0.0))


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) * gamma + beta over the last axes, whose `shape` is
    given. Ba et al. 2016 (arXiv 1607.06450).

    >>> LayerNorm(2, eps=0.0)(Tensor([[1.0, 3.0], [10.0, 30.0]])).tolist()
    [[-1.0, 1.0], [-1.0, 1.0]]
    """

    _shown = "{shape}, eps={eps}"

    def __init__(self, shape: _ShapeLike, eps: float = 1e-5) -> None:
        self.shape, self.eps = _shape("LayerNorm", shape), eps
        _check_positive("LayerNorm", shape=self.shape)
        self.gamma = _parameter(ones(self.shape))
        self.beta = _parameter(zeros(self.shape))

    def forward(self, x: Any) -> Any:
        """Return x normalised over its last axes."""
        x = _as_array(x)
        n = len(self.shape)
        if x.shape[-n:] != self.shape:
            raise ValueError(f"{self!r}: the last axes of x, of shape {x.shape}, must "
                             f"be {self.shape}")
        y = _either(Normalize, x, tuple(range(-n, 0)), self.eps)
        return y * self.gamma + self.beta


class BatchNorm1d(Module):
    """x of shape (n, features) or (n, features, length), normalised for each feature:
    in training by the batch's mean and variance, which also move the running ones by
    `momentum`; in evaluation by the running ones. Ioffe and Szegedy 2015."""

    _shown = "{gamma.size}, eps={eps}, momentum={momentum}"
    _ranks: tuple[int, ...] = (2, 3)

    def __init__(self, features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        _check_positive(type(self).__name__, features=features)
        self.eps, self.momentum = eps, momentum
        self.gamma, self.beta = _parameter(ones(features)), _parameter(zeros(features))
        self.running_mean, self.running_var = zeros(features), ones(features)

    def forward(self, x: Any) -> Any:
        """Return x normalised over all axes but the second."""
        x = _as_array(x)
        if x.ndim not in self._ranks or x.shape[1] != self.gamma.size:
            ranks = " or ".join(map(str, self._ranks))
            raise ValueError(f"{self!r}: x has shape {x.shape}; expected {ranks} axes, "
                             f"the second of size {self.gamma.size}")
        axes = (0, *range(2, x.ndim))
        wide = (-1,) + (1,) * (x.ndim - 2)
        if self.training:
            self._measure(x._data, axes)
            y = _either(Normalize, x, axes, self.eps)
        else:
            scale = (self.running_var + self.eps).sqrt()
            y = (x - self.running_mean.reshape(wide)) / scale.reshape(wide)
        return y * self.gamma.reshape(wide) + self.beta.reshape(wide)

    def _measure(self, x, axes):
        """Move the running statistics towards the batch's."""
        if x.size < 2 * self.gamma.size:
            raise ValueError(f"{self!r}: training needs at least 2 values for each "
                             f"feature, x has shape {x.shape}")
        found = x.mean(axes), x.var(axes, ddof=1)
        for running, batch in zip((self.running_mean, self.running_var), found):
            running *= 1 - self.momentum  # in place: a state_dict shares its memory
            running += batch * self.momentum


class BatchNorm2d(BatchNorm1d):
    """As BatchNorm1d, for x of shape (n, features, height, width)."""

    _ranks = (4,)


# --- 5b. Convolution and pooling ------------------------------------------------------
#
# Both look at the image through small windows, and a window costs nothing: the strided
# view `sliding_window` shows every window of the image as if it had been copied out,
# shape (n, channels, height, width, kernel height, kernel width), over the image's own
# storage. Convolution is then one matrix product, weights times windows; pooling is a
# maximum or mean over the last two axes.


def _pair(op, name, value, least=1):
    """Return an integer, or two, as (for the height, for the width)."""
    pair = value if isinstance(value, (tuple, list)) else (value, value)
    what = f"{op}: {name} must be an integer of at least {least}, or two, not {value!r}"
    _check(all([hasattr(n, "__index__") for n in pair]), what, TypeError)
    _check(len(pair) == 2 and min(pair) >= least, what)
    return tuple(map(index, pair))


def _windows(op, x, kernel, stride, padding, dilation=(1, 1), fill=0.0):
    """Return the windows of images, (n, channels, height, width, kh, kw)."""
    x = _as_array(x)
    if x.ndim != 4:
        raise ValueError(f"{op}: x has shape {x.shape}; expected (n, channels, h, w)")
    reach = tuple([(k - 1) * d + 1 for k, d in zip(kernel, dilation)])
    if any([n + 2 * p < r for n, p, r in zip(x.shape[2:], padding, reach)]):
        raise ValueError(f"{op}: a window of {reach} is larger than x of shape "
                         f"{x.shape} with padding {padding}")
    x = _either(Pad, x, padding, fill) if any(padding) else x
    windows = x.sliding_window(reach, stride, (2, 3))
    if dilation == (1, 1):
        return windows
    return windows[..., :: dilation[0], :: dilation[1]]


def conv2d(x: Any, W: Any, b: Any = None, stride: Any = 1, padding: Any = 0,
           dilation: Any = 1, groups: int = 1) -> Any:
    """Return the cross-correlation of images x (n, c, h, w) with kernels W
    (out, c / groups, kh, kw), plus b (out,): (n, out, height, width). Raises ValueError
    for shapes that do not fit, and for a window larger than the padded images.

    >>> conv2d(ones((1, 1, 3, 3)), ones((1, 1, 2, 2))).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    op, x, W = "conv2d", _as_array(x), _as_array(W)
    stride, padding = _pair(op, "stride", stride), _pair(op, "padding", padding, 0)
    dilation = _pair(op, "dilation", dilation)
    # Zeros fit nothing, so that one check below can report all shapes.
    out, deep, *kernel = W.shape if W.ndim == 4 else (0, 0, 0, 0)
    bias = (out,) if b is None else b.shape
    fits = W.ndim == x.ndim == 4 and groups > 0 and x.shape[1] == deep * groups
    _check(fits and out % groups == 0 and bias == (out,),
           f"{op}: x of shape {x.shape}, W of shape {W.shape}, b of shape {bias} and "
           f"{groups} groups do not fit; expected (n, c, h, w), "
           "(out, c / groups, kh, kw), (out,)")
    windows = _windows(op, x, kernel, stride, padding, dilation)
    n, _, height, width = windows.shape[:4]
    k = deep * prod(kernel)
    columns = windows.transpose(1, 4, 5, 0, 2, 3).reshape(groups, k, n * height * width)
    y = W.reshape(groups, out // groups, k) @ columns
    y = y.reshape(out, n, height, width).transpose(1, 0, 2, 3)
    return y if b is None else y + b.reshape(out, 1, 1)


class Conv2d(Module):
    """Convolution of images (n, in_channels, h, w) to (n, out_channels, height, width).

    W has shape (out, in / groups, kh, kw), b (out,). Kernel, stride, padding and
    dilation are an int or a pair (height, width).

    >>> Conv2d(3, 8, 5, padding=2)(zeros((1, 3, 9, 9))).shape
    (1, 8, 9, 9)
    """

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Any,
                 stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
                 bias: bool = True, init: Any = "he") -> None:
        op = "Conv2d"
        _check_positive(op, in_channels=in_channels, out_channels=out_channels,
                        groups=groups)
        _check(in_channels % groups == 0 == out_channels % groups,
               f"{op}: {in_channels} input and {out_channels} output channels must "
               f"both divide by {groups} groups")
        kernel = _pair(op, "kernel_size", kernel_size)
        self.stride = _pair(op, "stride", stride)
        self.padding = _pair(op, "padding", padding, 0)
        self.dilation = _pair(op, "dilation", dilation)
        self.groups = groups
        shape = (out_channels, in_channels // groups, *kernel)
        fan_in, fan_out = prod(shape[1:]), out_channels // groups * prod(kernel)
        self.W = _initial(op, init, shape, fan_in, fan_out)
        self.b = _parameter(zeros(out_channels)) if bias else None

    def forward(self, x: Any) -> Any:
        """Return the convolution of x with W, plus b."""
        return conv2d(x, self.W, self.b, self.stride, self.padding, self.dilation,
                      self.groups)

    def _describe(self):
        out, deep, *kernel = self.W.shape
        text = f"{deep * self.groups}, {out}, kernel_size={tuple(kernel)}"
        usual = {"stride": None, "padding": (0, 0), "dilation": (1, 1), "groups": 1}
        for name, value in usual.items():
            if getattr(self, name) != value:
                text += f", {name}={getattr(self, name)}"
        return text + (", bias=False" if self.b is None else "")


class MaxPool2d(Module):
    """The maximum of each window; ties share the gradient. `stride` defaults to the
    kernel's size; padding never wins.

    >>> MaxPool2d(2)(arange(16).reshape(1, 1, 4, 4)).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """

    _shown = "kernel_size={kernel_size}, stride={stride}, padding={padding}"
    _fill, _pool = -inf, "max"

    def __init__(self, kernel_size: Any, stride: Any = None, padding: Any = 0) -> None:
        op = type(self).__name__
        self.kernel_size = _pair(op, "kernel_size", kernel_size)
        self.stride = _pair(op, "stride", kernel_size if stride is None else stride)
        self.padding = _pair(op, "padding", padding, 0)
        _check(all([2 * p <= k for p, k in zip(self.padding, self.kernel_size)]),
               f"{op}: padding {self.padding} must be at most half the kernel "
               f"{self.kernel_size}")

    def forward(self, x: Any) -> Any:
        """Return the pooled images."""
        windows = _windows(type(self).__name__, x, self.kernel_size, self.stride,
                           self.padding, fill=self._fill)
        return getattr(windows, self._pool)((-2, -1))


class AvgPool2d(MaxPool2d):
    """The mean of each window; padding counts as zeros.

    >>> AvgPool2d(2)(arange(16).reshape(1, 1, 4, 4)).tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """

    _fill, _pool = 0.0, "mean"


# ======================================================================================
# 6. Losses
# ======================================================================================
#
# Each takes the model's output and the truth, and returns one number to be made small:
# by `reduction` the "mean" of the losses, their "sum", or ("none") the losses as they
# are: one an element, with labels one a sample. Always: shapes that would have to be
# broadcast are an error, and a label that is ignored is not counted in the mean.


def _reduced(op, losses, reduction, count=None):
    """Reduce losses by name; `count` is how many the mean is over (default: all)."""
    if reduction == "mean":
        return losses.mean() if count is None else losses.sum() / count
    if reduction == "sum":
        return losses.sum()
    if reduction == "none":
        return losses
    raise ValueError(f"{op}: reduction is 'mean', 'sum' or 'none', not {reduction!r}")


def _same_shape(op, x, t):
    """Refuse what would broadcast silently: (n, 1) against (n,) makes n * n losses."""
    x = _as_array(x)
    t = t if isinstance(t, _Common) else NDArray(t, x.dtype)
    if x.shape != t.shape:
        raise ValueError(f"{op}: the prediction has shape {x.shape}, the target "
                         f"{t.shape}; they must be equal (reshape one of them)")
    return x, t


def mse_loss(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the mean squared error, (prediction - target) ** 2. Shapes must be equal.

    >>> mse_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    2.0
    """
    prediction, target = _same_shape("mse_loss", prediction, target)
    if reduction == "mean":
        return _either(MSE, prediction, target)
    error = prediction - target
    return _reduced("mse_loss", error * error, reduction)


def l1_loss(prediction: Any, target: Any, reduction: str = "mean") -> Any:
    """Return the mean absolute error, |prediction - target|. Shapes must be equal.

    >>> l1_loss(Tensor([1.0, 2.0]), Tensor([1.0, 4.0])).item()
    1.0
    """
    prediction, target = _same_shape("l1_loss", prediction, target)
    return _reduced("l1_loss", abs(prediction - target), reduction)


def binary_cross_entropy_with_logits(logits: Any, target: Any,
                                     reduction: str = "mean") -> Any:
    """Return -t log(p) - (1 - t) log(1 - p) with p = sigmoid(logits), in the form
    max(x, 0) - x t + log(1 + exp(-|x|)), which neither overflows nor takes log(0).
    Shapes must be equal.

    >>> binary_cross_entropy_with_logits(Tensor([1000.0, -1000.0]), [0, 0]).item()
    500.0
    """
    op = "binary_cross_entropy_with_logits"
    logits, target = _same_shape(op, logits, target)
    return _reduced(op, _either(LogisticLoss, logits, target), reduction)


def _classes(op, x, labels, ignore):
    """Check scores (n, classes) or (classes,) against labels (n,) or ()."""
    x = _as_array(x)
    labels = _integers(op, labels)
    if x.ndim not in (1, 2) or labels.shape != x.shape[:-1]:
        raise ValueError(f"{op}: scores of shape {x.shape} and labels of shape "
                         f"{labels.shape}; expected (n, classes) with (n,), or "
                         "(classes,) with one label")
    if ignore is not None:
        _need_numbers(f"{op}: ignore_index", ignore)
    _check_labels(op, labels, x.shape[-1], ignore)
    return x, labels, labels >= 0 if ignore is None else labels != ignore


def _misses(log_p, labels, kept):
    """Return minus the log-probability at each row's label, 0 where it is not kept."""
    rows, n = log_p.reshape(labels.size, log_p.shape[-1]), labels.size
    picked = rows[arange(n, dtype="int64"), where(kept, labels, 0).reshape(-1)]
    return where(kept, -picked.reshape(labels.shape), 0)


def nll_loss(log_probabilities: Any, labels: Any, reduction: str = "mean",
             ignore_index: int = -100) -> Any:
    """Return minus the log-probability of each sample's label.

    `log_probabilities` (n, classes) with integer labels (n,), or (classes,) with one. A
    label `ignore_index` does not count; another one outside 0..classes-1 raises
    IndexError.

    >>> nll_loss(Tensor([[-1.0, -2.0], [-3.0, -4.0]]), [0, 1]).item()
    2.5
    """
    x, labels, kept = _classes("nll_loss", log_probabilities, labels, ignore_index)
    return _reduced("nll_loss", _misses(x, labels, kept), reduction, kept.sum())


def cross_entropy(logits: Any, labels: Any, reduction: str = "mean",
                  ignore_index: int = -100) -> Any:
    """Return nll_loss(log_softmax(logits), labels): how surprised a model is by the
    labels, in nats, stable for logits of any size.

    >>> cross_entropy(Tensor([[0.0, 0.0]]), [1]).item() == NDArray(2).log().item()
    True
    """
    x, labels, kept = _classes("cross_entropy", logits, labels, ignore_index)
    losses = _either(CrossEntropy, x, labels, kept)
    return _reduced("cross_entropy", losses, reduction, kept.sum())


# ======================================================================================
# 7. Optimisers
# ======================================================================================
#
# After `loss.backward()`, `step()` moves every parameter a little against its gradient,
# in place. All arithmetic of an update is one pass over the flat storages: a kernel
# gets runs of the parameter, its state and its gradient and returns what to write back.
# Always: the write is stamped, so a backward through an older graph notices it.


def _update(kernel, written, read):
    """Run a kernel over arrays of one shape; write its results into `written`."""
    flats = [_run(a) for a in written]
    runs = [*flats, *[_run(a) for a in read]]
    n = len(flats[0])
    for start in range(0, n, _CHUNK):
        count = min(_CHUNK, n - start)
        parts = runs if count == n else [run[start : start + count] for run in runs]
        for flat, values in zip(flats, kernel(*parts)):
            _store(flat, start, count, values)
    for a, flat in zip(written, flats):
        if a._flat is None:
            _scatter(a.buffer, a.offset, list(zip(a.shape, a.strides)), flat)
        _mark_written(a)


def _check_amounts(op, /, **amounts):
    """Refuse what is no number of at least 0."""
    for name, value in amounts.items():
        _check(_is_scalar(value), f"{op}: {name} is a number, not {value!r}", TypeError)
        _check(value >= 0, f"{op}: {name} must be at least 0, not {value!r}")


class Optimizer:
    """What SGD and Adam have in common: the parameters and their state.

    Raises ValueError for no parameters, one given twice, or a negative `lr`; TypeError
    for what is not a leaf that requires a gradient.
    A schedule is a line in the training loop: `opt.lr = f(step)`.
    """

    _settings: tuple[str, ...] = ("lr",)
    _remembered: tuple[str, ...] = ()  # the names in the state of a parameter
    lr: float

    def __init__(self, params: Iterable[Tensor], **settings: float) -> None:
        name = type(self).__name__
        _check(hasattr(params, "__iter__") and not isinstance(params, (Module, Tensor)),
               f"{name}: give a list of parameters, as model.parameters()", TypeError)
        self.params = list(params)
        _check(self.params, f"{name}: no parameters to optimise; they are Tensors made "
               "with requires_grad=True")
        for i, p in enumerate(self.params):
            _check(isinstance(p, Tensor) and p.requires_grad and p.is_leaf,
                   f"{name}: parameter {i} is no leaf Tensor that requires a gradient "
                   "(an activation kept in an attribute is none)", TypeError)
        _check(len(set(self.params)) == len(self.params),
               f"{name}: a parameter is given twice")
        _check_amounts(name, **settings)
        vars(self).update(settings)
        self._state: list[dict[str, Any]] = [{} for _ in self.params]

    def __repr__(self) -> str:
        settings = [f"{key}={getattr(self, key)!r}" for key in self._settings]
        return f"{type(self).__name__}({', '.join(settings)})"

    def zero_grad(self) -> None:
        """Forget the gradients: set `.grad = None` on every parameter."""
        for p in self.params:
            p.grad = None

    def step(self) -> None:
        """Update every parameter that has a gradient."""
        moves = []
        for i, p in enumerate(self.params):
            if p._grad is None:
                continue
            if p._data._flat is None:
                _refuse_repeats("step", p._data)
            moves.append((p._data, p._grad, self._state[i]))
        for move in moves:  # all were checked before the first one
            self._step(*move)

    def _step(self, p, g, state):
        """Update p, an NDArray, in place by its gradient g; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__}: define _step")

    def state_dict(self) -> dict[str, NDArray]:
        """Return the settings and the state of each parameter as a flat dict of arrays
        (sharing memory), which `save` can store."""
        return self._entries(self._state)

    def _entries(self, states):
        """Return the flat dict of settings and states, "0.m" for m of parameter 0."""
        entries = {k: NDArray(getattr(self, k), "float64") for k in self._settings}
        for i, state in enumerate(states):
            for key, a in state.items():
                entries[f"{i}.{key}"] = NDArray(a, "int64") if key == "step" else a
        return entries

    def _begin(self, p):
        """Return what is kept of a parameter, as it is before the first step."""
        return {key: 0 if key == "step" else zeros_like(p) for key in self._remembered}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back a `state_dict`, copied; the next steps are then the same to the
        bit. Raises ValueError, changing nothing, if it does not fit the parameters."""
        names = map(str, state) if hasattr(state, "keys") else ()  # see `_fitted`
        begun = {name.partition(".")[0] for name in names}
        new = [
            self._begin(p) if str(i) in begun else {} for i, p in enumerate(self.params)
        ]
        found = _fitted(type(self).__name__, state, self._entries(new))
        settings = {key: found.pop(key).item() for key in self._settings}
        if "nesterov" in settings:
            settings["nesterov"] = bool(settings["nesterov"])
        _check_amounts(type(self).__name__, **settings)
        for name, a in found.items():
            i, _, key = name.partition(".")
            new[int(i)][key] = int(a) if key == "step" else a
        vars(self).update(settings)
        self._state = new


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum (Polyak) or Nesterov's, by PyTorch's
    formulas: v = momentum v + g; p -= lr v (Nesterov: p -= lr (g + momentum v)).
    `weight_decay` adds to g.

    >>> p = Tensor([1.0], requires_grad=True)
    >>> (p * p).backward()
    >>> SGD([p], lr=0.25).step()
    >>> p.item()                   # 1 - 0.25 * 2
    0.5
    """

    _settings = ("lr", "momentum", "nesterov", "weight_decay")
    _remembered = ("momentum",)

    def __init__(self, params: Iterable[Tensor], lr: float = 0.001,
                 momentum: float = 0.0, nesterov: bool = False,
                 weight_decay: float = 0.0) -> None:
        super().__init__(params, lr=lr, momentum=momentum, nesterov=nesterov,
                         weight_decay=weight_decay)
        _check(momentum or not nesterov, "SGD: nesterov needs a momentum above 0")

    def _step(self, p, g, state):
        lr, decay, momentum = map(float, (self.lr, self.weight_decay, self.momentum))
        if momentum and not state:
            state.update(self._begin(p))

        def kernel(p, *rest):  # rest: the velocity v where there is a momentum, then g
            g = rest[-1]
            if decay:
                g = [d + decay * x for x, d in zip(p, g)]
            if not momentum:
                return [[x - lr * d for x, d in zip(p, g)]]
            v = [momentum * u + d for u, d in zip(rest[0], g)]
            g = [d + momentum * u for u, d in zip(v, g)] if self.nesterov else v
            return [x - lr * d for x, d in zip(p, g)], v

        _update(kernel, [p, state["momentum"]] if momentum else [p], [g])


_divide = _safe(truediv, _quotient)


class Adam(Optimizer):
    """Adam (Kingma and Ba 2015, arXiv 1412.6980), by PyTorch's formulas.

    m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g g are running means of the gradient
    and its square. Both start at 0 and are too small at first, by 1 - b1 ** step and
    1 - b2 ** step; dividing by these corrects the bias. `weight_decay` adds to g.
    """

    _settings = ("lr", "beta1", "beta2", "eps", "weight_decay")
    _remembered = ("step", "m", "v")
    _decoupled = False

    def __init__(self, params: Iterable[Tensor], lr: float = 0.001,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.0) -> None:
        two = isinstance(betas, (tuple, list)) and len(betas) == 2
        _check(two and all([_is_scalar(b) and 0 <= b < 1 for b in betas]),
               f"{type(self).__name__}: betas are two of [0, 1), not {betas!r}")
        super().__init__(params, lr=lr, beta1=betas[0], beta2=betas[1], eps=eps,
                         weight_decay=weight_decay)

    def _step(self, p, g, state):
        lr = float(self.lr)
        if not state:
            state.update(self._begin(p))
        state["step"] += 1
        settings = self.beta1, self.beta2, self.eps, self.weight_decay
        b1, b2, eps, decay = map(float, settings)  # they may be numbers of NumPy's
        c1, c2 = 1 - b1, 1 - b2
        rate = lr / (1 - b1 ** state["step"])  # the bias of m
        root = math.sqrt(1 - b2 ** state["step"])  # the bias of v, under the root
        # rate * m / (sqrt(v) / root + eps), with one division for each element:
        rate, eps = rate * root, eps * root
        shrink = 1 - lr * decay

        def kernel(p, m, v, g):
            if decay and self._decoupled:
                p = [shrink * x for x in p]
            elif decay:
                g = [d + decay * x for x, d in zip(p, g)]
            m = [b1 * u + c1 * d for u, d in zip(m, g)]
            v = [b2 * u + c2 * d * d for u, d in zip(v, g)]
            try:
                roots = map(math.sqrt, v)
                p = [x - rate * u / (r + eps) for x, u, r in zip(p, m, roots)]
            except ZeroDivisionError:  # eps=0 where nothing was ever received
                roots = map(math.sqrt, v)
                p = [x - _divide(rate * u, r + eps) for x, u, r in zip(p, m, roots)]
            return p, m, v

        _update(kernel, [p, state["m"], state["v"]], [g])


class AdamW(Adam):
    """Adam with the weight decay taken out of the gradient: each step also takes
    lr * weight_decay * p from p. Loshchilov and Hutter 2019 (arXiv 1711.05101)."""

    _decoupled = True

    def __init__(self, params: Iterable[Tensor], lr: float = 0.001,
                 betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
                 weight_decay: float = 0.01) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)


def clip_grad_norm_(params: Tensor | Iterable[Tensor], max_norm: float) -> float:
    """Scale all gradients together so that their norm, the root of the sum of all
    squares, is at most `max_norm`. In place; return the norm found. Raises TypeError
    for what is no leaf: among parameters it would change their norm unseen.

    >>> p = Tensor([3.0, 4.0], requires_grad=True)
    >>> (p * p).sum().backward()
    >>> clip_grad_norm_([p], 5.0), f"{p.grad[0]:.3f}"    # the gradient was (6, 8)
    (10.0, '3.000')
    """
    _check_amounts("clip_grad_norm_", max_norm=max_norm)
    several = hasattr(params, "__iter__") and not isinstance(params, Tensor)
    tensors: list[Any] = list(params) if several else [params]
    if not all([isinstance(p, Tensor) for p in tensors]):
        raise TypeError(f"clip_grad_norm_: give tensors, not {tensors!r:.60}")
    for i, p in enumerate(tensors):
        if not p.is_leaf:
            raise TypeError(f"clip_grad_norm_: tensor {i}, of shape {p.shape}, is no "
                            "leaf (an activation kept in an attribute is none)")
    grads = [p._grad for p in tensors if p._grad is not None]
    norm = math.sqrt(sum([_exact_sum([x * x for x in _run(g)]) for g in grads]))
    scale = max_norm / (norm + 1e-6)  # as in PyTorch; a norm of 0 divides nothing
    if not scale >= 1:  # written so that a nan is passed on, not hidden
        for g in grads:
            g *= scale
    return norm


# ======================================================================================
# 8. Seeing and checking
# ======================================================================================
#
# The graph again, by the same walk as `backward`, for the eyes; and the derivative
# again, by its definition, for the doubts. Always: nothing here changes a value, a
# gradient or a graph it is shown.


def _nodes(t, names):
    """Return each tensor behind `t` with the numbers of its inputs and its name."""
    if isinstance(names, Module):
        names = dict(names.named_parameters())
    if not (names is None or hasattr(names, "items")):
        raise TypeError("graph: names are a Module or a dict of name to Tensor, not "
                        f"{names!r:.60}")
    called = {id(t): name for name, t in (names or {}).items()}
    number = {u: i for i, u in enumerate(graph(t))}
    inputs = {u: [number[x] for x in u._ctx.inputs] if u._ctx else [] for u in number}
    return [(u, inputs[u], called.get(id(u), "")) for u in number]


def _range(a):
    """Return the smallest and largest element as text."""
    if a is None or a.size == 0:
        return "-"
    low, high = a.min().item(), a.max().item()
    return f"{low:.4g}" if low == high else f"{low:.4g} .. {high:.4g}"


def print_graph(t: Tensor, names: Any = None, file: IO[str] | None = None) -> None:
    """Print what `t` was computed from, one line a tensor, inputs before outputs: its
    number, operation and input numbers, shape, range of values and of gradients, name.
    `names`: a Module, or a dict of name to Tensor.

    >>> x = Tensor([1.0, 2.0], requires_grad=True)
    >>> print_graph((x * x).sum(), {"x": x})
    0  leaf       (2,)  1 .. 2  -  x
    1  mul(0, 0)  (2,)  1 .. 4  -
    2  sum(1)     ()    5       -
    """
    rows = []
    for i, (u, inputs, name) in enumerate(_nodes(t, names)):
        kind = "leaf" if u.is_leaf else "released"
        if u._ctx:
            kind = f"{u._ctx.op}({', '.join(map(str, inputs))})"
        rows.append((str(i), kind, str(u.shape), _range(u._data), _range(u.grad), name))
    for line in _table(rows):
        print(line.rstrip(), file=file)


def to_dot(t: Tensor, names: Any = None) -> str:
    """Return the graph behind `t` as Graphviz text, for `dot -Tsvg`. `names` as for
    `print_graph`.

    >>> x = Tensor(1.0, requires_grad=True)
    >>> print(to_dot(-x, {"x": x}))
    digraph {
      rankdir=LR;
      n0 [label="x\\nleaf\\n()", shape=box];
      n1 [label="neg\\n()", shape=ellipse];
      n0 -> n1;
    }
    """
    lines = ["digraph {", "  rankdir=LR;"]
    for i, (u, inputs, name) in enumerate(_nodes(t, names)):
        leaf = "leaf" if u._needs else "constant"
        kind = u._ctx.op if u._ctx else leaf if u.is_leaf else "released"
        name = name.replace("\\", "\\\\").replace('"', '\\"')
        text = "\\n".join([part for part in (name, kind, str(u.shape)) if part])
        shape = "box" if u.is_leaf else "ellipse"
        lines.append(f'  n{i} [label="{text}", shape={shape}];')
        lines += [f"  n{k} -> n{i};" for k in inputs]
    return "\n".join([*lines, "}"])


def _slopes(f, x, eps):
    """Yield the central difference of sum(f()) in each element of x, which is moved
    there and back in place; f closes over it."""
    flat = x._data.buffer
    for i, old in enumerate(flat):
        ends = []
        for moved in (old + eps, old - eps):
            flat[i] = moved  # past the stamps, since it is put back
            y = f()
            ends.append(float(y if _is_number(y) else y.sum()))
        flat[i] = old
        yield (ends[0] - ends[1]) / (2 * eps)


def numerical_gradient(f: Callable[[Any], Any], x: Any, eps: float = 1e-6) -> NDArray:
    """Return the gradient of f at x, in float64, by central differences: for each
    element (f(x + eps) - f(x - eps)) / (2 eps). A result that is no scalar is summed.

    >>> numerical_gradient(lambda x: x * x, [1.0, 3.0], eps=0.5).tolist()
    [2.0, 6.0]
    """
    point = Tensor(x, dtype="float64")
    slopes = array("d", _slopes(partial(f, point), point, eps))
    return _fresh(slopes, "float64", point.shape)


def _weighted(f, xs):
    """Return the sum of the outputs of f, each weighted by fixed random numbers."""
    from random import Random

    draw, outputs = Random(0), f(*xs)
    total = Tensor(0.0, dtype="float64")
    for y in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        _check(isinstance(y, Tensor),
               f"gradcheck: f returned a {type(y).__name__}, which has no history; it "
               "must return Tensors", TypeError)
        weights = NDArray([draw.uniform(0.5, 1.5) for _ in range(y.size)], "float64")
        total = total + (y * weights.reshape(y.shape)).sum()
    return total


def _gradients(f, create_graph, *xs):
    """Return the gradients of f, weighted, with respect to each of xs (or zeros)."""
    total = _weighted(f, xs)
    reached = set(graph(total)) if total._needs else ()
    needed = [x for x in xs if x._needs and x in reached]
    parts = grad(total, needed, None, create_graph, retain_graph=True) if needed else ()
    found = dict(zip(needed, parts))
    return [found.get(x, _tensor(zeros(x.shape, "float64"))) for x in xs]


def gradcheck(f: Callable[..., Any], inputs: Any, eps: float = 1e-6,
              atol: float = 1e-5, order: int = 1) -> bool:
    """Compare the gradients of f with central differences, in float64, for every
    element of every input, with a random upstream gradient; with `order=2` also those
    of its gradient. Return True, or raise RuntimeError naming input, index and both
    values.

    `f` takes the inputs as Tensors and returns one or several. The difference may be
    `atol` times 1 + the gradient's size. Keep away from kinks, as relu has at 0: there
    a difference takes the mean of two slopes, and a rule has to choose.

    >>> x, y = Tensor([1.0, 2.0]), Tensor([0.5])
    >>> gradcheck(lambda x, y: x * y.exp(), (x, y), order=2)
    True
    """
    _check(order >= 1, f"gradcheck: order must be at least 1, not {order!r}")
    xs = []
    for x in inputs if isinstance(inputs, (tuple, list)) else (inputs,):
        whole = isinstance(x, _Common) and x.dtype not in _FLOATS
        xs.append(Tensor(x) if whole else Tensor(x, True, "float64"))
    for level in range(1, order + 1):
        # With order=2, what the rules say of Tensors must be what they say of numbers.
        readings = [_gradients(f, recorded, *xs) for recorded in (False, True)[:order]]
        for i, x in enumerate(xs):
            weighted = partial(_weighted, f, xs)
            slopes = list(_slopes(weighted, x, eps)) if x._needs else []
            places = list(itertools.product(*map(range, x.shape)))
            for rules in readings:
                values = _run(rules[i]._data)
                for where, value, slope in zip(places, values, slopes):
                    if not abs(value - slope) <= atol * (1 + abs(slope)):
                        raise RuntimeError(f"gradcheck: derivative {level} of input "
                                           f"{i} at index {where}: the rules say "
                                           f"{value}, central differences {slope} "
                                           "(both for an upstream gradient drawn "
                                           "between 0.5 and 1.5)")
        f = partial(_gradients, f, True)
    return True


# ======================================================================================
# 9. Files
# ======================================================================================
#
# The safetensors format: 8 bytes that hold the length of a header, the header (JSON:
# for each name dtype, shape and where its bytes are), then the bytes of all arrays
# without a gap. Always: nothing in a file is executed or believed before it is checked,
# and at every moment a path holds a whole file, the old or the new one. Specification:
# github.com/huggingface/safetensors.

_TO_FILE = {"float32": "F32", "float64": "F64", "int64": "I64", "bool": "BOOL"}
_FROM_FILE = {  # the letter of `struct` for an element (BF16: as wide)
    "F64": "d", "F32": "f", "F16": "e", "BF16": "e", "I64": "q", "I32": "i", "I16": "h",
    "I8": "b", "U64": "Q", "U32": "I", "U16": "H", "U8": "B", "BOOL": "?",
}  # fmt: skip
_LOADED = {"d": "float64", "f": "float32", "e": "float32", "?": "bool"}  # else int64
_HEADER_LIMIT = 100_000_000


def save(state: Mapping[str, NDArray | Tensor], path: str | os.PathLike[str]) -> None:
    """Write arrays or tensors by name in the safetensors format.

    The file is written beside the old one, flushed to the disk, and put in its place
    in one step: an interruption at any moment leaves the old file whole. Raises
    TypeError for a name that is no string, and for what is no array.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "model.safetensors")
    ...     save({"W": ones((1, 2))}, path)
    ...     load(path)
    {'W': NDArray([[1., 1.]])}
    """
    import json  # here, since most who import this file never save one

    if not hasattr(state, "items"):
        raise TypeError(f"save: a {type(state).__name__} is no dict; see state_dict()")
    for name, a in state.items():
        named = isinstance(name, str) and name != "__metadata__"
        if not named or not isinstance(a, _Common):
            raise TypeError(f"save: the entry {name!r:.60} is a {type(a).__name__}; a "
                            "state maps names (strings, not '__metadata__') to arrays "
                            "or tensors")
    arrays = [(name, a._data) for name, a in state.items()]
    arrays.sort(key=lambda pair: -pair[1].itemsize)  # wide first: each starts aligned
    header, end = {}, 0
    for name, a in arrays:
        kind, start, end = _TO_FILE[a.dtype], end, end + a.nbytes
        header[name] = {"dtype": kind, "shape": a.shape, "data_offsets": (start, end)}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    target = os.path.realpath(os.fsdecode(path))
    folder = os.path.dirname(target)
    os.stat(folder)  # where it is missing, the error should name it
    temporary = os.path.join(folder, f".minigrad-{os.getpid()}-{next(_ticks)}.tmp")
    file = open(temporary, "xb")  # noqa: SIM115 - its removal begins after its creation
    try:
        with file:
            file.write(len(text).to_bytes(8, "little") + text)
            for _, a in arrays:
                flat = _run(a)
                if sys.byteorder == "big":  # what reading would swap, writing does
                    flat = _numbers(flat.tobytes(), "<", flat.typecode)
                file.write(flat)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise


def _require(sound, problem, *values):
    """Raise unless a file is sound; only then format the values (may be huge)."""
    if not sound:
        raise ValueError("load: " + problem.format(*values))


def _parse(text):
    """Return the header as a dict of unique names."""
    import json

    def no_twins(pairs):
        entries = {}
        for name, value in pairs:
            _require(name not in entries, "the header names {!r:.60} twice", name)
            entries[name] = value
        return entries

    try:
        header = json.loads(text.decode(), object_pairs_hook=no_twins)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"load: the header is no JSON text: {error}") from None
    _require(isinstance(header, dict), "the header is no JSON object")
    return header


def _checked(header, size):
    """Return {name: (dtype, shape, start, end)}, all consistent with `size` bytes."""
    notes = header.pop("__metadata__", {})
    texts = isinstance(notes, dict) and {str}.issuperset(map(type, notes.values()))
    _require(texts, "__metadata__ must hold strings by name")
    entries = {}
    for name, entry in header.items():
        keys = ("dtype", "shape", "data_offsets")
        complete = isinstance(entry, dict) and entry.keys() >= set(keys)
        _require(complete, "{!r} needs dtype, shape and data_offsets", name)
        kind, shape, span = [entry[key] for key in keys]
        known = isinstance(kind, str) and kind in _FROM_FILE
        _require(known, "{!r} has the unknown dtype {!r}", name, kind)
        lists = isinstance(shape, list) and isinstance(span, list) and len(span) == 2
        whole = lists and all([type(n) is int and n >= 0 for n in shape + span])
        _require(whole, "{!r} has a shape or offsets that are no sizes", name)
        start, end = span
        count = 0 if 0 in shape else calcsize("<" + _FROM_FILE[kind])
        for n in shape:
            count = min(count * n, size + 1)  # a hostile product would take for ever
        fits = end - start == count and end <= size
        shape = tuple(shape)
        what = "{!r}: bytes {} to {} of {} do not hold {} of shape {!s:.60}"
        _require(fits, what, name, start, end, size, kind, shape)
        entries[name] = (kind, shape, start, end)
    expected = 0
    for start, end, name in sorted([(e[2], e[3], name) for name, e in entries.items()]):
        gap = "{!r} starts at {}, not at {}: gap or overlap"
        _require(start == expected, gap, name, start, expected)
        expected = end
    _require(expected == size, "{} bytes of data, {} of them described", size, expected)
    return entries


def _decode(raw, kind, shape):
    """Return the array in the bytes `raw` of dtype `kind`, the file's name for it."""
    letter = _FROM_FILE[kind]
    dtype = _LOADED.get(letter, "int64")
    if kind == "BF16":  # the upper half of a float32
        wide = bytearray(2 * len(raw))
        wide[2::4], wide[3::4] = raw[::2], raw[1::2]
        raw, letter = bytes(wide), "f"
    flat = _numbers(raw, "<", letter)
    if letter != _CODES[dtype]:
        flat = _cast("load", flat, dtype)
    return _fresh(flat, dtype, shape)


def load(path: str | os.PathLike[str]) -> dict[str, NDArray]:
    """Read a safetensors file into NDArrays by name. F16 and BF16 become float32, small
    integers int64. Raises ValueError that says what is wrong with a damaged or hostile
    file, before any memory is taken for its arrays."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        limit = min(size - 8, _HEADER_LIMIT)
        what = "no safetensors file: a header of {} bytes in one of {} (limit {})"
        _require(length <= limit, what, length, size, _HEADER_LIMIT)
        entries = _checked(_parse(file.read(length)), size - 8 - length)
        result = {}
        for name, (kind, shape, start, end) in entries.items():
            file.seek(8 + length + start)
            raw = file.read(end - start)
            _require(len(raw) == end - start, "the file was cut off while it was read")
            result[name] = _decode(raw, kind, shape)
    return result


# --- Any copy of this file can check itself -------------------------------------------

if __name__ == "__main__":
    import doctest

    failed, tried = doctest.testmod(optionflags=doctest.ELLIPSIS)
    print(f"minigrad {__version__}: {tried - failed} of {tried} examples passed")
    sys.exit(failed > 0)

# ======================================================================================
# The MIT License
# ======================================================================================
#
# Copyright (c) 2026 The minigrad authors
#
# Permission is hereby granted, free of charge, to any person obtaining a copy of this
# software and associated documentation files (the "Software"), to deal in the Software
# without restriction, including without limitation the rights to use, copy, modify,
# merge, publish, distribute, sublicense, and/or sell copies of the Software, and to
# permit persons to whom the Software is furnished to do so, subject to the following
# conditions:
#
# The above copyright notice and this permission notice shall be included in all copies
# or substantial portions of the Software.
#
# THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED,
# INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A
# PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT
# HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF
# CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE
# OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
