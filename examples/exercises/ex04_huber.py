"""Exercise 4 (easy): the Huber loss.

With e = prediction - target, an element costs e²/2 where |e| <= delta and
delta (|e| - delta/2) beyond: a parabola that goes on as a straight line, so that one
wild target can't pull harder than delta. Return the mean. Compose it from operations
that exist (``where``, ``abs``, ``mean``); its gradient then needs no word from you.
Shapes that differ must raise ValueError, not broadcast.

    python -m pytest examples/exercises -k ex04
"""

def huber_loss(prediction, target, delta=1.0):
    """Return the mean Huber loss of two Tensors of one shape, a Tensor of shape ()."""
    raise NotImplementedError("your turn: where(...) of two formulas")
