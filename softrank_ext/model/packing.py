"""A model's weights as the kernels take them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, nn

if TYPE_CHECKING:
    from softrank_ext.model.model import SoftRankModel


class PackedWeights(NamedTuple):
    """What `ops.encode` and `ops.decode_order` want of a model: its tensors, and their packing for the kernels.

    head, packed_head: of a pointer head, for `ops.project`. time_vectors: those (1, 1, D) of the step indices met so
    far.
    """

    encoder: list[Tensor]
    packed_encoder: Tensor
    decoder: list[Tensor]
    packed_decoder: Tensor
    head: Tensor | None
    packed_head: Tensor | None
    time_vectors: dict[float, Tensor]


# What models packed last, with the checksum of the weights. Not an attribute: it must be neither saved nor copied.
PACKINGS: WeakKeyDictionary["SoftRankModel", tuple[int, PackedWeights]] = WeakKeyDictionary()


class DecoderInputs(NamedTuple):
    """What the decoder works from at one diffusion time; the tensors are described at `ops.decode_order`."""

    weights: list[Tensor]
    packed: Tensor
    memory: Tensor
    tokens: Tensor
    start: Tensor
    places: Tensor
    head_keys: Tensor
    head_bias: Tensor
    mask: Tensor


def parameters_of(module: nn.Module) -> Iterator[Tensor]:
    """`module.parameters()` without its names and its search for shared ones, which take longer than packing."""
    for parameter in module._parameters.values():
        if parameter is not None:
            yield parameter
    for child in module._modules.values():
        if child is not None:
            yield from parameters_of(child)
