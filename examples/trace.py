"""Watch what happens between a loss and its gradients, one rule at a time.

1. The life of y = (x1 + x2) * x3: after each operation the graph so far, then backward,
   each rule with the numbers put in.
2. A shared input: y = (x1 + x2) * x1, where two shares of a gradient add up.
3. The release of the graph: what backward frees, and what a second one says.
4. The same for a two-layer network on one sample, and one step of descent.

Nothing here is written down beforehand. The nodes come from ``graph(y)``, the operation
and its inputs from ``t._ctx``, each formula from the source of the rule in minigrad.py,
each number from running that one operation alone; at the end the real ``backward`` must
agree, or the program says so and fails.

    python -m examples.trace
    python -m examples.trace --only network
"""

import argparse
import ast
import gc
import inspect
import sys
import textwrap
import weakref

import minigrad
from examples.common import run
from minigrad import Tensor, grad, graph, ones_like, print_graph

# --- Text -----------------------------------------------------------------------------


def numbers(data):
    """Write an array as nested lists of short numbers; a single one as a number."""
    return short(data.tolist() if data.ndim else data.item())


def short(item):
    if isinstance(item, list):
        return "[" + ", ".join(map(short, item)) + "]"
    return f"{item + 0.0:.4g}" if isinstance(item, float) else str(item)


def wrapped(start, text):
    """Print a long text in lines of 80 columns, the later ones indented."""
    print(textwrap.fill(f"{start}{text}", 80, subsequent_indent="    "))


def heading(text):
    print(f"\n{text}\n{'-' * len(text)}")


# --- Forward: run a program line by line ----------------------------------------------


def forward(program, tensors, each=True):
    """Run lines such as "t1 = x1 + x2"; print the graph after each, or after all."""
    for name, t in tensors.items():
        needs = "requires a gradient" if t.requires_grad else "needs none"
        print(f"{name} = {numbers(t.data)}, a leaf; {needs}")
    for line in program:
        name, expression = line.split(" = ")
        tensors[name] = eval(expression, {}, tensors)
        print(f"\n{line} = {numbers(tensors[name].data)}")
        print(f"adds one node to the graph, {tensors[name]._ctx.op}")
        if each or line is program[-1]:
            print_graph(tensors[name], names=tensors)
    return tensors[name]


# --- Backward: each rule as it stands in minigrad.py, with the numbers put in ---------


class Formula:
    """A rule's formula for one input: its source, with names or numbers in it."""

    def __init__(self, t, i, g, called, top):
        function = t._ctx.function
        self.parameters = list(inspect.signature(function.forward).parameters)
        rule = inspect.unwrap(getattr(function, "d" + self.parameters[i]))
        tree = ast.parse(textwrap.dedent(inspect.getsource(rule)))
        returns = [node for node in ast.walk(tree) if isinstance(node, ast.Return)]
        # The general case stands last; the others are for operands of one axis.
        self.tree = max(returns, key=lambda node: node.lineno).value
        self.values = {"g": g, "y": t.data}
        self.names = {"g": f"d{top}/d{called[t]}", "y": called[t]}
        for name, x in zip(self.parameters, t._ctx.args):
            known = isinstance(x, Tensor)
            self.values[name] = x.data if known else x
            self.names[name] = called[x] if known else str(x)

    def in_names(self):
        """The formula with the tensors' names; a single upstream number is put in."""
        names = dict(self.names)
        if self.values["g"].size == 1:
            names["g"] = numbers(self.values["g"])
        return written(Put(names).visit(self.copy()))

    def in_numbers(self):
        """The formula with every array put in; transposes and the like carried out."""
        texts = {k: numbers(v) for k, v in self.values.items() if hasattr(v, "ndim")}
        return written(Put(texts, self.evaluate).visit(self.copy()))

    def evaluate(self, node):
        """Return what a part of the formula gives for this node's numbers."""
        code = compile(ast.fix_missing_locations(ast.Expression(node)), "rule", "eval")
        return eval(code, vars(minigrad), self.values)

    def copy(self):
        return ast.parse(ast.unparse(self.tree), mode="eval").body


class Put(ast.NodeTransformer):
    """Replace names in a formula by texts, and method calls by what they give."""

    def __init__(self, texts, evaluate=None):
        self.texts, self.evaluate = texts, evaluate

    def visit_Name(self, node):
        return ast.Name(self.texts.get(node.id, node.id), ast.Load())

    def visit_Call(self, node):
        if self.evaluate and isinstance(node.func, ast.Attribute):
            return ast.Name(numbers(self.evaluate(node)), ast.Load())
        return self.generic_visit(node)


def written(tree):
    return ast.unparse(tree).replace(" * ", " · ").replace(".swapaxes(-1, -2)", ".T")


def share(t, i, g):
    """Differentiate the operation that made t, run alone on copies of its inputs."""
    args = [
        Tensor(x.data, requires_grad=k == i) if isinstance(x, Tensor) else x
        for k, x in enumerate(t._ctx.args)
    ]
    return grad(t._ctx.function.apply(*args), [args[i]], g)[0].data


def show_rule(t, i, g, part, called, top):
    """Print one link of the chain: names, numbers, result."""
    x = t._ctx.args[i]
    formula = Formula(t, i, g, called, top)
    start = f"  {t._ctx.op}: d{top}/d{called[x]} = "
    texts = [formula.in_names()]
    if max(v.size for v in formula.values.values() if hasattr(v, "ndim")) > 1:
        texts.append(formula.in_numbers())
    if texts[-1] != numbers(part):
        texts.append(numbers(part))
    joint = "\n" + " " * (len(start) - 2) + "= " if len(texts) > 2 else " = "
    print(start + joint.join(texts))
    raw = formula.evaluate(formula.copy())
    if raw.shape != part.shape:
        print(f"{' ' * len(start)}(broadcasting undone: the engine ", end="")
        print(f"sums {raw.shape} to {part.shape})")


def collect(x, part, sums, called, top):
    """Add one share to what has reached x so far."""
    if x not in sums:
        sums[x] = part
        return
    before, sums[x] = sums[x], sums[x] + part
    print(f"  {called[x]} is shared, its gradients add up: ", end="")
    print(f"d{top}/d{called[x]} = ", end="")
    print(f"{numbers(before)} + {numbers(part)} = {numbers(sums[x])}")


def backward(y, tensors, top):
    """Walk the graph from y back to the leaves; return each tensor's gradient."""
    called = {t: name for name, t in tensors.items()}
    sums = {y: ones_like(y.data)}
    print(f"start: d{top}/d{top} = {numbers(sums[y])}")
    for t in reversed([t for t in graph(y) if t._ctx]):
        line = t._ctx.function.forward.__code__.co_firstlineno
        print(f"{called[t]}: all its users are done, d{top}/d{called[t]} = ", end="")
        print(f"{numbers(sums[t])}; {t._ctx.op} is next (minigrad.py:{line})")
        for i, x in enumerate(t._ctx.args):
            if isinstance(x, Tensor) and x.requires_grad:
                part = share(t, i, sums[t])
                show_rule(t, i, sums[t], part, called, top)
                collect(x, part, sums, called, top)
            elif isinstance(x, Tensor):
                print(f"  {called[x]} needs no gradient: its rule is not evaluated")
    return sums


def compare(y, tensors, sums):
    """Run the real backward; stop the program if it disagrees with the walk."""
    y.backward()
    wrong = [n for n, t in tensors.items() if t in sums and (t.grad != sums[t]).any()]
    if wrong:
        sys.exit(f"backward disagrees with the walk above at {', '.join(wrong)}")
    print("\nbackward() itself leaves the same numbers in .grad:")
    for name, t in tensors.items():
        if t.is_leaf and t.requires_grad:
            print(f"  {name}.grad = {numbers(t.grad)}")


# --- The four parts -------------------------------------------------------------------


def leaf(value):
    return Tensor(value, requires_grad=True)


def life():
    heading("1. The life of y = (x1 + x2) * x3")
    tensors = {"x1": leaf(2.0), "x2": leaf(3.0), "x3": leaf(4.0)}
    y = forward(["t1 = x1 + x2", "y = t1 * x3"], tensors)
    print("\nBackward: from y to the leaves, the newest node first")
    compare(y, tensors, backward(y, tensors, "y"))


def shared():
    heading("2. A shared input: y = (x1 + x2) * x1")
    tensors = {"x1": leaf(2.0), "x2": leaf(3.0)}
    y = forward(["t1 = x1 + x2", "y = t1 * x1"], tensors)
    print("\nBackward: x1 is an input of mul and of add")
    compare(y, tensors, backward(y, tensors, "y"))


def release():
    heading("3. The release of the graph")
    x1, x2, x3 = leaf(2.0), leaf(3.0), leaf(4.0)
    y = (x1 + x2) * x3
    print("y = (x1 + x2) * x3; the sum has no name, only the graph holds it")
    alive = weakref.ref(y._ctx.inputs[0], lambda _: print("  ... the sum is freed"))
    print(f"before: y._ctx is {y._ctx}, the sum is alive: {alive() is not None}")
    print("y.backward()")
    y.backward()
    if alive():
        gc.collect()  # PyPy counts no references; CPython has freed it by now
    print(f"after:  y._ctx is {y._ctx}, the sum is alive: {alive() is not None}")
    print(f"the gradients stay: x1.grad = {numbers(x1.grad)}; y.is_leaf is {y.is_leaf}")
    try:
        y.backward()
    except RuntimeError as error:
        wrapped("a second y.backward(): RuntimeError: ", error)
    y = (x1 + x2) * x3
    y.backward(retain_graph=True)
    y.backward()
    print("a new y, backward(retain_graph=True), then backward(): two more 4, ", end="")
    print(f"x1.grad = {numbers(x1.grad)}")


LAYERS = [
    "a1 = x @ W1",
    "z1 = a1 + b1",
    "h = z1.relu()",
    "a2 = h @ W2",
    "p = a2 + b2",
    "e = p - target",
    "L = e * e",
]


def network(lr=0.05):
    heading("4. A two-layer network on one sample")
    tensors = {
        "x": Tensor([[1.0, 2.0]]),
        "target": Tensor([[2.0]]),
        "W1": leaf([[1.0, -1.0], [0.5, 0.25]]),
        "b1": leaf([0.0, 0.0]),
        "W2": leaf([[0.5], [1.0]]),
        "b2": leaf([0.25]),
    }
    params = {name: tensors[name] for name in ("W1", "b1", "W2", "b2")}
    loss = forward(LAYERS, tensors, each=False)
    print("\nBackward: the loss L = e * e uses e twice, so e is shared")
    compare(loss, tensors, backward(loss, tensors, "L"))
    print("The second hidden unit was 0: nothing comes back through it.")
    descend(tensors, params, loss.item(), lr)


def descend(tensors, params, before, lr):
    """Take one step against the gradient and compute the loss again."""
    for p in params.values():
        p.data -= lr * p.grad
    for line in LAYERS:
        name, expression = line.split(" = ")
        tensors[name] = eval(expression, {}, tensors)
    print(f"\nOne step, p.data -= {lr} * p.grad: ", end="")
    print(f"the loss goes from {before:.4g} to {tensors['L'].item():.4g}")


PARTS = {"life": life, "shared": shared, "release": release, "network": network}


def main():
    parser = argparse.ArgumentParser(
        prog="python -m examples.trace", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    args = parser.parse_args()
    for name, part in PARTS.items():
        if args.only in (None, name):
            part()


if __name__ == "__main__":
    if hasattr(sys.stdout, "reconfigure"):  # "·" on a terminal that lacks it
        sys.stdout.reconfigure(errors="replace")
    run(main)
