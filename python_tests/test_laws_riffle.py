"""The riffle law against published numbers, itself and a table."""

import math

import pytest
import torch
from example_laws import double_by_default, validation_by_default  # noqa: F401

from softrank_ext.laws import Riffle, rising_sequences


def test_riffle_against_published_numbers():
    # Bayer and Diaconis 1992, table 1: total variation distance of 52 cards after 5 to 10 shuffles.
    distances = Riffle(52, torch.arange(5, 11)).total_variation()
    torch.testing.assert_close(distances, torch.tensor([0.924, 0.614, 0.334, 0.167, 0.085, 0.043]), atol=5e-4, rtol=0)
    # One shuffle: the unshuffled deck has (n + 1) / 2^n, and 2^n - n orders are reachable.
    law = Riffle(6, 1)
    orders = law.enumerate_support()
    probs = law.log_prob(orders).exp()
    assert probs[0].item() == pytest.approx(7 / 64)
    assert int((probs > 0).sum()) == 64 - 6


def test_two_riffles_are_one_after_another():
    one, two = Riffle(4, 1), Riffle(4, 2)
    orders = one.enumerate_support()
    probs = one.log_prob(orders).exp()
    composed = torch.zeros(24)
    index = {tuple(order): i for i, order in enumerate(orders.tolist())}
    for first, p in zip(orders, probs, strict=True):
        for second, q in zip(orders, probs, strict=True):
            composed[index[tuple(first[second].tolist())]] += p * q
    torch.testing.assert_close(two.log_prob(orders).exp(), composed)


@pytest.mark.parametrize("shuffles", [53, 54, 100, pytest.param(2000, marks=pytest.mark.slow)])
def test_riffle_of_many_cards_and_shuffles(shuffles):
    law = Riffle(200, shuffles)
    uniform_log_prob = -math.lgamma(201)
    order = torch.randperm(200)
    assert law.log_prob(order).item() == pytest.approx(uniform_log_prob, abs=1e-9)
    assert law.entropy().item() == pytest.approx(-uniform_log_prob, abs=1e-9)
    assert law.log_prob_top(order[:100]).item() == pytest.approx(math.lgamma(101) - math.lgamma(201), abs=1e-9)
    assert 0 <= law.total_variation().item() < 1e-12
    # A draw keeps 53 bits: no two of 200 uniform numbers that differ in the last of them may tie.
    uniform = torch.arange(200, 0, -1).double() * 2.0**-53
    assert law.from_uniform(uniform).tolist() == list(range(199, -1, -1))


def test_rising_sequences_against_a_table():
    # In 1 3 2 0 they are 0; 1 2; 3. In 2 0 3 1 they are 0 1; 2 3, though the order itself descends twice.
    orders = torch.tensor([[0, 1, 2, 3], [1, 3, 2, 0], [2, 0, 3, 1], [3, 2, 1, 0]])
    assert rising_sequences(orders).tolist() == [1, 3, 2, 4]


def test_errors_say_what_is_wanted():
    for call, match in (
        (lambda: Riffle(0, 1), "n must be an integer of at least 1, got 0"),
        (lambda: Riffle(4, -1), "shuffles"),
        (lambda: Riffle(4, torch.tensor(1.0)), "shuffles must be integers of at least 0, got float64"),
    ):
        with pytest.raises(ValueError, match=match):
            call()
