"""What the examples share: data, mini-batches, a progress bar, small pictures.

    hold_out, batches         shuffle arrays and lists alike, and cut them
    read_digits, read_names   the two files in examples/data
    Progress                  a bar on a terminal, silence anywhere else
    bar, line_plot            pictures made of plain characters
    write_svg                 the same for a browser, in light and in dark
    run                       call main(), end on ^C without a traceback

It needs the standard library and minigrad, nothing else, and it prints no escape codes.
"""

import gzip
import html
import math
import os
import shutil
import sys
from pathlib import Path
from time import perf_counter

from minigrad import NDArray, permutation

DATA = Path(__file__).resolve().parent / "data"


# ------------------------------------------------------------------------- data


def read_digits():
    """Return (pixels, labels): (1797, 1, 8, 8) from 0 to 16, and (1797,) int64."""
    with gzip.open(DATA / "digits.csv.gz", "rt", encoding="ascii") as lines:
        rows = [[int(cell) for cell in line.split(",")] for line in lines]
    pixels = NDArray([row[:-1] for row in rows]).reshape(-1, 1, 8, 8)
    return pixels, NDArray([row[-1] for row in rows], dtype="int64")


def read_names():
    """Return the different given names, in lower case and in alphabetical order."""
    return sorted(set((DATA / "names.txt").read_text(encoding="ascii").split()))


def take(data, order):
    """Return the entries of an array (along axis 0) or of a list at these indices."""
    if isinstance(data, NDArray):
        return data[order]
    return [data[i] for i in order.tolist()]


def hold_out(*data, n):
    """Shuffle arrays and lists alike and cut off n: (rest, n held out) pairs."""
    order = permutation(len(data[0]))
    return [(take(d, order[n:]), take(d, order[:n])) for d in data]


def batches(*data, size, shuffle=True):
    """Yield tuples of `size` entries of each array or list, the last maybe fewer.

    All are cut alike, and shuffled alike by minigrad's generator, so that
    `manual_seed` fixes the order.
    """
    n = len(data[0])
    if any(len(d) != n for d in data):
        raise ValueError(f"batches: lengths differ: {[len(d) for d in data]}")
    if size < 1:
        raise ValueError(f"batches: size must be at least 1, got {size}")
    order = permutation(n) if shuffle else NDArray(range(n), dtype="int64")
    for start in range(0, n, size):
        chosen = order[start : start + size]
        yield tuple(take(d, chosen) for d in data)


# --------------------------------------------------------------------- progress


class Progress:
    """A line that redraws itself: bar, values, rate. Silent if `file` is no terminal.

    with Progress(1000, "steps") as progress:
        for step in range(1000):
            progress.update(1, loss=loss.item())
    print(f"{progress.rate:.0f} steps/s")
    """

    def __init__(self, total, unit, label="", file=None):
        self.total, self.unit, self.label = total, unit, label
        self.file = sys.stdout if file is None else file
        self.visible = self.file.isatty()
        self.done = self.drawn = 0
        self.begun = self.redrawn = perf_counter()

    @property
    def rate(self):
        """Units done each second, so far."""
        return self.done / max(perf_counter() - self.begun, 1e-9)

    def update(self, n=1, **values):
        """Count n more units; redraw at most ten times a second."""
        self.done += n
        now = perf_counter()
        if self.visible and (now - self.redrawn > 0.1 or self.done >= self.total):
            self.redrawn = now
            self._draw(self._text(values))

    def print(self, text):
        """Print a line of its own above the bar."""
        self._draw("")
        print(text, file=self.file, flush=True)

    def _text(self, values):
        parts = [f"[{bar(self.done / max(self.total, 1), 14)}]"]
        parts += [f"{self.done}/{self.total}"]
        parts += [f"{name} {value:.4f}" for name, value in values.items()]
        left = max(self.total - self.done, 0) / max(self.rate, 1e-9)
        parts += [f"{self.rate:,.0f} {self.unit}/s", f"{left:.0f} s left"]
        return "  ".join([self.label] * bool(self.label) + parts)

    def _draw(self, text):
        if self.visible:
            text = text[: shutil.get_terminal_size().columns - 1]
            self.file.write("\r" + text.ljust(self.drawn) + "\r" * (not text))
            self.file.flush()
            self.drawn = len(text)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._draw("")


# ------------------------------------------- pictures made of plain characters


def bar(fraction, width=30):
    """Return a bar of `width` characters, filled up to `fraction` (0 to 1).

    >>> bar(0.25, 8)
    '##......'
    """
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return "#" * filled + "." * (width - filled)


def line_plot(x, curves, low, high, width=72, height=17):
    """Return a plot as text; `curves` maps a mark, one character, to its y values.

    Where curves meet the later one is seen; points outside low..high are left out.
    """
    grid = [[" "] * width for _ in range(height)]
    for mark, y in curves.items():
        for i in range(width):
            value = y[round(i * (len(x) - 1) / (width - 1))]
            if low <= value <= high:
                row = round((high - value) / (high - low) * (height - 1))
                grid[row][i] = mark
    labels = {0: f"{high:5.2f}", height - 1: f"{low:5.2f}"}
    lines = [f"{labels.get(i, ''):>5} |{''.join(r)}" for i, r in enumerate(grid)]
    left, right = f"{x[0]:.4g}", f"{x[-1]:.4g}"
    lines += [" " * 6 + "+" + "-" * width]
    lines += [" " * 7 + left + right.rjust(width - len(left))]
    return "\n".join(line.rstrip() for line in lines)


# ----------------------------------------------------------------- SVG pictures

STYLE = """
  .paper { fill: #ffffff } .ink { fill: #24292f } .axis { stroke: #8c959f }
  .curve { fill: none; stroke-width: 2 } .blue { stroke: #0969da }
  .orange { stroke: #bc4c00; stroke-dasharray: 6 4 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } .ink { fill: #e6edf3 } .axis { stroke: #6e7681 }
    .blue { stroke: #58a6ff } .orange { stroke: #f0883e }
  }
  text { font: 13px system-ui, sans-serif }
"""
WIDTH, HEIGHT, MARGIN = 640, 400, 40


def write_svg(path, title, x, curves, low, high):
    """Write a line plot that reads well on a light and on a dark page.

    `curves` is a list of (label, y, colour, opacity): colour is "blue" or "orange";
    a label that is not empty goes into the legend.
    """
    body = [f'<text class="ink" x="{MARGIN}" y="24">{html.escape(title)}</text>']
    body += _axes(x[0], x[-1], low, high)
    legend = 24
    for label, y, colour, opacity in curves:
        look = f'class="curve {colour}" opacity="{opacity:.2f}"'
        points = _points(x, y, low, high)
        body.append(f'<polyline clip-path="url(#plot)" {look} points="{points}"/>')
        if label:
            body += _legend(html.escape(label), look, legend)
            legend += 18
    box = f'x="{MARGIN}" y="{MARGIN}" width="{WIDTH - 2 * MARGIN}"'
    box += f' height="{HEIGHT - 2 * MARGIN}"'
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        f' width="{WIDTH}" height="{HEIGHT}" role="img">',
        f"<title>{html.escape(title)}</title>",
        f"<style>{STYLE}</style>",
        f'<clipPath id="plot"><rect {box}/></clipPath>',
        f'<rect class="paper" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
    ]
    Path(path).write_text("\n".join([*head, *body, "</svg>\n"]), encoding="utf-8")


def _place(value, low, high, start, end):
    return start + (value - low) / (high - low) * (end - start)


def _points(x, y, low, high):
    """The finite points as an SVG list; far ones are kept near, the clip hides them."""
    span = high - low
    near = [(u, max(low - span, min(high + span, v))) for u, v in zip(x, y) if v == v]
    return " ".join(
        f"{_place(u, x[0], x[-1], MARGIN, WIDTH - MARGIN):.1f},"
        f"{_place(v, low, high, HEIGHT - MARGIN, MARGIN):.1f}"
        for u, v in near
    )


def _axes(left, right, low, high):
    """The frame's left and lower side, with whole numbers marked."""
    bottom, end = HEIGHT - MARGIN, WIDTH - MARGIN
    parts = [f'<path class="axis" fill="none" d="M{MARGIN} {MARGIN}V{bottom}H{end}"/>']
    text = '<text class="ink" text-anchor="{}" x="{:.1f}" y="{:.1f}">{}</text>'
    for n in range(math.ceil(left), math.floor(right) + 1):
        at = _place(n, left, right, MARGIN, end)
        parts.append(text.format("middle", at, bottom + 18, n))
    for n in range(math.ceil(low), math.floor(high) + 1):
        at = _place(n, low, high, bottom, MARGIN)
        parts.append(text.format("end", MARGIN - 8, at + 4, n))
    return parts


def _legend(label, look, y):
    right = WIDTH - MARGIN
    return [
        f'<path {look} d="M{right - 30} {y - 4}H{right}"/>',
        f'<text class="ink" text-anchor="end" x="{right - 38}" y="{y}">{label}</text>',
    ]


# ---------------------------------------------------------------------- running


def at_least(smallest, kind=int):
    """Return a type for argparse: a number of this kind, not below `smallest`."""

    def number(text):
        value = kind(text)
        if not smallest <= value < math.inf:
            raise ValueError
        return value

    number.__name__ = f"{kind.__name__} (at least {smallest})"
    return number


def run(main):
    """Call main() and exit with what it returns; ^C and errors of files end in a line.

    Exit code 130 says "interrupted", as a shell does.
    """
    sys.stdout.reconfigure(line_buffering=True)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader, such as `head`, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
