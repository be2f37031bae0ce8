"""What the pictures show; how they look is for the eye."""

import pytest
import torch

from softrank_ext import plots


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
