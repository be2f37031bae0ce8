"""2-opt: right by hand and by brute force, compiled and plain, and what it refuses."""

import time

import numpy as np
import pytest
import torch

from softrank_ext import metrics
from softrank_ext._libraries import uses_reference
from softrank_ext.tasks import tsp
from softrank_ext.tasks.two_opt import plain_two_opt, two_opt


def test_the_tour_task_exports_it():
    assert tsp.two_opt is two_opt and tsp.plain_two_opt is plain_two_opt


def plainly(points: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    pairs = zip(points.numpy(), order.numpy(), strict=True)
    return torch.from_numpy(np.stack([plain_two_opt(places, tour) for places, tour in pairs]))


class TestTwoOpt:
    @pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 30])
    def test_tours_stay_tours_and_never_get_longer(self, n):
        generator = torch.Generator().manual_seed(n)
        points = torch.rand(60, n, 2, generator=generator, dtype=torch.float64)
        order = torch.rand(60, n, generator=generator).argsort(1)
        for shorter in (two_opt(points, order), plainly(points, order)):
            assert torch.equal(shorter.sort(1).values, torch.arange(n).expand(60, n))
            assert torch.equal(shorter[:, 0], order[:, 0])
            assert (metrics.tour_length(points, shorter) <= metrics.tour_length(points, order) + 1e-12).all()

    def test_no_reversal_helps_any_more(self):
        """With all points as neighbours the tours are 2-optimal: checked over all pairs of edges."""
        points = torch.rand(20, 12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        order = torch.arange(12).expand(20, 12)
        for shorter in (two_opt(points, order, neighbours=11), plainly(points, order)):
            length = metrics.tour_length(points, shorter)
            for i in range(12):
                for j in range(i + 1, 12):
                    reversed_part = shorter.clone()
                    reversed_part[:, i : j + 1] = shorter[:, i : j + 1].flip(1)
                    assert (metrics.tour_length(points, reversed_part) >= length - 1e-9).all()

    def test_equal_and_collinear_points_end(self):
        points = torch.zeros(2, 40, 2)
        points[1, :, 0] = torch.arange(40) % 7
        order = torch.rand(2, 40, generator=torch.Generator().manual_seed(1)).argsort(1)
        shorter = two_opt(points, order)
        assert metrics.tour_length(points, shorter)[1] == 12.0

    @pytest.mark.skipif(uses_reference(), reason="compares the compiled with the plain one")
    def test_it_is_as_good_as_plain_numpy_and_much_faster(self):
        generator = torch.Generator().manual_seed(2)
        points = torch.rand(12, 100, 2, generator=generator, dtype=torch.float64)
        order = torch.rand(12, 100, generator=generator).argsort(1)
        started = time.perf_counter()
        plain = plainly(points, order)
        middle = time.perf_counter()
        shorter = two_opt(points, order)
        ours = time.perf_counter() - middle
        assert metrics.tour_length(points, shorter).mean() < 1.03 * metrics.tour_length(points, plain).mean()
        assert (middle - started) / ours > 10  # bench/ops.py measures it: over 50 on a machine that is not busy

    def test_errors(self):
        order = torch.tensor([[1, 3, 2, 0]])
        with pytest.raises(
            ValueError, match=r"points must be a \(1, 4, 2\) tensor of .*, got \(1, 3, 2\) float\d\d; it must fit order"
        ):
            two_opt(torch.zeros(1, 3, 2), order)
        with pytest.raises(ValueError, match="order must hold each of 0 to 3 once per row"):
            two_opt(torch.zeros(1, 4, 2), torch.tensor([[1, 3, 3, 0]]))
        with pytest.raises(ValueError, match="neighbours must be an integer of at least 1, got 0"):
            two_opt(torch.zeros(1, 4, 2), order, 0)


@pytest.mark.parametrize("wrong", (float("nan"), float("inf"), -float("inf"), 1e200))
def test_two_opt_refuses_points_without_lengths(wrong):
    points = torch.rand(1, 6, 2, dtype=torch.float64)
    points[0, 3, 1] = wrong
    with pytest.raises(ValueError, match=r"points must be finite and below 1e\+100 in size"):
        two_opt(points, torch.arange(6)[None])
