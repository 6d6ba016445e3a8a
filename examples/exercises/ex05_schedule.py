"""Exercise 5 (easy): a learning rate that warms up, then falls as a cosine.

In minigrad a schedule is a line in the loop, ``opt.lr = learning_rate(step, ...)``.
Write the function. For step 0 .. warmup-1 it rises in equal parts, peak * (step + 1) /
warmup, so that step warmup-1 has the peak. From there it follows half a cosine down to
``floor``, which it has at the last step, steps-1. Without warm-up step 0 has the peak,
where the cosine then begins. No minigrad needed.

    python -m pytest examples/exercises -k ex05
"""

def learning_rate(step, steps, peak, warmup=0, floor=0.0):
    """Return the learning rate of one step, a number between floor and peak."""
    raise NotImplementedError("your turn: a straight line, then half a cosine")
