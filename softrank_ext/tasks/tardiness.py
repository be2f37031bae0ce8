"""One machine and jobs with due dates, without labels: which order makes the weighted tardiness lowest?

Random, by (seed, step), as in the OR-Library: times from 1 to 100 and weights from 1 to 10, uniform; due dates uniform
from `total (1 - factor - width / 2)` to `total (1 - factor + width / 2)`, with the tardiness factor and the width of
the due dates drawn per instance from .2, .4, .6, .8 and 1, unless they are given.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from softrank_ext.batch import Batch
from softrank_ext.checks import check_integer, check_number
from softrank_ext.costs import WeightedTardiness, atc, iterated_greedy, local_search
from softrank_ext.model import DataFacts
from softrank_ext.tasks.draws import generator_of

MOST_TIME, MOST_WEIGHT = 100, 10
GREEDY_ROUNDS = 100  # of the iterated greedy search beside a model


@dataclass(frozen=True)
class Tardiness:
    """Jobs of one machine, to be put in the order of the lowest weighted tardiness.

    items (B, N, 3) float32: processing time, weight and due date of each job. There are no right orders.
    """

    num_jobs: int = 20
    """Jobs of an instance; with min_jobs, the most that an instance may have."""
    min_jobs: int | None = None
    """If given, every batch draws its number of jobs, from min_jobs to num_jobs."""
    tardiness_factor: float | None = None
    """How tight due dates are, from 0 to 1; by default drawn per instance."""
    due_width: float | None = None
    """How far due dates spread, from 0 to 1, as a share of the total time; by default drawn per instance."""

    name = "tardiness"

    def __post_init__(self) -> None:
        check_integer("num_jobs", self.num_jobs, 1)
        if self.min_jobs is not None:
            check_integer("min_jobs", self.min_jobs, 1, self.num_jobs)
        for name in ("tardiness_factor", "due_width"):
            value = getattr(self, name)
            if value is not None:
                check_number(name, value, "from 0 to 1", lambda x: 0 <= x <= 1)

    @property
    def cost(self) -> WeightedTardiness:
        """What an order costs."""
        return WeightedTardiness()

    def embedder(self) -> Mapping[str, object]:
        """A reader of a job's time, weight and due date, relative to those of the instance."""
        return {"kind": "due-jobs"}

    def max_items(self) -> int:
        """The most jobs that an instance may have."""
        return self.num_jobs

    def data_facts(self) -> DataFacts:
        """As many jobs as the options say."""
        return DataFacts(num_items=(self.num_jobs if self.min_jobs is None else self.min_jobs, self.num_jobs))

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` random instances of one number of jobs."""
        jobs = self._draw_num_jobs(generator_of(seed, step, "training sizes"))
        return Batch.without_labels(self._random(size, jobs, generator_of(seed, step, "training jobs")))

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """`count` random instances, by their number and the seed; with a range, each batch draws its number of jobs."""
        for number, start in enumerate(range(0, count, size)):
            jobs = self._draw_num_jobs(generator_of(seed, number, "test sizes"))
            rows = range(start, min(start + size, count))
            drawn = [self._random(1, jobs, generator_of(seed, row, "test jobs")) for row in rows]
            yield Batch.without_labels(torch.cat(drawn))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """The cost."""
        return {"cost": self.cost(batch.items, order)}

    def heuristics(self, batch: Batch) -> dict[str, Tensor]:
        """Costs of the rule ATC, of local search from there, and of iterated greedy search."""
        first = atc(batch.items)
        searched = local_search(batch.items, first, self.cost)
        found = iterated_greedy(batch.items, first, self.cost, rounds=GREEDY_ROUNDS)
        orders = {"atc_cost": first, "atc_local_search_cost": searched, "iterated_greedy_cost": found}
        return {name: self.cost(batch.items, order) for name, order in orders.items()}

    def _draw_num_jobs(self, generator: torch.Generator) -> int:
        if self.min_jobs is None:
            return self.num_jobs
        return int(torch.randint(self.min_jobs, self.num_jobs + 1, (), generator=generator))

    def _random(self, count: int, jobs: int, generator: torch.Generator) -> Tensor:
        """Items (count, jobs, 3) of random instances."""
        times = torch.randint(1, MOST_TIME + 1, (count, jobs), generator=generator)
        weights = torch.randint(1, MOST_WEIGHT + 1, (count, jobs), generator=generator)
        factor, width = (torch.randint(1, 6, (2, count, 1), generator=generator) / 5).unbind(0)
        factor = factor if self.tardiness_factor is None else torch.full_like(factor, self.tardiness_factor)
        width = width if self.due_width is None else torch.full_like(width, self.due_width)
        total = times.sum(1, keepdim=True)
        share = 1 - factor + width * (torch.rand(count, jobs, generator=generator) - 0.5)
        # A due date before the start is as late as one at the start for every order: the cost only gains a constant.
        due = (total * share).round().clamp(min=0)
        return torch.stack((times, weights, due), 2).float()
