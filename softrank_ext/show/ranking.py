"""Rankings of tables as pictures: a report, also as a page (`ranking.html`), and the intervals of one group."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from softrank_ext.ranking import RankingReport
from softrank_ext.show.style import OURS, WRONG, axes_or_new, figure_of, new_figure
from softrank_ext.show.templates import filled_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_ranking_report(report: RankingReport) -> "Figure":
    """Calibration of P(first), P(top 3) and intervals, and NDCG with two standard errors."""
    figure = new_figure(11, 3)
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


def ranking_page(report: RankingReport, title: str = "Ranking report") -> str:
    """One self-contained HTML page: calibration of the probabilities, how sharp they are, and NDCG."""
    curves = (
        ("first", "Is a row first?", "a row is first", report.p_top1),
        ("top3", "Is it among the first three?", "a row is among the first three", report.p_top3),
        ("interval", "Is its place inside the interval?", "the place is inside", report.interval),
    )
    groups, rows = report.groups, report.rows
    best = max(report.ndcg)
    data = {
        "title": title,
        "sum": (
            f"Measured on {groups} group{'s' * (groups != 1)} with {rows} rows ({report.source}): NDCG@{best} "
            f"{report.ndcg[best]:.3f} ± {report.ndcg_error[best]:.3f}. Sharpness: an interval spans "
            f"{100 * report.width:.0f} % of its group."
        ),
        "rows": rows,
        "curves": [{"id": one, "title": named, "event": event, "curve": asdict(curve)}
                   for one, named, event, curve in curves],
        "ndcg": [{"k": k, "mean": report.ndcg[k], "error": report.ndcg_error[k]} for k in report.ndcg],
    }  # fmt: skip
    return filled_page("ranking.html", data)


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
