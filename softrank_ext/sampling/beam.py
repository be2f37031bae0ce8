"""Beam search for the most likely orders of a stagewise law (paper eq. 7): place by place, the best prefixes are kept.

Orders are over slots, `order[place] = slot`, real slots first, padding after them by slot. Equal log-probabilities go
to the earlier prefix, then to the lower slot. A search that keeps every prefix finds the most likely order.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext.checks import check_instance, check_limited, check_tensor
from softrank_ext.choices import MOST_WIDTH, Engine
from softrank_ext.model import DECODER_HEADS, PackedWeights, SoftRankModel
from softrank_ext.sampling.incremental import IncrementalDecoder


class Hypotheses(NamedTuple):
    """Orders found, most likely first. Where fewer than `width` exist, the first one follows with log_prob -inf.

    orders: (B, width, N) int64. log_probs: (B, width). starts: (B, width) int64, the starting hypothesis of each.
    """

    orders: Tensor
    log_probs: Tensor
    starts: Tensor


@torch.no_grad()
def beam_search(
    scores: Tensor,
    width: int,
    *,
    mask: Tensor | None = None,
    first: Tensor | None = None,
    start_log_probs: Tensor | None = None,
) -> Hypotheses:
    """The `width` most likely orders that a beam of that width finds for scores that do not depend on earlier picks.

    scores: (B, place, slot) float; or (B, K, place, slot), one table per starting hypothesis, all searched in one beam.
    A score of -inf forbids a slot at a place. mask: (B, slot) or (B, K, slot) bool, True = real slot, as many in each
    hypothesis. first: (B,) or (B, K) int64, the slot that is fixed at place 0, with log-probability 0.
    start_log_probs: (B,) or (B, K), added to the orders' own; -inf for a hypothesis that is not there.
    Raises ValueError for wrong shapes, and where no order is left with a positive probability.
    """
    for name, value in (("scores", scores), ("mask", mask), ("first", first), ("start_log_probs", start_log_probs)):
        if value is not None or name == "scores":
            check_instance(name, value, Tensor)
    if not scores.is_floating_point() or scores.ndim not in (3, 4) or scores.shape[-1] != scores.shape[-2]:
        raise ValueError(f"scores must be (B, N, N) or (B, K, N, N) float, got {tuple(scores.shape)} {scores.dtype}")
    wanted, N = scores.shape[:-2], scores.shape[-1]
    for name, value, shape, kind in (
        ("mask", mask, (*wanted, N), torch.bool),
        ("first", first, wanted, torch.int64),
        ("start_log_probs", start_log_probs, wanted, scores.dtype),
    ):
        if value is not None and (value.shape != shape or value.dtype != kind):
            raise ValueError(f"{name} must be {tuple(shape)} {kind}, got {tuple(value.shape)} {value.dtype}")
    if bool((scores.isnan() | (scores == torch.inf)).any()):
        raise ValueError("scores must be finite or -inf, got NaN or +inf")
    if first is not None:
        is_slot = (first >= 0) & (first < N)
        if mask is not None and bool(is_slot.all()):
            is_slot = mask.gather(-1, first[..., None])[..., 0]
        if not bool(is_slot.all()):
            raise ValueError(f"first must be real slots from 0 to {N - 1}, got {int(first[~is_slot].flatten()[0])}")
    B, K = (*wanted, 1)[:2]
    tables = scores.reshape(B, K, N, N)
    rows = torch.arange(B, device=scores.device)[:, None]
    return _search(
        lambda place, starts, parents, choices: tables[rows, starts, place],
        width,
        scores.new_ones(B, K, N, dtype=torch.bool) if mask is None else mask.reshape(B, K, N),
        scores.new_zeros(B, K) if start_log_probs is None else start_log_probs.reshape(B, K),
        None if first is None else first.reshape(B, K),
    )


class Starts(NamedTuple):
    """What a search over instances begins with; see `beam_decode` for first and start_log_probs."""

    first: Tensor | None = None
    log_probs: Tensor | None = None


def beam_decode(
    model: SoftRankModel,
    items: Tensor,
    t: float | Tensor,
    width: int,
    mask: Tensor | None = None,
    *,
    first: Tensor | None = None,
    start_log_probs: Tensor | None = None,
    engine: Engine = Engine(),
) -> Hypotheses:
    """The `width` most likely orders that a beam of that width finds for instances at diffusion time t.

    items: (B, N, ...) slot by slot. t: a number or (B,). mask: (B, N) bool, True = real slot. first: (B,) int64, the
    slot that is fixed at place 0, with log-probability 0. start_log_probs: (B / K, K), where every K rows are
    hypotheses of one instance and share a beam; they are added to the orders' own, and the result has B / K rows.
    engine: as in `IncrementalDecoder`.
    """
    check_instance("model", model, SoftRankModel)
    model.check_reads_order()
    starts = Starts(first, start_log_probs)
    return beam_decode_embedded(model, model.embed(items, mask), t, width, mask, starts, engine=engine)


@torch.no_grad()
def beam_decode_embedded(
    model: SoftRankModel,
    embedded: Tensor,
    t: float | Tensor,
    width: int,
    mask: Tensor | None = None,
    starts: Starts = Starts(),
    *,
    engine: Engine = Engine(),
    packed_weights: PackedWeights | None = None,
) -> Hypotheses:
    """`beam_decode` for what `model.embed` made of the items, (B, N, D) slot by slot.

    packed_weights: `model.packed_weights()`, to share it between calls.
    """
    first, start_log_probs = starts
    B, N = embedded.shape[:2]
    if first is not None:
        check_tensor("first", first, (B,), torch.int64)
    if start_log_probs is None:
        start_log_probs = embedded.new_zeros(B, 1)
    if start_log_probs.ndim != 2 or start_log_probs.numel() != B or start_log_probs.dtype != embedded.dtype:
        got = f"{tuple(start_log_probs.shape)} {start_log_probs.dtype}"
        raise ValueError(f"start_log_probs must be (B / K, K) {embedded.dtype}, {B} numbers, got {got}")
    instances, K = start_log_probs.shape
    if model.config.head not in DECODER_HEADS:
        slots = torch.arange(N, device=embedded.device).expand(B, N)
        tables = model.scores(embedded, t, slots, mask).unflatten(0, (instances, K))
        grouped = [None if value is None else value.unflatten(0, (instances, K)) for value in (mask, first)]
        return beam_search(tables, width, mask=grouped[0], first=grouped[1], start_log_probs=start_log_probs)
    decoder = IncrementalDecoder(
        model, embedded, t, mask, engine=engine, is_embedded=True, packed_weights=packed_weights
    )

    def scores_at(place: int, starts: Tensor, parents: Tensor | None, choices: Tensor | None) -> Tensor:
        if parents is None or choices is None:
            return decoder.scores.view(instances, -1, N)
        before = decoder.lengths.shape[0] // instances
        rows = torch.arange(instances, device=parents.device)[:, None] * before + parents
        decoder.select(rows.flatten())
        return decoder.step(choices.flatten()).view(instances, -1, N)

    return _search(
        scores_at,
        width,
        decoder.remaining.unflatten(0, (instances, K)),
        start_log_probs,
        None if first is None else first.unflatten(0, (instances, K)),
    )


def _search(
    scores_at: Callable[[int, Tensor, Tensor | None, Tensor | None], Tensor],
    width: int,
    mask: Tensor,
    start_log_probs: Tensor,
    first: Tensor | None,
) -> Hypotheses:
    """`beam_search` for scores that may depend on earlier picks.

    scores_at(place, starts, parents, choices) gives the scores (B, W, N) of the slots at a place for the W hypotheses
    kept: `parents` (B, W) are their numbers among the hypotheses at the place before, `choices` (B, W) what they picked
    there; both None at place 0. mask: (B, K, N). start_log_probs, first: (B, K). It is not called for a place that has
    one candidate at most in every row.
    """
    check_limited("width", width, 1, MOST_WIDTH)
    B, K, N = mask.shape
    counts = mask.sum(2)  # (B, K)
    if bool((counts != counts[:, :1]).any()):
        raise ValueError("mask must leave as many real slots in each hypothesis of a row")
    slots = torch.arange(N, device=mask.device)
    padding_last = (~mask).to(torch.int8).argsort(dim=2, stable=True)  # (B, K, N)
    starts = torch.arange(K, device=mask.device).expand(B, K)
    parents = choices = None
    remaining, log_probs = mask, start_log_probs
    orders = padding_last[..., :0]  # (B, W, place)
    for place in range(N):
        # 1. The log-probabilities of the slots at this place. A fixed first slot and padding are settled.
        is_settled, settled = (counts[:, :1] <= place), padding_last[..., place].gather(1, starts)  # (B, 1), (B, W)
        if place == 0 and first is not None:
            is_settled, settled = torch.ones_like(is_settled), first
        if place < N - 1 and bool((counts > place + 1).any()):
            scores = scores_at(place, starts, parents, choices).masked_fill(is_settled[..., None], 0.0)
        else:
            scores = start_log_probs.new_zeros(remaining.shape)
        allowed = torch.where(is_settled[..., None], slots == settled[..., None], remaining & scores.isfinite())
        step_log_probs = scores.masked_fill(~allowed, -torch.inf).log_softmax(2)  # (B, W, N)
        # 2. Extend every prefix by every slot, and keep the best.
        extended = torch.where(allowed, log_probs[..., None] + step_log_probs, -torch.inf).flatten(1)  # (B, W * N)
        log_probs, best = _largest(extended, min(width, remaining.shape[1] * (N - place)))
        if not bool((log_probs[:, :1] > -torch.inf).all()):
            row = int((~(log_probs[:, 0] > -torch.inf)).nonzero()[0])
            raise ValueError(f"scores must leave some order with a positive probability, row {row} has none")
        # A prefix that does not exist repeats the first one, so that all can be continued.
        best = best.where(log_probs > -torch.inf, best[:, :1])
        parents, choices = best // N, best % N
        # 3. Carry on what belongs to them.
        chosen = choices[..., None]
        remaining = _take(remaining, parents).scatter(2, chosen, False)
        orders = torch.cat((_take(orders, parents), chosen), 2)
        starts = starts.gather(1, parents)
    missing = width - log_probs.shape[1]
    log_probs = torch.cat((log_probs, log_probs.new_full((B, missing), -torch.inf)), 1)
    orders, starts = (torch.cat((x, x[:, :1].expand(B, missing, *x.shape[2:])), 1) for x in (orders, starts))
    return Hypotheses(orders, log_probs, starts)


def _largest(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of each row and where they stand, as a stable sort has them; topk is in no order on ties."""
    least = values.topk(count, dim=1).values[:, -1:]
    is_above, is_least = values > least, values == least
    is_among = is_above | (is_least & (is_least.cumsum(1) <= count - is_above.sum(1, keepdim=True)))
    index = is_among.nonzero()[:, 1].view(values.shape[0], count)
    ranked, by_value = values.gather(1, index).sort(dim=1, descending=True, stable=True)
    return ranked, index.gather(1, by_value)


def _take(values: Tensor, index: Tensor) -> Tensor:
    """`values[b, index[b, w]]`: values (B, W, ...), index (B, width)."""
    return values[torch.arange(values.shape[0], device=values.device)[:, None], index]
