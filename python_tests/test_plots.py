"""What the pictures show; how they look is for the eye."""

import pytest
import torch

from softrank_ext.sampling.trajectory import Frames
from softrank_ext.show import plots


def test_swapped_pairs_against_a_table():
    ranks = torch.tensor([[3, 0, 2, 1], [3, 0, 2, 1], [3, 1, 2, 0], [0, 3, 1, 2], [3, 0, 1, 2]])
    assert plots.swapped_pairs(ranks).tolist() == [0, 0, 1, 6, 1]


def test_labels_are_kept_apart_in_their_order():
    spread = plots._spread([0.5, 0.501, 0.99, 1.0, 0.0], gap=0.1)
    assert spread == pytest.approx([0.5, 0.6, 0.9, 1.0, 0.0])


def test_walk_has_a_line_per_item():
    pytest.importorskip("matplotlib")
    soft_ranks = torch.tensor([[1.0, 0.0, 0.5], [0.2, 0.4, 0.9]])
    ranks = torch.tensor([[2, 0, 1], [0, 1, 2]])
    walk, distance = plots.plot_walk([0.0, 1.0], soft_ranks, ranks, "title").axes
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
    walk = torch.tensor([[1.0, 0.0, 0.5], [0.7, 0.2, 0.9], [0.2, 0.6, 0.9]])
    forward, reverse = plots.plot_there_and_back([0.0, 0.5, 1.0], walk, FRAMES, ["c", "a", "b"], "title").axes
    ends = [
        {round(float(line.get_ydata()[at]), 4) for line in axes.lines} for axes, at in ((forward, -1), (reverse, 0))
    ]
    assert ends == [{0.2, 0.6, 0.9}] * 2
    lines = {tuple(round(float(y), 4) for y in line.get_ydata()) for line in reverse.lines}
    assert lines == {(0.2, 0.4, 1.0), (0.6, 0.3, 0.0), (0.9, 0.5, 0.5)}
    assert forward.get_xlim() == (0, 1) and reverse.get_xlim() == (1, 0)
    assert reverse.get_ylim()[0] > reverse.get_ylim()[1]  # rank 0 at the top
    assert [text.get_text() for text in forward.texts] == ["a", "b", "c"]


def test_sorting_marks_what_is_out_of_place_but_not_ties():
    pytest.importorskip("matplotlib")
    images = torch.zeros(3, 1, 28, 112, dtype=torch.uint8)
    for labels, wrong in (
        (["30", "10", "20"], []),
        (["10", "30", "20"], ["30  wrong", "10  wrong"]),
        (["30", "20", "20"], []),
    ):
        true_order = torch.tensor(sorted(range(3), key=lambda item: (labels[item], -item)))
        before, _, after = plots.plot_sorting(FRAMES, images, labels, true_order).axes
        assert [text.get_text() for text in before.texts] == [labels[item] for item in (0, 1, 2)]
        assert [text.get_text().split()[0] for text in after.texts] == [labels[item] for item in (1, 2, 0)]
        assert [text.get_text() for text in after.texts if "wrong" in text.get_text()] == wrong
        assert len(before.images) == len(after.images) == 3


def test_tours_say_how_much_longer_they_are():
    pytest.importorskip("matplotlib")
    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    frames = make_frames([[0.0] * 4] * 2, [[0, 2, 1, 3], [0, 1, 2, 3]], [[0, 1, 3, 2], [0, 1, 2, 3]])
    figure = plots.plot_tour(frames, square, torch.tensor([0, 1, 2, 3]))
    above, below = figure.axes[:2], figure.axes[2:]
    crossed = f"+{100 * ((2 + 2 * 2**0.5) / 4 - 1):.1f} %"
    assert [axes.get_xlabel() for axes in above] == [crossed, "+0.0 %"]
    assert [axes.get_xlabel() for axes in below] == [crossed, "+0.0 %"]
    assert below[0].lines[1].get_xdata() == pytest.approx([0, 1, 0, 1, 0])


def test_jigsaw_puts_patches_in_raster_order():
    pytest.importorskip("matplotlib")
    patches = torch.arange(4, dtype=torch.uint8).reshape(4, 1, 1, 1).expand(4, 3, 2, 2).clone()
    patches[:, :, 0, 1] += 10  # top right of each patch
    order = [[3, 0, 1, 2], [1, 3, 0, 2]]
    figure = plots.plot_jigsaw(make_frames([[0.0] * 4] * 2, order, order[::-1]), patches, torch.tensor([1, 3, 0, 2]))
    first = figure.axes[0]
    shown = first.images[0].get_array()[..., 0].tolist()
    assert shown == [[3, 13, 0, 10], [3, 3, 0, 0], [1, 11, 2, 12], [1, 1, 2, 2]]
    assert [axes.get_xlabel() for axes in figure.axes] == ["1 of 4", "4 of 4", "4 of 4", "1 of 4"]


def test_accuracy_over_size_is_drawn_on_a_logit_scale():
    pytest.importorskip("matplotlib")
    series = {"ours": [(9, 0.9), (32, 0.5)], "paper": [(9, 1.0), (32, 0.0)]}
    (axes,) = plots.plot_accuracy_over_size(series, "ours").axes
    assert axes.get_yscale() == "logit" and axes.get_xscale() == "log"
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines if line.get_label() in series}
    assert lines == {"ours": [0.9, 0.5], "paper": [0.999, 0.001]}
    open_marks = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_ydata()) for line in open_marks] == [[0.999], [0.001]]


def test_random_displacement_of_a_two_by_two_square():
    # Of 16 pairs of cells 4 are equal, 8 are neighbours, 4 lie across.
    assert plots.random_displacement(2, 2).tolist() == [0.25, 0.5, 0.25]
    distribution = plots.random_displacement(8, 8)
    assert float((distribution * torch.arange(15)).sum()) == pytest.approx(2 * 63 / 24)


def test_jigsaw_errors_show_shares_and_displacements():
    pytest.importorskip("matplotlib")
    shares = {"2x2": torch.tensor([[1.0, 0.5], [0.25, 0.75]])}
    figure = plots.plot_jigsaw_errors(shares, {"2x2": torch.tensor([6, 2, 2])})
    heat, bars = figure.axes[:2]
    assert [text.get_text() for text in heat.texts] == ["100", "50", "25", "75"]
    assert [bar.get_height() for bar in bars.patches] == pytest.approx([60, 20, 20])
    assert bars.get_title() == "mean 0.60 (random: 1.00)"


def test_accuracy_and_speed_has_a_line_per_way():
    pytest.importorskip("matplotlib")
    panels = {"3x3": {"compiled": [(100.0, 0.5, "K = 1"), (50.0, 0.75, "K = 2")], "eager": [(10.0, 0.75, "K = 2")]}}
    (axes,) = plots.plot_accuracy_and_speed(panels, {"3x3": 70.0}).axes
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[50, 75], [75]]
    assert list(axes.lines[2].get_xdata()) == [70, 70]
    assert [text.get_text() for text in axes.texts] == ["K = 1", "K = 2", "K = 2"]


def test_deliveries_say_which_pickups_come_late():
    pytest.importorskip("matplotlib")
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    tours = {"free": torch.tensor([0, 1, 2, 3]), "kept": torch.tensor([0, 3, 2, 1])}
    free, kept = plots.plot_deliveries(points, tours, [(3, 1)], "title").axes
    assert free.get_title() == "free\nlength 4.00, 1 of 1 deliveries before their pickup"
    assert kept.get_title() == "kept\nlength 4.00, every pickup first"
    assert len(free.lines) == len(kept.lines) + 1


def test_answers_are_drawn_in_the_order_given():
    pytest.importorskip("matplotlib")
    order = torch.tensor([1, 3, 2, 0])
    before = torch.tensor([[0, 0.2, 0.2, 0.2], [0.8, 0, 1, 1], [0.8, 0, 0, 0.3], [0.8, 0, 0.7, 0]])
    axes = plots.plot_pairwise(before, order).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "3", "2", "0"]
    assert [text.get_text() for text in axes.texts[:3]] == ["100", "100", "80"]  # item 1 before 3, 2 and 0
    value, error = torch.tensor([0.1, 0.9, 0.4, 0.6]), torch.tensor([0.01, 0.02, 0.03, 0.04])
    axes = plots.plot_top_k(value, error, order, 2, exact=value + 0.1).axes[0]
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([0.9, 0.6, 0.4, 0.1])
    assert list(axes.lines[-1].get_xdata()) == pytest.approx([1.0, 0.7, 0.5, 0.2])
    low, high = torch.tensor([2, 0, 1, 1]), torch.tensor([3, 1, 2, 3])
    axes = plots.plot_rank_interval(low, high, torch.zeros(4), torch.ones(4), order, 0.9).axes[0]
    assert [(bar.get_x() + 0.25, bar.get_width() - 0.5) for bar in axes.patches] == [(0, 1), (1, 2), (1, 1), (2, 1)]


def test_calibration_leaves_out_empty_bins():
    pytest.importorskip("matplotlib")
    nan = float("nan")
    predicted, observed = torch.tensor([0.1, nan, 0.8]), torch.tensor([0.2, nan, 0.7])
    axes = plots.plot_calibration(predicted, observed, torch.tensor([0.05, nan, 0.02]), 0.1).axes[0]
    assert list(axes.lines[1].get_xdata()) == pytest.approx([0.1, 0.8])
    assert list(axes.lines[1].get_ydata()) == pytest.approx([0.2, 0.7])
