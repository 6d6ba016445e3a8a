"""Solution of exercise 7: gradient clipping."""

def clip(params, max_norm):
    """Scale the gradients of params to a common norm of at most max_norm."""
    grads = [p.grad for p in params if p.grad is not None]
    norm = sum((g * g).sum().item() for g in grads) ** 0.5
    if norm > max_norm:
        for g in grads:
            g *= max_norm / norm
    return norm
