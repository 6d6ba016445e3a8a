"""Five classic failures of training: reproduced, diagnosed, mended, shown healthy.

Each is real: the program fails here as it would on your desk, its symptom is printed,
then what minigrad's own tools say about it (``print_graph``, ``graph``, ``grad``,
``detect_anomaly``, ``clip_grad_norm_``), then the mended program and its numbers. Each
ends with one sentence to remember.

1. a gradient that is None, or lost to an in-place write, or of the wrong shape
2. a loss that becomes NaN
3. dead ReLUs
4. training that slows down, grows, or crawls
5. a forgotten zero_grad

    python -m examples.debugging
    python -m examples.debugging --only 4
    python -m examples.debugging --steps 20
"""

import argparse
import textwrap
from time import perf_counter

from examples.common import at_least, run
from minigrad import (
    SGD,
    Adam,
    LeakyReLU,
    Linear,
    ReLU,
    Sequential,
    Tanh,
    Tensor,
    binary_cross_entropy_with_logits,
    clip_grad_norm_,
    detect_anomaly,
    grad,
    graph,
    manual_seed,
    mse_loss,
    no_grad,
    print_graph,
    randn,
    uniform,
)


def title(number, text):
    print(f"\n{'=' * 78}\n{number}. {text}\n{'=' * 78}")


def part(text):
    print(f"\n--- {text}")


def wrapped(text):
    print(textwrap.fill(text, 80, subsequent_indent="    ", break_long_words=False))


def remember(text):
    print(f"\nRemember: {text}")


def waves(n):
    """Points in a square and a smooth function of them, shapes (n, 2) and (n, 1)."""
    x = uniform(-1.0, 1.0, (n, 2))
    return Tensor(x), Tensor((x[:, :1] * 3.0).sin() + x[:, 1:])


def train(model, loss_of, steps, lr, optimiser=SGD):
    """Train a model in whole batches; return the losses as numbers."""
    opt, losses = optimiser(model.parameters(), lr=lr), []
    for _ in range(steps):
        loss = loss_of()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def show(label, losses):
    print(f"{label}: loss {losses[0]:.4g} -> {losses[-1]:.4g} in {len(losses)} steps")


# --- 1. A gradient that is None, lost or of the wrong shape ---------------------------


def missing_gradient(args):
    title(1, "A gradient that is None, lost to a write, or of the wrong shape")
    broken_chain(args)
    write_in_place()
    wrong_shape(args)
    remember("a gradient is missing? print the graph: what is not in it can't learn.")


def broken_chain(args):
    x, y = waves(32)
    first, second = Linear(2, 8), Linear(8, 1)
    model = Sequential(first, Tanh(), second)
    part("symptom: the first layer's gradient is None")
    h = Tensor(first(x).tanh().data)  # the bug: a new Tensor has no history
    loss = mse_loss(second(h), y)
    print("diagnosis, from print_graph(loss, names=model): 0.W and 0.b are not in it:")
    print_graph(loss, names=model)
    loss.backward()
    print(f"0.W.grad is {first.W.grad}, 2.W.grad has shape {second.W.grad.shape}")
    part("mended: stay with Tensors from the parameters to the loss")
    mse_loss(model(x), y).backward()
    print(f"0.W.grad has shape {first.W.grad.shape}")
    show("healthy", train(model, lambda: mse_loss(model(x), y), args.steps, 0.1))


def write_in_place():
    part("symptom: a value is overwritten between forward and backward")
    x = Tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x.exp()
    loss = (y * y).sum()
    y.data[0] = 0.0  # the bug: mul's rule still has to read y
    try:
        loss.backward()
    except RuntimeError as error:
        wrapped(f"diagnosis, by backward itself: RuntimeError: {error}")
    part("mended: write into a copy, or make a new tensor")
    y = x.exp()
    loss = (y * y).sum()
    plotted = y.data.copy()
    plotted[0] = 0.0
    loss.backward()
    print(f"healthy: x.grad = {x.grad}")


def wrong_shape(args):
    part("symptom: the loss stays high, and all predictions drift to the mean")
    x = Tensor(uniform(-1.0, 1.0, (16, 2)))
    y = Tensor(x.data @ [1.0, -2.0] + 0.5)  # shape (16,), where the layer gives (16, 1)
    layer = fitted(x, y, broadcast_loss, args.steps)
    print("diagnosis, from print_graph(loss): sub has shape (16, 16), not (16, 1):")
    print_graph(broadcast_loss(layer, x, y), names=layer)
    try:
        mse_loss(layer(x), y)
    except ValueError as error:
        wrapped(f"the file's own loss refuses: ValueError: {error}")
    part("mended: y.reshape(-1, 1)")
    fitted(x, y.reshape(-1, 1), lambda layer, x, y: mse_loss(layer(x), y), args.steps)


def broadcast_loss(layer, x, y):
    return ((layer(x) - y) ** 2).mean()  # the bug, if y has shape (n,)


def fitted(x, y, loss_of, steps):
    """Train a linear layer with the given loss; print what became of it."""
    manual_seed(1)
    layer = Linear(2, 1)
    losses = train(layer, lambda: loss_of(layer, x, y), steps, 0.3)
    show("training", losses)
    spread, wanted = layer(x).data.std().item(), y.data.std().item()
    print(f"standard deviation of the predictions {spread:.3f}, of y {wanted:.3f}")
    return layer


# --- 2. A loss that becomes NaN -------------------------------------------------------


def nan_loss(args):
    title(2, "A loss that becomes NaN")
    too_fast(args)
    log_of_zero(args)
    remember("NaN is the last thing to happen: find the first, with detect_anomaly.")


def quadratic_net():
    manual_seed(3)
    x, y = waves(32)
    model = Sequential(Linear(2, 16), ReLU(), Linear(16, 1))
    return model, lambda: mse_loss(model(x), y)


def too_fast(args):
    part("symptom: the learning rate is too high")
    model, loss_of = quadratic_net()
    losses = train(model, loss_of, 30, lr=5.0)
    print("loss:", " ".join(f"{v:.3g}" for v in losses[:6]), "...", losses[-1])
    print("diagnosis: ranges of values and gradients after 2 steps, print_graph:")
    model, loss_of = quadratic_net()
    train(model, loss_of, 2, lr=5.0)
    loss = loss_of()
    loss.backward(retain_graph=True)
    print_graph(loss, names=model)
    part("diagnosis: the first operation to go wrong, from detect_anomaly()")
    wrapped(f"FloatingPointError: {anomaly(lambda: train_fast(model, loss_of))}")
    part("mended: a lower learning rate")
    model, loss_of = quadratic_net()
    show("healthy (lr 0.1)", train(model, loss_of, args.steps, 0.1))


def train_fast(model, loss_of):
    train(model, loss_of, 30, lr=5.0)


def anomaly(program):
    """Run a program under detect_anomaly and return the error's text."""
    try:
        with detect_anomaly():
            program()
    except FloatingPointError as error:
        return str(error)
    return "(nothing found)"


def log_of_zero(args):
    part("symptom: log of 0: a sure and wrong probability")
    z = Tensor([[30.0], [-2.0], [200.0]], requires_grad=True)
    y = Tensor([[1.0], [0.0], [0.0]])
    print(f"loss {by_hand(z, y).item()}, from logits {z.data.flatten()}")
    wrapped(f"diagnosis: FloatingPointError: {anomaly(lambda: by_hand(z, y))}")
    part("mended: the loss that takes logits, and never forms the probability")
    loss = binary_cross_entropy_with_logits(z, y)
    loss.backward()
    print(f"healthy: loss {loss.item():.4f}, gradient {z.grad.flatten()}")


def by_hand(z, y):
    """Binary cross-entropy as in the book; log meets an exact 0."""
    p = z.sigmoid()
    return -(y * p.log() + (1.0 - y) * (1.0 - p).log()).mean()


# --- 3. Dead ReLUs --------------------------------------------------------------------


def dead_relus(args):
    title(3, "Dead ReLUs")
    part("symptom: the loss stays where it is (weights of size 0.5, biases -2)")
    report("ReLU, bad start", args, ReLU(), 0.5, -2.0, lr=0.2)
    part("diagnosis: units that are 0 for every input get no gradient, and stay 0")
    gradients_of_dead(args)
    part("mended, cure 1: LeakyReLU lets a gradient through on the negative side")
    report("LeakyReLU, bad start", args, LeakyReLU(0.1), 0.5, -2.0, lr=0.2)
    part("mended, cure 2: start well, He initialisation, biases 0")
    report("ReLU, He", args, ReLU(), "he", 0.0, lr=0.03)
    remember("a ReLU that is 0 for every input has no gradient to come back by.")


def relu_net(activation, init, bias):
    manual_seed(1)
    x, y = waves(64)
    first = Linear(2, 32, init=init)
    first.b.data[...] = bias
    return Sequential(first, activation, Linear(32, 1)), x, y


def dead_fraction(model, x):
    """Return the fraction of hidden units that are 0 or below for all inputs."""
    with no_grad():
        h = model[0](x).data
    return (h.max(axis=0) <= 0.0).mean().item()


def report(label, args, activation, init, bias, lr):
    model, x, y = relu_net(activation, init, bias)
    before = dead_fraction(model, x)
    steps = 4 * args.steps
    losses = train(model, lambda: mse_loss(model(x), y), steps, lr, optimiser=Adam)
    show(label, losses)
    print(f"units at or below 0 for all inputs: {before:.0%} before, ", end="")
    print(f"{dead_fraction(model, x):.0%} after training")


def gradients_of_dead(args):
    model, x, y = relu_net(ReLU(), 0.5, -2.0)
    h = model[1](model[0](x))
    loss = mse_loss(model[2](h), y)
    loss.backward(retain_graph=True)
    print_graph(loss, names=model)
    zero = (h.data == 0.0).mean().item()
    still = (abs(model[0].W.grad).max(axis=0) == 0.0).sum().item()
    print(f"{zero:.0%} of activations are 0; ", end="")
    print(f"{still:.0f} of 32 columns of 0.W.grad are 0")


# --- 4. Slow and growing training -----------------------------------------------------


def slow_training(args):
    title(4, "Training that slows down, grows, or crawls")
    carried_state(args)
    kept_graphs(args)
    element_by_element(args)
    remember("carry numbers from step to step, not tensors; compute on whole arrays.")


def carried_state(args):
    part("symptom: each step takes longer than the one before")
    print("(the state h is carried to the next step with its history; backward then")
    print("asked for retain_graph=True, and got it)")
    slow = recurrent_steps(4 * args.steps, detach=False)
    part("mended: h = h.detach(), keep the numbers, let the history go")
    fast = recurrent_steps(4 * args.steps, detach=True)
    print(f"healthy with detach: {slow / fast:.1f} times as fast at the end")


def recurrent_steps(steps, detach):
    """Run h = tanh(h W + x) with a backward at each step; return the last seconds."""
    manual_seed(0)
    W, h = Tensor(randn((8, 8)) * 0.3, requires_grad=True), Tensor(randn((1, 8)))
    seconds, sizes = [], []
    for _ in range(steps):
        start = perf_counter()
        h = ((h.detach() if detach else h) @ W + 0.1).tanh()
        loss = (h * h).mean()
        sizes.append(len(graph(loss)))
        W.grad = None
        loss.backward(retain_graph=not detach)
        seconds.append(perf_counter() - start)
    tenth = max(1, steps // 10)
    first, last = (min(s) for s in (seconds[:tenth], seconds[-tenth:]))
    print(f"a step takes {first * 1e3:.2f} ms, after {steps} steps {last * 1e3:.2f} ms")
    print(f"diagnosis: len(graph(loss)) went from {sizes[0]} to {sizes[-1]}")
    return last


def kept_graphs(args):
    part("symptom: memory grows with every batch that is evaluated")
    x, y = waves(256)
    model = Sequential(Linear(2, 32), Tanh(), Linear(32, 1))
    total = 0.0
    for _ in range(args.steps):
        total = total + mse_loss(model(x), y)  # the bug: total keeps every graph
    print(f"diagnosis: {held(total)} held by the running total")
    part("mended: no_grad() records nothing, and .item() keeps a number")
    total = 0.0
    with no_grad():
        for _ in range(args.steps):
            loss = mse_loss(model(x), y)
            total += loss.item()
    print(f"healthy: {held(loss)} held by the last loss; the total is a number")


def held(t):
    """Say how much a tensor keeps alive through its history."""
    nodes = graph(t)
    kib = sum(n.data.nbytes for n in nodes) / 1024
    return f"{len(nodes)} tensor{'s' * (len(nodes) > 1)} ({kib:.1f} KiB)"


def element_by_element(args):
    part("symptom: the program crawls; it loops over elements")
    n = 25 * args.steps
    x = Tensor(uniform(-1.0, 1.0, (n,)), requires_grad=True)
    slow, looped = seconds_of(lambda: sum(x[i] * x[i] for i in range(n)))
    fast, whole = seconds_of(lambda: (x * x).sum())
    print(f"sum(x[i] * x[i] for i in range({n})), with backward: {slow * 1e3:.1f} ms")
    print(f"diagnosis: {looped} nodes in the graph; backward of each x[i] makes an")
    print(f"array of {n} numbers, all 0 but one")
    part("mended: (x * x).sum()")
    print(f"healthy on whole arrays: {fast * 1e3:.2f} ms, {whole} nodes, ", end="")
    print(f"{slow / fast:.0f} times as fast")


def seconds_of(forward):
    """Time forward and backward, the better of two; return it and the graph's size."""
    seconds = []
    for _ in range(2):
        start = perf_counter()
        y = forward()
        y.backward(retain_graph=True)
        seconds.append(perf_counter() - start)
    return min(seconds), len(graph(y))


# --- 5. A forgotten zero_grad ---------------------------------------------------------


def forgotten_zero_grad(args):
    title(5, "A forgotten zero_grad")
    part("symptom: the loss swings and does not settle, at a harmless learning rate")
    accumulated(args.steps, forget=True)
    part("mended: opt.zero_grad() before each backward")
    accumulated(args.steps, forget=False)
    remember("backward adds to .grad: clear it before each step, or mean the sum.")


def accumulated(steps, forget):
    """Train with or without zero_grad; compare .grad with this step's own gradient."""
    manual_seed(2)
    x, y = waves(64)
    model = Sequential(Linear(2, 16), Tanh(), Linear(16, 1))
    opt, losses = SGD(model.parameters(), lr=0.1), []
    for step in range(steps):
        loss = mse_loss(model(x), y)
        losses.append(loss.item())
        if not forget:
            opt.zero_grad()
        loss.backward()
        if step == 1:
            diagnose(model, mse_loss(model(x), y))
        opt.step()
    print("loss:", " ".join(f"{v:.3f}" for v in losses[:: max(1, steps // 8)]))


def diagnose(model, loss):
    """Print the norm of what .grad holds beside the norm of this step's gradient."""
    own = grad(loss, model.parameters())
    norm = sum((g.data * g.data).sum().item() for g in own) ** 0.5
    found = clip_grad_norm_(model.parameters(), float("inf"))
    print(f"diagnosis, step 1: .grad has norm {float(found):.3f}, ", end="")
    print(f"this step's gradient by grad() {norm:.3f}")


# --- All five -------------------------------------------------------------------------

FAILURES = (missing_gradient, nan_loss, dead_relus, slow_training, forgotten_zero_grad)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m examples.debugging", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", type=int, choices=range(1, 6), help="one failure")
    parser.add_argument("--steps", type=at_least(10), default=40, help="per training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    for number, failure in enumerate(FAILURES, 1):
        if args.only in (None, number):
            manual_seed(args.seed)
            failure(args)


if __name__ == "__main__":
    run(main)
