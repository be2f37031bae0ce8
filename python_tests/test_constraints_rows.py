"""The arrays of one row of constraints, written out by hand."""

import time

import pytest

from softrank_ext.constraints import rows
from softrank_ext.constraints.rows import Row, arrays_of


def test_pairs_are_widened_to_groups():
    before, allowed, group = arrays_of(Row([(3, 1), (1, 0)], {}, [], [(0, 1)]), (0, 1, 2, 3), 4)
    assert before.nonzero()[0].tolist() == [1, 3, 3] and before.nonzero()[1].tolist() == [0, 0, 1]
    assert allowed is None
    assert group.tolist() == [0, 0, -1, -1]


def test_places_are_tightened_along_pairs():
    # 2 before 0 before 3, and 0 at place 1: what is left are 2 at place 0, and 3 and 4 behind. Item 1 is padding.
    before, allowed, group = arrays_of(Row([(2, 0), (0, 3)], {0: 1}, [], []), (0, 2, 3, 4), 5)
    assert before.sum() == 2 and group is None
    assert [allowed[item].nonzero()[0].tolist() for item in range(5)] == [[1], [], [0], [2, 3], [0, 1, 2, 3]]


def test_groups_narrow_each_others_places():
    # Two items that stay together, one of them at place 3 of five: the other is at 2 or 4.
    _, allowed, _ = arrays_of(Row([], {1: 3}, [], [(1, 4)]), (0, 1, 2, 3, 4), 5)
    assert allowed[4].nonzero()[0].tolist() == [2, 3, 4]  # another item's pin is left to the search
    _, allowed, _ = arrays_of(Row([], {}, [(2, 0), (2, 4)], []), (0, 1, 2, 3, 4), 5)
    assert allowed[2].nonzero()[0].tolist() == [1, 2, 3]


def test_no_rules():
    assert arrays_of(Row([], {}, [], []), (0, 2), 3) == (None, None, None)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            Row([(0, 2), (2, 1), (1, 0)], {}, [], []),
            r"^constraints contradict each other: \d before \d before \d before \d$",
        ),
        (Row([], {0: 2, 1: 2}, [], []), r"items 0 and 1 are both pinned to place 2$"),
        (Row([], {0: 2}, [(0, 2)], []), r"item 0 is pinned to place 2, which is forbidden to it$"),
        (Row([], {}, [(1, 0), (1, 1), (1, 2)], []), r"^no order keeps the constraints: item 1 has no place left$"),
        (
            Row([(0, 1)], {1: 0, 2: 2}, [], []),
            r"item 0 has no place left; what contradicts itself: 0 before 1, item 1 pinned to place 0$",
        ),
    ],
)
def test_contradictions_are_named(row, message):
    with pytest.raises(ValueError, match=message):
        arrays_of(row, (0, 1, 2), 3)


def test_a_contradiction_among_many_rules_is_named_at_once():
    row = Row([(i, i + 1) for i in range(299)], {5: 299}, [], [])
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"what contradicts itself: \d+ before \d+, item 5 pinned to place 299$"):
        arrays_of(row, tuple(range(300)), 300)
    assert time.monotonic() - began < 20  # minutes, rule by rule


def test_what_takes_long_to_tell_apart_is_named_as_it_is(monkeypatch):
    monkeypatch.setattr(rows, "MOST_SECONDS", 0.0)
    row = Row([(i, i + 1) for i in range(49)], {5: 49}, [], [])
    message = r"what contradicts itself, maybe with less: 0 before 1, .*, 19 before 20 and 30 more rules$"
    with pytest.raises(ValueError, match=message):
        arrays_of(row, tuple(range(50)), 50)


def test_a_part_that_is_too_hard_to_check_does_not_hide_the_contradiction(monkeypatch):
    whole, calls = rows._can_begin, []

    def can_begin(*arguments):
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("constraints are too hard to check")
        return whole(*arguments)

    monkeypatch.setattr(rows, "_can_begin", can_begin)
    with pytest.raises(ValueError, match="what contradicts itself: 0 before 1, item 1 pinned to place 0"):
        arrays_of(Row([(0, 1)], {1: 0, 2: 2}, [], []), (0, 1, 2), 3)
    assert len(calls) > 2
