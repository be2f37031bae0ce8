"""Factorised codes: one-to-one with orders, distributions that sum to one, draws that follow them, learning."""

import math
from dataclasses import replace
from itertools import permutations, product

import pytest
import torch
from synthetic_tasks import SortNumbers, mallows
from testing import all_orders, chi_square, counts_of, pin
from torch import Tensor

from softrank_ext import Beam, Constraints, Draw, model_folder, sample
from softrank_ext.baselines.factorised import CODES, FactorisedConfig, FactorisedModel, code_of, order_of_code
from softrank_ext.batch import Batch
from softrank_ext.evaluation import evaluate
from softrank_ext.methods import METHODS
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.training import TrainConfig, train

pytestmark = pytest.mark.usefixtures("one_thread")
both_codes = pytest.mark.parametrize("code", CODES)


def slow_code(order: list[int], code: str) -> list[int]:
    """Lehmer: an item's number in the sorted list of those that remain. Insertion: its place among those up to it."""
    if code == "lehmer":
        remaining, numbers = sorted(order), []
        for item in order:
            numbers.append(remaining.index(item))
            remaining.remove(item)
        return numbers
    return [[other for other in order if other <= item].index(item) for item in range(len(order))]


@both_codes
@pytest.mark.parametrize("N", [1, 2, 3, 4, 5])
def test_codes_are_one_to_one(code, N):
    orders = all_orders(N)
    numbers = code_of(orders, code)
    assert numbers.tolist() == [slow_code(list(order), code) for order in permutations(range(N))]
    ranges = [range(N - place) if code == "lehmer" else range(place + 1) for place in range(N)]
    assert sorted(map(tuple, numbers.tolist())) == sorted(product(*ranges))
    assert torch.equal(order_of_code(numbers, code), orders)


@both_codes
def test_codes_of_long_orders_come_back(code):
    orders = torch.rand(5, 200, generator=torch.Generator().manual_seed(0)).argsort(1)
    assert torch.equal(order_of_code(code_of(orders, code), code), orders)


def test_an_example():
    order = torch.tensor([[1, 3, 2, 0]])
    assert code_of(order, "lehmer").tolist() == [[1, 2, 1, 0]]
    assert code_of(order, "insertion").tolist() == [[0, 0, 1, 1]]


def small_model(code: str = "lehmer", max_items: int = 6, dtype: torch.dtype = torch.float64) -> FactorisedModel:
    torch.manual_seed(3)
    config = FactorisedConfig(
        max_items, code, d_model=16, feed_forward=24, heads=2, encoder_layers=1, dropout=0.0,
        embedder={"kind": "linear", "features": 2},
    )  # fmt: skip
    model = FactorisedModel(config).to(dtype)
    with torch.no_grad():
        model.head.weight *= 1.3  # far from uniform
    return model.eval()


def items_of(B: int, N: int) -> Tensor:
    return torch.rand(B, N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(9))


@both_codes
@pytest.mark.parametrize("N", [1, 3, 4])
def test_probabilities_sum_to_one(code, N):
    orders = all_orders(N)
    with torch.no_grad():
        log_prob = small_model(code).log_prob(items_of(1, N).expand(len(orders), -1, -1), orders)
    assert float(log_prob.total.exp().sum()) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(log_prob.per_place.sum(1), log_prob.total)
    assert float(log_prob.total.exp().max()) > 1.5 / math.factorial(N) or N == 1


@both_codes
def test_probabilities_sum_to_one_with_padding_and_a_first_item(code):
    model, items = small_model(code), items_of(1, 6)
    mask = torch.tensor([[True, False, True, True, False, True]])
    for first, real_orders in (
        (None, list(permutations((0, 2, 3, 5)))),
        (torch.tensor([3]), [(3, *rest) for rest in permutations((0, 2, 5))]),
    ):
        orders = torch.tensor([[*order, 4, 1] for order in real_orders])
        B = len(orders)
        firsts = None if first is None else first.expand(B)
        total = model.log_prob(items.expand(B, -1, -1), orders, mask.expand(B, -1), firsts).total.detach()
        assert float(total.exp().sum()) == pytest.approx(1, abs=1e-12)
        samples = sample(
            model, items, mask=mask, constraints=None if first is None else pin(first), num_samples=200, seed=0
        )
        assert {tuple(order[:4]) for order in samples.order[0].tolist()} <= set(real_orders)
        assert set(map(tuple, samples.order[0, :, 4:].tolist())) == {(1, 4)}
        drawn = samples.order[0]
        own = model.log_prob(
            items.expand(200, -1, -1), drawn, mask.expand(200, -1), None if first is None else first.expand(200)
        )
        torch.testing.assert_close(samples.log_prob[0], own.total)
    wrong = torch.tensor([[0, 2, 3, 5, 1, 4]])
    assert model.log_prob(items, wrong, mask, torch.tensor([3])).total.item() == -math.inf


@both_codes
def test_padding_changes_nothing(code):
    model, items = small_model(code), items_of(1, 4)
    mask = torch.tensor([[False, True, True, True, True, False]])
    padded = torch.full((1, 6, 2), 7.0, dtype=torch.float64)
    padded[:, 1:5] = items
    order = torch.tensor([[1, 3, 2, 0]])
    padded_order = torch.tensor([[2, 4, 3, 1, 5, 0]])
    torch.testing.assert_close(model.log_prob(padded, padded_order, mask).total, model.log_prob(items, order).total)
    greedy = [sample(model, x, mask=m, decode="greedy").order[0, 0] for x, m in ((items, None), (padded, mask))]
    assert torch.equal(greedy[1][:4], greedy[0] + 1)


@both_codes
def test_draws_follow_the_probabilities(code):
    model, items, orders = small_model(code), items_of(1, 4), all_orders(4)
    probabilities = model.log_prob(items.expand(24, -1, -1), orders).total.exp().detach()
    number = 20_000
    drawn = sample(model, items, num_samples=number, seed=11)
    counts = counts_of(drawn.order[0])
    assert float(probabilities.min()) * number > 5
    assert chi_square(counts, probabilities) > 1e-3
    assert chi_square(counts, torch.ones(24)) < 1e-6  # the test can fail
    # The greedy order is the most likely one, and a temperature near 0 finds it as well.
    best = orders[probabilities.argmax()]
    assert torch.equal(sample(model, items, decode="greedy").order[0, 0], best)
    assert (sample(model, items, num_samples=20, decode=Draw(1e-3)).order[0] == best).all()


def test_a_sample_does_not_depend_on_its_batch():
    model, items = small_model(), items_of(6, 5)
    together = sample(model, items, num_samples=3, seed=5)
    alone = sample(model, items[2:3], num_samples=3, seed=5, first_sample=6)
    assert torch.equal(together.order[2], alone.order[0])
    assert not torch.equal(together.order, sample(model, items, num_samples=3, seed=6).order)


def test_gradients_reach_every_weight():
    model = small_model().train()
    batch = Batch(items_of(4, 5), torch.rand(4, 5).argsort(1))
    loss, per_item = model.own_loss()(batch, 0, torch.arange(4))
    loss.backward()
    assert float(per_item) == pytest.approx(float(loss.detach()) / 5)
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []

    def loss_with(bias: Tensor) -> Tensor:
        return torch.func.functional_call(model.own_loss(), {"model.head.bias": bias}, (batch, 0, torch.arange(4)))[0]

    assert torch.autograd.gradcheck(loss_with, (model.head.bias.detach().requires_grad_(),))


def test_partial_rankings_count_known_places():
    task = SortNumbers(5)
    model = small_model_of_numbers()
    whole = task.training_batch(0, 0, 3)
    per_place = model.log_prob(whole.items, whole.order).per_place.detach()
    known = torch.tensor([2, 5, 0])
    wanted = -sum(float(per_place[row, :count].sum()) for row, count in enumerate(known.tolist()))
    loss, per_item = model.own_loss()(replace(whole, known=known), 0, torch.arange(3))
    assert float(loss.detach()) == pytest.approx(wanted / 3, rel=1e-5)
    assert float(per_item) == pytest.approx(wanted / 7, rel=1e-5)


def small_model_of_numbers(code: str = "lehmer") -> FactorisedModel:
    config = FactorisedConfig(
        6, code, d_model=32, feed_forward=64, heads=4, encoder_layers=1, dropout=0.0,
        embedder={"kind": "linear", "features": 1},
    )  # fmt: skip
    torch.manual_seed(0)
    return FactorisedModel(config)


@both_codes
def test_eight_lists_are_learned_by_heart(code, tmp_path):
    task = SortNumbers(num_items=6, instances=8)
    model = small_model_of_numbers(code)
    config = TrainConfig(iterations=200, batch_size=8, optimizer="adamw", learning_rate=5e-3, warmup=10, ema=0.0)
    result = train(model, task, config, tmp_path, quiet=True, device="cpu")
    assert evaluate(result.model, task, count=8)["metrics"]["accuracy"]["mean"] == 1.0
    saved = model_folder.load_model(tmp_path / "last")
    assert isinstance(saved, FactorisedModel) and saved.config == model.config
    items = task.training_batch(0, 0, 8).items
    assert torch.equal(sample(saved, items, seed=0).order, sample(result.model, items, seed=0).order)


def test_tours_with_a_first_item_are_learned():
    task = SortNumbers(num_items=5, instances=8, first=True)
    model = small_model_of_numbers()
    config = TrainConfig(iterations=200, batch_size=8, optimizer="adamw", learning_rate=5e-3, warmup=10, ema=0.0)
    result = train(model, task, config, quiet=True, device="cpu")
    assert evaluate(result.model, task, count=8)["metrics"]["accuracy"]["mean"] == 1.0


def test_a_mallows_law_is_learned_by_insertion():
    """A Mallows law has independent insertions (repeated insertion): the insertion code can be exact."""
    law = mallows([0, 1, 2, 3], 0.7)
    torch.manual_seed(0)
    config = FactorisedConfig(
        4, "insertion", d_model=32, feed_forward=64, heads=4, encoder_layers=1, dropout=0.0, embedder=law.embedder()
    )
    model = FactorisedModel(config)
    settings = TrainConfig(iterations=250, batch_size=256, learning_rate=3e-3, warmup=20, ema=0.99)
    result = train(model, law, settings, quiet=True, device="cpu")
    learned = result.model.log_prob(law.items(24), law.orders).total.exp().detach().double()
    assert float((learned - law.probabilities).abs().sum() / 2) < 0.03


def test_sizes_match_the_diffusion_models():
    options = METHODS["lehmer"].options("sorting")
    assert (options.d_model, options.feed_forward, options.encoder_layers, options.heads) == (128, 512, 7, 8)
    model = METHODS["lehmer"].make(Sorting(num_items=9, cnn="light"), options)
    layer = 4 * (128 * 128 + 128) + (128 * 512 + 512) + (512 * 128 + 128) + 4 * 128
    assert sum(p.numel() for p in model.encoder.encoder_layers.parameters()) == 7 * layer
    assert sum(p.numel() for p in model.head.parameters()) == 128 * 9 + 9
    assert METHODS["lehmer"].options("tsp").encoder_layers == 16


def test_errors():
    with pytest.raises(ValueError, match="code must be one of 'lehmer', 'insertion', got 'cycle'"):
        FactorisedConfig(5, "cycle")
    with pytest.raises(ValueError, match="max_items must be an integer of at least 1, got 0"):
        FactorisedConfig(0)
    with pytest.raises(ValueError, match="encoder_layers must be an integer of at least 1, got 0"):
        FactorisedConfig(5, encoder_layers=0)
    model = small_model(max_items=4)
    with pytest.raises(ValueError, match="this model takes up to 4 items, got 5"):
        sample(model, items_of(1, 5))
    with pytest.raises(ValueError, match="order must hold each of 0 to 3 once"):
        model.log_prob(items_of(1, 4), torch.tensor([[0, 1, 1, 2]]))
    with pytest.raises(ValueError, match="a factorised model takes no constraints but a pin at place 0"):
        sample(model, items_of(1, 4), constraints=Constraints(before=[(0, 1)]))
    with pytest.raises(ValueError, match=r"decode must not be Beam\(\.\.\.\) for a factorised model"):
        sample(model, items_of(1, 4), decode=Beam(3))
    batch = SortNumbers(4, known=2).training_batch(0, 0, 2)
    with pytest.raises(ValueError, match="an insertion code needs whole orders"):
        small_model_of_numbers("insertion").own_loss()(batch, 0, torch.arange(2))
