"""Whether samples of more steps still follow the law: total variation between what is drawn and what is right.

    python bench/law.py exact                                      denoisers that know the law, N 4 and 5
    python bench/law.py trained --ballots FILE --models DIR DIR    models that were trained on the file's ballots
    python bench/law.py ballots preferences-dublin-north FILE.csv  ballots that a model draws, as such a file

Total variation is half the sum of differences of chances, from 0 to 1. Counted from draws it is never 0: beside it
stands what as many draws from the law itself give, on average and with its spread.
With trained models it is that of whole orders, up to five items, else of first places and of first two places.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import report
import torch
from bayes import ExactDenoiser, Reads, number_of, two_camps
from timing import timed_once
from torch import Tensor

from softrank_ext import Bridge, Engine, from_pretrained, sample
from softrank_ext.model import OrderModel
from softrank_ext.tasks.preferences import read_ballots

STEPS = (1, 5, 20, 50)
# What a denoiser reads, and what a sample carries from step to step.
KINDS: dict[str, tuple[Reads, Bridge]] = {
    "soft ranks": ("soft-ranks", Bridge()),
    "their order": ("order", Bridge()),
    "their fold": ("fold", Bridge()),
    "their fold, carried folded (Algorithm 1)": ("fold", Bridge(carry="reflected")),
}
_AT_ONCE = 100_000
_SMALL_BATCHES = Engine(max_memory=2**25)  # they stay in the processor's caches


class Distance(NamedTuple):
    """Total variation between draws and a law, its standard error, and that of as many draws from the law."""

    tv: float
    error: float
    perfect: float
    perfect_spread: float


def distance(counts: Tensor, chances: Tensor) -> Distance:
    """The distance of counted draws (categories,) to the law (categories,)."""
    draws = int(counts.sum())
    drawn, law = counts.double() / draws, chances.double() / chances.sum()
    signs = (drawn - law).sign()
    error = math.sqrt(max(float((drawn * signs**2).sum() - (drawn * signs).sum() ** 2), 0.0) / draws) / 2
    generator = np.random.default_rng(0)
    perfect = np.abs(generator.multinomial(draws, law.numpy(), 400) / draws - law.numpy()).sum(1) / 2
    return Distance(float((drawn - law).abs().sum()) / 2, error, float(perfect.mean()), float(perfect.std()))


def timed_counts(
    model: OrderModel,
    items: Tensor,
    cell_of: Callable[[Tensor], Tensor],
    cells: int,
    draws: int,
    steps: int,
    seed: int = 0,
) -> tuple[Tensor, float]:
    """How often `draws` samples of one instance fall into each cell, (cells,), and the seconds that they took."""
    counts = torch.zeros(cells, dtype=torch.int64)

    def draw() -> None:
        for first in range(0, draws, _AT_ONCE):
            number = min(_AT_ONCE, draws - first)
            samples = sample(
                model, items, num_samples=number, first_sample=first, steps=steps, seed=seed, engine=_SMALL_BATCHES
            )
            counts.add_(torch.bincount(cell_of(samples.order[0]), minlength=cells))

    return counts, timed_once(draw)


def exact_rows(sizes: list[int], kinds: list[str], steps: list[int], draws: int) -> list[report.Row]:
    """Denoisers of each kind, at each number of steps."""
    rows = []
    for N in sizes:
        chances = two_camps(N)
        for kind in kinds:
            reads, bridge = KINDS[kind]
            model = ExactDenoiser(chances, bridge, reads)
            for count in steps:
                drawn, seconds = timed_counts(model, torch.zeros(1, N, 1), number_of, len(chances), draws, count)
                found = distance(drawn, chances)
                name = f"N {N}, reads {kind}, {count} steps"
                rows.append(_row(name, f"{N} items", "whole orders", kind, count, draws, seconds, found))
    return rows


def _row(
    name: str, data: str, what: str, kind: str, steps: int, draws: int, seconds: float, found: Distance
) -> report.Row:
    return {
        "name": name, "data": data, "what": what, "reads": kind, "steps": steps, "draws": draws, "seconds": seconds,
        **found._asdict(),
    }  # fmt: skip


def first_places(order: Tensor, places: int) -> Tensor:
    """Cell (draws,) of the items at the first places of orders (draws, N)."""
    cell = torch.zeros(len(order), dtype=torch.int64)
    for place in range(places):
        cell = cell * order.shape[1] + order[:, place]
    return cell


def trained_rows(ballots: Path, folders: list[Path], steps: list[int], draws: int) -> list[report.Row]:
    """Trained models at each number of steps, against the ballots of the file."""
    file = read_ballots(ballots)
    N = len(file.names)
    places = {"whole orders": N} if N <= 5 else {"first places": 1, "first two places": 2}
    rows = []
    for folder in folders:
        model = from_pretrained(folder)
        for count in steps:
            cell_of, cells = partial(first_places, places=max(places.values())), N ** max(places.values())
            drawn, seconds = timed_counts(model, torch.arange(N)[None], cell_of, cells, draws, count)
            for what, known in places.items():
                is_known = file.known >= known
                chances = torch.zeros(N**known, dtype=torch.float64)
                chances.index_add_(0, first_places(file.order[is_known], known), file.counts[is_known].double())
                found = distance(drawn.view(N**known, -1).sum(1), chances)
                kind = next(kind for kind, (reads, _) in KINDS.items() if reads == model.config.reads)
                name = f"{ballots.stem}, {what}, reads {kind}, {count} steps"
                rows.append(_row(name, ballots.stem, what, kind, count, draws, seconds, found))
    return rows


def write_ballots(name: str, file: Path, draws: int) -> None:
    """Write whole ballots that a model of preferences draws in one step: a row each, items by their numbers."""
    model = from_pretrained(name)
    items = torch.arange(model.config.data.num_items[1])
    orders = sample(model, items, num_samples=draws, steps=1, seed=0).order
    file.write_text("".join(",".join(map(str, order)) + "\n" for order in orders.tolist()))


def table(rows: list[report.Row]) -> str:
    """Rows as aligned text."""
    lines = [("what", "total variation", "error", "of the law itself", "seconds", "")]
    for row in rows:
        perfect = f"{row['perfect']:.4f} +- {row['perfect_spread']:.4f}"
        lines.append((row["name"], f"{row['tv']:.4f}", f"{row['error']:.4f}", perfect, f"{row['seconds']:.0f}", ""))
    return report.table(lines)


def main() -> int:
    parser = report.options("Whether samples of more steps still follow the law.")
    parts = parser.add_subparsers(dest="part", required=True)
    exact = parts.add_parser("exact", help="denoisers that know the law")
    exact.add_argument("--items", type=int, nargs="+", default=[4, 5])
    exact.add_argument("--reads", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    trained = parts.add_parser("trained", help="models that were trained on ballots")
    trained.add_argument("--ballots", type=Path, required=True, metavar="FILE", help=".soc, .soi or .csv")
    trained.add_argument("--models", type=Path, nargs="+", required=True, metavar="DIR")
    ballots = parts.add_parser("ballots", help="write ballots that a model draws")
    ballots.add_argument("model")
    ballots.add_argument("file", type=Path)
    ballots.add_argument("--draws", type=int, default=40_000)
    for part, draws in ((exact, 1_000_000), (trained, 200_000)):
        part.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
        part.add_argument("--draws", type=int, default=draws)
    args = parser.parse_args()
    about = report.begin(args)
    if args.part == "ballots":
        write_ballots(args.model, args.file, args.draws)
        return 0
    if args.part == "exact":
        rows = exact_rows(args.items, args.reads, args.steps, args.draws)
    else:
        rows = trained_rows(args.ballots, args.models, args.steps, args.draws)
    return report.finish(args, about, rows, table(rows))


if __name__ == "__main__":
    raise SystemExit(main())
