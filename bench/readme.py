"""Writes the README's part about the demo: runs it, and puts its output and pictures there.

    python bench/readme.py

What stands between the README's two `demo` marks is replaced; pictures go to bench/results. Without a bundled model it
says so there.
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
BEGIN, END = "<!-- demo: written by bench/readme.py -->", "<!-- end of demo -->"
PICTURES = {
    "sorting-9.png": "Nine numbers from noise to their order: each line is a number's soft rank",
    "tsp-20.png": "A tour of 20 nodes, diffusion step by diffusion step",
    "jigsaw-9.png": "A jigsaw of nine patches being solved",
}


def section(results: Path) -> str:
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


def with_section(text: str, new: str) -> str:
    """The README with the part between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"the README must have the marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def main() -> int:
    readme = ROOT / "README.md"
    readme.write_text(with_section(readme.read_text(), section(ROOT / "bench" / "results")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
