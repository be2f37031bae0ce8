"""What the pictures show; how they look is for the eye."""

import pytest
import torch

from softrank_ext import plots
from softrank_ext.trajectory import Frames


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


def test_trajectory_goes_from_noise_on_the_left_to_rank_0_at_the_top():
    pytest.importorskip("matplotlib")
    (axes,) = plots.plot_trajectory(FRAMES, "title").axes
    lines = {tuple(line.get_ydata()) for line in axes.lines}
    assert {tuple(round(float(y), 4) for y in line) for line in lines} == {
        (0.2, 0.4, 1.0),
        (0.6, 0.3, 0.0),
        (0.9, 0.5, 0.5),
    }
    assert all(list(line.get_xdata()) == [1.0, 0.5, 0.0] for line in axes.lines)
    assert axes.get_xlim() == (1, 0) and axes.get_ylim()[0] > axes.get_ylim()[1]


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
