"""Items from files, and orders to files, for the command line. `order[place] = item`, items counted from 0."""

import csv
import io
import json
import math
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext.atomic_files import written_beside
from softrank_ext.sampling import Samples
from softrank_ext.tables import MISSING_WORDS
from softrank_ext.text_files import read_text, without_blank_lines

READ_ENDINGS = (".npz", ".csv", ".tsp")
WRITE_ENDINGS = (".csv", ".json", ".npz")
ORDER_ARRAYS = ("order", "ranks", "soft_ranks", "log_prob")  # of an .npz file of orders
MOST_ARRAY_BYTES = 2**32
_MOST = torch.finfo(torch.float32).max
_NAME = re.compile(r"[^\W\d]")
_LOOK_ALIKE = str.maketrans("OoIl", "0011")
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


class ItemFile(NamedTuple):
    """What a file holds: items (B, N, ...), mask (B, N) bool or None, and names of the N items or None."""

    items: Tensor
    mask: Tensor | None
    names: list[str] | None

    def of_rows(self, rows: slice) -> "ItemFile":
        """What these instances have."""
        return ItemFile(self.items[rows], None if self.mask is None else self.mask[rows], self.names)


def read_items(path: str | Path, *, channels: int | None = None) -> ItemFile:
    """Read items by what the path is.

    .npz: arrays `items` (B, N, ...) and, if some are padding, `mask` (B, N) bool. .csv: one instance, a line of numbers
    per item, after a line of names if there is one. .tsp: the points of a TSPLIB file, scaled into the unit square. A
    folder: one instance, its images in the order of their names, as uint8 (1, N, channels, height, width).
    channels: 1 or 3 to convert images, None to keep them.
    """
    path = Path(path)
    if path.is_dir():
        return _read_images(path, channels)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    readers = dict(zip(READ_ENDINGS, (_read_npz, _read_csv, _read_tsplib), strict=True))
    if path.suffix not in readers:
        raise ValueError(f"items must be a folder of images or a file ending in {', '.join(READ_ENDINGS)}, got {path}")
    return readers[path.suffix](path)


def _read_npz(path: Path) -> ItemFile:
    arrays = read_arrays(path, ("items", "mask"))
    if "items" not in arrays:
        raise ValueError(f"{path} must have an array named items, got {', '.join(_names_in(path)) or 'none'}")
    items, mask = arrays["items"], arrays.get("mask")
    if items.dtype == torch.float64:
        is_beyond = items.isfinite() & (items.abs() > _MOST)
        if bool(is_beyond.any()):
            at = tuple(is_beyond.nonzero()[0].tolist())
            raise ValueError(f"{path}: items must be numbers that float32 can hold, got {float(items[at]):g} at {at}")
        items = items.float()
    return ItemFile(items, mask, None)


def read_arrays(path: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """Arrays of an .npz file by name, those of the names that it has; no other is unpacked."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.namelist()
            twice = next((name for name in entries if entries.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"{twice} is there twice")
            return {name: _read_array(archive, f"{name}.npy") for name in names if f"{name}.npy" in entries}
    except Exception as error:  # a damaged header can raise anything
        raise ValueError(f"{path} is damaged or no .npz file: {error}") from error


def _names_in(path: Path) -> list[str]:
    """The names of the arrays of an .npz file that can be opened."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def _read_array(archive: zipfile.ZipFile, name: str) -> Tensor:
    """An array of an .npz file; its header is compared with the size of what follows before that is unpacked."""
    entry = archive.getinfo(name)
    if entry.file_size > MOST_ARRAY_BYTES:
        raise ValueError(f"{name} must have at most {MOST_ARRAY_BYTES} bytes, got {entry.file_size}")
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, is_fortran, dtype = read_header(file)
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or dtype.hasobject or size != entry.file_size - file.tell():
            raise ValueError(f"{name} must have the {size} bytes of its header, got {entry.file_size - file.tell()}")
        array = np.frombuffer(file.read(size), dtype).reshape(shape, order="F" if is_fortran else "C")
    return torch.from_numpy(array.astype(dtype.newbyteorder("=")))


def _read_csv(path: Path) -> ItemFile:
    try:
        reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
        lines = without_blank_lines(path, ((reader.line_num, line) for line in reader))
    except csv.Error as error:
        raise ValueError(f"{path} is not a CSV file: {error}") from error
    wanted = len(lines[0][1]) if lines else 0
    if lines and all(map(_is_name, lines[0][1])):
        lines = lines[1:]
    if not lines:
        raise ValueError(f"{path} must have a line of numbers per item, it has none")
    rows = []
    for number, line in lines:
        if len(line) != wanted:
            raise ValueError(f"{path}, line {number} must have {wanted} numbers, got {len(line)}: {','.join(line)!r}")
        row = [_number_of(word) for word in line]
        for column, (value, word) in enumerate(zip(row, line, strict=True), 1):
            if value is None or not math.isfinite(value):
                raise ValueError(f"{path}, line {number}, column {column} must be a number, got {word!r}")
            if abs(value) > _MOST:
                raise ValueError(
                    f"{path}, line {number}, column {column} must be a number that float32 can hold, got {word!r}"
                )
        rows.append(row)
    return ItemFile(torch.tensor(rows)[None], None, None)


def _is_name(word: str) -> bool:
    """Whether a word can only be a column's name: it begins with a letter and stands for no number, also none with a
    letter in place of a digit (O.1), and for no missing one."""
    word = word.strip()
    is_mistyped = "." in word and _number_of(word.translate(_LOOK_ALIKE)) is not None
    return (
        bool(_NAME.match(word)) and not is_mistyped and _number_of(word) is None and word.lower() not in MISSING_WORDS
    )


def _number_of(word: str) -> float | None:
    if "_" in word:  # Python's 1_000
        return None
    try:
        return float(word)
    except ValueError:
        return None


def _read_tsplib(path: Path) -> ItemFile:
    from softrank_ext.tasks.tsplib import read_tsplib, tsplib_batch

    instance = read_tsplib(path)
    batch = tsplib_batch(instance, torch.arange(len(instance.distances)))
    return ItemFile(batch.items, None, None)


def _read_images(folder: Path, channels: int | None) -> ItemFile:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError('images are read with Pillow: pip install "softrank_ext[vision]"') from error
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_ENDINGS)
    if not paths:
        raise ValueError(f"{folder} has no images ({', '.join(IMAGE_ENDINGS)})")
    images = []
    for path in paths:
        with Image.open(path) as image:
            kept = 1 if image.mode in ("1", "L", "I;16") else 3
            pixels = np.asarray(image.convert("L" if (channels or kept) == 1 else "RGB"))
        images.append(torch.from_numpy(pixels.copy().reshape(*pixels.shape[:2], -1)).permute(2, 0, 1))
        if images[-1].shape != images[0].shape:
            sizes = ["x".join(map(str, image.shape)) for image in (images[0], images[-1])]
            raise ValueError(f"images must have one size, {paths[0].name} is {sizes[0]} and {path.name} is {sizes[1]}")
    return ItemFile(torch.stack(images)[None], None, [path.name for path in paths])


def check_writable(path: str | Path) -> None:
    """Raise ValueError unless `write_orders` knows the path's ending, OSError unless its folder exists."""
    path = Path(path)
    if path.suffix not in WRITE_ENDINGS:
        raise ValueError(f"orders are written to a file ending in {', '.join(WRITE_ENDINGS)}, got {path}")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder: make it first")


def write_orders(path: str | Path, samples: Samples, source: ItemFile, first_instance: int = 0) -> None:
    """Write samples (B, num_samples, N) by the path's ending; first_instance: the number of the first of them.

    .csv: a line per sample: instance, sample, log_prob and the items from the first place on. .json: the same as a list
    of objects. .npz: arrays order, ranks, soft_ranks and log_prob. Padded places are left out of .csv and .json; items
    that have names (image files) are written by name there. A model that gives no log_prob has none in .csv and .json.
    """
    path = Path(path)
    check_writable(path)
    with written_beside(path) as new:
        _write_orders(new, samples, source, first_instance)


def _write_orders(path: Path, samples: Samples, source: ItemFile, first_instance: int) -> None:
    if path.suffix == ".npz":
        arrays = {name: getattr(samples, name).cpu().numpy() for name in ORDER_ARRAYS}
        np.savez(path, **arrays)
        return
    rows = _rows_of(samples, source, first_instance)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, allow_nan=False) + "\n")
        return
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["instance", "sample", "log_prob", *(f"place_{place}" for place in range(samples.order.shape[2]))]
        )
        for row in rows:
            writer.writerow([row["instance"], row["sample"], _written(row["log_prob"]), *row["order"]])


def _written(log_prob: float | None) -> str:
    return "" if log_prob is None else f"{log_prob:.6f}"


def _rows_of(samples: Samples, source: ItemFile, first_instance: int) -> list[dict[str, Any]]:
    rows = []
    for instance, orders in enumerate(samples.order.tolist()):
        real = len(orders[0]) if source.mask is None else int(source.mask[instance].sum())
        for number, order in enumerate(orders):
            items = order[:real] if source.names is None else [source.names[item] for item in order[:real]]
            number_or_nan = float(samples.log_prob[instance, number])
            log_prob = number_or_nan if math.isfinite(number_or_nan) else None  # JSON has no NaN
            rows.append({"instance": first_instance + instance, "sample": number, "log_prob": log_prob, "order": items})
    return rows
