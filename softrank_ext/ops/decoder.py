"""The cached decoder: a whole order at once (`decode_order`), or further positions on request (`advance_decoder`).

Its input is `start + places[0]`, then `tokens[b, last pick] + places[i]`; the scores at a place are
`state . head_keys + head_bias`. No op here records a gradient.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from softrank_ext.checks import FLOAT_DTYPES, check_instance, check_mask, check_tensor, described
from softrank_ext.ops.layers import (
    LayerWeights,
    decoder_layer,
    layer_weight_names,
    layers_of,
    memory_keys_values,
    without_padding,
)
from softrank_ext.ops.library import call_op, define
from softrank_ext.ops.picks import Choices, check_choices, check_picks, pick_each_place
from softrank_ext.ops.transformer import Transformer, check_transformer


class DecoderInputs(NamedTuple):
    """What the decoder works from at one diffusion time; `prepare_decoder` makes it.

    memory (B, N, D): encoder output. tokens (B, N, D), start (B, D), places (N, D): what its inputs are made of.
    head_keys (B or 1, N, D), head_bias (B or 1, N): of the scores. mask (B, N) bool: True = real slot; what padded
    slots hold has no effect.
    """

    memory: Tensor
    tokens: Tensor
    start: Tensor
    places: Tensor
    head_keys: Tensor
    head_bias: Tensor
    mask: Tensor


class DecodedOrder(NamedTuple):
    """What `decode_order` and `predict_order` return.

    order (B, N) int64: real slots as chosen, then padded ones by index. log_probs (B, N) of the picks, 0 at padded
    places; the last pick of a row has one candidate and log-probability 0. work (B, 2) int64: decoder passes that the
    row took part in, and places that it ran in them.
    """

    order: Tensor
    log_probs: Tensor
    work: Tensor


def decode_order(decoder: Transformer, inputs: DecoderInputs, choices: Choices = Choices()) -> DecodedOrder:
    """Run a cached transformer decoder place by place: score the slots, pick one of those left (paper Algorithm 2)."""
    check_instance("decoder", decoder, Transformer)
    check_instance("inputs", inputs, DecoderInputs)
    check_instance("choices", choices, Choices)
    for name, value in zip(inputs._fields, inputs, strict=True):
        check_instance(name, value, Tensor)
    memory, mask = inputs.memory, inputs.mask
    check_tensor("memory", memory, ("B", "N", "D"), FLOAT_DTYPES)
    check_transformer("decoder", decoder, "memory", memory)
    B, N, D = memory.shape
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "tokens": ((B, N, D),),
        "start": ((B, D),),
        "places": ((N, D),),
        "head_keys": ((B, N, D), (1, N, D)),
        "head_bias": ((B, N), (1, N)),
    }
    for name, allowed in shapes.items():
        value = getattr(inputs, name)
        if value.shape not in allowed or value.dtype != memory.dtype:
            wanted = " or ".join(map(str, allowed))
            raise ValueError(f"{name} must be {wanted} of memory's {memory.dtype}, got {described(value)}")
    if inputs.head_keys.shape[0] != inputs.head_bias.shape[0]:
        got = f"{len(inputs.head_keys)} and {len(inputs.head_bias)}"
        raise ValueError(f"head_keys and head_bias must have as many rows, got {got}")
    check_mask("mask", mask, "memory's slots", memory[..., 0])
    check_choices(choices, mask, memory.dtype)
    decoded = DecodedOrder(*call_op(torch.ops.softrank_ext.decode_order, *decoder, *inputs, *choices))
    check_picks(decoded.log_probs)
    return decoded


@torch.no_grad()
def decode_order_reference(decoder: Transformer, inputs: DecoderInputs, choices: Choices) -> DecodedOrder:
    """The decoder place by place with key and value caches; see `decode_order`. A draft is not made use of."""
    layers, (heads, norm_first) = layers_of("decoder", decoder.weights), decoder[2:]
    memory, attended = without_padding(inputs.memory, inputs.mask)
    memory_of_layers = [memory_keys_values(layer, memory, heads) for layer in layers]
    B, N, D = memory.shape
    caches = [memory.new_empty(2, B, heads, N, D // heads) for _ in layers]

    def state_at(step: int, token: Tensor) -> Tensor:
        x = token[:, None]  # (B, 1, D)
        for layer, memory_key_value, cache in zip(layers, memory_of_layers, caches, strict=True):

            def extend(key: Tensor, value: Tensor, cache: Tensor = cache) -> tuple[Tensor, Tensor, None]:
                cache[0, :, :, step : step + 1] = key
                cache[1, :, :, step : step + 1] = value
                keys, values = cache[:, :, :, : step + 1]
                return keys, values, None

            x = decoder_layer(layer, x, heads, norm_first, memory_key_value, attended, extend)
        return x[:, 0]

    return _decode(decoder, inputs, choices, state_at)


@torch.no_grad()
def decode_order_uncached(decoder: Transformer, inputs: DecoderInputs, choices: Choices) -> DecodedOrder:
    """`decode_order_reference` without caches: each place re-runs the decoder over the prefix, memory keys included."""
    layers, (heads, norm_first) = layers_of("decoder", decoder.weights), decoder[2:]
    memory, attended = without_padding(inputs.memory, inputs.mask)
    prefix = memory.new_empty(memory.shape)

    def state_at(step: int, token: Tensor) -> Tensor:
        prefix[:, step] = token
        x = prefix[:, : step + 1]  # (B, step + 1, D)
        for layer in layers:
            x = decoder_layer(layer, x, heads, norm_first, memory_keys_values(layer, memory, heads), attended)
        return x[:, -1]

    return _decode(decoder, inputs, choices, state_at)


def _decode(
    decoder: Transformer, inputs: DecoderInputs, choices: Choices, state_at: Callable[[int, Tensor], Tensor]
) -> DecodedOrder:
    """Pick place by place; `state_at(step, token)` runs the layers on a place's token (B, D), given those before."""
    _, _, start, places, head_keys, head_bias, mask = inputs
    norm_weight, norm_bias = decoder.weights[-2:]
    tokens, _ = without_padding(inputs.tokens, mask)
    rows = torch.arange(len(mask), device=mask.device)

    def scores_at(step: int, last_choice: Tensor | None) -> Tensor:
        token = (start if last_choice is None else tokens[rows, last_choice]) + places[step]  # (B, D)
        state = F.layer_norm(state_at(step, token), token.shape[1:], norm_weight, norm_bias)
        if head_keys.shape[0] == 1:
            return F.linear(state, head_keys[0], head_bias[0])  # (B, N)
        return torch.baddbmm(head_bias[..., None], head_keys, state[..., None])[..., 0]  # (B, N)

    order, log_probs = pick_each_place(scores_at, mask, tokens.dtype, choices)
    passes = (mask.sum(1) - 1).clamp(min=0)
    return DecodedOrder(order, log_probs, torch.stack((passes, passes), 1))


def _fake_decode_order(decoder: Transformer, inputs: DecoderInputs, choices: Choices) -> tuple[Tensor, Tensor, Tensor]:
    memory, mask = inputs.memory, inputs.mask
    torch._check(memory.ndim == 3, lambda: f"memory must be (B, N, D), got {tuple(memory.shape)}")
    torch._check(inputs.tokens.shape == memory.shape, lambda: "tokens must have the shape of memory")
    torch._check(mask.shape == memory.shape[:2], lambda: "mask must be (B, N) as memory is (B, N, D)")
    order = memory.new_empty(mask.shape, dtype=torch.int64)
    return order, memory.new_empty(mask.shape), order.new_empty(mask.shape[0], 2)


define(
    "decode_order",
    (Transformer, DecoderInputs, Choices),
    "(Tensor order, Tensor log_probs, Tensor work)",
    lambda *groups: tuple(decode_order_reference(*groups)),
    _fake_decode_order,
)


def open_decoder(decoder: Transformer, memory: Tensor, mask: Tensor) -> Tensor:
    """Caches for `advance_decoder`, (B, R): keys and values of the memory's real slots, and room for N positions.

    memory, mask: as in `DecoderInputs`. What the R numbers of a row mean is private to the kernel.
    """
    check_instance("decoder", decoder, Transformer)
    check_tensor("memory", memory, ("B", "N", "D"), FLOAT_DTYPES)
    check_transformer("decoder", decoder, "memory", memory)
    check_mask("mask", mask, "memory's slots", memory[..., 0])
    cache: Tensor = call_op(torch.ops.softrank_ext.open_decoder, *decoder, memory, mask)
    return cache


@torch.no_grad()
def open_decoder_reference(decoder: Transformer, memory: Tensor, mask: Tensor) -> Tensor:
    """Caches (B, numbers) that hold the memory's keys and values; see `open_decoder`."""
    layers, heads = layers_of("decoder", decoder.weights), decoder.heads
    B, N, D = memory.shape
    memory = memory.masked_fill(~mask[..., None], 0.0)
    cache = memory.new_zeros(B, cache_numbers(decoder, N))
    parts = _caches_of(cache, layers, heads, N, D // heads)
    for i, layer in enumerate(layers):
        parts[:, i, 2], parts[:, i, 3] = memory_keys_values(layer, memory, heads)
    return cache


def _fake_open_decoder(decoder: Transformer, memory: Tensor, mask: Tensor) -> Tensor:
    check_tensor("memory", memory, ("B", "N", "D"), FLOAT_DTYPES)
    return memory.new_empty(memory.shape[0], cache_numbers(decoder, memory.shape[1]))


define(
    "open_decoder",
    (Transformer, "Tensor memory", "Tensor mask"),
    "Tensor cache",
    open_decoder_reference,
    _fake_open_decoder,
)


def advance_decoder(decoder: Transformer, cache: Tensor, inputs: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
    """Take further positions through the decoder, appending to the caches; returns states (B, P, D), normed.

    cache: from `open_decoder`, changed in place. inputs (B, P, D): decoder inputs at positions lengths[b] + 0 ... P-1.
    lengths (B,) int64: positions of each row that count so far; what the cache holds beyond them is overwritten, so a
    shorter length goes back to a shorter prefix. Rows without a real slot give zeros.
    """
    check_tensor("inputs", inputs, ("B", "P", "D"), FLOAT_DTYPES)
    check_transformer("decoder", decoder, "inputs", inputs)
    B, positions, _ = inputs.shape
    check_tensor("lengths", lengths, (B,), torch.int64)
    check_tensor("mask", mask, (B, "N"), torch.bool)
    wanted = (B, cache_numbers(decoder, mask.shape[1]))
    check_instance("cache", cache, Tensor)
    if (
        cache.layout != torch.strided
        or cache.shape != wanted
        or cache.dtype != inputs.dtype
        or not cache.is_contiguous()
    ):
        raise ValueError(f"cache must be the {wanted} {inputs.dtype} of open_decoder, got {described(cache)}")
    if not torch.compiler.is_compiling():
        is_wrong = (lengths < 0) | (lengths + positions > mask.shape[1])
        if bool(is_wrong.any()):
            row = int(is_wrong.nonzero()[0])
            raise ValueError(
                f"lengths must leave room for {positions} positions of {mask.shape[1]}, "
                f"got {int(lengths[row])} in row {row}"
            )
    states: Tensor = call_op(torch.ops.softrank_ext.advance_decoder, *decoder, cache, inputs, lengths, mask)
    return states


@torch.no_grad()
def advance_decoder_reference(
    decoder: Transformer, cache: Tensor, inputs: Tensor, lengths: Tensor, mask: Tensor
) -> Tensor:
    """States (B, P, D) of further positions, whose keys and values join the caches; see `advance_decoder`."""
    layers, (heads, norm_first) = layers_of("decoder", decoder.weights), decoder[2:]
    B, P, D = inputs.shape
    N = mask.shape[1]
    parts = _caches_of(cache, layers, heads, N, D // heads)
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

        x = decoder_layer(layer, x, heads, norm_first, (parts[:, i, 2], parts[:, i, 3]), attended, extend)
    norm_weight, norm_bias = decoder.weights[-2:]
    states = F.layer_norm(x, (D,), norm_weight, norm_bias)
    return states.masked_fill(~mask.any(1)[:, None, None], 0.0)


def _fake_advance_decoder(decoder: Transformer, cache: Tensor, inputs: Tensor, lengths: Tensor, mask: Tensor) -> Tensor:
    return torch.empty_like(inputs, memory_format=torch.contiguous_format)


define(
    "advance_decoder",
    (Transformer, "Tensor(a!) cache", "Tensor inputs", "Tensor lengths", "Tensor mask"),
    "Tensor states",
    advance_decoder_reference,
    _fake_advance_decoder,
)


def cache_numbers(decoder: Transformer, slots: int) -> int:
    """Numbers in a row of the caches of `open_decoder`: lengths are rounded up to 64 bytes, as vector kernels want."""
    weights, heads = decoder.weights, decoder.heads
    if not weights or heads < 1:
        raise ValueError(f"decoder must have weights and a head, got {len(weights)} weights and heads = {heads}")
    D, layers = weights[0].shape[0], len(weights) // len(layer_weight_names("decoder"))
    step = 64 // weights[0].element_size()

    def padded(length: int) -> int:
        return -(-length // step) * step

    return layers * 2 * (D * padded(slots) + heads * slots * padded(D // heads))


def _caches_of(cache: Tensor, layers: list[LayerWeights], heads: int, slots: int, head_width: int) -> Tensor:
    """The part of the rows that plain torch uses: (B, layer, own keys, own values, memory keys, memory values, ...)."""
    shape = (len(layers), 4, heads, slots, head_width)
    return cache[:, : math.prod(shape)].view(cache.shape[0], *shape)
