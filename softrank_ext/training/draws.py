"""What the objectives that learn from a cost train on: drawn orders, their costs, and labels made of them.

Orders are `order[place] = item`. Draw k of instance number i of a run is sample number `i * draws + k` of the run's
seed, by one prediction from noise at time 1, so it is the same in a resumed run. `SelfLabel(rebuilt=...)` makes some of
the draws of parts of the cheapest order known.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from softrank_ext.batch import Batch
from softrank_ext.choices import Draw, Rebuild
from softrank_ext.constraints import Constraining, Rules, rules_of
from softrank_ext.costs import Cost, costs_of, local_search
from softrank_ext.model import OrderModel, SoftRankModel
from softrank_ext.noise import RowNoise
from softrank_ext.permutations import arrange
from softrank_ext.processes import Bridge, OnePass
from softrank_ext.sampling import pins_of, sample
from softrank_ext.tasks import Task
from softrank_ext.training.cost_objectives import CostObjective, Preference, Reinforce, SelfLabel, ranking_loss
from softrank_ext.training.partial import parts_of

_REBUILD_SEED = 0x5EBD  # rebuilt draws have noise of their own


class Drawn(NamedTuple):
    """Orders drawn of a batch's instances, (B, draws, N), and their costs, (B, draws) float64, infinite where an order
    is not allowed. rules: that the draws keep, over items, a row per instance, or None."""

    batch: Batch
    order: Tensor
    cost: Tensor
    rules: Rules | None


class KeptLabels(nn.Module):
    """The cheapest order found so far of each of `count` fixed instances of at most N items, and its cost."""

    order: Tensor
    cost: Tensor

    def __init__(self, count: int, N: int) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(N, dtype=torch.int32).repeat(count, 1))
        self.register_buffer("cost", torch.full((count,), torch.inf, dtype=torch.float64))

    def take(self, rows: Tensor, order: Tensor, cost: Tensor) -> None:
        """Keep orders (B, N) of the instances `rows` (B,) where they are cheaper; all processes take those of all."""
        if dist.is_initialized():
            rows, order, cost = (_gathered(tensor) for tensor in (rows, order, cost))
        for row, found, price in zip(rows.tolist(), order, cost.tolist(), strict=True):
            if price < float(self.cost[row]):
                self.order[row, : len(found)] = found.to(torch.int32)
                self.cost[row] = price


def _gathered(tensor: Tensor) -> Tensor:
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)


@dataclass
class Tally:
    """Sums since the last report: instances, those skipped since no draw was allowed, those whose kept label became
    cheaper, draws, mean and best costs, and seconds."""

    instances: int = 0
    skipped: int = 0
    improved: int = 0
    draws: int = 0
    mean_cost: float = 0.0
    best_cost: float = 0.0
    draw_seconds: float = 0.0
    cost_seconds: float = 0.0

    def numbers(self, seconds: float, world: int, device: torch.device) -> dict[str, float]:
        """What a report says of `seconds` of training, over all processes."""
        own = [float(value) for value in vars(self).values()]
        if world > 1:
            sums = torch.tensor(own, dtype=torch.float64, device=device)
            dist.all_reduce(sums)
            own = sums.tolist()
        total = Tally(*own)  # type: ignore[arg-type]
        judged = max(total.instances - total.skipped, 1)
        draw_share, cost_share = (part / world / seconds for part in (total.draw_seconds, total.cost_seconds))
        return {
            "draw_cost": total.mean_cost / judged,
            "best_draw_cost": total.best_cost / judged,
            "labels_improved": total.improved / max(total.instances, 1),
            "instances_skipped": total.skipped / max(total.instances, 1),
            "draws_per_second": total.draws / max(total.draw_seconds / world, 1e-9),
            "draw_share": draw_share,
            "cost_share": cost_share,
            "update_share": 1 - draw_share - cost_share,
        }


class Drawer:
    """Draws orders, asks the task what they cost, and keeps labels.

    interruptible: a context in which Ctrl-C ends a cost at once.
    """

    def __init__(self, model: OrderModel, task: Task, objective: CostObjective, seed: int) -> None:
        self.model, self.objective, self.seed = model, objective, seed
        self.cost = cost_of(task, objective)
        self.constraints: Constraining = getattr(task, "constraints", None)
        _check_model(model, objective)
        count: int | None = getattr(task, "training_count", None)
        keeps = isinstance(objective, SelfLabel) and count is not None
        self.kept = KeptLabels(count, task.max_items()) if keeps and count is not None else None
        self.tally = Tally()

    def of(
        self,
        batch: Batch,
        samples: Tensor,
        iteration: int,
        interruptible: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> Batch | Drawn:
        """What the loss takes: the batch with the cheapest orders as its right ones (SelfLabel), or the draws.

        samples: (B,) int64, the instances' numbers in the run, one after the other.
        """
        began = time.perf_counter()
        order, rules = self._draw(batch, int(samples[0]))
        drawn_at = time.perf_counter()
        with interruptible(), _named(iteration):
            drawn = self._judged(batch, order, rules)
        judged_at = time.perf_counter()
        draw_seconds, cost_seconds = drawn_at - began, judged_at - drawn_at
        if isinstance(self.objective, SelfLabel) and self.objective.rebuilt > 0:
            again = self._rebuild(drawn, int(samples[0]))
            drawn_at = time.perf_counter()
            with interruptible(), _named(iteration):
                more = self._judged(batch, again, rules)
            drawn = Drawn(batch, torch.cat((drawn.order, more.order), 1), torch.cat((drawn.cost, more.cost), 1), rules)
            draw_seconds, cost_seconds = (
                draw_seconds + drawn_at - judged_at, cost_seconds + time.perf_counter() - drawn_at
            )  # fmt: skip
        order = drawn.order
        best_cost, best = drawn.cost.min(1)
        self._count(drawn.cost, best_cost, draw_seconds, cost_seconds)
        if not isinstance(self.objective, SelfLabel):
            return drawn
        label = order[torch.arange(len(order), device=order.device), best]  # (B, N)
        if self.kept is not None:
            rows = batch.extras["instance"]
            self.tally.improved += int((best_cost < self.kept.cost[rows]).sum())
            self.kept.take(rows, label, best_cost)
            label, best_cost = self.kept.order[rows, : label.shape[1]].long(), self.kept.cost[rows]
        known = None
        if not bool(best_cost.isfinite().all()):  # no order is known of these: none of their places counts
            known = torch.where(best_cost.isfinite(), label.shape[1], 0)
        return replace(batch, order=label, known=known)

    def drawn(self, batch: Batch, first_instance: int) -> Drawn:
        """Draws as they come from the model, and their costs. first_instance: the number of the batch's first."""
        order, rules = self._draw(batch, first_instance)
        return Drawn(batch, order, draw_costs(self.cost, batch, order), rules)

    def _judged(self, batch: Batch, order: Tensor, rules: Rules | None) -> Drawn:
        """The orders (B, draws, N), polished if asked, and their costs."""
        if isinstance(self.objective, SelfLabel) and self.objective.polish > 0:
            order = self._polished(batch, order, rules)
        return Drawn(batch, order, draw_costs(self.cost, batch, order), rules)

    @torch.no_grad()
    def _rebuild(self, drawn: Drawn, first_instance: int) -> Tensor:
        """Orders (B, rebuilt, N): the cheapest known of each instance with a part drawn again."""
        assert isinstance(self.objective, SelfLabel)
        batch, again = drawn.batch, self.objective.rebuilt
        B, _, N = drawn.order.shape
        cost, best = drawn.cost.min(1)
        order = drawn.order[torch.arange(B, device=best.device), best]  # (B, N)
        if self.kept is not None:
            rows = batch.extras["instance"]
            is_known = self.kept.cost[rows] < cost
            order = torch.where(is_known[:, None], self.kept.order[rows, :N].long(), order)
        of_row = torch.arange(B, device=order.device).repeat_interleave(again)
        numbers = first_instance * again + torch.arange(len(of_row), device=order.device)
        starts = Batch(
            batch.items[of_row], order[of_row], mask=None if batch.mask is None else batch.mask[of_row],
            first=None if batch.first is None else batch.first[of_row],
        )  # fmt: skip
        seed = (self.seed + _REBUILD_SEED) % 2**63
        noised = parts_of(self.model, starts, seed, numbers)
        return sample(
            self.model, batch.items, mask=batch.mask, constraints=row_constraints(batch, self.constraints),
            start=Rebuild(starts.order.view(B, again, N), noised.view(B, again, N)), num_samples=again, steps=1,
            decode=Draw(self.objective.temperature), seed=seed, first_sample=first_instance * again,
        ).order  # fmt: skip

    @torch.no_grad()
    def _draw(self, batch: Batch, first_instance: int) -> tuple[Tensor, Rules | None]:
        """Orders (B, draws that are not rebuilt, N), and the rules that they keep."""
        draws = self.objective.draws - (self.objective.rebuilt if isinstance(self.objective, SelfLabel) else 0)
        constraints = row_constraints(batch, self.constraints)
        temperature = self.objective.temperature if isinstance(self.objective, SelfLabel) else 1.0
        samples = sample(
            self.model, batch.items, mask=batch.mask, constraints=constraints, num_samples=draws,
            steps=None if isinstance(self.model.process, OnePass) else 1, decode=Draw(temperature), seed=self.seed,
            first_sample=first_instance * draws,
        )  # fmt: skip
        B, N = batch.order.shape
        rules = rules_of(self.constraints, B, N, batch.mask, device=samples.order.device)
        return samples.order, rules

    def _polished(self, batch: Batch, order: Tensor, rules: Rules | None) -> Tensor:
        assert isinstance(self.objective, SelfLabel)
        B, draws, N = order.shape
        rows = torch.arange(B, device=order.device).repeat_interleave(draws)
        polished = local_search(
            batch.items[rows], order.flatten(0, 1), self.cost, limit=self.objective.polish,
            constraints=None if rules is None else rules.rows(rows), keep_first=batch.first is not None,
            mask=None if batch.mask is None else batch.mask[rows],
        )  # fmt: skip
        return polished.view(B, draws, N)

    def _count(self, cost: Tensor, best: Tensor, draw_seconds: float, cost_seconds: float) -> None:
        is_finite, has_any = cost.isfinite(), best.isfinite()
        means = cost.masked_fill(~is_finite, 0.0).sum(1) / is_finite.sum(1).clamp(min=1)
        tally = self.tally
        tally.instances += len(cost)
        tally.skipped += int((~has_any).sum())
        tally.draws += cost.numel()
        tally.mean_cost += float(means.sum())
        tally.best_cost += float(best[has_any].sum())
        tally.draw_seconds += draw_seconds
        tally.cost_seconds += cost_seconds


def cost_of(task: Task, objective: object) -> Cost:
    """The task's cost; raises ValueError if it has none."""
    cost: Cost | None = getattr(task, "cost", None)
    if cost is None:
        raise ValueError(f"{type(objective).__name__} needs a task with a cost, and the task {task.name} has none")
    return cost


def _check_model(model: OrderModel, objective: CostObjective) -> None:
    name = type(objective).__name__
    process: Any = model.process
    if not hasattr(model, "log_prob"):
        raise ValueError(f"{name} needs a model with log-probabilities, got a {model.model_type} model")
    if not isinstance(process, OnePass) and not (isinstance(process, Bridge) and process.target == "clean"):
        raise ValueError(f'{name} needs a model whose process is a Bridge with the target "clean", got {process}')
    if isinstance(objective, SelfLabel) and objective.rebuilt > 0 and isinstance(process, OnePass):
        raise ValueError(f"rebuilt must be 0 for a {model.model_type} model, which draws whole orders only")


def row_constraints(batch: Batch, constraints: Constraining) -> Constraining:
    """What a batch's draws must keep: the items fixed at place 0, or the task's rules."""
    if batch.first is None:
        return constraints
    if constraints is not None:
        raise ValueError("constraints of a task whose batches fix the first items must be None")
    return pins_of(batch.first)


def draw_costs(cost: Cost, batch: Batch, order: Tensor) -> Tensor:
    """Costs (B, draws) float64 of orders (B, draws, N), infinite where an order is not allowed.

    The cost gets copies. Raises what `costs_of` raises.
    """
    B, draws, _ = order.shape
    items, orders = batch.items.repeat_interleave(draws, 0), order.flatten(0, 1).clone()
    mask = None if batch.mask is None else batch.mask.repeat_interleave(draws, 0)
    costs = costs_of(cost, items, orders, mask)
    return costs.masked_fill(~costs.isfinite(), torch.inf).view(B, draws)


@contextmanager
def _named(iteration: int) -> Iterator[None]:
    """An exception from inside says which batch it came from."""
    try:
        yield
    except Exception as error:
        note = f"in the cost of training batch {iteration}"
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:
            print(note, file=sys.stderr)
        raise


class RankingLoss(nn.Module):
    """Loss of `Reinforce` or `Preference`; a module, so that DistributedDataParallel can wrap it."""

    def __init__(self, model: OrderModel, objective: Reinforce | Preference) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, drawn: Drawn, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """The loss, averaged over instances, and the cheapest draws' negative log-probability per place.

        seed, samples: as those of the draws.
        """
        log_prob = log_probs_of(self.model, drawn, seed, samples)  # (B, draws)
        loss = ranking_loss(self.objective, log_prob, drawn.cost).mean()
        mask, N = drawn.batch.mask, drawn.order.shape[2]
        sizes = torch.full_like(log_prob[:, 0], N) if mask is None else mask.sum(1)
        best = log_prob.detach().gather(1, drawn.cost.argmin(1, keepdim=True))[:, 0]
        return loss, -best.sum() / sizes.sum()


def log_probs_of(model: Any, drawn: Drawn, seed: int, samples: Tensor) -> Tensor:
    """Log-probabilities (B, draws), differentiable, of the predictions that drew the orders, given their noise."""
    batch, order = drawn.batch, drawn.order
    B, draws, N = order.shape
    rows = torch.arange(B, device=order.device).repeat_interleave(draws)  # (R,)
    mask, first = (None if given is None else given[rows] for given in (batch.mask, batch.first))
    embedded = model.embed(batch.items, batch.mask)[rows]  # (R, N, D)
    orders = order.flatten(0, 1)
    if not isinstance(model, SoftRankModel):
        total: Tensor = model.log_prob(embedded, orders, mask, first, is_embedded=True).total
        return total.view(B, draws)
    numbers = (samples[:, None] * draws + torch.arange(draws, device=samples.device)).flatten()
    dtype = torch.float64 if embedded.dtype == torch.float64 else torch.float32  # as in `sample`
    noise = RowNoise(seed, numbers, N, dtype, mask, first if model.fixed_start else None)
    z_prior = model.process.draw_prior(noise)
    _, order_t, ranks_t = torch.ops.softrank_ext.read_order(z_prior, mask)
    seen = arrange(model.at_soft_ranks(embedded, z_prior, mask), order_t)
    mask_t = None if mask is None else arrange(mask, order_t)
    rules = None if drawn.rules is None else drawn.rules.rows(rows).in_slots(order_t)
    log_prob = model.log_prob(seen, 1.0, ranks_t.gather(1, orders), mask_t, constraints=rules, is_embedded=True)
    # An item fixed at place 0 is not drawn.
    per_place = log_prob.per_place if first is None else log_prob.per_place[:, 1:]
    return per_place.sum(1).view(B, draws)
