"""The travelling salesman: points of the unit square and their shortest tours.

A tour is an order (`order[place] = item`) that closes; its first item, the start, is given to the model as
`Batch.first`. Training and test instances are lines of text files, `x1 y1 ... xN yN output t1 ... tN t1` with nodes
counted from 1, the format of the sets solved with Concorde. `generate` makes such files; TSPLIB files are read by
`tasks.tsplib`.

Random, by (seed, step): which training file a batch comes from, each once in as many steps as there are files; which
instance comes next in a pass over it; and, if they are set, the symmetry of the square, the rotation, the start and the
direction. Test instances are the first ones of their file.
"""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext import metrics
from softrank_ext.batch import Batch
from softrank_ext.checks import (
    ANY_FLOAT,
    check_bool,
    check_choice,
    check_integer,
    check_positive,
    check_tensor,
    described,
)
from softrank_ext.model import DataFacts
from softrank_ext.permutations import check_order
from softrank_ext.tasks.draws import generator_of, rows_of_passes
from softrank_ext.tasks.two_opt import plain_two_opt as plain_two_opt
from softrank_ext.tasks.two_opt import two_opt as two_opt

DIRECTIONS = ("file", "counterclockwise", "random")
READERS: dict[str, dict[str, float]] = {"paper": {}, "fine": {"cycles": 16.0, "slowing": 64.0}}


@dataclass(frozen=True)
class TSP:
    """Points of the unit square with their shortest tours, from text files, an instance a line.

    items (B, N, 2) float32; first (B,): the start. extras: points (B, N, 2) float64, best_length (B,) float64, of the
    file's tour. Points outside the unit square are an error.
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

    def embedder(self) -> Mapping[str, object]:
        """Waves of the coordinates."""
        return {"kind": "points", **READERS[self.reader]}

    def max_items(self) -> int:
        """The largest number of points in the files."""
        files = [*self._training_files(), *([] if self.test_file is None else [self.test_file])]
        if not files:
            raise ValueError("a TSP task needs a training_file or a test_file")
        return max(_read(name)[0].shape[1] for name in files)

    def data_facts(self) -> DataFacts:
        """Closed tours from a fixed start, through points of the unit square; N as in the training files."""
        sizes = [_read(name)[0].shape[1] for name in self._training_files()]
        num_items = (min(sizes), max(sizes)) if sizes else None
        return DataFacts("tour", self.direction, True, num_items, (0.0, 1.0), "unit square")

    def _training_files(self) -> tuple[str, ...]:
        if self.training_file is None:
            return ()
        return (self.training_file,) if isinstance(self.training_file, str) else self.training_file

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` instances of one of the training files."""
        files = self._training_files()
        if not files:
            raise ValueError("this TSP task was made without a training_file")
        turn, place = divmod(step, len(files))
        number = int(torch.randperm(len(files), generator=generator_of(seed, turn, "files"))[place])
        points, order = _read(files[number])
        rows = rows_of_passes(len(points), seed, turn * size, size, "training instances")
        points, order = points[rows], order[rows]
        if self.symmetries:
            points = turned(points, torch.randint(8, (size,), generator=generator_of(seed, step, "symmetries")))
        if self.rotations:
            generator = generator_of(seed, step, "rotations")
            points = rotated(points, 2 * math.pi * torch.rand(size, generator=generator, dtype=points.dtype))
        if self.random_start:
            starts = torch.randint(order.shape[1], (size, 1), generator=generator_of(seed, step, "starts"))
            order = order.gather(1, (torch.arange(order.shape[1]) + starts) % order.shape[1])
        return tour_batch(points, self._directed(points, order, generator_of(seed, step, "directions")))

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """The first `count` instances of the test file, for every seed; direction "random" is the file's here."""
        if self.test_file is None:
            raise ValueError("this TSP task was made without a test_file")
        points, order = _read(self.test_file)
        if count > len(points):
            raise ValueError(f"{self.test_file} has {len(points)} instances, {count} were asked for")
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            yield tour_batch(points[rows], self._directed(points[rows], order[rows], None))

    def symmetric_copies(self, items: Tensor) -> Tensor:
        """The eight turned and mirrored copies of each instance, (8 B, N, 2), those of an instance consecutive."""
        return turned(items.repeat_interleave(8, 0), torch.arange(8).repeat(len(items)))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """Gap, length and validity; for Euclidean tours also gap and length after `two_opt`."""
        if batch.mask is not None:
            raise ValueError("a batch of tours must have no mask: its instances have equally many points")
        length, best_length = batch_tour_length(batch, order), batch.extras["best_length"]
        validity = metrics.tour_validity(order, batch.first)
        scores = {"gap": metrics.gap(length, best_length), "length": length, "validity": validity}
        if "distances" not in batch.extras:
            points, polished = batch.extras["points"], length.clone()
            is_tour = metrics.tour_validity(order) == 1
            polished[is_tour] = metrics.tour_length(points[is_tour], two_opt(points[is_tour], order[is_tour]))
            scores |= {"gap_after_2opt": metrics.gap(polished, best_length), "length_after_2opt": polished}
        return scores

    def _directed(self, points: Tensor, order: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.direction == "counterclockwise":
            is_reversed = signed_area(points, order) < 0
        elif self.direction == "random" and generator is not None:
            is_reversed = torch.rand(len(order), generator=generator) < 0.5
        else:
            return order
        backwards = torch.cat((order[:, :1], order[:, 1:].flip(1)), 1)
        return torch.where(is_reversed[:, None], backwards, order)


def tour_batch(points: Tensor, order: Tensor) -> Batch:
    """Points (B, N, 2) of the unit square and their best tours (B, N) as a batch; `first` is each tour's first item."""
    extras = {"points": points.double(), "best_length": metrics.tour_length(points, order)}
    return Batch(points.float(), order, first=order[:, 0], extras=extras)


def batch_tour_length(batch: Batch, order: Tensor) -> Tensor:
    """Lengths (B,) of tours of a batch: by its table `distances` (B, N, N) if it has one, else Euclidean."""
    if "distances" in batch.extras:
        return metrics.matrix_tour_length(batch.extras["distances"], order)
    return metrics.tour_length(batch.extras["points"], order)


def signed_area(points: Tensor, order: Tensor) -> Tensor:
    """Signed area (B,) inside a tour, positive if counterclockwise: `sum_place (x y' - x' y) / 2`."""
    stops = points.gather(1, order[..., None].expand(-1, -1, 2))  # (B, place, 2)
    after = stops.roll(-1, 1)
    return (stops[..., 0] * after[..., 1] - after[..., 0] * stops[..., 1]).sum(1) / 2


def turned(points: Tensor, symmetry: Tensor) -> Tensor:
    """Points (B, N, 2) under symmetries 0 to 7 of the unit square: bit 1 mirrors x, 2 mirrors y, 4 swaps the two."""
    mirrored = torch.stack((symmetry % 2, symmetry // 2 % 2), 1)[:, None] == 1  # (B, 1, 2)
    points = torch.where(mirrored, 1 - points, points)
    return torch.where((symmetry >= 4)[:, None, None], points.flip(2), points)


def rotated(points: Tensor, angle: Tensor) -> Tensor:
    """Points (B, N, 2) turned by angles (B,) about the centre of the unit square, shrunk if they would leave it."""
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    x, y = (points - 0.5).unbind(2)
    offsets = torch.stack((cosine * x - sine * y, sine * x + cosine * y), 2)  # (B, N, 2)
    widest = offsets.abs().amax((1, 2), keepdim=True)
    return (0.5 + offsets * (0.5 / widest.clamp(min=0.5))).clamp(0, 1)


def read_instances(path: str | Path) -> tuple[Tensor, Tensor]:
    """Points (count, N, 2) float64 and tours (count, N) int64 of a text file, one instance a line."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: make such a file with `python -m softrank_ext generate tsp`")
    points: list[np.ndarray] = []
    tours: list[np.ndarray] = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            left, _, right = line.partition("output")
            try:
                # Python's own float and int: numpy's reading of words is several times slower.
                coordinates, nodes = np.array([*map(float, left.split())]), np.array([*map(int, right.split())])
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
            if len(coordinates) != 2 * (len(nodes) - 1) or len(nodes) < 2 or nodes[0] != nodes[-1]:
                raise ValueError(
                    f"{path}, line {number} must be x1 y1 ... xN yN output t1 ... tN t1, "
                    f"got {len(coordinates)} coordinates and {len(nodes)} nodes"
                )
            if points and len(coordinates) != len(points[0]):
                raise ValueError(
                    f"{path}, line {number} has {len(nodes) - 1} nodes, those before have {len(points[0]) // 2}"
                )
            points.append(coordinates)
            tours.append(nodes[:-1] - 1)
    if not points:
        raise ValueError(f"{path} has no instances")
    order = torch.from_numpy(np.stack(tours))
    check_order(order, f"tours of {path}")
    return torch.from_numpy(np.stack(points)).unflatten(1, (-1, 2)), order


def write_instances(path: str | Path, points: Tensor, order: Tensor) -> None:
    """Write points (count, N, 2) and tours (count, N) as a text file; the file appears when it is complete."""
    path = Path(path)
    new = path.with_name(path.name + ".new")
    with new.open("w") as file:
        file.writelines(map(_line_of, points.numpy(), order.numpy()))
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)


def generate(
    path: str | Path,
    count: int,
    num_nodes: int,
    *,
    seed: int = 0,
    seconds: float | None = None,
    workers: int | None = None,
    block: int = 1000,
    progress: bool = True,
) -> Path:
    """Make a file of `count` uniform instances with near-optimal tours, found with fast-tsp (MIT licence).

    seconds: solver time per instance; None for 0.2 ms a node, which found the optimum of all 1,000 instances of 20
    nodes and of all but 1 of 256 of 50 nodes (that one 0.0003 % longer). workers: threads, None for one per core.

    Blocks of instances are kept beside the file until it is complete, so a killed run continues where it stopped. A
    file that exists is returned as it is, if it was made with these settings. Points depend on seed and block only;
    tours may differ from run to run where two are equally good or time was short.
    """
    path = Path(path)
    seconds = 2e-4 * num_nodes if seconds is None else seconds
    for name, value in (("count", count), ("num_nodes", num_nodes), ("block", block)):
        check_integer(name, value, 1)
    check_positive("seconds", seconds)
    _solver()
    settings: dict[str, object] = {
        "count": count, "num_nodes": num_nodes, "seed": seed, "seconds": seconds, "block": block,
    }  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    settings_file = path.with_name(path.name + ".json")
    if settings_file.exists():
        found = json.loads(settings_file.read_text())
        if found != settings:
            raise ValueError(f"{path} was made with {found}, not with {settings}: choose another name or delete it")
        if path.exists():
            return path
    elif path.exists():
        raise ValueError(f"{path} exists and was not made by generate: choose another name")
    _write_text(settings_file, json.dumps(settings) + "\n")

    sizes = [min(block, count - start) for start in range(0, count, block)]
    parts = [path.with_name(f"{path.name}.{number:06d}") for number in range(len(sizes))]
    workers = workers or len(os.sched_getaffinity(0))
    # Threads are enough: fast-tsp releases the interpreter lock while it searches.
    with tqdm(total=count, unit="instance", disable=not progress, desc=path.name) as bar, ThreadPool(workers) as pool:
        for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            if part.exists():
                bar.update(size)
                continue
            points = torch.rand(size, num_nodes, 2, generator=generator_of(seed, number, "tsp"), dtype=torch.float64)
            tours = []
            for tour in pool.imap(_solve, [(row, seconds) for row in points.numpy()], chunksize=8):
                tours.append(torch.from_numpy(tour))
                bar.update(1)
            write_instances(part, points, torch.stack(tours))
    new = path.with_name(path.name + ".new")
    with new.open("w") as file:
        for part in parts:
            file.write(part.read_text())
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    for part in parts:
        part.unlink()
    return path


def solve(points: Tensor, seconds: float | None = None) -> Tensor:
    """A near-optimal tour (N,) int64 of points (N, 2) float in the unit square, from node 0; see `generate`."""
    check_tensor("points", points, ("N", 2), ANY_FLOAT)
    if len(points) == 0:
        raise ValueError(f"points must have at least one point, got {described(points)}")
    _check_unit_square("points", points)
    seconds = 2e-4 * len(points) if seconds is None else seconds
    return torch.from_numpy(_solve((points.double().numpy(), seconds)))


def _solve(instance: tuple[np.ndarray, float]) -> np.ndarray:
    points, seconds = instance
    N = len(points)
    if N < 4:
        return np.arange(N)
    # fast-tsp takes 16-bit distances, and solves up to 20 nodes by dynamic programming: 150 ms at 20. Copies of node 0
    # do not change the best length and make it use its local search, a hundred times faster.
    copies = 21 - N if 14 < N < 21 else 0
    padded = np.concatenate((points, np.repeat(points[:1], copies, 0)))
    distances = np.linalg.norm(padded[:, None] - padded[None], axis=2)
    table = np.rint(distances * 46000).astype(np.uint16)
    best, best_length = np.arange(N), np.inf
    for _ in range(5):
        start = time.thread_time()
        tour = np.array(_solver().find_tour(table, duration_seconds=seconds))
        tour = tour[tour < N]
        length = distances[tour, np.roll(tour, -1)].sum()
        if length < best_length:
            best, best_length = tour, length
        # The limit is in wall-clock time: on a busy machine the search may not have run at all.
        if N <= 14 or time.thread_time() - start >= 0.8 * seconds:
            break
    return np.roll(best, -int(np.flatnonzero(best == 0)[0])).astype(np.int64)


def _solver() -> ModuleType:
    try:
        import fast_tsp
    except ImportError as error:
        raise ImportError("solving needs fast-tsp: pip install fast-tsp, or pip install 'softrank_ext[tsp]'") from error
    return fast_tsp


def _check_unit_square(name: str, points: Tensor) -> None:
    is_wrong = ~((points >= 0) & (points <= 1))  # NaN is wrong too
    if bool(is_wrong.any()):
        raise ValueError(f"{name} must lie in the unit square, got a coordinate of {float(points[is_wrong][0])}")


def _line_of(points: np.ndarray, tour: np.ndarray) -> str:
    nodes = [*(tour + 1), tour[0] + 1]
    return f"{' '.join(map(repr, points.flatten().tolist()))} output {' '.join(map(str, nodes))}\n"


def _write_text(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.replace(new, path)


def _read(name: str) -> tuple[Tensor, Tensor]:
    path = Path(name)
    return _read_version(path, path.stat().st_mtime_ns if path.exists() else 0)


@lru_cache(maxsize=16)
def _read_version(path: Path, modified: int) -> tuple[Tensor, Tensor]:
    """The file's instances, kept in memory; `modified` changes with the file, which is then read again."""
    points, order = read_instances(path)
    _check_unit_square(f"points of {path}", points)
    return points, order
