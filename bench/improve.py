"""Tours by `improve`, beside as many independent draws, and beside other searches in the same seconds.

    python bench/improve.py --file tsp50_concorde_0000-0255.txt --draws 64 256

A table on equal draws: independent draws from random starts; draws of the eight turned and mirrored copies in turn, at
temperature 0.5, as `improve` makes its own; and `improve` after 16 of these, without and with local search (2-opt and
Or-opt). Each search runs once, to the largest number of draws, in whose row its seconds stand. A table on equal
seconds, those that `improve` takes for the first number of draws: independent draws, 8 symmetries, `improve`, the same
with uniform draws in place of the model's, restarts of the local search from random tours, and fast-tsp. A table of
what may be drawn again, on equal draws. Gaps in percent over the file's tours, with the standard error of their mean
over the instances; differences are paired. Each table goes into its place of a JSON file, with the machine that it was
measured on; other numbers of draws stay there.
"""

import argparse
import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import Deadline, fix_threads, machine, timed_once
from torch import Tensor
from uniform import UniformModel

from softrank_ext import Drawing, Search, from_pretrained, improve, sample
from softrank_ext.costs import TourLength, local_search
from softrank_ext.metrics import tour_length
from softrank_ext.model import OrderModel
from softrank_ext.sampling import Near, Part, Tail, Unsure, Whole
from softrank_ext.tasks.tsp import TSP, read_instances

RESULTS = Path(__file__).parent / "results"
INITIAL = 16  # independent draws that a search begins with
LENGTH = TourLength()
PLAIN_DRAWING = Drawing(decode="sample", copies=False)
OWN_DRAWING = Drawing()


def polish(items: Tensor, order: Tensor) -> Tensor:
    """2-opt and Or-opt until no move helps."""
    return local_search(items, order, LENGTH)


class Instances:
    """Points, the lengths to beat, and the model."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        points, order = read_instances(arguments.file)
        rows = slice(arguments.first, arguments.first + arguments.count)
        self.points, self.best = points[rows].float(), tour_length(points[rows], order[rows])
        self.model = from_pretrained(arguments.model)
        self.seed = arguments.seed

    def gaps(self, lengths: Tensor) -> Tensor:
        """Percent over the best known length, (B,)."""
        return 100 * (lengths / self.best - 1)

    def improved(self, search: Search, draws: list[int], drawing: Drawing = OWN_DRAWING) -> list[Tensor]:
        """Lengths (B,) after each of these numbers of draws, which ascend; the first 16 draws are independent."""
        initial = min(INITIAL, draws[0])
        found = improve(
            self.model, self.points, tour_length, initial=initial, rounds=draws[-1] - initial, search=search,
            drawing=drawing, seed=self.seed,
        )  # fmt: skip
        return [found.history[:, number - initial] for number in draws]

    def improved_for(
        self, model: OrderModel, search: Search, seconds: float, drawing: Drawing = OWN_DRAWING
    ) -> tuple[Tensor, int]:
        """Lengths (B,) after so many seconds, and the draws per instance."""
        found = improve(
            model, self.points, tour_length, seconds=seconds, search=search, drawing=drawing, seed=self.seed
        )
        return found.cost, found.draws

    def symmetric_for(self, seconds: float) -> tuple[Tensor, int]:
        """The best of draws of the eight turned and mirrored copies, as many rounds as fit."""
        deadline, best, draws = Deadline(seconds), torch.full((len(self.points),), math.inf, dtype=torch.float64), 0
        copies = TSP().symmetric_copies(self.points)
        while not deadline.has_passed():
            drawn = sample(self.model, copies, steps=1, seed=self.seed, first_sample=draws * len(copies))
            lengths = tour_length(copies, drawn.order[:, 0]).view(-1, 8)
            best, draws = torch.minimum(best, lengths.amin(1)), draws + 8
        return best, draws

    def restarts_for(self, seconds: float) -> tuple[Tensor, int]:
        """The best of local searches from random tours."""
        deadline, best, draws = Deadline(seconds), torch.full((len(self.points),), math.inf, dtype=torch.float64), 0
        generator = torch.Generator().manual_seed(self.seed)
        while not deadline.has_passed():
            tours = torch.rand(self.points.shape[:2], generator=generator).argsort(1)
            best = torch.minimum(best, tour_length(self.points, polish(self.points, tours)))
            draws += 1
        return best, draws

    def solved_for(self, seconds: float) -> tuple[Tensor, int]:
        """fast-tsp with an equal share of the seconds for each instance."""
        import fast_tsp

        tours = []
        for points in self.points.double().numpy():
            table = np.rint(46000 * np.linalg.norm(points[:, None] - points[None], axis=2)).astype(np.uint16)
            tours.append(fast_tsp.find_tour(table, duration_seconds=seconds / len(self.points)))
        return tour_length(self.points, torch.tensor(tours)), 0


def stated(gaps: Tensor) -> str:
    """Mean and standard error."""
    mean = round(float(gaps.mean()), 4) + 0.0  # no -0
    return f"{mean:.4f} ± {float(gaps.std() / len(gaps) ** 0.5):.4f}"


def equal_draws(given: Instances, counts: list[int]) -> dict[str, Any]:
    """The table on equal draws: each search runs once, to the largest number."""
    counts = sorted(set(counts))
    independent = [given.gaps(lengths) for lengths in given.improved(Search(fresh=1.0), counts, PLAIN_DRAWING)]
    rows: list[dict[str, Any]] = []
    copies: list[Tensor] = []
    for name, search in (
        ("draws of copies", Search(fresh=1.0)),
        ("improve", Search()),
        ("improve with local search", Search(polish=polish)),
    ):
        found: list[Tensor] = []
        seconds = timed_once(lambda: found.extend(given.improved(search, counts)))  # noqa: B023
        copies = copies or [given.gaps(lengths) for lengths in found]
        for draws, lengths, others, of_copies in zip(counts, found, independent, copies, strict=True):
            gaps = given.gaps(lengths)
            rows.append(
                {"draws": draws, "search": name, "gap": stated(gaps), "independent": stated(others),
                 "less than independent": stated(others - gaps), "less than half of that": stated(others / 2 - gaps),
                 "less than draws of copies": stated(of_copies - gaps),
                 "seconds": round(seconds, 1) if draws == counts[-1] else None}
            )  # fmt: skip
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return {"rows": sorted(rows, key=lambda row: row["draws"])}


def equal_seconds(given: Instances, counts: list[int]) -> dict[str, Any]:
    """The table on equal seconds, those that `improve` takes for the first number of draws."""
    given.improved(Search(), [INITIAL])  # warm-up
    seconds = timed_once(lambda: given.improved(Search(), counts[:1]))
    print(f"in the {seconds:.1f} seconds of {counts[0]} draws for all instances")
    uniform = UniformModel(given.model.config.data)
    searches: dict[str, Callable[[], tuple[Tensor, int]]] = {
        "independent draws": partial(given.improved_for, given.model, Search(fresh=1.0), seconds, PLAIN_DRAWING),
        "8 symmetries": partial(given.symmetric_for, seconds),
        "improve": partial(given.improved_for, given.model, Search(), seconds),
        "improve with local search": partial(given.improved_for, given.model, Search(polish=polish), seconds),
        "improve by uniform draws": partial(given.improved_for, uniform, Search(), seconds),
        "the same with local search": partial(given.improved_for, uniform, Search(polish=polish), seconds),
        "local search from random tours": partial(given.restarts_for, seconds),
        "fast-tsp": partial(given.solved_for, seconds),
    }
    rows = []
    for name, search in searches.items():
        results: list[tuple[Tensor, int]] = []
        taken = timed_once(lambda: results.append(search()))  # noqa: B023
        lengths, draws = results[0]
        rows.append({"search": name, "gap": stated(given.gaps(lengths)), "draws": draws, "seconds": round(taken, 1)})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return {"draws": counts[0], "seconds": round(seconds, 1), "rows": rows}


PARTS: dict[str, Search] = {
    "a stretch of 30 to 90 %": Search(),
    "a stretch of 10 to 40 %": Search(rebuild=Part(0.1, 0.4)),
    "a stretch of 60 to 98 %": Search(rebuild=Part(0.6, 0.98)),
    "the tail": Search(rebuild=Tail()),
    "points near each other": Search(rebuild=Near()),
    "places that the model finds unlikely": Search(rebuild=Unsure()),
    "all, noised at t = 0.2": Search(rebuild=Whole(0.2)),
    "a stretch, with a pool of 8": Search(pool=8),
    "fresh draws alone": Search(fresh=1.0),
}


def equal_parts(given: Instances, counts: list[int]) -> dict[str, Any]:
    """What may be drawn again, at the first number of draws; what the model was not trained for has no gap."""
    rows: list[dict[str, object]] = []
    first: Tensor | None = None
    for name, search in PARTS.items():
        try:
            gaps = given.gaps(given.improved(search, counts[:1])[0])
        except ValueError as error:
            rows.append({"drawn again": name, "gap": "-", "why": str(error)})
        else:
            first = gaps if first is None else first
            rows.append({"drawn again": name, "gap": stated(gaps), "more than the first": stated(gaps - first)})
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    return {"draws": counts[0], "rows": rows}


TABLES: dict[str, Callable[[Instances, list[int]], dict[str, Any]]] = {
    "draws": equal_draws, "seconds": equal_seconds, "parts": equal_parts,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--file", required=True, help="instances with their best tours, as `softrank generate tsp` makes"
    )
    parser.add_argument("--model", default="tsp")
    parser.add_argument("--first", type=int, default=0, help="number of the first instance")
    parser.add_argument("--count", type=int, default=256)
    parser.add_argument("--draws", type=int, nargs="+", default=[64])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--tables", choices=["draws", "seconds", "parts"], nargs="+", default=["draws", "seconds"],
        help="what to measure; seconds and parts take the first of --draws",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    fix_threads(arguments.threads)
    given = Instances(arguments)
    B, N = given.points.shape[:2]
    print(f"{B} instances of {N} points, model {arguments.model}; {machine()}")
    output = arguments.output or RESULTS / f"improve_{N}.json"
    record: dict[str, Any] = json.loads(output.read_text()) if output.exists() else {}
    about: dict[str, Any] = {
        "machine": machine(),
        "instances": B,
        "points": N,
        "model": arguments.model,
        "seed": arguments.seed,
    }
    for name in arguments.tables:
        print(f"table {name}", flush=True)
        made = about | TABLES[name](given, arguments.draws)
        if name == "draws" and all(record.get(name, {}).get(key) == value for key, value in about.items()):
            others = [row for row in record[name]["rows"] if row["draws"] not in arguments.draws]
            made["rows"] = sorted(others + made["rows"], key=lambda row: row["draws"])
        record[name] = made
        output.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {output}")


if __name__ == "__main__":
    main()
