"""A model's weights as the kernels take them: lists in the order of `ops.LAYER_PARTS`, and their packing."""

import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from softrank_ext import ops
from softrank_ext.model.changes import change_of
from softrank_ext.model.config import DECODER_HEADS
from softrank_ext.model.heads import PointerHead

if TYPE_CHECKING:
    from softrank_ext.model.model import SoftRankModel


class PackedWeights(NamedTuple):
    """What `ops.predict_order` wants of a model's weights.

    head, packed_head: of a pointer head, for `ops.project`. time_embedder: a copy of the model's as it was when the
    weights were packed, so that vectors made later belong to them. time_vectors: its (1, 1, D) of the step indices met
    so far. changed: what the kernels do not compute of the model, None if nothing; else there is nothing packed.
    """

    encoder: ops.Transformer
    decoder: ops.Transformer
    head: Tensor | None
    packed_head: Tensor | None
    time_embedder: nn.Module
    time_vectors: dict[float, Tensor]
    changed: str | None = None


# What models packed last, without the lists, and the checksum of the weights. Not an attribute: it must be neither
# saved nor copied.
_PACKINGS: WeakKeyDictionary["SoftRankModel", tuple[int, PackedWeights]] = WeakKeyDictionary()


@torch.no_grad()
def packed_weights(model: "SoftRankModel") -> PackedWeights:
    """The weights of encoder and decoder, packed for the kernels as they are now; empty without a decoder.

    They are empty too, and `changed` says why, if the model is not what the kernels compute. No gradient leads back to
    the model. On CPUs the packing is kept for the next call, which takes it if a checksum says that no weight has
    changed: versions of tensors would not tell of changes through `.data` or numpy.
    """
    heads, norm_first = model.config.heads, model.config.norm_first
    changed = change_of(model) if model.config.head in DECODER_HEADS else None
    if model.config.head not in DECODER_HEADS or changed is not None:
        nothing = ops.Transformer([], torch.empty(0), heads, norm_first)
        return PackedWeights(nothing, nothing, None, None, model.time_embedder, {}, changed)
    encoder = _listed("encoder", model.encoder_layers, model.encoder_norm)
    decoder = _listed("decoder", model.decoder_layers, model.decoder_norm)
    if torch.compiler.is_compiling():  # a graph packs anew in every call: the weights are its inputs
        return PackedWeights(
            ops.Transformer(encoder, None, heads, norm_first),
            ops.Transformer(decoder, None, heads, norm_first),
            model.head.projection() if isinstance(model.head, PointerHead) else None,
            None,
            model.time_embedder,
            {},
        )
    every = [*encoder, *decoder, *_parameters_of(model.time_embedder), *_parameters_of(model.head)]
    is_kept = encoder[0].is_cpu
    checksum = ops.checksum(every) if is_kept and model in _PACKINGS else None
    kept = _PACKINGS.get(model)
    if checksum is not None and kept is not None and checksum == kept[0]:
        return _with_lists(kept[1], encoder, decoder)
    with torch.inference_mode(False):  # what is kept must serve in any mode
        head = model.head.projection() if isinstance(model.head, PointerHead) else None
        packed = PackedWeights(
            ops.Transformer([], ops.pack_encoder(encoder), heads, norm_first),
            ops.Transformer([], ops.pack_decoder(decoder), heads, norm_first),
            head,
            None if head is None else ops.pack_projection(head),
            copy.deepcopy(model.time_embedder).requires_grad_(False) if is_kept else model.time_embedder,
            {},
        )
    if is_kept and packed.decoder.packed is not None and packed.decoder.packed.numel() > 0:
        _PACKINGS[model] = ops.checksum(every) if checksum is None else checksum, packed
    return _with_lists(packed, encoder, decoder)


def _with_lists(packed: PackedWeights, encoder: list[Tensor], decoder: list[Tensor]) -> PackedWeights:
    return packed._replace(
        encoder=packed.encoder._replace(weights=encoder), decoder=packed.decoder._replace(weights=decoder)
    )


def _listed(kind: str, layers: nn.ModuleList, norm: nn.Module) -> list[Tensor]:
    """The tensors of layers and final norm in the order that ops take them.

    Submodules and parameters are read off their dictionaries: attributes of modules take longer than packing.
    """
    parts = ops.LAYER_PARTS[kind]
    modules = [layer._modules[part] for layer in layers for part in parts] + [norm]
    return [
        cast(Tensor, cast(nn.Module, module)._parameters[name]).detach()
        for module in modules
        for name in ("weight", "bias")
    ]


def _parameters_of(module: nn.Module) -> Iterator[Tensor]:
    """`module.parameters()` without its names and its search for shared ones, which take longer than packing."""
    for parameter in module._parameters.values():
        if parameter is not None:
            yield parameter
    for child in module._modules.values():
        if child is not None:
            yield from _parameters_of(child)
