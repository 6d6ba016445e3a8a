"""Fit a sine: the smallest complete training, with a plot of what was learned.

It teaches the loop that every training is made of: draw a batch, predict, measure the
loss, backward, step, clear the gradients. The network is 1 -> hidden -> 1 with a ReLU,
so the fit is a chain of straight pieces; the plots show how they bend into place.

    python -m examples.fit_sine
    python -m examples.fit_sine --hidden 4 --epochs 300
    python -m examples.fit_sine --svg sine.svg

It prints ten lines of progress (epoch, loss, epochs each second; a bar too, where the
output is a terminal), a plot of fit and sine, and the mean squared error on a fixed
grid. The SVG picture shows the fit during training as well, from faint to strong.
"""

import argparse

from examples.common import Progress, at_least, line_plot, run, write_svg
from minigrad import (
    SGD,
    Linear,
    ReLU,
    Sequential,
    Tensor,
    linspace,
    manual_seed,
    mse_loss,
    no_grad,
    uniform,
)

GRID = linspace(-3.0, 3.0, 121).unsqueeze(1)  # where the fit is measured and drawn


def options():
    parser = argparse.ArgumentParser(
        prog="python -m examples.fit_sine",
        description="Fit y = sin(x) on [-3, 3] with a small network.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--epochs", type=at_least(1), default=1000)
    parser.add_argument("--hidden", type=at_least(1), default=16, help="hidden units")
    parser.add_argument("--lr", type=at_least(0.0, float), default=0.01)
    parser.add_argument("--momentum", type=at_least(0.0, float), default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--svg", metavar="PATH", help="write a picture of the fit")
    return parser.parse_args()


def train(model, args):
    """Train the model; return what it drew on the grid, from early to late."""
    optimizer = SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    moments = {round(args.epochs ** (k / 6)) for k in range(7)}
    history = [predict(model)]
    with Progress(args.epochs, "epochs") as progress:
        for epoch in range(1, args.epochs + 1):
            x = Tensor(uniform(-3, 3, (32, 1)))
            loss = mse_loss(model(x), x.sin())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            progress.update(loss=loss.item())
            if epoch % max(args.epochs // 10, 1) == 0:
                rate = f"{progress.rate:,.0f} epochs/s"
                progress.print(f"epoch {epoch:5}  loss {loss.data:.4f}  {rate}")
            if epoch in moments:
                history.append(predict(model))
    return history


@no_grad()
def predict(model):
    return model(Tensor(GRID)).data.flatten().tolist()


def draw(path, history):
    """Write the picture: early fits faint, the last one strong, the sine dashed."""
    x, sine = GRID.flatten().tolist(), GRID.sin().flatten().tolist()
    n = len(history)
    curves = [("", fit, "blue", 0.1 + 0.3 * i / n) for i, fit in enumerate(history)]
    curves[-1] = ("fit", history[-1], "blue", 1.0)
    curves.append(("sine", sine, "orange", 1.0))
    write_svg(path, "A sine, fitted", x, curves, low=-1.5, high=1.5)


def main():
    args = options()
    manual_seed(args.seed)
    model = Sequential(Linear(1, args.hidden), ReLU(), Linear(args.hidden, 1))
    history = train(model, args)

    x, sine = GRID.flatten().tolist(), GRID.sin().flatten().tolist()
    print("\nsine: .   fit: *\n")
    print(line_plot(x, {".": sine, "*": history[-1]}, low=-1.5, high=1.5))
    error = sum((a - b) ** 2 for a, b in zip(history[-1], sine)) / len(sine)
    print(f"\nmean squared error on [-3, 3]: {error:.4f}")
    if args.svg:
        draw(args.svg, history)
        print(f"picture: {args.svg}")


if __name__ == "__main__":
    run(main)
