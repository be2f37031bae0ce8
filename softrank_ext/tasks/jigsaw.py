"""Jigsaws: CIFAR-10 images cut into n x n patches, to be put back in raster order (row by row).

Random, by (seed, step): which image comes next in a pass over the set, the shuffle of its patches, and what `flip`,
`crop` and `colour` change. Training uses CIFAR-10's training images, testing its test images.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.batch import Batch
from softrank_ext.checks import check_bool, check_choice, check_integer, check_number
from softrank_ext.model import DataFacts
from softrank_ext.permutations import arrange, ranks_of
from softrank_ext.tasks import data
from softrank_ext.tasks.augmentation import moved_crops, recoloured
from softrank_ext.tasks.draws import generator_of, random_orders, rows_of_passes

GRIDS = (2, 3, 4, 8)
READERS = {"paper": "patch-cnn", "edges": "patch-mlp"}
IMAGE_SIDE = 32
MOST_CROP = 8  # pixels: more would show little of the image itself


@dataclass(frozen=True)
class Jigsaw:
    """Patches of an image in random order.

    items (B, n^2, 3, side, side) uint8 with n the grid and `side = 32 // n`; for n = 3 the last two rows and columns
    are dropped. extras: patch_classes (B, n^2) int64, the first item with the same pixels: equal patches are
    interchangeable.
    """

    grid: Literal[2, 3, 4, 8] = 3
    """Patches along a side."""
    flip: bool = False
    """Mirror half of the training images, chosen at random; the published experiments do not."""
    crop: int = 0
    """Move each training image by up to this many pixels along both axes before it is cut; borders are mirrored."""
    colour: float = 0.0
    """Change brightness, contrast and saturation of each training image by a factor from 1 - colour to 1 + colour."""
    reader: Literal["paper", "edges"] = "paper"
    """How the network reads a patch: with the published CNN, or with one that keeps all border pixels apart."""
    root: str | None = None
    """Folder that has CIFAR-10, by default SOFTRANK_DATA, else ~/.cache/softrank_ext."""

    name = "jigsaw"

    def __post_init__(self) -> None:
        check_choice("grid", self.grid, GRIDS)
        check_bool("flip", self.flip)
        check_integer("crop", self.crop, 0, MOST_CROP)
        check_number("colour", self.colour, "from 0 to 1", lambda x: 0 <= x <= 1)
        check_choice("reader", self.reader, READERS)

    def embedder(self) -> Mapping[str, object]:
        """The reader's CNN, for patches of this size."""
        return {"kind": READERS[self.reader], "side": IMAGE_SIDE // self.grid}

    def max_items(self) -> int:
        """As many patches as the grid has."""
        return self.grid**2

    def data_facts(self) -> DataFacts:
        """As many patches as the grid has."""
        return DataFacts(num_items=(self.grid**2, self.grid**2))

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` jigsaws of training images."""
        images = data.cifar10(True, self.root)
        chosen = images[rows_of_passes(len(images), seed, step * size, size, "training images")]
        if self.flip:
            is_flipped = torch.rand(size, generator=generator_of(seed, step, "flips")) < 0.5
            chosen = torch.where(is_flipped[:, None, None, None], chosen.flip(3), chosen)
        if self.crop > 0:
            chosen = moved_crops(chosen, generator_of(seed, step, "crops"), self.crop)
        if self.colour > 0:
            chosen = recoloured(chosen, generator_of(seed, step, "colours"), self.colour)
        return self.batch_of(chosen, random_orders(size, self.grid**2, generator_of(seed, step, "training shuffle")))

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """`count` jigsaws of test images, up to 10,000 all different. Instance i does not depend on `size`."""
        images = data.cifar10(False, self.root)
        for start in range(0, count, size):
            instances = range(start, min(start + size, count))
            chosen = images[rows_of_passes(len(images), seed, start, len(instances), "test images")]
            shuffles = [random_orders(1, self.grid**2, generator_of(seed, i, "test shuffle")) for i in instances]
            yield self.batch_of(chosen, torch.cat(shuffles))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """Agreement with the right order, also with equal patches interchangeable; mean distance of patches."""
        classes = batch.extras["patch_classes"]
        displacement = metrics.manhattan_displacement(order, batch.order, self.grid, self.grid)
        return {
            "kendall_tau": metrics.kendall_tau(order, batch.order),
            "accuracy": metrics.accuracy(order, batch.order),
            "correctness": metrics.correctness(order, batch.order),
            "tie_aware_accuracy": metrics.tie_aware_accuracy(order, batch.order, classes),
            "tie_aware_correctness": metrics.tie_aware_correctness(order, batch.order, classes),
            "displacement": displacement.double().mean(1),
        }

    def batch_of(self, images: Tensor, shuffle: Tensor) -> Batch:
        """Jigsaws of images (B, 3, 32, 32) uint8. shuffle: (B, N) int64, `shuffle[item]` = the patch that it is."""
        items = arrange(cut(images, self.grid), shuffle)
        return Batch(items, ranks_of(shuffle), extras={"patch_classes": classes_of_equal(items)})


def cut(images: Tensor, grid: int) -> Tensor:
    """Patches in raster order: (B, C, height, width) -> (B, grid^2, C, height // grid, width // grid).

    Patches are taken from the top left; what remains at the bottom and at the right is dropped.
    """
    B, C, height, width = images.shape
    rows, columns = height // grid, width // grid
    kept = images[:, :, : rows * grid, : columns * grid].reshape(B, C, grid, rows, grid, columns)
    return kept.permute(0, 2, 4, 1, 3, 5).reshape(B, grid**2, C, rows, columns)


def classes_of_equal(items: Tensor) -> Tensor:
    """For each item the first item of its row that is equal to it: (B, N, ...) uint8 -> (B, N) int64."""
    flat = items.flatten(2).long()  # (B, N, pixels)
    # Random 64-bit weights: different patches have equal sums once in about 2^56.
    weights = torch.randint(
        -(2**63), 2**63 - 1, flat.shape[2:], generator=torch.Generator(device="cpu").manual_seed(0)
    ).to(items.device)
    sums = (flat * weights).sum(2)  # (B, N), modulo 2^64
    return (sums[:, :, None] == sums[:, None]).int().argmax(2)
