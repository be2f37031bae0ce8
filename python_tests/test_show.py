"""What the pictures show; how they look is for the eye."""

import dataclasses
import json
import re
import sys

import pytest
import torch
from testing import needs_browser, run_in

from softrank_ext import Bridge, Drawing, Search, answers, improve, noise, ops, plan_tour, schedule, show
from softrank_ext.metrics import tour_length
from softrank_ext.ranking.report import Curve, RankingReport
from softrank_ext.sampling.trajectory import Frames, Trajectory, TrajectoryPoint
from softrank_ext.show import walk as walks

PRIOR = noise.PRIOR_STREAM


def test_swapped_pairs_against_a_table():
    ranks = torch.tensor([[3, 0, 2, 1], [3, 0, 2, 1], [3, 1, 2, 0], [0, 3, 1, 2], [3, 0, 1, 2]])
    assert show.swapped_pairs(ranks).tolist() == [0, 0, 1, 6, 1]


def test_labels_are_kept_apart_in_their_order():
    spread = walks._spread([0.5, 0.501, 0.99, 1.0, 0.0], gap=0.1)
    assert spread == pytest.approx([0.5, 0.6, 0.9, 1.0, 0.0])


def make_walk(times, soft_ranks):
    values = torch.tensor(soft_ranks)
    return show.Walk(times, values, *ops.decode_chamber(values))


def test_a_drawn_walk_goes_from_the_clean_order_to_the_noise_of_a_sample():
    clean = torch.tensor([1, 3, 2, 0])
    walk = show.draw_walk(4, 10, seed=3, clean_order=clean)
    assert walk.times == pytest.approx([k / 10 for k in range(11)])
    assert walk.order[0].tolist() == clean.tolist() and walk.ranks[0].tolist() == [3, 0, 2, 1]
    torch.testing.assert_close(walk.soft_ranks[0], torch.tensor([1, 0, 2 / 3, 1 / 3]))
    torch.testing.assert_close(walk.soft_ranks[-1], noise.uniform(3, torch.tensor([0]), 0, 4, stream=PRIOR)[0])
    assert not torch.equal(walk.soft_ranks, show.draw_walk(4, 10, seed=4, clean_order=clean).soft_ranks)
    drawn = int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(5)))
    by_generator, by_number = (show.draw_walk(4, seed=seed) for seed in (torch.Generator().manual_seed(5), drawn))
    assert torch.equal(by_generator.soft_ranks, by_number.soft_ranks)
    with pytest.raises(ValueError, match=r"clean_order must be a \(3,\) tensor of int64, got \(4,\) int64"):
        show.draw_walk(3, clean_order=clean)


def test_walk_runs_from_the_grid_to_the_prior():
    times, soft_ranks, *_ = show.draw_walk(6, 50, seed=1)
    assert (times[0], times[-1], len(times)) == (0.0, 1.0, 51)
    torch.testing.assert_close(soft_ranks[0].sort().values, torch.linspace(0, 1, 6))
    assert bool(((soft_ranks >= 0) & (soft_ranks <= 1)).all())


def test_walk_is_one_path():
    """A path's steps have deviation noise_scale / sqrt(steps); independent marginals would jump by about 0.3."""
    soft_ranks = show.draw_walk(200, 400, process=Bridge(0.5)).soft_ranks
    steps = soft_ranks.diff(dim=0)
    assert float(steps.abs().max()) < 6 * 0.5 / 20
    expected = 0.5 / 20
    inner = steps[100:300].square().mean().sqrt()
    assert 0.9 * expected < float(inner) < 1.1 * expected


def test_walk_without_noise_is_the_straight_line():
    times, soft_ranks, *_ = show.draw_walk(7, 4, process=Bridge(0.0), seed=2)
    share = torch.tensor(times)[:, None]
    torch.testing.assert_close(soft_ranks, (1 - share) * soft_ranks[0] + share * soft_ranks[-1])


def test_walk_has_a_line_per_item():
    pytest.importorskip("matplotlib")
    walked = make_walk([0.0, 1.0], [[1.0, 0.0, 0.5], [0.2, 0.4, 0.9]])
    assert walked.ranks.tolist() == [[2, 0, 1], [0, 1, 2]]
    walk, distance = show.plot_walk(walked, "title").axes
    assert [line.get_ydata() for line in walk.lines] == [
        pytest.approx([1.0, 0.2]),
        pytest.approx([0.0, 0.4]),
        pytest.approx([0.5, 0.9]),
    ]
    assert [text.get_text() for text in walk.texts] == ["0", "1", "2"] * 2
    assert list(distance.lines[0].get_ydata()) == [0, 2]


def make_frames(soft_ranks, order, predicted_order):
    times = [1 - step / (len(order) - 1) for step in range(len(order))]
    return Frames(times, torch.tensor(soft_ranks), torch.tensor(order), torch.tensor(predicted_order))


# Three items; the order [1, 2, 0] is not its own inverse.
FRAMES = make_frames(
    [[0.2, 0.6, 0.9], [0.4, 0.3, 0.5], [1.0, 0.0, 0.5]],
    [[0, 1, 2], [1, 0, 2], [1, 2, 0]],
    [[2, 1, 0], [1, 2, 0], [1, 2, 0]],
)


def test_there_and_back_meets_at_the_noise():
    pytest.importorskip("matplotlib")
    walk = make_walk([0.0, 0.5, 1.0], [[1.0, 0.0, 0.5], [0.7, 0.2, 0.9], [0.2, 0.6, 0.9]])
    forward, reverse = show.plot_there_and_back(walk, FRAMES, ["c", "a", "b"], "title").axes
    ends = [
        {round(float(line.get_ydata()[at]), 4) for line in axes.lines} for axes, at in ((forward, -1), (reverse, 0))
    ]
    assert ends == [{0.2, 0.6, 0.9}] * 2
    lines = {tuple(round(float(y), 4) for y in line.get_ydata()) for line in reverse.lines}
    assert lines == {(0.2, 0.4, 1.0), (0.6, 0.3, 0.0), (0.9, 0.5, 0.5)}
    assert forward.get_xlim() == (0, 1) and reverse.get_xlim() == (1, 0)
    assert reverse.get_ylim()[0] > reverse.get_ylim()[1]  # rank 0 at the top
    assert [text.get_text() for text in forward.texts] == ["a", "b", "c"]


def test_soft_ranks_of_a_trajectory_are_those_of_its_frames():
    pytest.importorskip("matplotlib")
    points = zip(FRAMES.times[:2], FRAMES.soft_ranks, FRAMES.order, FRAMES.predicted_order, strict=False)
    trajectory = Trajectory(TrajectoryPoint(*point) for point in points)
    for path in (trajectory, FRAMES):
        (axes,) = show.plot_soft_ranks(path, ["c", "a", "b"], "title").axes
        lines = {tuple(round(float(y), 4) for y in line.get_ydata()) for line in axes.lines}
        assert lines == {(0.2, 0.4, 1.0), (0.6, 0.3, 0.0), (0.9, 0.5, 0.5)}
        assert [text.get_text() for text in axes.texts] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="labels must be 3 texts, got 2"):
        show.plot_soft_ranks(FRAMES, ["a", "b"])


def test_sorting_marks_what_is_out_of_place_but_not_ties():
    pytest.importorskip("matplotlib")
    images = torch.zeros(3, 1, 28, 112, dtype=torch.uint8)
    for labels, wrong in (
        (["30", "10", "20"], []),
        (["10", "30", "20"], ["30  wrong", "10  wrong"]),
        (["30", "20", "20"], []),
    ):
        true_order = torch.tensor(sorted(range(3), key=lambda item: (labels[item], -item)))
        before, _, after = show.plot_sorting(FRAMES, images, labels, true_order).axes
        assert [text.get_text() for text in before.texts] == [labels[item] for item in (0, 1, 2)]
        assert [text.get_text().split()[0] for text in after.texts] == [labels[item] for item in (1, 2, 0)]
        assert [text.get_text() for text in after.texts if "wrong" in text.get_text()] == wrong
        assert len(before.images) == len(after.images) == 3


def test_tours_say_how_much_longer_they_are():
    pytest.importorskip("matplotlib")
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    frames = make_frames([[0.0] * 4] * 2, [[0, 2, 1, 3], [0, 1, 2, 3]], [[0, 1, 3, 2], [0, 1, 2, 3]])
    figure = show.plot_tour(frames, square, torch.tensor([0, 1, 2, 3]))
    above, below, scores = figure.axes[:2], figure.axes[2:4], figure.axes[4]
    crossed = f"+{100 * ((2 + 2 * 2**0.5) / 4 - 1):.1f} %"
    assert [axes.get_xlabel() for axes in above] == [crossed, "+0.0 %"]
    assert [axes.get_xlabel() for axes in below] == [crossed, "+0.0 %"]
    assert below[0].lines[1].get_xdata() == pytest.approx([0, 1, 0, 1, 0])
    for line in scores.lines:  # of the predicted orders alone
        assert line.get_label() == "predicted"
        assert line.get_ydata() == pytest.approx([100 * ((2 + 2 * 2**0.5) / 4 - 1), 0])
    told = scores.get_title("left").replace("\n", " ")
    assert "The first prediction, from noise alone, has 2 of 4 places as in the answer." in told
    figure.draw_without_rendering()
    assert scores._left_title.get_window_extent().x1 <= figure.bbox.x1  # of two steps, the narrowest figure
    same = make_frames([[0.0] * 4] * 2, [[0, 2, 1, 3], [0, 1, 2, 3]], [[0, 1, 2, 3], [0, 1, 2, 3]])
    title = show.plot_tour(same, square, torch.tensor([0, 1, 2, 3])).axes[4].get_title("left").replace("\n", " ")
    assert "The first prediction, from noise alone, is already the answer." in title


def test_jigsaw_puts_patches_in_raster_order():
    pytest.importorskip("matplotlib")
    patches = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1).expand(4, 3, 2, 2).clone()
    patches[:, :, 0, 1] += 10  # top right of each patch
    order = [[3, 0, 1, 2], [1, 3, 0, 2]]
    figure = show.plot_jigsaw(make_frames([[0.0] * 4] * 2, order, order[::-1]), patches, torch.tensor([1, 3, 0, 2]))
    first = figure.axes[0]
    shown = first.images[0].get_array()[..., 0].tolist()
    assert shown == [[3, 13, 0, 10], [3, 3, 0, 0], [1, 11, 2, 12], [1, 1, 2, 2]]
    assert [axes.get_xlabel() for axes in figure.axes[:4]] == ["1 of 4", "4 of 4", "4 of 4", "1 of 4"]
    assert [line.get_ydata().tolist() for line in figure.axes[4].lines] == [[1, 4], [4, 1]]


# Ten samples of four items; item 0 is last in eight of them and first in two.
SAMPLES = torch.tensor([[1, 3, 2, 0]] * 5 + [[1, 2, 3, 0]] * 3 + [[0, 1, 3, 2]] * 2)


def test_answers_are_drawn_in_the_order_given():
    pytest.importorskip("matplotlib")
    best = answers.consensus(SAMPLES)
    assert best.order.tolist() == [1, 3, 2, 0]
    for order in (best, best.order):
        axes = show.plot_pairwise(answers.pairwise(SAMPLES), order).axes[0]
        assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "3", "2", "0"]
        assert [text.get_text() for text in axes.texts[:6]] == ["100", "100", "80", "0", "70", "80"]
        exact = torch.tensor([0.1, 0.9, 0.4, 0.6])
        axes = show.plot_top_k(answers.top_k(SAMPLES, 2), order, exact=exact).axes[0]
        assert [bar.get_width() for bar in axes.patches] == pytest.approx([1.0, 0.5, 0.3, 0.2])
        assert list(axes.lines[-1].get_xdata()) == pytest.approx([0.9, 0.6, 0.4, 0.1])
        assert axes.get_title() == "P(among the first 2)"
        axes = show.plot_rank_interval(answers.rank_interval(SAMPLES, 0.5), order, level=0.5).axes[0]
        shown = [(bar.get_x() + 0.25, bar.get_width() - 0.5) for bar in axes.patches]
        assert shown == [(0, 0), (1, 1), (1, 1), (3, 0)]
        assert axes.get_title() == "place of each item, 50 % of samples"


def test_answers_have_an_order_of_their_own():
    pytest.importorskip("matplotlib")
    figures = (
        show.plot_pairwise(answers.pairwise(SAMPLES)),
        show.plot_top_k(answers.top_k(SAMPLES, 3)),
        show.plot_rank_interval(answers.rank_interval(SAMPLES)),
    )
    listed = [[label.get_text() for label in figure.axes[0].get_yticklabels()] for figure in figures]
    # Among the first three: 1 and 3 always, 2 in eight, 0 in two. Ends of the intervals add up to 1, 3, 3 and 4.
    assert listed == [["1", "3", "2", "0"], ["1", "3", "2", "0"], ["1", "0", "3", "2"]]


def test_padding_is_left_out_of_answers():
    pytest.importorskip("matplotlib")
    mask = torch.tensor([True, True, False, True, True])  # item 2 is padding, and what was 2 and 3 is 3 and 4
    padded = torch.tensor([0, 1, 3, 4])[SAMPLES]
    padded = torch.cat((padded, torch.full((len(padded), 1), 2)), 1)
    for order in (None, answers.consensus(padded, mask=mask)):
        figures = (
            show.plot_pairwise(answers.pairwise(padded, mask=mask), order),
            show.plot_top_k(answers.top_k(padded, 2, mask=mask), order),
            show.plot_rank_interval(answers.rank_interval(padded, mask=mask), order),
        )
        for figure in figures:
            labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
            assert labels[0] == "1" and sorted(labels) == ["0", "1", "3", "4"]
        assert figures[1].axes[0].get_title() == "P(among the first 2)"
        bars = [bar.get_width() for bar in figures[1].axes[0].patches]
        assert bars == pytest.approx([1.0, 0.5, 0.3, 0.2])


def test_answers_of_several_instances_are_refused():
    several = torch.stack((SAMPLES, SAMPLES))
    for plot, answer in (
        (show.plot_pairwise, answers.pairwise(several)),
        (show.plot_top_k, answers.top_k(several, 1)),
        (show.plot_rank_interval, answers.rank_interval(several)),
    ):
        with pytest.raises(ValueError, match=r"must be of one instance, \(N, ?N?\), got \(2, 4.*take one first"):
            plot(answer)


def test_calibration_leaves_out_empty_bins():
    pytest.importorskip("matplotlib")
    checked = answers.calibration(torch.stack((SAMPLES, SAMPLES)), torch.tensor([[1, 3, 2, 0], [1, 2, 0, 3]]), bins=4)
    filled = checked.pairs > 0
    assert 0 < int(filled.sum()) < 4
    axes = show.plot_calibration(checked).axes[0]
    assert list(axes.lines[1].get_xdata()) == pytest.approx(checked.predicted[filled].tolist())
    assert list(axes.lines[1].get_ydata()) == pytest.approx(checked.observed[filled].tolist())
    assert axes.get_title() == f"calibration, expected error {checked.expected_error:.3f}"


class TestImprovementPage:
    @pytest.fixture
    def found(self, make_model):
        model = make_model("pointer", fixed_start=True, symmetry="tour")
        points = torch.rand(2, 7, 2, generator=torch.Generator().manual_seed(0))
        settings = {"search": Search(fresh=0.0), "drawing": Drawing(record=True)}
        recorded = improve(model, points, tour_length, initial=3, rounds=6, seed=0, **settings)
        return recorded, points

    def test_what_it_holds(self, found):
        recorded, points = found
        page = show.improvement_page(recorded, points[1], row=1, best=2.0, title="A </script> tour")
        data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
        assert data["title"] == "A </script> tour" and data["best"] == 2.0 and len(data["rounds"]) == 7
        assert [row["lowest"] for row in data["rounds"]] == recorded.history[1].tolist()
        for number, row in enumerate(data["rounds"]):
            order = torch.tensor(row["order"])
            assert float(tour_length(points[1], order)) == pytest.approx(row["cost"])
            assert (len(row["drawn"]) == 7) == (number == 0)

    def test_it_says_how_far_the_length_falls(self, found):
        recorded, points = found
        history = torch.tensor([[9.0] * 7, [3.0, 3.0, 2.5, 2.5, 2.25, 2.25, 2.25]])
        falling = dataclasses.replace(recorded, history=history)
        page = show.improvement_page(falling, points[1], row=1, title="A tour")
        assert "2 of 6 rounds found a shorter tour: from 3.0000 to 2.2500, 25.00 % less." in page
        page = show.improvement_page(falling, points[0], title="A tour")
        already = "The shortest of the initial draws is already the answer: none of the 6 rounds is shorter."
        assert already in page
        rounded = dataclasses.replace(recorded, history=torch.tensor([[3.0] * 6 + [3.0 - 2.4e-7]] * 2))
        assert already in show.improvement_page(rounded, points[0], title="A tour")

    @needs_browser
    def test_a_flat_length_has_a_scale(self, found, tmp_path):
        """All rounds as long as the best known tour, by a rounding less."""
        recorded, points = found
        flat = dataclasses.replace(recorded, history=torch.full((2, 7), 2.0))
        page = tmp_path / "page.html"
        page.write_text(show.improvement_page(flat, points[0], best=2.0 + 1e-9, title="A tour"), encoding="utf-8")
        seen = run_in(
            page,
            'seen.told = told.textContent; seen.chart = [...chart.querySelectorAll("text")].map((e) => e.textContent);',
        )
        assert "0.00 % above the best known" in seen["told"] and "-0.00" not in seen["told"]
        assert seen["chart"][:3] == ["2.000", "2.010", "2.020"]

    @needs_browser
    def test_a_browser_plays_it(self, found, tmp_path):
        recorded, points = found
        page = tmp_path / "page.html"
        page.write_text(show.improvement_page(recorded, points[0], title="A tour"), encoding="utf-8")
        script = """
        const $ = (id) => document.getElementById(id);
        const read = () => [$("now").textContent, $("told").textContent, document.querySelectorAll(".drawn").length];
        seen.first = read();
        $("round").value = 4; $("round").dispatchEvent(new Event("input"));
        seen.fourth = read();
        $("play").click();
        setTimeout(() => { seen.played = $("now").textContent; }, 5000);
        """
        seen = run_in(page, script)
        assert seen["first"][0] == "round 0 of 6" and "The shortest of the initial draws." in seen["first"][1]
        drawn = int(recorded.draws_of_rounds[4].noised[0].sum())
        assert seen["fourth"][0] == "round 4 of 6" and f"{drawn} of 7 places drawn again" in seen["fourth"][1]
        assert seen["fourth"][2] == drawn + 1  # the edges of a stretch
        assert seen["played"] == "round 6 of 6"

    def test_what_is_refused(self, found):
        recorded, points = found
        with pytest.raises(ValueError, match=r"points must be \(N, 2\), got \(2, 7, 2\)"):
            show.improvement_page(recorded, points, title="")


def test_without_matplotlib_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    curve = Curve([], [], [], 0.0)
    report = RankingReport({}, {}, curve, curve, curve, 0.0, 0, 0, "")
    drawn = (
        lambda: plan_tour([(0, 0), (1, 1)], metric="plane", rounds=1, model=None).plot(),
        lambda: schedule([[1, 2], [2, 1]], seconds=0.1, model=None).plot(),
        report.plot,
        lambda: show.plot_walk(make_walk([0.0, 1.0], [[0.0, 1.0], [1.0, 0.0]])),
    )
    for draw in drawn:
        with pytest.raises(ImportError, match=r'pictures need matplotlib: pip install "softrank_ext\[plots\]"'):
            draw()
