"""Solution of exercise 10: write an optimiser, RMSProp."""

from minigrad import zeros_like


class RMSProp:
    def __init__(self, params, lr=0.01, alpha=0.99, eps=1e-8):
        self.params, self.lr = list(params), lr
        self.alpha, self.eps = alpha, eps
        self.v = [zeros_like(p.data) for p in self.params]

    def zero_grad(self):
        """Forget all gradients."""
        for p in self.params:
            p.grad = None

    def step(self):
        """Move every parameter that has a gradient."""
        for p, v in zip(self.params, self.v):
            if p.grad is not None:
                v *= self.alpha
                v += (1.0 - self.alpha) * p.grad * p.grad
                p.data -= self.lr * p.grad / (v.sqrt() + self.eps)
