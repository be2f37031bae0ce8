"""sample(): the reverse process from noise to orders, paper Algorithm 1.

Orders are over items as given, `order[place] = item`; the network sees slots, `ops.lift_order` goes between.
Noise is keyed by seed and sample number (`noise`), so a sample does not depend on the batch that it is computed in.
The compiled encoder, decoder and head give a row the same bits in any batch; torch's own matrix products (the
embedder's, and all of them with compiled=False, without a decoder or off the CPU) may round by batch size, and then a
draw changes if its uniform number lies within that rounding (about 1e-6 in float32, 1e-15 in float64) of the boundary
between two items.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from softrank_ext import noise, ops
from softrank_ext.choices import Engine
from softrank_ext.constraints import LAWS, Constraining, Rules, rules_of
from softrank_ext.model import DECODER_HEADS, OnePassModel, PackedWeights, SoftRankModel
from softrank_ext.permutations import arrange, chamber_margin, ranks_of
from softrank_ext.processes import bridge, riffle
from softrank_ext.sampling.beam import Hypotheses, Starts, beam_decode_embedded
from softrank_ext.sampling.trajectory import Trajectory, TrajectoryPoint

DECODES = ("sample", "greedy", "beam")


@dataclass(frozen=True, eq=False)
class Samples:
    """Sampled orders; tensors, or numpy arrays if the items were. Leading dimensions (B, num_samples), see `sample`.

    order (..., N) int64, `order[place] = item`, real items first. ranks (..., N) int64, `ranks[item] = place`.
    soft_ranks (..., N): ranks lifted to the grid in [0, 1]. log_prob (...): log-probability of the order under the last
    prediction, at the temperature drawn at; it is not the marginal over the whole reverse process. margin (...): by how
    much every soft rank may move before the order can change. passes (...) int64: decoder passes of all steps. accepted
    (...): the share of the places run in them that was kept; below 1 where drafts were wrong. trajectory: a
    `TrajectoryPoint` per time if recorded, else None; its `save_html` writes a page that plays it.
    With constraints log_prob is renormalised over what they allow (law "prefix"), or the model's own ("conditioned").
    effective_size (...), law "conditioned" only: how many equally weighted draws of the instance its weighted ones are
    worth; log_prob_allowed (...): log of the estimated probability that a draw without constraints keeps them.
    """

    order: Tensor
    ranks: Tensor
    soft_ranks: Tensor
    log_prob: Tensor
    margin: Tensor
    passes: Tensor
    accepted: Tensor
    trajectory: Trajectory | None = None
    effective_size: Tensor | None = None
    log_prob_allowed: Tensor | None = None

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int | slice | Tensor) -> "Samples":
        """Every field indexed along its first dimension."""
        return _map_fields(lambda field: field[index], self)

    def best(self, cost: Callable[[Tensor], Tensor] | None = None) -> "Samples":
        """The sample of lowest cost for each instance, or of highest log_prob: fields without their num_samples.

        cost: from orders (..., num_samples, N) to numbers (..., num_samples); None for `-log_prob`.
        """
        costs = torch.as_tensor(-self.log_prob if cost is None else cost(self.order))
        if costs.shape != self.order.shape[:-1]:
            raise ValueError(f"cost must return {tuple(self.order.shape[:-1])} numbers, got {tuple(costs.shape)}")
        if costs.ndim == 1:
            return self[int(costs.argmin())]
        lowest = costs.argmin(1)
        index = lowest.to(self.order.device) if isinstance(self.order, Tensor) else lowest.numpy()
        return _map_fields(lambda field: field[list(range(len(field))), index], self)

    def numpy(self) -> "Samples":
        """The same samples as numpy arrays."""
        return _map_fields(lambda field: field.cpu().numpy(), self)


def _map_fields(change: Callable[..., Any], *parts: Samples) -> Samples:
    """Samples whose every tensor is `change(that tensor of each part)`."""

    def changed(name: str) -> Any:
        return change(*(getattr(part, name) for part in parts))

    trajectory = None
    if parts[0].trajectory is not None:
        trajectory = Trajectory(
            TrajectoryPoint(
                points[0].t,
                change(*(point.soft_ranks for point in points)),
                change(*(point.order for point in points)),
                change(*(point.predicted_order for point in points)),
            )
            for points in zip(*(part.trajectory or [] for part in parts), strict=True)
        )
    names = ["order", "ranks", "soft_ranks", "log_prob", "margin", "passes", "accepted"]
    names += [name for name in ("effective_size", "log_prob_allowed") if getattr(parts[0], name) is not None]
    return Samples(**{name: changed(name) for name in names}, trajectory=trajectory)


@torch.no_grad()
def sample(
    model: SoftRankModel | OnePassModel,
    items: Tensor | np.ndarray,
    *,
    mask: Tensor | np.ndarray | None = None,
    first: int | Tensor | np.ndarray | None = None,
    constraints: Constraining = None,
    law: str = "prefix",
    particles: int = 16,
    reflect_noise: bool = False,
    num_samples: int = 1,
    steps: int | None = None,
    noise_scale: float = 0.5,
    reference: str = "uniform",
    decode: str = "sample",
    temperature: float = 1.0,
    beam: int | None = None,
    beam_kept: int = 1,
    beam_returned: int = 1,
    seed: int = 0,
    first_sample: int = 0,
    carry: str = "exact",
    compiled: bool = True,
    cache: bool = True,
    speculative: bool = True,
    record: bool = False,
    progress: bool = False,
    max_memory: int = 2**30,
) -> Samples:
    """Draw orders of the items from the model by reverse diffusion.

    items: (B, N, ...) as the model's embedder takes them, tensor or numpy; or one instance (N, ...) if the embedder
    says its item_ndim. mask: (B, N) or (N,) bool, True = real item, in any pattern; padding's content has no effect.
    first: the item that stands first by decree (a tour's start), a number or (B,): its soft rank stays 0.
    constraints: rules on the items that every order keeps, `Constraints` for all instances or a list of one per
    instance. law: "prefix" draws each pick from what they allow, fast; "conditioned" follows the model's law given the
    constraints, by choosing num_samples of num_samples * particles weighted draws. `constraints` has the details.
    reflect_noise: noisy soft ranks keep the order pairs too (`bridge.reflect_pairs`), which the model saw no more often
    than chance in training.
    num_samples: draws per instance. steps: diffusion steps K, at times 1, (K-1)/K, ..., 1/K; by default the model's own
    (`SoftRankConfig.reverse_times`). noise_scale: paper eta; like carry, nothing to models of riffles or of the order
    before, whose state is an order.
    reference: "uniform" or "gaussian" soft ranks at time 1. decode: "sample" draws each prediction at the temperature,
    "greedy" takes the highest score at each place (the soft ranks' noise stays random), "beam" the most likely order
    that a beam of width `beam` finds (`search.beam_decode`). beam_kept: how many hypotheses go on from one diffusion
    step to the next, under the same noise; they share the beam, are ranked by the summed log-probability of their
    predictions, and those with the same order are merged. beam_returned: how many of them count as draws in the
    result, the most likely first. carry: see
    `bridge.reverse_step`. compiled=False and cache=False: see `SoftRankModel.decode`. speculative: the order predicted
    at one step is the draft of the next, which saves time and changes no sample.
    seed: any 64-bit integer. Draw j of instance b is sample number `first_sample + b * num_samples + j`; the same seed
    and number give the same sample (see the file's head). record: keep the trajectory. progress: show a bar.
    max_memory: bytes that a batch of the network may take, by an estimate; the input is cut into batches that fit.

    Returns `Samples` with leading dimensions (B, num_samples), or (num_samples,) for one instance; numpy if items are.
    The model runs in eval mode and is left in the mode it was in. Raises ValueError or TypeError, saying what it wants.
    """
    bridge.check_choice("reference", reference, bridge.REFERENCES)
    bridge.check_choice("decode", decode, DECODES)
    bridge.check_choice("carry", carry, bridge.CARRIES)
    for name, value, least in (
        ("num_samples", num_samples, 1),
        ("first_sample", first_sample, 0),
        ("particles", particles, 1),
    ):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed must be a 64-bit integer, got {seed!r}")
    _check_beam(decode, beam, beam_kept, beam_returned, compiled and cache)
    bridge.check_choice("law", law, LAWS)
    if constraints is None and (law != "prefix" or reflect_noise):
        raise ValueError("law and reflect_noise are about constraints, got none")
    if law == "conditioned" and (decode != "sample" or reflect_noise):
        raise ValueError(
            'law="conditioned" needs decode="sample" and reflect_noise=False: it weighs the model\'s own draws'
        )
    if not 0 < temperature < math.inf:
        raise ValueError(f'temperature must be positive and finite, got {temperature}; or use decode="greedy"')
    if not 0 <= noise_scale < math.inf:
        raise ValueError(f"noise_scale must be at least 0 and finite, got {noise_scale}")
    if constraints is not None and (isinstance(model, OnePassModel) or beam is not None):
        raise ValueError('constraints are for diffusions and decode="sample" or "greedy"')
    if isinstance(model, OnePassModel) and (record or beam is not None):
        raise ValueError(f'record=True and decode="beam" are for diffusions, this is a {model.model_type} model')
    if not max_memory > 0:
        raise ValueError(f"max_memory must be a positive number of bytes, got {max_memory}")
    is_numpy = isinstance(items, np.ndarray)
    like = next(model.parameters())
    if like.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"the model must be float32 or float64, got {like.dtype}; convert it with model.float()")
    items = _as_tensor("items", items, like.device)
    mask = None if mask is None else _as_tensor("mask", mask, like.device)
    is_single = items.ndim == 1 + getattr(model.embedder, "item_ndim", -1)
    if is_single:
        items, mask = items[None], None if mask is None else mask[None]
    _check_items(items, mask)
    B, N = items.shape[:2]
    if first is not None:
        first = _checked_first(first, items, mask)
    rules = rules_of(constraints, B, N, mask, device=like.device, first=first)
    is_resampled = law == "conditioned" and rules is not None
    draws, first_draw = num_samples, first_sample
    if is_resampled:
        num_samples, first_sample = num_samples * particles, first_sample * particles
    bytes_per_sample = _bytes_per_sample(model, N) * (1 if beam is None else 2 * beam)
    rows_at_once = max(1, int(max_memory // bytes_per_sample))
    instances_at_once = max(1, rows_at_once // num_samples)
    parts = []
    with (
        evaluating(model),
        tqdm(total=B * num_samples * steps_of(model, steps), unit="step", disable=not progress) as bar,
    ):
        packed_weights = None if isinstance(model, OnePassModel) else model.packed_weights()
        for begin in range(0, max(B, 1), instances_at_once):
            chunk = slice(begin, begin + instances_at_once)
            chunk_mask = None if mask is None else mask[chunk]
            embedded = model.embed(items[chunk], chunk_mask)
            numbers = torch.arange(embedded.shape[0] * num_samples, device=like.device)
            for rows in numbers.split(rows_at_once):
                rows = rows.repeat_interleave(beam_kept)
                instance = rows // num_samples
                batch = (
                    embedded[instance], None if chunk_mask is None else chunk_mask[instance],
                    None if first is None else first[begin + instance], first_sample + begin * num_samples + rows,
                )  # fmt: skip
                if isinstance(model, OnePassModel):
                    parts.append(_one_pass(model, *batch, decode, temperature, seed, bar))
                    continue
                part = _reverse(
                    model, *batch, None if rules is None else rules.rows(begin + instance), law, reflect_noise,
                    packed_weights, model.config.reverse_times(steps), noise_scale, reference, decode, temperature,
                    beam, beam_kept, beam_returned, seed, carry, compiled, cache, speculative, record, bar,
                )  # fmt: skip
                parts.append(part)
    samples = parts[0] if len(parts) == 1 else _map_fields(lambda *tensors: torch.cat(tensors), *parts)
    samples = _map_fields(lambda field: field.unflatten(0, (B, num_samples * beam_returned)), samples)
    if is_resampled:
        numbers = first_draw + torch.arange(B * draws, device=like.device).view(B, draws)
        samples = _resampled(samples, numbers, seed)
    if is_single:
        samples = samples[0]
    return samples.numpy() if is_numpy else samples


def _reverse(
    model: SoftRankModel,
    embedded: Tensor,
    mask: Tensor | None,
    first: Tensor | None,
    samples: Tensor,
    rules: Rules | None,
    law: str,
    reflect_noise: bool,
    packed_weights: PackedWeights | None,
    times: list[float],
    noise_scale: float,
    reference: str,
    decode: str,
    temperature: float,
    beam: int | None,
    beam_kept: int,
    beam_returned: int,
    seed: int,
    carry: str,
    compiled: bool,
    cache: bool,
    speculative: bool,
    record: bool,
    bar: tqdm,
) -> Samples:
    """The reverse process for a batch: embedded (B, N, D) per item, mask (B, N), first (B,), samples (B,): numbers.

    Every beam_kept rows are hypotheses of one sample; the first beam_returned of them are returned. rules: over items,
    of these rows. With law "conditioned" log_prob_allowed of the samples is the log of their weights.
    """
    config = model.config
    engine = Engine(compiled=compiled, cache=cache)
    B, N, _ = embedded.shape
    dtype = embedded.dtype

    def item_noise(make: Callable[..., Tensor], step: int, stream: int) -> Tensor:
        """Noise per item, numbered along the real items, so that padding in between does not shift it."""
        drawn = make(seed, samples, step, N, stream=stream, dtype=dtype)
        drawn = drawn if mask is None else drawn.gather(1, (mask.cumsum(1) - 1).clamp(min=0))
        return drawn if first is None else drawn.scatter(1, first[:, None], 0.0)  # its soft rank stays 0

    # 1. Start from the reference distribution.
    make = noise.uniform if reference == "uniform" else noise.normal
    z_t = bridge.reference_sample(item_noise(make, 0, noise.REFERENCE_STREAM), reference)
    trajectory: list[TrajectoryPoint] = []
    path_log_probs = torch.zeros(B // beam_kept, beam_kept, dtype=dtype, device=embedded.device)
    path_log_probs[:, 1:] = -torch.inf  # one hypothesis to begin with
    choices = torch.full((B,), N - 1, device=embedded.device) if mask is None else mask.sum(1) - 1
    order: Tensor | None = None
    log_weights: Tensor | None = None
    work = torch.zeros(B, 2, dtype=torch.int64, device=embedded.device)
    for step, (t, s) in enumerate(pairwise(times)):
        # 2. Read the order off the soft ranks.
        soft_ranks, order_t, ranks_t = torch.ops.softrank_ext.read_order(z_t, mask)  # never NaN: no check
        if reflect_noise and rules is not None and rules.before is not None:
            soft_ranks = bridge.reflect_pairs(soft_ranks, rules.before)
            z_t = soft_ranks if carry == "reflected" else z_t
            order_t, ranks_t = ops.decode_chamber(soft_ranks, mask)
        # 3. In this order the network sees the items: its slots.
        mask_t = None if mask is None else arrange(mask, order_t)
        first_slot = None if first is None else ranks_t.gather(1, first[:, None])  # (B, 1)
        # 4., 5. Encode, and pick slot after slot; the last prediction, seen slot by slot, is the draft.
        if beam is None:
            draft = None if order is None or not speculative else ranks_t.gather(1, order)
            uniform = None
            if decode == "sample":
                uniform = noise.uniform(seed, samples, step, N, stream=noise.PICK_STREAM, dtype=dtype)
            # Rules are for clean orders; those of the time before may break them.
            is_ruled = rules is not None and (s == 0 or (law == "prefix" and config.target == "clean"))
            picks = ops.Choices(
                uniform,
                None if first_slot is None else _order_from(first_slot, mask_t, N),
                None if first is None else 1,
                temperature if decode == "sample" else 1.0,
                draft,
                *(rules.in_slots(order_t) if rules is not None and is_ruled else ()),
            )
            slots, log_probs, step_work = model.decode_embedded(
                embedded, t, mask_t, picks, order=order_t, engine=engine, packed_weights=packed_weights
            )
            if first is not None:
                log_probs[:, 0] = 0.0  # decreed, not drawn
            if law == "conditioned" and is_ruled:
                unruled = model.decode_embedded(
                    embedded, t, mask_t, ops.Choices(forced_order=slots, temperature=temperature, draft=slots),
                    order=order_t, engine=engine, packed_weights=packed_weights,
                ).log_probs  # fmt: skip
                if first is not None:
                    unruled[:, 0] = 0.0
                log_weights, log_probs = (unruled - log_probs).sum(1), unruled
            log_prob = log_probs.sum(1)
        else:
            starts = Starts(None if first_slot is None else first_slot[:, 0], path_log_probs)
            found = beam_decode_embedded(
                model, arrange(embedded, order_t), t, beam, mask_t, starts, engine=engine, packed_weights=packed_weights
            )
            slots, log_prob, path_log_probs, rows = _carry_on(found, order_t, path_log_probs)
            z_t, soft_ranks, order_t = z_t[rows], soft_ranks[rows], order_t[rows]
            trajectory = [
                TrajectoryPoint(point.t, point.soft_ranks[rows], point.order[rows], point.predicted_order[rows])
                for point in trajectory
            ]
            step_work = choices[:, None] if model.config.head in DECODER_HEADS else torch.ones_like(choices)[:, None]
        work += step_work
        # 6. Turn slots into items and lift the predicted order to the grid.
        order, ranks, z_clean = torch.ops.softrank_ext.lift_order(order_t, slots, mask, dtype)
        if record:
            trajectory.append(TrajectoryPoint(t, soft_ranks, order_t, order))
        # 7., 8. Step back to s; at s = 0 this is z_clean, and no noise is needed. Where orders alone are the state, the
        # soft ranks stand for them.
        if config.target == "previous":
            z_t = z_clean
        elif s > 0 and config.visited is not None:
            order_s = _riffled_back(order_t, order, t, s, mask, first, config.visited[-1], seed, samples, step)
            z_t = bridge.lift_to_grid(ranks_of(order_s), mask, dtype=dtype)
        elif s > 0:
            bridge_noise = item_noise(noise.normal, step, noise.BRIDGE_STREAM)
            z_t = bridge.reverse_step(z_t, z_clean, t, s, bridge_noise, noise_scale=noise_scale, carry=carry)
        bar.update(B // beam_kept)
    kept = torch.where(work[:, 1] > 0, (len(times) - 1) * choices / work[:, 1].clamp(min=1), 1.0)
    if config.head not in DECODER_HEADS:
        kept = torch.ones_like(kept)
    assert order is not None  # there is at least one step
    margin = chamber_margin(z_clean, mask)
    path = Trajectory(trajectory) if record else None
    drawn = Samples(
        order, ranks, z_clean, log_prob, margin, work[:, 0], kept, path, log_prob_allowed=log_weights
    )  # fmt: skip
    return drawn if beam is None else drawn[torch.arange(B, device=embedded.device) % beam_kept < beam_returned]


def _resampled(samples: Samples, numbers: Tensor, seed: int) -> Samples:
    """Draw from samples (B, P) in proportion to their weights; numbers (B, S): of the samples to draw, for noise."""
    assert samples.log_prob_allowed is not None  # the log-weights, so far
    log_weights = samples.log_prob_allowed.double()  # (B, P)
    weights = log_weights.softmax(1)
    cumulative = weights.cumsum(1)
    uniform = noise.uniform(seed, numbers.flatten(), 0, 1, stream=noise.RESAMPLE_STREAM, dtype=torch.float64)
    target = uniform.view_as(numbers) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, target, right=True).clamp(max=weights.shape[1] - 1)  # (B, S)
    rows = torch.arange(len(weights), device=weights.device)[:, None]
    log_mean = log_weights.logsumexp(1) - math.log(weights.shape[1])
    return replace(
        _map_fields(lambda field: field[rows, chosen], samples),
        effective_size=(1 / weights.square().sum(1))[:, None].expand_as(numbers),
        log_prob_allowed=log_mean[:, None].expand_as(numbers),
    )


def _carry_on(found: Hypotheses, order_t: Tensor, path_log_probs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The hypotheses of a beam that go on, K of each sample: those of different orders that are most likely.

    order_t: (B * K, N), of the hypotheses that the beam began with; path_log_probs: (B, K), of their predictions so
    far. Returns the new predictions as slots (B * K, N), their own log-probabilities (B * K,), the new path_log_probs
    (B, K), and the rows (B * K,) of order_t that the predictions began with.
    """
    B, K = path_log_probs.shape
    rows = torch.arange(B, device=order_t.device)[:, None] * K + found.starts  # (B, width)
    orders = order_t[rows].gather(2, found.orders)  # (B, width, N) over items
    is_repeated = (orders[:, :, None] == orders[:, None]).all(3).tril(-1).any(2)
    paths, best = found.log_probs.masked_fill(is_repeated, -torch.inf).sort(dim=1, descending=True, stable=True)
    paths, best = paths[:, :K], best[:, :K]
    before = path_log_probs.gather(1, found.starts.gather(1, best))
    slots = found.orders.gather(1, best[..., None].expand(-1, -1, order_t.shape[1]))
    return slots.flatten(0, 1), (paths - before).flatten(), paths, rows.gather(1, best).flatten()


def _riffled_back(
    order_t: Tensor, order: Tensor, t: float, s: float, mask: Tensor | None, first: Tensor | None, most: int, seed: int,
    samples: Tensor, step: int,
) -> Tensor:  # fmt: skip
    """Draw the order at time s given those at time t and predicted for time 0, where time 1 is `most` riffles."""
    uniform = noise.uniform(seed, samples, step, order.shape[1], stream=noise.BRIDGE_STREAM, dtype=torch.float64)
    return riffle.reverse_step(
        order_t, order, round(t * most), round(s * most), uniform, mask, is_first_pinned=first is not None
    )


def _one_pass(
    model: OnePassModel,
    embedded: Tensor,
    mask: Tensor | None,
    first: Tensor | None,
    samples: Tensor,
    decode: str,
    temperature: float,
    seed: int,
    bar: tqdm,
) -> Samples:
    """Samples of a model that is no diffusion; arguments as in `_reverse`."""
    B, N = embedded.shape[:2]
    dtype = next(model.parameters()).dtype
    uniform = None
    if decode == "sample":
        uniform = noise.uniform(seed, samples, 0, N, stream=noise.PICK_STREAM, dtype=dtype)
    order, log_prob = model.choose(embedded, mask, first, uniform, temperature if decode == "sample" else 1.0)
    ranks = ranks_of(order)
    soft_ranks = bridge.lift_to_grid(ranks, mask, dtype=dtype)
    once = torch.ones(B, dtype=torch.int64, device=embedded.device)
    bar.update(B)
    return Samples(order, ranks, soft_ranks, log_prob, chamber_margin(soft_ranks, mask), once, once.to(dtype), None)


def steps_of(model: SoftRankModel | OnePassModel, steps: int | None = None) -> int:
    """How many steps a sample takes if `steps` are asked for; raises ValueError if the model cannot take so many."""
    if not isinstance(model, OnePassModel):
        return len(model.config.reverse_times(steps)) - 1
    if steps not in (None, 1):
        raise ValueError(f"a {model.model_type} model takes one step, got steps = {steps}")
    return 1


def _order_from(slot: Tensor, mask: Tensor | None, N: int) -> Tensor:
    """An order over slots (B, N) that begins with `slot` (B, 1); the others follow by index, padding last."""
    slots = torch.arange(N, device=slot.device).expand(slot.shape[0], N)
    key = slots if mask is None else slots + N * ~mask
    return key.scatter(1, slot, -1).argsort(1)


def _bytes_per_sample(model: SoftRankModel | OnePassModel, N: int) -> int:
    """An estimate of what one sample takes: per decoder layer four caches, and the activations of one layer.

    Activations are about 12 D + 2 F per token. gpl runs on 2N tokens and holds a mask and scores over pairs of them.
    """
    if isinstance(model, OnePassModel):
        return model.bytes_per_sample(N)
    config, element_size = model.config, next(model.parameters()).element_size()
    tokens = 2 * N if config.head == "gpl" else N
    per_token = (4 * config.decoder_layers + 12) * config.d_model + 2 * config.feed_forward
    return element_size * tokens * (per_token + (tokens if config.head == "gpl" else 0))


def _check_beam(decode: str, beam: int | None, beam_kept: int, beam_returned: int, is_compiled: bool) -> None:
    if (decode == "beam") != (beam is not None):
        raise ValueError(f'beam must be given with decode="beam" and only then, got {beam} with decode="{decode}"')
    if beam is not None and (not isinstance(beam, int) or beam < 1):
        raise ValueError(f"beam must be an integer of at least 1, got {beam!r}")
    if not isinstance(beam_kept, int) or not 1 <= beam_kept <= (beam or 1):
        raise ValueError(f"beam_kept must be an integer from 1 to beam = {beam}, got {beam_kept!r}")
    if not isinstance(beam_returned, int) or not 1 <= beam_returned <= beam_kept:
        raise ValueError(f"beam_returned must be an integer from 1 to beam_kept = {beam_kept}, got {beam_returned!r}")
    if beam is not None and not is_compiled:
        raise ValueError('decode="beam" needs compiled=True and cache=True: it runs on the cached decoder')


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every submodule's own mode after."""
    in_training = [module for module in _modules_of(model) if module.training]
    if in_training:
        model.eval()
    try:
        yield
    finally:
        for module in in_training:
            module.training = True


def _modules_of(module: nn.Module) -> Iterator[nn.Module]:
    """`module.modules()` without its names and its search for shared ones, which take a third of a millisecond."""
    yield module
    for child in module._modules.values():
        if child is not None:
            yield from _modules_of(child)


def _as_tensor(name: str, value: Tensor | np.ndarray, device: torch.device) -> Tensor:
    if isinstance(value, np.ndarray):
        try:
            value = torch.from_numpy(value)
        except TypeError as error:
            raise TypeError(f"{name} must hold numbers, got a numpy array of {value.dtype}") from error
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor or a numpy array, got {type(value).__name__}")
    return value.to(device)


def _checked_first(first: int | Tensor | np.ndarray, items: Tensor, mask: Tensor | None) -> Tensor:
    """`first` as (B,) int64; raises ValueError unless it names a real item of each instance."""
    B, N = items.shape[:2]
    numbers = torch.as_tensor(first, device=items.device)
    if numbers.dtype != torch.int64 or numbers.shape not in ((), (B,)):
        raise ValueError(f"first must be an integer or ({B},) int64, got {tuple(numbers.shape)} {numbers.dtype}")
    numbers = numbers.expand(B)
    is_real = (numbers >= 0) & (numbers < N)
    if mask is not None:
        is_real &= mask.gather(1, numbers.clamp(0, N - 1)[:, None])[:, 0]
    if not bool(is_real.all()):
        row = int((~is_real).nonzero()[0])
        raise ValueError(f"first must be a real item, 0 to {N - 1}, got {int(numbers[row])} in row {row}")
    return numbers


def _check_items(items: Tensor, mask: Tensor | None) -> None:
    """Raise ValueError unless items are (B, N, ...), N > 0, finite where real; mask (B, N) bool, some True per row."""
    if items.ndim < 2 or items.shape[1] == 0:
        raise ValueError(f"items must be (B, N, ...) with N at least 1, got {tuple(items.shape)}")
    if items.dtype == torch.bool or items.is_complex():
        raise ValueError(f"items must hold real numbers, got {items.dtype}")
    if mask is not None:
        if mask.dtype != torch.bool or mask.shape != items.shape[:2]:
            raise ValueError(
                f"mask must be {tuple(items.shape[:2])} bool, True = real item, got {tuple(mask.shape)} {mask.dtype}"
            )
        if not bool(mask.any(1).all()):
            row = int((~mask.any(1)).nonzero()[0])
            raise ValueError(f"mask must leave at least one real item per row, row {row} has none")
    is_finite = items.isfinite()
    if bool(is_finite.all()):
        return
    is_wrong = ~is_finite.flatten(2).all(2) if items.ndim > 2 else ~is_finite  # (B, N)
    if mask is not None:
        is_wrong &= mask
    if bool(is_wrong.any()):
        row, item = is_wrong.nonzero()[0].tolist()
        raise ValueError(f"items must be finite, got NaN or infinity at row {row}, item {item}")
