"""What training minimises: the masked cross-entropy of an order given a noisy one (paper eq. 10), or its alternatives.

Orders are `order[place] = item`, and the network sees slots. Noisy orders are those of the model's process, keyed by
(seed, sample), at the times that the model reads: the grid `1/K, ..., 1`, continuous on (0, 1], or the visited numbers
of riffles. Losses are modules: DistributedDataParallel wraps them.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from softrank_ext import noise
from softrank_ext.batch import Batch
from softrank_ext.checks import check_choice, check_integer, check_share
from softrank_ext.laws import GeneralizedPlackettLuce
from softrank_ext.model import SoftRankConfig, SoftRankModel
from softrank_ext.permutations import arrange, ranks_of
from softrank_ext.processes import Bridge, PartialOrder
from softrank_ext.training.partial import noised_items

TIMES = ("drawn", "all")


class Noising(NamedTuple):
    """How many noisy orders an instance gives, and at which times; the fields are those of `TrainConfig`."""

    noisy_orders: int = 1
    times: str = "drawn"
    partial: float = 0.0
    prior_share: float = 0.0


class NoisyOrders(NamedTuple):
    """Rows to train on, several per instance: each an order at a time t (R,), and the target order (both (R, N)).

    samples (R,) int64 keys a row's noise; the rows of one trajectory share it. batch: the instances, row by row,
    without their items. repeats: rows per instance. z_t: (R, N), the states by item, None for riffles. kept: (R, N)
    bool, the items that are not noised, None if all are in all rows. is_draft: (R,) bool, rows that keep a draft's.
    """

    order_t: Tensor
    target: Tensor
    t: Tensor
    samples: Tensor
    batch: Batch
    repeats: int
    z_t: Tensor | None
    kept: Tensor | None = None
    is_draft: Tensor | None = None

    def arranged(self, model: SoftRankModel, embedded: Tensor) -> tuple[Tensor, Tensor | None]:
        """The instances' embedded items (B, N, D) and their mask as the network sees them: row by row, by slot."""
        mask = self.batch.mask
        embedded = embedded.repeat_interleave(self.repeats, 0)  # (R, N, D)
        if self.z_t is not None:
            embedded = model.at_soft_ranks(embedded, self.z_t, mask)
        if self.kept is not None:
            never = torch.zeros_like(self.kept[:, 0])
            embedded = model.marked(embedded, self.kept, never if self.is_draft is None else self.is_draft)
        return arrange(embedded, self.order_t), None if mask is None else arrange(mask, self.order_t)

    def slots(self) -> Tensor:
        """The targets as the network sees them: the slots (R, N) that hold their items."""
        return ranks_of(self.order_t).gather(1, self.target)


def noisy_orders(config: SoftRankConfig, noising: Noising, batch: Batch, seed: int, samples: Tensor) -> NoisyOrders:
    """Noisy orders of the config's process and their targets. samples: (B,) int64, the instances' numbers."""
    process = config.process
    if process.target == "previous" and not batch.is_whole():
        raise ValueError('target "previous" needs whole orders, and this batch knows only leading places')
    if batch.first is not None and not config.data.fixed_start:
        raise ValueError(
            "batch.first fixes the items at place 0: the model's config needs data=DataFacts(fixed_start=True)"
        )
    number = noising.noisy_orders
    if number > 1:
        samples = (samples[:, None] * number + torch.arange(number, device=samples.device)).flatten()
    if noising.times == "drawn":
        uniform = noise.uniform(seed, samples, 0, 1, stream=noise.TRAINING_STREAM)[:, 0]
        t = times_from(config, uniform, noising.prior_share)
    else:
        grid = torch.tensor(process.training_times(config.time_steps)[:-1], device=samples.device)
        t, samples = grid.repeat(len(samples)), samples.repeat_interleave(len(grid))
    repeats = len(samples) // max(len(batch.order), 1)
    is_draft = batch.extras.get("is_draft")  # of `drafts`
    batch = _repeated(batch, repeats)
    rows = noise.RowNoise(seed, samples, batch.order.shape[1], mask=batch.mask, first=batch.first)
    order_t, target, z_t = process.draw_noisy(batch.order, t, rows, config.time_steps)
    if noising.partial == 0 or not isinstance(process, Bridge) or z_t is None:
        return NoisyOrders(order_t, target, t, samples, batch, repeats, z_t)
    is_partial, noised = noised_items(config, noising.partial, batch, seed, samples)
    part = PartialOrder(batch.order, noised).draw_noisy(process, t, rows)
    assert part.z_t is not None  # of a bridge
    order_t = torch.where(is_partial[:, None], part.order_t, order_t)
    z_t = torch.where(is_partial[:, None], part.z_t, z_t)
    kept = is_partial[:, None] & (~noised if batch.mask is None else ~noised & batch.mask)
    return NoisyOrders(order_t, target, t, samples, batch, repeats, z_t, kept, is_draft)


def times_from(config: SoftRankConfig, uniform: Tensor, prior_share: float = 0.0) -> Tensor:
    """Times (B,) from uniform numbers in [0, 1): 1 for a share of them, else one of the model's own, or in (0, 1]."""
    if prior_share > 0:
        others = ((uniform - prior_share) / (1 - prior_share)).clamp(0, 1 - 2**-24)
        return torch.where(uniform < prior_share, 1.0, times_from(config, others))
    if config.time == "continuous":
        return 1 - uniform
    ascending = uniform.new_tensor(config.process.training_times(config.time_steps)[-2::-1])
    return ascending[(uniform * len(ascending)).long().clamp(max=len(ascending) - 1)]


def embedded_items(model: SoftRankModel, batch: Batch) -> Tensor:
    """Item embeddings (B, N, D): those in extras["embedded"], of a `ReaderPool`, else the model reads the items."""
    given = batch.extras.get("embedded")
    return model.embed(batch.items, batch.mask) if given is None else given


def _repeated(batch: Batch, times: int) -> Batch:
    """Each instance `times` times, without its items, which are embedded by then."""

    def repeat(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.repeat_interleave(times, 0)

    order = batch.order.repeat_interleave(times, 0)
    return Batch(order, order, repeat(batch.mask), repeat(batch.first), repeat(batch.known))


KINDS = ("whole", "partial", "draft")  # of rows: all noised, the kept part right, the kept part a draft's


class DenoisingLoss(nn.Module):
    """Cross-entropy of the model's target order given the noisy one; arguments as in `TrainConfig`.

    by_kind: sums of the loss and numbers of places, (KINDS, 2) float64, since it was last None, if parts are noised.
    """

    by_kind: Tensor | None = None

    def __init__(
        self,
        model: SoftRankModel,
        *,
        noisy_orders: int = 1,
        times: str = "drawn",
        partial: float = 0.0,
        prior_share: float = 0.0,
    ) -> None:
        super().__init__()
        self.model = model
        self.noising = _checked(model, Noising(noisy_orders, times, partial, prior_share))

    def forward(self, batch: Batch, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of a batch (a scalar, summed over places, averaged over instances), and the same per place.

        seed, samples: the key of the noise, samples (B,) int64 being the instances' numbers in the run.
        """
        embedded = embedded_items(self.model, batch)

        # 1., 2. Noisy orders at times t, and the items arranged by them.
        noisy = noisy_orders(self.model.config, self.noising, batch, seed, samples)
        batch, mask = noisy.batch, noisy.batch.mask
        embedded_t, mask_t = noisy.arranged(self.model, embedded)

        # 3. The target, as slots: where each of its items now stands.
        slots = noisy.slots()

        # 4. One teacher-forced pass.
        kept_t = None if noisy.kept is None else arrange(noisy.kept, noisy.order_t)
        per_place = self.model.log_prob(embedded_t, noisy.t, slots, mask_t, kept=kept_t, is_embedded=True).per_place

        # 5. Count the places that the model has to know.
        places = torch.arange(slots.shape[1], device=slots.device)
        is_counted = torch.ones_like(slots, dtype=torch.bool) if mask is None else places < mask.sum(1, keepdim=True)
        if batch.known is not None:
            is_counted = is_counted & (places < batch.known[:, None])
        if batch.first is not None:
            is_counted = is_counted & (places > 0)
        if kept_t is not None:
            is_counted = is_counted & ~kept_t  # a kept item's slot is its place
        losses = -per_place.masked_fill(~is_counted, 0.0).sum(1)  # (R,)
        if noisy.kept is not None:
            self._count_kinds(losses.detach().double(), is_counted.sum(1).double(), noisy)
        total = losses.sum()
        return total / len(slots), (total / is_counted.sum().clamp(min=1)).detach()

    def _count_kinds(self, losses: Tensor, places: Tensor, noisy: NoisyOrders) -> None:
        assert noisy.kept is not None
        kind = noisy.kept.any(1).long()
        if noisy.is_draft is not None:
            kind = torch.where(noisy.is_draft, 2, kind)
        sums = losses.new_zeros(len(KINDS), 2).index_add_(0, kind, torch.stack((losses, places), 1))
        self.by_kind = sums if self.by_kind is None else self.by_kind + sums


class LookalikeLoss(nn.Module):
    """SymmetricDiffusers' objective for jigsaws, which asks for items that look right, not for the right items.

    At each noisy order, several orders are drawn from the model, which must have a gpl or pl head: the candidates. A
    candidate's weight is the softmax over them of `-|items in the target order - items in its order|^2 / 2`, less
    `entropy` times its log-probability, less a running mean of such weights that forgets at the rate `1 - memory`. The
    loss is `-sum of weight * log-probability`. The other arguments are those of `DenoisingLoss`.
    """

    running_mean: Tensor

    def __init__(
        self,
        model: SoftRankModel,
        *,
        noisy_orders: int = 1,
        times: str = "drawn",
        candidates: int = 10,
        entropy: float = 0.05,
        memory: float = 0.995,
    ) -> None:
        super().__init__()
        if model.decodes_by_pick:
            raise ValueError(f"the objective lookalike needs a gpl or pl head, got {model.config.head}")
        self.model = model
        self.noising = _checked(model, Noising(noisy_orders, times))
        self.candidates, self.entropy, self.memory = candidates, entropy, memory
        self.register_buffer("running_mean", torch.zeros(()))

    def forward(self, batch: Batch, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and the cross-entropy of the targets per place; arguments as in `DenoisingLoss`."""
        if batch.first is not None or not batch.is_whole():
            raise ValueError("the objective lookalike needs whole orders without a fixed first item")
        embedded = self.model.embed(batch.items, batch.mask)
        differences = _squared_differences(self.model, batch)
        noisy = noisy_orders(self.model.config, self.noising, batch, seed, samples)
        embedded_t, mask_t = noisy.arranged(self.model, embedded)
        slots = noisy.slots()
        law = GeneralizedPlackettLuce(self.model.scores(embedded_t, noisy.t, slots, mask_t), mask_t)
        uniform = torch.stack(
            [
                noise.uniform(
                    seed, noisy.samples, 4 + number, slots.shape[1], stream=noise.TRAINING_STREAM, dtype=torch.float64
                )
                for number in range(self.candidates)
            ]
        )  # (candidates, R, N)
        drawn = law.from_uniform(uniform)
        log_probs = law.log_prob(drawn)  # (candidates, R)
        with torch.no_grad():
            rows = torch.arange(len(slots), device=slots.device)[:, None] // noisy.repeats
            items = noisy.order_t.expand_as(drawn).gather(2, drawn)  # (candidates, R, N)
            squares = differences[rows, noisy.target, items].sum(2)  # (candidates, R)
            weights = (-squares / 2).softmax(0) - self.entropy * log_probs
            centered = weights - self.running_mean
            if self.training:
                self.running_mean.lerp_(weights.mean(), 1 - self.memory)
            count = slots.numel() if mask_t is None else mask_t.sum()
            per_place = -law.log_prob(slots).sum() / count
        return -(centered * log_probs).sum(0).mean(), per_place


def _squared_differences(model: SoftRankModel, batch: Batch) -> Tensor:
    """Squared distances (B, N, N) of items, `normalized` if the embedder can; 0 at padding."""
    normalized = getattr(model.embedder, "normalized", None)
    values = batch.items.float() if normalized is None else normalized(batch.items)
    flat = values.flatten(2) if values.ndim > 2 else values[..., None]  # (B, N, numbers)
    differences = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square()
    if batch.mask is None:
        return differences
    return differences.masked_fill(~(batch.mask[:, None] & batch.mask[:, :, None]), 0.0)


OBJECTIVES: dict[str, type[DenoisingLoss] | type[LookalikeLoss]] = {
    "likelihood": DenoisingLoss,
    "lookalike": LookalikeLoss,
}


def _checked(model: SoftRankModel, noising: Noising) -> Noising:
    check_integer("noisy_orders", noising.noisy_orders, 1)
    check_choice("times", noising.times, TIMES)
    if noising.times == "all" and model.config.time != "grid":
        raise ValueError('times "all" are those of a grid: the model must have time="grid"')
    check_share("partial", noising.partial)
    check_share("prior_share", noising.prior_share)
    if noising.partial > 0 and not model.config.partial:
        raise ValueError("partial noise needs a model with SoftRankConfig(partial=True), which tells the network of it")
    return noising
