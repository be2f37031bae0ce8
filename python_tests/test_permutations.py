"""Tests of permutations.py. The example is not its own inverse, so mixing order and ranks shows."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softrank_ext.permutations import arrange, chamber_margin, check_order, check_slots, compose, order_of, ranks_of

ORDER, RANKS = [1, 3, 2, 0], [3, 0, 2, 1]
any_order = st.integers(0, 12).flatmap(lambda n: st.permutations(range(n)))


def test_ranks_and_order_of_the_example():
    for shape in ((4,), (1, 4), (1, 1, 4)):
        order, ranks = torch.tensor(ORDER).reshape(shape), torch.tensor(RANKS).reshape(shape)
        assert torch.equal(ranks_of(order), ranks)
        assert torch.equal(order_of(ranks), order)
    rows = torch.tensor([ORDER, [2, 0, 1, 3]])
    assert ranks_of(rows).tolist() == [RANKS, [1, 2, 0, 3]]


@given(any_order)
def test_ranks_of_and_order_of_undo_each_other(items):
    order = torch.tensor(items, dtype=torch.int64)
    ranks = ranks_of(order)
    assert ranks.tolist() == [items.index(item) for item in range(len(items))]
    assert torch.equal(order_of(ranks), order)
    assert torch.equal(ranks_of(order_of(order)), order)


def test_inverse_of_no_rows():
    assert ranks_of(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4)
    assert ranks_of(torch.empty(3, 0, dtype=torch.int64)).shape == (3, 0)


@pytest.mark.parametrize(("function", "name"), [(ranks_of, "order"), (order_of, "ranks")])
def test_inverse_errors(function, name):
    wanted = rf"^{name} must be a \(\.\.\., N\) tensor of int64, got "
    with pytest.raises(ValueError, match=wanted + r"\(2, 3\) float32; did you pass soft_ranks\?$"):
        function(torch.zeros(2, 3))
    with pytest.raises(ValueError, match=wanted + r"\(3,\) int32$"):
        function(torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match=wanted + r"\(\) int64$"):
        function(torch.tensor(0))
    with pytest.raises(TypeError, match=wanted + "list$"):
        function(ORDER)


def test_arrange():
    items = torch.tensor([[10.0, 11.0, 12.0, 13.0], [20.0, 21.0, 22.0, 23.0]])
    order = torch.tensor([ORDER, [2, 0, 1, 3]])
    assert arrange(items, order).tolist() == [[11, 13, 12, 10], [22, 20, 21, 23]]
    assert arrange(items[0], order[0]).tolist() == [11, 13, 12, 10]
    pictures = items[:, :, None, None].expand(2, 4, 3, 5) + torch.rand(3, 5, generator=torch.manual_seed(0))
    arranged = arrange(pictures, order)
    for row, place in itertools.product(range(2), range(4)):
        assert torch.equal(arranged[row, place], pictures[row, int(order[row, place])])


def test_arrange_sorts_by_the_order_of_soft_ranks():
    soft_ranks = torch.tensor([0.9, 0.1, 0.5, 0.3])
    torch.testing.assert_close(
        arrange(soft_ranks, torch.tensor(ORDER)), torch.tensor([0.1, 0.3, 0.5, 0.9]), rtol=0, atol=0
    )


def test_arrange_error():
    with pytest.raises(
        ValueError, match=r"^items must begin with the shape of order \(2, 4\), got items of shape \(2, 3, 5\)$"
    ):
        arrange(torch.zeros(2, 3, 5), torch.zeros(2, 4, dtype=torch.int64))


def test_compose():
    order, slots = torch.tensor([ORDER]), torch.tensor([[2, 0, 3, 1]])
    assert compose(order, slots).tolist() == [[2, 1, 0, 3]]
    items = torch.tensor([[10.0, 11.0, 12.0, 13.0]])
    assert torch.equal(arrange(items, compose(order, slots)), arrange(arrange(items, order), slots))
    with pytest.raises(ValueError, match=r"^order and slots must have one shape, got \(1, 4\) and \(1, 3\)$"):
        compose(order, slots[:, :3])


@given(any_order, st.data())
def test_compose_with_the_inverse_is_the_identity(items, data):
    order = torch.tensor(items, dtype=torch.int64)
    assert compose(order, ranks_of(order)).tolist() == list(range(len(items)))
    assert compose(ranks_of(order), order).tolist() == list(range(len(items)))


def test_check_order():
    check_order(torch.tensor(ORDER))
    check_order(torch.tensor([ORDER, RANKS]))
    check_order(torch.empty(0, 4, dtype=torch.int64))
    check_order(torch.empty(2, 0, dtype=torch.int64))
    for wrong, error, got in ((torch.zeros(3), ValueError, r"\(3,\) float32"), (ORDER, TypeError, "list")):
        with pytest.raises(error, match=rf"^order must be a \(B, N\) or \(N,\) tensor of int64, got {got}$"):
            check_order(wrong)
    with pytest.raises(ValueError, match=r"^tour must be a \(B, N\) or \(N,\) tensor of int64, got \(1, 1, 4\) int64$"):
        check_order(torch.tensor([[ORDER]]), "tour")
    for row in ([1, 3, 3, 0], [1, 4, 2, 0], [1, -1, 2, 3]):
        wanted = rf"^order must hold each of 0 to 3 once per row, row 1 is \[{', '.join(map(str, row))}\]$"
        with pytest.raises(ValueError, match=wanted):
            check_order(torch.tensor([ORDER, row]))


def test_check_slots():
    mask = torch.tensor([[True, False, True, True]])
    check_slots(torch.tensor([[2, 0, 3, 1]]), mask)
    check_slots(torch.tensor([ORDER]), None)
    with pytest.raises(ValueError, match=r"^order must list real slots before padded ones, row 0 is \[1, 3, 2, 0\]$"):
        check_slots(torch.tensor([ORDER]), mask)
    with pytest.raises(ValueError, match=r"^order must have the shape of mask \(1, 4\), got \(2, 4\)$"):
        check_slots(torch.tensor([ORDER, RANKS]), mask)
    with pytest.raises(ValueError, match=r"^forced_order must hold each of 0 to 1 once per row, row 0 is \[1, 1\]$"):
        check_slots(torch.tensor([[1, 1]]), None, "forced_order")


def test_chamber_margin():
    # Sorted: 0.125 0.25 0.5 1; the smallest gap is 0.125.
    soft_ranks = torch.tensor([1.0, 0.125, 0.5, 0.25])
    assert float(chamber_margin(soft_ranks)) == 0.0625
    assert chamber_margin(torch.stack((soft_ranks, soft_ranks * 2))).tolist() == [0.0625, 0.125]
    assert float(chamber_margin(torch.tensor([0.5, 0.25, 0.5]))) == 0.0
    mask = torch.tensor([True, False, True, True])
    assert float(chamber_margin(soft_ranks, mask)) == 0.125
    for content in (math.nan, math.inf, 0.49):
        assert float(chamber_margin(torch.tensor([1.0, content, 0.5, 0.25]), mask)) == 0.125


def test_chamber_margin_of_the_grid():
    # On the grid of N ranks neighbours are 1 / (N - 1) apart.
    grid = torch.tensor(RANKS, dtype=torch.float64) / 3
    assert math.isclose(float(chamber_margin(grid)), 1 / 6, abs_tol=1e-15)


def test_chamber_margin_where_fewer_than_two_items_are_real():
    assert chamber_margin(torch.zeros(2, 1)).tolist() == [math.inf, math.inf]
    assert chamber_margin(torch.zeros(2, 0)).tolist() == [math.inf, math.inf]
    mask = torch.tensor([[True, False, False], [False, False, False], [True, True, False]])
    assert chamber_margin(torch.tensor([[0.5, 0.5, 0.0]] * 3), mask).tolist() == [math.inf, math.inf, 0.0]
    assert chamber_margin(torch.zeros(0, 3)).shape == (0,)


def test_order_survives_any_move_within_the_margin():
    soft_ranks = torch.rand(50, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    signs = torch.randint(0, 2, (50, 9), generator=torch.Generator().manual_seed(2)) * 2 - 1
    margin = chamber_margin(soft_ranks)[:, None]
    assert torch.equal((soft_ranks + 0.999 * margin * signs).argsort(1), soft_ranks.argsort(1))
    gap = soft_ranks.sort(1).values.diff(dim=1)
    closest = soft_ranks.argsort(1).gather(1, gap.argmin(1, keepdim=True))
    pushed = soft_ranks.scatter_add(1, closest, 2.002 * margin)
    assert (pushed.argsort(1) != soft_ranks.argsort(1)).any(1).all()


def test_chamber_margin_error():
    with pytest.raises(ValueError, match=r"^mask must have the shape of soft_ranks \(2, 3\), got \(3,\)$"):
        chamber_margin(torch.zeros(2, 3), torch.ones(3, dtype=torch.bool))


def test_what_is_no_order_is_told():
    """Their inverse had memory in it that nothing was written to."""
    for function, name in ((ranks_of, "order"), (order_of, "ranks")):
        with pytest.raises(ValueError, match=rf"{name} must hold each of 0 to 2 once per row, got one more than once"):
            function(torch.tensor([[0, 1, 2], [0, 0, 2]]))
        with pytest.raises(ValueError, match=rf"{name} must hold numbers from 0 to 2, got -1 to 2"):
            function(torch.tensor([0, -1, 2]))
    with pytest.raises(ValueError, match="order must hold numbers from 0 to 2, got 0 to 5"):
        arrange(torch.rand(3, 2), torch.tensor([0, 5, 1]))
    with pytest.raises(ValueError, match="slots must hold numbers from 0 to 1, got 0 to 9"):
        compose(torch.tensor([0, 1]), torch.tensor([0, 9]))
