"""What a model knows of its data: checked, and equal after a way through JSON."""

import json
from dataclasses import asdict

import pytest

from softrank_ext import DataFacts


def test_nothing_is_known_by_default():
    facts = DataFacts()
    assert (facts.symmetry, facts.fixed_start, facts.scaling) == ("none", False, "none")
    assert facts.direction is facts.num_items is facts.value_range is None


def test_through_json():
    facts = DataFacts("tour", "random", True, (5, 50), (0.0, 1.0), "unit square")
    again = DataFacts(**json.loads(json.dumps(asdict(facts))))
    assert again == facts and again.num_items == (5, 50) and isinstance(again.value_range, tuple)
    assert DataFacts(num_items=(9, 9)).num_items == (9, 9)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"symmetry": "mirror"}, "symmetry must be one of 'none', 'tour', got 'mirror'"),
        ({"direction": "north"}, "direction must be one of None, 'file', 'counterclockwise', 'random', got 'north'"),
        ({"scaling": "log"}, "scaling must be one of 'none', 'unit square', got 'log'"),
        ({"fixed_start": 1}, "fixed_start must be True or False, got 1"),
        ({"num_items": (9, 5)}, r"num_items must be two ascending numbers or None, got \(9, 5\)"),
        ({"num_machines": (0, 5)}, "num_machines must be an integer of at least 1, got 0"),
        ({"num_items": 9}, "num_items must be two ascending numbers or None, got 9"),
        ({"num_items": (0, 5)}, "num_items must be an integer of at least 1, got 0"),
        ({"num_items": (1.5, 5)}, "num_items must be an integer of at least 1, got 1.5"),
        ({"value_range": (0.0,)}, r"value_range must be two ascending numbers or None, got \(0.0,\)"),
    ],
)
def test_says_what_is_wrong(fields, message):
    with pytest.raises(ValueError, match=message):
        DataFacts(**fields)
