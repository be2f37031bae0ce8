"""Modules that read the items of the tasks: items (B, N, ...) -> (B, N, D).

Their names in `TASK_EMBEDDERS` are known to every SoftRankConfig, `{"kind": name, ...arguments}`. Images may be uint8
(0 to 255: a quarter of the memory, converted here) or float (0 to 1).
"""

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
_CIFAR_DEVIATION = (0.2023, 0.1994, 0.2010)


class NumberCNN(nn.Module):
    """Four-digit images (B, N, 1, 28, 112), by the CNN of the published experiments: 44 million multiply-adds an image.

    Two convolutions with batch norm and max-pooling, one linear layer. The batch norm sees all B N images together,
    padding included; batch_norm=False leaves it out, as the published sorting networks' CNN does.
    """

    item_ndim = 3

    def __init__(self, d_model: int, batch_norm: bool = True) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels_in, channels in ((1, 32), (32, 64)):
            layers.append(nn.Conv2d(channels_in, channels, 5, padding=2))
            layers += [nn.BatchNorm2d(channels)] if batch_norm else []
            layers += [nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        self.layers = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 7 * 28, d_model))

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of the items."""
        images = _images(items, (1, 28, 112), next(self.parameters()))
        vectors: Tensor = self.layers(images).unflatten(0, items.shape[:2])  # (B, N, D)
        return vectors


class LightNumberCNN(nn.Module):
    """Four-digit images (B, N, 1, 28, 112), strided: 4.3 million multiply-adds an image, a tenth of NumberCNN's.

    No batch norm: an image's embedding does not depend on the batch, in training either. A layer norm at the end gives
    the scale that the position table asks for.
    """

    item_ndim = 3

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(inplace=True),
            nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(inplace=True),
            nn.Flatten(), nn.Linear(64 * 4 * 14, d_model), nn.LayerNorm(d_model),
        )  # fmt: skip

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of the items."""
        images = _images(items, (1, 28, 112), next(self.parameters()))
        vectors: Tensor = self.layers(images).unflatten(0, items.shape[:2])  # (B, N, D)
        return vectors


class PatchCNN(nn.Module):
    """Patches of CIFAR-10 images (B, N, 3, side, side), normalised by channel, as in the published experiments.

    One convolution with batch norm and max-pooling, two linear layers with `(flat + D) // 2` channels between them.
    """

    item_ndim = 3

    def __init__(self, d_model: int, side: int) -> None:
        super().__init__()
        if side < 2:
            raise ValueError(f"side of a patch must be at least 2, got {side}")
        self.side = side
        flat = 32 * (side // 2) ** 2
        hidden = (flat + d_model) // 2
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, d_model),
        )  # fmt: skip

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of the items."""
        vectors: Tensor = self.layers(self.normalized(items).flatten(0, 1)).unflatten(0, items.shape[:2])  # (B, N, D)
        return vectors

    def normalized(self, items: Tensor) -> Tensor:
        """Patches (B, N, 3, side, side) whose channels have mean 0 and deviation 1 over CIFAR-10."""
        return _normalized_patches(items, self.side, next(self.parameters()))


class PatchMLP(nn.Module):
    """Patches of CIFAR-10 images (B, N, 3, side, side), normalised by channel, read pixel by pixel.

    What fits is decided along the borders: here every border pixel has weights of its own, where PatchCNN pools them. A
    linear layer, plus two layers with `hidden` channels between them, then a layer norm; no batch norm.
    """

    item_ndim = 3

    def __init__(self, d_model: int, side: int, hidden: int = 512) -> None:
        super().__init__()
        if side < 1:
            raise ValueError(f"side of a patch must be at least 1, got {side}")
        self.side = side
        self.direct = nn.Linear(3 * side**2, d_model)
        self.layers = nn.Sequential(
            nn.Linear(3 * side**2, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, d_model)
        )  # fmt: skip
        self.norm = nn.LayerNorm(d_model)

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of the items."""
        pixels = self.normalized(items).flatten(2)  # (B, N, 3 * side * side)
        vectors: Tensor = self.norm(self.direct(pixels) + self.layers(pixels))
        return vectors

    def normalized(self, items: Tensor) -> Tensor:
        """Patches (B, N, 3, side, side) whose channels have mean 0 and deviation 1 over CIFAR-10."""
        return _normalized_patches(items, self.side, self.direct.weight)


class PointEmbedder(nn.Module):
    """Points of the unit square (B, N, 2): sinusoids of each coordinate, then a linear layer unless learned=False.

    Channel pair i of a coordinate x is the sine and cosine of `2 pi cycles x / slowing^(2 i / (D/2))`; the first half
    of the channels is for the first coordinate. The published experiments have no learned part, and as many cycles and
    as much slowing as the defaults: all waves but the first few are nearly straight lines. The layer reads the
    coordinates as well.
    """

    item_ndim = 1

    def __init__(self, d_model: int, learned: bool = True, cycles: float = 1.0, slowing: float = 10000.0) -> None:
        super().__init__()
        if d_model % 4 != 0:
            raise ValueError(f"d_model must be a multiple of 4 to embed points, got {d_model}")
        self.d_model, self.cycles, self.slowing = d_model, cycles, slowing
        self.projection = nn.Linear(d_model + 2, d_model) if learned else None

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of the items."""
        if not items.is_floating_point() or items.ndim != 3 or items.shape[2] != 2:
            raise ValueError(f"items must be (B, N, 2) float, got {tuple(items.shape)} {items.dtype}")
        half = self.d_model // 2
        exponent = torch.arange(0, half, 2, device=items.device, dtype=items.dtype) / half
        angle = 2 * math.pi * self.cycles * items[..., None] * self.slowing**-exponent  # (B, N, 2, D / 4)
        waves = torch.stack((angle.sin(), angle.cos()), -1).flatten(2)  # (B, N, D)
        return waves if self.projection is None else self.projection(torch.cat((waves, items), 2))


class TimesEmbedder(nn.Module):
    """Jobs of a flow shop (B, N, machines) float: their times, zero on machines that the shop does not have.

    Read relative to the longest time of the instance, so that the unit does not matter, beside which machines the shop
    has: a linear layer, plus two layers with `hidden` channels between them, then a layer norm.
    """

    item_ndim = 1

    def __init__(self, d_model: int, machines: int, hidden: int = 128) -> None:
        super().__init__()
        self.machines = machines
        self.layers = _VectorLayers(2 * machines, hidden, d_model)

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of the items."""
        if not items.is_floating_point() or items.ndim != 3 or items.shape[2] != self.machines:
            raise ValueError(f"items must be (B, N, {self.machines}) float, got {tuple(items.shape)} {items.dtype}")
        relative = items / _largest(items)
        has_machine = (items > 0).any(1, keepdim=True).to(items.dtype).expand_as(items)
        vectors: Tensor = self.layers(torch.cat((relative, has_machine), 2))
        return vectors


class DueJobsEmbedder(nn.Module):
    """Jobs of one machine (B, N, 3) float: time, weight, due date.

    Read relative to the instance, so that units do not matter: time and weight by the largest, their ratio, and time,
    due date and latest start by the total time; then layers as those of `TimesEmbedder`.
    """

    item_ndim = 1

    def __init__(self, d_model: int, hidden: int = 128) -> None:
        super().__init__()
        self.layers = _VectorLayers(6, hidden, d_model)

    def forward(self, items: Tensor) -> Tensor:
        """Vectors (B, N, D) of the items."""
        if not items.is_floating_point() or items.ndim != 3 or items.shape[2] != 3:
            raise ValueError(f"items must be (B, N, 3) float, got {tuple(items.shape)} {items.dtype}")
        time, weight, due = items.split(1, 2)  # (B, N, 1) each
        total = time.sum(1, keepdim=True).clamp(min=torch.finfo(items.dtype).tiny)
        short, heavy = time / _largest(time), weight / _largest(weight)
        ratio = (heavy + 0.01).log() - (short + 0.01).log()
        features = (short, heavy, ratio, time / total, due / total, (due - time) / total)
        vectors: Tensor = self.layers(torch.cat(features, 2))
        return vectors


class _VectorLayers(nn.Module):
    """A linear layer plus two with `hidden` channels between them, and a layer norm: (..., features) -> (..., D)."""

    def __init__(self, features: int, hidden: int, d_model: int) -> None:
        super().__init__()
        self.direct = nn.Linear(features, d_model)
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, d_model))
        self.norm = nn.LayerNorm(d_model)

    def forward(self, values: Tensor) -> Tensor:
        vectors: Tensor = self.norm(self.direct(values) + self.layers(values))
        return vectors


def _largest(values: Tensor) -> Tensor:
    """The largest number of each instance (B, 1, 1), at least a tiny one; values (B, N, F)."""
    return values.flatten(1).amax(1).clamp(min=torch.finfo(values.dtype).tiny)[:, None, None]


class TableEmbedder(nn.Module):
    """Rows of a table, (B, N, numbers + len(categories)) float -> (B, N, D): standardised numbers, then category codes.

    numbers: how many there are, maybe none. categories: how many codes each category column has; code 0 stands for
    values that training has not seen. In training, inputs drop out: numbers become 0, codes 0.
    """

    item_ndim = 1
    _SCALE = 4.0  # of the vectors, so that the position table is small beside them: rows have no positions

    def __init__(self, d_model: int, numbers: int = 0, categories: Sequence[int] = (), dropout: float = 0.0) -> None:
        super().__init__()
        self.numbers, self.dropout, self.d_model = numbers, dropout, d_model
        self.projection = nn.Linear(numbers, d_model) if numbers > 0 else None
        self.vectors = nn.ModuleList(nn.Embedding(size, d_model) for size in categories)
        for table in self.vectors:
            nn.init.normal_(cast(nn.Embedding, table).weight, std=0.3)
        self.norm = nn.LayerNorm(d_model)
        nn.init.constant_(self.norm.weight, self._SCALE)

    def forward(self, items: Tensor) -> Tensor:
        """Vectors of the rows."""
        wanted = self.numbers + len(self.vectors)
        if not items.is_floating_point() or items.shape[-1] != wanted:
            raise ValueError(f"items must be (B, N, {wanted}) float, got {tuple(items.shape)} {items.dtype}")
        x = items.new_zeros(*items.shape[:-1], self.d_model)
        if self.projection is not None:
            x = self.projection(F.dropout(items[..., : self.numbers], self.dropout, self.training))
        for column, table in enumerate(self.vectors, self.numbers):
            codes = items[..., column].long().clamp(0, cast(nn.Embedding, table).num_embeddings - 1)
            if self.training:
                codes = codes.masked_fill(torch.rand_like(items[..., column]) < self.dropout, 0)
            x = x + table(codes)
        vectors: Tensor = self.norm(x)
        return vectors


TASK_EMBEDDERS: dict[str, Callable[..., nn.Module]] = {
    "number-cnn": NumberCNN,
    "light-number-cnn": LightNumberCNN,
    "patch-cnn": PatchCNN,
    "patch-mlp": PatchMLP,
    "points": PointEmbedder,
    "times": TimesEmbedder,
    "due-jobs": DueJobsEmbedder,
    "table": TableEmbedder,
}


def _images(items: Tensor, shape: tuple[int, int, int], weight: Tensor) -> Tensor:
    """Images (B * N, channels, height, width) in [0, 1], channels last in memory, dtype of the weight."""
    if items.shape[2:] != shape or not (items.dtype == torch.uint8 or items.is_floating_point()):
        wanted = ", ".join(str(size) for size in shape)
        raise ValueError(f"items must be (B, N, {wanted}) uint8 or float, got {tuple(items.shape)} {items.dtype}")
    # Channels last in memory: convolutions on a CPU are up to 1.4 times as fast with it.
    pixels = items.flatten(0, 1).movedim(1, 3).flatten(1).to(weight.dtype)  # (B * N, height * width * channels)
    pixels = pixels / 255 if items.dtype == torch.uint8 else pixels
    images: Tensor = pixels.unflatten(1, (*shape[1:], shape[0])).movedim(3, 1)
    return images


def _normalized_patches(items: Tensor, side: int, weight: Tensor) -> Tensor:
    images = _images(items, (3, side, side), weight)
    mean = images.new_tensor(_CIFAR_MEAN)[:, None, None]
    deviation = images.new_tensor(_CIFAR_DEVIATION)[:, None, None]
    patches: Tensor = ((images - mean) / deviation).unflatten(0, items.shape[:2])  # (B, N, 3, side, side)
    return patches
