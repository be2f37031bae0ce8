"""Every op in plain torch: slow, obvious, and the specification of the compiled kernels.

These functions are registered as the dispatcher's default kernels, so they also serve devices that have
no kernel of ours. They check nothing: `ops` does that at its door. `order[place] = item`, `ranks[item] = place`.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Philox-4x32-10 of Salmon, Moraes, Dror and Shaw (SC 2011).
_PHILOX_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_PHILOX_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW_32 = 0xFFFFFFFF

# Wichura's AS241 (PPND16), numerator and denominator of the normal quantile, highest power first.
_QUANTILE_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852545925, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_QUANTILE_MIDDLE = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_QUANTILE_TAIL = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip
_LOG_2 = 0.6931471805599453


def reflect(x: Tensor) -> Tensor:
    """Fold onto [0, 1] with period 2: `m > 1 ? 2 - m : m` with `m = |x| mod 2`.

    Every operation is exact in floating point, so the fold is exact for any finite x. Infinities have no
    place in the fold and give NaN.
    """
    m = torch.fmod(x.abs(), 2)
    return torch.where(m > 1, 2 - m, m).contiguous()


def reflect_slope(x: Tensor) -> Tensor:
    """Slope of `reflect` at x: 1 on [2k, 2k+1] for x >= 0, -1 on the other cells, mirrored for x < 0; NaN stays."""
    m = torch.fmod(x.abs(), 2)
    slope = torch.where(m > 1, -1.0, 1.0).to(x.dtype) + m * 0
    return torch.where(x < 0, -slope, slope)


def decode_chamber(soft_ranks: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Order and ranks of soft ranks (B, N): stable, ties to the lower item; masked-out items come last, by index."""
    order = torch.argsort(soft_ranks, dim=1, stable=True)
    if mask is not None:
        is_padding = ~mask.gather(1, order)
        order = order.gather(1, torch.argsort(is_padding, dim=1, stable=True))
        # Padding is listed by index, whatever its soft ranks hold.
        padding_by_item = torch.argsort(~mask, dim=1, stable=True)
        order = torch.where(mask.gather(1, order), order, padding_by_item)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)
    return order, ranks


@torch.no_grad()
def read_order(z: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """`reflect`, then `decode_chamber`, by the kernels of the device."""
    soft_ranks = torch.ops.softrank_ext.reflect(z)
    return soft_ranks, *torch.ops.softrank_ext.decode_chamber(soft_ranks, mask)


def lift_order(order: Tensor, slots: Tensor, mask: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Order over items of an order over slots, its ranks, and these on the grid from 0 to 1; all (B, N), padding 0."""
    order = order.gather(1, slots)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    ranks = torch.empty_like(order).scatter_(1, order, places)
    real = torch.ones_like(order, dtype=torch.bool) if mask is None else mask
    steps = real.sum(1, keepdim=True).clamp(min=2) - 1  # (B, 1)
    return order, ranks, (ranks.to(dtype) / steps).masked_fill(~real, 0.0)


def pick_weights(scores: Tensor, remaining: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (B, N) less the highest remaining one, 0 where they equal it; and their exp, 0 outside the set."""
    masked = scores.masked_fill(~remaining, -torch.inf)
    top = masked.amax(1, keepdim=True)
    relative = torch.where(masked == top, 0.0, masked - top)  # the top may be infinite, where inf - inf is NaN
    return relative, torch.where(remaining, relative.exp(), 0.0)


def pick(scores: Tensor, remaining: Tensor, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Draw one item per row from the softmax over the remaining set by inverse CDF; greedy when uniform is None.

    scores (B, N) float, remaining (B, N) bool, uniform (B,) in [0, 1) -> choice (B,) int64, log_prob (B,).
    Scores of +inf share all the probability; a row whose remaining scores are all -inf is uniform.
    """
    if scores.shape[0] == 0:
        return scores.new_empty(0, dtype=torch.int64), scores.new_empty(0)
    if not bool(remaining.any(1).all()):
        row = int((~remaining.any(1)).nonzero()[0])
        raise RuntimeError(f"remaining must hold at least one item per row, got none in row {row}")
    is_nan = scores.isnan() & remaining
    if bool(is_nan.any()):
        row = int(is_nan.any(1).nonzero()[0])
        raise RuntimeError(f"scores must not be NaN where remaining is True, got NaN in row {row}")
    relative, weight = pick_weights(scores, remaining)
    total = weight.sum(1, keepdim=True)
    if uniform is None:
        choice = (remaining & (relative == 0)).to(torch.int8).argmax(1)
    else:
        cumulative = weight.cumsum(1)
        is_past = (cumulative > uniform[:, None].to(weight.dtype) * total) & (weight > 0)
        # Rounding may leave no item past the target: then the last one of positive weight is meant.
        last = weight.shape[1] - 1 - (weight > 0).flip(1).to(torch.int8).argmax(1)
        choice = torch.where(is_past.any(1), is_past.to(torch.int8).argmax(1), last)
    log_prob = (relative.gather(1, choice[:, None]) - total.log())[:, 0]
    return choice, log_prob


def philox_words(counter: list[Tensor], seed: int) -> list[Tensor]:
    """Four 32-bit words per counter by Philox-4x32-10; words are int64 tensors of one shape that hold 0 to 2^32 - 1."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed & _LOW_32, (seed >> 32) & _LOW_32
    for _ in range(10):
        # A product of two 32-bit words can pass 2^63; its low 64 bits are right all the same in wrapping arithmetic.
        p0, p1 = c0 * _PHILOX_MULTIPLIER[0], c2 * _PHILOX_MULTIPLIER[1]
        high0, low0 = (p0 >> 32) & _LOW_32, p0 & _LOW_32
        high1, low1 = (p1 >> 32) & _LOW_32, p1 & _LOW_32
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _PHILOX_WEYL[0]) & _LOW_32, (k1 + _PHILOX_WEYL[1]) & _LOW_32
    return [c0, c1, c2, c3]


def _random_bits(samples: Tensor, seed: int, step: int, stream: int, count: int) -> tuple[Tensor, Tensor]:
    """High and low 32-bit words (B, count) of the 64 random bits behind each number."""
    pair = torch.arange((count + 1) // 2, device=samples.device)
    zero = torch.zeros(samples.shape[0], len(pair), dtype=torch.int64, device=samples.device)
    low_sample, high_sample = (samples & _LOW_32)[:, None], ((samples >> 32) & _LOW_32)[:, None]
    counter = [zero + pair, zero + (step | (stream << 24)), zero + low_sample, zero + high_sample]
    w0, w1, w2, w3 = philox_words(counter, seed)  # (B, pairs)
    high = torch.stack((w0, w2), -1).flatten(1)[:, :count]
    low = torch.stack((w1, w3), -1).flatten(1)[:, :count]
    return high, low


def random_uniform(samples: Tensor, seed: int, step: int, stream: int, count: int, dtype: torch.dtype) -> Tensor:
    """Uniform numbers in [0, 1) of shape (B, count), row b keyed by (seed, samples[b], step, stream).

    One number takes 64 random bits: its leading 53 in float64, its leading 24 in float32.
    """
    high, low = _random_bits(samples, seed, step, stream, count)
    if dtype == torch.float64:
        return ((high << 21) | (low >> 11)).to(dtype) * 2.0**-53
    return (high >> 8).to(dtype) * 2.0**-24


def _horner(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    value = torch.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _log(x: Tensor) -> Tensor:
    """Natural logarithm by multiplications and additions only, so that every device rounds alike."""
    mantissa, exponent = torch.frexp(x)  # mantissa in [0.5, 1)
    is_low = mantissa < 0.7071067811865476
    mantissa = torch.where(is_low, mantissa * 2, mantissa)
    exponent = exponent.to(x.dtype) - is_low.to(x.dtype)
    s = (mantissa - 1) / (mantissa + 1)
    series = _horner(tuple(2.0 / k for k in range(21, 0, -2)), s * s)
    return exponent * _LOG_2 + s * series


def _sqrt(x: Tensor) -> Tensor:
    """Square root of x in [0.5, 40] by Heron's rule: torch's own is not correctly rounded on every processor."""
    root = 1.0 + 0.15 * x
    for _ in range(5):
        root = 0.5 * (root + x / root)
    return root


def normal_quantile(p: Tensor) -> Tensor:
    """Inverse of the normal distribution function for p in (0, 1), float64 (AS241)."""
    q = p - 0.5
    centre_argument = 0.180625 - q * q
    tail_argument = _sqrt(-_log(torch.where(q < 0, p, 1 - p)))
    middle, tail = tail_argument - 1.6, tail_argument - 5.0
    in_tail = torch.where(
        tail_argument <= 5.0,
        _horner(_QUANTILE_MIDDLE[0], middle) / _horner(_QUANTILE_MIDDLE[1], middle),
        _horner(_QUANTILE_TAIL[0], tail) / _horner(_QUANTILE_TAIL[1], tail),
    )
    in_centre = q * (_horner(_QUANTILE_CENTRE[0], centre_argument) / _horner(_QUANTILE_CENTRE[1], centre_argument))
    return torch.where(q.abs() <= 0.425, in_centre, torch.where(q < 0, -in_tail, in_tail))


def random_normal(samples: Tensor, seed: int, step: int, stream: int, count: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers (B, count): the quantile of the middle of a 52-bit cell of (0, 1), rounded to dtype."""
    high, low = _random_bits(samples, seed, step, stream, count)
    middle_of_cell = (((high << 20) | (low >> 12)).to(torch.float64) + 0.5) * 2.0**-52
    return normal_quantile(middle_of_cell).to(dtype)


class DecoderLayerWeights(NamedTuple):
    """The tensors of one decoder layer, in the order that `decode_order` takes them; F is the feed-forward width.

    Every projection is applied as `x @ weight.T + bias`. `self_qkv` stacks queries, keys and values,
    `memory_key_value` keys and values.
    """

    self_norm_weight: Tensor  # (D,)
    self_norm_bias: Tensor
    self_qkv_weight: Tensor  # (3D, D)
    self_qkv_bias: Tensor
    self_out_weight: Tensor  # (D, D)
    self_out_bias: Tensor
    memory_norm_weight: Tensor  # (D,)
    memory_norm_bias: Tensor
    memory_query_weight: Tensor  # (D, D)
    memory_query_bias: Tensor
    memory_key_value_weight: Tensor  # (2D, D)
    memory_key_value_bias: Tensor
    memory_out_weight: Tensor  # (D, D)
    memory_out_bias: Tensor
    feed_norm_weight: Tensor  # (D,)
    feed_norm_bias: Tensor
    feed_in_weight: Tensor  # (F, D)
    feed_in_bias: Tensor
    feed_out_weight: Tensor  # (D, F)
    feed_out_bias: Tensor


class EncoderLayerWeights(NamedTuple):
    """The tensors of one encoder layer, in the order that `encode` takes them; shapes as in `DecoderLayerWeights`."""

    self_norm_weight: Tensor
    self_norm_bias: Tensor
    self_qkv_weight: Tensor
    self_qkv_bias: Tensor
    self_out_weight: Tensor
    self_out_bias: Tensor
    feed_norm_weight: Tensor
    feed_norm_bias: Tensor
    feed_in_weight: Tensor
    feed_in_bias: Tensor
    feed_out_weight: Tensor
    feed_out_bias: Tensor


def pack_weights(weights: list[Tensor]) -> Tensor:
    """The weights as a kernel wants them laid out; plain torch takes them as they are: an empty tensor."""
    return weights[0].new_empty(0)


def pack_projection(weight: Tensor) -> Tensor:
    """See `pack_weights`."""
    return pack_weights([weight])


@torch.no_grad()
def project(x: Tensor, weight: Tensor, packed: Tensor | None) -> Tensor:
    """x (B, N, D) times the transpose of weight (outputs, D); see `ops.project`."""
    return x @ weight.T


def checksum(tensors: list[Tensor]) -> int:
    """See `ops.checksum`. 32-bit words go to 64 lanes in turn: rotate `state ^ word`, multiply and add, modulo 2^32."""
    sums = [_checksum_of(tensor.contiguous().flatten().view(torch.int32)) for tensor in tensors]
    return _checksum_of(torch.tensor(sums, dtype=torch.int64).view(torch.int32))


def _checksum_of(words: Tensor) -> int:
    """The checksum of int32 words (n,), as a signed 64-bit number."""
    low = 0xFFFFFFFF
    blocks = torch.nn.functional.pad(words.to(torch.int64) & low, (0, -len(words) % 64)).view(-1, 64)
    states = torch.zeros(64, dtype=torch.int64, device=words.device)
    for block in blocks:
        mixed = states ^ block
        rotated = ((mixed << 15) | (mixed >> 17)) & low
        states = (rotated * 0x85EBCA6B + 0x9E3779B9) & low
    total = 4 * len(words)
    for state in states.tolist():
        total = (total ^ state) * 0x9E3779B97F4A7C15 % 2**64
        total ^= total >> 32
    return total - 2**64 if total >= 2**63 else total


@torch.no_grad()
def encode(
    weights: list[Tensor], packed: Tensor | None, heads: int, norm_first: bool, x: Tensor, mask: Tensor
) -> Tensor:
    """Run a transformer encoder on x (B, N, D); see `ops.encode`."""
    x, _, attended = _without_padding(x, x, mask)
    D = x.shape[2]
    count = len(EncoderLayerWeights._fields)
    for i in range(0, len(weights) - 2, count):
        layer = EncoderLayerWeights(*weights[i : i + count])

        def self_attention(y: Tensor, layer: EncoderLayerWeights = layer) -> Tensor:
            query, key, value = _query_key_value(layer, y, heads)
            attention = F.scaled_dot_product_attention(query, key, value, attn_mask=attended)
            return F.linear(_merge_heads(attention), layer.self_out_weight, layer.self_out_bias)

        x = _add_sublayer(x, self_attention, layer.self_norm_weight, layer.self_norm_bias, norm_first)
        x = _add_sublayer(x, partial(_feed_forward, layer), layer.feed_norm_weight, layer.feed_norm_bias, norm_first)
    memory = F.layer_norm(x, (D,), weights[-2], weights[-1])
    return memory if attended is None else memory.masked_fill(~mask[..., None], 0.0)


@torch.no_grad()
def decode_order(
    weights: list[Tensor],
    packed: Tensor | None,
    heads: int,
    norm_first: bool,
    memory: Tensor,
    tokens: Tensor,
    start: Tensor,
    places: Tensor,
    head_keys: Tensor,
    head_bias: Tensor,
    mask: Tensor,
    uniform: Tensor | None,
    forced_order: Tensor | None,
    temperature: float,
    forced_places: int | None = None,
    draft: Tensor | None = None,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the decoder place by place with key and value caches; see `ops.decode_order`. A draft is not made use of."""
    layers = _layers_of(weights)
    final_norm_weight, final_norm_bias = weights[-2:]
    memory, tokens, attended = _without_padding(memory, tokens, mask)
    memory_keys_values = [_memory_keys_values(layer, memory, heads) for layer in layers]
    B, N, D = memory.shape
    caches = [memory.new_empty(2, B, heads, N, D // heads) for _ in layers]
    rows = torch.arange(B, device=memory.device)

    def scores_at(step: int, last_choice: Tensor | None) -> Tensor:
        token = start if last_choice is None else tokens[rows, last_choice]  # (B, D)
        x = (token + places[step])[:, None]  # (B, 1, D)
        for layer, memory_key_value, cache in zip(layers, memory_keys_values, caches, strict=True):

            def extend(key: Tensor, value: Tensor, cache: Tensor = cache) -> tuple[Tensor, Tensor, None]:
                cache[0, :, :, step : step + 1] = key
                cache[1, :, :, step : step + 1] = value
                keys, values = cache[:, :, :, : step + 1]
                return keys, values, None

            x = _decoder_layer(layer, x, heads, norm_first, memory_key_value, attended, extend)
        return _head_scores(F.layer_norm(x[:, 0], (D,), final_norm_weight, final_norm_bias), head_keys, head_bias)

    order, log_probs = _pick_each_place(
        scores_at, mask, memory.dtype, uniform, forced_order, temperature, forced_places, before, allowed, group
    )
    passes = (mask.sum(1) - 1).clamp(min=0)
    return order, log_probs, torch.stack((passes, passes), 1)


@torch.no_grad()
def predict_order(
    encoder: list[Tensor],
    packed_encoder: Tensor | None,
    decoder: list[Tensor],
    packed_decoder: Tensor | None,
    heads: int,
    norm_first: bool,
    embedded: Tensor,
    order: Tensor | None,
    time: Tensor,
    start: Tensor,
    places: Tensor,
    head: Tensor,
    head_bias: Tensor | None,
    packed_head: Tensor | None,
    mask: Tensor,
    *choices: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """One prediction of the reverse process: items to slots, then `encode`, the head and `decode_order`.

    embedded: (B, N, D), item by item; order: (B, N) int64, the items of the slots, None for embedded in slots already.
    time: (B or 1, 1, D), added to every token. start: (D,), places: (N, D), as in `decode_order`. head: of a pointer
    the matrix of `project` (D + 1, D), which gives keys and bias; else head_keys of `decode_order`, with head_bias.
    mask (B, N): of slots. choices: what follows in `decode_order`.
    """
    B, _, D = embedded.shape
    tokens = (embedded if order is None else embedded.gather(1, order[..., None].expand_as(embedded))) + time
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    memory = encode(encoder, packed_encoder, heads, norm_first, tokens + places[positions], mask)
    if head_bias is None:
        head, head_bias = project(memory, head, packed_head).split((D, 1), 2)
        head_bias = head_bias[..., 0]
    starts = (start + time[:, 0]).expand(B, D)
    return decode_order(
        decoder, packed_decoder, heads, norm_first, memory, tokens, starts, places, head, head_bias, mask, *choices
    )


@torch.no_grad()
def decode_order_uncached(
    weights: list[Tensor],
    packed: Tensor | None,
    heads: int,
    norm_first: bool,
    memory: Tensor,
    tokens: Tensor,
    start: Tensor,
    places: Tensor,
    head_keys: Tensor,
    head_bias: Tensor,
    mask: Tensor,
    uniform: Tensor | None,
    forced_order: Tensor | None,
    temperature: float,
    forced_places: int | None = None,
    draft: Tensor | None = None,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`decode_order` without caches: each place re-runs the decoder over the whole prefix, memory keys included."""
    layers = _layers_of(weights)
    final_norm_weight, final_norm_bias = weights[-2:]
    memory, tokens, attended = _without_padding(memory, tokens, mask)
    B, N, D = memory.shape
    inputs = memory.new_empty(B, N, D)
    rows = torch.arange(B, device=memory.device)

    def scores_at(step: int, last_choice: Tensor | None) -> Tensor:
        inputs[:, step] = (start if last_choice is None else tokens[rows, last_choice]) + places[step]
        x = inputs[:, : step + 1]  # (B, step + 1, D)
        for layer in layers:
            x = _decoder_layer(layer, x, heads, norm_first, _memory_keys_values(layer, memory, heads), attended)
        return _head_scores(F.layer_norm(x[:, -1], (D,), final_norm_weight, final_norm_bias), head_keys, head_bias)

    order, log_probs = _pick_each_place(
        scores_at, mask, memory.dtype, uniform, forced_order, temperature, forced_places, before, allowed, group
    )
    passes = (mask.sum(1) - 1).clamp(min=0)
    return order, log_probs, torch.stack((passes, passes), 1)


def cache_numbers(weights: list[Tensor], heads: int, slots: int) -> int:
    """Numbers in a row of the caches of `open_decoder`: lengths are rounded up to 64 bytes, as vector kernels want."""
    D, layers = weights[0].shape[0], len(_layers_of(weights))
    step = 64 // weights[0].element_size()

    def padded(length: int) -> int:
        return -(-length // step) * step

    return layers * 2 * (D * padded(slots) + heads * slots * padded(D // heads))


def _caches_of(cache: Tensor, layers: int, heads: int, slots: int, head_width: int) -> Tensor:
    """The part of the rows that plain torch uses: (B, layer, own keys, own values, memory keys, memory values, ...)."""
    shape = (layers, 4, heads, slots, head_width)
    return cache[:, : math.prod(shape)].view(cache.shape[0], *shape)


@torch.no_grad()
def open_decoder(weights: list[Tensor], packed: Tensor | None, heads: int, memory: Tensor, mask: Tensor) -> Tensor:
    """Caches (B, numbers) that hold the memory's keys and values; see `ops.open_decoder`."""
    layers = _layers_of(weights)
    B, N, D = memory.shape
    memory = memory.masked_fill(~mask[..., None], 0.0)
    cache = memory.new_zeros(B, cache_numbers(weights, heads, N))
    parts = _caches_of(cache, len(layers), heads, N, D // heads)
    for i, layer in enumerate(layers):
        parts[:, i, 2], parts[:, i, 3] = _memory_keys_values(layer, memory, heads)
    return cache


@torch.no_grad()
def advance_decoder(
    weights: list[Tensor],
    packed: Tensor | None,
    heads: int,
    norm_first: bool,
    cache: Tensor,
    inputs: Tensor,
    lengths: Tensor,
    mask: Tensor,
) -> Tensor:
    """States (B, P, D) of further positions, whose keys and values join the caches; see `ops.advance_decoder`."""
    layers = _layers_of(weights)
    B, P, D = inputs.shape
    N = mask.shape[1]
    parts = _caches_of(cache, len(layers), heads, N, D // heads)
    positions = lengths[:, None] + torch.arange(P, device=inputs.device)  # (B, P)
    is_seen = positions[..., None] >= torch.arange(N, device=inputs.device)  # (B, P, N)
    index = positions[:, None, :, None].expand(B, heads, P, D // heads)
    attended = (mask | ~mask.any(1, keepdim=True))[:, None, None]
    x = inputs
    for i, layer in enumerate(layers):

        def extend(key: Tensor, value: Tensor, own: Tensor = parts[:, i]) -> tuple[Tensor, Tensor, Tensor]:
            own[:, 0].scatter_(2, index, key)
            own[:, 1].scatter_(2, index, value)
            return own[:, 0], own[:, 1], is_seen[:, None]

        x = _decoder_layer(layer, x, heads, norm_first, (parts[:, i, 2], parts[:, i, 3]), attended, extend)
    states = F.layer_norm(x, (D,), weights[-2], weights[-1])
    return states.masked_fill(~mask.any(1)[:, None, None], 0.0)


# Sets of placed items that a search for a completion may visit in one row before it gives up with an error.
MOST_STATES = 200_000


class RowConstraints:
    """What may come next in one row under constraints: the items with which some completion keeps every rule.

    before[a][b]: a stands before b. allowed[item][place]. group[item]: a number, -1 for none. Any may be None. items:
    the real ones. Whether a completion exists is found by trying: depth first, remembering the answer for each set of
    placed items, and without going on where the items left cannot be matched to the places left.
    """

    def __init__(
        self,
        before: list[list[bool]] | None,
        allowed: list[list[bool]] | None,
        group: list[int] | None,
        items: list[int],
    ) -> None:
        count = len(items)
        self._items = items
        self._before = {b: {a for a in items if before is not None and before[a][b]} for b in items}
        self._places = None
        if allowed is not None:
            self._places = {i: [place for place in range(count) if allowed[i][place]] for i in items}
        self._group = {
            i: {i} if group is None or group[i] < 0 else {j for j in items if group[j] == group[i]} for i in items
        }
        self._known: dict[frozenset[int], bool] = {}
        self._placed: frozenset[int] = frozenset()

    def next_items(self) -> list[int]:
        """Items that may be placed next."""
        return [item for item in self._candidates(self._placed) if self._completes(self._placed | {item})]

    def place(self, item: int) -> None:
        self._placed |= {item}

    def _candidates(self, placed: frozenset[int]) -> list[int]:
        """Items that break no rule at the next place, those first whose last allowed place comes first."""
        is_open = any(group & placed and not group <= placed for group in self._group.values())
        fitting = [
            item
            for item in self._items
            if item not in placed
            and self._before[item] <= placed
            and (self._places is None or len(placed) in self._places[item])
            and (not is_open or self._group[item] & placed)
        ]
        return fitting if self._places is None else sorted(fitting, key=lambda item: (self._places or {})[item][-1])

    def _completes(self, placed: frozenset[int]) -> bool:
        if len(placed) == len(self._items):
            return True
        if placed not in self._known:
            if len(self._known) >= MOST_STATES:
                raise RuntimeError(f"constraints are too hard to check: the search passed {MOST_STATES} states")
            self._known[placed] = self._can_match(placed) and any(
                self._completes(placed | {item}) for item in self._candidates(placed)
            )
        return self._known[placed]

    def _can_match(self, placed: frozenset[int]) -> bool:
        """Whether each item that is left can have an allowed place of its own."""
        if self._places is None:
            return True
        places = self._places
        item_at: dict[int, int] = {}

        def seat(item: int, seen: set[int]) -> bool:
            for place in places[item]:
                if place >= len(placed) and place not in seen:
                    seen.add(place)
                    if place not in item_at or seat(item_at[place], seen):
                        item_at[place] = item
                        return True
            return False

        return all(seat(item, set()) for item in self._items if item not in placed)


def row_constraints(
    mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None
) -> list[RowConstraints]:
    """One `RowConstraints` per row of a batch; see `ops.allowed_picks`."""
    absent = [None] * mask.shape[0]
    pairs, places, groups = (absent if rule is None else rule.tolist() for rule in (before, allowed, group))
    return [
        RowConstraints(pairs[row], places[row], groups[row], mask[row].nonzero()[:, 0].tolist())
        for row in range(mask.shape[0])
    ]


def allowed_picks(
    prefix: Tensor, mask: Tensor, before: Tensor | None, allowed: Tensor | None, group: Tensor | None
) -> Tensor:
    """Slots that may come next after each part of a prefix (B, P): bool (B, P + 1, N); see `ops.allowed_picks`."""
    B, P = prefix.shape
    picks = torch.zeros(B, P + 1, mask.shape[1], dtype=torch.bool)
    for row, rules in enumerate(row_constraints(mask, before, allowed, group)):
        for step in range(P + 1):
            picks[row, step, rules.next_items()] = True
            if step < P:
                choice = int(prefix[row, step])
                if not picks[row, step, choice]:
                    break
                rules.place(choice)
    return picks.to(mask.device)


@torch.no_grad()
def decode_scores(
    scores: Tensor,
    mask: Tensor,
    uniform: Tensor | None,
    forced_order: Tensor | None,
    temperature: float,
    forced_places: int | None = None,
    before: Tensor | None = None,
    allowed: Tensor | None = None,
    group: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`decode_order` for scores (B, place, slot) that do not depend on earlier picks, as those of GPL and PL."""
    return _pick_each_place(
        lambda step, _: scores[:, step], mask, scores.dtype, uniform, forced_order, temperature, forced_places, before,
        allowed, group,
    )  # fmt: skip


def _pick_each_place(
    scores_at: Callable[[int, Tensor | None], Tensor],
    mask: Tensor,
    dtype: torch.dtype,
    uniform: Tensor | None,
    forced_order: Tensor | None,
    temperature: float,
    forced_places: int | None,
    before: Tensor | None,
    allowed: Tensor | None,
    group: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Pick a slot per place; `scores_at(step, last choice)` gives the scores (B, N) of the slots for place `step`.

    The last real slot of a row is what is left: nothing is scored for it, its log-probability is 0. A row that has
    come so far while others go on keeps that slot as its only candidate and draws it again with log-probability 0.
    """
    B, N = mask.shape
    slots = torch.arange(N, device=mask.device)
    count = mask.sum(1)  # (B,)
    is_left_alone = count[:, None] <= slots + 1  # (B, step): one candidate or none
    remaining = mask | ((count[:, None] == 0) & (slots == 0))
    log_probs = torch.zeros(B, N, dtype=dtype, device=mask.device)
    place_of_slot = torch.where(mask, N, N + 1)
    choice = None
    is_constrained = before is not None or allowed is not None or group is not None
    rules = row_constraints(mask, before, allowed, group) if is_constrained else []
    forced = 0 if forced_order is None else N if forced_places is None else forced_places
    for step in range(int(count.max()) - 1 if B > 0 else 0):
        scores = scores_at(step, choice)
        if temperature != 1.0:
            scores = scores / temperature
        candidates = remaining.clone() if is_constrained else remaining
        for row, row_rules in enumerate(rules):
            if not is_left_alone[row, step]:
                candidates[row] = False
                candidates[row, row_rules.next_items()] = True
        if forced_order is None or step >= forced:
            step_uniform = None if uniform is None else uniform[:, step].contiguous()
            choice, log_probs[:, step] = torch.ops.softrank_ext.pick(scores, candidates, step_uniform)
        else:
            # A row that is left alone keeps its slot, whatever the forced order has at this place.
            alone = remaining.to(torch.int8).argmax(1)
            choice = torch.where(is_left_alone[:, step], alone, forced_order[:, step])
            log_prob = scores.masked_fill(~candidates, -torch.inf).log_softmax(1).gather(1, choice[:, None])[:, 0]
            log_probs[:, step] = log_prob.masked_fill(is_left_alone[:, step], 0.0)
        remaining.scatter_(1, choice[:, None], is_left_alone[:, step : step + 1])
        place_of_slot.scatter_(1, choice[:, None], step)
        for row, row_rules in enumerate(rules):
            row_rules.place(int(choice[row]))
    return torch.argsort(place_of_slot, dim=1, stable=True), log_probs


def _layers_of(weights: list[Tensor]) -> list[DecoderLayerWeights]:
    count = len(DecoderLayerWeights._fields)
    return [DecoderLayerWeights(*weights[i : i + count]) for i in range(0, len(weights) - 2, count)]


def _without_padding(memory: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Memory and tokens with padding zeroed, and which slots are attended to: bool (B, 1, 1, N), None for all."""
    if bool(mask.all()):
        return memory, tokens, None
    is_padding = ~mask[..., None]  # (B, N, 1)
    # A row of padding alone attends to its zeros: a softmax over nothing would be NaN.
    attended = mask | ~mask.any(1, keepdim=True)
    return memory.masked_fill(is_padding, 0.0), tokens.masked_fill(is_padding, 0.0), attended[:, None, None]


def _split_heads(x: Tensor, heads: int) -> Tensor:
    B, length, D = x.shape
    return x.view(B, length, heads, D // heads).transpose(1, 2)  # (B, H, length, D / H)


def _merge_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)  # (B, length, D)


def _memory_keys_values(layer: DecoderLayerWeights, memory: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    keys, values = F.linear(memory, layer.memory_key_value_weight, layer.memory_key_value_bias).chunk(2, -1)
    return _split_heads(keys, heads), _split_heads(values, heads)


def _decoder_layer(
    layer: DecoderLayerWeights,
    x: Tensor,
    heads: int,
    norm_first: bool,
    memory_key_value: tuple[Tensor, Tensor],
    attended: Tensor | None,
    extend: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]] | None = None,
) -> Tensor:
    """One layer on x (B, length, D): a whole prefix, or its last part.

    For a part, `extend` adds its keys and values (B, H, length, D / H) to those before and returns all, and which of
    them each query sees (None for all).
    """

    def self_attention(y: Tensor) -> Tensor:
        query, key, value = _query_key_value(layer, y, heads)
        if extend is None:
            attention = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            keys, values, is_seen = extend(key, value)
            attention = F.scaled_dot_product_attention(query, keys, values, attn_mask=is_seen)
        return F.linear(_merge_heads(attention), layer.self_out_weight, layer.self_out_bias)

    def memory_attention(y: Tensor) -> Tensor:
        query = _split_heads(F.linear(y, layer.memory_query_weight, layer.memory_query_bias), heads)
        attention = F.scaled_dot_product_attention(query, *memory_key_value, attn_mask=attended)
        return F.linear(_merge_heads(attention), layer.memory_out_weight, layer.memory_out_bias)

    x = _add_sublayer(x, self_attention, layer.self_norm_weight, layer.self_norm_bias, norm_first)
    x = _add_sublayer(x, memory_attention, layer.memory_norm_weight, layer.memory_norm_bias, norm_first)
    return _add_sublayer(x, partial(_feed_forward, layer), layer.feed_norm_weight, layer.feed_norm_bias, norm_first)


def _query_key_value(
    layer: DecoderLayerWeights | EncoderLayerWeights, x: Tensor, heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value = F.linear(x, layer.self_qkv_weight, layer.self_qkv_bias).chunk(3, -1)
    return _split_heads(query, heads), _split_heads(key, heads), _split_heads(value, heads)


def _feed_forward(layer: DecoderLayerWeights | EncoderLayerWeights, x: Tensor) -> Tensor:
    hidden = F.relu(F.linear(x, layer.feed_in_weight, layer.feed_in_bias))
    return F.linear(hidden, layer.feed_out_weight, layer.feed_out_bias)


def _add_sublayer(
    x: Tensor, sublayer: Callable[[Tensor], Tensor], norm_weight: Tensor, norm_bias: Tensor, norm_first: bool
) -> Tensor:
    if norm_first:
        return x + sublayer(F.layer_norm(x, norm_weight.shape, norm_weight, norm_bias))
    return F.layer_norm(x + sublayer(x), norm_weight.shape, norm_weight, norm_bias)


def _head_scores(state: Tensor, head_keys: Tensor, head_bias: Tensor) -> Tensor:
    """`state . head_keys + head_bias`: state (B, D), head_keys (B or 1, N, D), head_bias (B or 1, N) -> (B, N)."""
    if head_keys.shape[0] == 1:
        return F.linear(state, head_keys[0], head_bias[0])
    return torch.baddbmm(head_bias[..., None], head_keys, state[..., None])[..., 0]
