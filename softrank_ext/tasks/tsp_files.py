"""Files of tours: text with an instance a line, read, written and made with a solver.

A line is `x1 y1 ... xN yN output t1 ... tN t1` with nodes counted from 1, the format of the sets solved with Concorde.
"""

import json
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext.checks import ANY_FLOAT, check_integer, check_seed, check_tensor, described
from softrank_ext.costs import TourLength, iterated_local_search, nearest_neighbour
from softrank_ext.permutations import check_order

ROUNDS_PER_NODE = 5  # of the search for a tour


def read_instances(path: str | Path) -> tuple[Tensor, Tensor]:
    """Points (count, N, 2) float64 and tours (count, N) int64 of a text file, one instance a line."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: make such a file with `python -m softrank_ext generate tsp`")
    points: list[np.ndarray] = []
    tours: list[np.ndarray] = []
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
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
            if not np.isfinite(coordinates).all():
                raise ValueError(f"{path}, line {number} must have finite coordinates, got {left.strip()[:60]!r}")
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
    rounds: int | None = None,
    block: int = 2000,
    progress: bool = True,
) -> Path:
    """Make a file of `count` uniform instances with near-optimal tours, found by `costs.iterated_local_search`.

    rounds: of the search for each instance; None for 5 a node, which found the optimum of all 1,000 instances of 20
    nodes and of all but 3 of 256 of 50 nodes (0.004 % longer in the mean). Coordinates have six decimals.

    The same arguments give the same file. Blocks of instances are kept beside the file until it is complete, so a
    killed run continues where it stopped. A file that exists is returned as it is, if it was made with these settings.
    """
    path = Path(path)
    for name, value in (("count", count), ("num_nodes", num_nodes), ("block", block)):
        check_integer(name, value, 1)
    rounds = ROUNDS_PER_NODE * num_nodes if rounds is None else rounds
    check_integer("rounds", rounds, 0)
    check_seed(seed)
    settings: dict[str, object] = {
        "count": count, "num_nodes": num_nodes, "seed": seed, "rounds": rounds, "block": block,
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

    points = torch.rand(count, num_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    points = (points * 1e6).round() / 1e6
    parts = [path.with_name(f"{path.name}.{number:06d}") for number in range(-(-count // block))]
    with tqdm(total=count, unit="instance", disable=not progress, desc=path.name) as bar:
        for part, rows in zip(parts, points.split(block), strict=True):
            if not part.exists():
                write_instances(part, rows, _tours(rows, rounds, seed))
            bar.update(len(rows))
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


def solve(points: Tensor, rounds: int | None = None) -> Tensor:
    """A near-optimal tour (N,) int64 of points (N, 2) float in the unit square, from node 0; see `generate`."""
    check_tensor("points", points, ("N", 2), ANY_FLOAT)
    if len(points) == 0:
        raise ValueError(f"points must have at least one point, got {described(points)}")
    check_unit_square("points", points)
    rounds = ROUNDS_PER_NODE * len(points) if rounds is None else rounds
    check_integer("rounds", rounds, 0)
    return _tours(points[None].double(), rounds, 0)[0]


def _tours(points: Tensor, rounds: int, seed: int) -> Tensor:
    """Tours (B, N) from node 0 of points (B, N, 2)."""
    first = nearest_neighbour(points, torch.zeros(len(points), dtype=torch.int64))
    found = iterated_local_search(points, first, TourLength(), rounds=rounds, seed=seed)
    if found.is_interrupted:
        raise KeyboardInterrupt
    tour = found.order[:, 0]
    start = (tour == 0).long().argmax(1, keepdim=True)
    return tour.gather(1, (torch.arange(tour.shape[1]) + start) % tour.shape[1])


def check_unit_square(name: str, points: Tensor) -> None:
    """Raise ValueError unless all points lie in the unit square."""
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
