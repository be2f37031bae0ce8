"""Sorting four-digit numbers that are pictures: MNIST digits side by side.

Random, by (seed, step): which images make up a number, the place of equal numbers in the right order, the number of
items if `min_items` is set, and how digits are moved and warped if `shift`, `rotation`, `scale`, `shear` or `elastic`
is set. Digits are drawn by image, so
their frequencies are MNIST's. Training uses MNIST's training images, testing its test images.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from softrank_ext import metrics
from softrank_ext.batch import Batch
from softrank_ext.checks import check_choice, check_integer, check_number
from softrank_ext.model import DataFacts
from softrank_ext.tasks import Pool, data
from softrank_ext.tasks.augmentation import warped
from softrank_ext.tasks.draws import generator_of, random_orders, rows_of_passes

DIGITS = 4
MOST_SHIFT = 4  # pixels: digits keep that far from the edge of their images
MOST_WARP = {"rotation": 45, "scale": 0.5, "shear": 0.5, "elastic": 4}
POOL_PART = 1000  # items of a pool that are made together
CNNS = {"paper": "number-cnn", "light": "light-number-cnn"}


@dataclass(frozen=True)
class Sorting:
    """Lists of `num_items` four-digit images to be put in ascending order.

    items (B, N, 1, 28, 112) uint8; extras: labels (B, N) int64, 0 to 9999. The right order of equal labels is random.
    """

    num_items: int = 9
    """Items of a list; with min_items, the most that a list may have."""
    min_items: int | None = None
    """If given, every batch draws its number of items, from min_items to num_items."""
    cnn: Literal["paper", "light"] = "paper"
    """How the network reads an image: with the published CNN, or with one of a tenth of the work, for CPUs."""
    shift: int = 0
    """Move each training digit by up to this many pixels along both axes; the published experiments do not."""
    rotation: float = 0.0
    """Turn each training digit by up to this many degrees."""
    scale: float = 0.0
    """Widen or narrow each training digit, along both axes apart, by a factor of up to exp(scale)."""
    shear: float = 0.0
    """Slant each training digit by up to this share of its height."""
    elastic: float = 0.0
    """Bend each training digit: smooth shifts of up to this many pixels."""
    root: str | None = None
    """Folder that has MNIST, by default SOFTRANK_DATA, else ~/.cache/softrank_ext."""

    name = "sorting"

    def __post_init__(self) -> None:
        check_integer("num_items", self.num_items, 1)
        if self.min_items is not None:
            check_integer("min_items", self.min_items, 1, self.num_items)
        check_integer("shift", self.shift, 0, MOST_SHIFT)
        for name, most in MOST_WARP.items():
            check_number(name, getattr(self, name), f"from 0 to {most}", lambda x: 0 <= x <= most)  # noqa: B023
        check_choice("cnn", self.cnn, CNNS)

    def embedder(self) -> Mapping[str, object]:
        """The CNN that reads an image."""
        return {"kind": CNNS[self.cnn]}

    def max_items(self) -> int:
        """The most items that a list may have."""
        return self.num_items

    def data_facts(self) -> DataFacts:
        """As many numbers as the options say."""
        least = self.num_items if self.min_items is None else self.min_items
        return DataFacts(num_items=(least, self.num_items))

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """`size` lists of numbers made of training images."""
        images, labels = data.mnist(True, self.root)
        N = self._draw_num_items(seed, step, "training")
        digits = torch.randint(len(images), (size, N, DIGITS), generator=generator_of(seed, step, "training digits"))
        batch = list_batch(images, labels, digits, random_orders(size, N, generator_of(seed, step, "training ties")))
        return replace(batch, items=self._augmented(batch.items, seed, step, "training"))

    def pool_items(self, pool: Pool) -> Iterator[Tensor]:
        """The items of a pool, in parts (count, 1, 28, 112) uint8: numbers made of training images."""
        images, labels = data.mnist(True, self.root)
        for part, digits in enumerate(self._pool_digits(pool).split(POOL_PART)):
            items = list_batch(images, labels, digits[:, None], torch.zeros(len(digits), 1, dtype=torch.int64)).items
            yield self._augmented(items, pool.seed, part, f"pool {pool.number}")[:, 0]

    def pooled_batch(self, pool: Pool, step: int, size: int) -> Batch:
        """`size` lists of numbers of a pool, by their rows in it: items (B, N) int64. A pass takes every row once."""
        _, labels = data.mnist(True, self.root)
        N = self._draw_num_items(pool.seed, step, "training")
        start = step * size * self.num_items
        rows = rows_of_passes(pool.size, pool.seed, start, size * N, f"pool {pool.number}").view(size, N)
        ties = random_orders(size, N, generator_of(pool.seed, step, "training ties"))
        numbers = numbers_of(labels, self._pool_digits(pool)[rows])
        return Batch(rows, (numbers * N + ties).argsort(1), extras={"labels": numbers})

    def _pool_digits(self, pool: Pool) -> Tensor:
        """Rows of the training images that make up a pool's numbers: (size, 4) int64."""
        images, _ = data.mnist(True, self.root)
        drawn = generator_of(pool.seed, pool.number, "pool digits")
        return torch.randint(len(images), (pool.size, DIGITS), generator=drawn)

    def _augmented(self, items: Tensor, seed: int, step: int, part: str) -> Tensor:
        """Items (B, N, 1, 28, 112) with their digits moved and warped, as the options say."""
        B, N = items.shape[:2]
        if self.shift > 0:
            drawn = generator_of(seed, step, f"{part} shifts")
            items = moved(
                items, torch.randint(-self.shift, self.shift + 1, (B, N, DIGITS, 2), generator=drawn), self.shift
            )
        warp = {name: getattr(self, name) for name in MOST_WARP}
        if any(warp.values()):
            digits = items.unflatten(4, (DIGITS, 28)).movedim(4, 2)  # (B, N, 4, 1, 28, 28)
            changed = warped(digits.reshape(-1, 28, 28), generator_of(seed, step, f"{part} warps"), **warp)
            items = changed.view(B, N, DIGITS, 1, 28, 28).movedim(2, 4).reshape(items.shape)
        return items

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """`count` lists made of test images. With a fixed N, instance i does not depend on `size`.

        With a range of N, each batch draws its own N.
        """
        images, labels = data.mnist(False, self.root)
        for number, start in enumerate(range(0, count, size)):
            N = self._draw_num_items(seed, number, "test")
            digits, ties = [], []
            for instance in range(start, min(start + size, count)):
                drawn = generator_of(seed, instance, "test digits")
                digits.append(torch.randint(len(images), (N, DIGITS), generator=drawn))
                ties.append(random_orders(1, N, generator_of(seed, instance, "test ties")))
            yield list_batch(images, labels, torch.stack(digits), torch.cat(ties))

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        """Agreement with the right order, also with equal numbers interchangeable."""
        labels = batch.extras["labels"]
        return {
            "kendall_tau": metrics.kendall_tau(order, batch.order),
            "accuracy": metrics.accuracy(order, batch.order),
            "correctness": metrics.correctness(order, batch.order),
            "tie_aware_accuracy": metrics.tie_aware_accuracy(order, batch.order, labels),
            "tie_aware_correctness": metrics.tie_aware_correctness(order, batch.order, labels),
            "kendall_tau_of_ranks": metrics.kendall_tau_of_ranks(order, batch.order),
        }

    def _draw_num_items(self, seed: int, step: int, part: str) -> int:
        if self.min_items is None:
            return self.num_items
        generator = generator_of(seed, step, f"{part} number of items")
        return int(torch.randint(self.min_items, self.num_items + 1, (), generator=generator))


def list_batch(images: Tensor, labels: Tensor, digits: Tensor, ties: Tensor) -> Batch:
    """Lists of four-digit numbers made of images (count, 28, 28) uint8 with labels (count,) int64.

    digits: (B, N, 4) int64, rows of images. ties: (B, N) int64, distinct in a row: equal numbers ascend by it.
    """
    B, N, _ = digits.shape
    # Pixel rows are gathered directly into place, four bytes at a time: about eight times faster than gathering whole
    # images and transposing them.
    pixel_rows = images.view(torch.int32).reshape(-1, 7)  # (images * 28, 28 bytes)
    index = digits[:, :, None] * 28 + torch.arange(28)[:, None]  # (B, N, 28, 4)
    items = pixel_rows.index_select(0, index.flatten()).view(torch.uint8)  # (B * N * 28 * 4, 28)
    numbers = numbers_of(labels, digits)
    order = (numbers * N + ties).argsort(1)
    return Batch(items.reshape(B, N, 1, 28, DIGITS * 28), order, extras={"labels": numbers})


def numbers_of(labels: Tensor, digits: Tensor) -> Tensor:
    """The numbers (B, N) int64 that images with labels (count,) int64 make; digits: (B, N, 4) int64, rows of images."""
    numbers: Tensor = (labels[digits] * torch.tensor([1000, 100, 10, 1])).sum(2)
    return numbers


def moved(items: Tensor, moves: Tensor, most: int) -> Tensor:
    """Every digit of items (B, N, 1, 28, 112) uint8 moved down and to the right by moves (B, N, 4, 2) int64.

    No number in `moves` exceeds `most`. Pixels moved out of a digit's square are lost; those moved in are 0.
    """
    digits = items.unflatten(4, (DIGITS, 28))[:, :, 0].movedim(3, 2)  # (B, N, 4, 28, 28)
    padded = torch.nn.functional.pad(digits, (most, most, most, most))
    width = 28 + 2 * most
    rows = torch.arange(28) + most - moves[..., :1]  # (B, N, 4, 28)
    columns = torch.arange(28) + most - moves[..., 1:]
    pixels = rows[..., :, None] * width + columns[..., None, :]  # (B, N, 4, 28, 28)
    shifted: Tensor = padded.flatten(3).gather(3, pixels.flatten(3)).unflatten(3, (28, 28))  # (B, N, 4, 28, 28)
    return shifted.movedim(2, 3).reshape(items.shape)
