"""Files of orders in parts, `orders.2-of-4.csv`, and `softrank merge OUTPUT`, which makes one file of them."""

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from softrank_ext.atomic_files import temporary_name
from softrank_ext.cli.item_files import check_writable
from softrank_ext.cli.options import AsJson, tell


def part_of(output: Path, number: int, count: int) -> Path:
    """The file of part `number`, from 1 to `count`, of a file of orders."""
    return output.with_name(f"{output.stem}.{number}-of-{count}{output.suffix}")


def merge(
    output: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="OUTPUT")]], as_json: AsJson = False
) -> None:
    """Make one file of the parts that `softrank sample ... OUTPUT --shard I/N` wrote.

    Args:
        output: The file that the parts were given as OUTPUT, a .csv, .json or .npz file. The parts stay.
    """
    check_writable(output)
    parts = _parts_of(output)
    merge_parts(output, parts)
    record = {"output": str(output), "parts": list(map(str, parts))}
    tell(as_json, record, f"{len(parts)} parts written to {output}")


def _parts_of(output: Path) -> list[Path]:
    """The parts beside the file, all of them; raises ValueError if one is missing, or if there are two sets."""
    pattern = re.compile(rf"{re.escape(output.stem)}\.\d+-of-(\d+){re.escape(output.suffix)}")
    found = [match for match in map(pattern.fullmatch, (path.name for path in output.parent.iterdir())) if match]
    counts = sorted({int(match[1]) for match in found})
    if not counts:
        raise FileNotFoundError(f"there are no parts of {output}, files like {part_of(output, 1, 4).name}")
    if len(counts) > 1:
        said = " and of ".join(map(str, counts))
        raise ValueError(f"the parts of {output} must be of one number, got parts of {said}: delete those not meant")
    parts = [part_of(output, number, counts[0]) for number in range(1, counts[0] + 1)]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        raise FileNotFoundError(f"parts of {output} are missing: {', '.join(missing)}")
    return parts


def merge_parts(output: Path, parts: Sequence[Path]) -> None:
    """Write one file with what the parts hold, one after the other, as one process would have written it."""
    new = output.with_name(f"{temporary_name(output.stem)}{output.suffix}")
    try:
        {".csv": _merge_csv, ".json": _merge_json, ".npz": _merge_npz}[output.suffix](new, parts)
        new.replace(output)
    finally:
        new.unlink(missing_ok=True)


def _merge_csv(new: Path, parts: Sequence[Path]) -> None:
    with open(new, "w", newline="") as file:
        writer = csv.writer(file)
        first_header: list[str] | None = None
        for part in parts:
            with open(part, newline="") as own:
                header, *lines = csv.reader(own)
            if first_header is None:
                first_header = header
                writer.writerow(header)
            elif header != first_header:
                raise ValueError(f"{part} must have the columns of {parts[0]}: they are of different items")
            writer.writerows(lines)


def _merge_json(new: Path, parts: Sequence[Path]) -> None:
    rows = [row for part in parts for row in json.loads(part.read_text())]
    new.write_text(json.dumps(rows, allow_nan=False) + "\n")


def _merge_npz(new: Path, parts: Sequence[Path]) -> None:
    arrays = []
    for part in parts:
        with np.load(part) as file:
            arrays.append({name: file[name] for name in file.files})
        if [array.shape[1:] for array in arrays[-1].values()] != [array.shape[1:] for array in arrays[0].values()]:
            raise ValueError(f"{part} must have arrays of the shapes of {parts[0]}: they are of different items")
    whole: dict[str, Any] = {name: np.concatenate([own[name] for own in arrays]) for name in arrays[0]}
    np.savez(new, **whole)
