"""Writes the README's parts about the demo, the figures, the paper's tables and the speed of whole calls.

    python bench/readme.py

What stands between the marks is replaced. Demo: it is run; its output is shown, and its pictures go to bench/results;
without a bundled model that is said there. Figures: those that bench/figures.py has put into bench/results. Tables: the
metrics on the cards of the bundled models (bench/bundle.py) and what bench/tables.py has measured, beside the paper's.
Runtime and speed: the rows of bench/results/runtime.txt, which is the output of bench/runtime.py.
"""

import io
import json
import os
import re
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory

import tables
from timing import machine

from softrank_ext import pretrained
from softrank_ext.cli.main import main as softrank

ROOT = Path(__file__).parents[1]
WEIGHTS = ROOT / "softrank_ext" / "weights"
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
# Lines about bundled models: what it is, the model, what its evaluation's command holds, the column of the card, and
# where the paper's number is: table, row, size, metric.
_POINTER = "Soft-Rank, pointer-cGPL"
BUNDLED = (
    *(
        (f"{n} four-digit images sorted, all right", "sorting", f"--task.num-items {n} ", "accuracy",
         ("sorting", _POINTER, n, "accuracy"))
        for n in (9, 15, 32)
    ),
    *(
        (f"jigsaw of {grid} x {grid}, all right", f"jigsaw-{grid}x{grid}", f"--task.grid {grid} ", "accuracy",
         ("jigsaw", _POINTER, grid, "accuracy"))
        for grid in (3, 4)
    ),
    *(
        (f"tours of {nodes} nodes, longer than the optimum by, {how}", "tsp", rf"tsp{nodes}_.*{option}", column,
         ("tsp", _POINTER, nodes, "gap") if column == "gap" and not option.startswith("--best") else None)
        for nodes in (20, 50)
        for how, option, column in (
            ("greedy", "counterclockwise --count [0-9]+ --batch-size [0-9]+ --output", "gap"),
            ("best of 16 draws", "--best-of 16", "gap"),
            ("best of 16 draws with 2-opt", "--best-of 16", "gap after 2opt"),
        )
    ),
)  # fmt: skip
# What is shown of a measured table beside the methods' names.
SHOWN = dict.fromkeys(tables.TABLES, ("accuracy", "kendall_tau")) | {"tsp": ("gap", "gap_after_2opt")}


def demo(results: Path) -> str:
    """Text of the section; copies its pictures into `results`."""
    if not pretrained.bundled_names():
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


def evaluations_of(card: str) -> list[tuple[str, dict[str, str]]]:
    """The evaluations on a model's card: command, and the cells of its first line by column."""
    found = re.findall(r"```bash\n(softrank evaluate .*)\n```\n\n\|(.*)\|\n\|.*\|\n\|(.*)\|", card)
    return [
        (command, dict(zip(map(str.strip, header.split("|")), map(str.strip, cells.split("|")), strict=True)))
        for command, header, cells in found
    ]


def papers_number(table: str, row: str, size: int, metric: str) -> float:
    """A number of the paper's, as bench/tables.py has it."""
    return next(own for own in tables.TABLES[table].rows if own.name == row).paper[""][size][metric]


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def bundled_lines(weights: Path) -> list[str]:
    """The table of the bundled models beside the paper."""
    lines = ["| | bundled | paper |", "|---|---:|---:|"]
    for what, name, command_part, column, place in BUNDLED:
        card = weights / name / "README.md"
        for command, cells in evaluations_of(card.read_text()) if card.exists() else ():
            if re.search(command_part, command):
                mean, error = map(float, cells[column].split(" ± "))
                paper = "-" if place is None else percent(papers_number(*place))
                lines.append(f"| {what} | {percent(mean)} ± {100 * error:.2f} | {paper} |")
    return lines


def measured_lines(record: dict) -> list[str]:
    """A table of bench/tables.py, with the metrics in SHOWN."""
    name, results = record["table"], record["results"]
    table, shown = tables.TABLES[name], SHOWN[name]
    settings = results[0]["settings"]
    has_paper = any(evaluation["paper"] for result in results for evaluation in result["evaluations"])
    header = [table.size_name, "method", *(metric.replace("_", " ") for metric in shown)]
    header += [f"paper's {shown[0].replace('_', ' ')}"] if has_paper else []
    lines = [
        f"**{name}**, {settings['budget']:g} minutes a row on {settings['threads']} thread"
        f"{'' if settings['threads'] == 1 else 's'}"
        f"{'' if settings['reader'] is None else ', reader of ' + settings['reader']}"
        f" ([whole table](bench/results/table_{name}.md)):",
        "",
        "| " + " | ".join([*header, "updates"]) + " |",
        "|---|---|" + "---:|" * (len(header) - 1),
    ]
    for result in results:
        for evaluation in result["evaluations"]:
            cells = [str(result["size"]), ", ".join(filter(None, (result["name"], evaluation["line"])))]
            for metric in shown:
                score = evaluation["metrics"][metric]
                cells.append(f"{score['mean']:.3f} ± {score['standard_error']:.3f}")
            if has_paper:
                cells.append(tables.papers_cell(evaluation, shown[0], result["size"], digits=3))
            lines.append("| " + " | ".join([*cells, str(result["updates"])]) + " |")
    return lines


def beside_the_paper(results: Path, weights: Path) -> str:
    """The section with the bundled models' and the measured numbers beside the paper's."""
    lines = [
        "## Beside the paper", "",
        "Bundled models, five diffusion steps; commands and instances are on their cards "
        "(`softrank_ext/weights/*/README.md`). The paper's are of its pointer-cGPL, trained on one H100 with about ten "
        "times our parameters for tours; its numbers do not take equal numbers for interchangeable, nor do these.", "",
        *bundled_lines(weights),
    ]  # fmt: skip
    for path in sorted(results.glob("table_*.json")):
        lines += ["", *measured_lines(json.loads(path.read_text()))]
    return "\n".join(lines)


def runtime_rows(results: Path) -> list[dict]:
    """What bench/runtime.py measured: the JSON line that its output ends with."""
    return json.loads((results / "runtime.txt").read_text().strip().splitlines()[-1])["rows"]


def runtime_table(rows: list[dict]) -> str:
    """Samples per second by grid, and the time over the one-pass baseline's, here and in the paper."""
    by_method: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        if row["part"] == "table":
            by_method.setdefault((row["method"], row["mode"]), []).append(row)
    grids = [f"{row['grid']}x{row['grid']}" for row in next(iter(by_method.values()))]
    lines = [
        f"| samples per second | {' | '.join(grids)} | time over the baseline: {', '.join(grids)} "
        "| the paper's (H100) |",
        "|---|" + "---|" * (len(grids) + 2),
    ]
    for name, own in by_method.items():
        speeds = [f"{row['samples_per_second']:.3g}" for row in own]
        ratios = [f"{row['ratio']:.2f}" for row in own]
        papers = [f"{over:.2f}" for row in own if (over := row["paper_time_over_baseline"]) is not None]
        lines.append("| " + " | ".join((", ".join(name), *speeds, ", ".join(ratios), ", ".join(papers) or "-")) + " |")
    return "\n".join(lines)


def speed_table(rows: list[dict]) -> str:
    """Whole calls against the eager cached loop, by N and batch, greedy and sampled."""
    by_size: dict[str, list[dict]] = {}
    for row in rows:
        if row["part"] == "speed":
            size = re.match(r"N (\d+), batch (\d+)", row["name"])
            assert size is not None
            by_size.setdefault(", ".join(size.groups()), []).append(row)
    lines = [
        "| N, batch | greedy: ours, eager | ratio | sampled: ours, eager | ratio | wanted | at matmul speed | GFLOPS | "
        "places accepted |",
        "|---" * 9 + "|",
    ]
    for size, own in by_size.items():
        cells = [size]
        for row in own:
            cells += [f"{milliseconds(row['ours_ms'])}, {milliseconds(row['eager_ms'])} ms", f"{row['ratio']:.1f}x"]
        cells.append(f"{own[0]['required']:.0f}x")
        for name, form in (("ratio_at_peak", "{:.1f}x"), ("gflops", "{:.0f}"), ("accepted", "{:.0%}")):
            cells.append(", ".join(form.format(row[name]) for row in own))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def milliseconds(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


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
    text = with_section(text, "figures", figures(results))
    text = with_section(text, "tables", beside_the_paper(results, WEIGHTS))
    text = with_section(text, "runtime", runtime_table(runtime_rows(results)))
    readme.write_text(with_section(text, "speed", speed_table(runtime_rows(results))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
