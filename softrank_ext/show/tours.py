"""A planned tour as a picture and as a page: `tour.html` with the tours written into it as JSON, one file."""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from softrank_ext.show.style import OURS, WRONG, axes_or_new, figure_of
from softrank_ext.show.templates import filled_page
from softrank_ext.tours import Tour
from softrank_ext.tours.places import on_a_map

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LABELS = 40  # names on a map; more would cover each other
MOST_ARROWS = 200


def plot_tour(tour: Tour, axes: "Axes | None" = None) -> "Figure":
    """A map of the tour, north up, with arrows, the start marked and a bar for scale."""
    axes = axes_or_new(axes)
    points = map_points(tour)
    way = points[tour.order]
    line = np.concatenate((way, way[:1])) if tour.closed else way
    axes.plot(line[:, 0], line[:, 1], color=OURS, linewidth=1.5, zorder=1)
    for begin, stop in pairwise(line) if len(line) <= MOST_ARROWS else ():
        middle = (begin + stop) / 2
        arrow = {"arrowstyle": "-|>", "color": OURS, "linewidth": 0}
        axes.annotate("", middle + (stop - begin) / 50, middle - (stop - begin) / 50, arrowprops=arrow)
    axes.scatter(way[:, 0], way[:, 1], s=22, color=OURS, zorder=3)
    axes.scatter(way[:1, 0], way[:1, 1], s=90, marker="s", color=WRONG, zorder=4, label=f"start: {tour.stops[0]}")
    if len(way) <= MOST_LABELS:
        for point, name in zip(way, tour.stops, strict=True):
            axes.annotate(name, point, xytext=(4, 4), textcoords="offset points", fontsize="x-small")
    axes.set_aspect("equal", "datalim")
    axes.set(xticks=[], yticks=[])
    axes.margins(0.08)
    _draw_scale(axes, points, tour.unit)
    unit = f" {tour.unit}" if tour.unit else ""
    axes.set_title(f"{len(way)} places, {tour.length:.4g}{unit}", fontsize="medium")
    axes.legend(loc="best", fontsize="small")
    return figure_of(axes)


def _draw_scale(axes: "Axes", points: np.ndarray, unit: str) -> None:
    """A bar of a round length under the map."""
    extent = float(np.ptp(points, 0).max())
    if not extent > 0:
        return
    raw = extent / 4
    size = 10 ** np.floor(np.log10(raw))
    length = size * max(step for step in (1, 2, 5) if step * size <= raw)
    x, y = points[:, 0].min(), points[:, 1].min() - 0.07 * extent
    axes.plot((x, x + length), (y, y), color="0.3", linewidth=3, solid_capstyle="butt")
    axes.annotate(
        f"{length:g} {unit}".strip(), (x + length, y), xytext=(4, -3), textcoords="offset points", fontsize="x-small"
    )


def map_points(tour: Tour) -> np.ndarray:
    """Where the places stand on a map, (N, 2): x to the east, y to the north, in the unit of distances.

    Places of which only distances are known are laid out so that distances on the map are near them (classical
    scaling).
    """
    points = tour.places.points
    if points is not None:
        return on_a_map(points) if tour.places.metric == "latlon" else points
    squares = ((tour.places.distances + tour.places.distances.T) / 2) ** 2
    centred = -0.5 * (squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean())
    values, vectors = np.linalg.eigh(centred)
    flat = np.zeros((len(squares), 2))
    used = min(2, len(values))
    flat[:, :used] = (vectors * np.sqrt(values.clip(0)))[:, ::-1][:, :used]
    return flat


def tour_page(tour: Tour, title: str = "Tour") -> str:
    """One self-contained HTML page: the map, the stops, and the other tours that were found."""
    points = map_points(tour)
    data = {
        "title": title,
        "points": [[round(value, 6) for value in point] for point in points.tolist()],
        "names": tour.places.names,
        "unit": tour.unit,
        "closed": tour.closed,
        "tours": [{"order": one.order.tolist(), "legs": one.legs.tolist()} for one in (tour, *tour.others)],
        "told": f"{tour.certainty} {tour.answered_by}",
        "isLaidOut": tour.places.points is None,
    }
    # "<" cannot end the script element that holds the data, nor begin a comment in it.
    return filled_page("tour.html", data)
