"""MNIST and CIFAR-10 from a folder on this machine. Nothing is downloaded unless `download` is called.

The folder is the argument `root`, else the environment variable SOFTRANK_DATA, else ~/.cache/softrank_ext. Its layout
is torchvision's: MNIST/raw/*-ubyte, packed (.gz) or not, and cifar-10-batches-py/. torchvision downloads if it is
installed, else this module does, from the same addresses.
"""

import gzip
import hashlib
import math
import os
import sys
import tarfile
import zlib
from collections.abc import Sequence
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from types import ModuleType
from typing import NamedTuple
from urllib.request import Request, urlopen

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext.tasks.byte_pickles import MOST_BYTES, read_byte_pickle

_VARIABLE = "SOFTRANK_DATA"
_MOST_IDX_BYTES = 2**30


class Source(NamedTuple):
    """A file of a data set: its path under the root, the addresses to try, its MD5 sum in hexadecimal.

    unpacked: if it is a tar archive, the names of the files to take out of it, under the root as in the archive.
    """

    path: str
    urls: tuple[str, ...]
    md5: str
    unpacked: tuple[str, ...] = ()


# Mirrors and checksums as torchvision has them.
_MNIST_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/")
_MNIST_SUMS = {
    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
}
_CIFAR10_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")
SOURCES = {
    "mnist": tuple(
        Source(f"MNIST/raw/{name}", tuple(mirror + name for mirror in _MNIST_MIRRORS), md5)
        for name, md5 in _MNIST_SUMS.items()
    ),
    "cifar10": (
        Source(
            "cifar-10-python.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            "c58f30108f718f92721af3b95e74349a",
            tuple(f"cifar-10-batches-py/{name}" for name in _CIFAR10_FILES),
        ),
    ),
}


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
    """Download mnist or cifar10, with checksums, through torchvision if it is installed; returns the folder."""
    if name not in SOURCES:
        raise ValueError(f"name must be one of {', '.join(SOURCES)}, got {name!r}")
    folder = root_of(root)
    folder.mkdir(parents=True, exist_ok=True)
    torchvision = _torchvision()
    if torchvision is None:
        fetch(SOURCES[name], folder)
    else:
        make = torchvision.datasets.MNIST if name == "mnist" else torchvision.datasets.CIFAR10
        make(str(folder), download=True)
    return folder


def fetch(sources: Sequence[Source], folder: Path) -> None:
    """Download the sources into the folder, but for those that are already there with the right checksum."""
    for source in sources:
        path = folder / source.path
        if not (path.exists() and _md5_of(path) == source.md5):
            path.parent.mkdir(parents=True, exist_ok=True)
            _fetch_file(source, path)
        if source.unpacked:
            _unpack(path, source.unpacked, folder)


def _fetch_file(source: Source, path: Path) -> None:
    """Try the addresses in turn; the file takes its place only when it is whole and has the right checksum."""
    part = path.with_name(path.name + ".part")
    troubles = []
    for url in source.urls:
        try:
            _fetch_url(url, part)
        except (OSError, HTTPException) as error:
            troubles.append(f"{url}: {error}")
            continue
        found = _md5_of(part)
        if found == source.md5:
            part.replace(path)
            return
        part.unlink()
        troubles.append(f"{url}: its MD5 sum must be {source.md5}, got {found}")
    part.unlink(missing_ok=True)
    raise OSError(f"cannot download {path.name}; put it at {path} by hand. Tried {'; '.join(troubles)}")


def _fetch_url(url: str, path: Path) -> None:
    request = Request(url, headers={"User-Agent": "softrank_ext"})
    with urlopen(request, timeout=60) as answer, open(path, "wb") as file:
        size = int(answer.headers.get("Content-Length") or 0)
        is_quiet = not sys.stderr.isatty()
        with tqdm(total=size or None, unit="B", unit_scale=True, desc=path.stem, disable=is_quiet) as bar:
            while block := answer.read(2**20):
                file.write(block)
                bar.update(len(block))


def _md5_of(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    return digest.hexdigest()


def _unpack(archive: Path, names: Sequence[str], folder: Path) -> None:
    """Write the named files of a tar archive, and no others, into the folder."""
    with tarfile.open(archive) as tar:
        for name in names:
            member = tar.extractfile(name)
            assert member is not None, f"{name} of {archive} is a plain file"
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(path.name + ".part")
            part.write_bytes(member.read())
            part.replace(path)


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
    if not path.exists() and not packed.exists():
        raise _missing("MNIST", "mnist", root)
    try:
        with path.open("rb") if path.exists() else gzip.open(packed) as file:
            head = file.read(4 + 4 * ndim)
            shape = np.frombuffer(head[4:], ">u4").tolist()
            # No more than the header promises, and no more than any data set of this form has, is unpacked.
            content = file.read(min(math.prod(shape), _MOST_IDX_BYTES) + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if head[:4] != bytes((0, 0, 8, ndim)) or len(shape) != ndim or len(content) != math.prod(shape):
        raise ValueError(f"{path} is truncated or not an idx file of bytes with {ndim} dimensions")
    return torch.from_numpy(np.frombuffer(content, np.uint8).reshape(shape).copy())


@lru_cache(maxsize=4)
def _cifar10(train: bool, root: Path) -> Tensor:
    folder = root / "cifar-10-batches-py"
    names = [f"data_batch_{number}" for number in range(1, 6)] if train else ["test_batch"]
    rows = []
    for name in names:
        if not (folder / name).exists():
            raise _missing("CIFAR-10", "cifar10", root)
        rows.append(_read_cifar10_batch(folder / name))
    return torch.from_numpy(np.concatenate(rows).reshape(-1, 3, 32, 32))


def _read_cifar10_batch(path: Path) -> np.ndarray:
    """The images (count, 3072) uint8 of one file; raises ValueError if it is not such a file."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    try:
        read = read_byte_pickle(content)
    except ValueError as error:
        raise ValueError(f"{path} must be a CIFAR-10 batch, a dictionary of arrays of bytes: {error}") from error
    data = read.get("data") if isinstance(read, dict) else None
    if not isinstance(data, np.ndarray) or data.ndim != 2 or data.shape[1] != 3 * 32 * 32 or len(data) == 0:
        got = data.shape if isinstance(data, np.ndarray) else type(data).__name__
        raise ValueError(f"{path} must be a CIFAR-10 batch, with data (count, 3072) of bytes, got {got}")
    return data


def _missing(title: str, name: str, root: Path) -> FileNotFoundError:
    return FileNotFoundError(
        f"{title} is not in {root}: get it with `python -m softrank_ext download {name}`, "
        f"or set {_VARIABLE} to a folder that has it"
    )


# Holds the stand-ins of `_torchvision` for the life of the process: torch forgets them with this object.
_STAND_INS: list[torch.library.Library] = []


def _torchvision() -> ModuleType | None:
    """torchvision, also a CUDA build of it beside a CPU build of torch; None if it is not installed."""
    try:
        import torchvision
    except ImportError:
        return None
    except RuntimeError as error:
        # Its operators cannot load without CUDA, and its import then fails because a schema is missing that data sets
        # don't need. With the schema there, the import goes through.
        if "torchvision::nms" not in str(error):
            raise
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _STAND_INS.append(library)
        import torchvision
    module: ModuleType = torchvision
    return module
