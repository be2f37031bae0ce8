"""Lengths of tours as costs: by hand, and what they refuse."""

import math

import pytest
import torch

from softrank_ext.costs import MatrixTourLength, TourLength, costs_of

SQUARE = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]])
ONE_WAY = torch.tensor([[[0.0, 1.0, 5.0], [9.0, 0.0, 2.0], [3.0, 7.0, 0.0]]])


def test_lengths_by_hand():
    order = torch.tensor([[0, 1, 2, 3], [1, 3, 2, 0]])
    items = SQUARE.expand(2, 4, 2)
    assert TourLength()(items, order).tolist() == pytest.approx([4.0, 2 + 2 * math.sqrt(2)], abs=1e-12)
    assert TourLength(closed=False)(items, order).tolist() == pytest.approx([3.0, 1 + 2 * math.sqrt(2)], abs=1e-12)
    assert costs_of(TourLength(), items, order).dtype == torch.float64


def test_one_way_distances_by_hand():
    order = torch.tensor([[0, 1, 2], [1, 0, 2]])
    items = ONE_WAY.expand(2, 3, 3)
    assert MatrixTourLength()(items, order).tolist() == [1 + 2 + 3, 9 + 5 + 7]
    assert MatrixTourLength(closed=False)(items, order).tolist() == [1 + 2, 9 + 5]
    whatever = torch.zeros(2, 3, 2)
    assert MatrixTourLength(distances=ONE_WAY[0])(whatever, order).tolist() == [6, 21]
    assert MatrixTourLength(closed=False, distances=ONE_WAY[0].numpy())(whatever, order).tolist() == [3, 14]


@pytest.mark.parametrize("closed", (True, False))
def test_leading_dimensions(closed):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2, 3, 5, 2, generator=generator)
    order = torch.rand(2, 3, 5, generator=generator).argsort(-1)
    lengths = TourLength(closed)(points, order)
    tables = MatrixTourLength(closed)(torch.cdist(points.double(), points.double()), order)
    assert lengths.shape == tables.shape == (2, 3)
    assert torch.equal(lengths[1, 2], TourLength(closed)(points[1, 2], order[1, 2]))
    torch.testing.assert_close(lengths, tables, rtol=0, atol=1e-7)


def test_sizes_of_one_and_none():
    one = torch.zeros(2, 1, dtype=torch.int64)
    for closed in (True, False):
        assert TourLength(closed)(torch.rand(2, 1, 2), one).tolist() == [0, 0]
        assert MatrixTourLength(closed)(torch.zeros(2, 1, 1), one).tolist() == [0, 0]
        assert TourLength(closed)(torch.rand(0, 4, 2), one.new_zeros(0, 4)).shape == (0,)


def test_errors():
    order = torch.tensor([[1, 2, 0]])
    with pytest.raises(ValueError, match="closed must be True or False, got 'no'"):
        TourLength("no")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"items must be a \(1, 3, D\) tensor of .*, got \(1, 4, 2\) float32"):
        TourLength(closed=False)(SQUARE, order)
    with pytest.raises(ValueError, match=r"distances must be a \(N, 3\) tensor of float64, got \(3, 2\)"):
        MatrixTourLength(distances=torch.zeros(3, 2))
    with pytest.raises(
        ValueError, match=r"distances must be a \(3, 3\) tensor of float64, got \(2, 2\) float64; it must fit"
    ):
        MatrixTourLength(distances=torch.zeros(2, 2))(torch.zeros(1, 3, 2), order)
    with pytest.raises(ValueError, match=r"items must be a \(1, 3, 3\) tensor of .*; it must be distances"):
        MatrixTourLength()(torch.zeros(1, 3, 2), order)
    with pytest.raises(ValueError, match=r"distances must be finite and below 1e\+100 in size"):
        MatrixTourLength(distances=torch.tensor([[0.0, math.inf], [1.0, 0.0]]))
