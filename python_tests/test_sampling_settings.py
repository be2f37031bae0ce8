"""What `improve` may choose."""

import pytest

from softrank_ext import Beam, Draw, Drawing, Search
from softrank_ext.choices import Greedy
from softrank_ext.model import DataFacts
from softrank_ext.sampling import Annealed, Part, Tail


def test_what_is_taken():
    assert Search(rebuild=(Part(), Tail(2, 5)), accept=Annealed(0.1)).accept.decay == 0.95
    assert Drawing("greedy", first_row=3).first_row == 3


def test_draws_from_copies_are_sharper():
    alone, copies = DataFacts(), DataFacts(copies="square")
    plain = Drawing(copies=False)
    assert [Drawing().choice(facts) for facts in (alone, copies)] == [Draw(), Draw(0.5)]
    assert Drawing().num_copies(copies) == 8 and Drawing("greedy").choice(copies) == Greedy()
    assert plain.num_copies(copies) == 1 and plain.choice(copies) == Draw()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Search(rebuild="tail"), "rebuild must be Part, Tail, Near, Unsure, Whole, a tuple of them, or None"),
        (lambda: Search(rebuild=()), "rebuild must be Part, Tail"),
        (lambda: Search(accept="worse"), r'accept must be "better" or Annealed\(...\), got \'worse\''),
        (lambda: Search(polish=3), r"polish must be a function polish\(items, order\) -> order, got int"),
        (lambda: Search(fresh=1.5), "fresh must be from 0 to 1, got 1.5"),
        (lambda: Search(pool=0), "pool must be an integer of at least 1, got 0"),
        (lambda: Annealed(start=-1), "start must be at least 0 and finite, got -1"),
        (lambda: Annealed(decay=0), "decay must be above 0 and at most 1, got 0"),
        (lambda: Drawing(Beam(2)), "decode must be a draw or greedy here"),
        (lambda: Drawing(copies=2), "copies must be True or False, got 2"),
        (lambda: Drawing(first_row=-1), "first_row must be an integer of at least 0"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_long_orders_have_a_small_pool():
    assert [Search().pool_size(N) for N in (1, 6, 20, 32, 50, 100, 1000)] == [8, 8, 8, 5, 3, 3, 3]
    assert Search(pool=11).pool_size(50) == 11
