"""Drafts in training: in a share of the rows with a noised part, the kept part is the model's own, right or not.

The running average draws a whole order, the draft; what is kept is kept as it stands there. Target of such a row: the
noised items in their true relative order on the free places; if the task has a cost, the cheapest of that order and of
several redraws of the part. Draws are keyed by (seed, instance number), so a resumed run repeats them.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext import noise
from softrank_ext.batch import Batch
from softrank_ext.choices import Draw, Engine, Rebuild
from softrank_ext.constraints import Constraining, ConstraintSettings
from softrank_ext.costs import Cost, costs_of
from softrank_ext.model import SoftRankModel, evaluating
from softrank_ext.permutations import ranks_of
from softrank_ext.processes import Bridge
from softrank_ext.sampling import conditions_of
from softrank_ext.sampling.conditioning import conditions_from
from softrank_ext.sampling.reverse import Call, Rows, reverse
from softrank_ext.tasks import Task
from softrank_ext.training.draws import row_constraints
from softrank_ext.training.objectives import embedded_items
from softrank_ext.training.partial import noised_items

REDRAWS = 4  # of a draft's part, of which the cheapest is the target
_STEP = 21  # of the noise that chooses drafts
_FIRST_DRAFT, _FIRST_REDRAW = 2**40, 2**41  # sample numbers apart from those of the noisy orders


class Drafter:
    """Puts drafts in place of some of a batch's orders.

    model: the one that draws, as it is at the time. partial, share: `TrainConfig.partial` and `TrainConfig.drafts`.
    """

    def __init__(self, model: SoftRankModel, task: Task, partial: float, share: float, seed: int) -> None:
        self.model, self.partial, self.share, self.seed = model, partial, share, seed
        self.cost: Cost | None = getattr(task, "search_cost", None) or getattr(task, "cost", None)
        self.constraints: Constraining = getattr(task, "constraints", None)

    @torch.no_grad()
    def of(self, batch: Batch, samples: Tensor) -> Batch:
        """The batch with the targets of draft rows as their orders, and which rows these are in extras["is_draft"].

        samples: (B,) int64, the instances' numbers in the run. What is noised in a row, `noised_items` says for its
        new order too: a target differs from its draft on the free places alone.
        """
        config = self.model.config
        is_partial, _ = noised_items(config, self.partial, batch, self.seed, samples)
        uniform = noise.uniform(self.seed, samples, _STEP, 1, stream=noise.TRAINING_STREAM)[:, 0]
        is_draft = is_partial & (uniform < self.share)
        order = batch.order.clone()
        rows = is_draft.nonzero()[:, 0]
        if len(rows) > 0:
            with evaluating(self.model):
                order[rows] = self._targets(_rows_of(batch, rows), samples[rows])
        return replace(batch, order=order, extras={**batch.extras, "is_draft": is_draft})

    def _targets(self, batch: Batch, samples: Tensor) -> Tensor:
        """Orders (R, N): drafts with the noised items put right."""
        model, (R, N) = self.model, batch.order.shape
        constraints = row_constraints(batch, self.constraints)
        process = replace(cast(Bridge, model.process), sampling_steps=1)
        packed, bar = model.packed_weights(), tqdm(disable=True)
        call = Call(model, process, Draw(), ConstraintSettings(), Engine(), self.seed, False, packed, bar)
        embedded = embedded_items(model, batch)
        whole = conditions_of(constraints, model.fixed_start, (R, N), batch.mask, embedded.device)
        draft = reverse(call, Rows(embedded, batch.mask, whole, samples + _FIRST_DRAFT)).order
        _, noised = noised_items(model.config, self.partial, replace(batch, order=draft), self.seed, samples)
        target = in_true_order(draft, noised, batch.order)
        if self.cost is None:
            return target
        again = torch.arange(R, device=draft.device).repeat_interleave(REDRAWS)
        many = _rows_of(batch, again)
        start = Rebuild(draft[again], noised[again])
        part = conditions_from(start, model, row_constraints(many, self.constraints), many.mask, draft.device)
        numbers = samples[again] * REDRAWS + torch.arange(len(again), device=draft.device) % REDRAWS + _FIRST_REDRAW
        redrawn = reverse(call, Rows(embedded[again], many.mask, part, numbers)).order
        tried = torch.cat((target[:, None], redrawn.view(R, REDRAWS, N)), 1)  # (R, tries, N)
        mask = None if batch.mask is None else batch.mask.repeat_interleave(REDRAWS + 1, 0)
        costs = costs_of(self.cost, batch.items.repeat_interleave(REDRAWS + 1, 0), tried.flatten(0, 1), mask)
        cheapest = costs.view(R, REDRAWS + 1).argmin(1)
        return tried[torch.arange(R, device=draft.device), cheapest]


def in_true_order(draft: Tensor, noised: Tensor, order: Tensor) -> Tensor:
    """Drafts (R, N) whose noised items, (R, N) bool by item, stand on their places in the relative order of `order`."""
    ranks = ranks_of(order)
    places = torch.argsort(~noised.gather(1, draft), dim=1, stable=True)  # the free ones first, each kind ascending
    count = noised.sum(1, keepdim=True)
    items = torch.argsort(ranks + order.shape[1] * ~noised, dim=1)  # the noised ones first, as `order` has them
    is_free = torch.arange(order.shape[1], device=order.device) < count
    return torch.empty_like(draft).scatter_(1, places, torch.where(is_free, items, draft.gather(1, places)))


def _rows_of(batch: Batch, rows: Tensor) -> Batch:
    def part(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[rows]

    extras = {"embedded": batch.extras["embedded"][rows]} if "embedded" in batch.extras else {}
    return Batch(batch.items[rows], batch.order[rows], part(batch.mask), part(batch.first), part(batch.known), extras)
