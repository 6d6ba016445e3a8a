"""Start smaller: autograd for single numbers, then the same program on Tensor.

The class ``Value`` below is a whole autograd in about forty lines: a number that
remembers which numbers it was made from, and the slope towards each. Read it first;
minigrad is the same idea with arrays in place of numbers. Then one program, a small
network trained by gradient descent, is run on ``Value`` and on ``Tensor``, line for
line. The losses agree; the times do not, and the last table shows why.

    python -m examples.scalar_first
    python -m examples.scalar_first --points 16 --hidden 8 --steps 10
"""

import argparse
import inspect
import math
import sys
import textwrap
from time import perf_counter

from examples.common import at_least, run
from minigrad import Tensor, graph, manual_seed, randn, uniform, zeros

# --- A scalar autograd ----------------------------------------------------------------


class Value:
    """A number that remembers how it was made: its inputs and the slope to each."""

    def __init__(self, data, inputs=(), slopes=()):
        self.data, self.grad = data, 0.0
        self.inputs, self.slopes = inputs, slopes

    def __add__(self, other):
        return Value(self.data + other.data, (self, other), (1.0, 1.0))

    def __sub__(self, other):
        return Value(self.data - other.data, (self, other), (1.0, -1.0))

    def __mul__(self, other):
        return Value(self.data * other.data, (self, other), (other.data, self.data))

    def tanh(self):
        y = math.tanh(self.data)
        return Value(y, (self,), (1.0 - y * y,))

    def order(self):
        """List every value behind this one, inputs before outputs."""
        done, seen, stack = [], set(), [(self, False)]
        while stack:
            value, inputs_done = stack.pop()
            if inputs_done:
                done.append(value)
            elif value not in seen:
                seen.add(value)
                stack.append((value, True))
                stack.extend((x, False) for x in value.inputs)
        return done

    def backward(self):
        """Add d(self)/d(value) to the ``grad`` of every value behind this one."""
        self.grad = 1.0
        for value in reversed(self.order()):
            for x, slope in zip(value.inputs, value.slopes):
                x.grad += value.grad * slope


# --- Lists of lists of Values: what a matrix is without an array ----------------------


def values(rows):
    return [[Value(number) for number in row] for row in rows]


def dot(xs, ws):
    total = xs[0] * ws[0]
    for x, w in zip(xs[1:], ws[1:]):
        total = total + x * w
    return total


def matmul(A, B):
    return [[dot(row, column) for column in zip(*B)] for row in A]


def add(A, b):
    return [[a + c for a, c in zip(row, b[0])] for row in A]


def sub(A, B):
    return [[a - b for a, b in zip(p, q)] for p, q in zip(A, B)]


def tanh(A):
    return [[a.tanh() for a in row] for row in A]


def mean_square(A):
    flat = [a for row in A for a in row]
    return dot(flat, flat) * Value(1.0 / len(flat))


def flatten(params):
    return [value for rows in params for row in rows for value in row]


# --- The same program twice -----------------------------------------------------------


def scalar_step(x, y, params, lr):
    W1, b1, W2, b2 = params
    h = tanh(add(matmul(x, W1), b1))
    error = sub(add(matmul(h, W2), b2), y)
    loss = mean_square(error)
    loss.backward()
    for p in flatten(params):
        p.data -= lr * p.grad
        p.grad = 0.0
    return loss


def tensor_step(x, y, params, lr):
    W1, b1, W2, b2 = params
    h = (x @ W1 + b1).tanh()
    error = (h @ W2 + b2) - y
    loss = (error * error).mean()
    loss.backward()
    for p in params:
        p.data -= lr * p.grad
        p.grad = None
    return loss


def side_by_side(left, right, width=43):
    """Return the source of two functions as one text in two columns."""
    lines = [inspect.getsource(f).splitlines() for f in (left, right)]
    return "\n".join(f"  {p:{width}}{q}".rstrip() for p, q in zip(*lines))


# --- Running and measuring both -------------------------------------------------------


def problem(points, hidden, seed):
    """Points in a square, 1 inside a circle and -1 outside; weights to start from."""
    manual_seed(seed)
    x = uniform(-1.0, 1.0, (points, 2)).tolist()
    y = [[1.0 if a * a + b * b < 0.6 else -1.0] for a, b in x]
    W1, W2 = randn((2, hidden)), randn((hidden, 1)) * hidden**-0.5
    params = [W1, zeros((1, hidden)), W2, zeros((1, 1))]
    return x, y, [p.tolist() for p in params]


def measure(step, x, y, params, steps, lr):
    """Return the loss at each step and the seconds one step took."""
    start = perf_counter()
    losses = [float(step(x, y, params, lr).data) for _ in range(steps)]
    return losses, (perf_counter() - start) / steps


def both(points, hidden, steps, lr, seed):
    """Run the scalar and the tensor program from the same numbers."""
    x, y, params = problem(points, hidden, seed)
    small = [values(rows) for rows in params]
    scalar = measure(scalar_step, values(x), values(y), small, steps, lr)
    whole = [Tensor(rows, requires_grad=True) for rows in params]
    tensor = measure(tensor_step, Tensor(x), Tensor(y), whole, steps, lr)
    return scalar, tensor


def count_nodes(points, hidden, seed):
    """Return how many nodes one loss has behind it: as Values, as Tensors."""
    x, y, params = problem(points, hidden, seed)
    W1, b1, W2, b2 = (values(rows) for rows in params)
    p = add(matmul(tanh(add(matmul(values(x), W1), b1)), W2), b2)
    scalars = len(mean_square(sub(p, values(y))).order())
    W1, b1, W2, b2 = (Tensor(rows, requires_grad=True) for rows in params)
    error = ((Tensor(x) @ W1 + b1).tanh() @ W2 + b2) - Tensor(y)
    return scalars, len(graph((error * error).mean()))


def show_programs():
    lines = inspect.getsource(Value).splitlines()
    count = sum(1 for line in lines if line.strip())
    print(f"A scalar autograd in {count} lines, class Value. The chain rule in it:\n")
    print("\n".join(lines[-3:]))
    print("\nThe same program on Value and on Tensor, line for line:\n")
    print(side_by_side(scalar_step, tensor_step))


def show_losses(scalar, tensor):
    print(f"\n{'step':>6} {'loss (Value)':>14} {'loss (Tensor)':>14}")
    last = len(scalar) - 1
    for i in sorted({0, last // 4, last // 2, last}):
        print(f"{i:6} {scalar[i]:14.6f} {tensor[i]:14.6f}")
    gap = max(abs(a - b) for a, b in zip(scalar, tensor))
    print(f"largest difference: {gap:.1e} (Value computes in double precision,")
    print("Tensor rounds each result to float32)")


def show_factors(args):
    print(f"\n{'points':>7} {'Values':>8} {'Tensors':>8} ", end="")
    print(f"{'ms (Value)':>11} {'ms (Tensor)':>12} {'factor':>7}")
    sizes = sorted({1, max(1, args.points // 8), args.points})
    for n in sizes:
        nodes = count_nodes(n, args.hidden, args.seed)
        (_, slow), (_, fast) = both(n, args.hidden, args.steps, args.lr, args.seed)
        print(f"{n:7} {nodes[0]:8} {nodes[1]:8} ", end="")
        print(f"{slow * 1e3:11.2f} {fast * 1e3:12.2f} {slow / fast:7.1f}")
    return nodes, slow, fast


def explain(nodes, slow, fast):
    each, whole = slow / nodes[0] * 1e6, fast / nodes[1] * 1e6
    print(f"\nfactor: the tensor step is {slow / fast:.1f} times as fast. Why:\n")
    why = f"""A Value costs {each:.1f} microseconds: an object, two tuples, a place in
        the order, a rule. Every number of the step pays it, {nodes[0]} times. A Tensor
        node costs {whole:.0f} microseconds, but there are {nodes[1]} of them, and each
        carries a whole array through a few compiled loops. With one point the cost of
        a node outweighs its numbers: the gain grows with the arrays."""
    print(textwrap.fill(" ".join(why.split()), 80))
    if sys.implementation.name == "pypy":
        print("(PyPy compiles the scalar program too, so here the gain is smaller.)")


def main():
    parser = argparse.ArgumentParser(
        prog="python -m examples.scalar_first", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--points", type=at_least(1), default=64)
    parser.add_argument("--hidden", type=at_least(1), default=16)
    parser.add_argument("--steps", type=at_least(2), default=40)
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    show_programs()
    (scalar, _), (tensor, _) = both(
        args.points, args.hidden, args.steps, args.lr, args.seed
    )
    show_losses(scalar, tensor)
    explain(*show_factors(args))


if __name__ == "__main__":
    run(main)
