"""Answers of one instance as pictures: pairwise probabilities, top k, intervals of places; and calibration over many.

Functions take what `softrank_ext.answers` returns for one instance: `plot_pairwise(pairwise(samples[0]))`. order: (N,)
int64 or a `Consensus`, in which items are listed; by default the order that the answer itself suggests. Padding is left
out. axes: where to draw, None for a new figure.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from softrank_ext.answers import Calibration, Consensus, Probability, RankInterval
from softrank_ext.show.style import OURS, WRONG, axes_or_new, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NUMBERS = 12  # items up to which every cell of the matrix has its number


def plot_pairwise(
    before: Probability, order: Tensor | Consensus | None = None, *, axes: "Axes | None" = None
) -> "Figure":
    """P(row's item stands before column's); by default, items of a high mean probability come first."""
    _check_one(before.value, "before", ("N", "N"))
    axes = axes_or_new(axes)
    is_real = ~before.value.diagonal().isnan()
    listed = _order_of(order, -before.value.nansum(1), is_real)
    items = listed.tolist()
    shown = before.value[listed][:, listed].masked_fill(torch.eye(len(items), dtype=torch.bool), math.nan)
    image = axes.imshow(shown.tolist(), cmap="PuOr", vmin=0, vmax=1)
    if len(items) <= _MOST_NUMBERS:
        for row, values in enumerate(shown.tolist()):
            for column, value in enumerate(values):
                if row != column:
                    text, colour = f"{100 * value:.0f}", "white" if abs(value - 0.5) > 0.35 else "black"
                    axes.text(column, row, text, ha="center", va="center", color=colour, fontsize="small")
    axes.set(xticks=range(len(items)), yticks=range(len(items)), xticklabels=items, yticklabels=items)
    axes.set(xlabel="item j", ylabel="item i", title="P(i before j), %")
    axes.figure.colorbar(image, ax=axes, ticks=[0, 0.5, 1], shrink=0.8)
    return figure_of(axes)


def plot_top_k(
    among: Probability,
    order: Tensor | Consensus | None = None,
    *,
    exact: Tensor | None = None,
    axes: "Axes | None" = None,
) -> "Figure":
    """P(item is among the first k), with two standard errors each way; by default, the most probable item on top.

    exact: (N,) float, drawn as marks beside the bars if known.
    """
    _check_one(among.value, "among", ("N",))
    axes = axes_or_new(axes)
    listed = _order_of(order, -among.value, ~among.value.isnan())
    heights = list(range(len(listed)))
    axes.barh(
        heights, among.value[listed].tolist(), color=OURS, xerr=(2 * among.standard_error[listed]).tolist(),
        ecolor="0.3", capsize=2,
    )  # fmt: skip
    if exact is not None:
        axes.plot(exact[listed].tolist(), heights, "D", color=WRONG, markersize=6, fillstyle="none", label="exact")
        axes.legend(frameon=False, loc="lower right")
    k = round(float(among.value.nansum()))  # every sample has k items among its first k
    axes.set(yticks=heights, yticklabels=listed.tolist(), ylabel="item", xlim=(0, 1.05))
    axes.set_title(f"P(among the first {k})")
    axes.invert_yaxis()
    return figure_of(axes)


def plot_rank_interval(
    interval: RankInterval,
    order: Tensor | Consensus | None = None,
    *,
    level: float | None = None,
    axes: "Axes | None" = None,
) -> "Figure":
    """Places between which each item stands; a dot at its place in the order, by default that of the middles.

    Thin lines reach two standard errors further. level: that of `rank_interval`, for the title.
    """
    low, high = interval.low, interval.high
    _check_one(low, "interval", ("N",))
    axes = axes_or_new(axes)
    listed = _order_of(order, low + high, low >= 0)
    heights = list(range(len(listed)))
    ends = (low - 2 * interval.low_error).clamp(min=0), (high + 2 * interval.high_error).clamp(max=len(listed) - 1)
    axes.hlines(heights, ends[0][listed].tolist(), ends[1][listed].tolist(), color="0.4", linewidth=1, zorder=0)
    # A quarter of a place more on each side, so that an interval of one place can be seen.
    widths = ((high - low)[listed] + 0.5).tolist()
    axes.barh(heights, widths, left=(low[listed] - 0.25).tolist(), height=0.45, color="#7fb8d8")
    name = "place in the consensus" if isinstance(order, Consensus) else "place in this order"
    axes.plot(heights, heights, "o", color="black", markersize=4, label=name)
    axes.set(yticks=heights, yticklabels=listed.tolist(), xticks=heights, xlabel="place", ylabel="item")
    axes.set_xlim(-0.5, len(heights) - 0.5)
    axes.set_title("place of each item" + ("" if level is None else f", {100 * level:.0f} % of samples"))
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="upper right")
    return figure_of(axes)


def plot_calibration(checked: Calibration, *, axes: "Axes | None" = None) -> "Figure":
    """Predicted against observed frequencies of "i before j", with two standard errors each way; right on the diagonal.

    Empty bins are left out.
    """
    axes = axes_or_new(axes)
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
    is_filled = ~checked.observed.isnan()
    x, y, spread = (
        part[is_filled].tolist() for part in (checked.predicted, checked.observed, 2 * checked.standard_error)
    )
    axes.errorbar(x, y, spread, fmt="o-", color=OURS, ecolor="0.3", capsize=2, markersize=4, linewidth=1)
    axes.set(xlabel="predicted P(i before j)", ylabel="observed share", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_title(f"calibration, expected error {checked.expected_error:.3f}")
    return figure_of(axes)


def _check_one(value: Tensor, name: str, shape: tuple[str, ...]) -> None:
    if value.ndim != len(shape):
        wanted = f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"
        raise ValueError(
            f"{name} must be of one instance, {wanted}, got {tuple(value.shape)}: take one first, such as samples[0]"
        )


def _order_of(order: Tensor | Consensus | None, keys: Tensor, is_real: Tensor) -> Tensor:
    """The real items in the order given, or by ascending keys."""
    if order is None:
        order = keys.argsort(stable=True)
    elif isinstance(order, Consensus):
        order = order.order
    return order[is_real[order]]
