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
    from matplotlib.legend import Legend

MOST_NAMED = 400  # places whose names are tried on a map: each is compared with all others
MOST_ARROWS = 200
_BESIDE = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))  # where a name may stand: right, up


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
    axes.set_aspect("equal", "datalim")
    axes.set(xticks=[], yticks=[])
    axes.margins(0.08)
    _draw_scale(axes, points, tour.unit)
    unit = f" {tour.unit}" if tour.unit else ""
    axes.set_title(f"{len(way)} places, {tour.length:.4g}{unit}", fontsize="medium")
    _name_places(axes, way, tour.stops, axes.legend(loc="best", fontsize="small"))
    return figure_of(axes)


def _name_places(axes: "Axes", way: np.ndarray, names: list[str], legend: "Legend") -> None:
    """Names beside their places where they cover neither another name nor a place; the others are left out."""
    figure_of(axes).draw_without_rendering()  # from here on it is known where on the picture a place is
    frame = axes.get_window_extent().extents
    spots = axes.transData.transform(way)
    half = 3 * figure_of(axes).dpi / 72  # of a mark
    # Left, bottom, right, top: of the marks and the legend at first, then of the names too.
    covered = [*np.column_stack((spots - half, spots + half)), legend.get_window_extent().extents]
    for place, name in enumerate(names[:MOST_NAMED]):
        for x, y in _BESIDE:
            text = axes.annotate(
                name, way[place], xytext=(5 * x, 5 * y), textcoords="offset points", fontsize="x-small",
                ha=("right", "center", "left")[x + 1], va=("top", "center", "bottom")[y + 1],
            )  # fmt: skip
            left, bottom, right, top = box = text.get_window_extent().extents
            others = np.array([other for number, other in enumerate(covered) if number != place])
            apart = (right < others[:, 0]) | (others[:, 2] < left) | (top < others[:, 1]) | (others[:, 3] < bottom)
            is_inside = left > frame[0] and bottom > frame[1] and right < frame[2] and top < frame[3]
            if apart.all() and is_inside:
                covered.append(box)
                break
            text.remove()


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
    return filled_page("tour.html", data)
