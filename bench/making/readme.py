"""Writes the marked parts of README.md and docs/*.md: the demo's output, figures, and tables of what was measured.

    python bench/making/readme.py                    all parts of all pages
    python bench/making/readme.py runtime speed      these parts only

A page asks for a part with two lines, and what stands between them is replaced:

    <!-- speed: written by bench/making/readme.py -->
    <!-- end of speed -->

Parts: demo (it is run, its output shown, and its pictures go to bench/results); pictures (of the demo) and figures (of
bench/making/figures.py), as far as they are in bench/results; bundled (metrics on the cards of the bundled models) and
tables (what bench/tables.py has measured), beside the paper's numbers; runtime, speed, decode, ops, constraints, law,
heads (what the benches have printed into bench/results); roofline (an analysis, by bench/roofline.py); attack (what the
jobs of .ci/attack have printed into bench/results/attack.jsonl) and certificates (of bench/certificates.py); schedules,
costs and tours (of bench/schedules.py, bench/cost.py and bench/tours.py); ranking (what bench/ranking.py has printed);
improve, seconds and parts (of bench/improve.py: on equal draws, on equal seconds, what is drawn again)
and partial (of bench/partial.py). Links in a page are relative to it.
"""

import argparse
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1]))  # the benches, when this script is run

import result_tables
import roofline
import search_tables
from timing import machine

from softrank_ext import pretrained

ROOT = Path(__file__).parents[2]
RESULTS, WEIGHTS = ROOT / "bench" / "results", ROOT / "softrank_ext" / "weights"
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
_BEGIN = re.compile(r"^<!-- (?P<part>[a-z]+): written by bench/\S*readme\.py -->\n", re.MULTILINE)


def parts_of(results: Path = RESULTS, weights: Path = WEIGHTS) -> dict[str, Callable[[], str]]:
    """By name, what makes the text of a part; nothing is run or read before it is called."""

    def measured(name: str, make: Callable[[result_tables.Rows], str]) -> Callable[[], str]:
        return lambda: make(result_tables.rows_of(results, name))

    return {
        "demo": lambda: run_demo(results),
        "pictures": lambda: links(PICTURES, results),
        "figures": lambda: links(FIGURES, results),
        "bundled": lambda: result_tables.bundled_table(weights),
        "tables": lambda: result_tables.measured_tables(results),
        "runtime": measured("runtime", result_tables.runtime_table),
        "speed": measured("runtime", result_tables.speed_table),
        "decode": measured("decode", result_tables.decode_table),
        "ops": measured("ops", result_tables.ops_table),
        "roofline": roofline.tables,
        "constraints": measured("constraints", result_tables.constraints_table),
        "heads": lambda: result_tables.heads_table(results),
        "law": lambda: result_tables.law_table(results),
        "attack": lambda: result_tables.attack_table(results),
        "schedules": lambda: search_tables.schedules_table(results),
        "costs": lambda: search_tables.costs_tables(results),
        "certificates": lambda: result_tables.certificates_table(results),
        "ranking": lambda: printed(
            results, ("ranking_ltr.txt", "ranking_lists.txt", "ranking_speed.txt", "ranking_fits.txt")
        ),
        "tours": lambda: search_tables.tours_table(results),
        "improve": lambda: search_tables.improve_table(results),
        "seconds": lambda: search_tables.improve_seconds_table(results),
        "parts": lambda: search_tables.improve_parts_table(results),
        "partial": lambda: search_tables.partial_table(results),
    }


def printed(results: Path, names: Sequence[str]) -> str:
    """What a bench has printed into these files, as a block of text."""
    texts = [(results / name).read_text().strip() for name in names if (results / name).exists()]
    return "```text\n" + "\n\n".join(texts) + "\n```"


def run_demo(results: Path) -> str:
    """The demo's output as a block of text; its pictures are copied into `results`."""
    if not pretrained.bundled_names():
        return "No model is bundled yet."
    from softrank_ext.cli.main import main as softrank

    start = Path.cwd()
    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()) as printed:
        os.chdir(folder)
        try:
            if softrank(["demo"]) != 0:
                raise SystemExit("the demo failed")
        finally:
            os.chdir(start)
        output = Path(folder) / "outputs" / "demo"
        for name in PICTURES:
            if (output / name).exists():
                shutil.copy(output / name, results)
    about = machine()
    lines = ["```text", "$ softrank demo", *printed.getvalue().rstrip().splitlines(), "```", ""]
    lines += [f"That was on {about['cores']} cores ({about['processor']}, torch {about['torch']})."]
    return "\n".join(lines)


def links(texts: Mapping[str, str], results: Path) -> str:
    """Those of the pictures that are in `results`, with their texts."""
    shown = {name: text for name, text in texts.items() if (results / name).exists()}
    return "\n\n".join(f"![{text}](bench/results/{name})\n\n{text}." for name, text in shown.items())


def filled(text: str, parts: Mapping[str, Callable[[], str]], page: Path) -> str:
    """The text of a page with its marked parts replaced by those given; others stay as they are.

    Raises SystemExit for a mark that has no end.
    """
    done, at = "", 0
    for mark in _BEGIN.finditer(text):
        end = f"<!-- end of {mark['part']} -->\n"
        close = text.find(end, mark.end())
        if close < 0 or _BEGIN.search(text, mark.end(), close):
            raise SystemExit(f"{page}: the mark of {mark['part']} has no end: {end.strip()}")
        new = text[mark.end() : close]
        if mark["part"] in parts:
            made = parts[mark["part"]]().replace("](bench/", f"]({os.path.relpath(ROOT / 'bench', page.parent)}/")
            new = f"{made}\n" if made else ""
        done += text[at : mark.end()] + new
        at = close
    return done + text[at:]


def pages(root: Path = ROOT) -> list[Path]:
    """The pages that may have marked parts."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def unknown_parts(text: str) -> set[str]:
    """Parts that a page asks for and this script does not know."""
    return {mark["part"] for mark in _BEGIN.finditer(text)} - parts_of().keys()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the marked parts of README.md and docs/*.md.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts_of())} (default: all)")
    args = parser.parse_args(arguments)
    known = parts_of()
    if unknown := set(args.parts) - known.keys():
        parser.error(f"parts must be of {', '.join(known)}, got {', '.join(sorted(unknown))}")
    chosen = {name: make for name, make in known.items() if name in (args.parts or known)}
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if wrong := unknown_parts(text):
            raise SystemExit(f"{page}: no such part: {', '.join(sorted(wrong))}; there are {', '.join(known)}")
        new = filled(text, chosen, page)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
