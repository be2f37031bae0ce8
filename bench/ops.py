"""Speed of the core ops against the same thing in plain torch, measured in turns in one run.

    python bench/ops.py                      a table, then one JSON line
    python bench/ops.py --json               the JSON line only
    python bench/ops.py --compare FILE       exit 1 if a ratio fell by more than --tolerance since FILE was written

A ratio is plain torch's best time over ours. GB/s counts the bytes that must move: inputs once, outputs once; `copy` is
what a plain copy of as many bytes reaches on this machine.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from timing import fix_threads, machine, timed_together

import softrank_ext
from softrank_ext import noise, ops, reference


@dataclass(frozen=True)
class Case:
    """One line of the table. required: the ratio to plain torch that the op must reach. moved: bytes in and out."""

    name: str
    required: float | None
    moved: int
    ours: Callable[[], object]
    plain: Callable[[], object]


def _reflect_case(count: int, required: float) -> Case:
    x = 3 * torch.randn(count)
    return Case(f"reflect {count:.0e}", required, 8 * count, lambda: ops.reflect(x), lambda: reference.reflect(x))


def _decode_chamber_case(B: int, N: int, required: float) -> Case:
    soft_ranks = torch.rand(B, N)
    return Case(
        f"decode_chamber ({B}, {N})",
        required,
        (4 + 8 + 8) * B * N,
        lambda: ops.decode_chamber(soft_ranks),
        lambda: reference.decode_chamber(soft_ranks, None),
    )


def _pick_case(B: int, N: int, required: float) -> Case:
    scores, remaining, uniform = torch.randn(B, N), torch.rand(B, N) < 0.7, torch.rand(B)
    remaining[:, 0] = True
    return Case(
        f"pick ({B}, {N})",
        required,
        (4 + 1) * B * N + (4 + 8 + 4) * B,
        lambda: ops.pick(scores, remaining, uniform),
        lambda: reference.pick(scores, remaining, uniform),
    )


def cases() -> list[Case]:
    torch.manual_seed(0)
    samples, pieces = torch.arange(1000), 1000
    one_sample, count = torch.arange(1), 1_000_000
    uniform = Case(
        "uniform 1e+06, torch.rand",
        1.0,
        4 * count,
        lambda: noise.uniform(1, samples, 0, pieces),
        lambda: torch.rand(1000, pieces),
    )
    normal = Case(
        "normal 1e+06, torch.randn",
        1.0,
        4 * count,
        lambda: noise.normal(1, samples, 0, pieces),
        lambda: torch.randn(1000, pieces),
    )
    one_row = Case(
        "uniform 1e+06 of one sample",
        1.0,
        4 * count,
        lambda: noise.uniform(1, one_sample, 0, count),
        lambda: torch.rand(1, count),
    )
    return [
        _reflect_case(1_000, 1.0),
        _reflect_case(1_000_000, 3.0),
        _decode_chamber_case(256, 64, 3.0),
        _decode_chamber_case(64, 200, 3.0),
        _decode_chamber_case(16, 4096, 1.5),
        _pick_case(256, 64, 4.0),
        uniform,
        one_row,
        normal,
    ]


def measure(case: Case, repeats: int, seconds: float) -> dict[str, object]:
    """Times and ratio of a case, and the bandwidth reached beside that of a copy of as many bytes."""
    source = torch.empty(max(1, case.moved // 2), dtype=torch.uint8)
    calls = {"ours": case.ours, "plain": case.plain, "copy": source.clone}
    times = timed_together(calls, repeats=repeats, seconds=seconds)
    ratio = times["plain"].best / times["ours"].best
    return {
        "name": case.name,
        "ours_us": times["ours"].best * 1e6,
        "ours_median_us": times["ours"].median * 1e6,
        "ours_spread": times["ours"].spread,
        "plain_us": times["plain"].best * 1e6,
        "plain_median_us": times["plain"].median * 1e6,
        "ratio": ratio,
        "required": case.required,
        "passes": case.required is None or ratio >= case.required,
        "gb_per_s": case.moved / times["ours"].best / 1e9,
        "copy_gb_per_s": 2 * source.numel() / times["copy"].best / 1e9,
    }


def table(rows: list[dict]) -> str:
    header = ("op", "ours us", "median", "spread", "torch us", "ratio", "needed", "GB/s", "copy GB/s", "")
    lines = [header]
    for row in rows:
        lines.append(
            (
                row["name"],
                f"{row['ours_us']:.1f}",
                f"{row['ours_median_us']:.1f}",
                f"{100 * row['ours_spread']:.0f} %",
                f"{row['plain_us']:.1f}",
                f"{row['ratio']:.2f}x",
                "-" if row["required"] is None else f"{row['required']:.1f}x",
                f"{row['gb_per_s']:.2f}",
                f"{row['copy_gb_per_s']:.2f}",
                "ok" if row["passes"] else "TOO SLOW",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in (0, len(header) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def regressions(rows: list[dict], before: list[dict], tolerance: float) -> list[str]:
    """Lines about ratios that fell by more than `tolerance` (a share) since `before`."""
    old = {row["name"]: row["ratio"] for row in before}
    return [
        f"{row['name']}: {old[row['name']]:.2f}x fell to {row['ratio']:.2f}x"
        for row in rows
        if row["name"] in old and row["ratio"] < (1 - tolerance) * old[row["name"]]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of the core ops against plain torch.")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=50, help="most repeats per op")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long to time each op")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="a file whose last line is an earlier JSON line")
    parser.add_argument("--tolerance", type=float, default=0.3, help="how far a ratio may fall (0.3 = by 30 %%)")
    parser.add_argument("--strict", action="store_true", help="exit 1 if a required ratio is missed")
    args = parser.parse_args()
    before = json.loads(args.compare.read_text().strip().splitlines()[-1]) if args.compare else None

    fix_threads(args.threads)
    about = machine() | {"cpu_capability": softrank_ext.build_info().get("cpu_capability", "plain torch")}
    rows = [measure(case, args.repeats, args.seconds) for case in cases()]
    if not args.json:
        print(", ".join(f"{key} {value}" for key, value in about.items()))
        print(table(rows))
    print(json.dumps({"machine": about, "rows": rows}))

    fallen = regressions(rows, before["rows"], args.tolerance) if before else []
    for line in fallen:
        print(line, file=sys.stderr)
    return 1 if fallen or (args.strict and not all(row["passes"] for row in rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
