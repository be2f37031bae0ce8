"""Writes the README's parts about the demo and the figures.

    python bench/readme.py

What stands between the marks is replaced. Demo: it is run; its output is shown, and its pictures go to bench/results;
without a bundled model that is said there. Figures: those that bench/figures.py has put into bench/results.
"""

import io
import os
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

from timing import machine

from softrank_ext import checkpoint
from softrank_ext.__main__ import main as softrank

ROOT = Path(__file__).parents[1]
PICTURES = {
    "sorting-9.png": "Nine numbers from noise to their order: each line is a number's soft rank",
    "tsp-20.png": "A tour of 20 nodes, diffusion step by diffusion step",
    "jigsaw-9.png": "A jigsaw of nine patches being solved",
}
FIGURES = {
    "there_and_back.png": "Soft ranks of nine numbers: forward to noise, and back by the model",
    "accuracy_over_n.png": "Lists sorted wholly right, over the number of items",
    "jigsaw_errors.png": "Jigsaws: images right at each place, and how far patches lie off",
    "accuracy_and_speed.png": "Jigsaws: accuracy and speed by diffusion steps; the one-pass network is untrained",
}


def demo(results: Path) -> str:
    """Text of the section; copies its pictures into `results`."""
    if not checkpoint.bundled_names():
        return "No model is bundled yet."
    start = Path.cwd()
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as printed:
        os.chdir(folder)
        try:
            if softrank(["demo"]) != 0:
                raise SystemExit("the demo failed")
        finally:
            os.chdir(start)
        output = Path(folder) / "outputs" / "demo"
        shown = [name for name in PICTURES if (output / name).exists()]
        for name in shown:
            shutil.copy(output / name, results)
    about = machine()
    lines = ["```text", "$ softrank demo", *printed.getvalue().rstrip().splitlines(), "```", ""]
    lines += [f"That was on {about['cores']} cores ({about['processor']}, torch {about['torch']})."]
    for name in shown:
        lines += ["", f"![{PICTURES[name]}](bench/results/{name})"]
    return "\n".join(lines)


def figures(results: Path) -> str:
    """The section of the figures that are in `results`; nothing if there are none."""
    shown = [(name, text) for name, text in FIGURES.items() if (results / name).exists()]
    if not shown:
        return ""
    lines = ["## What the bundled models do", "", "Measured and drawn by `python bench/figures.py --measure`."]
    for name, text in shown:
        lines += ["", f"![{text}](bench/results/{name})", "", f"{text}."]
    return "\n".join(lines)


def with_section(text: str, title: str, new: str) -> str:
    """The README with the part between the marks of that title replaced."""
    begin, end = f"<!-- {title}: written by bench/readme.py -->\n", f"<!-- end of {title} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"the README must have the marks {begin.strip()} and {end.strip()}")
    before, rest = text.split(begin)
    return f"{before}{begin}{new}{chr(10) if new else ''}{end}{rest.split(end)[1]}"


def main() -> int:
    readme, results = ROOT / "README.md", ROOT / "bench" / "results"
    text = with_section(readme.read_text(), "demo", demo(results))
    readme.write_text(with_section(text, "figures", figures(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
