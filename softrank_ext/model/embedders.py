"""Modules from items (B, N, ...) to vectors (B, N, D), by the names that a config has for them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from softrank_ext.checks import check_instance, check_limited
from softrank_ext.model.layers import zero_padding
from softrank_ext.model.task_embedders import TASK_EMBEDDERS

MOST_SIZE = 2**20  # a config may come from a file: nothing is allocated by sizes beyond


class LinearEmbedder(nn.Module):
    """Items that are feature vectors, (B, N, features) float -> (B, N, D)."""

    item_ndim = 1

    def __init__(self, d_model: int, features: int) -> None:
        super().__init__()
        self.projection = nn.Linear(features, d_model)

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of items (B, N, features)."""
        features = self.projection.in_features
        if not items.is_floating_point() or items.shape[-1] != features:
            raise ValueError(f"items must be (B, N, {features}) float, got {tuple(items.shape)} {items.dtype}")
        vectors: Tensor = self.projection(items)
        return vectors


class LearnedEmbedder(nn.Module):
    """Items that are ids from 0 to num_items - 1, (B, N) int64 -> (B, N, D)."""

    item_ndim = 0

    def __init__(self, d_model: int, num_items: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(num_items, d_model)

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of items (B, N)."""
        if items.dtype != torch.int64:
            raise ValueError(f"items must be (B, N) int64, got {tuple(items.shape)} {items.dtype}")
        is_read = items.numel() > 0 and not torch.compiler.is_compiling()  # a graph does not look at data
        if is_read and not 0 <= int(items.min()) <= int(items.max()) < self.vectors.num_embeddings:
            raise ValueError(
                f"items must be ids from 0 to {self.vectors.num_embeddings - 1}, "
                f"got {int(items.min())} to {int(items.max())}"
            )
        vectors: Tensor = self.vectors(items)
        return vectors


# An embedder maps items (B, N, ...) to (B, N, D). If it says its item_ndim, the number of dimensions of one item,
# `sample` also takes a single instance (N, ...).
EMBEDDERS: dict[str, Callable[..., nn.Module]] = {
    "linear": LinearEmbedder,
    "learned": LearnedEmbedder,
    **TASK_EMBEDDERS,
}


def make_embedder(d_model: int, embedder: Mapping[str, object]) -> nn.Module:
    """The registered embedder that a config's `embedder` names."""
    check_instance("embedder", embedder, Mapping)
    arguments = dict(embedder)
    for name, value in (("d_model", d_model), *arguments.items()):
        if isinstance(value, int) and not isinstance(value, bool):
            check_limited(name, value, 1, MOST_SIZE)
    kind = arguments.pop("kind", None)
    if not isinstance(kind, str) or kind not in EMBEDDERS:
        raise ValueError(f"embedder kind must be one of {', '.join(EMBEDDERS)}, got {kind!r}")
    try:
        return EMBEDDERS[kind](d_model, **arguments)
    except TypeError as error:
        raise ValueError(f"embedder of kind {kind!r} does not take {arguments}: {error}") from error


def embedder_of(config: Any, embedder: nn.Module | None) -> nn.Module:
    """The embedder that a model's config names, or the module given; raises ValueError unless it is one of the two."""
    if embedder is not None:
        if config.embedder is not None:
            raise ValueError("embedder must be left out where config.embedder names one, got both")
        return embedder
    if config.embedder is None:
        raise ValueError("embedder must be a module, or config.embedder must name one, got neither")
    return make_embedder(config.d_model, config.embedder)


def embed_items(embedder: nn.Module, items: Tensor, mask: Tensor | None, d_model: int, dtype: torch.dtype) -> Tensor:
    """Item embeddings (B, N, D) of items (B, N, ...), floats cast to dtype, padding zeroed before and after."""
    if items.is_floating_point():
        items = items.to(dtype)
    if mask is not None:
        items = items.masked_fill(~mask.reshape(mask.shape + (1,) * (items.ndim - 2)), 0)
    embedded = embedder(items)
    wanted = (*items.shape[:2], d_model)
    if embedded.shape != wanted:
        raise ValueError(f"the embedder must return {wanted}, got {tuple(embedded.shape)}")
    return zero_padding(embedded, mask)
