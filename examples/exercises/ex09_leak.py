"""Exercise 9 (middle): why does this leak?

``Monitor`` watches a validation loop. Its numbers are right, yet memory grows with
every batch. Look at what it keeps with ``len(graph(t))`` and say why before you mend
it. After the mending the monitor must hold Python numbers, and no tensor at all.

    python -m pytest examples/exercises -k ex09
"""

class Monitor:
    """Keep a running mean of the loss, and the largest loss seen."""

    def __init__(self):
        self.mean, self.worst, self.history = 0.0, None, []

    def update(self, loss):
        """Take in the loss of one batch, a Tensor of shape ()."""
        self.mean = 0.9 * self.mean + 0.1 * loss
        if self.worst is None or loss > self.worst:
            self.worst = loss
        self.history.append(loss)
