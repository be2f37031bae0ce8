"""Schedules shown: a Gantt chart, and `schedule.html` with the orders that a search found written into it as JSON.

The page is one file, without network or other scripts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from softrank_ext.schedule_search import times_of
from softrank_ext.show.style import axes_or_new, figure_of, place_colour
from softrank_ext.show.templates import filled_page

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    from softrank_ext.schedules import Schedule

MOST_NAMED = 30  # jobs whose names are written into the chart
MOST_SHOWN = 60  # orders that the page plays


def plot_schedule(plan: "Schedule", axes: "Axes | None" = None) -> "Figure":
    """A Gantt chart: a line per machine, a bar per job, in the colour of its place (dark first)."""
    axes = axes_or_new(axes)
    N = len(plan.order)
    named: list[tuple[Text, float]] = []
    for place, job in enumerate(plan.order):
        for machine in range(len(plan.machines)):
            start, length = plan.start[job, machine], plan.end[job, machine] - plan.start[job, machine]
            if length <= 0:
                continue
            axes.barh(
                machine, length, left=start, height=0.8, color=place_colour(place, N), edgecolor="white", linewidth=0.5
            )
            if N <= MOST_NAMED:
                ink = "white" if place < 0.6 * N else "black"
                text = axes.text(
                    start + length / 2, machine, plan.jobs[job], ha="center", va="center", fontsize=6, color=ink,
                    clip_on=True,
                )  # fmt: skip
                named.append((text, length))
    axes.set_yticks(range(len(plan.machines)), plan.machines)
    axes.invert_yaxis()
    axes.set_xlabel("time")
    axes.set_title(f"{plan.cost_name.replace('_', ' ')} {plan.cost:g}")
    figure_of(axes).draw_without_rendering()  # from here on it is known how wide a name and a bar are
    per_time = axes.transData.transform((1, 0))[0] - axes.transData.transform((0, 0))[0]
    for text, length in named:
        if text.get_window_extent().width > length * per_time:
            text.remove()
    return figure_of(axes)


def schedule_page(plan: "Schedule", title: str) -> str:
    """One self-contained HTML page: the Gantt chart of each order found, from the first to the best, and all times."""
    shown = _thinned(len(plan.found))
    times = plan.end - plan.start
    orders = []
    for number in shown:
        found = plan.found[number]
        start, end = times_of(found.order, times)
        orders.append(
            {"order": found.order.tolist(), "cost": found.cost, "by": found.by, "seconds": found.seconds,
             "start": start.tolist(), "end": end.tolist()}
        )  # fmt: skip
    data: dict[str, object] = {
        "title": title, "cost": plan.cost_name.replace("_", " "), "jobs": plan.jobs, "machines": plan.machines,
        "orders": [order for order in orders if order["cost"] != float("inf")],
        "told": " ".join(f"{said[0].upper()}{said[1:]}." for said in (plan.answered_by, plan.certainty)),
    }  # fmt: skip
    if plan.bound is not None:
        data["bound"] = plan.bound
    if plan.due is not None:
        data["due"] = plan.due.tolist()
    return filled_page("schedule.html", data)


def _thinned(count: int) -> Sequence[int]:
    """At most MOST_SHOWN of `count` numbers, with the first and the last."""
    if count <= MOST_SHOWN:
        return range(count)
    return sorted({round(k * (count - 1) / (MOST_SHOWN - 1)) for k in range(MOST_SHOWN)})
