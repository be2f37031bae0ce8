"""Draws of the tasks: functions of (seed, step), every row once per pass, uniform orders."""

import itertools

import pytest
import torch
from testing import chi_square

from softrank_ext.tasks.draws import generator_of, random_orders, rows_of_passes


def test_generators_differ_by_seed_step_and_use():
    keys = list(itertools.product((0, 1, 12), (0, 1, 2, 21), ("shuffle", "digits")))
    first = {torch.rand(4, generator=generator_of(*key)).numpy().tobytes() for key in keys}
    assert len(first) == len(keys)
    torch.testing.assert_close(
        torch.rand(4, generator=generator_of(3, 5, "shuffle")), torch.rand(4, generator=generator_of(3, 5, "shuffle"))
    )


def test_passes_take_every_row_once():
    count, size = 10, 4
    rows = torch.cat([rows_of_passes(count, 0, step * size, size, "x") for step in range(5)])
    assert sorted(rows[:10].tolist()) == list(range(10)) == sorted(rows[10:].tolist())
    assert rows[:10].tolist() != rows[10:].tolist()
    assert rows_of_passes(count, 0, 0, 20, "x").tolist() == rows.tolist()
    assert rows_of_passes(count, 1, 0, 20, "x").tolist() != rows.tolist()
    assert rows_of_passes(count, 0, 0, 20, "y").tolist() != rows.tolist()
    assert rows_of_passes(count, 0, 7, 0, "x").tolist() == []
    assert sorted(rows_of_passes(3, 0, 1, 11, "x").tolist()[2:]) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("items", [1, 4])
def test_random_orders_are_uniform(items):
    orders = random_orders(24_000, items, generator_of(0, 0, "test"))
    counts = orders.unique(dim=0, return_counts=True)[1]
    assert len(counts) == (24 if items == 4 else 1)
    if items == 4:
        uniform = torch.ones(24)
        assert chi_square(counts, uniform) > 1e-3
        assert chi_square(counts + 200 * (torch.arange(24) == 5), uniform) < 1e-3
