"""The layers of encoder and decoder: the order of their weights, written down once, and what they do, in plain torch.

A layer's parts are layer norms and matrices with a bias, each a weight and a bias, in the order of `LAYER_PARTS`; they
are the submodules of the model's layers, and the lists of weights that ops take follow this order layer by layer, then
weight and bias of the final norm. `csrc/ops/cpu/transformer.h` has the same table; a test compares the two.
Layer norms have eps 1e-5, the feed-forward activation is ReLU, attention is scaled by 1/sqrt(D/heads).
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from softrank_ext.checks import check_choice
from softrank_ext.ops.library import define

# D: width of the model, F: width of the feed-forward. Matrices are (outputs, inputs), applied as `x @ weight.T + bias`.
_DECODER_PARTS = (
    "self_norm",  # (D,)
    "self_qkv",  # (3D, D): queries, keys and values
    "self_out",  # (D, D)
    "memory_norm",  # (D,)
    "memory_query",  # (D, D)
    "memory_key_value",  # (2D, D): keys and values
    "memory_out",  # (D, D)
    "feed_norm",  # (D,)
    "feed_in",  # (F, D)
    "feed_out",  # (D, F)
)
LAYER_PARTS = {
    "encoder": tuple(part for part in _DECODER_PARTS if not part.startswith("memory_")),
    "decoder": _DECODER_PARTS,
}

LayerWeights = dict[str, Tensor]  # by name: "self_norm_weight", "self_norm_bias", ...


def layer_weight_names(kind: str) -> tuple[str, ...]:
    """Names of the tensors of an "encoder" or "decoder" layer, in the order of the lists that ops take."""
    check_choice("kind", kind, LAYER_PARTS)
    return tuple(f"{part}_{tensor}" for part in LAYER_PARTS[kind] for tensor in ("weight", "bias"))


define("layer_weight_names", ("str kind",), "str", lambda kind: ",".join(layer_weight_names(kind)), None)


def weight_shapes(kind: str, D: int, hidden: int) -> list[tuple[int, ...]]:
    """Shapes of the tensors of a layer, in order; hidden: width of the feed-forward."""
    outputs = {"self_qkv": 3 * D, "memory_key_value": 2 * D, "feed_in": hidden}
    shapes: list[tuple[int, ...]] = []
    for part in LAYER_PARTS[kind]:
        rows, columns = outputs.get(part, D), hidden if part == "feed_out" else D
        shapes += [(rows,) if part.endswith("norm") else (rows, columns), (rows,)]
    return shapes


def layers_of(kind: str, weights: list[Tensor]) -> list[LayerWeights]:
    """The weights of each layer by name; the final norm, weights[-2:], is left out."""
    names = layer_weight_names(kind)
    # Detached: if a weight requires gradients, torch multiplies a strided tensor by other means, and rounds otherwise,
    # even where none are recorded.
    own = [weight.detach() for weight in weights]
    return [dict(zip(names, own[i : i + len(names)], strict=True)) for i in range(0, len(own) - 2, len(names))]


def without_padding(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
    """x (B, N, D) with padding zeroed, and which slots are attended to: bool (B, 1, 1, N), None for all."""
    # Asked on CPUs only: elsewhere the answer would make the host wait for the device.
    if mask.is_cpu and bool(mask.all()):
        return x, None
    # A row of padding alone attends to its zeros: a softmax over nothing would be NaN.
    attended = mask | ~mask.any(1, keepdim=True)
    return x.masked_fill(~mask[..., None], 0.0), attended[:, None, None]


def encoder_layer(layer: LayerWeights, x: Tensor, heads: int, norm_first: bool, attended: Tensor | None) -> Tensor:
    """One encoder layer on x (B, N, D)."""

    def self_attention(y: Tensor) -> Tensor:
        query, key, value = (split_heads(part, heads) for part in linear(layer, "self_qkv", y).chunk(3, -1))
        attention = F.scaled_dot_product_attention(query, key, value, attn_mask=attended)
        return linear(layer, "self_out", merge_heads(attention))

    x = _add_sublayer(layer, "self_norm", x, self_attention, norm_first)
    return _add_sublayer(layer, "feed_norm", x, partial(_feed_forward, layer), norm_first)


def decoder_layer(
    layer: LayerWeights,
    x: Tensor,
    heads: int,
    norm_first: bool,
    memory_key_value: tuple[Tensor, Tensor],
    attended: Tensor | None,
    extend: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor | None]] | None = None,
) -> Tensor:
    """One decoder layer on x (B, length, D): a whole prefix, or its last part.

    For a part, `extend` adds its keys and values (B, H, length, D / H) to those before and returns all, and which of
    them each query sees (None for all).
    """

    def self_attention(y: Tensor) -> Tensor:
        query, key, value = (split_heads(part, heads) for part in linear(layer, "self_qkv", y).chunk(3, -1))
        if extend is None:
            attention = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            keys, values, is_seen = extend(key, value)
            attention = F.scaled_dot_product_attention(query, keys, values, attn_mask=is_seen)
        return linear(layer, "self_out", merge_heads(attention))

    def memory_attention(y: Tensor) -> Tensor:
        query = split_heads(linear(layer, "memory_query", y), heads)
        attention = F.scaled_dot_product_attention(query, *memory_key_value, attn_mask=attended)
        return linear(layer, "memory_out", merge_heads(attention))

    x = _add_sublayer(layer, "self_norm", x, self_attention, norm_first)
    x = _add_sublayer(layer, "memory_norm", x, memory_attention, norm_first)
    return _add_sublayer(layer, "feed_norm", x, partial(_feed_forward, layer), norm_first)


def memory_keys_values(layer: LayerWeights, memory: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values (B, H, N, D / H) of the memory (B, N, D)."""
    keys, values = linear(layer, "memory_key_value", memory).chunk(2, -1)
    return split_heads(keys, heads), split_heads(values, heads)


def linear(layer: LayerWeights, part: str, x: Tensor) -> Tensor:
    """`x @ weight.T + bias` of a part."""
    return F.linear(x, layer[f"{part}_weight"], layer[f"{part}_bias"])


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(B, length, D) to (B, H, length, D / H)."""
    B, length, D = x.shape
    return x.view(B, length, heads, D // heads).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(B, H, length, D / H) to (B, length, D)."""
    return x.transpose(1, 2).flatten(2)


def _feed_forward(layer: LayerWeights, x: Tensor) -> Tensor:
    return linear(layer, "feed_out", F.relu(linear(layer, "feed_in", x)))


def _add_sublayer(
    layer: LayerWeights, norm: str, x: Tensor, sublayer: Callable[[Tensor], Tensor], norm_first: bool
) -> Tensor:
    """Add a sublayer to x, with its norm before it (norm_first) or after the sum."""
    weight, bias = layer[f"{norm}_weight"], layer[f"{norm}_bias"]
    if norm_first:
        return x + sublayer(F.layer_norm(x, weight.shape, weight, bias))
    return F.layer_norm(x + sublayer(x), weight.shape, weight, bias)
