"""MNIST and CIFAR-10 from a folder on this machine. Nothing is downloaded unless `download` is called.

The folder is the argument `root`, else the environment variable SOFTRANK_DATA, else ~/.cache/softrank_ext. Its layout
is torchvision's: MNIST/raw/*-ubyte, packed (.gz) or not, and cifar-10-batches-py/. torchvision itself is needed by
`download` only.
"""

import gzip
import os
import pickle
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

NAMES = ("mnist", "cifar10")
_VARIABLE = "SOFTRANK_DATA"


def root_of(root: str | Path | None = None) -> Path:
    """The folder that data is read from and downloaded to."""
    return Path(root or os.environ.get(_VARIABLE) or Path.home() / ".cache" / "softrank_ext").expanduser()


def mnist(train: bool, root: str | Path | None = None) -> tuple[Tensor, Tensor]:
    """Images (count, 28, 28) uint8 and labels (count,) int64 of the training or the test set; kept, so don't write."""
    return _mnist(train, root_of(root))


def cifar10(train: bool, root: str | Path | None = None) -> Tensor:
    """Images (count, 3, 32, 32) uint8 of the training or the test set; kept in memory, so don't write to them."""
    return _cifar10(train, root_of(root))


def download(name: str, root: str | Path | None = None) -> Path:
    """Download mnist or cifar10 through torchvision, with its checksums; returns the folder that holds them."""
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}, got {name!r}")
    datasets = _torchvision().datasets
    folder = root_of(root)
    folder.mkdir(parents=True, exist_ok=True)
    make = datasets.MNIST if name == "mnist" else datasets.CIFAR10
    make(str(folder), download=True)
    return folder


@lru_cache(maxsize=4)
def _mnist(train: bool, root: Path) -> tuple[Tensor, Tensor]:
    part = "train" if train else "t10k"
    images = _read_idx(root, f"{part}-images-idx3-ubyte", 3)
    labels = _read_idx(root, f"{part}-labels-idx1-ubyte", 1).long()
    if images.shape[1:] != (28, 28) or len(images) != len(labels) or len(images) == 0:
        raise ValueError(
            f"MNIST in {root} must be images (count, 28, 28) with as many labels, "
            f"got {tuple(images.shape)} and {tuple(labels.shape)}"
        )
    return images, labels


def _read_idx(root: Path, name: str, ndim: int) -> Tensor:
    """An idx file: two zero bytes, the type (8 = uint8), the number of dimensions, their sizes, the numbers."""
    path = root / "MNIST" / "raw" / name
    packed = path.with_name(f"{name}.gz")
    if path.exists():
        content = path.read_bytes()
    elif packed.exists():
        content = gzip.decompress(packed.read_bytes())
    else:
        raise _missing("MNIST", "mnist", root)
    start = 4 + 4 * ndim
    shape = np.frombuffer(content[4:start], ">i4").tolist()
    if content[:4] != bytes((0, 0, 8, ndim)) or len(content) != start + int(np.prod(shape)):
        raise ValueError(f"{path} is truncated or not an idx file of bytes with {ndim} dimensions")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


@lru_cache(maxsize=4)
def _cifar10(train: bool, root: Path) -> Tensor:
    folder = root / "cifar-10-batches-py"
    names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    rows = []
    for name in names:
        if not (folder / name).exists():
            raise _missing("CIFAR-10", "cifar10", root)
        with (folder / name).open("rb") as file:
            rows.append(_ArrayUnpickler(file, encoding="latin1").load()["data"])
    return torch.from_numpy(np.concatenate(rows).reshape(-1, 3, 32, 32))


class _ArrayUnpickler(pickle.Unpickler):
    """Reads arrays and plain values only: a pickle could otherwise run any code."""

    def __init__(self, file: BinaryIO, encoding: str) -> None:
        super().__init__(file, encoding=encoding)

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "numpy" and name in ("_reconstruct", "ndarray", "dtype", "_frombuffer"):
            return super().find_class(module, name)
        raise ValueError(f"a CIFAR-10 file must hold arrays only, this one asks for {module}.{name}")


def _missing(title: str, name: str, root: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{title} is not in {root}: get it with `python -m softrank_ext download {name}`, "
        f"or set {_VARIABLE} to a folder that has it"
    )


# Holds the stand-ins of `_torchvision` for the life of the process: torch forgets them with this object.
_STAND_INS: list[torch.library.Library] = []


def _torchvision() -> ModuleType:
    """torchvision, also a CUDA build of it beside a CPU build of torch."""
    try:
        import torchvision
    except ImportError as error:
        raise ImportError(
            "downloading needs torchvision: pip install torchvision, or pip install 'softrank_ext[vision]'"
        ) from error
    except RuntimeError as error:
        # Its operators cannot load without CUDA, and its import then fails for want of a schema that data sets don't
        # need. With the schema there, the import goes through.
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _STAND_INS.append(library)
        import torchvision
    return torchvision
