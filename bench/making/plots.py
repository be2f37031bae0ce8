"""Figures that only README and docs show: accuracy over N, errors of jigsaws, accuracy and speed, deliveries."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from softrank_ext.metrics import tour_length
from softrank_ext.show.style import OURS, WRONG, place_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEAST_PERCENT_SPAN = 10  # of the accuracy axis


def plot_accuracy_over_size(
    series: Mapping[str, Sequence[tuple[int, float]]], ours: str, title: str = "", least: float = 1e-3
) -> "Figure":
    """Share of lists that are wholly right over the number of items, on a logit scale.

    series: by name, pairs of N and accuracy. ours: the name to be drawn in colour. Accuracies beyond `least` and
    `1 - least` are drawn there, as open marks.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullFormatter, NullLocator

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    sizes = sorted({size for points in series.values() for size, _ in points})
    for number, (name, points) in enumerate(series.items()):
        colour, marker = (OURS, "o") if name == ours else ("0.45", "sD^v"[number % 4])
        shown = [min(max(share, least), 1 - least) for _, share in points]
        axes.plot(
            [size for size, _ in points], shown, color=colour, marker=marker, label=name,
            linestyle="-" if name == ours else "--", linewidth=2 if name == ours else 1.2,
        )  # fmt: skip
        for (size, share), height in zip(points, shown, strict=True):
            if share != height:
                axes.plot(size, height, marker, color=colour, markerfacecolor="white")
    ticks = [0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999]
    axes.set_yscale("logit")
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FixedFormatter([f"{100 * tick:g} %" for tick in ticks]))
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FixedFormatter([str(size) for size in sizes]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="items N (logarithmic)", ylabel="lists wholly right (logit scale)", title=title)
    axes.set_ylim(least / 1.5, 1 - least / 1.5)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(loc="lower left", frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_jigsaw_errors(
    place_accuracy: Mapping[str, Tensor], displacement: Mapping[str, Tensor], title: str = ""
) -> "Figure":
    """Where jigsaws go wrong, a column per model: the share of images right at each place; how far patches lie off.

    place_accuracy: (rows, columns) float, `metrics.place_accuracy`. displacement: (rows + columns - 1,) counts,
    `metrics.displacement_histogram`, beside that of uniformly random arrangements.
    """
    from matplotlib.figure import Figure

    names = list(place_accuracy)
    figure = Figure(figsize=(1 + 3.6 * len(names), 6), layout="constrained")
    grid = figure.subplots(2, len(names), squeeze=False, height_ratios=(1.2, 1))
    lowest = min(float(shares.min()) for shares in place_accuracy.values())
    for column, name in enumerate(names):
        heat, bars = grid[:, column]
        shares = place_accuracy[name]
        image = heat.imshow(shares.numpy(), cmap="viridis", vmin=max(0.0, lowest - 0.02), vmax=1)
        for (row, place), share in np.ndenumerate(shares.numpy()):
            is_dark = share < (1 + max(0.0, lowest - 0.02)) / 2
            text = f"{100 * share:.0f}"
            heat.text(place, row, text, ha="center", va="center", color="white" if is_dark else "black")
        heat.set(xticks=[], yticks=[], title=f"{name}: right at each place, %")
        heat.spines[:].set_visible(False)
        counts = displacement[name].double()
        distances = torch.arange(len(counts))
        share_off = 100 * counts / counts.sum()
        bars.bar(distances.tolist(), share_off.tolist(), color=OURS, width=0.7)
        rows, columns = shares.shape
        bars.plot(
            distances.tolist(), (100 * random_displacement(rows, columns)).tolist(), "o--", color="0.35", markersize=4,
            label="random arrangement",
        )  # fmt: skip
        mean = float((counts * distances).sum() / counts.sum())
        bars.set(xlabel="Manhattan displacement, cells", ylabel="patches, %", xticks=distances.tolist())
        bars.set_title(f"mean {mean:.2f} (random: {2 * (rows**2 - 1) / (3 * rows):.2f})", fontsize="medium")
        bars.legend(frameon=False, fontsize="small")
        bars.spines[["top", "right"]].set_visible(False)
        figure.colorbar(image, ax=heat, shrink=0.8, label="share" if column == len(names) - 1 else None)
    figure.suptitle(title)
    return figure


def random_displacement(rows: int, columns: int) -> Tensor:
    """Distribution of the Manhattan distance of two independent uniform cells: (rows + columns - 1,) float64."""
    down = (torch.arange(rows)[:, None] - torch.arange(rows)).abs()
    across = (torch.arange(columns)[:, None] - torch.arange(columns)).abs()
    distances = (down[:, :, None, None] + across).flatten()
    return distances.bincount(minlength=rows + columns - 1).double() / len(distances)


def plot_accuracy_and_speed(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float, str]]]],
    baselines: Mapping[str, float] | None = None,
    title: str = "",
) -> "Figure":
    """Accuracy over speed, a panel per model and a line per way of running it.

    panels: by panel and line, points (samples per second, share right, text beside the point). baselines: by panel, the
    samples per second of a network to compare with, drawn as a dotted line.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    figure = Figure(figsize=(max(6.5, 1 + 4.2 * len(panels)), 4.2), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    styles = (("o", "-", OURS), ("s", "--", "#e69f00"), ("^", ":", WRONG))
    for axes, (name, lines) in zip(grid, panels.items(), strict=True):
        for (line, points), (marker, style, colour) in zip(lines.items(), styles, strict=False):
            speeds, shares = [point[0] for point in points], [100 * point[1] for point in points]
            axes.plot(speeds, shares, marker=marker, linestyle=style, color=colour, label=line)
            for speed, share, text in points:
                axes.annotate(text, (speed, 100 * share), (4, 5), textcoords="offset points", fontsize="x-small")
        if baselines and name in baselines:
            axes.axvline(baselines[name], color="0.5", linestyle=":", label="a one-pass network's speed")
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(xlabel="samples per second (logarithmic)", ylabel="wholly right, %", title=name)
        axes.margins(0.12)
        low, high = axes.get_ylim()
        if high - low < _LEAST_PERCENT_SPAN:  # differences that small are chance, and should look it
            middle = (low + high) / 2
            axes.set_ylim(middle - _LEAST_PERCENT_SPAN / 2, middle + _LEAST_PERCENT_SPAN / 2)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    handles = {label: handle for axes in grid for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=len(handles), frameon=False,
        fontsize="small",
    )  # fmt: skip
    figure.suptitle(title)
    return figure


def plot_deliveries(
    points: Tensor, tours: Mapping[str, Tensor], deliveries: Sequence[tuple[int, int]], title: str = ""
) -> "Figure":
    """Tours by name, a panel each, with what is fetched where and brought where.

    points: (N, 2). tours: orders (N,) int64, the depot first. deliveries: pairs (pickup, delivery) of items; a pair has
    one colour, and its arrow is dashed and red where a tour comes to the delivery first.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(tours), 5.0), layout="constrained")
    panels = figure.subplots(1, len(tours), squeeze=False)[0]
    points = points.double()
    for axes, (name, order) in zip(panels, tours.items(), strict=True):
        _draw_arrows(axes, points, order)
        late = _draw_deliveries(axes, points, order, deliveries)
        length = float(tour_length(points[None], order[None]))
        said = f"{late} of {len(deliveries)} deliveries before their pickup" if late else "every pickup first"
        axes.set_title(f"{name}\nlength {length:.2f}, {said}", fontsize="medium")
        axes.set(xticks=[], yticks=[], aspect="equal")
        axes.margins(0.07)
        axes.spines[:].set_color("0.8")
    figure.suptitle(title)
    figure.supxlabel(
        "square: start; filled: pickup, hollow: delivery of the same letter; the tour fades from dark to light",
        fontsize="small", color="0.35",
    )  # fmt: skip
    return figure


def _draw_arrows(axes: "Axes", points: Tensor, order: Tensor) -> None:
    """A closed tour as arrows that fade from its start to its end; the start is a square."""
    closed = [*order.tolist(), int(order[0])]
    for at, (here, there) in enumerate(pairwise(closed)):
        shade = str(0.15 + 0.6 * at / len(order))
        axes.annotate(
            "", _place_of(points, there), _place_of(points, here),
            arrowprops={"arrowstyle": "-|>", "color": shade, "linewidth": 1.4, "shrinkA": 5, "shrinkB": 5},
        )  # fmt: skip
    axes.plot(*points[order[:1]].T.tolist(), "s", color="0.1", markersize=9, zorder=4)


def _draw_deliveries(axes: "Axes", points: Tensor, order: Tensor, deliveries: Sequence[tuple[int, int]]) -> int:
    """Pickups, deliveries and the other nodes; returns how many deliveries come before their pickup."""
    place = {item: at for at, item in enumerate(order.tolist())}
    late = 0
    for number, (pickup, delivery) in enumerate(deliveries):
        colour = place_colour(number, len(deliveries))
        if place[pickup] > place[delivery]:
            late += 1
            axes.plot(*points[[pickup, delivery]].T.tolist(), color=WRONG, linewidth=1.2, linestyle=(0, (3, 3)))
        axes.plot(*points[[pickup]].T.tolist(), "^", color=colour, markersize=10, zorder=3)
        axes.plot(
            *points[[delivery]].T.tolist(), "v", markerfacecolor="white", markeredgecolor=colour, markersize=9,
            markeredgewidth=2.2, zorder=3,
        )  # fmt: skip
        for item in (pickup, delivery):
            axes.annotate(
                chr(ord("A") + number), _place_of(points, item), (7, 5), textcoords="offset points", weight="bold",
                color=colour,
            )  # fmt: skip
    others = [item for item in place if item not in {end for pair in deliveries for end in pair}]
    axes.plot(*points[others].T.tolist(), "o", color="0.3", markersize=3.5, zorder=2)
    return late


def _place_of(points: Tensor, item: int) -> tuple[float, float]:
    x, y = points[item].tolist()
    return x, y
