"""The door `schedule`: tables in, orders and times out, what it says, and every kind of bad input."""

import json
import signal
import threading
import time

import numpy as np
import pytest
import torch
from testing import needs_browser, run_in

from softrank_ext import Schedule, SoftRankConfig, SoftRankModel, schedule, schedules
from softrank_ext.costs import Makespan, WeightedTardiness, neh
from softrank_ext.pretrained import BUNDLED
from softrank_ext.tasks.flowshop import FlowShop

TIMES = np.random.default_rng(0).integers(1, 100, (20, 5))
DUE = {"job": list("abcdef"), "time": [4, 2, 7, 3, 5, 1], "due": [9, 2, 20, 8, 11, 3], "weight": [1, 5, 2, 2, 1, 3]}
FAST = 0.1  # seconds of search


def flow_shop_model(least=18, most=22):
    """A model of random weights that says what it was trained for."""
    task = FlowShop(num_jobs=most, min_jobs=least)
    torch.manual_seed(0)
    sizes = {"d_model": 16, "feed_forward": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return SoftRankModel(SoftRankConfig(**sizes, embedder=task.embedder(), data=task.data_facts()))


def test_an_array_of_times():
    plan = schedule(TIMES, seconds=FAST, model=None)
    assert sorted(plan.order.tolist()) == list(range(20))
    items = torch.from_numpy(TIMES)[None].double()
    assert plan.cost == float(Makespan()(items, torch.from_numpy(plan.order)[None])) == plan.end.max()
    assert plan.cost <= float(Makespan()(items, neh(items))) and plan.bound is not None and plan.bound <= plan.cost
    assert np.array_equal(plan.end - plan.start, TIMES)
    # no machine has two jobs at once, no job is on two machines at once
    in_order = plan.order
    assert (plan.start[in_order[1:]] >= plan.end[in_order[:-1]]).all()
    assert (plan.start[:, 1:] >= plan.end[:, :-1]).all()
    assert [found.cost for found in plan.found][-1] == plan.cost
    assert repr(plan).startswith(f"Schedule(20 jobs on 5 machines, makespan {plan.cost:.0f}, at most ")
    assert "search alone, without a model" in repr(plan) and len(repr(plan)) < 300


def test_tables(tmp_path):
    import pandas
    import polars

    path = tmp_path / "jobs.csv"
    path.write_bytes("\ufeffjob;saw;drill\nchair;3,5;2\ntable;1;4\nshelf;2;2\n".encode())
    plans = [
        schedule(path, seconds=FAST),
        schedule(pandas.read_csv(path, sep=";", decimal=","), seconds=FAST),
        schedule(polars.DataFrame({"saw": [3.5, 1, 2], "job": ["chair", "table", "shelf"], "drill": [2, 4, 2]}),
                 seconds=FAST, machines=["saw", "drill"]),
        schedule([{"job": "chair", "saw": 3.5, "drill": 2}, {"job": "table", "saw": 1, "drill": 4},
                  {"job": "shelf", "saw": 2, "drill": 2}], seconds=FAST),
    ]  # fmt: skip
    for plan in plans:
        assert plan.jobs == ("chair", "table", "shelf") and plan.machines == ("saw", "drill")
        assert plan.cost == 9 and plan.jobs[plan.order[0]] == "table"  # 1, then drilling without a pause
        frame = plan.to_frame()
        assert list(frame.columns) == ["place", "job", "row", "saw start", "saw end", "drill start", "drill end"]
        assert frame["job"].tolist()[0] == "table" and float(frame["drill end"].max()) == 9
    assert plans[0].certainty == "no order is better"
    plans[0].to_csv(tmp_path / "plan.csv")
    assert (tmp_path / "plan.csv").read_text().splitlines()[1].startswith("0,table,1,0.0,1.0,1.0,5.0")


def test_due_dates():
    plan = schedule(DUE, "weighted_tardiness", seconds=FAST)
    items = torch.tensor([DUE["time"], DUE["weight"], DUE["due"]], dtype=torch.float64).T[None]
    assert plan.cost == float(WeightedTardiness()(items, torch.from_numpy(plan.order)[None]))
    late = plan.to_frame()["late"].to_numpy() * np.array(DUE["weight"])[plan.order]
    assert late.sum() == plan.cost and plan.machines == ("machine",)
    assert "search alone: no model is bundled for weighted tardiness" in plan.answered_by
    unweighted = {key: DUE[key] for key in ("job", "time", "due")}
    assert (schedule(unweighted, "weighted_tardiness", seconds=FAST).weight == 1).all()
    array = np.stack((DUE["time"], DUE["weight"], DUE["due"]), 1)
    assert schedule(array, "weighted_tardiness", seconds=FAST).cost == plan.cost
    renamed = {"hours": DUE["time"], "until": DUE["due"], "value": DUE["weight"]}
    again = schedule(renamed, "weighted_tardiness", FAST, time="hours", due="until", weight="value")
    assert again.cost == plan.cost and again.jobs == ("0", "1", "2", "3", "4", "5")


def test_no_lateness_ends_at_once():
    began = time.monotonic()
    plan = schedule({"time": [1, 2], "due": [50, 50]}, "weighted_tardiness", seconds=60)
    assert plan.cost == 0 and plan.certainty == "no order is better" and time.monotonic() - began < 30


def test_a_cost_of_ones_own():
    table = {"job": list("abc"), "press": [3, 1, 2], "colour": [0.0, 1.0, 0.0], "note": ["x", "y", "z"]}

    def changes(items, order):
        """Changes of colour, and a little for the time at which jobs are done."""
        jobs = items[torch.arange(len(items))[:, None], order]
        return jobs[..., 1].diff(dim=1).abs().sum(1) + 0.01 * jobs[..., 0].cumsum(1).sum(1)

    plan = schedule(table, changes, seconds=FAST, machines=["press"])
    assert plan.cost_name == "changes" and plan.bound is None and plan.machines == ("press",)
    assert "".join(plan.jobs[job] for job in plan.order) == "bca"
    assert plan.cost == pytest.approx(1.0 + 0.01 * (1 + 3 + 6))
    assert "not known for a cost of your own" in plan.certainty


@pytest.mark.parametrize("cost", ("makespan", "total_flow_time"))
def test_pairs_are_kept(cost):
    before = [(7, 3), (3, 12), ("12", 0)]
    plan = schedule(TIMES, cost, seconds=FAST, before=before, model=flow_shop_model() if cost == "makespan" else None)
    place = np.argsort(plan.order)
    assert place[7] < place[3] < place[12] < place[0]
    assert all(np.argsort(found.order)[7] < np.argsort(found.order)[3] for found in plan.found)


def test_what_answers():
    model = flow_shop_model()
    plan = schedule(TIMES, seconds=0.3, model=model)
    assert "the given model, trained for 18 to 22 jobs on 5 machines, and search" in plan.answered_by
    plan = schedule(TIMES[:10], seconds=FAST, model=model)
    assert "search alone: the given model was trained for 18 to 22 jobs" in plan.answered_by
    assert "not for 10 jobs on 5 machines" in plan.answered_by
    bundled = schedule(TIMES[:9], seconds=FAST, model=str(BUNDLED / "flowshop")).answered_by
    assert "search alone: model 'flowshop' was trained for 20 jobs on 5 machines, not for 9 jobs on 5" in bundled
    six = schedule(np.ones((20, 6)), seconds=FAST, model=model).answered_by
    assert "search alone" in six and "not for 20 jobs on 6 machines" in six
    assert "21 machines" in schedule(np.ones((20, 21)), seconds=FAST, model=model).answered_by
    with pytest.raises(ValueError, match="model must be one of flow shops"):
        schedule(TIMES, model="tsp")
    with pytest.raises(FileNotFoundError, match="no-such is neither a folder nor a bundled model"):
        schedule(TIMES, model="no-such")
    with pytest.raises(ValueError, match="model must be 'bundled' or None for this cost, since models are of makespan"):
        schedule(TIMES, "total_flow_time", model=model)


def test_the_models_draws_are_a_start():
    """A search whose time is over after the first draws has their best order, if that is the best known."""
    plan = schedule(TIMES, seconds=1e-6, model=flow_shop_model())
    assert {found.by for found in plan.found} & {"NEH", "the model"}


def test_ctrl_c_returns_the_best_so_far():
    threading.Timer(1.0, lambda: signal.raise_signal(signal.SIGINT)).start()
    began = time.monotonic()
    plan = schedule(np.random.default_rng(1).integers(1, 100, (60, 10)), seconds=300, model=None)
    assert time.monotonic() - began < 60 and plan.answered_by.endswith("; stopped by Ctrl-C")
    assert sorted(plan.order.tolist()) == list(range(60))


def test_one_job_and_equal_jobs():
    plan = schedule([[3, 4]], seconds=FAST)
    assert plan.order.tolist() == [0] and plan.cost == 7 and plan.certainty == "no order is better"
    assert schedule(np.ones((12, 3)), seconds=FAST).cost == 14
    assert schedule(np.zeros((4, 2)), seconds=FAST).cost == 0
    assert schedule({"time": [2], "due": [1]}, "weighted_tardiness", seconds=FAST).cost == 1


def test_many_jobs_end_in_time():
    began = time.monotonic()
    plan = schedule(np.random.default_rng(0).integers(1, 100, (1500, 5)), seconds=0.5, model=None)
    assert sorted(plan.order.tolist()) == list(range(1500)) and time.monotonic() - began < 30


ERRORS = {
    "empty table": ({"saw": [], "drill": []}, {}, "jobs must have at least one row, got an empty table"),
    "no columns": ({}, {}, "the table has no columns"),
    "only names": ({"job": ["a", "b"]}, {}, "jobs must have a column of times for each machine, got columns 'job'"),
    "text": ({"job": ["a", "b"], "saw": [1, "soon"]}, {}, "column 'saw' has text in row 1: 'soon'; rows count from 0"),
    "NaN": ({"saw": [1.0, np.nan]}, {}, "column 'saw' has no number in row 1"),
    "infinite": ({"saw": [1.0, np.inf]}, {}, "column 'saw' must have finite numbers, got inf in row 1"),
    "negative": ({"saw": [1.0, -2]}, {}, "column 'saw' must not be negative, got -2 in row 1"),
    "enormous": ({"saw": [1.0, 1e200]}, {}, r"column 'saw' must be below 1e\+100, got 1e\+200"),
    "a million rows": (np.ones((10**6, 2)), {}, "jobs must have at most 5000 rows, got 1000000"),
    "same names": ({"job": ["a", "a"], "saw": [1, 2]}, {}, "column 'job' must have different names, rows 0 and 1"),
    "no name": ({"job": ["a", None], "saw": [1, 2]}, {}, "column 'job' has no name in row 1"),
    "no column": ({"saw": [1, 2]}, {"machines": ["sew"]}, "the table has no column 'sew', .* did you mean 'saw'"),
    "no due": ({"time": [1]}, {"cost": "weighted_tardiness"}, "the table has no column 'due'"),
    "no weight": ({"time": [1], "due": [1]}, {"cost": "weighted_tardiness", "weight": "w"}, "no column 'w'"),
    "weight by another name": ({"time": [1, 2], "due": [1, 2], "Weight": [1, 5]}, {"cost": "weighted_tardiness"},
                               "the column 'Weight' would not be read: give weight='Weight', or leave it out"),
    "weights": ({"time": [1, 2], "due": [1, 2], "weights": [1, 5]}, {"cost": "weighted_tardiness"},
                "give weight='weights'"),
    "machine twice": (TIMES, {"machines": ["machine 1", "machine 1"]},
                      "machines must be different columns, 'machine 1' is"),
    "no pairs": (TIMES, {"before": None}, r"before must be pairs of jobs, \(first, later\), got None"),
    "near job": ({"job": ["chair", "table"], "saw": [1, 2]}, {"before": [("Chair", "table")]},
                 "got 'Chair'; did you mean 'chair'"),
    "due is text": ({"time": [1], "due": ["May"]}, {"cost": "weighted_tardiness"}, "column 'due' has text in row 0"),
    "unknown job": (TIMES, {"before": [(1, 99)]}, "before must name jobs of the table, got '99'"),
    "circle": (TIMES, {"before": [(1, 2), (2, 3), (3, 1)]}, "before contradicts itself: '1' before '2' before '3'"),
    "itself": (TIMES, {"before": [(1, 1)]}, "before contradicts itself: '1' before '1'"),
    "not pairs": (TIMES, {"before": [(1, 2, 3)]}, r"before must be pairs of jobs, \(first, later\)"),
    "cost": (TIMES, {"cost": "makespam"}, "cost must be one of 'makespan', .* or a function, got 'makespam'"),
    "seed": (TIMES, {"seed": None}, "seed must be a 64-bit integer, got None"),
    "seconds": (TIMES, {"seconds": 0}, "seconds must be positive and finite, got 0"),
    "three dimensions": (np.ones((2, 2, 2)), {}, r"jobs must be \(N, M\) times .*, got an array \(2, 2, 2\)"),
    "two columns": (np.ones((2, 2)), {"cost": "weighted_tardiness"}, r"jobs must be \(N, 3\): time, weight and due"),
    "ragged": ([[1, 2], [3]], {}, "jobs must be a table, or rows of equally many numbers"),
    "keys": ([{"a": 1}, {"b": 1}], {}, "jobs must have the same keys in all rows"),
    "machines": (TIMES, {"machines": "machine 1"}, "machines must be a list of columns, got the text"),
    "one machine": (DUE, {"cost": "weighted_tardiness", "machines": ["time"]}, "machines must be None for weighted"),
    "none allowed": (TIMES, {"cost": lambda items, order: torch.full((len(order),), torch.inf), "seconds": FAST},
                     "no order of a finite cost was found in 0.1 seconds"),
    "NaN cost": (TIMES, {"cost": lambda items, order: torch.full((len(order),), torch.nan)}, "cost must not be NaN"),
    "scalar cost": (TIMES, {"cost": lambda items, order: 1.0}, "cost must return a tensor of one number per row"),
}  # fmt: skip


def test_a_generator_draws_the_seed(monkeypatch):
    seeds = []

    class Spy(schedules.JobSearch):
        def __post_init__(self):
            seeds.append(self.seed)
            super().__post_init__()

    monkeypatch.setattr(schedules, "JobSearch", Spy)
    for given in ({}, {"seed": 7}, {"seed": torch.Generator().manual_seed(4)}):
        schedule(TIMES[:4], seconds=FAST, model=None, **given)
    assert seeds == [0, 7, int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(4)))]


@pytest.mark.parametrize("kind", ERRORS)
def test_bad_input(kind):
    jobs, options, message = ERRORS[kind]
    with pytest.raises((ValueError, TypeError), match=message):
        schedule(jobs, **options)


def test_results_show_themselves():
    plan = schedule({"job": ["<b>", "c"], "saw": [1, 2], "drill": [2, 1]}, seconds=FAST)
    assert "&lt;b&gt;" in plan._repr_html_() and "<b>makespan" in plan._repr_html_()
    page = plan.page("Two </script> jobs")
    text = page.split('id="data">')[1].split("</script>")[0]
    data = json.loads(text)
    assert data["title"] == "Two </script> jobs" and data["orders"][-1]["order"] == plan.order.tolist()
    assert data["orders"][-1]["end"] == plan.end.tolist()
    many = schedule(np.ones((30, 2)), seconds=FAST)
    assert "and 10 more jobs" in many._repr_html_() and isinstance(many, Schedule)


@needs_browser
def test_a_browser_shows_and_plays_it(tmp_path):
    plan = schedule(TIMES, seconds=FAST, model=None, before=[(3, 9)])
    page = tmp_path / "page.html"
    plan.save_html(page, "Twenty jobs")
    last = len(plan.found) - 1
    assert last >= 1
    script = """
    const $ = (id) => document.getElementById(id);
    const rows = () => [...document.querySelectorAll("#times tbody tr")];
    seen.title = document.title;
    seen.bars = document.querySelectorAll("#chart rect").length;
    seen.rows = rows().map((row) => Number(row.dataset.job));
    seen.best = $("now").textContent;
    rows()[4].querySelector("button").click();
    seen.selected = document.querySelectorAll("#chart rect.selected").length;
    seen.pressed = rows()[4].querySelector("button").getAttribute("aria-pressed");
    $("found").value = 0; $("found").dispatchEvent(new Event("input"));
    seen.first = $("told").textContent;
    seen.spoken = $("found").getAttribute("aria-valuetext");
    $("play").click();
    seen.playing = $("play").textContent;
    setTimeout(() => {
      seen.played = $("now").textContent;
      seen.wide = document.body.scrollWidth > innerWidth;
    }, 11000);
    """
    seen = run_in(page, script)
    assert seen["title"] == "Twenty jobs" and seen["bars"] == 100 and seen["rows"] == plan.order.tolist()
    assert seen["best"] == f"{last + 1} of {last + 1}: makespan {plan.cost:.0f}" == seen["played"]
    assert seen["selected"] == 5 and seen["pressed"] == "true" and seen["playing"] == "Pause"
    assert seen["first"].startswith("Found by the order given after") and seen["wide"] is False
    assert seen["spoken"] == f"1 of {last + 1}: makespan {plan.found[0].cost:.0f}"


def test_plot():
    pytest.importorskip("matplotlib")
    plan = schedule(TIMES[:6, :3], seconds=FAST)
    axes = plan.plot().axes[0]
    bars = sorted((round(bar.get_x()), round(bar.get_width())) for bar in axes.patches)
    wanted = zip(plan.start.ravel().astype(int), (plan.end - plan.start).ravel().astype(int), strict=True)
    assert bars == sorted(wanted)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["machine 1", "machine 2", "machine 3"]


def test_names_in_the_plot_stay_in_their_bars():
    pytest.importorskip("matplotlib")
    jobs = {"job": ["a long name", "another long name"], "saw": [50, 1], "drill": [1, 60]}
    figure = schedule(jobs, seconds=FAST).plot()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    assert sorted(text.get_text() for text in axes.texts) == ["a long name", "another long name"]
    for text in axes.texts:
        name = text.get_window_extent()
        bars = [bar.get_window_extent() for bar in axes.patches]
        assert any(bar.x0 <= name.x0 and name.x1 <= bar.x1 and bar.y0 <= name.y0 and name.y1 <= bar.y1 for bar in bars)


def test_one_job_is_told_in_the_singular():
    assert repr(schedule([[1.0, 2.0]], seconds=0.1)).startswith("Schedule(1 job on 2 machines, makespan 3")


def test_other_columns_beside_due_dates_are_let_be():
    table = {"job": ["a", "b"], "time": [1, 2], "due": [2, 2], "height": [7, 8], "wait": [0, 0]}
    assert schedule(table, "weighted_tardiness", seconds=FAST).weight.tolist() == [1, 1]
