"""Measure minigrad against bare loops, NumPy, PyTorch and micrograd.

    python -m examples.benchmark                     everything, about three minutes
    python -m examples.benchmark --only kernels sine
    python -m examples.benchmark --quick             a smoke test that judges nothing
    python -m examples.benchmark --json              for machines

Each comparison is a race: the contestants take turns, round by round, and what is
printed is the median over the rounds of the ratio of their times, so a load that
comes and goes meets them alike. Times are CPU time of this process. Before a race
the contestants' results are compared, so that all of them do the same work.

Targets are set for full runs on CPython 3.11; elsewhere they are shown, not judged.
The bar is a loop written by hand with nothing but the standard library. NumPy,
PyTorch and micrograd race where they are installed; where not, a line says so.
"""

import argparse
import gc
import importlib
import json
import math
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from array import array
from datetime import date
from functools import cache, partial
from itertools import chain, repeat
from operator import add, mul, sub
from pathlib import Path
from statistics import geometric_mean, median

import minigrad as mg
from examples.common import read_digits, run
from minigrad import NDArray, Tensor

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # NumPy and PyTorch with one thread, as we have

# --------------------------------------------------------------------------
# Timing
# --------------------------------------------------------------------------

# Processor time is blind to other programs; where its clock is coarse, wall time.
FINE = time.get_clock_info("process_time").resolution <= 1e-6
clock = time.process_time if FINE else time.perf_counter


CPYTHON = sys.implementation.name == "cpython"


class Effort:
    """How long to measure; --quick turns everything down."""

    rounds, sample, budget, scale = 15, 0.004, 12.0, 1
    judges = CPYTHON and sys.version_info[:2] == (3, 11)
    warm_up = 0.0 if CPYTHON else 1.5  # what a compiler needs to see before it is fast

    @classmethod
    def quick(cls):
        cls.rounds, cls.sample, cls.budget, cls.scale = 3, 0.001, 1.0, 10
        cls.warm_up, cls.judges = cls.warm_up / 10, False


def timed(f, calls):
    """Return the seconds for one call of `f`, the mean of `calls`."""
    start = clock()
    for _ in repeat(None, calls):
        f()
    return (clock() - start) / calls


@cache
def empty_call():
    """Return what calling a function costs that does nothing."""
    return min(timed(lambda: None, 10_000) for _ in range(20))


def calls_within(f, seconds):
    """Return how many calls of `f` take about `seconds`, after warming it up."""
    end = clock() + Effort.warm_up
    f()
    while clock() < end:
        f()
    calls = 1
    while True:
        spent = timed(f, calls) * calls
        if spent >= seconds:
            return max(1, int(calls * seconds / spent))
        calls *= 2


def race(contestants, turn=1):
    """Return for each name in `contestants` its times, one a round, turn by turn.

    `turn`: how long a turn is, in samples; a training step needs a longer one than a
    kernel to get the processor's caches back from the others.
    """
    sample = turn * Effort.sample
    calls = {name: calls_within(f, sample) for name, f in contestants.items()}
    times = {name: [] for name in contestants}
    end = time.perf_counter() + Effort.budget
    for done in range(Effort.rounds):
        for name, f in contestants.items():
            gc.collect()  # nobody pays for another's garbage
            times[name].append(timed(f, calls[name]) - empty_call())
        if done >= 2 and time.perf_counter() > end:
            break
    return times


def ratio(times, a, b):
    """Return how many times as long as `b` the contestant `a` takes."""
    return median(s / t for s, t in zip(times[a], times[b]))


def flat(x):
    """Return the numbers of a result of any contestant as one list."""
    x = x.data if isinstance(x, Tensor) else x
    x = x.tolist() if hasattr(x, "tolist") else x
    while isinstance(x, list) and x and isinstance(x[0], list):
        x = list(chain.from_iterable(x))
    return list(x) if isinstance(x, (list, array)) else [x]


def check_equal(contestants, tolerance=1e-3):
    """Raise if the contestants do not arrive at the same numbers."""
    results = {name: flat(f()) for name, f in contestants.items()}
    (first, expected), *others = results.items()
    for name, got in others:
        close = partial(math.isclose, rel_tol=tolerance, abs_tol=tolerance)
        if len(got) != len(expected) or not all(map(close, expected, got)):
            raise AssertionError(f"{first} gives {expected[:4]}, {name} {got[:4]}")


# --------------------------------------------------------------------------
# What is installed, and the report
# --------------------------------------------------------------------------


@cache
def optional(name):
    """Return the module `name`, or None where it is not installed."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        return None
    if name == "torch":
        module.set_num_threads(1)
    settle()
    return module


def settle():
    """Take what is alive now out of the collector's sight: it is not measured."""
    gc.collect()
    getattr(gc, "freeze", int)()


def versions():
    """Return what is raced against, by name: a version, or that it is absent."""
    found = {}
    for label, name in LIBRARIES.items():
        module = optional(name)
        version = getattr(module, "__version__", "installed")
        found[label] = str(version) if module else "not installed, left out"
    return found


LIBRARIES = {"NumPy": "numpy", "PyTorch": "torch", "micrograd": "micrograd.engine"}


class Report:
    """Collect the figures, and print them as they come unless `silent`."""

    def __init__(self, silent=False):
        self.silent = silent
        self.figures = []
        self.section = ""

    def print(self, text=""):
        if not self.silent:
            print(text, flush=True)

    def open(self, section, title):
        self.section = section
        self.print(f"\n{title}\n{'-' * len(title)}")

    def note(self, name, value, at_most=None, at_least=None):
        """Keep a figure with its target; return the words that judge it."""
        met = (at_most is None or value <= at_most) and (
            at_least is None or value >= at_least
        )
        target = (at_most is not None and f"at most {at_most:g}") or (
            at_least is not None and f"at least {at_least:g}"
        )
        figure = {"section": self.section, "name": name, "value": value}
        if target and Effort.judges:
            figure.update(target=target, met=met)
        self.figures.append(figure)
        verdict = "met" if met else "NOT MET"
        return f"{target}: {verdict}" if target and Effort.judges else target or ""

    def line(self, name, value, unit="", **target):
        words = self.note(name, value, **target)
        self.print(f"  {name:<66}{value:>9.3g}{unit:<4}{words}")


def readable(seconds):
    """Return a time with a fitting unit: '12.3 µs'."""
    for unit, factor in (("s", 1), ("ms", 1e3), ("µs", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def contest(report, contestants, at_most=None, times_faster=None):
    """Race the first of `contestants` against the others; a line for each.

    `at_most` and `times_faster` hold targets by name: for our time over theirs, and
    for theirs over ours.
    """
    at_most, times_faster = at_most or {}, times_faster or {}
    times = race(contestants, turn=5)
    ours = next(iter(contestants))
    for name in contestants:
        text, seconds = "", median(times[name])
        report.note(f"{name}, seconds", seconds)
        if name in times_faster:
            r = ratio(times, name, ours)
            words = report.note(f"{name} / {ours}", r, at_least=times_faster[name])
            text = f"{ours} is {r:.3g} times as fast   {words}"
        elif name != ours:
            r = ratio(times, ours, name)
            words = report.note(f"{ours} / {name}", r, at_most=at_most.get(name))
            text = f"{ours} takes {r:.3g} of it   {words}"
        report.print(f"  {name:<42}{readable(seconds):>10}   {text}")


def contest_both_ways(report, contestants, **targets):
    """Race with the cyclic collector on, as programs run, and then without it.

    A graph of scalars has an object for each number, so the collector's walks are a
    large part of its time; the second race shows how large.
    """
    contest(report, contestants, **targets)
    report.print("  the same with the cyclic collector off:")
    gc.disable()
    try:
        contest(report, {f"{k}, collector off": f for k, f in contestants.items()})
    finally:
        gc.enable()


# --------------------------------------------------------------------------
# Kernels against bare loops
# --------------------------------------------------------------------------

SHAPES = {16: (4, 4), 512: (16, 32), 8192: (64, 128), 262_144: (512, 512)}
LIMITS = {16: 2.0, 512: 1.15, 8192: 1.0, 262_144: 1.0}


def numbers(n):
    return array("f", [random.uniform(-3, 3) for _ in range(n)])


def bare_transposed(a, rows, cols):
    out = array("f")
    for j in range(cols):
        out += a[j::cols]
    return out


def bare_inner(a, rows, cols):
    out = array("f")
    for i in range(cols + 1, (rows - 1) * cols, cols):
        out += a[i : i + cols - 2]
    return out


def kernels(rows, cols):
    """Return rows of (name, minigrad's, the bare loop, NumPy's expression).

    Strided views are made beforehand: what is measured is working on them.
    """
    n = rows * cols
    a, b, bias, wide = numbers(n), numbers(n), numbers(cols), numbers(2 * n)
    A, B = (NDArray(v).reshape(rows, cols) for v in (a, b))
    BIAS, W = NDArray(bias), NDArray(wide)
    np = optional("numpy")
    turned, even, odd, inner = A.T, W[::2], W[1::2], A[1:-1, 1:-1]
    arrays = (A, B, BIAS, turned, even, odd, inner)
    P, Q, R, T, E, D, S = (np.asarray(v) if np else None for v in arrays)
    starts = range(0, n, cols)
    exp = math.exp
    return [
        ("add", lambda: A + B, lambda: array("f", list(map(add, a, b))),
         lambda: P + Q),
        ("scale", lambda: A * 1.5, lambda: array("f", [x * 1.5 for x in a]),
         lambda: P * 1.5),
        ("relu", lambda: A.relu(),
         lambda: array("f", [x if x > 0.0 else 0.0 for x in a]),
         lambda: np.maximum(P, 0)),
        ("exp", lambda: A.exp(), lambda: array("f", list(map(exp, a))),
         lambda: np.exp(P)),
        ("sum of each row", lambda: A.sum(axis=1),
         lambda: array("f", [sum(a[i : i + cols]) for i in starts]),
         lambda: P.sum(axis=1)),
        ("sum of each column", lambda: A.sum(axis=0),
         lambda: array("f", [sum(a[j::cols]) for j in range(cols)]),
         lambda: P.sum(axis=0)),
        ("bias add", lambda: A + BIAS,
         lambda: array("f", list(map(add, a, bias * rows))), lambda: P + R),
        ("transposed copy", lambda: turned.copy(),
         lambda: bare_transposed(a, rows, cols), lambda: T.copy(order="C")),
        ("strided add", lambda: even + odd,
         lambda: array("f", list(map(add, wide[::2], wide[1::2]))),
         lambda: E + D),
        ("sub-matrix copy", lambda: inner.copy(),
         lambda: bare_inner(a, rows, cols), lambda: S.copy()),
    ]  # fmt: skip


def table(report, title, columns, rows):
    """Print `rows` of (name, {column: value}) under their columns."""
    report.print(f"  {title:<22}" + "".join(f"{c:>12}" for c in columns))
    for name, cells in rows.items():
        shown = (f"{cells[c]:>12.2f}" if c in cells else " " * 12 for c in columns)
        report.print(f"  {name:<22}" + "".join(shown))


def run_kernels(report):
    """Time of a kernel over the time of its bare loop (1 = as fast)."""
    bare, against_numpy = {}, {}
    for n, shape in SHAPES.items():
        for name, ours, loop, other in kernels(*shape):
            contestants = {"minigrad": ours, "loop": loop}
            if optional("numpy"):
                contestants["numpy"] = other
            check_equal(contestants)
            times = race(contestants)
            bare.setdefault(name, {})[n] = ratio(times, "minigrad", "loop")
            if "numpy" in times:
                r = ratio(times, "minigrad", "numpy")
                against_numpy.setdefault(name, {})[n] = r
            report.note(f"{name}, {n}", bare[name][n])
    summarise_kernels(report, bare, against_numpy)


def summarise_kernels(report, bare, against_numpy):
    table(report, "over the bare loop", list(SHAPES), bare)
    for n in SHAPES:
        mean = geometric_mean(cells[n] for cells in bare.values())
        report.line(f"geometric mean, {n} elements", mean, at_most=LIMITS[n])
    worst = max(max(cells.values()) for cells in bare.values())
    report.line("the worst of all", worst, at_most=4.0)
    if against_numpy:
        table(report, "over NumPy", list(SHAPES), against_numpy)


# --------------------------------------------------------------------------
# Matmul and convolution against bare dot products
# --------------------------------------------------------------------------

MATMULS = [(32, 1, 16), (32, 16, 1), (64, 64, 64), (128, 128, 128), (100, 784, 100)]


def slow_dot(p, q):
    return sum(map(mul, p, q))


dot = getattr(math, "sumprod", slow_dot)  # from Python 3.12 on


def bare_matmul(a, b, n, k, m):
    """Multiply two flat arrays, (n, k) by (k, m): dot products of lists."""
    rows = [a[i : i + k].tolist() for i in range(0, n * k, k)]
    columns = [b[j::m].tolist() for j in range(m)]
    return array("f", [dot(row, column) for row in rows for column in columns])


def run_matmul(report):
    """Time of `A @ B` over a bare loop of dot products, conversions included."""
    ratios = []
    for n, k, m in MATMULS:
        a, b = numbers(n * k), numbers(k * m)
        A, B = NDArray(a).reshape(n, k), NDArray(b).reshape(k, m)
        contestants = {
            "minigrad": partial(mul_at, A, B),
            "loop": partial(bare_matmul, a, b, n, k, m),
        }
        np = optional("numpy")
        if np:
            contestants["numpy"] = partial(np.matmul, np.asarray(A), np.asarray(B))
        check_equal(contestants)
        times = race(contestants)
        ratios.append(ratio(times, "minigrad", "loop"))
        name = f"{n} x {k} x {m}"
        report.note(f"{name}, seconds", median(times["minigrad"]))
        report.line(f"{name}, over the bare loop", ratios[-1])
        if np:
            report.line(f"{name}, over NumPy", ratio(times, "minigrad", "numpy"))
    report.line("geometric mean", geometric_mean(ratios), at_most=1.0)


def mul_at(a, b):
    return a @ b


def run_conv(report):
    """Convolution, forward and backward, against its three matmuls bare."""
    batch, channels, size, out, kernel = 8, 8, 8, 16, 3
    places, window = batch * size * size, channels * kernel * kernel
    layer = mg.Conv2d(channels, out, kernel, padding=1)
    x = mg.randn((batch, channels, size, size))
    g = mg.randn((batch, out, size, size))
    a, w, u = numbers(places * window), numbers(window * out), numbers(places * out)

    def ours():
        layer(Tensor(x, requires_grad=True)).backward(g)
        layer.zero_grad()

    def bare():
        bare_matmul(a, w, places, window, out)
        bare_matmul(u, w, places, out, window)
        bare_matmul(u, a, out, places, window)

    loops = "its three matmuls, bare"
    contest(report, {"minigrad": ours, loops: bare}, at_most={loops: 1.0})


# --------------------------------------------------------------------------
# Scalars: micrograd, and a lean scalar autograd
# --------------------------------------------------------------------------


def run_scalar(report):
    """Tensors of one element: what a call costs beyond the arithmetic."""
    if not optional("micrograd.engine"):
        return report.print("  micrograd is not installed: left out")
    value = optional("micrograd.engine").Value
    a, b = (Tensor([v], requires_grad=True) for v in (2.0, 3.0))
    p, q = value(2.0), value(3.0)

    def ours(result):
        result.backward()
        a.grad = b.grad = None  # as zero_grad does from step to step

    def theirs(result):
        result.backward()
        p.grad = q.grad = 0

    pairs = [
        ("a + b", lambda: a + b, lambda: p + q, 1.5),
        ("a + b, backward", lambda: ours(a + b), lambda: theirs(p + q), 2.2),
        ("(a * b).sum(), backward", lambda: ours((a * b).sum()),
         lambda: theirs(p * q), 4.0),
    ]  # fmt: skip
    for name, here, there, limit in pairs:
        times = race({"minigrad": here, "micrograd": there})
        for who, seconds in times.items():
            report.note(f"{name}, {who}, seconds", median(seconds))
        r = ratio(times, "minigrad", "micrograd")
        report.line(f"{name}, over micrograd", r, at_most=limit)


class Value:
    """A number with a history, as lean as a scalar autograd gets in Python."""

    __slots__ = ("data", "grad", "inputs", "slopes")

    def __init__(self, data, inputs=(), slopes=()):
        self.data, self.grad, self.inputs, self.slopes = data, 0.0, inputs, slopes

    def __add__(self, other):
        if other.__class__ is not Value:
            return Value(self.data + other, (self,), (1.0,))
        return Value(self.data + other.data, (self, other), (1.0, 1.0))

    def __mul__(self, other):
        if other.__class__ is not Value:
            return Value(self.data * other, (self,), (other,))
        return Value(self.data * other.data, (self, other), (other.data, self.data))

    def __pow__(self, n):
        return Value(self.data**n, (self,), (n * self.data ** (n - 1),))

    def relu(self):
        return Value(max(self.data, 0.0), (self,), (float(self.data > 0.0),))

    __radd__, __rmul__ = __add__, __mul__

    def backward(self):
        order, seen, stack = [], set(), [(self, False)]
        while stack:
            v, ready = stack.pop()
            if ready:
                order.append(v)
            elif v not in seen:
                seen.add(v)
                stack.append((v, True))
                stack.extend((u, False) for u in v.inputs)
        self.grad = 1.0
        for v in reversed(order):
            for u, slope in zip(v.inputs, v.slopes):
                u.grad += slope * v.grad


def lean_unary(v, y, slope):
    return Value(y, (v,), (slope,))


def micrograd_unary(v, y, slope):
    """Give micrograd the exponential and the logarithm it lacks, in its own style."""
    out = v.__class__(y, (v,))

    def backward():
        v.grad += slope * out.grad

    out._backward = backward
    return out


# --------------------------------------------------------------------------
# The two-moons classifier
# --------------------------------------------------------------------------


def two_moons(n):
    """Return n points on two interleaved half circles, and their signs."""
    points, signs = [], []
    for i in range(n):
        t = math.pi * random.random()
        x, y = math.cos(t), math.sin(t)
        point = (1 - x, 0.5 - y) if i % 2 else (x, y)
        points.append([c + random.gauss(0, 0.1) for c in point])
        signs.append(1 - 2 * (i % 2))
    return points, signs


def moons_here(points, signs):
    model = mg.Sequential(
        mg.Linear(2, 16), mg.ReLU(), mg.Linear(16, 16), mg.ReLU(), mg.Linear(16, 1)
    )
    optimizer = mg.SGD(model.parameters(), lr=0.05)
    x, y = Tensor(points), Tensor(signs).reshape(-1, 1)

    def step():
        loss = (1 - y * model(x)).relu().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def moons_micrograd(points, signs):
    model = importlib.import_module("micrograd.nn").MLP(2, [16, 16, 1])

    def step():
        scores = map(model, points)
        loss = sum((1 + -y * s).relu() for y, s in zip(signs, scores)) / len(signs)
        model.zero_grad()
        loss.backward()
        for p in model.parameters():
            p.data -= 0.05 * p.grad
        return loss

    return step


def run_moons(report):
    """One step on 100 points, layers 2-16-16-1, the full batch, hinge loss."""
    data = two_moons(100)
    contestants = {"minigrad": moons_here(*data)}
    if optional("micrograd.engine"):
        contestants["micrograd"] = moons_micrograd(*data)
    contest_both_ways(report, contestants, times_faster={"micrograd": 125})


# --------------------------------------------------------------------------
# One step of a small GPT: 1 layer, width 16, 4 heads, one name
# --------------------------------------------------------------------------

NAME, WIDTH, HEADS, BLOCK = "olivia", 16, 4, 16
TOKENS = [26, *(ord(c) - ord("a") for c in NAME), 26]  # 26 begins and ends a name
LR, BETA1, BETA2, EPS = 0.01, 0.9, 0.99, 1e-8


def gpt_weights():
    """Return the starting weights, each (in, out) or (number, width), as lists."""
    shapes = {"token": (27, WIDTH), "position": (BLOCK, WIDTH), "head": (WIDTH, 27)}
    shapes.update({name: (WIDTH, WIDTH) for name in ("q", "k", "v", "o")})
    shapes.update({"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)})
    return {
        name: [[random.gauss(0, 0.1) for _ in range(m)] for _ in range(n)]
        for name, (n, m) in shapes.items()
    }


def gpt_here(weights):
    """The step on tensors: all positions at once."""
    w = {name: Tensor(rows, requires_grad=True) for name, rows in weights.items()}
    optimizer = mg.Adam(list(w.values()), lr=LR, betas=(BETA1, BETA2), eps=EPS)
    inputs, labels, t = TOKENS[:-1], NDArray(TOKENS[1:], dtype="int64"), len(NAME) + 1
    hidden = [[0.0 if j <= i else -math.inf for j in range(t)] for i in range(t)]
    mask, size = Tensor(hidden), WIDTH // HEADS

    def norm(x):
        return x * ((x * x).mean(axis=-1, keepdims=True) + 1e-5) ** -0.5

    def heads(x):
        return x.reshape(t, HEADS, size).transpose(1, 0, 2)

    def attention(x):
        q, k, v = (heads(x @ w[name]) for name in "qkv")
        scores = (q @ k.swapaxes(1, 2)) * size**-0.5 + mask
        mixed = scores.softmax() @ v
        return mixed.transpose(1, 0, 2).reshape(t, WIDTH) @ w["o"]

    def step():
        x = norm(w["token"][inputs] + w["position"][:t])
        x = x + attention(norm(x))
        x = x + (norm(x) @ w["up"]).relu() @ w["down"]
        loss = mg.cross_entropy(x @ w["head"], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def gpt_scalar(weights, make, unary):
    """The same step on scalars, position by position; `make` wraps a number."""
    w = {name: [list(map(make, row)) for row in rows] for name, rows in weights.items()}
    parameters = [p for rows in w.values() for row in rows for p in row]
    moments = [[0.0, 0.0] for _ in parameters]
    count = 0

    def exp(v):
        y = math.exp(v.data)
        return unary(v, y, y)

    def log(v):
        return unary(v, math.log(v.data), 1 / v.data)

    def linear(x, name):
        return [sum(map(mul, x, column)) for column in zip(*w[name])]

    def norm(x):
        scale = (sum(map(mul, x, x)) * (1 / WIDTH) + 1e-5) ** -0.5
        return [v * scale for v in x]

    def softmax(x):
        top = max(v.data for v in x)
        powers = [exp(v + -top) for v in x]
        share = sum(powers) ** -1
        return [v * share for v in powers]

    def attention(q, keys, values):
        out, size = [], WIDTH // HEADS
        for s in (slice(i, i + size) for i in range(0, WIDTH, size)):
            scores = [sum(map(mul, q[s], k[s])) * size**-0.5 for k in keys]
            shares = softmax(scores)
            out += [sum(map(mul, shares, c)) for c in zip(*(v[s] for v in values))]
        return linear(out, "o")

    def forward():
        keys, values, losses = [], [], []
        for i, (token, label) in enumerate(zip(TOKENS, TOKENS[1:])):
            x = norm(list(map(add, w["token"][token], w["position"][i])))
            z = norm(x)
            keys.append(linear(z, "k"))
            values.append(linear(z, "v"))
            x = list(map(add, x, attention(linear(z, "q"), keys, values)))
            z = [v.relu() for v in linear(norm(x), "up")]
            x = list(map(add, x, linear(z, "down")))
            losses.append(log(softmax(linear(x, "head"))[label]))
        return sum(losses) * (-1 / len(losses))

    def adam():
        nonlocal count
        count += 1
        for p, m in zip(parameters, moments):
            m[0] += (1 - BETA1) * (p.grad - m[0])
            m[1] += (1 - BETA2) * (p.grad * p.grad - m[1])
            root = math.sqrt(m[1] / (1 - BETA2**count))
            p.data -= LR * m[0] / (1 - BETA1**count) / (root + EPS)
            p.grad = 0.0

    def step():
        loss = forward()
        loss.backward()
        adam()
        return loss.data

    return step


def run_gpt(report):
    """One step on the name 'olivia': forward, backward, Adam; 4,192 parameters."""
    weights = gpt_weights()
    lean = "a lean scalar autograd"
    contestants = {"minigrad": gpt_here(weights)}
    contestants[lean] = gpt_scalar(weights, Value, lean_unary)
    if optional("micrograd.engine"):
        value = optional("micrograd.engine").Value
        contestants["micrograd"] = gpt_scalar(weights, value, micrograd_unary)
    check_equal(contestants)
    targets = {lean: 25, "micrograd": 105}
    contest_both_ways(report, contestants, times_faster=targets)


# --------------------------------------------------------------------------
# The sine job: one step with its batch; layers 1-16-1, batch 32
# --------------------------------------------------------------------------


def sine_here():
    model = mg.Sequential(mg.Linear(1, 16), mg.ReLU(), mg.Linear(16, 1))
    optimizer = mg.SGD(model.parameters(), lr=0.01)

    def step():
        x = Tensor(mg.uniform(-3, 3, (32, 1)))
        y_true = Tensor(x.data.sin())
        y_pred = model(x)
        loss = mg.mse_loss(y_pred, y_true)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def sine_parameters():
    return [numbers(16), array("f", [0.0] * 16), numbers(16), array("f", [0.0])]


def sine_arrays(n=32, lr=0.01):
    """By hand: batch, activations, gradients, parameters in arrays; no framework."""
    parameters = W1, b1, W2, b2 = sine_parameters()
    scale = 2.0 / n

    def step():
        x = array("f", [6.0 * random.random() - 3.0 for _ in range(n)])
        y = array("f", list(map(math.sin, x)))
        h = [  # a column of activations for each of the 16 units
            array("f", [z if (z := u * w + c) > 0.0 else 0.0 for u in x])
            for w, c in zip(W1, b1)
        ]
        v, c = W2.tolist(), b2[0]
        p = array("f", [dot(row, v) + c for row in zip(*h)])
        e = list(map(sub, p, y))
        loss = dot(e, e) / n
        g = array("f", [scale * d for d in e])
        dW2 = array("f", [dot(column, g) for column in h])
        db2 = array("f", [sum(g)])
        dz = [[s * w if a else 0.0 for s, a in zip(g, q)] for w, q in zip(v, h)]
        dW1 = array("f", [dot(column, x) for column in dz])
        db1 = array("f", list(map(sum, dz)))
        for p, d in zip(parameters, (dW1, db1, dW2, db2)):
            p[:] = array("f", [a - lr * b for a, b in zip(p, d)])
        return loss

    return step


def sine_operations(n=32, m=16, lr=0.01):
    """By hand, one operation at a time, each result stored, as any tape has to."""
    parameters = W1, b1, W2, b2 = sine_parameters()
    scale, units, rows = 2.0 / n, range(m), range(0, n * m, m)

    def step():
        x = array("f", [6.0 * random.random() - 3.0 for _ in range(n)])
        y = array("f", list(map(math.sin, x)))
        columns = list(zip(W1, b1))
        z = array("f", [u * w + c for u in x for w, c in columns])
        h = array("f", [v if v > 0.0 else 0.0 for v in z])
        v, c = W2.tolist(), b2[0]
        p = array("f", [dot(h[i : i + m].tolist(), v) + c for i in rows])
        e = array("f", list(map(sub, p, y)))
        loss = dot(e.tolist(), e.tolist()) / n
        g = array("f", [scale * d for d in e])
        dW2 = array("f", [dot(h[j::m].tolist(), g) for j in units])
        db2 = array("f", [sum(g)])
        dh = array("f", [s * w for s in g for w in v])
        dz = array("f", [s if a else 0.0 for s, a in zip(dh, h)])
        dW1 = array("f", [dot(dz[j::m].tolist(), x) for j in units])
        db1 = array("f", [sum(dz[j::m]) for j in units])
        for p, d in zip(parameters, (dW1, db1, dW2, db2)):
            p[:] = array("f", [a - lr * b for a, b in zip(p, d)])
        return loss

    return step


def sine_lists(n=32, lr=0.01):
    """By hand with everything fused: lists of doubles, no gradient kept."""
    W1, b1, W2, b2 = (p.tolist() for p in sine_parameters())
    scale = 2.0 * lr / n

    def step():
        x = [6.0 * random.random() - 3.0 for _ in range(n)]
        h = [
            [z if (z := u * w + c) > 0.0 else 0.0 for u in x] for w, c in zip(W1, b1)
        ]
        c = b2[0]
        e = [dot(row, W2) + c - math.sin(u) for row, u in zip(zip(*h), x)]
        loss = dot(e, e) / n
        g = [scale * d for d in e]
        for j, (w, column) in enumerate(zip(W2, h)):
            dz = [s * w if a else 0.0 for s, a in zip(g, column)]
            W2[j] = w - dot(column, g)
            W1[j] -= dot(dz, x)
            b1[j] -= sum(dz)
        b2[0] = c - sum(g)
        return loss

    return step


def sine_torch():
    torch = optional("torch")
    nn = torch.nn
    model = nn.Sequential(nn.Linear(1, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        x = torch.empty(32, 1).uniform_(-3, 3)
        y_true = torch.sin(x)
        y_pred = model(x)
        loss = nn.functional.mse_loss(y_pred, y_true)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def run_sine(report):
    """One step of the training loop with its batch: 1-16-1, 32 points, SGD."""
    by_hand, torch = "by hand over array('f')", "PyTorch eager, one thread"
    contestants = {"minigrad": sine_here(), by_hand: sine_arrays()}
    contestants["by hand, operation by operation"] = sine_operations()
    contestants["by hand, fused, lists of doubles"] = sine_lists()
    if optional("torch"):
        contestants[torch] = sine_torch()
    contest(report, contestants, at_most={by_hand: 1.3, torch: 0.9})


# --------------------------------------------------------------------------
# The digits job: one epoch; layers 64-64-10, Adam, batches of 32
# --------------------------------------------------------------------------


def digits():
    """Return the training part as lists: 64 pixels from 0 to 1 each, and labels."""
    pixels, labels = read_digits()
    n = len(labels) * 4 // 5 // Effort.scale
    return (pixels[:n] / 16).reshape(n, -1).tolist(), labels[:n].tolist()


def digits_here(pixels, labels):
    x, y = NDArray(pixels), NDArray(labels, dtype="int64")
    model = mg.Sequential(mg.Linear(64, 64), mg.ReLU(), mg.Linear(64, 10))
    optimizer = mg.Adam(model.parameters(), lr=0.001)

    def epoch():
        order = mg.permutation(len(labels))
        for i in range(0, len(labels), 32):
            batch = order[i : i + 32]
            loss = mg.cross_entropy(model(Tensor(x[batch])), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def digits_torch(pixels, labels):
    torch = optional("torch")
    nn = torch.nn
    x, y = torch.tensor(pixels), torch.tensor(labels)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)

    def epoch():
        order = torch.randperm(len(labels))
        for i in range(0, len(labels), 32):
            batch = order[i : i + 32]
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return epoch


def run_digits(report):
    """One epoch over 1,437 digits: 64-64-10, Adam, batches of 32."""
    data, torch = digits(), "PyTorch eager, one thread"
    contestants = {"minigrad": digits_here(*data)}
    if optional("torch"):
        contestants[torch] = digits_torch(*data)
    contest(report, contestants, at_most={torch: 22})


# --------------------------------------------------------------------------
# Growth
# --------------------------------------------------------------------------


def matmul_of(n):
    a, b = mg.randn((n, n)), mg.randn((n, n))
    return partial(mul_at, a, b), None


def elementwise_of(n):
    x = Tensor(mg.randn((n,)), requires_grad=True)
    return (lambda: (x * x + x).relu()), x


def chain_of(n):
    x = Tensor([1.0], requires_grad=True)

    def forward():
        y = x
        for _ in range(n):
            y = y + x
        return y

    return forward, x


def shared_of(n):
    x = Tensor([1.0], requires_grad=True)

    def forward():
        y = x
        for _ in range(n // 2):
            y = (y + y) * 0.5
        return y

    return forward, x


GROWTH = [  # what, how to make it, sizes, the exponent that it should have
    ("matmul, n = 64 to 128", matmul_of, (64, 128), 3),
    ("elementwise, 100,000 to 1,000,000 elements", elementwise_of, (10**5, 10**6), 1),
    ("a chain of 10,000 to 100,000 nodes", chain_of, (10**4, 10**5), 1),
    ("shared nodes, 10,000 to 100,000", shared_of, (10**4, 10**5), 1),
]


def phases(forward, leaf):
    """Return the seconds of one forward, and of its backward where there is one."""
    gc.collect()
    start = clock()
    y = forward()
    middle = clock()
    if leaf is None:
        return [middle - start]
    y.backward()
    end = clock()
    leaf.grad = None
    return [middle - start, end - middle]


def run_growth(report):
    """The exponent of growth between two sizes: log of times over log of sizes.

    Judged with the cyclic collector off. It starts to walk all objects at some size,
    a step rather than growth; what it costs is shown beside.
    """
    gc.disable()
    try:
        measure_growth(report, judged=True)
    finally:
        gc.enable()
    report.print("  the same with the cyclic collector on:")
    measure_growth(report, judged=False)


def measure_growth(report, judged):
    for what, make, (small, large), expected in GROWTH:
        small, large = small // Effort.scale, large // Effort.scale
        if make is matmul_of:
            small, large = 64, 128
        contestants = [make(small), make(large)]
        rounds = [[phases(*c) for c in contestants] for _ in range(5)]
        for k, phase in enumerate(("forward", "backward")[: len(rounds[0][0])]):
            factor = median(big[k] / little[k] for little, big in rounds)
            exponent = math.log(factor) / math.log(large / small)
            limit = expected + 0.1 if judged else None
            name = f"{what}, {phase}" + ("" if judged else ", collector on")
            report.line(name, exponent, at_most=limit)


# --------------------------------------------------------------------------
# Memory
# --------------------------------------------------------------------------


def peak_of(f):
    """Return the bytes that `f` takes at its peak beyond what was there before."""
    import tracemalloc  # not on PyPy

    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = f()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    del kept
    return peak


def memory_cases(n):
    """Return (name, operation, limit in arrays) for n elements."""
    x = mg.uniform(0.1, 2.0, (n // 1000, 1000))
    y, mask = x.copy(), x > 1.0
    short = x.reshape(-1, 4)[:, ::-1]
    row, column = x[0], x[:, :1].copy()
    return [
        ("x + y", lambda: x + y, 1.6),
        ("x * 2", lambda: x * 2, 1.6),
        ("-x", lambda: -x, 1.6),
        ("x ** 3", lambda: x**3, 1.6),
        ("x ** y", lambda: x**y, 1.6),
        ("x / y", lambda: x / y, 1.6),
        ("x < y", lambda: x < y, 1.6),
        ("exp", lambda: x.exp(), 1.6),
        ("log", lambda: x.log(), 1.6),
        ("sqrt", lambda: x.sqrt(), 1.6),
        ("tanh", lambda: x.tanh(), 1.6),
        ("sigmoid", lambda: x.sigmoid(), 1.6),
        ("relu", lambda: x.relu(), 1.6),
        ("maximum", lambda: mg.maximum(x, y), 1.6),
        ("clip", lambda: x.clip(0.5, 1.5), 1.6),
        ("where", lambda: mg.where(mask, x, y), 1.6),
        ("x += y", lambda: x.__iadd__(y), 1.6),
        ("x.T += y.T", lambda: x.T.__iadd__(y.T), 1.6),
        ("x + row", lambda: x + row, 2.2),
        ("x * column", lambda: x * column, 2.2),
        ("where, one a number", lambda: mg.where(mask, x, 0.0), 2.2),
        ("x.T + y.T", lambda: x.T + y.T, 1.6),
        ("the same, in rows of 4", lambda: short + short, 1.6),
    ]


def layers(count, width=32, batch=256):
    """Return a forward pass through `count` layers, and its backward pass."""
    parts = [(mg.Linear(width, width), mg.ReLU()) for _ in range(count)]
    model = mg.Sequential(*chain.from_iterable(parts))
    x = Tensor(mg.randn((batch, width)))

    def backward():
        model(x).sum().backward()
        model.zero_grad()

    return partial(model, x), backward


def run_memory(report):
    """Peak memory beyond the inputs, in arrays of the operand's size."""
    if not CPYTHON:
        return report.print("  needs tracemalloc, which this interpreter lacks")
    n = 10**6 // Effort.scale
    for name, operation, limit in memory_cases(n):
        report.line(name, peak_of(operation) / (4 * n), at_most=limit)
    forward, backward = layers(50 // Effort.scale)
    r = peak_of(backward) / peak_of(forward)
    report.line("50 layers: backward's peak over forward's", r, at_most=1.15)


# --------------------------------------------------------------------------
# Import, and PyPy
# --------------------------------------------------------------------------

IMPORT = (
    "import sys, time; sys.path.insert(0, {folder!r}); t = time.perf_counter(); "
    "import {name}; print(time.perf_counter() - t)"
)


def import_seconds(name):
    """Return what `import name` takes in a fresh interpreter."""
    program = IMPORT.format(folder=str(Path(mg.__file__).parent), name=name)
    # Without `site`, since what it loads before differs from place to place.
    command = [sys.executable, "-I", "-S", "-c", program]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def run_import(report):
    """A first import in a fresh interpreter, against `import statistics`."""
    names = ("minigrad", "statistics")
    for name in names:
        import_seconds(name)  # leaves the bytecode behind
    rounds = [[import_seconds(n) for n in names] for _ in range(Effort.rounds)]
    ours = median(first for first, _ in rounds)
    report.line("import minigrad", ours * 1e3, " ms")
    r = median(first / second for first, second in rounds)
    report.line("over import statistics", r, at_most=1.0)


PYPY = [  # section, figure, at least
    ("sine", "minigrad, seconds", 3.0),
    ("matmul", "128 x 128 x 128, seconds", 10.0),
]


def run_pypy(report):
    """How many times as fast PyPy runs the same file, in a process of its own."""
    pypy = shutil.which("pypy3")
    if not pypy or not CPYTHON:
        return report.print("  compares CPython with pypy3 on PATH: left out")
    folder = Path(__file__).resolve().parent.parent
    command = ["-m", "examples.benchmark", "--json", "--only", "sine", "matmul"]
    command += ["--quick"] if Effort.scale > 1 else []
    both = [measured([python, *command], folder) for python in (sys.executable, pypy)]
    for section, name, limit in PYPY:
        here, there = (figures[section, name] for figures in both)
        label = f"{section}: {name.split(',')[0]}, CPython over PyPy"
        report.line(label, here / there, at_least=limit)


def measured(command, folder):
    """Run a benchmark elsewhere; return its figures by section and name."""
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=folder).stdout
    return {(f["section"], f["name"]): f["value"] for f in json.loads(out)["figures"]}


# --------------------------------------------------------------------------

SECTIONS = {
    "kernels": run_kernels,
    "matmul": run_matmul,
    "conv": run_conv,
    "scalar": run_scalar,
    "moons": run_moons,
    "gpt": run_gpt,
    "sine": run_sine,
    "digits": run_digits,
    "growth": run_growth,
    "memory": run_memory,
    "import": run_import,
    "pypy": run_pypy,
}


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m examples.benchmark", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="small and noisy")
    parser.add_argument("--json", action="store_true", help="print figures as JSON")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION"
    )
    return parser.parse_args()


def main():
    options = arguments()
    if options.quick:
        Effort.quick()
    random.seed(1)
    mg.manual_seed(1)
    about = {
        "minigrad": mg.__version__,
        "interpreter": f"{platform.python_implementation()} "
        f"{platform.python_version()} on {platform.machine()}",
        "date": date.today().isoformat(),
        **versions(),
    }
    report = Report(silent=options.json)
    for name, text in about.items():
        report.print(f"{name}: {text}")
    for section in options.only:
        report.open(section, f"{section}: {SECTIONS[section].__doc__.splitlines()[0]}")
        settle()
        SECTIONS[section](report)
    if options.json:
        print(json.dumps({**about, "figures": report.figures}, indent=1))
    else:
        verdicts = [f["met"] for f in report.figures if "met" in f]
        met = f"{sum(verdicts)} of {len(verdicts)} targets met"
        report.print(f"\n{met if verdicts else 'No target was judged.'}")


if __name__ == "__main__":
    run(main)
