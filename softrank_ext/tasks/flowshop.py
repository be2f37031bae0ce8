"""The permutation flow shop without labels: random instances of Taillard's kind, or his published ones to test on.

Every job visits the machines in one order, and all machines take the jobs in one order: the one that is asked for.
Random, by (seed, step): the times, uniform from 1 to 99, and the numbers of jobs and machines if they have a range.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.batch import Batch
from softrank_ext.checks import check_choice, check_integer, check_tensor, described
from softrank_ext.costs import Makespan, TotalFlowTime, iterated_greedy, neh
from softrank_ext.costs.problems import NUMBERS
from softrank_ext.model import DataFacts
from softrank_ext.tasks.draws import generator_of

MOST_MACHINES = 20
MOST_TIME = 99
OBJECTIVES: dict[str, Makespan | TotalFlowTime] = {"makespan": Makespan(), "total_flow_time": TotalFlowTime()}
GREEDY_ROUNDS = 100  # of the iterated greedy search beside a model


@dataclass(frozen=True)
class FlowShop:
    """Jobs on machines in one order, to be put in the order of the lowest makespan or total flow time.

    items (B, N, 20) float32: the time of each job on each machine, zero on machines that the shop does not have. There
    are no right orders. extras, of Taillard's instances with a table of best makespans: best (B,) float64.
    """

    num_jobs: int = 20
    """Jobs of an instance; with min_jobs, the most that an instance may have."""
    min_jobs: int | None = None
    """If given, every batch draws its number of jobs, from min_jobs to num_jobs."""
    num_machines: int = 5
    """Machines of an instance, at most 20; with min_machines, the most that an instance may have."""
    min_machines: int | None = None
    """If given, every batch draws its number of machines, from min_machines to num_machines."""
    objective: Literal["makespan", "total_flow_time"] = "makespan"
    """What an order costs: the end of the last job, or the sum of the ends of all jobs."""
    test_file: str | None = None
    """File of Taillard's to test on, by default random instances; a best.csv beside it has the best known makespans."""

    name = "flowshop"

    def __post_init__(self) -> None:
        check_integer("num_jobs", self.num_jobs, 1)
        check_integer("num_machines", self.num_machines, 1, MOST_MACHINES)
        if self.min_jobs is not None:
            check_integer("min_jobs", self.min_jobs, 1, self.num_jobs)
        if self.min_machines is not None:
            check_integer("min_machines", self.min_machines, 1, self.num_machines)
        check_choice("objective", self.objective, OBJECTIVES)
        if self.test_file is not None and not isinstance(self.test_file, str):
            raise TypeError(f"test_file must be the name of a file, got {described(self.test_file)}")

    @property
    def cost(self) -> Makespan | TotalFlowTime:
        """What an order costs."""
        return OBJECTIVES[self.objective]

    @staticmethod
    def items_of(times: Tensor) -> Tensor:
        """Items (B, jobs, 20) float32 of processing times (B, jobs, machines), not negative, as models take them."""
        check_tensor("times", times, ("B", "jobs", "machines"), NUMBERS)
        machines = times.shape[2]
        if not 1 <= machines <= MOST_MACHINES:
            raise ValueError(f"times must have 1 to {MOST_MACHINES} machines, got {described(times)}")
        if not bool((times.double() >= 0).all() & times.double().isfinite().all()):
            raise ValueError("times must be finite and not negative")
        return torch.nn.functional.pad(times.float(), (0, MOST_MACHINES - machines))

    def embedder(self) -> Mapping[str, object]:
        """A reader of the times of a job, relative to the longest of the instance."""
        return {"kind": "times", "machines": MOST_MACHINES}

    def max_items(self) -> int:
        """The most jobs that an instance may have."""
        return self.num_jobs if self.test_file is None else max(self.num_jobs, read_taillard(self.test_file).shape[1])

    def data_facts(self) -> DataFacts:
        """As many jobs and machines as the options say."""
        jobs = self.num_jobs if self.min_jobs is None else self.min_jobs
        machines = self.num_machines if self.min_machines is None else self.min_machines
        return DataFacts(
            num_items=(jobs, self.num_jobs),
            value_range=(0.0, float(MOST_TIME)),
            num_machines=(machines, self.num_machines),
        )

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` random instances of one number of jobs and machines."""
        jobs, machines = self._sizes(generator_of(seed, step, "training sizes"))
        return Batch.without_labels(self._random(size, jobs, machines, generator_of(seed, step, "training times")))

    @property
    def test_count(self) -> int | None:
        """How many instances the test file has; None without one."""
        return None if self.test_file is None else len(read_taillard(self.test_file))

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """The first `count` instances of the test file, for every seed; or random ones, by their number and the seed.

        With a range of jobs or machines, each batch draws its own numbers.
        """
        if self.test_file is not None:
            yield from self._file_batches(self.test_file, count, size)
            return
        for number, start in enumerate(range(0, count, size)):
            jobs, machines = self._sizes(generator_of(seed, number, "test sizes"))
            rows = range(start, min(start + size, count))
            drawn = [self._random(1, jobs, machines, generator_of(seed, row, "test times")) for row in rows]
            yield Batch.without_labels(torch.cat(drawn))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """The cost, and the gap to the best known makespan where there is one."""
        return self._scores("", batch, order)

    def heuristics(self, batch: Batch) -> dict[str, Tensor]:
        """Costs and gaps of NEH, and of iterated greedy search from there."""
        first = neh(batch.items, self.cost)
        found = iterated_greedy(batch.items, first, self.cost, rounds=GREEDY_ROUNDS)
        return self._scores("neh_", batch, first) | self._scores("iterated_greedy_", batch, found)

    def _scores(self, prefix: str, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        costs = self.cost(batch.items, order)
        scores = {f"{prefix}cost": costs}
        if "best" in batch.extras:
            scores[f"{prefix}gap"] = metrics.gap(costs, batch.extras["best"])
        return scores

    def _sizes(self, generator: torch.Generator) -> tuple[int, int]:
        """Numbers of jobs and machines."""
        jobs, machines = self.num_jobs, self.num_machines
        if self.min_jobs is not None:
            jobs = int(torch.randint(self.min_jobs, self.num_jobs + 1, (), generator=generator))
        if self.min_machines is not None:
            machines = int(torch.randint(self.min_machines, self.num_machines + 1, (), generator=generator))
        return jobs, machines

    def _random(self, count: int, jobs: int, machines: int, generator: torch.Generator) -> Tensor:
        return self.items_of(torch.randint(1, MOST_TIME + 1, (count, jobs, machines), generator=generator))

    def _file_batches(self, file: str, count: int, size: int) -> Iterator[Batch]:
        times = read_taillard(file)
        if count > len(times):
            raise ValueError(f"{file} has {len(times)} instances, {count} were asked for")
        best = _best_makespans(Path(file), len(times)) if self.objective == "makespan" else None
        for start in range(0, count, size):
            rows = slice(start, min(start + size, count))
            extras = {} if best is None else {"best": best[rows]}
            yield Batch.without_labels(self.items_of(times[rows]), extras=extras)


def taillard_times(seed: int, jobs: int, machines: int) -> Tensor:
    """Times (jobs, machines) int64 of the instance that Taillard's generator makes of a published seed.

    `state = 16807 state mod (2^31 - 1)`; a time is `1 + floor(99 state / (2^31 - 1))`, machine after machine.
    """
    check_integer("seed", seed, 1, 2**31 - 2)
    times, state = [], seed
    for _ in range(jobs * machines):
        state = 16807 * state % (2**31 - 1)
        times.append(1 + MOST_TIME * state // (2**31 - 1))
    return torch.tensor(times, dtype=torch.int64).reshape(machines, jobs).T.contiguous()


def read_taillard(path: str | Path) -> Tensor:
    """Times (count, jobs, machines) int64 of a file of Taillard's: instances of one size, a line per machine."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing: it must be a file of Taillard's flow shops, as published")
    found: list[list[list[int]]] = []
    rows = 0
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), start=1):
        words = line.split()
        if not words or line.rstrip().endswith(":"):
            continue
        try:
            numbers = [int(word) for word in words]
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if rows == 0:
            if len(numbers) != 5 or min(numbers[:2]) < 1:
                raise ValueError(
                    f"{path}, line {number} must be jobs, machines, seed and two bounds, got {line.strip()!r}"
                )
            jobs, rows = numbers[:2]
            found.append([])
            continue
        if len(numbers) != jobs:
            raise ValueError(f"{path}, line {number} must have {jobs} times, got {len(numbers)}")
        found[-1].append(numbers)
        rows -= 1
    if not found or rows > 0:
        raise ValueError(f"{path} has no whole instance" if rows == 0 else f"{path} ends within an instance")
    shapes = {(len(instance[0]), len(instance)) for instance in found}
    if len(shapes) > 1:
        raise ValueError(f"{path} must have instances of one size, got jobs and machines {sorted(shapes)}")
    return torch.tensor(found, dtype=torch.int64).transpose(1, 2).contiguous()


def _best_makespans(path: Path, count: int) -> Tensor | None:
    """The best known makespans (count,) of a file's instances by the best.csv beside it, None if that has not all."""
    table = path.with_name("best.csv")
    if not table.exists():
        return None
    with table.open(newline="", encoding="utf-8-sig") as file:
        best = {row["instance"]: float(row["best"]) for row in csv.DictReader(file)}
    names = [f"{path.stem}_{number}" for number in range(1, count + 1)]
    return torch.tensor([best[name] for name in names], dtype=torch.float64) if set(names) <= set(best) else None
