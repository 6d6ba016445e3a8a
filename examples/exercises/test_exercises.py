"""The exercises' tests: red until solved.

    python -m pytest examples/exercises -k ex03                 # your answer
    MINIGRAD_SOLUTIONS=1 python -m pytest examples/exercises    # the solutions

An exercise is green when all its tests are. The top-level suite does not collect them.
"""

import importlib.util
import math
import os
import random
from pathlib import Path
from time import perf_counter

import pytest

from minigrad import (
    NDArray,
    Tensor,
    grad,
    gradcheck,
    graph,
    manual_seed,
    randn,
    uniform,
)

SOLVED = os.environ.get("MINIGRAD_SOLUTIONS") == "1"
FOLDER = Path(__file__).parent / ("solutions" if SOLVED else ".")


def load(name):
    """Import an exercise, or its solution, by its file name."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def close(a, b, tolerance=1e-5):
    """Compare nested lists or numbers, element by element."""
    if isinstance(a, list):
        return len(a) == len(b) and all(close(p, q, tolerance) for p, q in zip(a, b))
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def double(data):
    return Tensor(data, requires_grad=True, dtype="float64")


# --- Easy -----------------------------------------------------------------------------


@pytest.mark.parametrize("x", [-1.5, 0.25, 2.0])
def test_ex01_slope(x):
    slope = load("ex01_slope").slope
    assert abs(slope(math.exp, x) - math.exp(x)) < 1e-6
    assert abs(slope(lambda v: v**3, x) - 3 * x * x) < 1e-6


def test_ex02_by_hand():
    gradients = load("ex02_by_hand").gradients
    for values in ([2.0, 3.0, 4.0], [-1.0, 0.5, 0.25]):
        x1, x2, x3 = inputs = [double(v) for v in values]
        expected = grad((x1 + x2) * x3 + x1, inputs)
        assert list(gradients(*values)) == [g.item() for g in expected]


def test_ex03_atan_values():
    atan = load("ex03_atan").atan
    y = atan(Tensor([[-1.0, 0.0], [0.5, 1e6]]))
    assert (y.shape, y.dtype) == ((2, 2), "float32")
    assert close(y.tolist(), [[-math.pi / 4, 0.0], [math.atan(0.5), math.pi / 2]])


def test_ex03_atan_gradients():
    assert gradcheck(load("ex03_atan").atan, [double([[-2.0, 0.3, 1.0]])], order=2)


def test_ex04_huber_values():
    huber = load("ex04_huber").huber_loss
    y = huber(Tensor([0.5, -3.0, 2.0]), Tensor([0.0, 0.0, 0.0]), delta=2.0)
    assert close(y.item(), (0.125 + 4.0 + 2.0) / 3)
    with pytest.raises(ValueError):
        huber(Tensor([[1.0], [2.0]]), Tensor([1.0, 2.0]))


def test_ex04_huber_never_pulls_harder_than_delta():
    huber = load("ex04_huber").huber_loss
    p = Tensor([0.5, -3.0, 1e6], requires_grad=True)
    huber(p, Tensor([0.0, 0.0, 0.0]), delta=1.0).backward()
    assert close((p.grad * 3.0).tolist(), [0.5, -1.0, 1.0])


def test_ex05_schedule_without_warmup():
    rate = load("ex05_schedule").learning_rate
    rates = [rate(s, 5, 1.0) for s in range(5)]
    half = math.cos(math.pi / 4)
    assert close(rates, [1.0, 0.5 + half / 2, 0.5, 0.5 - half / 2, 0.0])


def test_ex05_schedule_with_warmup_and_floor():
    rate = load("ex05_schedule").learning_rate
    rates = [rate(s, 20, 0.8, warmup=4, floor=0.1) for s in range(20)]
    assert close(rates[:4], [0.2, 0.4, 0.6, 0.8])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    assert close(rates[-1], 0.1)
    assert close(rates[11], 0.45)  # half way from step 3 to step 19


def test_ex06_dropout_drops_and_scales():
    dropout = load("ex06_dropout").dropout
    manual_seed(0)
    y = dropout(Tensor([1.0] * 4000), p=0.25).tolist()
    assert {round(v, 5) for v in y} == {0.0, round(4 / 3, 5)}
    assert 0.2 < y.count(0.0) / 4000 < 0.3


def test_ex06_dropout_gradient_and_eval():
    dropout = load("ex06_dropout").dropout
    x = Tensor([2.0] * 50, requires_grad=True)
    y = dropout(x, p=0.5)
    y.backward()
    assert x.grad.tolist() == [v / 2.0 for v in y.tolist()]
    assert dropout(x, p=0.5, training=False).tolist() == x.tolist()


def test_ex07_clipping_scales_to_the_norm():
    clip = load("ex07_clipping").clip
    a, b, c = (Tensor([0.0, 0.0], requires_grad=True) for _ in range(3))
    a.grad, b.grad = NDArray([3.0, 0.0]), NDArray([0.0, 4.0])
    assert close(clip([a, b, c], 1.0), 5.0)
    assert close(a.grad.tolist() + b.grad.tolist(), [0.6, 0.0, 0.0, 0.8])
    assert c.grad is None


def test_ex07_clipping_leaves_short_gradients():
    clip = load("ex07_clipping").clip
    a = Tensor([0.0, 0.0], requires_grad=True)
    a.grad = NDArray([3.0, 4.0])
    assert close(clip([a], 10.0), 5.0)
    assert a.grad.tolist() == [3.0, 4.0]


# --- Middle ---------------------------------------------------------------------------


def test_ex08_planted_bug():
    module = load("ex08_planted_bug")
    a, b = double([0.5, -1.5, 2.0]), double([1.0, 4.0, 0.5])
    for operation, inputs in (("Bell", [a]), ("SignedSquare", [a]), ("Share", [a, b])):
        gradcheck(getattr(module, operation).apply, inputs, order=2)


def test_ex09_leak():
    monitor = load("ex09_leak").Monitor()
    w = Tensor([1.0, 2.0], requires_grad=True)
    for i in range(10):
        monitor.update((w * float(i % 7)).sum())
    kept = [monitor.mean, monitor.worst, *getattr(monitor, "history", [])]
    behind = sum(len(graph(t)) for t in kept if isinstance(t, Tensor))
    assert behind == 0, f"the monitor keeps {behind} tensors alive"
    expected = 0.0
    for i in range(10):
        expected = 0.9 * expected + 0.1 * 3.0 * (i % 7)
    assert close(monitor.mean, expected)
    assert monitor.worst == 18.0


RATES = (0.1, 0.05, 0.2)


def rmsprop_by_hand(p, grads, alpha, eps):
    v = 0.0
    for g, lr in zip(grads, RATES):
        v = alpha * v + (1 - alpha) * g * g
        p -= lr * g / (math.sqrt(v) + eps)
    return p


def test_ex10_rmsprop_follows_the_formula():
    RMSProp = load("ex10_rmsprop").RMSProp
    p, unused = Tensor([1.0, -2.0], requires_grad=True), double([3.0])
    seen_by_others = p.data[:1]
    opt = RMSProp([p, unused], lr=0.1, alpha=0.9, eps=1e-3)
    grads = [(1.0, 200.0), (0.5, -100.0), (-2.0, 1.0)]
    for g, opt.lr in zip(grads, RATES):
        opt.zero_grad()
        p.grad = NDArray(g)
        opt.step()
    for i, start in enumerate((1.0, -2.0)):
        expected = rmsprop_by_hand(start, [g[i] for g in grads], 0.9, 1e-3)
        assert close(p.tolist()[i], expected)
    assert seen_by_others.item() == p.tolist()[0], "p.data was replaced, not written"
    assert unused.item() == 3.0


def test_ex10_rmsprop_minimises():
    RMSProp = load("ex10_rmsprop").RMSProp
    p = Tensor([5.0, -5.0], requires_grad=True)
    opt = RMSProp([p], lr=0.1, alpha=0.9)
    for step in range(200):
        opt.lr = 0.1 * (1.0 - step / 200)
        opt.zero_grad()
        (p * p * NDArray([1.0, 100.0])).sum().backward()
        opt.step()
    assert max(map(abs, p.tolist())) < 0.05
    opt.zero_grad()
    assert p.grad is None


def test_ex11_softplus_is_stable():
    softplus = load("ex11_softplus").softplus
    x = Tensor([-1e4, -1.0, 0.0, 1.0, 1e4], requires_grad=True)
    y = softplus(x)
    y.backward()
    half = math.log1p(math.exp(-1.0))
    assert close(y.tolist(), [0.0, half, math.log(2.0), 1.0 + half, 1e4])
    s = 1.0 / (1.0 + math.exp(-1.0))
    assert close(x.grad.tolist(), [0.0, 1.0 - s, 0.5, s, 1.0])


def test_ex11_softplus_passes_gradcheck():
    softplus = load("ex11_softplus").softplus
    assert gradcheck(softplus, [double([-3.0, -0.2, 0.4, 5.0])], order=2)


def test_ex12_histogram_counts():
    histogram = load("ex12_histogram").gradient_histogram
    x = Tensor([1e-4, 1.0, -2.0, 0.0], requires_grad=True)
    c = Tensor([1e-7, 0.5, 1.0, 3.0])
    rows = histogram((x.relu() * c).sum())
    assert dict(rows) == {
        "leaf": [2, 1, 0, 1, 0],
        "relu": [0, 1, 0, 1, 2],
        "mul": [0, 0, 0, 0, 4],
        "sum": [0, 0, 0, 0, 1],
    }
    assert [op for op, _ in rows] == ["leaf", "relu", "mul", "sum"]


# --- Hard -----------------------------------------------------------------------------


def conv1d_by_hand(x, W, b, stride):
    """Nested lists and plain loops, straight from the formula."""
    kernel = len(W[0][0])
    places = (len(x[0][0]) - kernel) // stride + 1
    return [
        [
            [
                b[o]
                + sum(
                    W[o][c][k] * sample[c][i * stride + k]
                    for c in range(len(sample))
                    for k in range(kernel)
                )
                for i in range(places)
            ]
            for o in range(len(W))
        ]
        for sample in x
    ]


SIZES = [(7, 3, 1), (9, 2, 3), (4, 4, 1)]


@pytest.mark.parametrize(("length", "kernel", "stride"), SIZES)
def test_ex13_conv1d_values(length, kernel, stride):
    manual_seed(1)
    layer = load("ex13_conv1d").Conv1d(2, 5, kernel, stride)
    layer.b.data[...] = uniform(-1.0, 1.0, (5,))
    x = randn((3, 2, length))
    y = layer(Tensor(x))
    expected = conv1d_by_hand(x.tolist(), layer.W.tolist(), layer.b.tolist(), stride)
    assert close(y.tolist(), expected)
    shapes = [(name, p.shape) for name, p in layer.named_parameters()]
    assert sorted(shapes) == [("W", (5, 2, kernel)), ("b", (5,))]


def test_ex13_conv1d_gradients():
    manual_seed(2)
    layer = load("ex13_conv1d").Conv1d(2, 3, 3, stride=2)

    def f(x, W, b):
        layer.W, layer.b = W, b
        return layer(x)

    inputs = [double(randn(shape)) for shape in ((2, 2, 7), (3, 2, 3), (3,))]
    assert gradcheck(f, inputs)


def test_ex14_curvature_of_log_cosh():
    module = load("ex14_curvature")
    x = double([-1000.0, -1.0, 0.0, 0.5, 1000.0])
    y = module.log_cosh(x)
    ends = 1000.0 - math.log(2.0)
    middle = [math.log(math.cosh(v)) for v in (-1.0, 0.0, 0.5)]
    assert close(y.tolist(), [ends, *middle, ends])
    expected = [1.0 - math.tanh(v) ** 2 for v in x.tolist()]
    assert close(module.curvature(module.log_cosh, x).tolist(), expected)


def test_ex14_curvature_can_be_differentiated():
    module = load("ex14_curvature")
    x = double([-1.0, 0.5, 2.0])
    bend = module.curvature(lambda v: v * v * v * v, x)
    assert close(bend.tolist(), [12.0, 3.0, 48.0])
    assert close(grad(bend, [x])[0].tolist(), [-24.0, 12.0, 48.0])
    assert gradcheck(module.log_cosh, [x], order=2)


def test_ex15_engine_shared_values():
    Value = load("ex15_engine").Value
    a, b = Value(2.0), Value(-3.0)
    c = a * b
    y = c * c + a + c
    y.backward()
    assert (y.grad, c.grad, a.grad, b.grad) == (1.0, -11.0, 34.0, -22.0)


def test_ex15_engine_a_second_pass_adds():
    Value = load("ex15_engine").Value
    a = Value(3.0)
    b = a * a
    y = b * b
    y.backward()
    first = (b.grad, a.grad)
    y.backward()
    assert (first, b.grad, a.grad) == ((18.0, 108.0), 36.0, 216.0)


def test_ex15_engine_large_graphs():
    Value = load("ex15_engine").Value
    for doublings in (24, 60):
        a = y = Value(1.0)
        for _ in range(doublings):
            y = y + y
        start = perf_counter()
        y.backward()
        assert perf_counter() - start < 0.5, "each path is walked, not each value"
        assert a.grad == 2.0**doublings
    a, step = Value(0.0), Value(1.0)
    y = a
    for _ in range(50_000):
        y = y + step
    y.backward()
    assert (a.grad, step.grad) == (1.0, 50_000.0)


def test_ex16_sharpness_of_a_known_valley():
    module = load("ex16_sharpness")
    manual_seed(3)
    H = NDArray([[2.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 0.5]], dtype="float64")
    w = double([0.3, -0.2, 1.0])
    found = module.sharpness(lambda w: 0.5 * w @ (H @ w), w)
    assert close(found, (5.0 + math.sqrt(5.0)) / 2.0, 1e-4)


def test_ex16_sharpness_products():
    module = load("ex16_sharpness")
    random.seed(0)
    w = double([random.random() for _ in range(4)])
    v = NDArray([1.0, -1.0, 2.0, 0.5], dtype="float64")
    product = module.hessian_vector((w * w * w).sum(), w, v)
    expected = [6.0 * a * b for a, b in zip(w.tolist(), v.tolist())]
    assert close(product.tolist(), expected)
