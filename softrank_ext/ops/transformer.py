"""The encoder, the pointer's projection, and the packing of weights for the kernels; no op here records a gradient.

Weights come as a list, layer by layer, in the order of `layers.LAYER_PARTS`, then weight and bias of the final norm. A
packed tensor is private to the kernel that made it: it begins with a header (mark, version, kind, sizes) that kernels
check in every call, and is empty where weights are taken as they are.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from softrank_ext.checks import FLOAT_DTYPES, check_instance, check_mask, check_tensor, described
from softrank_ext.ops.layers import encoder_layer, layer_weight_names, layers_of, weight_shapes, without_padding
from softrank_ext.ops.library import call_op, define


class Transformer(NamedTuple):
    """The weights of an encoder or a decoder, and how they are run.

    weights: the list described at the head of the file; may be empty if `packed` is not, as handing over a hundred
    tensors takes as long as a layer. packed: of `pack_encoder` or `pack_decoder`; None to pack in every call. heads:
    divides D. norm_first: a norm stands before each sublayer, else after each sum; the final norm ends both.
    """

    weights: list[Tensor]
    packed: Tensor | None
    heads: int
    norm_first: bool


def encode(encoder: Transformer, x: Tensor, mask: Tensor) -> Tensor:
    """Run a transformer encoder on x (B, N, D): memory (B, N, D), 0 at padding. No gradient is recorded.

    mask (B, N) bool: True = real slot; what padded slots hold has no effect.
    """
    check_tensor("x", x, ("B", "N", "D"), FLOAT_DTYPES)
    check_instance("encoder", encoder, Transformer)
    check_transformer("encoder", encoder, "x", x)
    check_mask("mask", mask, "x's slots", x[..., 0])
    memory: Tensor = call_op(torch.ops.softrank_ext.encode, *encoder, x, mask)
    return memory


@torch.no_grad()
def encode_reference(encoder: Transformer, x: Tensor, mask: Tensor) -> Tensor:
    """The encoder in plain torch; see `encode`."""
    x, attended = without_padding(x, mask)
    for layer in layers_of("encoder", encoder.weights):
        x = encoder_layer(layer, x, encoder.heads, encoder.norm_first, attended)
    norm_weight, norm_bias = encoder.weights[-2:]
    memory = F.layer_norm(x, x.shape[2:], norm_weight, norm_bias)
    return memory if attended is None else memory.masked_fill(~mask[..., None], 0.0)


def _fake_encode(encoder: Transformer, x: Tensor, mask: Tensor) -> Tensor:
    torch._check(x.ndim == 3, lambda: f"x must be (B, N, D), got {tuple(x.shape)}")
    return torch.empty_like(x, memory_format=torch.contiguous_format)


define("encode", (Transformer, "Tensor x", "Tensor mask"), "Tensor memory", encode_reference, _fake_encode)


def check_transformer(kind: str, transformer: Transformer, like_name: str, like: Tensor) -> None:
    """Raise ValueError unless an "encoder" or "decoder" fits `like` (B, N, D), the argument called like_name.

    A list that is left out for a packed tensor is not missed: the kernel checks the header.
    """
    weights, packed, heads, norm_first = transformer
    D = like.shape[2]
    for name, value, wanted in (("weights", weights, list), ("heads", heads, int), ("norm_first", norm_first, bool)):
        check_instance(f"{name} of {kind}", value, wanted)
    for tensor in weights if packed is None else [*weights, packed]:
        check_instance(f"weights and packed of {kind}", tensor, Tensor)
    if D < 1 or heads < 1 or D % heads != 0:
        raise ValueError(f"heads must divide D = {D}, got {heads}")
    if not weights and packed is not None and packed.numel() > 0:
        return
    names = layer_weight_names(kind)
    layers = (len(weights) - 2) // len(names)
    if layers < 1 or len(weights) != layers * len(names) + 2:
        raise ValueError(f"weights must be {len(names)} tensors per layer and 2 of the final norm, got {len(weights)}")
    expected = weight_shapes(kind, D, weights[names.index("feed_in_bias")].shape[0])
    for i, (weight, shape) in enumerate(zip(weights, expected * layers + [(D,), (D,)], strict=True)):
        if weight.shape != shape or weight.dtype != like.dtype or weight.device != like.device:
            name = f"layer {i // len(names)} {names[i % len(names)]}" if i < len(weights) - 2 else "the final norm"
            raise ValueError(
                f"weights of {name} must be {shape} {like.dtype} on {like.device} to fit {like_name}, "
                f"got {described(weight)} on {weight.device}"
            )


def project(x: Tensor, weight: Tensor, *, packed: Tensor | None = None) -> Tensor:
    """x (B, N, D) times the transpose of weight (outputs, D): (B, N, outputs). No gradient is recorded.

    A row has the same bits in any batch. packed: `pack_projection(weight)`, to share the packing between calls.
    """
    check_tensor("x", x, ("B", "N", "D"), FLOAT_DTYPES)
    check_instance("weight", weight, Tensor)
    if packed is not None:
        check_tensor("packed", packed, ("numbers",), x.dtype)
    if weight.ndim != 2 or weight.shape[1] != x.shape[2] or weight.dtype != x.dtype or weight.device != x.device:
        raise ValueError(
            f"weight must be (outputs, {x.shape[2]}) {x.dtype} on {x.device} to fit x, "
            f"got {described(weight)} on {weight.device}"
        )
    projected: Tensor = call_op(torch.ops.softrank_ext.project, x, weight, packed)
    return projected


@torch.no_grad()
def project_reference(x: Tensor, weight: Tensor, packed: Tensor | None) -> Tensor:
    """x (B, N, D) times the transpose of weight (outputs, D); see `project`."""
    return x @ weight.T


def _fake_project(x: Tensor, weight: Tensor, packed: Tensor | None) -> Tensor:
    check_tensor("x", x, ("B", "N", "D"), FLOAT_DTYPES)
    check_tensor("weight", weight, ("outputs", x.shape[2]), x.dtype)
    return x.new_empty(x.shape[0], x.shape[1], weight.shape[0])


define("project", ("Tensor x", "Tensor weight", "Tensor? packed"), "Tensor", project_reference, _fake_project)


def pack_encoder(weights: list[Tensor]) -> Tensor:
    """The weights of `encode` laid out for the kernel of their device; empty where it takes them as they are."""
    packed: Tensor = call_op(torch.ops.softrank_ext.pack_encoder, weights)
    return packed


def pack_decoder(weights: list[Tensor]) -> Tensor:
    """The weights of `decode_order` laid out for the kernel of their device; empty where it takes them as they are."""
    packed: Tensor = call_op(torch.ops.softrank_ext.pack_decoder, weights)
    return packed


def pack_projection(weight: Tensor) -> Tensor:
    """The weight of `project` laid out for the kernel of its device; empty where it takes it as it is."""
    check_tensor("weight", weight, ("outputs", "D"), FLOAT_DTYPES)
    packed: Tensor = call_op(torch.ops.softrank_ext.pack_projection, weight)
    return packed


def pack_reference(weights: list[Tensor]) -> Tensor:
    """Plain torch takes weights as they are: an empty tensor."""
    if not weights:
        raise ValueError("weights must hold at least one tensor, got none")
    return weights[0].new_empty(0)


def _fake_pack(weights: list[Tensor]) -> Tensor:
    return weights[0].new_empty(torch.library.get_ctx().new_dynamic_size())


define("pack_encoder", ("Tensor[] weights",), "Tensor", pack_reference, _fake_pack)
define("pack_decoder", ("Tensor[] weights",), "Tensor", pack_reference, _fake_pack)
define(
    "pack_projection",
    ("Tensor weight",),
    "Tensor",
    lambda weight: pack_reference([weight]),
    lambda weight: _fake_pack([weight]),
)


def checksum(tensors: list[Tensor]) -> int:
    """A 64-bit checksum of the bytes of float32 or float64 tensors, one after another.

    A change in a single 32-bit word always changes a tensor's own checksum. It is no guard against intent.
    """
    if isinstance(tensors, list):
        for number, tensor in enumerate(tensors):
            check_tensor(f"tensors[{number}]", tensor, ("...",), FLOAT_DTYPES)
    return int(call_op(torch.ops.softrank_ext.checksum, tensors))


def checksum_reference(tensors: list[Tensor]) -> int:
    """See `checksum`. 32-bit words go to 64 lanes in turn: rotate `state ^ word`, multiply and add, modulo 2^32."""
    sums = [_checksum_of(tensor.contiguous().flatten().view(torch.int32)) for tensor in tensors]
    return _checksum_of(torch.tensor(sums, dtype=torch.int64).view(torch.int32))


def _checksum_of(words: Tensor) -> int:
    """The checksum of int32 words (n,), as a signed 64-bit number."""
    low = 0xFFFFFFFF
    blocks = F.pad(words.to(torch.int64) & low, (0, -len(words) % 64)).view(-1, 64)
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


define("checksum", ("Tensor[] tensors",), "int", checksum_reference, None)
