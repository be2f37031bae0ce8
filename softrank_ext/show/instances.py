"""One instance while the model puts it in order: a list of images, a tour, a jigsaw.

`path` is that of one recorded sample: `samples[instance][draw].trajectory` or its frames.
"""

import math
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from softrank_ext.metrics import tour_length
from softrank_ext.sampling.trajectory import Frames, Trajectory
from softrank_ext.show.soft_ranks import colours_of, draw_soft_ranks, frames_of
from softrank_ext.show.style import OURS, WRONG, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_sorting(
    path: Trajectory | Frames, images: Tensor, labels: Sequence[object], true_order: Tensor, title: str = ""
) -> "Figure":
    """A list of images before and after, and between them the way of each item's soft rank from noise to its place.

    images: (N, 1, height, width) uint8. labels: N texts. true_order: (N,) int64. Left, the items in the order of their
    first soft ranks; right, sorted, with what is out of place marked (items with equal labels are interchangeable).
    """
    frames = frames_of(path)
    N = len(labels)
    figure = new_figure(8, max(2.5, 0.9 + 0.3 * N))
    before, paths, after = figure.subplots(1, 3, width_ratios=(1, 1.6, 1), sharey=True)
    first, last = frames.order[0].tolist(), frames.order[-1].tolist()
    colours = colours_of(last)
    wrong = [str(labels[item]) != str(labels[right]) for item, right in zip(last, true_order.tolist(), strict=True)]
    _draw_list(before, images[first], [str(labels[item]) for item in first], [False] * N, "right")
    _draw_list(after, images[last], [str(labels[item]) for item in last], wrong, "left")
    draw_soft_ranks(paths, frames, colours)
    for place, item in enumerate(first):  # from the image to where its item starts
        ends = (place / max(N - 1, 1), float(frames.soft_ranks[0, item]))
        paths.plot((1.1, 1), ends, color=colours[item], linewidth=0.7, alpha=0.6, clip_on=False)
    paths.set(xlim=(1.1, 0), xticks=frames.times)
    paths.set_title(
        first_prediction_says(frames).replace(", from noise alone,", "\nfrom noise alone"),
        fontsize="small",
        color="0.35",
    )
    paths.spines[["left"]].set_visible(False)
    paths.tick_params(axis="y", left=False, labelleft=False)
    before.set_title("in random order", fontsize="medium", loc="right")
    after.set_title("sorted", fontsize="medium", loc="left")
    figure.suptitle(title)
    return figure


def _draw_list(axes: "Axes", images: Tensor, labels: Sequence[str], wrong: Sequence[bool], side: str) -> None:
    """Images (N, 1, height, width) from top to bottom at the side that touches the paths, their labels beside them."""
    N = len(labels)
    width = 0.12 * images.shape[3] / images.shape[2]  # keeps the images' shape: rows are 0.3 inches high
    low, high = (1 - width, 1) if side == "right" else (0, width)
    text_at = low - 0.03 if side == "right" else high + 0.03
    for place, (label, is_wrong) in enumerate(zip(labels, wrong, strict=True)):
        height = place / max(N - 1, 1)
        axes.imshow(
            images[place, 0].numpy(), cmap="gray", aspect="auto", vmin=0, vmax=255,
            extent=(low, high, height + 0.44 / N, height - 0.44 / N),
        )  # fmt: skip
        axes.text(
            text_at, height, f"{label}{'  wrong' if is_wrong else ''}", ha=side, va="center", fontsize="small",
            color=WRONG if is_wrong else "0.25", weight="bold" if is_wrong else "normal",
        )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(1 + 0.6 / N, -0.6 / N))
    axes.axis("off")


def plot_tour(path: Trajectory | Frames, points: Tensor, true_order: Tensor, title: str = "") -> "Figure":
    """A tour through the diffusion steps: above, in the order of the soft ranks; below, as the model predicts it.

    points: (N, 2). true_order: (N,) int64, the best tour, dashed. Panels say how much longer than that one theirs are.
    """
    points = points.double()
    best = tour_length(points[None], true_order[None])

    def draw(axes: "Axes", order: Tensor) -> tuple[str, float]:
        closed = [*order.tolist(), int(order[0])]
        right = [*true_order.tolist(), int(true_order[0])]
        axes.plot(*points[right].T.tolist(), color="0.55", linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        axes.plot(*points[closed].T.tolist(), color=OURS, linewidth=1.5, zorder=2)
        axes.plot(*points.T.tolist(), "o", color="0.15", markersize=2.5, zorder=3)
        axes.plot(*points[order[:1]].T.tolist(), "s", color=WRONG, markersize=5, zorder=4)
        axes.set_aspect("equal")
        axes.margins(0.06)
        above = 100 * float(tour_length(points[None], order[None]) / best - 1)
        return f"{above:+.1f} %", above

    return _plot_steps(frames_of(path), draw, title, "Length above the best (dashed) in percent", plots_both=False)


def plot_jigsaw(path: Trajectory | Frames, patches: Tensor, true_order: Tensor, title: str = "") -> "Figure":
    """A jigsaw being solved: above, in the order of the soft ranks; below, as the model predicts it.

    patches: (N, 3, height, width) uint8 with N a square. true_order: (N,) int64. Panels say how many places are right.
    """
    side = math.isqrt(len(patches))

    def draw(axes: "Axes", order: Tensor) -> tuple[str, float]:
        rows = patches[order].reshape(side, side, *patches.shape[1:]).permute(0, 3, 1, 4, 2)
        picture = rows.flatten(2, 3).flatten(0, 1)  # (H, W, 3)
        axes.imshow(picture.numpy(), interpolation="nearest")
        height, width = patches.shape[2:]
        for cut in range(1, side):
            axes.axhline(cut * height - 0.5, color="white", linewidth=0.8)
            axes.axvline(cut * width - 0.5, color="white", linewidth=0.8)
        right = int((order == true_order).sum())
        return f"{right} of {len(patches)}", right

    return _plot_steps(frames_of(path), draw, title, "Places right")


def first_prediction_says(frames: Frames) -> str:
    """A sentence on how much of the answer the first prediction, from noise alone, already has."""
    answer = frames.order[-1]
    same, N = int((frames.predicted_order[0] == answer).sum()), len(answer)
    if same == N:
        return "The first prediction, from noise alone, is already the answer."
    return f"The first prediction, from noise alone, has {same} of {N} places as in the answer."


def _plot_steps(
    frames: Frames,
    draw: Callable[["Axes", Tensor], tuple[str, float]],
    title: str,
    score: str,
    *,
    plots_both: bool = True,
) -> "Figure":
    """Two rows of panels, one column per time, and a plot of their scores below.

    `draw(axes, order)` fills a panel and returns its score as text and as a number. plots_both: plot the scores of the
    soft ranks' orders too, not the predicted ones' alone.
    """
    columns = len(frames.times)
    figure = new_figure(1.55 * columns + 0.5, 5.4)
    halves: Any = figure.subfigures(2, 1, height_ratios=(3, 1))
    above, below = halves
    grid = above.subplots(2, columns, squeeze=False)
    plot = below.subplots()
    ways = ((frames.order, "of the soft ranks", WRONG), (frames.predicted_order, "predicted", OURS))
    for row, (orders, name, colour) in enumerate(ways):
        values = []
        for column, t in enumerate(frames.times):
            axes = grid[row, column]
            text, value = draw(axes, orders[column])
            values.append(value)
            axes.set_xlabel(text, fontsize="small", labelpad=2)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
            if row == 0:
                axes.set_title({1.0: "t = 1 (noise)", 0.0: "t = 0"}.get(t, f"t = {t:.2g}"), fontsize="medium")
        grid[row, 0].set_ylabel(name, fontsize="medium")
        if plots_both or row == 1:
            plot.plot(frames.times, values, color=colour, marker=".", label=name)
    plot.set(xlim=(1.02, -0.02), xticks=frames.times, xlabel="time t")
    # A letter of this size is about a thirteenth of an inch wide.
    lines = textwrap.wrap(f"{score}. {first_prediction_says(frames)}", int(13 * figure.get_figwidth()))
    plot.set_title("\n".join(lines), fontsize="small", color="0.35", loc="left")
    plot.tick_params(labelsize="small")
    plot.spines[["top", "right"]].set_visible(False)
    plot.legend(frameon=False, fontsize="small", loc="center left")
    figure.suptitle(title)
    return figure
