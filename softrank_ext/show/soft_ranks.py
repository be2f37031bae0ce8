"""Soft ranks of a recorded sample, time by time, alone or beside a path of the forward process."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from softrank_ext.sampling.trajectory import Frames, Trajectory
from softrank_ext.show.style import Colour, axes_or_new, figure_of, new_figure, place_colour
from softrank_ext.show.walk import Walk

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def frames_of(path: Trajectory | Frames) -> Frames:
    """The frames of a recorded sample; `Frames` are returned as they are."""
    return path if isinstance(path, Frames) else path.frames()


def colours_of(order: Sequence[int]) -> dict[int, Colour]:
    """A colour for each item by its place in the order."""
    return {item: place_colour(place, len(order)) for place, item in enumerate(order)}


def plot_soft_ranks(
    path: Trajectory | Frames,
    labels: Sequence[object] | None = None,
    title: str = "",
    *,
    axes: "Axes | None" = None,
) -> "Figure":
    """The soft rank of each item from noise to its place; where lines cross, the order changes.

    path: of one sample, `samples[instance][draw].trajectory` or its frames. labels: N texts, by default the items'
    numbers. axes: where to draw, None for a new figure.
    """
    axes = axes_or_new(axes)
    frames = frames_of(path)
    colours = colours_of(frames.order[-1].tolist())
    draw_soft_ranks(axes, frames, colours)
    _label_ends(axes, frames.soft_ranks[-1].tolist(), colours, labels, "left")
    axes.set_title(title)
    return figure_of(axes)


def plot_there_and_back(
    walk: Walk, path: Trajectory | Frames, labels: Sequence[object] | None = None, title: str = ""
) -> "Figure":
    """Soft ranks of one instance: left, the forward process from the right order to noise; right, a sample's way back.

    walk: `draw_walk` of the right order. path: the sample's, from the same noise. labels: N texts, by default the
    items' numbers.
    """
    frames = frames_of(path)
    clean = walk.order[0].tolist()
    figure = new_figure(10, max(3.5, 0.9 + 0.22 * len(clean)))
    forward, reverse = figure.subplots(1, 2, sharey=True)
    colours = colours_of(clean)
    for item, colour in colours.items():
        forward.plot(walk.times, walk.soft_ranks[:, item].tolist(), color=colour, linewidth=1.2)
    draw_soft_ranks(reverse, frames, colours)
    _label_ends(forward, walk.soft_ranks[0].tolist(), colours, labels, "right")
    _label_ends(reverse, frames.soft_ranks[-1].tolist(), colours, labels, "left")
    for axes in (forward, reverse):
        axes.spines[:].set_visible(False)
        axes.tick_params(axis="y", left=False, labelleft=False)
    forward.set(xlim=(0, 1), xlabel="time t: 0 is the right order, 1 is noise", title="forward: noise moves soft ranks")
    reverse.set(title="reverse: the model sorts them")
    figure.suptitle(title)
    return figure


def draw_soft_ranks(axes: "Axes", frames: Frames, colours: Mapping[int, Colour]) -> None:
    """A line per item, time from 1 at the left to 0 at the right, rank 0 at the top as in a list."""
    for item, colour in colours.items():
        heights = frames.soft_ranks[:, item].tolist()
        axes.plot(frames.times, heights, color=colour, linewidth=1.4, marker=".", markersize=6, clip_on=False)
    axes.set(xlim=(1, 0), xlabel="time t: 1 is noise, 0 is the order")
    if not axes.yaxis_inverted():
        axes.set_ylim(1.03, -0.03)
    axes.set_yticks([0, 0.5, 1])
    axes.spines[["top", "right"]].set_visible(False)


def _label_ends(
    axes: "Axes", heights: Sequence[float], colours: Mapping[int, Colour], labels: Sequence[object] | None, side: str
) -> None:
    """The labels of the items beside their lines at time 0; side: of the text that touches the line."""
    if labels is not None and len(labels) != len(colours):
        raise ValueError(f"labels must be {len(colours)} texts, got {len(labels)}")
    for item, colour in colours.items():
        axes.annotate(
            str(item if labels is None else labels[item]), (0, heights[item]), (-6 if side == "right" else 8, 0),
            textcoords="offset points", ha=side, va="center", color=colour, fontsize="small", annotation_clip=False,
        )  # fmt: skip
