"""The forward process of one instance: a path of the bridge from a clean order to noise, and its picture."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from softrank_ext import ops
from softrank_ext.checks import check_integer, check_tensor
from softrank_ext.noise import BRIDGE_STREAM, TRAINING_STREAM, RowNoise, seed_of
from softrank_ext.permutations import ranks_of
from softrank_ext.processes import Bridge
from softrank_ext.processes.bridge import lift_to_grid
from softrank_ext.show.style import WRONG, Colour, new_figure, place_colour

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Walk(NamedTuple):
    """One path of the bridge. times: T ascending numbers, 0 = clean, 1 = noise.

    soft_ranks (T, N) float in [0, 1]. order, ranks (T, N) int64: of the soft ranks.
    """

    times: list[float]
    soft_ranks: Tensor
    order: Tensor
    ranks: Tensor


def draw_walk(
    items: int,
    steps: int = 200,
    *,
    process: Bridge = Bridge(),
    seed: int | torch.Generator = 0,
    clean_order: Tensor | None = None,
) -> Walk:
    """One path of the bridge between a clean order and noise.

    process: its noise scale and prior. seed: any 64-bit integer, or a torch.Generator that draws one. clean_order:
    (items,) int64, None for a random one. The noise is what `sample` with this seed starts its first sample from. The
    path is drawn from time 1 down to 0, each value given the one before (`Bridge.step_back` with the true clean end),
    so that it is one path and not a set of unrelated marginals.
    """
    check_integer("items", items, 1)
    row = RowNoise(seed_of(seed), torch.tensor([0]), items)
    if clean_order is None:
        order, _ = ops.decode_chamber(row.uniform(0, TRAINING_STREAM))
    else:
        order = check_tensor("clean_order", clean_order, (items,), torch.int64)[None]
    z_clean = lift_to_grid(ranks_of(order))
    exact = replace(process, carry="exact", sampling_steps=steps)
    times = exact.times()
    path = [exact.draw_prior(row)]
    for step, (t, s) in enumerate(pairwise(times)):
        path.append(exact.step_back(path[-1], z_clean, t, s, row.normal(step, BRIDGE_STREAM)))
    soft_ranks = ops.reflect(torch.cat(path[::-1]))  # (T, items)
    return Walk(times[::-1], soft_ranks, *ops.decode_chamber(soft_ranks))


def swapped_pairs(ranks: Tensor) -> Tensor:
    """Number of item pairs that stand the other way round than in row 0. ranks: (T, N) int64. Returns (T,) int64."""
    check_tensor("ranks", ranks, ("T", "N"), torch.int64)
    if len(ranks) == 0:
        raise ValueError("ranks must have at least one row, got none")
    is_before = ranks[:, :, None] < ranks[:, None, :]  # (T, N, N)
    return (is_before & ~is_before[:1] & (ranks[0, :, None] != ranks[0, None, :])).sum((1, 2))


def plot_walk(walk: Walk, title: str = "") -> "Figure":
    """Soft ranks along one path of the bridge, and how far their order is from the clean one.

    Every item is a line; where two lines cross, the order changes.
    """
    figure = new_figure(8, 5)
    lines, distance = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    size = walk.ranks.shape[1]
    colours = [place_colour(int(place), size) for place in walk.ranks[0]]
    _draw_lines(lines, walk, colours)
    lines.set_title(title)
    _draw_distance(distance, walk)
    for axes in (lines, distance):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_lines(axes: "Axes", walk: Walk, colours: Sequence[Colour]) -> None:
    """A line per item, with its number at both ends."""
    times, size = walk.times, len(colours)
    for item, colour in enumerate(colours):
        axes.plot(times, walk.soft_ranks[:, item].tolist(), color=colour, linewidth=1.4)
    for end, side, offset in ((0, "right", -8), (-1, "left", 8)):
        heights = walk.soft_ranks[end].tolist()
        axes.scatter([times[end]] * size, heights, s=22, color=colours, clip_on=False, zorder=3)
        for item, height in enumerate(_spread(heights, gap=min(0.035, 1 / size))):
            axes.annotate(
                str(item), (times[end], height), (offset, 0), textcoords="offset points", ha=side, va="center",
                color=colours[item], weight="bold", fontsize="small",
            )  # fmt: skip
    axes.set(ylabel="soft rank of each item", xlim=(times[0], times[-1]), ylim=(-0.03, 1.03))
    axes.set_yticks([0, 0.5, 1])
    axes.tick_params(axis="y", pad=18)  # Leaves room for the item numbers.
    axes.grid(axis="y", alpha=0.3)


def _draw_distance(axes: "Axes", walk: Walk) -> None:
    """How many pairs stand the other way round than at time 0."""
    from matplotlib.ticker import MaxNLocator

    swapped = swapped_pairs(walk.ranks).tolist()
    size = walk.ranks.shape[1]
    most = size * (size - 1) // 2
    axes.fill_between(walk.times, swapped, step="post", color="0.75")
    axes.plot(walk.times, swapped, drawstyle="steps-post", color="0.25", linewidth=1)
    axes.axhline(most / 2, color=WRONG, linestyle="--", linewidth=1, label="mean of a random order")
    axes.set(xlabel="time t: 0 is the clean order, 1 is noise", ylabel="pairs swapped", ylim=(0, max(most, 1)))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=3, integer=True))
    axes.legend(loc="upper left", frameon=False, fontsize="small")


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
