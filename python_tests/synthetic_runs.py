"""Tiny models and short runs, for tests of training and of the command line."""

import dataclasses
import os
import signal
from pathlib import Path

import torch
from synthetic_tasks import SortNumbers

from softrank_ext import SoftRankConfig, SoftRankModel, TrainConfig

TESTS = Path(__file__).parent
QUICK = TrainConfig(iterations=8, batch_size=4, learning_rate=1e-2, warmup=2, log_every=2, checkpoint_every=4, ema=0.9)
# The same for the command line: models as small as those here, and two updates.
SMALL = ["--model.d-model", "16", "--model.feed-forward", "24", "--model.heads", "2", "--model.encoder-layers", "1"]
SMALL_DECODER = [*SMALL, "--model.decoder-layers", "1"]
BALLOTS = ["# NUMBER ALTERNATIVES: 4", "# ALTERNATIVE NAME 1: a", "# ALTERNATIVE NAME 2: b", "# ALTERNATIVE NAME 3: c",
           "# ALTERNATIVE NAME 4: d", "# NUMBER VOTERS: 12", "# NUMBER UNIQUE ORDERS: 2", "8: 2,3,1,4",
           "4: 3,1,4,2"]  # fmt: skip


def tiny_model(**changes: object) -> SoftRankModel:
    """A model of numbers (N, 1) with random weights, always the same; changes: of its config."""
    torch.manual_seed(3)
    embedder = {"kind": "linear", "features": 1}
    config = SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=embedder)
    return SoftRankModel(dataclasses.replace(config, **changes))


def weights_of(model: SoftRankModel) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_weights(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert got.keys() == wanted.keys()
    assert [name for name in got if not torch.equal(got[name], wanted[name])] == []


def sort_three_and_signal(at: int, number: int = signal.SIGINT, times: int = 1) -> SortNumbers:
    """`SortNumbers(3)` that sends this process a signal, or several, while batch number `at` is made."""

    class Signalling(SortNumbers):
        def training_batch(self, seed, step, size):
            for _ in range(times if step == at else 0):
                os.kill(os.getpid(), number)
            return super().training_batch(seed, step, size)

    return Signalling(3)
