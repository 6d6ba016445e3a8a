"""Second derivatives: Newton's method, Hessian-vector products, a pendulum.

``grad(y, [x], create_graph=True)`` gives the gradient as a tensor with a history of
its own, so it can be differentiated again. Three uses, each from a few lines:

1. Newton's method divides the slope by the curvature, and doubles the correct digits
   at each step where gradient descent adds a fixed part of one.
2. A Hessian-vector product Hv is the gradient of the number g·v: one more backward
   pass, where the full Hessian of n parameters needs n of them.
3. A network learns the swing of a pendulum from its differential equation alone,
   θ'' = -sin θ. The loss holds θ''; training differentiates it once more.

    python -m examples.second_order
    python -m examples.second_order --only pendulum --steps 800
"""

import argparse
import math
from time import perf_counter

from examples.common import at_least, run
from minigrad import (
    Adam,
    NDArray,
    Tensor,
    grad,
    linspace,
    manual_seed,
    randn,
    uniform,
    zeros,
)

# --- 1. Newton's method ---------------------------------------------------------------


def slope_and_curvature(f, x):
    """Return f'(x) and f''(x) as Python numbers."""
    x = Tensor(x, requires_grad=True, dtype="float64")
    (slope,) = grad(f(x), [x], create_graph=True)
    (curvature,) = grad(slope, [x])
    return slope.item(), curvature.item()


def newton(f, x, steps):
    """Return the points Newton's method visits on its way to a minimum of f."""
    path = [x]
    for _ in range(steps):
        slope, curvature = slope_and_curvature(f, path[-1])
        path.append(path[-1] - slope / curvature)
    return path


def descend(f, x, steps, lr):
    """Return the points plain gradient descent visits."""
    path = [x]
    for _ in range(steps):
        path.append(path[-1] - lr * slope_and_curvature(f, path[-1])[0])
    return path


def objective(x):
    return x.exp() - 2.0 * x


def show_newton():
    print("1. Newton's method: the minimum of f(x) = exp(x) - 2x, at log 2\n")
    exact = math.log(2.0)
    paths = [newton(objective, 2.0, 6), descend(objective, 2.0, 6, 0.3)]
    print("  step   Newton x - f'/f''      its error   descent's error (lr 0.3)")
    for i, (x, z) in enumerate(zip(*paths)):
        print(f"  {i:4}   {x:.15f}   {abs(x - exact):10.1e}   {abs(z - exact):10.1e}")
    print("  Newton squares its error at each step; descent shrinks it by a factor.\n")


# --- 2. Hessian-vector products -------------------------------------------------------


def network_loss(w, x, y, hidden):
    """Mean squared error of a small network whose weights are one long vector w."""
    n = x.shape[1] * hidden
    h = (x @ w[:n].reshape(x.shape[1], hidden)).tanh()
    error = h @ w[n:] - y
    return (error * error).mean()


def hessian_vector(loss, w, v):
    """Return Hv, the change of the gradient as w moves along v; no Hessian needed."""
    (g,) = grad(loss, [w], create_graph=True)
    return grad((g * v).sum(), [w])[0].data


def full_hessian(loss, w):
    """Return all n × n second derivatives: a backward pass for each row."""
    (g,) = grad(loss, [w], create_graph=True)
    return [grad(g[i], [w], retain_graph=True)[0].tolist() for i in range(w.size)]


def by_difference(make_loss, w, v, eps=1e-5):
    """Return Hv from two gradients beside w, to check the other two from outside."""
    ends = [Tensor(w.data + s * v, requires_grad=True) for s in (eps, -eps)]
    up, down = (grad(make_loss(end), [end])[0].data for end in ends)
    return (up - down) / (2 * eps)


def timed(function, *arguments):
    start = perf_counter()
    result = function(*arguments)
    return result, perf_counter() - start


def hessian_problem(hidden):
    """Return a function from weights to a loss, some weights, and a direction."""
    x = uniform(-1.0, 1.0, (20, 3)).astype("float64")
    y = (x * x).sum(axis=1)
    w = Tensor(randn((4 * hidden,)), requires_grad=True, dtype="float64")
    v = randn((4 * hidden,)).astype("float64")
    return lambda w: network_loss(w, x, y, hidden), w, v


def show_hessian(hidden):
    make_loss, w, v = hessian_problem(hidden)
    n = w.size
    print(f"2. A Hessian-vector product, for a network of {n} weights\n")
    product, quick = timed(hessian_vector, make_loss(w), w, v)
    rows, slow = timed(full_hessian, make_loss(w), w)
    H = NDArray(rows, dtype="float64")
    print(f"  largest |H - H transposed|            {gap(H, H.T):.1e}")
    print(f"  largest |Hv - (full H) @ v|           {gap(product, H @ v):.1e}")
    print("  largest |Hv - difference quotient|    ", end="")
    print(f"{gap(product, by_difference(make_loss, w, v)):.1e}")
    print(f"  one product takes {quick * 1e3:.1f} ms, the full Hessian ", end="")
    print(f"{slow * 1e3:.0f} ms: {slow / quick:.0f} times as long\n")


def gap(a, b):
    """Return the largest difference between two arrays as a Python number."""
    return abs(a - b).max().item()


# --- 3. A pendulum known only by its equation -----------------------------------------


def pendulum_parameters(hidden, seconds):
    """Return W1, b1, W2, b2; the bends of the hidden units are spread over time."""
    W1 = uniform(-2.0, 2.0, (1, hidden))
    b1 = -W1[0] * uniform(0.0, seconds, (hidden,))
    arrays = (W1, b1, uniform(-0.3, 0.3, (hidden, 1)), zeros((1,)))
    return [Tensor(a, requires_grad=True) for a in arrays]


def angle(t, params, start):
    """θ(t) = start + t² · network(t): starts at rest whatever the network says."""
    W1, b1, W2, b2 = params
    return start + t * t * ((t @ W1 + b1).tanh() @ W2 + b2)


def residual(t, params, start):
    """Return θ'' + sin θ at each time: zero where the equation holds."""
    theta = angle(t, params, start)
    (speed,) = grad(theta, [t], create_graph=True)
    (acceleration,) = grad(speed, [t], create_graph=True)
    return acceleration + theta.sin()


def train_pendulum(t, params, start, steps, lr):
    """Minimise the squared residual with Adam and a cosine schedule."""
    opt = Adam(params, lr=lr)
    for step in range(steps):
        opt.lr = lr * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        loss = (residual(t, params, start) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % max(1, steps // 5) == 0 or step == steps - 1:
            print(f"  step {step:4}   mean squared residual {loss.item():.2e}")


def runge_kutta(start, times, substeps=50):
    """Return θ at each of the times by a classical solver of fourth order."""
    theta, omega, out = start, 0.0, [start]
    for t0, t1 in zip(times, times[1:]):
        h = (t1 - t0) / substeps
        for _ in range(substeps):
            theta, omega = rk4_step(theta, omega, h)
        out.append(theta)
    return out


def rk4_step(theta, omega, h):
    k1, l1 = omega, -math.sin(theta)
    k2, l2 = omega + h / 2 * l1, -math.sin(theta + h / 2 * k1)
    k3, l3 = omega + h / 2 * l2, -math.sin(theta + h / 2 * k2)
    k4, l4 = omega + h * l3, -math.sin(theta + h * k3)
    theta += h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return theta, omega + h / 6 * (l1 + 2 * l2 + 2 * l3 + l4)


def show_pendulum(args):
    print(f"3. A pendulum let go at {args.start} rad, for {args.seconds} s,", end="")
    print(" from theta'' = -sin theta alone\n")
    t = Tensor(linspace(0.0, args.seconds, args.points).reshape(-1, 1), True)
    params = pendulum_parameters(args.hidden, args.seconds)
    _, took = timed(train_pendulum, t, params, args.start, args.steps, args.lr)
    times = t.data.flatten().tolist()
    learned = angle(t, params, args.start).data.flatten().tolist()
    solved = runge_kutta(args.start, times)
    print("\n       t   network   Runge-Kutta")
    for i in range(0, len(times), max(1, len(times) // 6)):
        print(f"  {times[i]:6.2f}  {learned[i]:8.4f}  {solved[i]:12.4f}")
    error = max(abs(a - b) for a, b in zip(learned, solved))
    met = "reached" if error <= args.target else "NOT reached: train longer"
    print(f"\n  largest error {error:.4f} rad, stated {args.target} rad: {met}")
    print(f"  ({args.steps} steps in {took:.1f} s, three derivatives in each)")


def arguments():
    parser = argparse.ArgumentParser(
        prog="python -m examples.second_order", description=__doc__.splitlines()[0]
    )
    option = parser.add_argument
    some, positive = at_least(1), at_least(0.001, float)
    option("--only", choices=("newton", "hessian", "pendulum"))
    option("--hidden", type=some, default=16, help="units (pendulum)")
    option("--points", type=at_least(2), default=24, help="times to fit")
    option("--seconds", type=positive, default=3.0, help="span of time")
    option("--start", type=float, default=1.0, help="first angle, rad")
    option("--steps", type=some, default=400)
    option("--lr", type=positive, default=0.02)
    option("--target", type=positive, default=0.02, help="stated error, rad")
    option("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = arguments()
    manual_seed(args.seed)
    if args.only in (None, "newton"):
        show_newton()
    if args.only in (None, "hessian"):
        show_hessian(hidden=10)
    if args.only in (None, "pendulum"):
        show_pendulum(args)


if __name__ == "__main__":
    run(main)
