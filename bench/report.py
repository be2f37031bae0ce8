"""What the benches share: options, tables, one JSON line, and the comparison with an earlier run.

A row is a dict with `name`; a row with `ratio` may have `required` (the ratio must reach it) or `allowed` (the ratio
must not pass it). `--compare FILE` exits 1 if a required ratio fell by more than `--tolerance`.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from timing import fix_threads, machine, use_clock_of

import softrank_ext

Row = dict[str, Any]


def options(description: str) -> argparse.ArgumentParser:
    """The options that every bench has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="a file whose last line is an earlier JSON line")
    parser.add_argument("--tolerance", type=float, default=0.3, help="how far a ratio may fall (0.3 = by 30 %%)")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a ratio misses what is required of it")
    return parser


def device_options(parser: argparse.ArgumentParser) -> None:
    """Where to run and in which numbers, for the benches that can."""
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="cpu, cuda or cuda:1")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")


def make_tensors_on(args: argparse.Namespace) -> None:
    """Let new tensors be on the device and of the dtype that the options name."""
    torch.set_default_device(args.device)
    torch.set_default_dtype(getattr(torch, args.dtype))


def begin(args: argparse.Namespace) -> dict[str, object]:
    """Fix the threads and the clock; returns what the numbers are measured on."""
    fix_threads(args.threads)
    use_clock_of(getattr(args, "device", torch.device("cpu")))
    return machine() | {"cpu_capability": softrank_ext.build_info().get("cpu_capability", "plain torch")}


def verdict(row: Row) -> str:
    """ "ok", "TOO SLOW", or nothing where no ratio is asked for."""
    if row.get("required") is None and row.get("allowed") is None:
        return ""
    return "ok" if _passes(row) else "TOO SLOW"


def _passes(row: Row) -> bool:
    required, allowed = row.get("required"), row.get("allowed")
    return bool((required is None or row["ratio"] >= required) and (allowed is None or row["ratio"] <= allowed))


def table(lines: Sequence[Sequence[str]]) -> str:
    """Lines of cells as aligned columns; the first and the last column stand left, the others right."""
    last = len(lines[0]) - 1
    widths = [max(len(line[column]) for line in lines) for column in range(last + 1)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, last) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown_table(header: Sequence[object], rows: Iterable[Sequence[object]], numbers_from: int = 1) -> list[str]:
    """Lines of a Markdown table; columns from `numbers_from` on are aligned to the right."""
    rule = ["---" if column < numbers_from else "---:" for column in range(len(header))]
    return [f"| {' | '.join(map(str, line))} |" for line in (header, rule, *rows)]


def regressions(rows: list[Row], before: list[Row], tolerance: float) -> list[str]:
    """Lines about required ratios that fell by more than `tolerance` (a share) since `before`."""
    old = {row["name"]: row["ratio"] for row in before if "ratio" in row}
    return [
        f"{row['name']}: {old[row['name']]:.2f}x fell to {row['ratio']:.2f}x"
        for row in rows
        if row.get("required") is not None and row["name"] in old and row["ratio"] < (1 - tolerance) * old[row["name"]]
    ]


def finish(args: argparse.Namespace, about: dict[str, object], rows: list[Row], text: str) -> int:
    """Print the table (unless --json) and the JSON line, compare; returns the exit code."""
    if not args.json:
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        print(text)
    print(json.dumps({"machine": about, "rows": rows}))
    fallen = []
    if args.compare:
        before = json.loads(args.compare.read_text().strip().splitlines()[-1])
        fallen = regressions(rows, before["rows"], args.tolerance)
    for line in fallen:
        print(line, file=sys.stderr)
    return 1 if fallen or (args.strict and not all(_passes(row) for row in rows if "ratio" in row)) else 0
