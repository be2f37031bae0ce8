"""How likely an order is under the whole diffusion: an unbiased estimate, with its standard error.

`sample` draws soft ranks and predictions in turn, z_1, order_1, z_2, order_2, ..., and returns the last prediction. The
probability of an order is an integral over all that comes before. With the last prediction's own law it is
`p(order) = E[p(order | z_K)]`, a mean over runs of the model up to z_K; few runs, or none, come near a given order.

Guidance draws soft ranks that lead to the order, and weighs them. Given z_t, the model draws z_s from a mixture of
Gaussians, one per predicted order. Here, at each step, some orders are predicted from z_t (the inner samples), and z_s
is drawn from `q = guidance * N(z_s; order) + (1 - guidance) * mean of N(z_s; prediction)`, with the bridge to the order
itself as its first part. The step's weight is `mean of N(z_s; prediction) / q`, at most 1 / (1 - guidance). Given z_t,
weight times q has the model's density of z_s as its mean over predictions, so that
`product of the steps' weights * p(order | z_K)` has the mean p(order), whatever the guidance. At 0 all weights are 1.
Where z is folded after each step (carry="reflected"), it is the unfolded z_s that is weighed.
The logarithm of an unbiased estimate is too low on average: a stochastic lower bound that rises with num_samples.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from softrank_ext import noise, ops
from softrank_ext.checks import check_instance, check_integer, check_limited, check_share
from softrank_ext.choices import Draw
from softrank_ext.model import PackedWeights, SoftRankModel, evaluating
from softrank_ext.permutations import arrange, check_slots, ranks_of
from softrank_ext.processes import Bridge, Process, process_of_call
from softrank_ext.processes.bridge import lift_to_grid

_ROWS_AT_ONCE = 4096
MOST_TRAJECTORIES = 10**6  # per instance


@dataclass(frozen=True, eq=False)
class LikelihoodEstimate:
    """Estimates of log p(order), one per instance.

    log_prob (B,). standard_error (B,): of log_prob, by the spread of the weights; it can be trusted where
    effective_samples (B,), from 1 to num_samples, is not small. log_weights (B, num_samples): the mean of their
    exponentials estimates p(order).
    """

    log_prob: Tensor
    standard_error: Tensor
    effective_samples: Tensor
    log_weights: Tensor


@dataclass(frozen=True, eq=False)
class _Estimation:
    """What is the same for all trajectories; inner: predictions per step that guided steps are weighed with."""

    model: SoftRankModel
    process: Bridge
    fixed_start: bool
    temperature: float
    guidance: float
    inner: int
    seed: int
    packed_weights: PackedWeights


@torch.no_grad()
def log_likelihood(
    model: SoftRankModel,
    items: Tensor,
    order: Tensor,
    *,
    mask: Tensor | None = None,
    fixed_start: bool | None = None,
    num_samples: int = 64,
    guidance: float = 0.3,
    inner_samples: int = 1,
    steps: int | None = None,
    process: Process | None = None,
    decode: Draw = Draw(),
    seed: int | torch.Generator = 0,
) -> LikelihoodEstimate:
    """Estimate the log-probability that `sample`, with the same settings, returns an order.

    items: (B, N, ...) as the model's embedder takes them. order: (B, N) int64, `order[place] = item`, real items first.
    mask: (B, N) bool, True = real item. fixed_start: order[:, 0] is fixed, as by a pin at place 0; by default as the
    model was trained.
    num_samples: weighted trajectories per instance. guidance: from 0 (runs of the model as they are) to below 1: how
    much trajectories are led to the order, see the file's head. inner_samples: predictions per step that guided steps
    are weighed with; each takes as long as a step of `sample`. steps, process, decode: as in `sample`; orders are
    drawn, `Draw(temperature)`. seed: any 64-bit integer, or a torch.Generator that draws one; the same
    seed gives the same estimate.
    """
    if not isinstance(model, SoftRankModel):
        raise ValueError(f"model must be a SoftRankModel, got {type(model).__name__}")
    chosen = process_of_call(model.process, process, steps)
    if not isinstance(chosen, Bridge) or chosen.target != "clean":
        raise ValueError(f'process must be a Bridge whose target is "clean", got {chosen}')
    if not isinstance(decode, Draw):
        raise ValueError(f"decode must be Draw(temperature): the likelihood is that of draws, got {decode!r}")
    if fixed_start and not model.fixed_start:
        raise ValueError("fixed_start is for models trained with a fixed start, this one was not")
    check_instance("items", items, Tensor)
    check_instance("order", order, Tensor)
    check_limited("num_samples", num_samples, 2, MOST_TRAJECTORIES)
    check_integer("inner_samples", inner_samples, 1)
    check_share("guidance", guidance)
    seed = noise.seed_of(seed)
    if guidance > 0 and chosen.noise_scale == 0:
        raise ValueError("noise_scale must be positive, or guidance 0, got 0")
    check_slots(order, mask)
    if order.ndim != 2 or order.shape != items.shape[:2]:
        raise ValueError(f"order must be (B, N) = {tuple(items.shape[:2])}, got {tuple(order.shape)}")
    inner = inner_samples if guidance > 0 else 1
    with evaluating(model):
        estimation = _Estimation(
            model,
            chosen,
            model.fixed_start if fixed_start is None else fixed_start,
            decode.temperature,
            guidance,
            inner,
            seed,
            model.packed_weights(),
        )
        embedded = model.embed(items, mask)
        parts = []
        for rows in torch.arange(len(order) * num_samples, device=order.device).split(max(1, _ROWS_AT_ONCE // inner)):
            instance = rows // num_samples
            own_mask = None if mask is None else mask[instance]
            parts.append(_log_weights(estimation, embedded[instance], order[instance], own_mask, rows))
    log_weights = torch.cat(parts).unflatten(0, (len(order), num_samples))
    log_prob = log_weights.logsumexp(1) - math.log(num_samples)
    relative = (log_weights - log_prob[:, None]).exp()  # weights, of mean 1
    return LikelihoodEstimate(
        log_prob, relative.std(1) / math.sqrt(num_samples), num_samples / relative.square().mean(1), log_weights
    )


def _log_weights(
    estimation: _Estimation, embedded: Tensor, order: Tensor, mask: Tensor | None, samples: Tensor
) -> Tensor:
    """Log-weights (R,) of trajectories: embedded (R, N, D) per item, order and mask (R, N), samples (R,): numbers."""
    model, process, inner, seed = estimation.model, estimation.process, estimation.inner, estimation.seed
    fixed_start = estimation.fixed_start
    R, N, _ = embedded.shape
    dtype = embedded.dtype
    draws = noise.RowNoise(seed, samples, N, dtype, None, order[:, 0] if fixed_start else None)
    z_order = lift_to_grid(ranks_of(order), mask, dtype=dtype)
    z_t = process.draw_prior(draws)
    log_weights = torch.zeros(R, dtype=dtype, device=embedded.device)
    inner_samples = (samples[:, None] * inner + torch.arange(inner, device=samples.device)).flatten()  # (R * inner,)
    inner_mask = None if mask is None else mask.repeat_interleave(inner, 0)
    for step, (t, s) in enumerate(pairwise(process.times())):
        _, order_t, ranks_t = ops.read_order(z_t, mask)
        mask_t = None if mask is None else arrange(mask, order_t)
        slots = ranks_t.gather(1, order)
        seen = model.at_soft_ranks(embedded, z_t, mask)
        if s == 0:
            forced = ops.Choices(temperature=estimation.temperature, forced_order=slots)
            log_probs = model.decode_embedded(
                seen, t, mask_t, forced, order=order_t, packed_weights=estimation.packed_weights
            ).log_probs
            return log_weights + log_probs[:, int(fixed_start) :].sum(1)
        inner_order = order_t.repeat_interleave(inner, 0)
        choices = ops.Choices(
            uniform=noise.uniform(seed, inner_samples, step, N, stream=noise.PICK_STREAM, dtype=dtype),
            temperature=estimation.temperature,
            forced_order=slots.repeat_interleave(inner, 0) if fixed_start else None,
            forced_places=1 if fixed_start else None,
        )
        predicted = model.decode_embedded(
            seen.repeat_interleave(inner, 0),
            t,
            None if mask_t is None else mask_t.repeat_interleave(inner, 0),
            choices,
            order=inner_order,
            packed_weights=estimation.packed_weights,
        ).order
        _, _, z_predicted = ops.lift_order(inner_order, predicted, inner_mask, dtype=dtype)
        z_predicted = z_predicted.unflatten(0, (R, inner))
        z_clean = _guided_end(estimation, z_order, z_predicted, samples, step)
        step_noise = draws.held(draws.normal(step, noise.BRIDGE_STREAM))
        z_t = process.step_back(z_t, z_clean, t, s, step_noise)
        if estimation.guidance > 0:
            # Log-densities of z_s up to what all have in common. Padding, and a fixed first item, have the same grid
            # value in all orders.
            scale = (1 - s / t) / (process.noise_scale * math.sqrt(s * (t - s) / t))
            of_order = -(step_noise + scale * (z_clean - z_order)).square().sum(1) / 2
            of_predictions = -(step_noise[:, None] + scale * (z_clean[:, None] - z_predicted)).square().sum(2) / 2
            of_model = of_predictions.logsumexp(1) - math.log(inner)
            share = estimation.guidance
            drawn_from = torch.logaddexp(of_order + math.log(share), of_model + math.log1p(-share))
            log_weights = log_weights + of_model - drawn_from
    raise AssertionError("the time grid ends at 0")


def _guided_end(estimation: _Estimation, z_order: Tensor, z_predicted: Tensor, samples: Tensor, step: int) -> Tensor:
    """The clean end (R, N) of the Gaussian that z_s is drawn from: the order's, or one of the predictions'."""
    guidance, inner = estimation.guidance, estimation.inner
    uniform = noise.uniform(estimation.seed, samples, step, 1, stream=noise.GUIDANCE_STREAM, dtype=z_order.dtype)[:, 0]
    chosen = ((uniform - guidance) / (1 - guidance) * inner).long().clamp(0, inner - 1)
    z_chosen = z_predicted[torch.arange(len(chosen), device=chosen.device), chosen]
    return torch.where((uniform < guidance)[:, None], z_order, z_chosen)
