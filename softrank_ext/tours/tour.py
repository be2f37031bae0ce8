"""What `plan_tour` returns: the order, its length, leg by leg, and ways to show and to write it."""

import html
import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from softrank_ext.tables import frame_of, write_csv
from softrank_ext.tours.places import Places

_COLUMNS = {"latlon": ("lat", "lon"), "plane": ("x", "y")}


@dataclass(frozen=True, eq=False, repr=False)
class Tour:
    """A tour through places.

    order: (N,) int64, `order[place] = row` of the places as given. legs: (N,) float64 for a closed tour, the last one
    back to the start, (N - 1,) for an open one; length: their sum, in `unit` ("km" for degrees). answered_by: which
    model gave tours to start from, for what it was trained, or why none did. others: further good tours, by length.
    bound: no tour is shorter than that, rules or not, and None where no bound is known. rounds: of the search.
    is_interrupted: Ctrl-C ended it.
    """

    order: np.ndarray
    places: Places
    closed: bool
    answered_by: str
    bound: float | None = None
    rounds: int = 0
    is_interrupted: bool = False
    others: tuple["Tour", ...] = ()

    @property
    def legs(self) -> np.ndarray:
        """Lengths of the legs, in order."""
        after = np.roll(self.order, -1)
        every: np.ndarray = self.places.distances[self.order, after]
        return every if self.closed else every[:-1]

    @property
    def length(self) -> float:
        """Of the whole tour."""
        return float(self.legs.sum())

    @property
    def unit(self) -> str:
        """Of lengths; "" if it is that of what was given."""
        return self.places.unit

    @property
    def stops(self) -> list[str]:
        """Names of the places, in order."""
        return [self.places.names[row] for row in self.order.tolist()]

    @property
    def certainty(self) -> str:
        """What is known about how good the tour is, as a sentence."""
        if self.bound is None:
            return "No bound is known: nothing is proved about shorter tours."
        if self.length <= self.bound * (1 + 1e-9) or self.length == 0:
            return "No tour is shorter."
        return f"No tour can be shorter by more than {100 * (1 - self.bound / self.length):.1f} %."

    def columns(self) -> dict[str, Any]:
        """A row per stop in order: place, name, row, coordinates, the leg to the next stop, and the way so far."""
        legs = self.legs
        so_far = np.concatenate(([0.0], legs.cumsum()))[: len(self.order)]
        leg = legs if self.closed else np.concatenate((legs, [np.nan]))
        found: dict[str, Any] = {"place": np.arange(len(self.order)), "name": self.stops, "row": self.order}
        if self.places.points is not None:
            for column, name in enumerate(_COLUMNS[self.places.metric]):
                found[name] = self.places.points[self.order, column]
        return found | {"leg": leg, "so_far": so_far}

    def to_frame(self) -> Any:
        """`columns` as a pandas DataFrame, or a polars one where pandas is not installed."""
        return frame_of(self.columns())

    def to_csv(self, output: str | Path | TextIO) -> None:
        """Write `columns` to a file or an open text stream."""
        write_csv(self.columns(), output)

    def to_geojson(self, output: str | Path | None = None) -> dict[str, Any]:
        """The way as a line and the stops as points (RFC 7946); also written to the file `output`, if given.

        For degrees only. A way across the date line is cut there, as the format asks for.
        """
        if self.places.metric != "latlon" or self.places.points is None:
            raise ValueError(f'GeoJSON has degrees: it needs metric="latlon", got {self.places.metric!r}')
        way = self.order.tolist() + ([int(self.order[0])] if self.closed else [])
        lines = _cut_at_date_line([(float(lon), float(lat)) for lat, lon in self.places.points[way]])
        geometry: dict[str, Any] = {"type": "LineString", "coordinates": lines[0]}
        if len(lines) > 1:
            geometry = {"type": "MultiLineString", "coordinates": lines}
        features: list[dict[str, Any]] = [
            {"type": "Feature", "geometry": geometry, "properties": {"length_km": self.length, "closed": self.closed}}
        ]
        for place, row in enumerate(self.order.tolist()):
            latitude, longitude = self.places.points[row].tolist()
            features.append(
                {
                    "type": "Feature",
                    "geometry": {"type": "Point", "coordinates": [longitude, latitude]},
                    "properties": {"place": place, "name": self.places.names[row], "row": row},
                }
            )
        made = {"type": "FeatureCollection", "features": features}
        if output is not None:
            Path(output).write_text(json.dumps(made, allow_nan=False) + "\n", encoding="utf-8")
        return made

    def plot(self, axes: Any = None) -> Any:
        """A map of the tour, north up, on these axes of matplotlib or on a new figure; returns the figure."""
        from softrank_ext.show.tours import plot_tour

        return plot_tour(self, axes)

    def save_html(self, path: str | Path, title: str = "Tour") -> None:
        """Write a page with the map and the list of stops: one file, without network."""
        from softrank_ext.show.tours import tour_page

        Path(path).write_text(tour_page(self, title), encoding="utf-8")

    def __repr__(self) -> str:
        kind = "closed" if self.closed else "open"
        unit = f" {self.unit}" if self.unit else ""
        more = f", {len(self.others)} more" if self.others else ""
        return (
            f"Tour({kind}, {len(self.order)} place{'s' * (len(self.order) != 1)}, length {self.length:.6g}{unit}{more})"
        )

    def _repr_html_(self) -> str:
        found = self.columns()
        shown = min(len(self.order), 30)
        head = "".join(f"<th>{name}</th>" for name in found)
        cells = [[_cell(values[row]) for values in found.values()] for row in range(shown)]
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in cells)
        rest = "" if shown == len(self.order) else f"<p>and {len(self.order) - shown} more places</p>"
        return (
            f"<p>{html.escape(repr(self))}. {html.escape(self.certainty)} {html.escape(self.answered_by)}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"
        )


def _cell(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return "" if np.isnan(value) else f"{value:.6g}"
    return str(value)


def _cut_at_date_line(way: list[tuple[float, float]]) -> list[list[tuple[float, float]]]:
    """Lines of (longitude, latitude) that never jump from one side of the map to the other."""
    lines = [[way[0]]]
    for (x0, y0), (x1, y1) in pairwise(way):
        if abs(x1 - x0) > 180:
            side = 180.0 if x0 > 0 else -180.0
            ahead = x1 + 2 * side  # where it would be without the jump
            share = (side - x0) / (ahead - x0) if ahead != x0 else 0.0
            latitude = y0 + share * (y1 - y0)
            lines[-1].append((side, latitude))
            lines.append([(-side, latitude)])
        lines[-1].append((x1, y1))
    return lines if len(lines[0]) > 1 or len(lines) > 1 else [[way[0], way[0]]]
