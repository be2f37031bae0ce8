"""Files of orders in parts, `orders.2-of-4.csv`, and `softrank merge OUTPUT`, which makes one file of them."""

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from softrank_ext.atomic_files import written_beside
from softrank_ext.cli.item_files import ORDER_ARRAYS, check_writable, read_arrays
from softrank_ext.cli.options import AsJson, tell

_MOST_NAMED = 20  # parts that are missing


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
    # The name of a part may say any number: no more are looked for than can be missing or there.
    parts = [
        part_of(output, number, counts[0]) for number in range(1, min(counts[0], len(found) + _MOST_NAMED + 1) + 1)
    ]
    missing = [part.name for part in parts if not part.exists()]
    if missing:
        more = ", and more" if len(missing) > _MOST_NAMED else ""
        raise FileNotFoundError(f"parts of {output} are missing: {', '.join(missing[:_MOST_NAMED])}{more}")
    return parts


def merge_parts(output: Path, parts: Sequence[Path]) -> None:
    """Write one file with what the parts hold, one after the other, as one process would have written it."""
    with written_beside(output) as new:
        {".csv": _merge_csv, ".json": _merge_json, ".npz": _merge_npz}[output.suffix](new, parts)


def _check_whole(rows: Sequence[tuple[Path, str, str]]) -> None:
    """Raise ValueError unless the rows of all parts, (part, instance, sample), count on as those of one file do."""
    samples = max(sum(instance == "0" for _, instance, _ in rows), 1)
    last_part = None
    for row, (part, *found) in enumerate(rows):
        wanted = list(map(str, divmod(row, samples)))
        if found != wanted:
            at = f"begin with {_named(wanted)}" if part != last_part else f"have {_named(wanted)}"
            got = f"{part} must {at}, got {_named(found)}"
            raise ValueError(f"{got}: it, or the part before it, has lost rows, or is of another call")
        last_part = part
    if len(rows) % samples:
        raise ValueError(f"{last_part} must have {_named(divmod(len(rows), samples))}: it has lost rows")


def _named(numbers: Sequence[object]) -> str:
    instance, sample = numbers
    return f"sample {sample} of instance {instance}"


def _merge_csv(new: Path, parts: Sequence[Path]) -> None:
    with open(new, "w", newline="") as file:
        writer = csv.writer(file)
        first_header: list[str] | None = None
        numbers: list[tuple[Path, str, str]] = []
        for part in parts:
            with open(part, newline="") as own:
                lines = list(csv.reader(own))
            if not lines:
                raise ValueError(f"{part} is empty")
            header = lines.pop(0)
            if first_header is None:
                first_header = header
                writer.writerow(header)
            elif header != first_header:
                raise ValueError(f"{part} must have the columns of {parts[0]}: they are of different items")
            if any(len(line) < 2 for line in lines):
                raise ValueError(f"{part} must have an instance and a sample in every line")
            numbers += [(part, line[0], line[1]) for line in lines]
            writer.writerows(lines)
    _check_whole(numbers)


def _merge_json(new: Path, parts: Sequence[Path]) -> None:
    rows = []
    numbers: list[tuple[Path, str, str]] = []
    for part in parts:
        try:
            own = json.loads(part.read_text(), parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{part} is not valid JSON: {error}") from error
        if not isinstance(own, list):
            raise ValueError(f"{part} must hold a JSON list, got {type(own).__name__}")
        if not all(isinstance(row, dict) and {"instance", "sample"} <= row.keys() for row in own):
            raise ValueError(f"{part} must hold objects with an instance and a sample")
        numbers += [(part, str(row["instance"]), str(row["sample"])) for row in own]
        rows += own
    _check_whole(numbers)
    new.write_text(json.dumps(rows, allow_nan=False) + "\n")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _merge_npz(new: Path, parts: Sequence[Path]) -> None:
    arrays: list[dict[str, Any]] = []
    for part in parts:
        arrays.append({name: array.numpy() for name, array in read_arrays(part, ORDER_ARRAYS).items()})
        shapes = [{name: array.shape[1:] for name, array in own.items()} for own in (arrays[0], arrays[-1])]
        if shapes[0] != shapes[1]:
            raise ValueError(f"{part} must have arrays of the shapes of {parts[0]}: they are of different items")
    whole: dict[str, Any] = {name: np.concatenate([own[name] for own in arrays]) for name in arrays[0]}
    np.savez(new, **whole)
