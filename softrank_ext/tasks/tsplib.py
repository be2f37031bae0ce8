"""TSPLIB files: instances, their tours, and distances by TSPLIB's own rules, rounding included.

EUC_2D rounds to the nearest integer, ATT rounds up a scaled distance, GEO measures on a sphere, EXPLICIT gives a table.
An optimum under these rules need not be one under plain Euclidean lengths.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from softrank_ext.batch import Batch
from softrank_ext.metrics import matrix_tour_length
from softrank_ext.permutations import check_order
from softrank_ext.text_files import read_text

EDGE_WEIGHT_TYPES = ("EUC_2D", "ATT", "GEO", "EXPLICIT")
MOST_NODES = 10_000  # distances are a table
MOST_COORDINATE = 1e12
# Python's float and int also take 1_000, "nan" and digits of other scripts.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(nan|inf)", re.ASCII | re.IGNORECASE)
_NODE = re.compile(r"[1-9]\d{0,8}", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,40}", re.ASCII)
INSTANCE_SECTIONS = ("NODE_COORD_SECTION", "DISPLAY_DATA_SECTION", "EDGE_WEIGHT_SECTION")
EDGE_WEIGHT_FORMATS = ("FULL_MATRIX", "UPPER_ROW", "LOWER_ROW", "UPPER_DIAG_ROW", "LOWER_DIAG_ROW")


@dataclass(frozen=True, eq=False)
class TSPLIBInstance:
    """distances: (N, N) int64. points: (N, 2) float64 as in the file, or None if it gives a table alone."""

    name: str
    edge_weight_type: str
    distances: Tensor
    points: Tensor | None


def read_tsplib(path: str | Path) -> TSPLIBInstance:
    """Read a .tsp file (symmetric, of one of EDGE_WEIGHT_TYPES)."""
    fields, sections = _parse(path)
    if fields.get("TYPE", "TSP").split()[:1] != ["TSP"]:
        raise ValueError(f"{path}: TYPE must be TSP, got {fields['TYPE']!r}")
    kind = fields.get("EDGE_WEIGHT_TYPE", "")
    if kind not in EDGE_WEIGHT_TYPES:
        raise ValueError(f"{path}: EDGE_WEIGHT_TYPE must be one of {', '.join(EDGE_WEIGHT_TYPES)}, got {kind!r}")
    N = _dimension(path, fields)
    points = None
    for section in ("NODE_COORD_SECTION", "DISPLAY_DATA_SECTION"):
        if section in sections and points is None:
            points = _points(path, section, sections[section], N)
    if kind == "EXPLICIT":
        distances = _table(path, fields.get("EDGE_WEIGHT_FORMAT", ""), sections.get("EDGE_WEIGHT_SECTION", []), N)
    elif "NODE_COORD_SECTION" not in sections or points is None:
        raise ValueError(f"{path}: NODE_COORD_SECTION is missing")
    else:
        distances = {"EUC_2D": _euclidean, "ATT": _pseudo_euclidean, "GEO": _geographical}[kind](points)
    _check_sections(path, sections, INSTANCE_SECTIONS)
    return TSPLIBInstance(
        fields.get("NAME", Path(path).stem),
        kind,
        torch.from_numpy(distances.astype(np.int64)),
        None if points is None else torch.from_numpy(points.copy()),
    )


def read_tsplib_tour(path: str | Path) -> Tensor:
    """Read a .tour file: an order (N,) int64, nodes counted from 0."""
    fields, sections = _parse(path)
    if "TOUR_SECTION" not in sections:
        raise ValueError(f"{path}: TOUR_SECTION is missing")
    _check_sections(path, sections, ("TOUR_SECTION",))
    words = sections["TOUR_SECTION"]
    end = words.index("-1") if "-1" in words else len(words)
    if words[end + 1 :]:
        raise ValueError(f"{path}: TOUR_SECTION must end with -1, got {words[end + 1][:40]} behind it")
    wrong = next((word for word in words[:end] if not _NODE.fullmatch(word)), None)
    if wrong is not None:
        raise ValueError(f"{path}: TOUR_SECTION must hold numbers of nodes, got {wrong[:40]!r}")
    if end == 0:
        raise ValueError(f"{path}: TOUR_SECTION must have at least one node")
    order = torch.tensor([int(word) for word in words[:end]]) - 1
    if "DIMENSION" in fields and len(order) != _dimension(path, fields):
        raise ValueError(f"{path}: DIMENSION is {fields['DIMENSION']}, got {len(order)} nodes")
    check_order(order, f"tour of {path}")
    return order


def tsplib_batch(instance: TSPLIBInstance, best_order: Tensor) -> Batch:
    """One instance with its best tour (N,) as a batch that a `TSP` task scores by TSPLIB's distances.

    items: the points, moved and scaled into the unit square with their proportions kept.
    """
    if instance.points is None:
        raise ValueError(f"{instance.name} has no coordinates for a model to read")
    points = instance.points
    if instance.edge_weight_type == "GEO":
        points = torch.from_numpy(_degrees(points.numpy()))
    low = points.amin(0)
    extent = float((points.amax(0) - low).amax())
    scaled = ((points - low) / (extent or 1.0))[None]
    distances, order = instance.distances[None], best_order[None]
    extras = {"points": scaled, "distances": distances, "best_length": matrix_tour_length(distances, order).double()}
    return Batch(scaled.float(), order, first=order[:, 0], extras=extras)


def _parse(path: str | Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Fields `KEY : value` and sections of blank-separated words, each once."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    fields: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    words: list[str] | None = None
    for number, line in enumerate(read_text(path).splitlines(), 1):
        stripped = line.strip()
        if stripped == "EOF":
            break
        key, sign, value = map(str.strip, stripped.partition(":"))
        if key in sections or (sign and key in fields and key != "COMMENT"):
            raise ValueError(f"{path}: {key} must be there once, line {number} has it again")
        if key.endswith("_SECTION"):
            words = sections[key] = []
        elif sign:
            fields[key] = value
        elif words is not None:
            words.extend(stripped.split())
        elif stripped:
            raise ValueError(f"{path} is not a TSPLIB file: a line before the first section is {stripped!r}")
    return fields, sections


def _check_sections(path: str | Path, sections: dict[str, list[str]], known: Sequence[str]) -> None:
    """Raise ValueError for a section that would be left out, as of edges that a tour must have."""
    for name in sections:
        if name not in known:
            raise ValueError(f"{path}: its sections must be among {', '.join(known)}, got {name}")


def _dimension(path: str | Path, fields: dict[str, str]) -> int:
    value = fields.get("DIMENSION", "")
    if not value.isdecimal() or not value.strip("0"):
        raise ValueError(f"{path}: DIMENSION must be a positive integer, got {value[:40]!r}")
    if len(value) > 9 or int(value) > MOST_NODES:
        raise ValueError(f"{path}: DIMENSION must be at most {MOST_NODES}, got {value[:40]}")
    return int(value)


def _points(path: str | Path, section: str, words: list[str], N: int) -> np.ndarray:
    """Coordinates (N, 2) by node."""
    if len(words) != 3 * N:
        raise ValueError(f"{path}: {section} must have {N} lines of three numbers, got {len(words)} numbers")
    wrong = next((word for word in words if not _NUMBER.fullmatch(word)), None)
    if wrong is not None:
        raise ValueError(f"{path}: {section} must hold numbers, got {wrong[:40]!r}")
    lines = np.array(words, np.float64).reshape(N, 3)
    points: np.ndarray = lines[lines[:, 0].argsort(), 1:]
    if not np.array_equal(np.sort(lines[:, 0]), np.arange(1, N + 1)):
        raise ValueError(f"{path}: {section} must number its nodes 1 to {N}, each once")
    is_wrong = ~(np.abs(points) <= MOST_COORDINATE)
    if is_wrong.any():
        node, axis = np.argwhere(is_wrong)[0]
        raise ValueError(
            f"{path}: {section} must hold numbers of at most {MOST_COORDINATE:g} in size, got {points[node, axis]:g} "
            f"at node {node + 1}"
        )
    return points


def _table(path: str | Path, form: str, words: list[str], N: int) -> np.ndarray:
    if form not in EDGE_WEIGHT_FORMATS:
        raise ValueError(f"{path}: EDGE_WEIGHT_FORMAT must be one of {', '.join(EDGE_WEIGHT_FORMATS)}, got {form!r}")
    numbers = {
        "FULL_MATRIX": N * N,
        "UPPER_ROW": N * (N - 1) // 2,
        "LOWER_ROW": N * (N - 1) // 2,
        "UPPER_DIAG_ROW": N * (N + 1) // 2,
        "LOWER_DIAG_ROW": N * (N + 1) // 2,
    }[form]
    if len(words) != numbers:
        raise ValueError(f"{path}: {form} of {N} nodes must have {numbers} numbers, got {len(words)}")
    rows, columns = {
        "FULL_MATRIX": np.ones((N, N)),
        "UPPER_ROW": np.triu(np.ones((N, N)), 1),
        "LOWER_ROW": np.tril(np.ones((N, N)), -1),
        "UPPER_DIAG_ROW": np.triu(np.ones((N, N))),
        "LOWER_DIAG_ROW": np.tril(np.ones((N, N))),
    }[form].nonzero()  # row by row
    table = np.zeros((N, N), np.int64)
    wrong = next((word for word in words if not _INTEGER.fullmatch(word) or abs(int(word)) >= 2**53), None)
    if wrong is not None:
        raise ValueError(f"{path}: EDGE_WEIGHT_SECTION must hold integers below 2^53 in size, got {wrong[:40]!r}")
    table[rows, columns] = [int(word) for word in words]
    if form != "FULL_MATRIX":
        table[columns, rows] = table[rows, columns]
    elif not np.array_equal(table, table.T):
        raise ValueError(f"{path}: the table must be symmetric")
    return table


def _differences(points: np.ndarray) -> np.ndarray:
    differences: np.ndarray = points[:, None] - points[None]  # (N, N, 2)
    return differences


def _euclidean(points: np.ndarray) -> np.ndarray:
    rounded: np.ndarray = np.floor(np.sqrt((_differences(points) ** 2).sum(2)) + 0.5)
    return rounded


def _pseudo_euclidean(points: np.ndarray) -> np.ndarray:
    distances = np.sqrt((_differences(points) ** 2).sum(2) / 10)
    nearest = np.floor(distances + 0.5)
    rounded: np.ndarray = np.where(nearest < distances, nearest + 1, nearest)
    return rounded


def _degrees(points: np.ndarray) -> np.ndarray:
    """Degrees from DDD.MM, degrees and minutes."""
    whole = np.trunc(points)
    degrees: np.ndarray = whole + 5 * (points - whole) / 3
    return degrees


def _geographical(points: np.ndarray) -> np.ndarray:
    radians = 3.141592 * _degrees(points) / 180  # TSPLIB's pi: the published optima rest on it
    latitude, longitude = radians.T
    q1 = np.cos(longitude[:, None] - longitude)
    q2 = np.cos(latitude[:, None] - latitude)
    q3 = np.cos(latitude[:, None] + latitude)
    distances: np.ndarray = np.floor(6378.388 * np.arccos((0.5 * ((1 + q1) * q2 - (1 - q1) * q3)).clip(-1, 1)) + 1)
    np.fill_diagonal(distances, 0)
    return distances
