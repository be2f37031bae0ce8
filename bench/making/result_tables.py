"""Markdown tables of what was measured: cards of the bundled models, and table_*.json and *.txt in bench/results.

A .txt file there is the output of the bench of that name; its last line is the JSON that is read here.
"""

import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # the benches, when a script of this folder is run

from paper import TABLES
from report import Row, markdown_table
from table_text import papers_cell

Rows = Sequence[Row]

_POINTER = "Soft-Rank, pointer-cGPL"


class PaperCell(NamedTuple):
    """Where a number of the paper is: table, row, size, metric."""

    table: str
    row: str
    size: int
    metric: str


class BundledLine(NamedTuple):
    """A line about a bundled model: an evaluation on its card, and the paper's number.

    command: a pattern of the evaluation's command. column: of the card's table.
    """

    what: str
    model: str
    command: str
    column: str
    paper: PaperCell | None


def _tour_lines() -> Iterable[BundledLine]:
    greedy = "--count [0-9]+ --batch-size [0-9]+ --output"
    for nodes in (20, 50, 100):
        for how, option, column, paper in (
            ("greedy", greedy, "gap", PaperCell("tsp", _POINTER, nodes, "gap") if nodes < 100 else None),
            ("best of 16 draws", "--best-of 16", "gap", None),
            ("best of 16 draws with 2-opt", "--best-of 16", "gap after 2opt", None),
        ):
            what = f"tours of {nodes} nodes, longer than the optimum by, {how}"
            yield BundledLine(what, "tsp", rf"tsp{nodes}_.*{option}", column, paper)


BUNDLED = (
    *(
        BundledLine(
            f"{n} four-digit images sorted, all right", "sorting", f"--task.num-items {n} ", "accuracy",
            PaperCell("sorting", _POINTER, n, "accuracy"),
        )
        for n in (9, 15, 32)
    ),
    *(
        BundledLine(
            f"jigsaw of {grid} x {grid}, all right", f"jigsaw-{grid}x{grid}", f"--task.grid {grid} ", "accuracy",
            PaperCell("jigsaw", _POINTER, grid, "accuracy"),
        )
        for grid in (3, 4)
    ),
    *_tour_lines(),
    *(
        BundledLine(
            f"flow shops of 20 jobs, 5 machines, longer than the best known by, {how}", "flowshop",
            rf"tai20_5.*{option}", "gap", None,
        )
        for how, option in (("greedy", "--count 10 --output"), ("best of 128 draws", "--best-of 128"))
    ),
)  # fmt: skip
# What is shown of a measured table beside the methods' names.
SHOWN = dict.fromkeys(TABLES, ("accuracy", "kendall_tau")) | {"tsp": ("gap", "gap_after_2opt")}


def rows_of(results: Path, bench: str) -> Rows:
    """What a bench measured: the JSON line that its output ends with."""
    rows: Rows = json.loads((results / f"{bench}.txt").read_text().strip().splitlines()[-1])["rows"]
    return rows


def evaluations_of(card: str) -> list[tuple[str, dict[str, str]]]:
    """The evaluations on a model's card: command, and the cells of its first line by column."""
    found = re.findall(r"```bash\n(softrank evaluate .*)\n```\n\n\|(.*)\|\n\|.*\|\n\|(.*)\|", card)
    return [
        (command, dict(zip(map(str.strip, header.split("|")), map(str.strip, cells.split("|")), strict=True)))
        for command, header, cells in found
    ]


def papers_number(cell: PaperCell) -> float:
    """A number of the paper's, as bench/paper.py has it."""
    row = next(row for row in TABLES[cell.table].rows if row.name == cell.row)
    return row.paper[""][cell.size][cell.metric]


def bundled_table(weights: Path) -> str:
    """The bundled models beside the paper, as far as their cards have the evaluations."""
    rows = []
    for line in BUNDLED:
        card = weights / line.model / "README.md"
        for command, cells in evaluations_of(card.read_text()) if card.exists() else ():
            if re.search(line.command, command):
                mean, error = map(float, cells[line.column].split(" ± "))
                paper = "-" if line.paper is None else f"{100 * papers_number(line.paper):.2f} %"
                rows.append((line.what, cells["steps"], f"{100 * mean:.2f} % ± {100 * error:.2f}", paper))
    return "\n".join(markdown_table(("", "steps", "bundled", "paper"), rows))


def measured_tables(results: Path) -> str:
    """All tables of bench/tables.py that are in `results`."""
    records = [json.loads(path.read_text()) for path in sorted(results.glob("table_*.json"))]
    return "\n\n".join(measured_table(record) for record in records)


def measured_table(record: dict[str, Any]) -> str:
    """A table of bench/tables.py, with the metrics in SHOWN and a line about its settings."""
    name, measured = record["table"], record["results"]
    table, shown = TABLES[name], SHOWN[name]
    settings = measured[0]["settings"]
    has_paper = any(evaluation["paper"] for result in measured for evaluation in result["evaluations"])
    header = [table.size_name, "method", *(metric.replace("_", " ") for metric in shown)]
    header += [f"paper's {shown[0].replace('_', ' ')}"] if has_paper else []
    rows = []
    for result in measured:
        for evaluation in result["evaluations"]:
            cells = [str(result["size"]), ", ".join(filter(None, (result["name"], evaluation["line"])))]
            for metric in shown:
                score = evaluation["metrics"][metric]
                cells.append(f"{score['mean']:.3f} ± {score['standard_error']:.3f}")
            if has_paper:
                cells.append(papers_cell(evaluation, shown[0], result["size"], digits=3))
            rows.append([*cells, str(result["updates"])])
    threads = settings["threads"]
    said = (
        f"**{name}**, {settings['budget']:g} minutes a row on {threads} thread{'' if threads == 1 else 's'}"
        f"{'' if settings['reader'] is None else ', reader of ' + settings['reader']}"
        f" ([whole table](bench/results/table_{name}.md)):"
    )
    return "\n".join([said, "", *markdown_table([*header, "updates"], rows, numbers_from=2)])


def runtime_table(rows: Rows) -> str:
    """Samples per second by grid, and the time over the one-pass baseline's, here and in the paper."""
    by_method: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["part"] == "table":
            by_method.setdefault((row["method"], row["mode"]), []).append(row)
    grids = [f"{row['grid']}x{row['grid']}" for row in next(iter(by_method.values()))]
    lines = []
    for name, own in by_method.items():
        speeds = [f"{row['samples_per_second']:.3g}" for row in own]
        ratios = [f"{row['ratio']:.2f}" for row in own]
        papers = [f"{over:.2f}" for row in own if (over := row["paper_time_over_baseline"]) is not None]
        lines.append((", ".join(name), *speeds, ", ".join(ratios), ", ".join(papers) or "-"))
    ratio = f"time over the baseline: {', '.join(grids)}"
    return "\n".join(markdown_table(("samples per second", *grids, ratio, "the paper's (H100)"), lines))


def speed_table(rows: Rows) -> str:
    """Whole calls against the eager cached loop, by N and batch, greedy and sampled."""
    by_size: dict[str, list[Row]] = {}
    for row in rows:
        if row["part"] == "speed":
            size = re.match(r"N (\d+), batch (\d+)", row["name"])
            assert size is not None
            by_size.setdefault(", ".join(size.groups()), []).append(row)
    lines = []
    for shape, own in by_size.items():
        cells = [shape]
        for row in own:
            cells += [f"{short(row['ours_ms'])}, {short(row['eager_ms'])} ms", f"{row['ratio']:.1f}x"]
        cells.append(f"{own[0]['required']:.0f}x")
        for name, form in (("ratio_at_peak", "{:.1f}x"), ("gflops", "{:.0f}"), ("accepted", "{:.0%}")):
            cells.append(", ".join(form.format(row[name]) for row in own))
        lines.append(cells)
    header = ("N, batch", "greedy: ours, eager", "ratio", "sampled: ours, eager", "ratio", "wanted", "at matmul speed",
              "GFLOPS", "places accepted")  # fmt: skip
    return "\n".join(markdown_table(header, lines))


def decode_table(rows: Rows) -> str:
    """Decoding of one diffusion step against eager PyTorch and against a teacher-forced pass, by batch."""
    by_name = {row["name"]: row for row in rows}
    lines = []
    for name, eager in by_name.items():
        if name.endswith(": compiled, eager"):
            whole = by_name[name.replace("eager", "teacher-forced")]
            batch = name.split(",")[0].removeprefix("batch ")
            times = [f"{short(value)} ms" for value in (eager["ours_ms"], eager["other_ms"], whole["other_ms"])]
            lines.append((batch, *times[:2], f"{eager['ratio']:.1f}x", times[2], f"{whole['ratio']:.2f}"))
    header = ("batch", "compiled", "eager, cached", "ratio", "one teacher-forced pass", "compiled / that")
    return "\n".join(markdown_table(header, lines))


def ops_table(rows: Rows) -> str:
    """Core ops against plain torch."""
    lines = [
        (row["name"], f"{row['ours_us']:.0f} µs", f"{row['plain_us']:.0f} µs", f"{row['ratio']:.1f}x") for row in rows
    ]
    return "\n".join(markdown_table(("op", "ours", "plain", "ratio"), lines))


def constraints_table(rows: Rows) -> str:
    """What rules cost: time of a `sample` call over that of the same call without."""
    timed = [row for row in rows if "ours_ms" in row]
    lines = [(row["name"].split(": ")[1].removesuffix(", without"), f"{row['ratio']:.2f}") for row in timed]
    return "\n".join(markdown_table(("rules", "time over that without"), lines))


def heads_table(results: Path) -> str:
    """What more steps do with each head, from steps_heads.json; nothing if that is not there."""
    file = results / "steps_heads.json"
    if not file.exists():
        return ""
    report = json.loads(file.read_text())
    by_head: dict[tuple[str, str], list[Row]] = {}
    for row in report["rows"]:
        by_head.setdefault((row["model"], row["metric"]), []).append(row)
    rows = []
    for (head, metric), cells in by_head.items():
        gain = f"{cells[-1]['difference']:+.3f} ± {cells[-1]['difference_error']:.3f}"
        what = {"accuracy": "whole lists", "correctness": "places"}[metric]
        rows.append((head, what, *(f"{cell['mean']:.3f} ± {cell['error']:.3f}" for cell in cells), gain))
    steps = [row["steps"] for row in next(iter(by_head.values()))]
    header = ("head", "right", *(f"{count} step{'s' * (count > 1)}" for count in steps), f"{steps[-1]} less 1, paired")
    first, minutes = report["rows"][0], {row["model"]: row["minutes"] for row in report["rows"]}
    each = ", ".join(f"{head} {value:.1f}" for head, value in minutes.items())
    about = (
        f"{first['updates']:,} updates each ({each} minutes on 1 thread of {report['machine']['processor']}, which "
        f"others used too), {first['count']} lists of 32 numbers."
    )
    return "\n".join([*markdown_table(header, rows, 2), "", about])


def law_table(results: Path) -> str:
    """Total variation over steps, from law_*.txt: a line for each law and what is read, and the machine."""
    reports = [json.loads(path.read_text().strip().splitlines()[-1]) for path in sorted(results.glob("law_*.txt"))]
    lines: dict[tuple[str, ...], dict[int, Row]] = {}
    for row in (row for report in reports for row in report["rows"]):
        lines.setdefault((row["data"], row["what"], row["reads"]), {})[row["steps"]] = row
    steps = sorted({count for cells in lines.values() for count in cells})
    rows = []
    for names, cells in lines.items():
        found = [
            f"{cells[count]['tv']:.4f} ± {cells[count]['error']:.4f}" if count in cells else "-" for count in steps
        ]
        last = cells[max(cells)]
        perfect = f"{last['perfect']:.4f} ± {last['perfect_spread']:.4f}"
        rows.append((*names, *found, perfect, f"{last['draws']:,}"))
    header = ("law", "of", "read", *(f"{count} step{'s' * (count > 1)}" for count in steps), "the law itself", "draws")
    machines = sorted({", ".join(f"{name} {value}" for name, value in report["machine"].items()) for report in reports})
    # The same draws are counted by first places and by first two places: their seconds count once.
    runs = {
        (data, kind, count): row["seconds"] for (data, _, kind), cells in lines.items() for count, row in cells.items()
    }
    seconds = sum(runs.values())
    about = f"Drawn in {seconds / 60:.0f} minutes in all, on a machine that others used too: {'; '.join(machines)}."
    return "\n".join([*markdown_table(header, rows, numbers_from=3), "", about])


def short(value: float) -> str:
    """A number of milliseconds with as many digits as are of use."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


# By job of .ci/attack: what was tried, and what must hold.
_JOBS = {
    "fuzzed calls": (
        "calls of every op and public function with spoiled arguments",
        "an answer, or an error that says what is wrong",
        "fuzz_calls.py",
    ),
    "fuzzed files": (
        "files of every format, cut short, with flipped bits or changed words",
        "an answer or an error; of files with a manifest, an error",
        "fuzz_files.py",
    ),
    "run folders": (
        "full, occupied and missing folders, killed runs and ranks",
        "one sentence, or a run resumed whole",
        "run_folders.py",
    ),
    "crash points": (
        "a training run struck at a file operation, and resumed",
        "every file is that of an undisturbed run",
        "crash_points.py",
    ),
    "AddressSanitizer, UndefinedBehaviorSanitizer": (
        "tests of the ops, constraints and searches under AddressSanitizer and UndefinedBehaviorSanitizer",
        "no report",
        ".ci/sanitize-ops",
    ),
    "ThreadSanitizer, 4 threads": (
        "tests of the ops on 4 threads under ThreadSanitizer",
        "no report; one for threads whose rows overlap",
        ".ci/sanitize-ops",
    ),
}


def attack_table(results: Path) -> str:
    """What the jobs of .ci/attack tried and found, from the lines that they printed."""
    path = results / "attack.jsonl"
    if not path.exists():
        return "Not run yet."
    lines = ["| tried | number | wanted | by | defects |", "|---|---|---|---|---|"]
    for line in path.read_text().splitlines():
        job = json.loads(line)
        tried, wanted, command = _JOBS[job["job"]]
        lines.append(f"| {tried} | {job['tried']:,} | {wanted} | `{command}` | {job['defects']} |")
    return "\n".join(lines)


def certificates_table(results: Path) -> str:
    """The samplers' certificates, and whether their negative controls were found."""
    path = results / "certificates.json"
    if not path.exists():
        return "Not made yet."
    lines = [
        "| sampler | N | draws | found | allowed | finds from | negative control |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in json.loads(path.read_text())["rows"]:
        found = f"{row['statistic']:.4f}{'' if row['passes'] else ' (fails)'}"
        control = f"{row['control_statistic']:.4f}, {'found' if row['control_found'] else 'not found'}"
        lines.append(
            f"| {row['sampler']} | {row['N']} | {row['draws']:,} | {found} | {row['threshold']:.4f} | "
            f"{row['distance']:.3f} | {control} |"
        )
    return "\n".join(lines)
