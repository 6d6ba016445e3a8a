"""Carry a model to PyTorch and back, through one safetensors file.

It teaches what the two frameworks share and where they differ. The same layers compute
the same numbers; only names and one layout differ:

    minigrad         PyTorch         note
    Linear.W         weight          transposed: (in, out) here, (out, in) there
    Conv2d.W         weight          the same layout
    b                bias
    gamma, beta      weight, bias    of the norms
    running_mean …   running_mean …  the buffers of batch norm keep their names

    pip install torch safetensors
    python -m examples.to_pytorch
    python -m examples.to_pytorch --keep FOLDER    # leave the two files there

It prints the names side by side, then the largest difference between the outputs in
either direction. Exit code 0: they agree; 1: they do not; 2: a package is missing.
"""

import argparse
import tempfile
from pathlib import Path

from examples.common import run
from minigrad import (
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    NDArray,
    ReLU,
    Sequential,
    Tensor,
    load,
    manual_seed,
    no_grad,
    randn,
    save,
)

try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    torch, missing = None, error

NAMES = {"W": "weight", "b": "bias", "gamma": "weight", "beta": "bias"}
TOLERANCE = 1e-4


def ours():
    """The model in minigrad: 8x8 images to 10 logits."""
    return Sequential(
        Conv2d(1, 4, 3, padding=1), BatchNorm2d(4), ReLU(), MaxPool2d(2),
        Flatten(), Linear(64, 16), ReLU(), Linear(16, 10),
    )  # fmt: skip


def theirs():
    """The same in PyTorch."""
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10),
    )  # fmt: skip


def renamed(name, shape):
    """Return PyTorch's name of an entry, and whether it is to be transposed."""
    path, _, last = name.rpartition(".")
    return f"{path}.{NAMES.get(last, last)}", last == "W" and len(shape) == 2


def to_torch(state):
    """Turn the NDArrays of a state dict into what load_state_dict of PyTorch takes."""
    result = {}
    for name, array in state.items():
        new, turned = renamed(name, array.shape)
        result[new] = array.T.contiguous() if turned else array
    return result


def from_torch(state, wanted):
    """Find the entries of `wanted`, a state dict of minigrad, in one of PyTorch."""
    result = {}
    for name, array in wanted.items():
        new, turned = renamed(name, array.shape)
        result[name] = state[new].T if turned else state[new]
    return result


def show_names(model):
    print(f"{'minigrad':16} {'shape':14} {'PyTorch':16} shape")
    for name, array in model.state_dict().items():
        new, turned = renamed(name, array.shape)
        shape = array.T.shape if turned else array.shape
        note = "   transposed" if turned else ""
        print(f"{name:16} {array.shape!s:14} {new:16} {shape!s:14}{note}".rstrip())


def difference(model, module, x):
    """Return the largest difference between the outputs of the two for the same x."""
    model.eval()
    module.eval()
    with no_grad(), torch.no_grad():
        a = model(Tensor(x)).data
        b = module(torch.tensor(x.tolist()))
    return (a - NDArray(b.tolist())).abs().max().item()


def there(folder, x):
    """A model of minigrad, opened in PyTorch; return the largest difference."""
    model, module = ours(), theirs()
    model(Tensor(x))  # once in train mode, so that the running statistics move
    save(to_torch(model.state_dict()), folder / "from_minigrad.safetensors")
    state = load_file(folder / "from_minigrad.safetensors")
    # PyTorch counts batches besides: 1.num_batches_tracked is not in the file.
    absent, unexpected = module.load_state_dict(state, strict=False)
    if unexpected or any("num_batches" not in name for name in absent):
        raise ValueError(f"names that do not fit: {absent} {unexpected}")
    return difference(model, module, x)


def back(folder, x):
    """A model of PyTorch, opened in minigrad; return the largest difference."""
    model, module = ours(), theirs()
    module(torch.tensor(x.tolist()))
    save_file(module.state_dict(), folder / "from_pytorch.safetensors")
    state = load(folder / "from_pytorch.safetensors")
    model.load_state_dict(from_torch(state, model.state_dict()))
    return difference(model, module, x)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m examples.to_pytorch",
        description="Carry a model to PyTorch and back through a safetensors file.",
    )
    parser.add_argument("--keep", metavar="FOLDER", help="leave the files there")
    args = parser.parse_args()
    if torch is None:
        print(f"This example needs PyTorch and safetensors ({missing}).")
        print("Install both, then run it again: pip install torch safetensors")
        return 2
    manual_seed(0)
    torch.manual_seed(0)
    show_names(ours())
    x = randn((8, 1, 8, 8))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(args.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        gaps = {"minigrad to PyTorch": there(folder, x)}
        gaps["PyTorch to minigrad"] = back(folder, x)
    print()
    for way, gap in gaps.items():
        print(f"{way}: outputs differ by at most {gap:.1e}")
    agree = all(gap <= TOLERANCE for gap in gaps.values())
    print("the same model" if agree else f"more than {TOLERANCE}: not the same model")
    return 0 if agree else 1


if __name__ == "__main__":
    run(main)
