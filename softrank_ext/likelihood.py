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
from softrank_ext.model import SoftRankModel
from softrank_ext.permutations import arrange, check_slots, ranks_of
from softrank_ext.processes import bridge
from softrank_ext.sampling import evaluating

_ROWS_AT_ONCE = 4096


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


@torch.no_grad()
def log_likelihood(
    model: SoftRankModel,
    items: Tensor,
    order: Tensor,
    *,
    mask: Tensor | None = None,
    first_by_decree: bool = False,
    num_samples: int = 64,
    guidance: float = 0.3,
    inner_samples: int = 1,
    steps: int | None = None,
    noise_scale: float = 0.5,
    reference: str = "uniform",
    temperature: float = 1.0,
    seed: int = 0,
    carry: str = "exact",
) -> LikelihoodEstimate:
    """Estimate the log-probability that `sample`, with the same settings, returns an order.

    items: (B, N, ...) as the model's embedder takes them. order: (B, N) int64, `order[place] = item`, real items first.
    mask: (B, N) bool, True = real item. first_by_decree: order[:, 0] stands first as with `first` of `sample`.
    num_samples: weighted trajectories per instance. guidance: from 0 (runs of the model as they are) to below 1: how
    much trajectories are led to the order, see the file's head. inner_samples: predictions per step that guided steps
    are weighed with; each takes as long as a step of `sample`. steps, noise_scale, reference, temperature, carry: as in
    `sample`. seed: any 64-bit integer; the same seed gives the same estimate.
    """
    if not isinstance(model, SoftRankModel) or (model.config.process, model.config.target) != ("soft-rank", "clean"):
        raise ValueError('model must be a SoftRankModel of process "soft-rank" and target "clean"')
    bridge.check_choice("carry", carry, bridge.CARRIES)
    for name, value, least in (("num_samples", num_samples, 2), ("inner_samples", inner_samples, 1)):
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    if not 0 <= guidance < 1:
        raise ValueError(f"guidance must be at least 0 and below 1, got {guidance}")
    if guidance > 0 and not 0 < noise_scale < math.inf:
        raise ValueError(f"noise_scale must be positive and finite, or guidance 0, got {noise_scale}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be positive and finite, got {temperature}")
    check_slots(order, mask)
    if order.ndim != 2 or order.shape != items.shape[:2]:
        raise ValueError(f"order must be (B, N) = {tuple(items.shape[:2])}, got {tuple(order.shape)}")
    inner = inner_samples if guidance > 0 else 1
    times = model.config.reverse_times(steps)
    with evaluating(model):
        embedded = model.embed(items, mask)
        parts = []
        for rows in torch.arange(len(order) * num_samples, device=order.device).split(max(1, _ROWS_AT_ONCE // inner)):
            instance = rows // num_samples
            part = _log_weights(
                model, embedded[instance], order[instance], None if mask is None else mask[instance], first_by_decree,
                rows, guidance, inner, times, noise_scale, reference, temperature, seed, carry,
            )  # fmt: skip
            parts.append(part)
    log_weights = torch.cat(parts).unflatten(0, (len(order), num_samples))
    log_prob = log_weights.logsumexp(1) - math.log(num_samples)
    relative = (log_weights - log_prob[:, None]).exp()  # weights, of mean 1
    return LikelihoodEstimate(
        log_prob, relative.std(1) / math.sqrt(num_samples), num_samples / relative.square().mean(1), log_weights
    )


def _log_weights(
    model: SoftRankModel,
    embedded: Tensor,
    order: Tensor,
    mask: Tensor | None,
    first_by_decree: bool,
    samples: Tensor,
    guidance: float,
    inner: int,
    times: list[float],
    noise_scale: float,
    reference: str,
    temperature: float,
    seed: int,
    carry: str,
) -> Tensor:
    """Log-weights (R,) of trajectories: embedded (R, N, D) per item, order and mask (R, N), samples (R,): numbers."""
    R, N, _ = embedded.shape
    dtype = embedded.dtype
    moves = torch.ones(R, N, dtype=dtype, device=embedded.device)
    if first_by_decree:
        moves.scatter_(1, order[:, :1], 0.0)
    packed_weights = model.packed_weights()
    z_order = bridge.lift_to_grid(ranks_of(order), mask, dtype=dtype)
    make = noise.uniform if reference == "uniform" else noise.normal
    z_t = (
        bridge.reference_sample(make(seed, samples, 0, N, stream=noise.REFERENCE_STREAM, dtype=dtype), reference)
        * moves
    )
    log_weights = torch.zeros(R, dtype=dtype, device=embedded.device)
    inner_samples = (samples[:, None] * inner + torch.arange(inner, device=samples.device)).flatten()  # (R * inner,)
    for step, (t, s) in enumerate(pairwise(times)):
        _, order_t, ranks_t = ops.read_order(z_t, mask)
        mask_t = None if mask is None else arrange(mask, order_t)
        slots = ranks_t.gather(1, order)
        if s == 0:
            _, log_probs, _ = model.decode_embedded(
                embedded, t, mask_t, ops.Choices(forced_order=slots, temperature=temperature), order=order_t,
                packed_weights=packed_weights,
            )  # fmt: skip
            return log_weights + log_probs[:, int(first_by_decree) :].sum(1)
        predicted, _, _ = model.decode_embedded(
            embedded.repeat_interleave(inner, 0), t, None if mask_t is None else mask_t.repeat_interleave(inner, 0),
            ops.Choices(
                uniform=noise.uniform(seed, inner_samples, step, N, stream=noise.PICK_STREAM, dtype=dtype),
                temperature=temperature, forced_order=slots.repeat_interleave(inner, 0) if first_by_decree else None,
                forced_places=1 if first_by_decree else None,
            ), order=order_t.repeat_interleave(inner, 0), packed_weights=packed_weights,
        )  # fmt: skip
        inner_mask = None if mask is None else mask.repeat_interleave(inner, 0)
        _, _, z_predicted = ops.lift_order(order_t.repeat_interleave(inner, 0), predicted, inner_mask, dtype=dtype)
        z_predicted = z_predicted.unflatten(0, (R, inner))
        # Draw z_s from one of the Gaussians: the order's, or a prediction's.
        uniform = noise.uniform(seed, samples, step, 1, stream=noise.GUIDANCE_STREAM, dtype=dtype)[:, 0]
        chosen = ((uniform - guidance) / (1 - guidance) * inner).long().clamp(0, inner - 1)
        z_chosen = z_predicted[torch.arange(R, device=chosen.device), chosen]
        z_clean = torch.where((uniform < guidance)[:, None], z_order, z_chosen)
        step_noise = noise.normal(seed, samples, step, N, stream=noise.BRIDGE_STREAM, dtype=dtype) * moves
        z_t = bridge.reverse_step(z_t, z_clean, t, s, step_noise, noise_scale=noise_scale, carry=carry)
        if guidance > 0:
            # Log-densities of z_s up to what all have in common. Padding, and a first item that is decreed, have the
            # same grid value in all orders.
            scale = (1 - s / t) / (noise_scale * math.sqrt(s * (t - s) / t))
            of_order = -(step_noise + scale * (z_clean - z_order)).square().sum(1) / 2
            of_predictions = -(step_noise[:, None] + scale * (z_clean[:, None] - z_predicted)).square().sum(2) / 2
            of_model = of_predictions.logsumexp(1) - math.log(inner)
            drawn_from = torch.logaddexp(of_order + math.log(guidance), of_model + math.log1p(-guidance))
            log_weights = log_weights + of_model - drawn_from
    raise AssertionError("the time grid ends at 0")
