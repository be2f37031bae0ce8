"""Costs of known order problems: flow shops, one machine with due dates, linear ordering.

Items and orders may have any leading dimensions, items (..., N, F) and order (..., N); costs are (...) float64. On a
CPU they are computed compiled, with the bits of the plain-torch `reference` of each.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from softrank_ext._libraries import compiled_module, has_compiled_module
from softrank_ext.checks import ANY_FLOAT, check_tensor, described
from softrank_ext.costs.form import Cost

NUMBERS = (*ANY_FLOAT, torch.int32, torch.int64)


@dataclass(frozen=True)
class Makespan:
    """Permutation flow shop: when the last job ends on the last machine.

    `end[k, i] = max(end[k - 1, i], end[k, i - 1]) + time[order[i], k]` for machine k and place i; the last one counts.
    items: (..., N, M), time of each job on each machine. Machines at the end on which no job has a time change nothing:
    items of shops with fewer machines may be padded with zeros.
    """

    name = "makespan"

    def __call__(self, items: Tensor, order: Tensor) -> Tensor:
        """The makespans of these orders."""
        return _costs_of(self.name, self.reference, self.table_of(items, order), order)

    def table_of(self, items: Tensor, order: Tensor) -> Tensor:
        """The processing times (..., N, M) float64 of these items."""
        check_tensor("order", order, ("...", "N"), torch.int64)
        hint = "; it must be times of jobs on machines that fit order"
        times = check_tensor("items", items, (*order.shape, "M"), NUMBERS, hint)
        if times.shape[-1] == 0:
            raise ValueError(f"items must have at least one machine, got {described(items)}")
        return times.double()

    def reference(self, items: Tensor, order: Tensor) -> Tensor:
        """The makespans in plain torch."""
        return _job_ends(items, order)[..., -1:].sum(-1)


@dataclass(frozen=True)
class TotalFlowTime:
    """Permutation flow shop: the sum of all jobs' ends on the last machine; otherwise as `Makespan`."""

    name = "total_flow_time"

    def __call__(self, items: Tensor, order: Tensor) -> Tensor:
        """The total flow times of these orders."""
        return _costs_of(self.name, self.reference, self.table_of(items, order), order)

    def table_of(self, items: Tensor, order: Tensor) -> Tensor:
        """The processing times (..., N, M) float64 of these items."""
        return Makespan().table_of(items, order)

    def reference(self, items: Tensor, order: Tensor) -> Tensor:
        """The total flow times in plain torch."""
        return _job_ends(items, order).cumsum(-1)[..., -1:].sum(-1)


@dataclass(frozen=True)
class WeightedTardiness:
    """One machine: `sum_i weight_i max(end_i - due_i, 0)`, where job i ends with all jobs before it and itself.

    items: (..., N, 3), processing time, weight and due date of each job.
    """

    name = "weighted_tardiness"

    def __call__(self, items: Tensor, order: Tensor) -> Tensor:
        """The weighted tardiness of these orders."""
        return _costs_of(self.name, self.reference, self.table_of(items, order), order)

    def table_of(self, items: Tensor, order: Tensor) -> Tensor:
        """The jobs (..., N, 3) float64 of these items."""
        check_tensor("order", order, ("...", "N"), torch.int64)
        hint = "; it must be time, weight and due date of jobs that fit order"
        return check_tensor("items", items, (*order.shape, 3), NUMBERS, hint).double()

    def reference(self, items: Tensor, order: Tensor) -> Tensor:
        """The weighted tardiness in plain torch."""
        time, weight, due = _in_order(items, order).unbind(-1)  # (..., place) each
        late = (time.cumsum(-1) - due).clamp(min=0) * weight
        return late.cumsum(-1)[..., -1:].sum(-1)


@dataclass(frozen=True)
class LinearOrdering:
    """Linear ordering: the sum of the weights that point back, `sum_{i < j} weights[order[j], order[i]]`.

    items: (..., N, N): weights[a, b] is what it costs if b stands before a. Preferences by votes, for example: the
    number of voters who want a before b.
    """

    name = "linear_ordering"

    def __call__(self, items: Tensor, order: Tensor) -> Tensor:
        """The backward weights of these orders."""
        return _costs_of(self.name, self.reference, self.table_of(items, order), order)

    def table_of(self, items: Tensor, order: Tensor) -> Tensor:
        """The weights (..., N, N) float64 of these items."""
        check_tensor("order", order, ("...", "N"), torch.int64)
        hint = "; it must be weights from item to item that fit order"
        return check_tensor("items", items, (*order.shape, order.shape[-1]), NUMBERS, hint).double()

    def reference(self, items: Tensor, order: Tensor) -> Tensor:
        """The backward weights in plain torch, row after row."""
        weights = _in_order(_in_order(items, order).mT, order).mT  # (..., place, place)
        return weights.tril(-1).flatten(-2).cumsum(-1)[..., -1:].sum(-1)


Problem = Makespan | TotalFlowTime | WeightedTardiness | LinearOrdering


def _costs_of(name: str, reference: Cost, table: Tensor, order: Tensor) -> Tensor:
    """The costs (...) by the compiled function of that name, or by the reference."""
    if not has_compiled_module() or order.numel() == 0 or table.device.type != "cpu":
        return reference(table, order)
    compiled: Callable[..., object] = compiled_module().order_costs
    rows = order.reshape(-1, order.shape[-1]).numpy()
    costs = compiled(table.reshape(-1, *table.shape[-2:]).numpy(), rows, name, torch.get_num_threads())
    return torch.as_tensor(costs).reshape(order.shape[:-1])


def _in_order(items: Tensor, order: Tensor) -> Tensor:
    """Rows of items (..., N, F) float64 by place."""
    return items.double().gather(-2, order[..., None].expand(*order.shape, items.shape[-1]))


def _job_ends(items: Tensor, order: Tensor) -> Tensor:
    """When the job at each place ends on the last machine, (..., place) float64."""
    times = _in_order(items, order)  # (..., place, machine)
    ends = list(times.new_zeros(times.shape[-1], *times.shape[:-2]))  # of the job before, a tensor (...) per machine
    last = []
    for place in range(times.shape[-2]):
        end = times.new_zeros(times.shape[:-2])
        for machine in range(times.shape[-1]):
            end = ends[machine] = torch.maximum(end, ends[machine]) + times[..., place, machine]
        last.append(end)
    return torch.stack(last, -1) if last else times.new_zeros(order.shape)
