"""The examples and exercises, run as a reader would, with quick settings."""

import importlib.util
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import minigrad

ROOT = Path(minigrad.__file__).resolve().parent


def number(pattern, text):
    """Return the number that the pattern's one group finds in the text."""
    found = re.search(pattern, text)
    assert found, f"{pattern!r} not in:\n{text}"
    return float(found.group(1))


def start_example(name, *options, folder=ROOT, **keywords):
    return subprocess.Popen(
        [sys.executable, "-m", f"examples.{name}", *map(str, options)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"},
        stdin=keywords.pop("stdin", subprocess.DEVNULL),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **keywords,
    )


def run_example(name, *options, code=0, folder=ROOT):
    """Return what the example printed, on either stream; it must end with `code`."""
    process = start_example(name, *options, folder=folder)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, out + err
    assert "Traceback" not in err
    assert "\r" not in out and "\x1b" not in out  # no bar, no escape codes: no terminal
    return out + err


def test_batches_cut_arrays_and_lists_alike():
    from examples.common import batches

    minigrad.manual_seed(3)
    x = minigrad.NDArray(range(10), dtype="int64")
    names = list("abcdefghij")
    pieces = list(batches(x, names, size=4))
    assert [len(a) for a, _ in pieces] == [4, 4, 2]
    pairs = [(i, c) for a, b in pieces for i, c in zip(a.tolist(), b)]
    assert sorted(pairs) == list(enumerate(names)) != pairs
    in_order = [a.tolist() for (a,) in batches(x, size=5, shuffle=False)]
    assert in_order == [list(range(5)), list(range(5, 10))]
    with pytest.raises(ValueError, match="lengths differ"):
        next(batches(x, names[:3], size=2))


def test_progress_is_drawn_on_a_terminal_only():
    import io

    from examples.common import Progress

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for stream, drawn in (Terminal(), True), (io.StringIO(), False):
        with Progress(4, "steps", file=stream) as progress:
            for _ in range(4):
                progress.update(loss=0.5)
        assert ("4/4  loss 0.5000" in stream.getvalue()) is drawn
        assert "\x1b" not in stream.getvalue()


def test_fit_sine_learns_and_draws(tmp_path):
    svg = tmp_path / "sine.svg"
    out = run_example("fit_sine", "--svg", svg)
    assert number(r"mean squared error on \[-3, 3\]: (\S+)", out) < 0.05
    assert len(re.findall(r"^epoch +\d+  loss ", out, re.M)) == 10
    assert "*" * 3 in out  # the plot
    root = ElementTree.parse(svg).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert len(root.findall("{*}polyline")) >= 6
    assert "prefers-color-scheme: dark" in svg.read_text()


@pytest.mark.parametrize("seed", [1, 2])
def test_fit_sine_learns_from_other_seeds(seed):
    out = run_example("fit_sine", "--seed", seed)
    assert number(r"mean squared error on \[-3, 3\]: (\S+)", out) < 0.15


def test_fit_sine_survives_a_rate_at_which_it_explodes(tmp_path):
    svg = tmp_path / "sine.svg"
    options = ["--epochs", 60, "--lr", 50, "--svg", svg]
    assert "nan" in run_example("fit_sine", *options)
    ElementTree.parse(svg)


def test_fit_sine_says_what_it_cannot_write(tmp_path):
    missing = tmp_path / "missing" / "sine.svg"
    out = run_example("fit_sine", "--epochs", 2, "--svg", missing, code=1)
    assert str(missing) in out.splitlines()[-1]


def test_digits_learns_resumes_to_the_bit_and_predicts(tmp_path):
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    out = run_example("digits", "--epochs", 3, "--checkpoint", whole)
    assert number(r"right, (\S+) %", out) > 90
    assert "read as" in out

    run_example("digits", "--epochs", 1, "--checkpoint", parts)
    run_example("digits", "--epochs", 3, "--checkpoint", parts, "--resume")
    assert whole.read_bytes() == parts.read_bytes()
    refused = ["--resume", "--seed", 5, "--checkpoint", parts]
    assert "seed" in run_example("digits", *refused, code=2)

    from examples.common import read_digits
    from examples.digits import picture

    pixels, labels = read_digits()
    drawing, row = tmp_path / "digit.txt", tmp_path / "digit.csv"
    drawing.write_text("\n".join(picture(pixels[0])) + "\n")
    row.write_text(",".join(f"{v:.0f}" for v in pixels[0].flatten().tolist()))
    for file in drawing, row:
        out = run_example("digits", "--predict", file, "--checkpoint", whole)
        assert out.splitlines()[-1] == f"it reads {labels[0].item()}"
        assert out.count(" %") == 10


@pytest.mark.parametrize(
    "text, message",
    [("1,2,3", "64 numbers"), ("?" * 8, "'?'"), ("#" * 20, "1 lines of 20")],
)
def test_digits_says_what_a_drawing_must_be(tmp_path, text, message):
    drawing = tmp_path / "digit.txt"
    drawing.write_text(text)
    assert message in run_example("digits", "--predict", drawing, code=2)


def test_digits_says_that_there_is_no_checkpoint(tmp_path):
    out = run_example("digits", "--resume", folder=tmp_path, code=2)
    assert "no checkpoint digits-mlp.safetensors" in out


def test_digits_trains_a_cnn():
    from examples import digits
    from examples.common import read_digits

    pixels, labels = read_digits()
    minigrad.manual_seed(0)
    model = digits.build("cnn")
    optimizer = minigrad.SGD(model.parameters(), lr=0.05, momentum=0.9)
    few = pixels[:64], labels[:64]
    losses = [digits.train_epoch(model, optimizer, *few, 16, "")[0] for _ in range(4)]
    assert losses[-1] < 0.6 * losses[0]
    assert digits.logits_of(model, pixels[:5]).shape == (5, 10)


def test_names_gpt_sees_only_what_came_before():
    from examples.names_gpt import NamesGPT, encode

    minigrad.manual_seed(0)
    model = NamesGPT(width=8, heads=2)
    signs, targets = encode(["ada", "bob"])
    assert signs.tolist() == [[0, 1, 4, 1], [0, 2, 15, 2]]
    assert targets.tolist() == [[1, 4, 1, 0], [2, 15, 2, 0]]
    before = model(signs).data.copy()
    signs[:, 3] = 26
    after = model(signs).data
    assert (before[:, :3] == after[:, :3]).all()
    assert not (before[:, 3] == after[:, 3]).any()


def test_names_gpt_learns_and_invents_new_names():
    from examples.common import hold_out, read_names

    out = run_example("names_gpt", "--steps", 60, "--count", 7)
    assert number(r"held out: loss (\S+) per letter", out) < 2.8
    listed = out.split(" new names at temperature 1.0:")[1].split()
    minigrad.manual_seed(0)
    ((known, _),) = hold_out(read_names(), n=1000)
    assert len(listed) == len(set(listed)) == 7
    assert not set(listed) & set(known)


def test_to_pytorch_agrees_or_says_what_to_install():
    present = all(map(importlib.util.find_spec, ["torch", "safetensors"]))
    out = run_example("to_pytorch", code=0 if present else 2)
    assert ("the same model" if present else "pip install torch safetensors") in out


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
@pytest.mark.parametrize("name", ["fit_sine", "digits", "names_gpt"])
def test_interrupt_ends_with_one_line(name, tmp_path):
    options = {"fit_sine": ["--epochs", 5000], "names_gpt": ["--steps", 5000]}
    process = start_example(name, *options.get(name, []), folder=tmp_path)
    assert process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert err == "interrupted\n"


def run(*arguments, **environment):
    """Run ``python -m ...`` at the top of the repository; return code and output."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def example(name, *arguments):
    code, out = run(f"examples.{name}", *arguments)
    assert code == 0, out
    return out


# --- The four examples ----------------------------------------------------------------


def test_trace_prints_each_rule_with_its_numbers_and_the_release():
    out = example("trace")
    for line in (
        "mul: dy/dt1 = 1 · x3 = 4",
        "mul: dy/dx3 = 1 · t1 = 5",
        "add: dy/dx1 = 4",
        "x1 is shared, its gradients add up: dy/dx1 = 5 + 2 = 7",
        "the sum is freed",
        "after:  y._ctx is None, the sum is alive: False",
        "retain_graph=True",
        "= [[2], [0]] @ [[-1.5]]",
        "the engine sums (1, 2) to (2,)",
        "e is shared",
        "W1.grad = [[-0.75, 0], [-1.5, 0]]",
        "the loss goes from 0.5625 to 0.05233",
    ):
        assert line in out, line


def test_scalar_first_agrees_and_gains():
    out = example("scalar_first", "--points", "32", "--hidden", "8", "--steps", "8")
    assert "h = (x @ W1 + b1).tanh()" in out
    assert number(r"largest difference: (\S+)", out) < 1e-5
    least = 2.0 if sys.implementation.name == "cpython" else 0.0
    assert number(r"the tensor step is (\S+) times", out) > least


def test_second_order_meets_its_stated_error():
    out = example("second_order", "--steps", "120", "--target", "0.1")
    assert abs(number(r"   6   (\S+) ", out) - 0.6931471805599453) < 1e-14
    assert number(r"\(full H\) @ v\|\s+(\S+)", out) < 1e-10
    assert number(r"difference quotient\|\s+(\S+)", out) < 1e-6
    assert "0.1 rad: reached" in out


def test_debugging_shows_and_mends_all_five():
    out = example("debugging", "--steps", "20")
    assert out.count("Remember: ") == 5
    for line in (
        "0.W.grad is None",
        "0.W.grad has shape (2, 8)",
        "RuntimeError: backward of mul",
        "FloatingPointError: log made -inf",
        "nan",
        "LeakyReLU, bad start",
        "times as fast",
    ):
        assert line in out, line
    assert number(r"whole arrays: .* nodes, (\S+) times", out) > 10
    assert number(r"detach: (\S+) times", out) > 1.5
    own = number(r"by grad\(\) (\S+)", out)
    assert number(r"\.grad has norm (\S+),", out) > 1.2 * own


# --- The exercises --------------------------------------------------------------------

EXERCISES = ROOT / "examples" / "exercises"


def outcomes(**environment):
    """Run the exercises' tests; return {test name: whether it passed}."""
    arguments = ("-q", "-rA", "--tb=no", "-p", "no:cacheprovider")
    _, out = run("pytest", *arguments, str(EXERCISES), **environment)
    lines = re.findall(r"^(PASSED|FAILED|ERROR) \S+::(\S+)", out, re.MULTILINE)
    return {name: outcome == "PASSED" for outcome, name in lines}


def test_every_exercise_has_a_task_a_solution_and_tests():
    names = sorted(path.stem for path in EXERCISES.glob("ex*.py"))
    assert len(names) >= 10
    solutions = (EXERCISES / "solutions").glob("ex*.py")
    assert names == sorted(path.stem for path in solutions)
    tests = (EXERCISES / "test_exercises.py").read_text(encoding="utf-8")
    for name in names:
        assert f'load("{name}")' in tests
        text = (EXERCISES / f"{name}.py").read_text(encoding="utf-8")
        assert re.match(r'"""Exercise \d+ \((easy|middle|hard)\): ', text), name


def test_exercises_are_red_until_solved():
    passed = [name for name, ok in outcomes(MINIGRAD_SOLUTIONS="").items() if ok]
    assert not passed, passed


def test_solutions_are_green():
    solved = outcomes(MINIGRAD_SOLUTIONS="1")
    assert len(solved) > 25
    assert all(solved.values()), [name for name, ok in solved.items() if not ok]
