"""The travelling salesman: points of the unit square and their shortest tours.

A tour is an order (`order[place] = item`) that closes; its first item, the start, is given to the model as
`Batch.first`. Training and test instances are lines of text files (`tasks.tsp_files`, where `generate` makes them);
TSPLIB files are read by `tasks.tsplib`. Without labels, instances are random points, and an order costs the length of
its tour.

Random, by (seed, step): which training file a batch comes from, each once in as many steps as there are files; which
instance comes next in a pass over it; and, if they are set, the symmetry of the square, the rotation, the start and the
direction; without labels, the points. Test instances are the first ones of their file, or random by number and seed.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.batch import Batch
from softrank_ext.checks import check_bool, check_choice, check_integer, described
from softrank_ext.costs import TourLength, local_search, nearest_neighbour
from softrank_ext.metrics import backwards, counterclockwise
from softrank_ext.model import DataFacts, square_copy
from softrank_ext.tasks.draws import generator_of, rows_of_passes
from softrank_ext.tasks.tsp_files import check_unit_square
from softrank_ext.tasks.tsp_files import generate as generate
from softrank_ext.tasks.tsp_files import read_instances as read_instances
from softrank_ext.tasks.tsp_files import solve as solve
from softrank_ext.tasks.tsp_files import write_instances as write_instances
from softrank_ext.tasks.two_opt import plain_two_opt as plain_two_opt
from softrank_ext.tasks.two_opt import two_opt as two_opt

DIRECTIONS = ("file", "counterclockwise", "random")
READERS: dict[str, dict[str, float]] = {"paper": {}, "fine": {"cycles": 16.0, "slowing": 64.0}}


@dataclass(frozen=True)
class TSP:
    """Points of the unit square with their shortest tours, from text files, an instance a line; or random points.

    items (B, N, 2) float32; first (B,): the start. extras: points (B, N, 2) float64, best_length (B,) float64, of the
    file's tour, unless the points are random. Points of a file outside the unit square are an error.
    """

    training_file: str | tuple[str, ...] | None = None
    """Text file of instances to train on, or several, which may differ in size; a batch comes from one of them."""
    test_file: str | None = None
    """Text file of instances to test on."""
    direction: Literal["file", "counterclockwise", "random"] = "file"
    """Of the tours: as in the file (as published), always counterclockwise, or random (in training)."""
    symmetries: bool = False
    """Turn and mirror the points of training instances by a random one of the square's eight symmetries."""
    rotations: bool = False
    """Turn the points of training instances by any angle, and shrink them if they would leave the unit square."""
    random_start: bool = False
    """Let training tours start at any node instead of the file's start."""
    reader: Literal["paper", "fine"] = "paper"
    """How the network reads a point: by the published waves, or by shorter ones, which separate near points."""

    num_points: int | None = None
    """Train without labels, on so many uniform random points, in place of a training file."""
    min_points: int | None = None
    """If given, every batch without labels draws its number of points, from min_points to num_points."""

    name = "tsp"

    def __post_init__(self) -> None:
        check_choice("direction", self.direction, DIRECTIONS)
        check_choice("reader", self.reader, READERS)
        for name in ("symmetries", "rotations", "random_start"):
            check_bool(name, getattr(self, name))
        if isinstance(self.training_file, list | tuple):
            # JSON and the command line give lists, also of one file. One form for all, so that tasks can be compared.
            files = tuple(self.training_file)
            object.__setattr__(self, "training_file", files[0] if len(files) == 1 else files or None)
        training = self.training_file if isinstance(self.training_file, tuple) else (self.training_file,)
        for name, paths in (("training_file", training), ("test_file", (self.test_file,))):
            for path in paths:
                if path is not None and not isinstance(path, str):
                    raise TypeError(f"{name} must be the name of a file, got {described(path)}")
        if self.num_points is not None:
            check_integer("num_points", self.num_points, 1)
            if self.training_file is not None:
                raise ValueError("num_points must be left out where there is a training_file, got both")
        if self.min_points is not None:
            check_integer("min_points", self.min_points, 1, self.num_points or 0)

    @property
    def cost(self) -> TourLength | None:
        """The length of a tour, if training has no labels."""
        return None if self.num_points is None else TourLength()

    def embedder(self) -> Mapping[str, object]:
        """Waves of the coordinates."""
        return {"kind": "points", **READERS[self.reader]}

    def max_items(self) -> int:
        """The largest number of points."""
        files = [*self._training_files(), *([] if self.test_file is None else [self.test_file])]
        sizes = [_read(name)[0].shape[1] for name in files] + ([] if self.num_points is None else [self.num_points])
        if not sizes:
            raise ValueError("a TSP task needs a training_file or a test_file, or num_points")
        return max(sizes)

    def data_facts(self) -> DataFacts:
        """Closed tours from a fixed start, through points of the unit square; N as in training."""
        if self.num_points is not None:
            least = self.num_points if self.min_points is None else self.min_points
            # Of uniform points every copy is as likely as any other.
            return DataFacts("tour", None, True, (least, self.num_points), (0.0, 1.0), "unit square", "square")
        sizes = [_read(name)[0].shape[1] for name in self._training_files()]
        num_items = (min(sizes), max(sizes)) if sizes else None
        copies: Literal["none", "square"] = "square" if self.symmetries else "none"
        return DataFacts("tour", self.direction, True, num_items, (0.0, 1.0), "unit square", copies)

    def _training_files(self) -> tuple[str, ...]:
        if self.training_file is None:
            return ()
        return (self.training_file,) if isinstance(self.training_file, str) else self.training_file

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` instances of one of the training files, or of random points."""
        if self.num_points is not None:
            N = self._draw_num_points(generator_of(seed, step, "number of points"))
            return _random_batch(
                torch.rand(size, N, 2, generator=generator_of(seed, step, "points"), dtype=torch.float64)
            )
        files = self._training_files()
        if not files:
            raise ValueError(
                "training_file, or num_points for random points, must be given to be trained on, got neither"
            )
        turn, place = divmod(step, len(files))
        number = int(torch.randperm(len(files), generator=generator_of(seed, turn, "files"))[place])
        points, order = _read(files[number])
        rows = rows_of_passes(len(points), seed, turn * size, size, "training instances")
        points, order = points[rows], order[rows]
        if self.symmetries:
            points = square_copy(points, torch.randint(8, (size,), generator=generator_of(seed, step, "symmetries")))
        if self.rotations:
            generator = generator_of(seed, step, "rotations")
            points = rotated(points, 2 * math.pi * torch.rand(size, generator=generator, dtype=points.dtype))
        if self.random_start:
            starts = torch.randint(order.shape[1], (size, 1), generator=generator_of(seed, step, "starts"))
            order = order.gather(1, (torch.arange(order.shape[1]) + starts) % order.shape[1])
        return tour_batch(points, self._directed(points, order, generator_of(seed, step, "directions")))

    @property
    def test_count(self) -> int | None:
        """How many instances the test file has; None without one."""
        return None if self.test_file is None else len(_read(self.test_file)[0])

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """The first `count` instances of the test file, for every seed; direction "random" is the file's here.

        Without one and without labels, random points, by their number and the seed.
        """
        if self.test_file is None and self.num_points is not None:
            for number, start in enumerate(range(0, count, size)):
                N = self._draw_num_points(generator_of(seed, number, "test number of points"))
                drawn = [generator_of(seed, row, "test points") for row in range(start, min(start + size, count))]
                yield _random_batch(torch.stack([torch.rand(N, 2, generator=g, dtype=torch.float64) for g in drawn]))
            return
        if self.test_file is None:
            raise ValueError(
                "test_file, or num_points for random points, must be given to be evaluated on, got neither"
            )
        points, order = _read(self.test_file)
        if count > len(points):
            raise ValueError(f"{self.test_file} has {len(points)} instances, {count} were asked for")
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            yield tour_batch(points[rows], self._directed(points[rows], order[rows], None))

    @staticmethod
    def search_cost(items: Tensor, order: Tensor) -> Tensor:
        """What a search for good tours minimises: their length."""
        return metrics.tour_length(items, order)

    def symmetric_copies(self, items: Tensor) -> Tensor:
        """The eight turned and mirrored copies of each instance, (8 B, N, 2), those of an instance consecutive."""
        return square_copy(items.repeat_interleave(8, 0), torch.arange(8).repeat(len(items)))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """Gap (of a file's tours), length and validity; for Euclidean tours also gap and length after `two_opt`.

        Without labels also the cost, which is the length.
        """
        if batch.mask is not None:
            raise ValueError("a batch of tours must have no mask: its instances have equally many points")
        length = batch_tour_length(batch, order)
        scores = _gap_of(batch, length, "gap") | {
            "length": length,
            "validity": metrics.tour_validity(order, batch.first),
        }
        if "distances" not in batch.extras:
            points, polished = batch.extras["points"], length.clone()
            is_tour = metrics.tour_validity(order) == 1
            polished[is_tour] = metrics.tour_length(points[is_tour], two_opt(points[is_tour], order[is_tour]))
            scores |= _gap_of(batch, polished, "gap_after_2opt") | {"length_after_2opt": polished}
        return scores if self.cost is None else {"cost": length, **scores}

    def heuristics(self, batch: Batch) -> dict[str, Tensor]:
        """Without labels: lengths (and gaps) of the nearest neighbour's tour and of local search from there."""
        if self.cost is None or "distances" in batch.extras:
            return {}
        points = batch.extras["points"]
        first = nearest_neighbour(points, batch.first)
        found: dict[str, Tensor] = {}
        for name, order in (("nearest_neighbour", first), ("local_search", local_search(points, first, self.cost))):
            length = metrics.tour_length(points, order)
            found |= {f"{name}_cost": length} | _gap_of(batch, length, f"{name}_gap")
        return found

    def _draw_num_points(self, generator: torch.Generator) -> int:
        assert self.num_points is not None
        if self.min_points is None:
            return self.num_points
        return int(torch.randint(self.min_points, self.num_points + 1, (), generator=generator))

    def _directed(self, points: Tensor, order: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.direction == "counterclockwise":
            return counterclockwise(points, order)
        if self.direction == "file" or generator is None:
            return order
        is_reversed = torch.rand(len(order), generator=generator) < 0.5
        return torch.where(is_reversed[:, None], backwards(order), order)


def tour_batch(points: Tensor, order: Tensor) -> Batch:
    """Points (B, N, 2) of the unit square and their best tours (B, N) as a batch; `first` is each tour's first item."""
    extras = {"points": points.double(), "best_length": metrics.tour_length(points, order)}
    return Batch(points.float(), order, first=order[:, 0], extras=extras)


def _random_batch(points: Tensor) -> Batch:
    """Points (B, N, 2) float64 without labels; tours begin at item 0, which is as random as any."""
    first = torch.zeros(len(points), dtype=torch.int64)
    return Batch.without_labels(points.float(), first=first, extras={"points": points})


def _gap_of(batch: Batch, length: Tensor, name: str) -> dict[str, Tensor]:
    """The gap to the best lengths of a batch that has them."""
    return {name: metrics.gap(length, batch.extras["best_length"])} if "best_length" in batch.extras else {}


def batch_tour_length(batch: Batch, order: Tensor) -> Tensor:
    """Lengths (B,) of tours of a batch: by its table `distances` (B, N, N) if it has one, else Euclidean."""
    if "distances" in batch.extras:
        return metrics.matrix_tour_length(batch.extras["distances"], order)
    return metrics.tour_length(batch.extras["points"], order)


def rotated(points: Tensor, angle: Tensor) -> Tensor:
    """Points (B, N, 2) turned by angles (B,) about the centre of the unit square, shrunk if they would leave it."""
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    x, y = (points - 0.5).unbind(2)
    offsets = torch.stack((cosine * x - sine * y, sine * x + cosine * y), 2)  # (B, N, 2)
    widest = offsets.abs().amax((1, 2), keepdim=True)
    return (0.5 + offsets * (0.5 / widest.clamp(min=0.5))).clamp(0, 1)


def _read(name: str) -> tuple[Tensor, Tensor]:
    path = Path(name)
    return _read_version(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=16)
def _read_version(path: Path, modified: int) -> tuple[Tensor, Tensor]:
    """The file's instances, kept in memory; `modified` changes with the file, which is then read again."""
    points, order = read_instances(path)
    check_unit_square(f"points of {path}", points)
    return points, order
