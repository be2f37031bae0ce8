"""One prediction of the reverse process: what the decoder works from, made in one place, and the order it gives.

`prepare_decoder` takes items to their slots, encodes them and makes tokens, start and head; `predict_order` goes on
with `decode_order`. They are ops because for a single instance the calls between their parts cost as much as the work.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext.checks import FLOAT_DTYPES, check_instance, check_mask, check_tensor
from softrank_ext.ops.decoder import DecodedOrder, DecoderInputs, decode_order_reference
from softrank_ext.ops.library import call_op, define
from softrank_ext.ops.picks import Choices, check_choices, check_picks
from softrank_ext.ops.transformer import Transformer, check_transformer, encode_reference


class PredictionInputs(NamedTuple):
    """What a prediction is made from at one diffusion time.

    embedded (B, N, D): item by item. order (B, N) int64: the items of the slots; None if embedded is in slots already.
    time (B or 1, 1, D): added to every token. start (D,): the decoder's first input. places (N, D): position table.
    head: of a pointer the matrix of `project` (D + 1, D), which gives keys and bias, or, with head_bias, the head_keys
    of `DecoderInputs`. packed_head: `pack_projection(head)`, to share it between calls. mask (B, N) bool: of slots.
    """

    embedded: Tensor
    order: Tensor | None
    time: Tensor
    start: Tensor
    places: Tensor
    head: Tensor
    head_bias: Tensor | None
    packed_head: Tensor | None
    mask: Tensor


def _check_inputs(encoder: Transformer, inputs: PredictionInputs) -> None:
    check_instance("encoder", encoder, Transformer)
    check_instance("inputs", inputs, PredictionInputs)
    for name, value in zip(inputs._fields, inputs, strict=True):
        if value is not None or name in ("embedded", "time", "start", "places", "head", "mask"):
            check_instance(name, value, Tensor)
    embedded = inputs.embedded
    check_tensor("embedded", embedded, ("B", "N", "D"), FLOAT_DTYPES)
    check_transformer("encoder", encoder, "embedded", embedded)
    B, N, D = embedded.shape
    check_tensor("time", inputs.time, (B if inputs.time.shape[:1] == (B,) else 1, 1, D), embedded.dtype)
    check_tensor("start", inputs.start, (D,), embedded.dtype)
    check_tensor("places", inputs.places, (N, D), embedded.dtype)
    if inputs.head_bias is None:
        check_tensor("head", inputs.head, (D + 1, D), embedded.dtype, "; or give a head_bias")
    else:
        rows = B if inputs.head.shape[:1] == (B,) else 1
        check_tensor("head", inputs.head, (rows, N, D), embedded.dtype)
        check_tensor("head_bias", inputs.head_bias, (rows, N), embedded.dtype)
    check_mask("mask", inputs.mask, "embedded's slots", embedded[..., 0])
    if inputs.order is not None:
        check_tensor("order", inputs.order, (B, N), torch.int64)
        is_wrong = (inputs.order < 0) | (inputs.order >= N)
        if bool(is_wrong.any()):
            raise ValueError(f"order must hold items from 0 to {N - 1}, got {int(inputs.order[is_wrong][0])}")
        seen = torch.zeros_like(inputs.order, dtype=torch.bool).scatter(1, inputs.order, True)
        if not bool(seen.all()):
            raise ValueError(f"order must hold each item once, row {int((~seen).nonzero()[0, 0])} does not")


def prepare_decoder(encoder: Transformer, inputs: PredictionInputs) -> DecoderInputs:
    """Items to slots, through the encoder and the head: what `decode_order` works from. No gradient is recorded."""
    _check_inputs(encoder, inputs)
    return decoder_inputs_of(inputs, *call_op(torch.ops.softrank_ext.prepare_decoder, *encoder, *inputs))


def decoder_inputs_of(
    inputs: PredictionInputs, memory: Tensor, tokens: Tensor, start: Tensor, head: Tensor
) -> DecoderInputs:
    """What the op `prepare_decoder` returned, with those of its inputs that the decoder takes as they are."""
    if inputs.head_bias is not None:
        return DecoderInputs(memory, tokens, start, inputs.places, inputs.head, inputs.head_bias, inputs.mask)
    D = memory.shape[2]
    return DecoderInputs(memory, tokens, start, inputs.places, head[..., :D], head[..., D], inputs.mask)


@torch.no_grad()
def prepare_decoder_reference(encoder: Transformer, inputs: PredictionInputs) -> DecoderInputs:
    """What the decoder works from, in plain torch; see `prepare_decoder`."""
    embedded, order, time, start, places, head, head_bias, _, mask = inputs
    B, _, D = embedded.shape
    if order is not None:
        embedded = embedded.gather(1, order[..., None].expand_as(embedded))
    positions = (mask.cumsum(1) - 1).clamp(min=0)  # of a slot among the real ones
    memory = encode_reference(encoder, embedded + places[positions] + time, mask)
    if head_bias is None:
        head, head_bias = memory @ head[:D].T, memory @ head[D]
    starts = (start + time[:, 0]).expand(B, D)
    return DecoderInputs(memory, embedded + time, starts, places, head, head_bias, mask)


def _default_prepare_decoder(encoder: Transformer, inputs: PredictionInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    memory, tokens, start, _, head_keys, head_bias, _ = prepare_decoder_reference(encoder, inputs)
    is_given = inputs.head_bias is not None  # what an op returns is not one of its arguments
    head = memory.new_empty(0) if is_given else torch.cat((head_keys, head_bias[..., None]), 2)
    return memory, tokens, start.contiguous(), head


def _fake_prepare_decoder(encoder: Transformer, inputs: PredictionInputs) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    embedded = inputs.embedded
    torch._check(embedded.ndim == 3, lambda: f"embedded must be (B, N, D), got {tuple(embedded.shape)}")
    B, N, D = embedded.shape
    head = embedded.new_empty(B, N, D + 1) if inputs.head_bias is None else embedded.new_empty(0)
    return embedded.new_empty(B, N, D), embedded.new_empty(B, N, D), embedded.new_empty(B, D), head


# head (B, N, D + 1): keys and bias of a pointer; empty where they are given.
define(
    "prepare_decoder",
    (Transformer, PredictionInputs),
    "(Tensor memory, Tensor tokens, Tensor start, Tensor head)",
    _default_prepare_decoder,
    _fake_prepare_decoder,
)


def predict_order(
    encoder: Transformer, decoder: Transformer, inputs: PredictionInputs, choices: Choices = Choices()
) -> DecodedOrder:
    """One prediction of the reverse process: `prepare_decoder`, then `decode_order`. No gradient is recorded."""
    _check_inputs(encoder, inputs)
    check_transformer("decoder", decoder, "embedded", inputs.embedded)
    check_choices(choices, inputs.mask, inputs.embedded.dtype)
    decoded = DecodedOrder(*call_op(torch.ops.softrank_ext.predict_order, *encoder, *decoder, *inputs, *choices))
    check_picks(decoded.log_probs)
    return decoded


@torch.no_grad()
def predict_order_reference(
    encoder: Transformer, decoder: Transformer, inputs: PredictionInputs, choices: Choices
) -> DecodedOrder:
    """A prediction in plain torch; see `predict_order`."""
    return decode_order_reference(decoder, prepare_decoder_reference(encoder, inputs), choices)


def _default_predict_order(
    encoder: Transformer, decoder: Transformer, inputs: PredictionInputs, choices: Choices
) -> tuple[Tensor, Tensor, Tensor]:
    """The encoder in plain torch, then `decode_order` by the kernel of the device."""
    prepared = prepare_decoder_reference(encoder, inputs)
    order, log_probs, work = torch.ops.softrank_ext.decode_order(*decoder, *prepared, *choices)
    return order, log_probs, work


def _fake_predict_order(
    encoder: Transformer, decoder: Transformer, inputs: PredictionInputs, choices: Choices
) -> tuple[Tensor, Tensor, Tensor]:
    embedded = inputs.embedded
    torch._check(embedded.ndim == 3, lambda: f"embedded must be (B, N, D), got {tuple(embedded.shape)}")
    B, N, _ = embedded.shape
    order = embedded.new_empty((B, N), dtype=torch.int64)
    return order, embedded.new_empty((B, N)), order.new_empty((B, 2))


define(
    "predict_order",
    (("encoder", Transformer), ("decoder", Transformer), PredictionInputs, Choices),
    "(Tensor order, Tensor log_probs, Tensor work)",
    _default_predict_order,
    _fake_predict_order,
)
