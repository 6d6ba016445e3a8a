"""Exercise 12 (middle): a gradient histogram without hooks.

In minigrad ``backward`` leaves a gradient in *every* tensor on the way that requires
one, so nothing has to be hooked in. Write ``gradient_histogram(loss)``: run backward,
then return a list with one pair (op, counts) for each tensor of the loss's graph that
requires a gradient, inputs before outputs; op is the operation that made it, "leaf"
for a leaf. counts has a number for each band of |gradient|: exactly 0, below 1e-6,
below 1e-3, below 1, and the rest. A column of zeros is a dead unit; bands that fall
from layer to layer are a vanishing gradient. Mind what backward does to the graph.

    python -m pytest examples/exercises -k ex12
"""

BANDS = (0.0, 1e-6, 1e-3, 1.0)


def gradient_histogram(loss):
    """Return [(op, [five counts]), ...] in the order of the graph."""
    raise NotImplementedError("your turn: graph(loss) first, then backward")
