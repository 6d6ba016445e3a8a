"""Exercise 10 (middle): write an optimiser, RMSProp.

For each parameter keep a running mean of the squared gradient, v, from zeros:

    v = alpha v + (1 - alpha) g²        p = p - lr g / (sqrt(v) + eps)

so that every weight moves by about lr, however large its gradients are. Write into
``p.data`` in place, skip parameters whose ``.grad`` is None, and let ``zero_grad`` set
``.grad`` to None. ``lr`` must be an attribute, so that a schedule can set it.

    python -m pytest examples/exercises -k ex10
"""

class RMSProp:
    def __init__(self, params, lr=0.01, alpha=0.99, eps=1e-8):
        self.params, self.lr = list(params), lr
        raise NotImplementedError("your turn: one array of zeros for each parameter")

    def zero_grad(self):
        """Forget all gradients."""
        raise NotImplementedError("your turn")

    def step(self):
        """Move every parameter that has a gradient."""
        raise NotImplementedError("your turn: the two formulas, in place")
