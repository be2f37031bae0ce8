"""Losses of drawn orders by hand, and the options of the objectives."""

import math

import pytest
import torch

from softrank_ext.training import Preference, Reinforce, SelfLabel, TrainConfig
from softrank_ext.training.cost_objectives import objective_to_json, ranking_loss

INF = math.inf
# Log-probabilities and costs of four draws: two that tie, and one that is not allowed in the second row.
LOG_PROB = torch.tensor([[-1.0, -2.5, -0.5, -4.0], [-3.0, -1.0, -2.0, -0.5]], dtype=torch.float64)
COST = torch.tensor([[3.0, 1.0, 3.0, 2.0], [5.0, INF, 4.0, 7.0]], dtype=torch.float64)


def test_reinforce_weighs_by_the_cost_above_the_mean_of_the_others():
    costs = [[3.0, 1.0, 3.0, 2.0], [5.0, 7.0, 4.0, 7.0]]  # not allowed counts as the worst
    for entropy in (0.0, 0.3):
        expected = []
        for prices, logs in zip(costs, LOG_PROB.tolist(), strict=True):
            mean = sum(prices) / 4
            deviation = math.sqrt(sum((price - mean) ** 2 for price in prices) / 4)
            values = [price / deviation + entropy * log for price, log in zip(prices, logs, strict=True)]
            weights = [value - (sum(values) - value) / 3 for value in values]
            expected.append(sum(weight * log for weight, log in zip(weights, logs, strict=True)) / 4)
        loss = ranking_loss(Reinforce(4, entropy), LOG_PROB, COST)
        torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))


def test_the_entropy_of_reinforce_has_no_gradient_through_its_weights():
    log_prob = LOG_PROB.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(ranking_loss(Reinforce(4, 0.5), log_prob, COST).sum(), log_prob)
    without = ranking_loss(Reinforce(4, 0.5), LOG_PROB, COST)
    torch.testing.assert_close((gradient * LOG_PROB).sum(1), without)  # linear in what it weighs


def test_bradley_terry_is_the_mean_over_pairs_that_differ():
    expected = []
    for prices, logs in zip(COST.tolist(), LOG_PROB.tolist(), strict=True):
        terms = [
            math.log1p(math.exp(-0.5 * (logs[i] - logs[j])))
            for i in range(4)
            for j in range(4)
            if prices[i] < prices[j]
        ]
        expected.append(sum(terms) / len(terms))
    loss = ranking_loss(Preference(4, "bradley-terry", 0.5), LOG_PROB, COST)
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))


def test_plackett_luce_is_the_mean_over_all_but_the_worst():
    expected = []
    for prices, logs in zip(COST.tolist(), LOG_PROB.tolist(), strict=True):
        terms = []
        for i in range(4):
            if prices[i] < max(prices):
                rivals = sum(math.exp(0.5 * logs[j]) for j in range(4) if prices[j] >= prices[i])
                terms.append(math.log(rivals) - 0.5 * logs[i])
        expected.append(sum(terms) / len(terms))
    loss = ranking_loss(Preference(4, "plackett-luce", 0.5), LOG_PROB, COST)
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    "objective", (Reinforce(4), Preference(4, "bradley-terry"), Preference(4, "plackett-luce")), ids=repr
)
def test_equal_costs_and_costs_that_are_all_infinite_give_no_gradient(objective):
    log_prob = LOG_PROB.clone().requires_grad_()
    cost = torch.tensor([[0.1] * 4, [INF] * 4], dtype=torch.float64)
    loss = ranking_loss(objective, log_prob, cost)
    (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
    assert loss.tolist() == [0, 0] and gradient.eq(0).all()
    (gradient,) = torch.autograd.grad(ranking_loss(objective, log_prob, COST).sum(), log_prob)
    assert (gradient[0, 1] < 0) and (gradient[0, 0] > 0)  # downhill, the cheapest becomes likelier


def test_objectives_are_json_with_their_kind():
    assert objective_to_json("likelihood") == "likelihood"
    fields = {"draws": 8, "temperature": 1.0, "polish": 0, "rebuilt": 0, "drawn_by": "average"}
    assert objective_to_json(SelfLabel(8)) == {"kind": "self-label", **fields}
    assert objective_to_json(Reinforce(8, 0.1)) == {"kind": "reinforce", "draws": 8, "entropy": 0.1}
    expected = {"kind": "preference", "draws": 8, "law": "plackett-luce", "sharpness": 0.1}
    assert TrainConfig(objective=Preference(8, "plackett-luce")).to_json()["objective"] == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SelfLabel(draws=0), "draws must be an integer of at least 1, got 0"),
        (lambda: SelfLabel(temperature=0.0), "temperature must be positive"),
        (lambda: SelfLabel(polish=-1), "polish must be an integer of at least 0, got -1"),
        (lambda: SelfLabel(4, rebuilt=4), "rebuilt must be an integer from 0 to 3, got 4"),
        (lambda: Reinforce(draws=1), "draws must be an integer of at least 2, got 1"),
        (lambda: Reinforce(entropy=-0.1), "entropy must be at least 0 and finite, got -0.1"),
        (lambda: Preference(draws=1), "draws must be an integer of at least 2, got 1"),
        (lambda: Preference(law="mallows"), "law must be one of 'bradley-terry', 'plackett-luce', got 'mallows'"),
        (lambda: Preference(sharpness=0.0), "sharpness must be positive"),
        (
            lambda: TrainConfig(objective="reinforce"),
            r"objective must be 'likelihood', 'lookalike', SelfLabel\(...\), Reinforce\(...\) or Preference\(...\)",
        ),
    ],
)
def test_says_what_is_wrong(make, message):
    with pytest.raises(ValueError, match=message):
        make()
