"""Exercise 7 (easy): gradient clipping.

Write what ``clip_grad_norm_`` does, without it. All gradients together are one long
vector; return its length, a Python number. If it is above ``max_norm``, scale every
gradient in place by the same factor, so that the length becomes max_norm. A parameter
whose ``.grad`` is None has no part in it.

    python -m pytest examples/exercises -k ex07
"""

def clip(params, max_norm):
    """Scale the gradients of params to a common norm of at most max_norm."""
    raise NotImplementedError("your turn: one norm over all, then one factor")
