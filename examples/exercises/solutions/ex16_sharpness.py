"""Solution of exercise 16: how sharp is the valley?"""

from minigrad import grad, randn


def hessian_vector(loss, w, v):
    """Return H v as an NDArray; loss is a Tensor made from w, v an NDArray."""
    (g,) = grad(loss, [w], create_graph=True)
    return grad((g * v).sum(), [w])[0].data


def sharpness(loss_of, w, steps=50):
    """Return the Hessian's eigenvalue of largest size, a Python number."""
    v = randn(w.shape).astype(w.dtype)
    for _ in range(steps):
        v /= float((v * v).sum().sqrt())
        Hv = hessian_vector(loss_of(w), w, v)
        value, v = (v * Hv).sum().item(), Hv
    return value
