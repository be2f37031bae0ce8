"""Rankings of tables as pictures: what a report says, and the intervals of one group."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from softrank_ext.ranking import RankingReport
from softrank_ext.show.style import OURS, WRONG, axes_or_new, figure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_ranking_report(report: RankingReport) -> "Figure":
    """Calibration of P(first), P(top 3) and intervals, and NDCG with two standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3), layout="constrained")
    panels = figure.subplots(1, 4)
    curves = (("P(first)", report.p_top1), ("P(top 3)", report.p_top3), ("P(inside interval)", report.interval))
    for axes, (name, curve) in zip(panels, curves, strict=False):
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
        filled = [number for number, rows in enumerate(curve.rows) if rows > 0]
        x, y = ([values[number] for number in filled] for values in (curve.predicted, curve.observed))
        axes.plot(x, y, "o-", color=OURS, markersize=4, linewidth=1)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="predicted", ylabel="observed")
        axes.set_title(f"{name}, error {curve.error:.3f}", fontsize="medium")
    cuts = list(report.ndcg)
    panels[3].bar(
        [f"@{k}" for k in cuts], [report.ndcg[k] for k in cuts], yerr=[2 * report.ndcg_error[k] for k in cuts],
        color=OURS, ecolor="0.3", capsize=3,
    )  # fmt: skip
    panels[3].set(ylim=(0, 1))
    panels[3].set_title("NDCG", fontsize="medium")
    return figure


def plot_places(
    names: Sequence[Any], place: Sequence[int], low: Sequence[int], high: Sequence[int], *, axes: "Axes | None" = None
) -> "Figure":
    """The rows of one group from the first place down: a point for the place, a bar from low to high."""
    axes = axes_or_new(axes)
    listed = sorted(range(len(place)), key=lambda row: place[row])
    heights = range(len(listed))
    axes.hlines(
        heights, [low[row] for row in listed], [high[row] for row in listed], color=OURS, linewidth=3, alpha=0.5
    )
    axes.plot([place[row] for row in listed], heights, "o", color=WRONG, markersize=5)
    axes.set(yticks=list(heights), xlabel="place", xlim=(0.5, len(listed) + 0.5))
    axes.set_yticklabels([str(names[row]) for row in listed])
    axes.invert_yaxis()
    return figure_of(axes)
