"""Small made-up data sets and models in the files of the real ones, for tests."""

import gzip
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from softrank_ext import SoftRankConfig, SoftRankModel


def write_mnist(root: Path, train: int = 40, test: int = 20) -> Path:
    """Image k of a part is filled with a grey of its own; labels are k % 10. Training is packed, test is not."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count, first in (("train", train, 1), ("t10k", test, 101)):
        images = np.broadcast_to(np.arange(first, first + count, dtype=np.uint8)[:, None, None], (count, 28, 28)).copy()
        images[:, 0, 0] = 255  # so that turning or mirroring an image shows
        labels = (np.arange(count) % 10).astype(np.uint8)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            content = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes() + array.tobytes()
            if part == "train":
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return root


def write_cifar10(root: Path, per_file: int = 4) -> Path:
    """Random pixels; the first image of each file is all of one colour."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
        rows = numbers.integers(0, 256, (per_file, 3072), dtype=np.uint8)
        rows[0] = 77
        (folder / name).write_bytes(pickle.dumps({"data": rows, "labels": [0] * per_file}, protocol=4))
    return root


def write_models(folder: Path, names: Sequence[str]) -> Path:
    """Tiny models with random weights under the names of bundled ones."""
    embedders: dict[str, dict[str, object]] = {
        "sorting": {"kind": "light-number-cnn"},
        "tsp": {"kind": "points"},
        "jigsaw-3x3": {"kind": "patch-cnn", "side": 10},
        "flowshop": {"kind": "times", "machines": 20},
    }
    torch.manual_seed(0)
    for name in names:
        config = SoftRankConfig(
            d_model=16, feed_forward=24, heads=2, encoder_layers=1, decoder_layers=1, embedder=embedders[name]
        )
        SoftRankModel(config).save_pretrained(folder / name)
    return folder
