"""Files of tours: text with an instance a line, read, written and made with a solver.

A line is `x1 y1 ... xN yN output t1 ... tN t1` with nodes counted from 1, the format of the sets solved with Concorde.
"""

import json
import os
import time
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext.checks import ANY_FLOAT, check_integer, check_positive, check_tensor, described
from softrank_ext.permutations import check_order
from softrank_ext.tasks.draws import generator_of


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
    check_unit_square("points", points)
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
