"""The estimate of an order's probability under the whole diffusion, against all 24 orders and against `sample`."""

import math
from dataclasses import replace
from itertools import permutations, product

import pytest
import torch
from scipy import stats
from testing import all_orders, counts_of, pin
from torch import Tensor

from softrank_ext import Bridge, Draw, Greedy, Riffle, SoftRankModel, sample
from softrank_ext.likelihood import log_likelihood
from softrank_ext.permutations import arrange, ranks_of
from softrank_ext.processes.bridge import lift_to_grid, time_grid

pytestmark = pytest.mark.usefixtures("one_thread")
ORDERS = all_orders(4)
ITEMS = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.4], [0.1, 0.3]], dtype=torch.float64)
STEPS = 3
DRAWS = 6000
QUIET = Bridge(noise_scale=0.3, sampling_steps=STEPS)


def estimate_all(model, guidance: float, num_samples: int, **settings: object):
    return log_likelihood(model, ITEMS.expand(24, 4, 2), ORDERS, guidance=guidance, num_samples=num_samples, **settings)


@pytest.fixture(scope="module")
def draws():
    return {}


@pytest.mark.parametrize(
    ("head", "carry", "reads"),
    [
        ("pointer", "exact", "order"),
        ("pointer", "reflected", "order"),
        ("pl", "exact", "order"),
        ("pointer", "exact", "soft-ranks"),
    ],
)
@pytest.mark.parametrize("guidance", [0.3, 0.0])
def test_probabilities_of_all_orders_against_sample(make_model, guidance, head, carry, reads, draws):
    model = make_model(head, reads=reads)
    settings = {"process": replace(QUIET, carry=carry), "decode": Draw(0.5 if head == "pl" else 0.3)}
    if (head, carry, reads) not in draws:
        drawn = sample(model, ITEMS, num_samples=DRAWS, seed=1, **settings).order
        draws[head, carry, reads] = counts_of(drawn)
    counts = draws[head, carry, reads]
    estimate = estimate_all(model, guidance, 1000, seed=2, **settings)
    probabilities = estimate.log_prob.exp()
    errors = probabilities * estimate.standard_error
    # The 24 estimates are independent (each order has draws of its own).
    assert abs(probabilities.sum().item() - 1) < 4 * errors.square().sum().sqrt().item()
    assert errors.square().sum().sqrt() < 0.03
    assert estimate.effective_samples.min() > 30

    def p_value(expected: Tensor) -> float:
        """Of the differences to the histogram, whose variance is that of the counts and that of the estimates."""
        share = counts / DRAWS
        variance = share * (1 - share) / DRAWS + errors**2
        return float(stats.chi2.sf(float(((share - expected) ** 2 / variance).sum()), 23))

    assert int(counts.min()) > 5
    assert p_value(probabilities) > 1e-3
    # Negative control: the probability of the inverse order.
    inverse = [ORDERS.tolist().index(order) for order in ORDERS.argsort(1).tolist()]
    assert p_value(probabilities[inverse]) < 1e-9


def exact_two_step_probabilities(model, noise_scale: float, draws: int) -> tuple[Tensor, Tensor]:
    """Probabilities of all orders at two steps, and their standard errors.

    The prediction at time 1 is summed over all 24 orders for each start; only z, before and after, is drawn (by torch).
    """
    torch.manual_seed(0)
    items = ITEMS.expand(24, 4, 2)
    totals = torch.zeros(draws, 24, dtype=torch.float64)
    # p(slots | order of z, time) for each order that z may have.
    tables = {
        t: torch.stack(
            [
                model.log_prob(arrange(items, order_t.expand(24, 4)), t, ranks_of(order_t)[ORDERS]).total.exp()
                for order_t in ORDERS
            ]
        )
        for t in (1.0, 0.5)
    }
    index = {tuple(order): i for i, order in enumerate(ORDERS.tolist())}
    t, s, _ = time_grid(2)
    grid = lift_to_grid(ranks_of(ORDERS), dtype=torch.float64)
    for draw in range(draws):
        z_1 = torch.rand(4, dtype=torch.float64)
        first = tables[t][index[tuple(z_1.argsort().tolist())]]
        z_s = (1 - s / t) * grid + s / t * z_1 + noise_scale * math.sqrt(s * (t - s) / t) * torch.randn(24, 4)
        folded = torch.arccos(torch.cos(math.pi * z_s)) / math.pi
        last = tables[s][[index[tuple(order)] for order in folded.argsort(1).tolist()]]  # (predicted, final)
        totals[draw] = first @ last
    return totals.mean(0), totals.std(0) / math.sqrt(draws)


def test_two_steps_against_sums_written_out(make_model):
    model = make_model("pointer", torch.float64)
    with torch.no_grad():
        expected, error = exact_two_step_probabilities(model, 0.5, draws=1000)
    for guidance in (0.3, 0.0):
        estimate = log_likelihood(model, ITEMS.expand(24, 4, 2), ORDERS, guidance=guidance, num_samples=1000, steps=2)
        off = estimate.log_prob.exp() - expected
        both = (error**2 + (estimate.log_prob.exp() * estimate.standard_error) ** 2).sqrt()
        assert (off / both).abs().max() < 4
        assert ((expected - 1 / 24) / both).abs().max() > 6, "a uniform law would pass too"


def test_one_step_is_exact_given_the_start(make_model):
    model = make_model("pointer", torch.float64)
    expected = torch.zeros(24, dtype=torch.float64)
    for order_t in ORDERS:  # a uniform start has each of these with probability 1 / 24
        slots = ranks_of(order_t)[ORDERS]
        expected += model.log_prob(ITEMS[order_t].expand(24, 4, 2), 1.0, slots).total.exp().detach() / 24
    estimate = log_likelihood(model, ITEMS.expand(24, 4, 2), ORDERS, num_samples=4000, steps=1)
    off = (estimate.log_prob.exp() - expected) / (expected * estimate.standard_error)
    assert off.abs().max() < 4


def test_runs_of_the_model_are_those_of_sample(make_model):
    model = make_model("linear", torch.float64)
    order = ORDERS[[9, 16]]
    items = torch.rand(2, 4, 2, dtype=torch.float64)
    samples = sample(model, items, num_samples=5, steps=STEPS, seed=3, record=True)
    estimate = log_likelihood(model, items, order, guidance=0.0, num_samples=5, steps=STEPS, seed=3)
    last = samples.trajectory[-1]
    for b, j in product(range(2), range(5)):
        order_t = last.order[b, j]
        slots = ranks_of(order_t)[order[b]]
        expected = model.log_prob(items[b][order_t][None], last.t, slots[None]).total
        torch.testing.assert_close(estimate.log_weights[b, j], expected[0])


def test_soft_ranks_are_read_as_in_sample(make_model, monkeypatch):
    model = make_model("pointer", torch.float64, process=Bridge(1.2, sampling_steps=STEPS), reads="soft-ranks")
    read, seen = model.soft_rank_embedder.forward, []
    monkeypatch.setattr(model.soft_rank_embedder, "forward", lambda z_t: seen.append(z_t) or read(z_t))
    samples = sample(model, ITEMS[None], num_samples=5, seed=3, record=True)
    z_t, order_t = seen[-1], samples.trajectory[-1].order[0]
    assert bool(((z_t < 0) | (z_t > 1)).any())
    slots = ranks_of(order_t)[:, ORDERS[9]]
    embedded = arrange(model.embedder(ITEMS).expand(5, -1, -1) + read(z_t), order_t)
    expected = model.log_prob(embedded, 1 / STEPS, slots, is_embedded=True).total
    estimate = log_likelihood(model, ITEMS[None], ORDERS[9:10], guidance=0.0, num_samples=5, seed=3)
    torch.testing.assert_close(estimate.log_weights[0], expected)


def test_standard_error_is_the_spread_of_estimates(make_model):
    model = make_model("pointer", torch.float64)
    many = 60
    order = ORDERS[9].expand(many, 4)
    estimate = log_likelihood(model, ITEMS.expand(many, 4, 2), order, num_samples=200, process=QUIET)
    spread = estimate.log_prob.std().item()
    assert 0.7 < estimate.standard_error.mean().item() / spread < 1.4
    # A lower bound on average: fewer samples give lower values.
    few = log_likelihood(
        model, ITEMS.expand(2000, 4, 2), ORDERS[9].expand(2000, 4), num_samples=2, inner_samples=1,
        process=QUIET,
    )  # fmt: skip
    assert few.log_prob.mean() < estimate.log_prob.mean() - 3 * few.log_prob.std() / math.sqrt(2000)
    assert abs(few.log_prob.exp().mean() - estimate.log_prob.exp().mean()) < 4 * few.log_prob.exp().std() / 44


def test_a_fixed_start_and_padding(make_model):
    model = make_model("pointer", torch.float64, fixed_start=True)
    items = torch.cat((ITEMS[:2], torch.full((1, 2), 7.0, dtype=torch.float64), ITEMS[2:]))
    mask = torch.tensor([True, True, False, True, True])
    orders = torch.tensor([[3, *rest, 2] for rest in permutations([0, 1, 4])])
    options = {"constraints": pin(3), "num_samples": 6_000, "seed": 1, "process": QUIET}
    drawn = sample(model, items[None], mask=mask[None], **options).order[0]
    share = torch.tensor([int((drawn == order).all(1).sum()) for order in orders]) / 6_000
    assert share.sum() == 1
    for guidance in (0.3, 0.0):
        estimate = log_likelihood(
            model, items.expand(6, 5, 2), orders, mask=mask.expand(6, 5), guidance=guidance, num_samples=1000,
            process=QUIET,
        )  # fmt: skip
        probabilities = estimate.log_prob.exp()
        variance = share * (1 - share) / 6_000 + (probabilities * estimate.standard_error) ** 2
        assert stats.chi2.sf(float(((share - probabilities) ** 2 / variance).sum()), 5) > 1e-3
        assert ((probabilities - 1 / 6).abs() > 4 * variance.sqrt()).any()


def test_seeds(make_model):
    model = make_model("pointer")
    items, order = torch.rand(1, 6, 2), torch.tensor([[2, 0, 5, 1, 3, 4]])
    one, same, other = (log_likelihood(model, items, order, num_samples=4, seed=seed).log_prob for seed in (0, 0, 1))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert torch.equal(one, log_likelihood(model, items, order, num_samples=4).log_prob)
    drawn = int(torch.randint(2**63 - 1, (), generator=torch.Generator().manual_seed(4)))
    assert torch.equal(
        log_likelihood(model, items, order, num_samples=4, seed=torch.Generator().manual_seed(4)).log_prob,
        log_likelihood(model, items, order, num_samples=4, seed=drawn).log_prob,
    )


def test_errors_say_what_is_wanted(make_model):
    model = make_model("pointer")
    items, order = torch.rand(2, 4, 2), ORDERS[[9, 16]]
    for settings, match in (
        ({"guidance": 1.0}, "guidance must be at least 0 and below 1, got 1.0"),
        ({"num_samples": 1}, "num_samples must be an integer of at least 2, got 1"),
        ({"inner_samples": 0}, "inner_samples must be an integer of at least 1, got 0"),
        ({"process": Bridge(noise_scale=0.0)}, "noise_scale must be positive, or guidance 0, got 0"),
        ({"decode": Greedy()}, r"decode must be Draw\(temperature\): the likelihood is that of draws, got Greedy\(\)"),
        ({"decode": "sample"}, r"decode must be Draw\(temperature\)"),
        ({"process": Riffle((0, 2))}, "process must be of the model's own kind and target"),
        ({"process": Bridge(0.2), "steps": 2}, "steps must be left out or agree"),
        ({"fixed_start": True}, "fixed_start is for models trained with a fixed start, this one was not"),
        ({"seed": None}, "seed must be a 64-bit integer, got None"),
    ):
        with pytest.raises(ValueError, match=match):
            log_likelihood(model, items, order, **settings)
    with pytest.raises(ValueError, match="order must hold each of 0 to 3 once"):
        log_likelihood(model, items, torch.tensor([[1, 1, 2, 0], [1, 3, 2, 0]]))
    with pytest.raises(ValueError, match=r"order must be \(B, N\) = \(2, 4\), got \(1, 4\)"):
        log_likelihood(model, items, order[:1])
    config = replace(model.config, process=Riffle((0, 2, 5)), head="gpl", decoder_layers=0)
    with pytest.raises(ValueError, match='process must be a Bridge whose target is "clean", got Riffle'):
        log_likelihood(SoftRankModel(config), items, order)
    stepwise = SoftRankModel(replace(model.config, process=Bridge(target="previous")))
    with pytest.raises(ValueError, match='process must be a Bridge whose target is "clean", got Bridge'):
        log_likelihood(stepwise, items, order)
    with pytest.raises(ValueError, match="model must be a SoftRankModel, got Linear"):
        log_likelihood(torch.nn.Linear(2, 2), items, order)


def test_the_process_is_the_model_s_own(make_model):
    items, order = torch.rand(1, 5, 2), torch.tensor([[2, 0, 4, 1, 3]])
    own, asked = (
        log_likelihood(make_model("pointer", process=process), items, order, num_samples=4, **options).log_weights
        for process, options in ((QUIET, {}), (Bridge(), {"process": QUIET}))
    )
    assert torch.equal(own, asked)
    default = log_likelihood(make_model("pointer"), items, order, num_samples=4, steps=STEPS).log_weights
    assert not torch.equal(own, default)


def test_the_start_is_fixed_as_the_model_was_trained(make_model):
    items, order = torch.rand(1, 5, 2), torch.tensor([[2, 0, 4, 1, 3]])
    tours, plain = make_model("pointer", fixed_start=True), make_model("pointer")
    free = log_likelihood(plain, items, order, num_samples=4).log_weights
    assert torch.equal(log_likelihood(tours, items, order, num_samples=4, fixed_start=False).log_weights, free)
    fixed = log_likelihood(tours, items, order, num_samples=4).log_weights
    assert torch.equal(log_likelihood(tours, items, order, num_samples=4, fixed_start=True).log_weights, fixed)
    assert not torch.equal(fixed, free)
