"""Places as they are given: what the numbers mean, what the places are called, and how far it is between them.

A metric says what the numbers are: "latlon" for degrees, latitude first, "plane" for coordinates of one unit, "matrix"
for distances from row to column in place of coordinates.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from softrank_ext.checks import check_choice
from softrank_ext.costs.tours import MOST_SIZE
from softrank_ext.tables import columns_of, is_number_column, numbers_in, texts_in, unmasked

METRICS = ("latlon", "plane", "matrix")
MOST_PLACES = 5000  # distances are a table
EARTH_RADIUS = 6371.0088  # km, the mean one
# What columns may be called; capitals do not matter.
COORDINATES = {
    "latlon": (("lat", "latitude"), ("lon", "lng", "long", "longitude")),
    "plane": (("x", "easting"), ("y", "northing")),
}
NAMES = ("name", "stop", "place", "label", "title", "id")


@dataclass(frozen=True, eq=False)
class Places:
    """Places to visit. points: (N, 2) float64 as given, None for a table of distances. names: N texts.

    distances: (N, N) float64 from row to column, in km for "latlon", else in the unit of what was given.
    """

    metric: str
    points: np.ndarray | None
    names: tuple[str, ...]
    distances: np.ndarray

    @property
    def unit(self) -> str:
        """Of the distances, "" if it is not known."""
        return "km" if self.metric == "latlon" else ""

    def number_of(self, argument: str, place: object) -> int:
        """The row of a place given by its row or by its name; errors name the argument."""
        N = len(self.names)
        if isinstance(place, str):
            found = [row for row, name in enumerate(self.names) if name == place]
            if len(found) == 1:
                return found[0]
            by_letters = {name.lower(): name for name in self.names}
            near = difflib.get_close_matches(place.strip().lower(), by_letters, 1)
            hint = f"; did you mean {by_letters[near[0]]!r}?" if near else ""
            what = f"there {len(found)} times: give its row" if found else f"no place{hint}"
            raise ValueError(f"{argument} must name a place, {place!r} is {what}")
        if isinstance(place, bool) or not hasattr(place, "__index__"):
            raise TypeError(f"{argument} must name a place, or give its row, got {type(place).__name__}")
        row = int(place)
        if not 0 <= row < N:
            raise ValueError(f"{argument} must give a row from 0 to {N - 1}, got {row}")
        return row


def places_of(places: Any, metric: object) -> Places:
    """The places of an array, a list or a table; raises TypeError or ValueError in the user's words."""
    if metric is None:
        raise ValueError(
            'metric must be given: "latlon" (degrees, latitude first), "plane", or "matrix" (a table of distances)'
        )
    check_choice("metric", metric, METRICS)
    metric = str(metric)
    if _is_table(places):
        columns = columns_of(places)
        _check_count(len(next(iter(columns.values()))))
        numbers, names = _matrix_in(columns, places) if metric == "matrix" else _points_in(columns, metric)
    else:
        numbers = _numbers_of(places, metric)
        names = tuple(map(str, range(len(numbers))))
    if metric == "matrix":
        return Places(metric, None, names, _checked_distances(numbers))
    if metric == "latlon":
        _check_degrees(numbers, names)
        return Places(metric, numbers, names, great_circle_distances(numbers))
    if not (np.abs(numbers) < MOST_SIZE).all():
        row = int((~(np.abs(numbers) < MOST_SIZE)).any(1).argmax())
        raise ValueError(f"places must be below {MOST_SIZE:g} in size, got {numbers[row].tolist()} in row {row}")
    x, y = numbers.T
    return Places(metric, numbers, names, np.hypot(x[:, None] - x, y[:, None] - y))  # squares of tiny numbers are 0


def great_circle_distances(degrees: np.ndarray) -> np.ndarray:
    """Distances (N, N) in km of places (N, 2), latitude and longitude in degrees, on a sphere."""
    latitude, longitude = np.radians(degrees).T
    # The haversine formula is exact for near places, where the cosine rule rounds.
    sine_y = np.sin((latitude[:, None] - latitude) / 2)
    sine_x = np.sin((longitude[:, None] - longitude) / 2)
    share = sine_y**2 + np.cos(latitude)[:, None] * np.cos(latitude) * sine_x**2
    distances: np.ndarray = 2 * EARTH_RADIUS * np.arcsin(np.sqrt(share.clip(0, 1)))
    return distances


def on_a_map(degrees: np.ndarray) -> np.ndarray:
    """Places (N, 2) of latitude and longitude as (x, y) in km on a plane that touches the Earth amid them.

    Distances to the middle are true, others nearly so where places are near each other; the date line and the poles are
    no borders (azimuthal equidistant projection).
    """
    latitude, longitude = np.radians(degrees).T
    directions = np.stack(
        (np.cos(latitude) * np.cos(longitude), np.cos(latitude) * np.sin(longitude), np.sin(latitude)), 1
    )
    middle = directions.mean(0)
    size = np.linalg.norm(middle)
    middle = middle / size if size > 1e-9 else directions[0]
    east = np.array([-middle[1], middle[0], 0.0])
    east = east / np.linalg.norm(east) if np.linalg.norm(east) > 1e-12 else np.array([0.0, 1.0, 0.0])
    north = np.cross(middle, east)
    x, y = directions @ east, directions @ north
    off_axis = np.hypot(x, y)
    angle = np.arctan2(off_axis, directions @ middle)
    scale = EARTH_RADIUS * np.where(off_axis > 1e-15, angle / np.maximum(off_axis, 1e-15), 1.0)
    return np.stack((x * scale, y * scale), 1)


def in_unit_square(points: np.ndarray) -> np.ndarray:
    """Points (N, 2) moved and scaled into the unit square, with their proportions kept."""
    low = points.min(0)
    extent = float((points.max(0) - low).max())
    scaled: np.ndarray = (points - low) / (extent or 1.0)
    return scaled


def _is_table(places: Any) -> bool:
    is_frame = type(places).__module__.split(".")[0] in ("pandas", "polars")
    is_structured = isinstance(places, np.ndarray) and places.dtype.names is not None
    return is_frame or is_structured or isinstance(places, str | Path | Mapping)


def _points_in(columns: Mapping[str, np.ndarray], metric: str) -> tuple[np.ndarray, tuple[str, ...]]:
    by_name = {name.lower(): name for name in columns}
    numbers = []
    for known in COORDINATES[metric]:
        found = next((by_name[name] for name in known if name in by_name), None)
        if found is None:
            raise ValueError(
                f'places with metric="{metric}" must have a column {" or ".join(map(repr, known))}, '
                f"the table has {', '.join(map(repr, columns))}"
            )
        numbers.append(numbers_in(columns, found))
    return np.stack(numbers, 1), _names_in(columns, by_name)


def _names_in(columns: Mapping[str, np.ndarray], by_name: Mapping[str, str]) -> tuple[str, ...]:
    rows = len(next(iter(columns.values())))
    column = next((by_name[name] for name in NAMES if name in by_name), None)
    if column is None:
        return tuple(map(str, range(rows)))
    return tuple(str(row) if text is None else text for row, text in enumerate(texts_in(columns, column)))


def _matrix_in(columns: Mapping[str, np.ndarray], table: Any) -> tuple[np.ndarray, tuple[str, ...]]:
    """Distances of a table with a column per place; a first column of texts, or an index, has the names of the rows."""
    names = list(columns)
    rows = len(columns[names[0]])
    given = None
    if len(names) == rows + 1 and not is_number_column(columns[names[0]]):
        given = texts_in(columns, names[0]).tolist()
        names = names[1:]
    elif hasattr(table, "index") and list(table.index) != list(range(rows)):
        given = [str(name) for name in table.index]
    if given not in (None, names):
        raise ValueError(f"rows and columns of distances must have the same names in one order, got {given}")
    if len(names) != rows:
        raise ValueError(f"distances must have as many rows as columns, got {rows} rows and {len(names)} columns")
    return np.stack([numbers_in(columns, name) for name in names], 1), tuple(names)


def _numbers_of(places: Any, metric: str) -> np.ndarray:
    """Points (N, 2), or distances (N, N), of an array, a tensor or a list of rows."""
    wanted = "an (N, N) table of distances" if metric == "matrix" else "an (N, 2) array, a list of pairs, or a table"
    places = places.detach().cpu().numpy() if isinstance(places, Tensor) else unmasked(places)
    if not isinstance(places, np.ndarray):
        if not isinstance(places, Sequence):
            raise TypeError(f"places must be {wanted}, got {type(places).__name__}")
        places = _rows_of(places, metric, wanted)
    if places.dtype.kind not in "iuf":
        raise TypeError(f"places must be {wanted} of numbers, got {places.dtype}")
    N = len(places) if places.ndim else 0
    if places.ndim != 2 or places.shape[1] != (N if metric == "matrix" else 2):
        hint = "; a square one is a table of distances: metric='matrix'" if places.shape == (N, N) else ""
        raise ValueError(f"places must be {wanted}, got an array of shape {places.shape}{hint}")
    _check_count(N)
    numbers: np.ndarray = places.astype(np.float64)
    if not np.isfinite(numbers).all():
        row, column = map(int, np.argwhere(~np.isfinite(numbers))[0])
        if metric == "matrix":
            raise ValueError(f"distances must be finite, got {numbers[row, column]} from row {row} to {column}")
        raise ValueError(f"places must be finite numbers, got {numbers[row].tolist()} in row {row}; rows count from 0")
    return numbers


def _rows_of(places: Sequence[Any], metric: str, wanted: str) -> np.ndarray:
    """A list of rows as an array; errors name the row."""
    _check_count(len(places))
    width = len(places) if metric == "matrix" else 2
    for row, numbers in enumerate(places):
        if isinstance(numbers, str) or not hasattr(numbers, "__len__") or len(numbers) != width:
            raise ValueError(f"places must be {wanted}, got {numbers!r} in row {row}; rows count from 0")
        for number in numbers:
            if isinstance(number, str | bool) or not hasattr(number, "__float__"):
                raise ValueError(f"places must be numbers, got {number!r} in row {row}; rows count from 0")
    return np.array([[float(number) for number in numbers] for numbers in places]).reshape(len(places), width)


def _check_count(count: int) -> None:
    if not 1 <= count <= MOST_PLACES:
        hint = "; cut them into regions first" if count else ": there is nothing to visit"
        raise ValueError(f"places must be 1 to {MOST_PLACES}, got {count}{hint}")


def _check_degrees(degrees: np.ndarray, names: Sequence[str]) -> None:
    for column, (what, most) in enumerate((("latitude", 90), ("longitude", 180))):
        is_wrong = np.abs(degrees[:, column]) > most
        if is_wrong.any():
            row = int(is_wrong.argmax())
            hint = "; latitude comes first" if column == 0 and abs(degrees[row, 1]) <= 90 else ""
            raise ValueError(
                f"{what} must be from -{most} to {most} degrees, got {degrees[row, column]:g} in row {row}"
                f"{'' if names[row] == str(row) else f' ({names[row]})'}{hint}"
            )


def _checked_distances(distances: np.ndarray) -> np.ndarray:
    is_wrong = ~((distances >= 0) & (distances < MOST_SIZE))
    np.fill_diagonal(is_wrong, False)
    if is_wrong.any():
        row, column = map(int, np.argwhere(is_wrong)[0])
        raise ValueError(
            f"distances must be at least 0 and finite, got {distances[row, column]:g} from row {row} to {column}"
        )
    checked: np.ndarray = distances.copy()
    np.fill_diagonal(checked, 0)
    return checked
