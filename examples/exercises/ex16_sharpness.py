"""Exercise 16 (hard): how sharp is the valley?

Gradient descent with learning rate lr is stable in a valley only if lr < 2 / s, where
s is the largest eigenvalue of the Hessian H. H of n weights has n² entries, but s needs
only products Hv: start from any v, and again and again replace v by Hv / |Hv|; then
v·Hv tends to the eigenvalue of largest size. Hv is the gradient of the number g·v,
where g is the gradient, with a graph. Do not build H.

``sharpness(loss_of, w)``: loss_of takes the Tensor w, a vector, and returns the loss.

    python -m pytest examples/exercises -k ex16
"""

def hessian_vector(loss, w, v):
    """Return H v as an NDArray; loss is a Tensor made from w, v an NDArray."""
    raise NotImplementedError("your turn: the gradient of g·v")


def sharpness(loss_of, w, steps=50):
    """Return the Hessian's eigenvalue of largest size, a Python number."""
    raise NotImplementedError("your turn: power iteration")
