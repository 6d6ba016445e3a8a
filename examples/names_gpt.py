"""Invent given names: a transformer of one layer that writes letter by letter.

It teaches the parts of a GPT, each in a few lines: letters and places as vectors,
causal attention with several heads, layer norm, a small network for each letter,
residual sums, Adam with a learning rate that falls, and drawing from the predicted
chances.

    python -m examples.names_gpt                      # about a minute
    python -m examples.names_gpt --temperature 0.6    # safer names; 1.5: wilder ones
    python -m examples.names_gpt --steps 100          # a quick look

It prints the training loss ten times on the way, then the loss per letter on 1,000
names kept back from training, then names it invented, none of which it was trained on.
For comparison: all 27 signs alike cost ln 27 = 3.30, counts of letter pairs about 2.46.

In the comments b is the number of names, t of letters in each, c the width of a vector.
"""

import argparse
from itertools import count

from examples.common import Progress, at_least, batches, hold_out, read_names, run
from minigrad import (
    Adam,
    Embedding,
    LayerNorm,
    Linear,
    Module,
    NDArray,
    ReLU,
    Sequential,
    arange,
    concatenate,
    cross_entropy,
    manual_seed,
    no_grad,
    uniform,
    where,
    zeros,
)

SIGNS = ".abcdefghijklmnopqrstuvwxyz"  # "." stands before and after each name
BLOCK = 16  # the longest name has 15 letters, and its end counts
IGNORED = -100  # the target where a short name was padded


# ------------------------------------------------------------------------ model


class Attention(Module):
    """Causal attention: each letter gathers what it needs from those up to itself."""

    def __init__(self, width, heads):
        self.heads = heads
        self.qkv = Linear(width, 3 * width, init="xavier")
        self.out = Linear(width, width, init="xavier")

    def forward(self, x):
        b, t, c = x.shape
        parts = self.qkv(x).reshape(b, t, 3, self.heads, c // self.heads)
        q, k, v = parts.transpose(2, 0, 3, 1, 4)  # each (b, heads, t, c / heads)
        scores = q @ k.swapaxes(-1, -2) * (c // self.heads) ** -0.5  # (b, heads, t, t)
        past = arange(t) <= arange(t).unsqueeze(1)  # row i sees the columns up to i
        weights = where(past, scores, float("-inf")).softmax(axis=-1)
        gathered = (weights @ v).transpose(0, 2, 1, 3).reshape(b, t, c)
        return self.out(gathered)


class NamesGPT(Module):
    """From signs (b, t) to the logits of each next sign (b, t, 27)."""

    def __init__(self, width, heads):
        self.letter = Embedding(len(SIGNS), width)
        self.place = Embedding(BLOCK, width)
        self.norm1 = LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = LayerNorm(width)
        self.mlp = Sequential(
            Linear(width, 2 * width), ReLU(), Linear(2 * width, width, init="xavier")
        )
        self.norm3 = LayerNorm(width)
        self.head = Linear(width, len(SIGNS), init=0.02)

    def forward(self, signs):
        places = NDArray(range(signs.shape[1]), dtype="int64")
        x = self.letter(signs) + self.place(places)
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm3(x))


# --------------------------------------------------------------------- training


def encode(names):
    """Return inputs and targets, (b, t) each, padded to the longest of these names.

    "ada" gives the inputs . a d a and the targets a d a . (each the sign that follows).
    """
    t = max(map(len, names)) + 1
    rows = [[SIGNS.index(letter) for letter in name] for name in names]
    inputs = [[0] + row + [0] * (t - 1 - len(row)) for row in rows]
    targets = [row + [0] + [IGNORED] * (t - 1 - len(row)) for row in rows]
    return NDArray(inputs, dtype="int64"), NDArray(targets, dtype="int64")


def loss_of(model, names, reduction="mean"):
    inputs, targets = encode(names)
    logits = model(inputs).reshape(-1, len(SIGNS))
    return cross_entropy(
        logits, targets.flatten(), reduction=reduction, ignore_index=IGNORED
    )


def train(model, names, args):
    """Take args.steps steps of Adam, the learning rate rising shortly, then falling."""
    optimizer = Adam(model.parameters(), betas=(0.9, 0.99))
    endless = (b for _ in count() for b in batches(names, size=args.batch_size))
    recent = []
    with Progress(args.steps, "steps") as progress:
        for step, (batch,) in zip(range(args.steps), endless):
            optimizer.lr = args.lr * min((step + 1) / 50, 1.0 - step / args.steps)
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recent.append(loss.item())
            progress.update(loss=sum(recent) / len(recent))
            if (step + 1) % max(args.steps // 10, 1) == 0:
                mean = sum(recent) / len(recent)
                rate = f"{progress.rate:,.1f} steps/s"
                progress.print(f"step {step + 1:5}  loss {mean:.4f}  {rate}")
                recent.clear()


@no_grad()
def measure(model, names):
    """Return the mean loss per letter, the end of each name counted as one."""
    chunks = batches(names, size=100, shuffle=False)
    total = sum(loss_of(model, chunk, "sum").item() for (chunk,) in chunks)
    return total / sum(len(name) + 1 for name in names)


# -------------------------------------------------------------------- inventing


@no_grad()
def invent(model, n, temperature):
    """Draw n names at once, letter by letter; those that do not end are left out.

    The largest of logits / temperature + Gumbel noise is a draw from their softmax.
    """
    signs = zeros((n, 1), dtype="int64")
    for _ in range(BLOCK):
        logits = model(signs)[:, -1].data / temperature
        noise = -(-uniform(0.0, 1.0, logits.shape).log()).log()
        following = (logits + noise).argmax(axis=1).unsqueeze(1)
        signs = concatenate([signs, following], axis=1)
    texts = ["".join(SIGNS[i] for i in row[1:]) for row in signs.tolist()]
    return [text.partition(".")[0] for text in texts if "." in text]


def new_names(model, known, args):
    """Return up to args.count different names that are not among the known ones."""
    found = {}  # a dict keeps the order
    for _ in range(20):
        drawn = invent(model, args.count, args.temperature)
        found.update((name, None) for name in drawn if name and name not in known)
        if len(found) >= args.count:
            break
    return list(found)[: args.count]


def options():
    parser = argparse.ArgumentParser(
        prog="python -m examples.names_gpt",
        description="Train a small transformer on given names, then invent some.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--steps", type=at_least(1), default=1500, help="training steps")
    add("--batch-size", type=at_least(1), default=8, help="names in each step")
    add("--lr", type=at_least(0.0, float), default=0.02, help="highest learning rate")
    add("--temperature", type=at_least(0.01, float), default=1.0, help="of the draw")
    add("--count", type=at_least(1), default=20, help="names to invent")
    add("--seed", type=int, default=0)
    return parser.parse_args()


def main():
    args = options()
    manual_seed(args.seed)
    ((names, kept_back),) = hold_out(read_names(), n=1000)
    model = NamesGPT(width=16, heads=4)
    size = sum(p.size for p in model.parameters())
    print(f"{len(names)} names to train on, {size} parameters")
    train(model, names, args)
    print(f"\nheld out: loss {measure(model, kept_back):.4f} per letter")
    fresh = new_names(model, set(names), args)
    print(f"\n{len(fresh)} new names at temperature {args.temperature}:")
    for start in range(0, len(fresh), 5):
        row = "".join(f"  {name:15}" for name in fresh[start : start + 5])
        print(row.rstrip())


if __name__ == "__main__":
    run(main)
