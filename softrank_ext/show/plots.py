"""Pictures. Needs matplotlib: `pip install "softrank_ext[plots]"`.

Functions take arrays that are ready to draw and return a figure; `save_figure` writes it to a file.
Colours are safe for colour-blind readers (viridis: dark is the first place of the clean order, light the last).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from softrank_ext.metrics import tour_length
from softrank_ext.sampling.trajectory import Frames

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DARK_TO_LIGHT = (0.0, 0.88)  # The last part of viridis is too light on white.
_OURS, _WRONG = "#0072b2", "#d55e00"  # Okabe and Ito's blue and vermilion
_LEAST_PERCENT_SPAN = 10  # of the accuracy axis


def plot_walk(times: Sequence[float], soft_ranks: Tensor, ranks: Tensor, title: str = "") -> "Figure":
    """Soft ranks along one bridge, and how far their order is from the clean one.

    times: T ascending numbers, 0 = clean. soft_ranks: (T, N) float in [0, 1]. ranks: (T, N) int64, those of soft_ranks.
    Every item is a line; where two lines cross, the order changes.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(8, 5), layout="constrained")
    walk, distance = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    size = ranks.shape[1]
    colours = [_place_colour(int(place), size) for place in ranks[0]]
    for item, colour in enumerate(colours):
        walk.plot(times, soft_ranks[:, item].tolist(), color=colour, linewidth=1.4)
    for end, side, offset in ((0, "right", -8), (-1, "left", 8)):
        heights = soft_ranks[end].tolist()
        walk.scatter([times[end]] * size, heights, s=22, color=colours, clip_on=False, zorder=3)
        for item, height in enumerate(_spread(heights, gap=min(0.035, 1 / size))):
            walk.annotate(
                str(item), (times[end], height), (offset, 0), textcoords="offset points", ha=side, va="center",
                color=colours[item], weight="bold", fontsize="small",
            )  # fmt: skip
    walk.set(ylabel="soft rank of each item", xlim=(times[0], times[-1]), ylim=(-0.03, 1.03), title=title)
    walk.set_yticks([0, 0.5, 1])
    walk.tick_params(axis="y", pad=18)  # Leaves room for the item numbers.
    walk.grid(axis="y", alpha=0.3)

    swapped = swapped_pairs(ranks)
    most = size * (size - 1) // 2
    distance.fill_between(times, swapped.tolist(), step="post", color="0.75")
    distance.plot(times, swapped.tolist(), drawstyle="steps-post", color="0.25", linewidth=1)
    distance.axhline(most / 2, color=_WRONG, linestyle="--", linewidth=1, label="mean of a random order")
    distance.set(xlabel="time t: 0 is the clean order, 1 is noise", ylabel="pairs swapped", ylim=(0, max(most, 1)))
    distance.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    distance.legend(loc="upper left", frameon=False, fontsize="small")
    for axes in (walk, distance):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def plot_sorting(
    frames: Frames, images: Tensor, labels: Sequence[object], true_order: Tensor, title: str = ""
) -> "Figure":
    """A list of images before and after, and between them the way of each item's soft rank from noise to its place.

    images: (N, 1, height, width) uint8. labels: N texts. true_order: (N,) int64. Left, the items in the order of their
    first soft ranks; right, sorted, with what is out of place marked (items with equal labels are interchangeable).
    """
    from matplotlib.figure import Figure

    N = len(labels)
    figure = Figure(figsize=(8, max(2.5, 0.9 + 0.3 * N)), layout="constrained")
    before, paths, after = figure.subplots(1, 3, width_ratios=(1, 1.6, 1), sharey=True)
    places = [place / max(N - 1, 1) for place in range(N)]
    colours = {item: _place_colour(place, N) for place, item in enumerate(frames.order[-1].tolist())}
    width = 0.12 * images.shape[3] / images.shape[2]  # keeps the images' shape: rows are 0.3 inches high
    for axes, order, side in ((before, frames.order[0].tolist(), "right"), (after, frames.order[-1].tolist(), "left")):
        low, high = (1 - width, 1) if side == "right" else (0, width)
        for place, item in enumerate(order):
            height = places[place]
            axes.imshow(
                images[item, 0].numpy(), cmap="gray", aspect="auto", vmin=0, vmax=255,
                extent=(low, high, height + 0.44 / N, height - 0.44 / N),
            )  # fmt: skip
            is_wrong = side == "left" and str(labels[item]) != str(labels[int(true_order[place])])
            text = f"{labels[item]}{'  wrong' if is_wrong else ''}"
            outside = (low - 0.03, "right") if side == "right" else (high + 0.03, "left")
            axes.text(
                outside[0], height, text, ha=outside[1], va="center", fontsize="small",
                color=_WRONG if is_wrong else "0.25", weight="bold" if is_wrong else "normal",
            )  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(1 + 0.6 / N, -0.6 / N))
        axes.axis("off")
    _draw_soft_ranks(paths, frames, colours)
    for place, item in enumerate(frames.order[0].tolist()):  # from the image to where its item starts
        ends = (places[place], float(frames.soft_ranks[0, item]))
        paths.plot((1.1, 1), ends, color=colours[item], linewidth=0.7, alpha=0.6, clip_on=False)
    paths.set(xlim=(1.1, 0), xticks=frames.times)
    paths.spines[["left"]].set_visible(False)
    paths.tick_params(axis="y", left=False, labelleft=False)
    before.set_title("in random order", fontsize="medium", loc="right")
    after.set_title("sorted", fontsize="medium", loc="left")
    figure.suptitle(title)
    return figure


def plot_there_and_back(
    times: Sequence[float], soft_ranks: Tensor, frames: Frames, labels: Sequence[object], title: str = ""
) -> "Figure":
    """Soft ranks of one instance: left, the forward process from the right order to noise; right, a sample's way back.

    times: T ascending numbers, 0 = the right order. soft_ranks: (T, N), of the forward process. frames: the sample's,
    from the same noise. labels: N texts. Where lines cross, the order changes.
    """
    from matplotlib.figure import Figure

    N = len(labels)
    figure = Figure(figsize=(10, max(3.5, 0.9 + 0.22 * N)), layout="constrained")
    forward, reverse = figure.subplots(1, 2, sharey=True)
    places = soft_ranks[0].argsort().tolist()
    colours = {item: _place_colour(place, N) for place, item in enumerate(places)}
    for item, colour in colours.items():
        forward.plot(times, soft_ranks[:, item].tolist(), color=colour, linewidth=1.2)
    _draw_soft_ranks(reverse, frames, colours)
    for axes, ranks, at, side in ((forward, soft_ranks[0], 0, "right"), (reverse, frames.soft_ranks[-1], 0, "left")):
        for item, colour in colours.items():
            offset = (-6 if side == "right" else 8, 0)
            axes.annotate(
                str(labels[item]), (at, float(ranks[item])), offset, textcoords="offset points", ha=side, va="center",
                color=colour, fontsize="small", annotation_clip=False,
            )  # fmt: skip
        axes.spines[:].set_visible(False)
        axes.tick_params(axis="y", left=False, labelleft=False)
    forward.set(xlim=(0, 1), xlabel="time t: 0 is the right order, 1 is noise", title="forward: noise moves soft ranks")
    reverse.set(title="reverse: the model sorts them")
    figure.suptitle(title)
    return figure


def _draw_soft_ranks(axes: "Axes", frames: Frames, colours: dict[int, tuple[float, float, float, float]]) -> None:
    """A line per item, time from 1 at the left to 0 at the right, rank 0 at the top as in a list."""
    for item, colour in colours.items():
        heights = frames.soft_ranks[:, item].tolist()
        axes.plot(frames.times, heights, color=colour, linewidth=1.4, marker=".", markersize=6, clip_on=False)
    axes.set(xlim=(1, 0), xlabel="time t: 1 is noise, 0 is the order")
    if not axes.yaxis_inverted():
        axes.set_ylim(1.03, -0.03)
    axes.set_yticks([0, 0.5, 1])
    axes.spines[["top", "right"]].set_visible(False)


def plot_tour(frames: Frames, points: Tensor, true_order: Tensor, title: str = "") -> "Figure":
    """A tour through the diffusion steps: above, in the order of the soft ranks; below, as the model predicts it.

    points: (N, 2). true_order: (N,) int64, the best tour, dashed. Panels say how much longer than that one theirs are.
    """
    points = points.double()
    best = tour_length(points[None], true_order[None])

    def draw(axes: "Axes", order: Tensor) -> str:
        closed = [*order.tolist(), int(order[0])]
        right = [*true_order.tolist(), int(true_order[0])]
        axes.plot(*points[right].T.tolist(), color="0.55", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.plot(*points[closed].T.tolist(), color=_OURS, linewidth=1.5, zorder=2)
        axes.plot(*points.T.tolist(), "o", color="0.15", markersize=2.5, zorder=3)
        axes.plot(*points[order[:1]].T.tolist(), "s", color=_WRONG, markersize=5, zorder=4)
        axes.set_aspect("equal")
        axes.margins(0.06)
        return f"{100 * float(tour_length(points[None], order[None]) / best - 1):+.1f} %"

    return _plot_steps(frames, draw, title, "length above the best (dashed)")


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
    places = points.double()
    for axes, (name, order) in zip(panels, tours.items(), strict=True):
        place = {item: at for at, item in enumerate(order.tolist())}
        closed = [*order.tolist(), int(order[0])]
        for at, (here, there) in enumerate(pairwise(closed)):
            shade = str(0.15 + 0.6 * at / len(order))  # dark where the tour begins
            axes.annotate(
                "", places[there].tolist(), places[here].tolist(),
                arrowprops={"arrowstyle": "-|>", "color": shade, "linewidth": 1.4, "shrinkA": 5, "shrinkB": 5},
            )  # fmt: skip
        broken = 0
        for number, (pickup, delivery) in enumerate(deliveries):
            colour = _place_colour(number, len(deliveries))
            if place[pickup] > place[delivery]:
                broken += 1
                axes.plot(*places[[pickup, delivery]].T.tolist(), color=_WRONG, linewidth=1.2, linestyle=(0, (3, 3)))
            axes.plot(*places[[pickup]].T.tolist(), "^", color=colour, markersize=10, zorder=3)
            axes.plot(
                *places[[delivery]].T.tolist(), "v", markerfacecolor="white", markeredgecolor=colour, markersize=9,
                markeredgewidth=2.2, zorder=3,
            )  # fmt: skip
            for item in (pickup, delivery):
                axes.annotate(
                    chr(ord("A") + number), places[item].tolist(), (7, 5), textcoords="offset points", weight="bold",
                    color=colour,
                )  # fmt: skip
        others = [item for item in place if item not in {end for pair in deliveries for end in pair}]
        axes.plot(*places[others].T.tolist(), "o", color="0.3", markersize=3.5, zorder=2)
        axes.plot(*places[order[:1]].T.tolist(), "s", color="0.1", markersize=9, zorder=4)
        length = float(tour_length(places[None], order[None]))
        said = f"{broken} of {len(deliveries)} deliveries before their pickup" if broken else "every pickup first"
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


def plot_jigsaw(frames: Frames, patches: Tensor, true_order: Tensor, title: str = "") -> "Figure":
    """A jigsaw being solved: above, in the order of the soft ranks; below, as the model predicts it.

    patches: (N, 3, height, width) uint8 with N a square. true_order: (N,) int64. Panels say how many places are right.
    """
    side = math.isqrt(len(patches))

    def draw(axes: "Axes", order: Tensor) -> str:
        rows = patches[order].unflatten(0, (side, side)).permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # (H, W, 3)
        axes.imshow(rows.numpy(), interpolation="nearest")
        height, width = patches.shape[2:]
        for cut in range(1, side):
            axes.axhline(cut * height - 0.5, color="white", linewidth=0.8)
            axes.axvline(cut * width - 0.5, color="white", linewidth=0.8)
        return f"{int((order == true_order).sum())} of {len(patches)}"

    return _plot_steps(frames, draw, title, "places right")


def _plot_steps(frames: Frames, draw: Callable[["Axes", Tensor], str], title: str, score: str) -> "Figure":
    """Two rows of panels, one column per time: `draw(axes, order)` fills a panel and says its score."""
    from matplotlib.figure import Figure

    columns = len(frames.times)
    figure = Figure(figsize=(1.55 * columns + 0.5, 4.1), layout="constrained")
    grid = figure.subplots(2, columns, squeeze=False)
    for row, (orders, name) in enumerate(((frames.order, "of the soft ranks"), (frames.predicted_order, "predicted"))):
        for column, t in enumerate(frames.times):
            axes = grid[row, column]
            axes.set_xlabel(draw(axes, orders[column]), fontsize="small", labelpad=2)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if row == 0:
                axes.set_title({1.0: "t = 1 (noise)", 0.0: "t = 0"}.get(t, f"t = {t:.2g}"), fontsize="medium")
        grid[row, 0].set_ylabel(name, fontsize="medium")
    figure.suptitle(title)
    figure.supxlabel(f"under each panel: {score}", fontsize="small", color="0.35")
    return figure


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
        colour, marker = (_OURS, "o") if name == ours else ("0.45", "sD^v"[number % 4])
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
        bars.bar(distances.tolist(), share_off.tolist(), color=_OURS, width=0.7)
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
    styles = (("o", "-", _OURS), ("s", "--", "#e69f00"), ("^", ":", _WRONG))
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


def plot_pairwise(before: Tensor, order: Tensor, *, axes: "Axes | None" = None) -> "Figure":
    """P(row's item stands before column's), rows and columns in the order given, such as the consensus.

    before: (N, N) float, `answers.pairwise(...).value` of an instance. order: (N,) int64. axes: where to draw, None for
    a new figure; so in the three functions that follow.
    """
    axes = _axes_of(axes)
    items = order.tolist()
    shown = before[order][:, order].masked_fill(torch.eye(len(items), dtype=torch.bool), math.nan)
    image = axes.imshow(shown.tolist(), cmap="PuOr", vmin=0, vmax=1)
    if len(items) <= 12:
        for row, values in enumerate(shown.tolist()):
            for column, value in enumerate(values):
                if row != column:
                    light = "white" if abs(value - 0.5) > 0.35 else "black"
                    axes.text(
                        column, row, f"{100 * value:.0f}", ha="center", va="center", color=light, fontsize="small"
                    )
    axes.set(xticks=range(len(items)), yticks=range(len(items)), xticklabels=items, yticklabels=items)
    axes.set(xlabel="item j", ylabel="item i", title="P(i before j), %")
    axes.figure.colorbar(image, ax=axes, ticks=[0, 0.5, 1], shrink=0.8)
    return _figure_of(axes)


def plot_top_k(
    value: Tensor, error: Tensor, order: Tensor, k: int, *, exact: Tensor | None = None, axes: "Axes | None" = None
) -> "Figure":
    """P(item is among the first k), items from top to bottom in the order given, with two standard errors each way.

    value, error: (N,) float, of `answers.top_k`. exact: (N,) float, drawn as marks beside the bars if known.
    """
    axes = _axes_of(axes)
    heights = list(range(len(order)))
    axes.barh(heights, value[order].tolist(), color=_OURS, xerr=(2 * error[order]).tolist(), ecolor="0.3", capsize=2)
    if exact is not None:
        axes.plot(exact[order].tolist(), heights, "D", color=_WRONG, markersize=6, fillstyle="none", label="exact")
        axes.legend(frameon=False, loc="lower right")
    axes.set(yticks=heights, yticklabels=order.tolist(), ylabel="item", xlim=(0, 1.05), title=f"P(among the first {k})")
    axes.invert_yaxis()
    return _figure_of(axes)


def plot_rank_interval(
    low: Tensor, high: Tensor, low_error: Tensor, high_error: Tensor, order: Tensor, level: float,
    *, axes: "Axes | None" = None,
) -> "Figure":  # fmt: skip
    """Places between which each item stands, items from top to bottom in the order given; a dot at its place there.

    low, high, low_error, high_error: (N,), of `answers.rank_interval`. Thin lines reach two standard errors further.
    """
    axes = _axes_of(axes)
    heights = list(range(len(order)))
    ends = (low - 2 * low_error).clamp(min=0), (high + 2 * high_error).clamp(max=len(order) - 1)
    axes.hlines(heights, ends[0][order].tolist(), ends[1][order].tolist(), color="0.4", linewidth=1, zorder=0)
    width = (high - low)[order].tolist()
    # Half a place to each side, so that an interval of one place can be seen.
    axes.barh(heights, [w + 0.5 for w in width], left=(low[order] - 0.25).tolist(), height=0.45, color="#7fb8d8")
    axes.plot(heights, heights, "o", color="black", markersize=4, label="place in the consensus")
    axes.set(yticks=heights, yticklabels=order.tolist(), xticks=heights, xlabel="place", ylabel="item")
    axes.set_xlim(-0.5, len(heights) - 0.5)
    axes.set_title(f"place of each item, {100 * level:.0f} % of samples")
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="upper right")
    return _figure_of(axes)


def plot_calibration(
    predicted: Tensor, observed: Tensor, error: Tensor, expected_error: float, *, axes: "Axes | None" = None
) -> "Figure":
    """Predicted against observed frequencies of "i before j", with two standard errors each way; right on the diagonal.

    predicted, observed, error: (bins,) float, of `answers.calibration`; empty bins, NaN, are left out.
    """
    axes = _axes_of(axes)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    is_there = ~observed.isnan()
    x, y, spread = (part[is_there].tolist() for part in (predicted, observed, 2 * error))
    axes.errorbar(x, y, spread, fmt="o-", color=_OURS, ecolor="0.3", capsize=2, markersize=4, linewidth=1)
    axes.set(xlabel="predicted P(i before j)", ylabel="observed share", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_title(f"calibration, expected error {expected_error:.3f}")
    return _figure_of(axes)


def _axes_of(axes: "Axes | None") -> "Axes":
    if axes is not None:
        return axes
    from matplotlib.figure import Figure

    return Figure(figsize=(5, 4), layout="constrained").subplots()


def _figure_of(axes: "Axes") -> "Figure":
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure


def swapped_pairs(ranks: Tensor) -> Tensor:
    """Number of item pairs that stand the other way round than in row 0. ranks: (T, N) int64. Returns (T,) int64."""
    is_before = ranks[:, :, None] < ranks[:, None, :]  # (T, N, N)
    return (is_before & ~is_before[:1] & (ranks[0, :, None] != ranks[0, None, :])).sum((1, 2))


def _spread(heights: list[float], gap: float) -> list[float]:
    """Heights moved up as little as keeps them `gap` apart, then down where they would pass 1."""
    ascending = sorted(range(len(heights)), key=lambda i: heights[i])
    spread = dict(enumerate(heights))
    for below, above in pairwise(ascending):
        spread[above] = max(spread[above], spread[below] + gap)
    ceiling = max(1.0, max(heights))
    for i in reversed(ascending):
        spread[i] = min(spread[i], ceiling)
        ceiling = spread[i] - gap
    return [spread[i] for i in range(len(heights))]


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write a figure; the ending of the path (.png, .pdf, .svg) is its format."""
    figure.savefig(path, dpi=100)


def _place_colour(place: int, size: int) -> tuple[float, float, float, float]:
    from matplotlib import colormaps

    low, high = _DARK_TO_LIGHT
    return colormaps["viridis"](low + (high - low) * place / max(size - 1, 1))
