"""Which part of an order is drawn again."""

import pytest
import torch

from softrank_ext.sampling import Near, Part, Tail, Unsure, Whole
from softrank_ext.sampling.parts import Present, chosen

ORDER = torch.tensor([[1, 3, 2, 0, 4], [4, 0, 1, 2, 3]])
ITEMS = torch.tensor([[0.0, 10.0, 1.0, 2.5, 40.0], [0.0, 1.0, 2.0, 3.0, 4.0]])[..., None]


def present(uniform=0.0, size=0.0, keeps_first=False, is_turned=False):
    return Present(
        ITEMS, ORDER, torch.full((2, 5), uniform, dtype=torch.float64), size, keeps_first, is_turned,
        lambda order: torch.tensor([[-0.1, -9.0, -0.1, -8.0, 0.0]]).expand(2, 5),
    )  # fmt: skip


def free_places(start):
    return start.noised.gather(1, start.order).int().tolist()


def test_tails_and_parts_by_hand():
    assert free_places(chosen(Tail(2, 3), present(size=0.0))) == [[0, 0, 0, 1, 1]] * 2
    assert free_places(chosen(Tail(2, 3), present(size=0.99))) == [[0, 0, 1, 1, 1]] * 2
    assert free_places(chosen(Part(2, 2), present(uniform=0.0))) == [[1, 1, 0, 0, 0]] * 2
    assert free_places(chosen(Part(2, 2), present(uniform=0.99))) == [[0, 0, 0, 1, 1]] * 2
    assert free_places(chosen(Part(2, 2), present(uniform=0.0, keeps_first=True))) == [[0, 1, 1, 0, 0]] * 2
    assert free_places(chosen(Part(2, 2), present(uniform=0.0, is_turned=True))) == [[0, 0, 0, 1, 1]] * 2


def test_shares_are_of_the_items():
    assert [sum(row) for row in free_places(chosen(Part(0.5, 0.5), present()))] == [3, 3]
    assert [sum(row) for row in free_places(chosen(Part(0.01, 0.01), present()))] == [2, 2]  # fewer would be nothing
    assert [sum(row) for row in free_places(chosen(Tail(1.0, 1.0), present(keeps_first=True)))] == [4, 4]


def test_near_items():
    # The centre is the item at the last place: 4, of number 40, and 3, of number 3.
    assert chosen(Near(2, 2), present(uniform=0.99)).noised.int().tolist() == [[0, 1, 0, 0, 1], [0, 0, 1, 1, 0]]
    assert chosen(Near(3, 3), present(uniform=0.0)).noised.int().tolist()[0] == [0, 1, 1, 1, 0]  # around item 1


def test_unsure_places():
    # With equal uniform numbers the lowest log-probabilities win: places 1 and 3.
    assert free_places(chosen(Unsure(2, 2), present(uniform=0.5))) == [[0, 1, 0, 1, 0]] * 2


def test_the_whole_order():
    start = chosen(Whole(0.3), present())
    assert start.noised is None and start.t == 0.3 and torch.equal(start.order, ORDER)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Part(0, 3), "least must be an integer of at least 1, got 0"),
        (lambda: Part(0.0, 0.5), "least must be an integer or a share above 0 and at most 1, got 0.0"),
        (lambda: Tail(5, 3), "least must be at most most = 3, got 5"),
        (lambda: Near(0.1, 1.5), "most must be an integer or a share above 0 and at most 1, got 1.5"),
        (lambda: Whole(0), "t must be above 0 and at most 1, got 0"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
