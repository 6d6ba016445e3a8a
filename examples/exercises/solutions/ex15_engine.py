"""Solution of exercise 15: write the engine."""

class Value:
    """A number that remembers how it was made."""

    def __init__(self, data, inputs=(), slopes=()):
        self.data, self.grad = data, 0.0
        self.inputs, self.slopes = inputs, slopes

    def __add__(self, other):
        return Value(self.data + other.data, (self, other), (1.0, 1.0))

    def __mul__(self, other):
        return Value(self.data * other.data, (self, other), (other.data, self.data))

    def order(self):
        """List every value behind self, inputs before outputs, without recursion."""
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
        """Add d(self)/d(v) to the grad of every value v behind self."""
        flow = {self: 1.0}  # this pass's gradients, apart from the accumulated ones
        for value in reversed(self.order()):
            g = flow.pop(value)  # complete: all users of value have been visited
            value.grad += g
            for x, slope in zip(value.inputs, value.slopes):
                flow[x] = flow.get(x, 0.0) + g * slope
