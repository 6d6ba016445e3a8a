"""Solution of exercise 9: why does this leak?"""

class Monitor:
    """Keep a running mean of the loss, and the largest loss seen."""

    def __init__(self):
        self.mean, self.worst, self.history = 0.0, None, []

    def update(self, loss):
        """Take in the loss of one batch, a Tensor of shape ().

        The Tensor holds its inputs, they hold theirs, and so the whole forward pass
        stays alive as long as the loss does; ``mean`` chained one pass to the next.
        A number has no history.
        """
        value = loss.item()
        self.mean = 0.9 * self.mean + 0.1 * value
        if self.worst is None or value > self.worst:
            self.worst = value
        self.history.append(value)
