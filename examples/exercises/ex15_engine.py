"""Exercise 15 (hard): write the engine.

``Value`` records for each number its inputs and the slope towards each; what is missing
is ``backward``. It must add d(self)/d(v) to the ``grad`` of every value v behind self,
itself included (1), and

* be right where a value is used more than once: visit it only when all its users have;
* take time in proportion to the graph, not to its paths: 60 times y = y + y has 2**60;
* work on a chain of 50,000 values: no recursion;
* be right when called a second time: gradients accumulate, but what flows on is this
  pass's gradient, not the sum of both.

minigrad's ``Tensor.backward`` meets the same four; read it when yours is green.

    python -m pytest examples/exercises -k ex15
"""

class Value:
    """A number that remembers how it was made."""

    def __init__(self, data, inputs=(), slopes=()):
        self.data, self.grad = data, 0.0
        self.inputs, self.slopes = inputs, slopes

    def __add__(self, other):
        return Value(self.data + other.data, (self, other), (1.0, 1.0))

    def __mul__(self, other):
        return Value(self.data * other.data, (self, other), (other.data, self.data))

    def backward(self):
        """Add d(self)/d(v) to the grad of every value v behind self."""
        raise NotImplementedError("your turn: sort the graph, then walk it backwards")
