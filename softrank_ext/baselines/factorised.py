"""Factorised representations: an order as N numbers that are drawn independently of each other, in one pass.

Two codes, both one-to-one with orders (Severo et al. 2025). Lehmer: `code[place]` counts the later places with lower
slots, from 0 to N - 1 - place: which of the remaining slots stands here. Insertion: `code[slot]` counts the lower slots
that stand before this one, from 0 to slot: where it is inserted among them. The network is SoftRankModel's encoder with
a linear layer, token i giving the probabilities of code i; the loss is their cross-entropy.

Slots are the items as given, the one fixed at place 0 first, then the real ones, then padding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softrank_ext import ops
from softrank_ext.batch import Batch
from softrank_ext.checks import check_choice, check_integer
from softrank_ext.choices import Engine
from softrank_ext.model import LogProb, OnePassModel, SoftRankConfig, SoftRankModel
from softrank_ext.permutations import arrange, check_slots, compose, order_of, ranks_of

CODES = ("lehmer", "insertion")


def code_of(order: Tensor, code: str) -> Tensor:
    """The code (B, N) int64 of orders (B, N) int64."""
    check_choice("code", code, CODES)
    return _lower_before(order.flip(1)).flip(1) if code == "lehmer" else _lower_before(ranks_of(order))


def order_of_code(numbers: Tensor, code: str) -> Tensor:
    """The orders (B, N) int64 of codes (B, N) int64: `code_of` undone."""
    check_choice("code", code, CODES)
    return _inserted(numbers.flip(1)).flip(1) if code == "lehmer" else order_of(_inserted(numbers))


def _lower_before(values: Tensor) -> Tensor:
    """For each value (B, N) how many lower ones stand before it."""
    N = values.shape[1]
    is_before = torch.ones(N, N, dtype=torch.bool, device=values.device).tril(-1)
    return ((values[:, None] < values[:, :, None]) & is_before).sum(2)


def _inserted(numbers: Tensor) -> Tensor:
    """The values (B, N), 0 to N - 1, of which so many lower ones stand before each."""
    values = numbers.clone()
    for last in range(1, values.shape[1]):
        values[:, :last] += values[:, :last] >= values[:, last : last + 1]
    return values


@dataclass(frozen=True)
class FactorisedConfig:
    """Sizes and choices of a `FactorisedModel`.

    code: one of CODES. max_items: the largest N. The other fields are as in `SoftRankConfig`.
    """

    max_items: int
    code: str = "lehmer"
    d_model: int = 128
    feed_forward: int = 512
    heads: int = 8
    encoder_layers: int = 7
    dropout: float = 0.1
    norm_first: bool = True
    embedder: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        check_choice("code", self.code, CODES)
        check_integer("max_items", self.max_items, 1)
        self.encoder()

    def encoder(self) -> SoftRankConfig:
        """The config of the encoder; raises ValueError if a size is wrong."""
        return SoftRankConfig(
            d_model=self.d_model, feed_forward=self.feed_forward, heads=self.heads, encoder_layers=self.encoder_layers,
            decoder_layers=0, dropout=self.dropout, head="gpl", norm_first=self.norm_first, embedder=self.embedder,
        )  # fmt: skip


class _Slots(NamedTuple):
    """Items seen as slots: order (B, N), the item in each slot, None if they stand as given; how many are real (B, 1),
    None for all; whether slot 0 is fixed at place 0."""

    order: Tensor | None
    counts: Tensor | None
    is_first_fixed: bool


class FactorisedModel(OnePassModel):
    """Distribution over orders with independent numbers of a code. config: `FactorisedConfig`."""

    model_type = "factorised"
    config_type = FactorisedConfig

    def __init__(self, config: FactorisedConfig, embedder: nn.Module | None = None) -> None:
        super().__init__()
        self.config: FactorisedConfig = config
        self.encoder = SoftRankModel(config.encoder(), embedder)
        self.head = nn.Linear(config.d_model, config.max_items)

    @property
    def embedder(self) -> nn.Module:  # type: ignore[override]
        """The module that reads the items."""
        return self.encoder.embedder

    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        """Item embeddings (B, N, D), zeroed at padding."""
        if items.shape[1] > self.config.max_items:
            raise ValueError(f"this model takes up to {self.config.max_items} items, got {items.shape[1]}")
        return self.encoder.embed(items, mask)

    def log_prob(
        self,
        items: Tensor,
        order: Tensor,
        mask: Tensor | None = None,
        first: Tensor | None = None,
        *,
        is_embedded: bool = False,
    ) -> LogProb:
        """Log-probability of orders (B, N) int64, real items first, differentiable; 0 at numbers with no choice.

        items: (B, N, ...), or what `embed` made of them if is_embedded. mask: (B, N) bool. first: (B,) int64.
        `per_place` is per number of the code: per place of a Lehmer code, per slot of an insertion code.
        """
        embedded = items if is_embedded else self.embed(items, mask)
        check_slots(order, mask)
        slots = _slots_of(embedded, mask, first)
        # Padding stands behind in the order of its slots; where the order has it otherwise, that is no choice.
        seen = order if slots.order is None else ranks_of(slots.order).gather(1, order)
        if slots.counts is not None:
            places = torch.arange(order.shape[1], device=order.device)
            seen = torch.where(places < slots.counts, seen, places)
        log_probs = self._masked_scores(embedded, slots).log_softmax(2)
        per_place = log_probs.gather(2, code_of(seen, self.config.code)[..., None])[..., 0]
        return LogProb(per_place, per_place.sum(1))

    @torch.no_grad()
    def decode_embedded(
        self,
        embedded: Tensor,
        t: float | Tensor,
        mask: Tensor | None = None,
        choices: ops.Choices = ops.Choices(),
        *,
        order: Tensor | None = None,
        engine: Engine = Engine(),
        packed_weights: None = None,
    ) -> ops.DecodedOrder:
        """Draw the numbers of the code, or take the most likely ones: they are independent. See `OrderModel`."""
        if choices.has_rules() or choices.forced_places not in (None, 1):
            raise ValueError("a factorised model takes no constraints but a pin at place 0")
        embedded = embedded if order is None else arrange(embedded, order)
        first = None if choices.forced_order is None else choices.forced_order[:, 0]
        slots = _slots_of(embedded, mask, first)
        scores = self._masked_scores(embedded, slots).flatten(0, 1) / choices.temperature
        uniform = choices.uniform
        numbers, log_probs = ops.pick(
            scores, scores > -torch.inf, None if uniform is None else uniform.flatten(), greedy=uniform is None
        )
        shape = embedded.shape[:2]
        seen = order_of_code(numbers.reshape(shape), self.config.code)
        chosen = seen if slots.order is None else compose(slots.order, seen)
        work = torch.ones(len(chosen), 2, dtype=torch.int64, device=chosen.device)
        return ops.DecodedOrder(chosen, log_probs.reshape(shape), work)

    def own_loss(self) -> nn.Module:
        """Cross-entropy of the true order's code."""
        return _CodeLoss(self)

    def bytes_per_sample(self, N: int) -> int:
        """Memory that one instance of N items takes while it is read, roughly."""
        per_token = 12 * self.config.d_model + 2 * self.config.feed_forward + 4 * self.config.max_items
        return self.head.weight.element_size() * N * per_token

    def _masked_scores(self, embedded: Tensor, slots: _Slots) -> Tensor:
        """Scores (B, N, N) of each code's numbers, -inf where there is no such number."""
        N = embedded.shape[1]
        if slots.order is not None:
            embedded = arrange(embedded, slots.order)
        positions = torch.arange(N, device=embedded.device)
        mask = None if slots.counts is None else positions < slots.counts
        memory = self.encoder.encode(embedded, 1.0, mask)
        scores: Tensor = self.head(memory)[..., :N]
        return scores.masked_fill(~_allowed(self.config.code, positions, slots), -torch.inf)


class _CodeLoss(nn.Module):
    """Cross-entropy of the true order's code; a module, so that DistributedDataParallel can wrap it."""

    def __init__(self, model: FactorisedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        """Loss of a batch (summed over numbers, averaged over instances), and the same per item. Nothing is random."""
        per_place = self.model.log_prob(batch.items, batch.order, batch.mask, batch.first).per_place
        B, N = batch.order.shape
        number = torch.tensor(B * N, device=per_place.device) if batch.mask is None else batch.mask.sum()
        if not batch.is_whole():
            if self.model.config.code != "lehmer":
                raise ValueError("an insertion code needs whole orders, and this batch knows only leading places")
            assert batch.known is not None
            is_known = torch.arange(N, device=per_place.device) < batch.known[:, None]
            per_place, number = per_place.masked_fill(~is_known, 0.0), is_known.sum()
        total = -per_place.sum()
        return total / B, (total / number).detach()


def _slots_of(embedded: Tensor, mask: Tensor | None, first: Tensor | None) -> _Slots:
    """Which item stands in which slot."""
    if mask is None and first is None:
        return _Slots(None, None, False)
    B, N = embedded.shape[:2]
    items = torch.arange(N, device=embedded.device).expand(B, N)
    key = items if mask is None else items + N * ~mask
    if first is not None:
        key = key.scatter(1, first[:, None], -1)
    return _Slots(key.argsort(1), None if mask is None else mask.sum(1, keepdim=True), first is not None)


def _allowed(code: str, positions: Tensor, slots: _Slots) -> Tensor:
    """The numbers that a code may hold, bool (B or 1, N, N): each position's row has at least one."""
    N = len(positions)
    counts = torch.tensor([[N]], device=positions.device) if slots.counts is None else slots.counts  # (B or 1, 1)
    if code == "lehmer":
        lowest = torch.zeros_like(positions).expand(len(counts), N)
        highest = (counts - 1 - positions).clamp(min=0)
        if slots.is_first_fixed:
            highest = highest.masked_fill(positions == 0, 0)
    else:
        lowest = torch.where(positions < counts, int(slots.is_first_fixed) * (positions > 0), positions)
        highest = positions.expand(len(counts), N)
    return (positions >= lowest[..., None]) & (positions <= highest[..., None])
