"""The reverse process from noise to orders, paper Algorithm 1, and nothing else; `sample` is its door.

Orders are over items as given, `order[place] = item`; the network sees slots, `ops.lift_order` goes between.
Noise is keyed by seed and sample number (`noise`), so a sample does not depend on the batch that it is computed in.
The compiled encoder, decoder and head give a row the same bits in any batch; torch's own matrix products (the
embedders', and all of them with compiled=False, without a decoder or off the CPU) may round by batch size, and then a
draw changes if its uniform number lies within that rounding (about 1e-6 in float32, 1e-15 in float64) of the boundary
between two items.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext import noise, ops
from softrank_ext.choices import Beam, Decode, Draw, Engine
from softrank_ext.constraints import ConstraintSettings
from softrank_ext.model import OrderModel, SoftRankModel
from softrank_ext.permutations import arrange, chamber_margin, ranks_of
from softrank_ext.processes import Bridge, OnePass, PartialOrder, Prediction, Process
from softrank_ext.processes.bridge import reflect_pairs
from softrank_ext.sampling.beam import Hypotheses, Starts, beam_decode_embedded
from softrank_ext.sampling.conditioning import Conditions
from softrank_ext.sampling.samples import Samples
from softrank_ext.sampling.trajectory import Trajectory, TrajectoryPoint


@dataclass(frozen=True, eq=False)
class Call:
    """What is the same for all rows of a call of `sample`."""

    model: OrderModel
    process: Process | OnePass
    decode: Decode
    settings: ConstraintSettings
    engine: Engine
    seed: int
    record: bool
    packed_weights: Any
    bar: tqdm


class Rows(NamedTuple):
    """A batch of samples: embedded (B, N, ...) and mask (B, N) by item, conditions, and sample numbers (B,).

    With a beam every `kept` rows are hypotheses of one sample.
    """

    embedded: Tensor
    mask: Tensor | None
    conditions: Conditions
    numbers: Tensor


class _Step(NamedTuple):
    """A diffusion step: its number, from time t back to s, the order read at t (over items) and its inverse."""

    number: int
    t: float
    s: float
    order_t: Tensor
    ranks_t: Tensor
    mask_t: Tensor | None


class _Predicted(NamedTuple):
    """Slots (B, N), their log-probability (B,), work (B, 1 or 2), and the log-weights (B,) of law "conditioned"."""

    slots: Tensor
    log_prob: Tensor
    work: Tensor
    log_weights: Tensor | None = None


def reverse(call: Call, rows: Rows) -> Samples:
    """Go back from noise to orders.

    With law "conditioned" log_prob_allowed of the samples is the log of their weights. With a beam the first `returned`
    of every `kept` rows are returned.
    """
    embedded, mask, (first, rules, kept), _ = rows
    B, N = embedded.shape[:2]
    process, dtype = call.process, embedded.dtype
    part = PartialOrder(kept.order, kept.noised) if kept is not None and kept.is_partial else None
    if part is not None:
        is_kept = ~part.noised if mask is None else ~part.noised & mask
        rows = rows._replace(embedded=call.model.marked(embedded, is_kept))
    draws = noise.RowNoise(call.seed, rows.numbers, N, dtype, mask if part is None else part.noised, first)
    hypotheses = call.decode.kept if isinstance(call.decode, Beam) else 1
    paths = torch.zeros(B // hypotheses, hypotheses, dtype=dtype, device=embedded.device)
    paths[:, 1:] = -torch.inf  # one hypothesis to begin with
    choices = torch.full((B,), N - 1, device=embedded.device) if mask is None else mask.sum(1) - 1
    work = torch.zeros(B, 2, dtype=torch.int64, device=embedded.device)
    failed = torch.zeros(B, dtype=torch.bool, device=embedded.device)
    trajectory: list[TrajectoryPoint] = []
    order: Tensor | None = None if kept is None else kept.order

    # 1. Start from the prior, or from what is kept of it at time t.
    times = process.times()
    z_t = process.draw_prior(draws)
    if part is not None and kept is not None and isinstance(process, Bridge):
        times = [kept.t * time for time in times]
        z_t = part.noised_to(kept.t, z_t, process, draws, len(times))
    for number, (t, s) in enumerate(pairwise(times)):
        # 2. Read the order off the soft ranks.
        soft_ranks, order_t, ranks_t = torch.ops.softrank_ext.read_order(z_t, draws.mask)  # never NaN: no check
        read = z_t
        if part is not None:
            read = z_t.masked_fill(~part.noised, 0.0)
            order_t = part.filled(order_t)
            ranks_t = ranks_of(order_t)
        if call.settings.reflect_noise and rules is not None and rules.before is not None:
            soft_ranks = reflect_pairs(soft_ranks, rules.before)
            z_t = soft_ranks if isinstance(process, Bridge) and process.carry == "reflected" else z_t
            order_t, ranks_t = ops.decode_chamber(soft_ranks, mask)
            read = soft_ranks  # those whose order the network sees
        # 3. In this order the network sees the items: its slots.
        seen = rows._replace(embedded=call.model.at_soft_ranks(rows.embedded, read, mask))
        step = _Step(number, t, s, order_t, ranks_t, None if mask is None else arrange(mask, order_t))
        # 4., 5. Encode, and pick slot after slot; the last prediction is the draft.
        if isinstance(call.decode, Beam):
            predicted, paths, parents = _beam_prediction(call, seen, step, paths)
            z_t, soft_ranks, order_t = z_t[parents], soft_ranks[parents], order_t[parents]
            trajectory = [_rows_of_point(point, parents) for point in trajectory]
        else:
            predicted = _prediction(call, seen, step, draws, order)
        work += predicted.work
        failed = failed | predicted.log_prob.isnan()
        # 6. Turn slots into items and lift the predicted order to the grid.
        order, ranks, soft_ranks_of_order = torch.ops.softrank_ext.lift_order(order_t, predicted.slots, mask, dtype)
        z_clean = soft_ranks_of_order if part is None else part.lift(order, dtype)
        if call.record:
            trajectory.append(TrajectoryPoint(t, soft_ranks, order_t, order))
        # 7., 8. Step back to s.
        z_t = process.draw_back(Prediction(z_t, order_t, order, z_clean), t, s, draws, number)
        call.bar.update(B // hypotheses)
    assert order is not None  # there is at least one step
    accepted = torch.ones(B, dtype=torch.float32, device=embedded.device)
    if call.model.decodes_by_pick:
        accepted = torch.where(work[:, 1] > 0, (len(times) - 1) * choices / work[:, 1].clamp(min=1), 1.0)
    samples = Samples(
        order,
        ranks,
        soft_ranks_of_order,
        predicted.log_prob.masked_fill(failed, torch.nan),  # where a GPU's kernel could not raise
        chamber_margin(soft_ranks_of_order, mask),
        work[:, 0],
        accepted,
        mask,
        call.seed,
        Trajectory(trajectory) if call.record else None,
        log_prob_allowed=predicted.log_weights,
    )
    if not isinstance(call.decode, Beam):
        return samples
    return samples[torch.arange(B, device=embedded.device) % hypotheses < call.decode.returned]


def _prediction(call: Call, rows: Rows, step: _Step, draws: noise.RowNoise, last_order: Tensor | None) -> _Predicted:
    """Pick slot after slot, drawn or greedily; last_order: (B, N) over items, predicted at the step before."""
    model, (first, rules, kept) = call.model, rows.conditions
    drawn = isinstance(call.decode, Draw)
    # Rules are for clean orders; those of the time before may break them.
    is_early = call.settings.law == "prefix" and call.process.target == "clean"
    is_ruled = rules is not None and (step.s == 0 or is_early)
    choices = ops.Choices(
        uniform=draws.uniform(step.number, noise.PICK_STREAM) if drawn else None,
        temperature=call.decode.temperature if isinstance(call.decode, Draw) else 1.0,
    )
    if kept is not None:
        choices = choices._replace(forced_order=step.ranks_t.gather(1, kept.order), forced_places=kept.places)
    elif first is not None:
        first_slot = step.ranks_t.gather(1, first[:, None])  # (B, 1)
        choices = choices._replace(
            forced_order=_order_from(first_slot, step.mask_t, step.order_t.shape[1]), forced_places=1
        )
    if last_order is not None and call.engine.speculative and model.decodes_by_pick:
        choices = choices._replace(draft=step.ranks_t.gather(1, last_order))
    if rules is not None and is_ruled:
        before, allowed, group = rules.in_slots(step.order_t)
        choices = choices._replace(before=before, allowed=allowed, group=group)

    fixed_places = choices.forced_places or 0

    def decoded(choices: ops.Choices) -> ops.DecodedOrder:
        result = model.decode_embedded(
            rows.embedded,
            step.t,
            step.mask_t,
            choices,
            order=step.order_t,
            engine=call.engine,
            packed_weights=call.packed_weights,
        )
        if fixed_places > 0:
            result.log_probs[:, :fixed_places] = 0.0  # not drawn
        return result

    slots, log_probs, work = decoded(choices)
    log_weights = None
    if is_ruled and call.settings.law == "conditioned":
        unruled = decoded(ops.Choices(temperature=choices.temperature, forced_order=slots, draft=slots)).log_probs
        log_weights, log_probs = (unruled - log_probs).sum(1), unruled
    return _Predicted(slots, log_probs.sum(1), work, log_weights)


def _beam_prediction(call: Call, rows: Rows, step: _Step, paths: Tensor) -> tuple[_Predicted, Tensor, Tensor]:
    """The hypotheses that a beam keeps, their summed log-probabilities so far (B, K), and the rows they came from."""
    assert isinstance(call.decode, Beam)
    if not isinstance(call.model, SoftRankModel):
        raise ValueError(f"decode must not be Beam(...) for a {call.model.model_type} model: a beam needs its decoder")
    first = rows.conditions.first
    found = beam_decode_embedded(
        call.model,
        arrange(rows.embedded, step.order_t),
        step.t,
        call.decode.width,
        step.mask_t,
        Starts(None if first is None else step.ranks_t.gather(1, first[:, None])[:, 0], paths),
        engine=call.engine,
        packed_weights=call.packed_weights,
    )
    slots, log_prob, paths, parents = _carry_on(found, step.order_t, paths)
    N = step.order_t.shape[1]
    passes = torch.ones_like(parents)
    if call.model.decodes_by_pick:
        passes = passes * (N - 1) if rows.mask is None else rows.mask.sum(1) - 1
    return _Predicted(slots, log_prob, passes[:, None]), paths, parents


def _carry_on(found: Hypotheses, order_t: Tensor, paths: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The hypotheses of a beam that go on, K of each sample: those of different orders that are most likely.

    order_t: (B * K, N), of the hypotheses that the beam began with; paths: (B, K), the log-probabilities of their
    predictions so far. Returns the new predictions as slots (B * K, N), their own log-probabilities (B * K,), the new
    paths (B, K), and the rows (B * K,) of order_t that the predictions began with.
    """
    B, K = paths.shape
    rows = torch.arange(B, device=order_t.device)[:, None] * K + found.starts  # (B, width)
    orders = order_t[rows].gather(2, found.orders)  # (B, width, N) over items
    is_repeated = (orders[:, :, None] == orders[:, None]).all(3).tril(-1).any(2)
    best_paths, best = found.log_probs.masked_fill(is_repeated, -torch.inf).sort(dim=1, descending=True, stable=True)
    best_paths, best = best_paths[:, :K], best[:, :K]
    before = paths.gather(1, found.starts.gather(1, best))
    slots = found.orders.gather(1, best[..., None].expand(-1, -1, order_t.shape[1]))
    return slots.flatten(0, 1), (best_paths - before).flatten(), best_paths, rows.gather(1, best).flatten()


def _rows_of_point(point: TrajectoryPoint, rows: Tensor) -> TrajectoryPoint:
    return TrajectoryPoint(point.t, point.soft_ranks[rows], point.order[rows], point.predicted_order[rows])


def _order_from(slot: Tensor, mask: Tensor | None, N: int) -> Tensor:
    """An order over slots (B, N) that begins with `slot` (B, 1); the others follow by index, padding last."""
    slots = torch.arange(N, device=slot.device).expand(slot.shape[0], N)
    key = slots if mask is None else slots + N * ~mask
    return key.scatter(1, slot, -1).argsort(1)
