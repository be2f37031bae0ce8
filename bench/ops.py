"""Speed of the core ops against the same thing in plain torch (2-opt: numpy), measured in turns in one run.

    python bench/ops.py                      a table, then one JSON line
    python bench/ops.py --json               the JSON line only
    python bench/ops.py --compare FILE       exit 1 if a ratio fell by more than --tolerance since FILE was written

A ratio is plain torch's best time over ours. GB/s counts the bytes that must move: inputs once, outputs once; `copy` is
what a plain copy of as many bytes reaches on this machine.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import report
import roofline
import torch
from timing import launches_of, timed_together

from softrank_ext import noise, ops
from softrank_ext.costs import Makespan, local_search
from softrank_ext.costs.moves import search_in_batches
from softrank_ext.tasks.tsp import plain_two_opt, two_opt


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
    return Case(
        f"reflect {count:.0e}",
        required,
        2 * x.itemsize * count,
        lambda: ops.reflect(x),
        lambda: ops.reflect_reference(x),
    )


def _decode_chamber_case(B: int, N: int, required: float) -> Case:
    soft_ranks = torch.rand(B, N)
    return Case(
        f"decode_chamber ({B}, {N})",
        required,
        (soft_ranks.itemsize + 8 + 8) * B * N,
        lambda: ops.decode_chamber(soft_ranks),
        lambda: ops.decode_chamber_reference(soft_ranks, None),
    )


def _pick_case(B: int, N: int, required: float) -> Case:
    scores, remaining, uniform = torch.randn(B, N), torch.rand(B, N) < 0.7, torch.rand(B)
    remaining[:, 0] = True
    return Case(
        f"pick ({B}, {N})",
        required,
        (scores.itemsize + 1) * B * N + (2 * scores.itemsize + 8) * B,
        lambda: ops.pick(scores, remaining, uniform),
        lambda: ops.pick_reference(scores, remaining, uniform),
    )


def _two_opt_case(B: int, N: int, required: float) -> Case:
    points, order = torch.rand(B, N, 2, dtype=torch.float64), torch.rand(B, N).argsort(1)
    pairs = list(zip(points.numpy(), order.numpy(), strict=True))
    return Case(
        f"two_opt ({B}, {N}), numpy",
        required,
        (16 + 8 + 8) * B * N,
        lambda: two_opt(points, order),
        lambda: [plain_two_opt(places, tour) for places, tour in pairs],
    )


def _makespan_case(B: int, N: int, M: int, required: float) -> Case:
    times, order = torch.randint(1, 100, (B, N, M)).double(), torch.rand(B, N).argsort(1)
    return Case(
        f"makespan ({B}, {N}, {M})",
        required,
        8 * (B * N * M + B * N + B),
        lambda: Makespan()(times, order),
        lambda: Makespan().reference(times, order),
    )


def _insertion_case(B: int, N: int, M: int, required: float) -> Case:
    times, order, kinds = torch.randint(1, 100, (B, N, M)).double(), torch.rand(B, N).argsort(1), ("insert",)
    return Case(
        f"local_search of a flow shop ({B}, {N}, {M})",
        required,
        8 * (B * N * M + 2 * B * N),
        lambda: local_search(times, order, Makespan(), kinds),
        lambda: search_in_batches(times, order, Makespan().reference, kinds),
    )


def cases(has_host: bool = True) -> list[Case]:
    """What is measured, on the default device and in its default dtype. has_host: also what runs on the CPU only."""
    torch.manual_seed(0)
    samples, pieces = torch.arange(1000), 1000
    one_sample, count = torch.arange(1), 1_000_000
    dtype, width = torch.get_default_dtype(), torch.get_default_dtype().itemsize
    uniform = Case(
        "uniform 1e+06, torch.rand",
        1.0,
        width * count,
        lambda: noise.uniform(1, samples, 0, pieces, dtype=dtype),
        lambda: torch.rand(1000, pieces),
    )
    normal = Case(
        "normal 1e+06, torch.randn",
        1.0,
        width * count,
        lambda: noise.normal(1, samples, 0, pieces, dtype=dtype),
        lambda: torch.randn(1000, pieces),
    )
    one_row = Case(
        "uniform 1e+06 of one sample",
        1.0,
        width * count,
        lambda: noise.uniform(1, one_sample, 0, count, dtype=dtype),
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
        *([_two_opt_case(16, 100, 50.0), _makespan_case(1024, 20, 5, 2.0)] if has_host else []),
        *([_insertion_case(2, 20, 5, 50.0)] if has_host else []),
    ]


def measure(case: Case, repeats: int, seconds: float) -> report.Row:
    """Times and ratio of a case, and the bandwidth reached beside that of a copy of as many bytes."""
    source = torch.empty(max(1, case.moved // 2), dtype=torch.uint8)
    calls = {"ours": case.ours, "plain": case.plain, "copy": source.clone}
    times = timed_together(calls, repeats=repeats, seconds=seconds)
    ratio = times["plain"].best / times["ours"].best
    on_gpu = {"launches": launches_of(case.ours)} if torch.get_default_device().type == "cuda" else {}
    return on_gpu | {
        "name": case.name,
        "ours_us": times["ours"].best * 1e6,
        "ours_median_us": times["ours"].median * 1e6,
        "ours_spread": times["ours"].spread,
        "plain_us": times["plain"].best * 1e6,
        "plain_median_us": times["plain"].median * 1e6,
        "ratio": ratio,
        "required": case.required,
        "gb_per_s": case.moved / times["ours"].best / 1e9,
        "copy_gb_per_s": 2 * source.numel() / times["copy"].best / 1e9,
    }


def table(rows: list[report.Row]) -> str:
    """Rows as aligned text."""
    header = ("op", "ours us", "median", "spread", "torch us", "ratio", "needed", "GB/s", "copy GB/s", "launches", "")
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
                str(row.get("launches", "-")),
                report.verdict(row),
            )
        )
    return report.table(lines)


def main() -> int:
    parser = report.options("Speed of the core ops against plain torch.")
    parser.add_argument("--repeats", type=int, default=50, help="most repeats per op")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long to time each op")
    report.device_options(parser)
    args = parser.parse_args()
    about = report.begin(args)
    report.make_tensors_on(args)
    rows = [measure(case, args.repeats, args.seconds) for case in cases(args.device.type == "cpu")]
    if args.device.type == "cuda":
        about["memory_gb_per_s"] = 1e3 * roofline.gpu_of(args.device).memory  # by the GPU's properties
    return report.finish(args, about, rows, table(rows))


if __name__ == "__main__":
    sys.exit(main())
