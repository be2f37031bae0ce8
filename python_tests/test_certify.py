"""Certificates: right samplers pass as often as stated, wrong ones are found as often as stated."""

import math

import pytest
import torch
from testing import all_orders, index_of

from softrank_ext import certify
from softrank_ext.distributions import Mallows, PlackettLuce


def counts_of(law, draws):
    return torch.bincount(torch.multinomial(law, draws, replacement=True), minlength=len(law))


def test_a_right_sampler_passes_and_one_that_is_2_percent_off_fails():
    torch.manual_seed(0)
    law = PlackettLuce(torch.tensor([0.5, -0.3, 1.0, 0.0]))
    probabilities = law.log_prob(all_orders(4)).exp().double()
    draws = certify.draws_needed(probabilities, 0.02)
    orders = law.sample((draws,))
    counts = torch.bincount(index_of(orders), minlength=24)
    certificate = certify.certify_law(counts, probabilities)
    assert certificate.passes and certificate.draws == draws
    assert certificate.distance == pytest.approx(0.02, rel=1e-4)
    # 2 % of all orders get their first two items exchanged where item 2 comes first.
    share = float(probabilities[all_orders(4)[:, 0] == 2].sum())
    is_moved = (orders[:, 0] == 2) & (torch.rand(draws) < 0.02 / share)
    orders[is_moved] = orders[is_moved][:, [1, 0, 2, 3]]
    wrong = certify.certify_law(torch.bincount(index_of(orders), minlength=24), probabilities)
    assert not wrong.passes and wrong.statistic > wrong.threshold == certificate.threshold


def test_false_alarms_and_misses_are_at_most_what_is_stated():
    """With chances that are seen: 400 samples each, of the law and of one that is as far off as the test finds."""
    torch.manual_seed(1)
    law = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    draws = certify.draws_needed(law, 0.15, false_alarm=0.1, missed=0.1)
    other = law + 0.15 * torch.tensor([-1.0, 0.0, 0.0, 1.0])
    options = {"false_alarm": 0.1, "missed": 0.1}
    alarms = sum(not certify.certify_law(counts_of(law, draws), law, **options).passes for _ in range(400))
    misses = sum(certify.certify_law(counts_of(other, draws), law, **options).passes for _ in range(400))
    assert alarms <= 60 and misses <= 60  # 40 are stated, 60 are 3.3 deviations more
    near = law + 0.01 * torch.tensor([-1.0, 0.0, 0.0, 1.0])
    assert certify.certify_law(
        counts_of(near, draws), law, **options
    ).passes  # it cannot be found, and is not said to be


def test_agreement_bounds_the_total_variation():
    agrees = torch.ones(100_000, dtype=torch.bool)
    certificate = certify.certify_agreement(agrees, most=1e-3)
    assert certificate.passes and certificate.statistic == pytest.approx(math.log(1e3) / 100_000, rel=0.01)
    assert (certificate.distance, certificate.missed) == (1e-3, 1e-3)
    agrees[:2000] = False
    wrong = certify.certify_agreement(agrees, most=1e-3)
    assert not wrong.passes and 0.02 < wrong.statistic < 0.025
    assert certify.certify_agreement(~torch.ones(5, dtype=torch.bool), most=1.0).statistic == 1.0


def test_agreement_states_its_false_alarm():
    """0 for a sampler that never differs, where the draws are enough; 1 where no number of them could pass."""
    agrees = torch.ones(3000, dtype=torch.bool)
    assert certify.certify_agreement(agrees, most=0.02).false_alarm == 0
    assert certify.certify_agreement(agrees[:100], most=0.02).false_alarm == 1
    # With a chance that is seen: a sampler whose picks differ in 1 of 100 orders, tested for 1 of 50.
    options = {"most": 0.02, "rounding": 0.01, "missed": 0.1}
    torch.manual_seed(5)
    alarms, misses, stated = 0, 0, certify.certify_agreement(agrees, **options).false_alarm
    for _ in range(400):
        alarms += not certify.certify_agreement(torch.rand(3000) >= 0.01, **options).passes
        misses += certify.certify_agreement(torch.rand(3000) >= 0.02, **options).passes
    assert 0 < stated < 0.2 and alarms / 400 <= stated and misses <= 60


def test_estimates_of_a_law_are_compared_with_draws():
    """With chances that are seen: 300 samples each, of the law and of one that is as far off as the test finds."""
    torch.manual_seed(4)
    law = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    options = {"most_weight": 1.25, "false_alarm": 0.1, "missed": 0.1}
    weights = 1.25 * (torch.rand(300, 3, 2000) < law[:, None] / 1.25).double()  # of the largest spread there is
    certificate = certify.certify_estimates(counts_of(law, 3000), weights[0], **options)
    assert certificate.draws == 3000
    moved = certificate.distance * torch.tensor([-1.0, 0.5, 0.5])
    alarms = sum(not certify.certify_estimates(counts_of(law, 3000), own, **options).passes for own in weights)
    misses = sum(certify.certify_estimates(counts_of(law + moved, 3000), own, **options).passes for own in weights)
    assert alarms <= 47 and misses <= 47  # 30 are stated, 47 are 3.3 deviations more
    # More draws and more estimates find less: both errors are in it.
    more = certify.certify_estimates(counts_of(law, 12_000), weights[0], **options)
    most = certify.certify_estimates(counts_of(law, 12_000), weights[:4].transpose(0, 1).flatten(1), **options)
    assert most.distance == pytest.approx(certificate.distance / 2) and most.distance < more.distance
    assert more.distance < certificate.distance


def test_ranks_of_truths_among_their_own_draws_are_uniform():
    torch.manual_seed(2)
    law = Mallows(torch.tensor([2, 0, 3, 1]), torch.tensor(0.6))
    values = law.log_prob(law.sample((4000, 20))) + 1e-6 * torch.rand(4000, 20)  # ties at random
    ranks = (values[:, :1] > values[:, 1:]).sum(1)
    certificate = certify.certify_ranks(ranks, 20)
    assert certificate.passes and certificate.distance < 0.1
    # Draws that are too sure of themselves: those of the same law with less dispersion.
    sure = Mallows(torch.tensor([2, 0, 3, 1]), torch.tensor(0.3))
    drawn = law.log_prob(sure.sample((4000, 19))) + 1e-6 * torch.rand(4000, 19)
    assert not certify.certify_ranks((values[:, :1] > drawn).sum(1), 20).passes


def test_two_samples_of_one_law():
    torch.manual_seed(3)
    first, second = torch.randn(5000, 3), torch.randn(4000, 3)
    certificate = certify.certify_same(first, second)
    assert certificate.passes and certificate.draws == 9000 and certificate.distance < 0.25
    second[:, 1] += 0.5
    assert not certify.certify_same(first, second).passes


def test_says_what_is_wrong():
    law = torch.full((4,), 0.25)
    counts = torch.tensor([1, 2, 3, 4])
    for call, message in (
        (lambda: certify.certify_law(counts, law[:3]), r"probabilities must be a \(4,\) tensor"),
        (
            lambda: certify.certify_law(counts, 2 * law),
            "probabilities must be at least 0 and sum to 1, got a",
        ),
        (lambda: certify.certify_law(0 * counts, law), "draws must be an integer of at least 1, got 0"),
        (lambda: certify.certify_law(counts, law, missed=0.0), "missed must be above 0 and below 1, got 0.0"),
        (lambda: certify.draws_needed(law, 0.0), "distance must be from 1e-9 to 1, got 0.0"),
        (lambda: certify.certify_ranks(counts, 4), "ranks must be numbers from 0 to 3, at least one"),
        (
            lambda: certify.certify_same(torch.zeros(0, 1), torch.zeros(3, 1)),
            "must hold at least one statistic of one draw",
        ),
        (
            lambda: certify.certify_same(torch.zeros(3, 0), torch.zeros(3, 0)),
            "must hold at least one statistic of one draw",
        ),
        (lambda: certify.certify_agreement(counts, most=0.1), r"agrees must be a \(R,\) tensor of bool"),
        (
            lambda: certify.certify_agreement(counts > 0, most=0.1, rounding=0.1),
            "rounding must be at least 0 and below",
        ),
        (lambda: certify.certify_agreement(counts > 0, most=0.0), "most must be above 0 and at most 1, got 0.0"),
        (lambda: certify.certify_estimates(counts, law[:3, None]), r"weights must be a \(4, S\) tensor"),
        (lambda: certify.certify_estimates(counts, 2 * torch.ones(4, 3)), "weights must be from 0 to 1.0, got 2.0"),
        (
            lambda: certify.certify_estimates(counts, torch.zeros(4, 0)),
            "samples must be an integer of at least 1, got 0",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_a_certificate_is_shown_in_a_line():
    shown = repr(certify.certify_law(torch.tensor([50, 50]), torch.tensor([0.5, 0.5])))
    assert shown.startswith("Certificate(passes: 0 of at most ") and "with 100 draws" in shown
