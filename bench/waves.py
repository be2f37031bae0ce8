"""The trained model that bench/runtime.py times: a bundled jigsaw model, or one that learns to sort waves here."""

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from softrank_ext import Bridge, SoftRankConfig, SoftRankModel, metrics, pretrained
from softrank_ext.batch import Batch
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.training import TrainConfig, train

GRIDS = {3: 10, 4: 8, 8: 4}  # patches per side: pixels per patch side
STEPS = 5


@dataclass(frozen=True)
class SortWaves:
    """Numbers in [0, 1) in random order, each seen as (features,) cosines; the right order is ascending."""

    num_items: int
    features: int
    name = "waves"

    def embedder(self) -> dict[str, object]:
        """What reads an item."""
        return {"kind": "linear", "features": self.features}

    def max_items(self) -> int:
        """The number of items, which is always the same."""
        return self.num_items

    def batch(self, seed: int, size: int) -> Batch:
        """Random lists of a seed."""
        numbers = torch.rand(size, self.num_items, generator=torch.Generator().manual_seed(seed))
        items = (numbers[..., None] * math.pi * torch.arange(self.features)).cos()  # (size, N, features)
        return Batch(items, numbers.argsort(1))

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        """Lists of a training iteration."""
        return self.batch(1 + step + (seed << 32), size)

    def test_batches(self, count: int, size: int, seed: int = 0) -> Iterator[Batch]:
        """Held-out lists."""
        for start in range(0, count, size):
            yield self.batch(-1 - start - (seed << 32), min(size, count - start))

    def score(self, batch: Batch, order: torch.Tensor) -> dict[str, torch.Tensor]:
        """Whether a list is sorted, and how many of its places are right."""
        return {
            "accuracy": metrics.accuracy(order, batch.order), "correctness": metrics.correctness(order, batch.order),
        }  # fmt: skip


def config_of(task: SortWaves | Jigsaw) -> SoftRankConfig:
    """The settings of all models that are timed, for this task."""
    process = Bridge(sampling_steps=STEPS)
    return SoftRankConfig(dropout=0.0, time_steps=STEPS, embedder=task.embedder(), process=process)


def waves(grid: int) -> SortWaves:
    """As many numbers as a jigsaw has patches, each as long as a patch."""
    return SortWaves(grid * grid, 3 * GRIDS[grid] ** 2)


def in_steps(model: SoftRankModel) -> SoftRankModel:
    """The model with the paper's number of diffusion steps, whatever its own."""
    assert isinstance(model.config.process, Bridge)
    process = replace(model.config.process, sampling_steps=STEPS)
    same = SoftRankModel(replace(model.config, process=process))
    same.load_state_dict(model.state_dict())
    return same.eval()


def trained_model(grid: int, args: argparse.Namespace) -> tuple[SoftRankModel, SortWaves | Jigsaw, str]:
    """A trained pointer-cGPL for this grid, its task, and where the model comes from."""
    bundled = f"jigsaw-{grid}x{grid}"
    if args.checkpoint is not None:
        return SoftRankModel.from_pretrained(args.checkpoint), waves(grid), str(args.checkpoint)
    if bundled in pretrained.bundled_names():
        task = Jigsaw(grid=grid)  # type: ignore[arg-type]
        try:
            next(task.test_batches(1, 1))
            return in_steps(SoftRankModel.from_pretrained(bundled)), task, f"{bundled}, bundled"
        except FileNotFoundError:
            pass  # CIFAR-10 is not here: sort numbers instead
    numbers = waves(grid)
    folder = args.models / f"waves-{grid}x{grid}-{args.updates}"
    if not (folder / "done").exists():
        torch.manual_seed(0)
        model = SoftRankModel(config_of(numbers))
        settings = TrainConfig(
            iterations=args.updates, batch_size=32, warmup=min(50, args.updates), learning_rate=1e-3, ema=0.0,
            checkpoint_every=100,
        )  # fmt: skip
        with torch.enable_grad():
            result = train(model, numbers, settings, output=folder, resume="auto", quiet=args.json)
        if not result.is_finished:
            raise SystemExit(f"stopped at update {result.iteration} of {args.updates}; run again to continue")
        (folder / "done").touch()
    return SoftRankModel.from_pretrained(folder / "last"), numbers, f"{args.updates} updates by this script"
