"""Solution of exercise 5: a learning rate that warms up, then falls as a cosine."""

import math


def learning_rate(step, steps, peak, warmup=0, floor=0.0):
    """Return the learning rate of one step, a number between floor and peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    start = max(warmup - 1, 0)
    way = (step - start) / max(steps - 1 - start, 1)
    return floor + (peak - floor) * 0.5 * (1.0 + math.cos(math.pi * way))
