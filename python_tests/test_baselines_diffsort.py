"""DiffSort and Error-free DiffSort: losses against slow definitions, sizes as published, learning, files."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from synthetic_tasks import SortNumbers
from testing import pin
from torch import nn

from softrank_ext import Beam, Constraints, model_folder, sample
from softrank_ext.baselines.diffsort import (
    DiffSortConfig,
    DiffSortModel,
    SortingLoss,
    group_loss,
    matrix_loss,
    published_settings,
)
from softrank_ext.batch import Batch
from softrank_ext.evaluation import evaluate
from softrank_ext.methods import METHODS
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.training import TrainConfig, train

pytestmark = pytest.mark.usefixtures("one_thread")
NUMBERS = {"kind": "linear", "features": 1}
NO_SAMPLES = torch.zeros(0, dtype=torch.int64)


def loss_of(model: DiffSortModel, batch: Batch) -> torch.Tensor:
    return model.own_loss()(batch, 0, NO_SAMPLES)[0]


def small_model(**changes: object) -> DiffSortModel:
    torch.manual_seed(1)
    config = DiffSortConfig(d_model=16, feed_forward=32, heads=4, dropout=0.0, embedder=NUMBERS)
    return DiffSortModel(replace(config, **changes))


def number_of_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_sizes_are_the_published_ones():
    task = Sorting(num_items=9)
    convolutions = (25 * 1 * 32 + 32) + (25 * 32 * 64 + 64)
    cnn = METHODS["diffsort"].make(task, METHODS["diffsort"].options("sorting"))
    assert number_of_parameters(cnn) == convolutions + (12_544 * 64 + 64) + (64 + 1)
    options = METHODS["error-free-diffsort"].options("sorting")
    for width, layers, model_options in ((64, 8, options), (16, 6, replace(options, d_model=16, encoder_layers=6))):
        model = METHODS["error-free-diffsort"].make(task, model_options)
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8), layers, enable_nested_tensor=False)
        wanted = convolutions + (12_544 * width + width) + number_of_parameters(encoder) + (width + 1)
        assert number_of_parameters(model) == wanted
        assert not any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_the_scorer_is_the_published_one():
    """The large transformer scorer, built from torch's own layers with the same weights."""
    task = Sorting(num_items=4)
    torch.manual_seed(0)
    options = replace(METHODS["error-free-diffsort"].options("sorting"), d_model=16, encoder_layers=2)
    model = METHODS["error-free-diffsort"].make(task, options).eval()
    images = torch.randint(256, (2, 4, 1, 28, 112), dtype=torch.uint8)
    conv1, conv2 = (layer for layer in model.embedder.layers if isinstance(layer, nn.Conv2d))
    x = (images.float() / 255).flatten(0, 1)
    x = F.max_pool2d(F.relu(conv1(x)), 2)
    x = F.max_pool2d(F.relu(conv2(x)), 2)
    x = model.embedder.layers[-1](x.flatten(1)).reshape(2, 4, 16)
    assert [(layer.kernel_size, layer.padding) for layer in (conv1, conv2)] == [((5, 5), (2, 2))] * 2
    for own in model.encoder_layers:
        layer = nn.TransformerEncoderLayer(16, 8, batch_first=True).eval()
        layer.load_state_dict(
            {
                "self_attn.in_proj_weight": own.self_qkv.weight, "self_attn.in_proj_bias": own.self_qkv.bias,
                "self_attn.out_proj.weight": own.self_out.weight, "self_attn.out_proj.bias": own.self_out.bias,
                "linear1.weight": own.feed_in.weight, "linear1.bias": own.feed_in.bias,
                "linear2.weight": own.feed_out.weight, "linear2.bias": own.feed_out.bias,
                "norm1.weight": own.self_norm.weight, "norm1.bias": own.self_norm.bias,
                "norm2.weight": own.feed_norm.weight, "norm2.bias": own.feed_norm.bias,
            }
        )  # fmt: skip
        x = layer(x)
    torch.testing.assert_close(model.embed(images), model.head(F.relu(x))[..., 0], rtol=1e-4, atol=1e-5)


def test_published_settings():
    assert published_settings(9) == {"network": "odd-even", "steepness": 34.0, "hard_weight": 1.0}
    assert published_settings(3) == published_settings(9)
    assert (
        published_settings(75)
        == published_settings(99)
        == {"network": "bitonic", "steepness": 135.0, "hard_weight": 0.1}
    )
    assert published_settings(200)["steepness"] == 200.0
    make, options = METHODS["error-free-diffsort"].make, METHODS["error-free-diffsort"].options("sorting")
    config = make(Sorting(num_items=32, cnn="light"), replace(options, steepness=7.0)).config
    assert (config.network, config.steepness, config.hard_weight) == ("odd-even", 7.0, 0.1)
    plain = METHODS["diffsort"].make(Sorting(num_items=100, cnn="light"), METHODS["diffsort"].options("sorting")).config
    assert (plain.network, plain.swap, plain.steepness, plain.hard_weight) == ("odd-even", "cauchy", 10.0, 0.0)


def test_matrix_loss_is_the_mean_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(2, 4, 4, dtype=torch.float64, generator=generator)
    order = torch.tensor([[1, 3, 2, 0], [2, 0, 1, 3]])
    total = 0.0
    for row, places in enumerate(order.tolist()):
        for item in range(4):
            for place in range(4):
                p = float(matrix[row, item, place])
                total -= math.log(p) if places[place] == item else math.log(1 - p)
    assert float(matrix_loss(matrix, order)) == pytest.approx(total / 32)


def test_matrix_loss_is_finite_at_the_ends():
    order = torch.tensor([[1, 2, 0]])
    matrix = torch.eye(3)[None] * (1 + 1e-6)  # rounding may pass 1
    matrix.requires_grad_()
    loss = matrix_loss(matrix, order)
    loss.backward()
    assert loss.isfinite() and matrix.grad.isfinite().all()


def slow_group_loss(matrix, order, items):
    N = order.shape[1]
    begins = list(range(0, N, 4))
    groups = [list(range(begin, min(begin + 4, N))) for begin in begins]
    if len(groups) > 1 and len(groups[-1]) == 1:
        last = groups.pop()
        groups[-1] += last
    total = 0.0
    for group in groups:
        squares = []
        for row in range(len(order)):
            places = sorted(int(matrix[row, item].argmax()) for item in group)
            true_order = [item for item in order[row].tolist() if item in group]
            for place, true_item in zip(places, true_order, strict=True):
                mixed = sum(matrix[row, item, place] * items[row, item] for item in group)
                squares.append((mixed - items[row, true_item]).square())
        total = total + torch.cat(squares).mean()
    return total


@pytest.mark.parametrize("N", [1, 3, 4, 5, 8, 9, 10, 13])
def test_group_loss_is_its_slow_definition(N):
    generator = torch.Generator().manual_seed(N)
    predicted, order = torch.rand(2, 3, N, generator=generator).argsort(2)
    matrix = torch.zeros(3, N, N, dtype=torch.float64).scatter_(1, predicted[:, None], 1.0).requires_grad_()
    items = torch.rand(3, N, 2, dtype=torch.float64, generator=generator)
    found, wanted = group_loss(matrix, order, items), slow_group_loss(matrix, order, items)
    torch.testing.assert_close(found, wanted)
    gradients = [torch.autograd.grad(loss, matrix)[0] for loss in (found, wanted)]
    torch.testing.assert_close(*gradients)
    truth = torch.zeros(3, N, N, dtype=torch.float64).scatter_(1, order[:, None], 1.0)
    assert float(group_loss(truth, order, items)) == 0.0


def test_the_hard_term_is_weighted():
    batch = SortNumbers(6).training_batch(0, 0, 4)
    batch = replace(batch, order=batch.order.roll(1, 1))
    losses = [float(loss_of(small_model(hard_weight=weight), batch).detach()) for weight in (0.0, 1.0, 3.0)]
    assert losses[1] > losses[0]
    assert losses[2] - losses[0] == pytest.approx(3 * (losses[1] - losses[0]), rel=1e-4)


@pytest.mark.parametrize("hard_weight", [0.0, 1.0])
def test_padding_changes_nothing(hard_weight):
    """A padded list has the loss and the order of the list without padding, wherever the padding stands."""
    model = small_model(encoder_layers=1, hard_weight=hard_weight).double()
    items = torch.rand(1, 4, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    order = items[..., 0].argsort(1)
    mask = torch.tensor([[False, True, True, False, True, True]])
    padded = torch.full((1, 6, 1), math.nan, dtype=torch.float64).masked_scatter(mask[..., None], items)
    real = mask[0].nonzero()[:, 0]
    padded_order = torch.cat((real[order], torch.tensor([[3, 0]])), 1)
    loss, padded_loss = (loss_of(model, batch) for batch in (Batch(items, order), Batch(padded, padded_order, mask)))
    if hard_weight == 0:  # its groups are of the items as given, and the last one has six members here
        torch.testing.assert_close(padded_loss, loss)
    assert padded_loss.isfinite()
    sampled = sample(model, padded, mask=mask, decode="greedy").order[0, 0]
    assert torch.equal(sampled[:4], real[sample(model, items, decode="greedy").order[0, 0]])


def test_partial_rankings_count_known_places():
    model = small_model()
    whole = SortNumbers(5).training_batch(0, 0, 3)
    partial = replace(whole, known=torch.tensor([5, 5, 5]))
    torch.testing.assert_close(loss_of(model, partial), loss_of(model, whole))
    assert float(loss_of(model, replace(whole, known=torch.tensor([0, 0, 0]))).detach()) == 0.0
    # What is told about unknown places has no effect; about known ones it has.
    few = replace(whole, known=torch.tensor([2, 3, 0]))
    swapped = whole.order.clone()
    swapped[:, [3, 4]] = swapped[:, [4, 3]]
    torch.testing.assert_close(loss_of(model, replace(few, order=swapped)), loss_of(model, few))
    swapped[:, [0, 1]] = swapped[:, [1, 0]]
    assert float((loss_of(model, replace(few, order=swapped)) - loss_of(model, few)).detach().abs()) > 1e-3


def test_attention_is_within_a_list_unless_asked_for():
    items = torch.rand(3, 4, 1, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True] * 4, [True, True, False, True], [True] * 4])
    for attend_to_batch in (False, True):
        model = small_model(encoder_layers=2, attend_to_batch=attend_to_batch).eval()
        together = model.embed(items, mask)
        alone = torch.cat([model.embed(items[row : row + 1], mask[row : row + 1]) for row in range(3)])
        assert torch.allclose(together, alone, atol=1e-6) is not attend_to_batch
        assert together[1, 2] == 0


def test_orders_ascend_by_score():
    model = small_model()
    items = torch.rand(2, 7, 1, generator=torch.Generator().manual_seed(0))
    scores = model.embed(items).detach()
    samples = sample(model, items, decode="greedy", num_samples=2)
    assert torch.equal(samples.order, scores.argsort(1)[:, None].expand(-1, 2, -1))
    assert samples.log_prob.isnan().all()


@pytest.mark.parametrize("method", ["diffsort", "error-free-diffsort"])
def test_methods_learn_eight_lists_by_heart(method, tmp_path):
    task = SortNumbers(num_items=6, instances=8)
    torch.manual_seed(0)
    changes = {"d_model": 16, "feed_forward": 32, "encoder_layers": 0 if method == "diffsort" else 1, "dropout": 0.0}
    model = METHODS[method].make(task, replace(METHODS[method].options("sorting"), **changes))
    settings = {**METHODS[method].training("sorting"), "batch_size": 8, "learning_rate": 1e-2}
    result = train(model, task, TrainConfig(iterations=150, **settings), tmp_path, quiet=True, device="cpu")
    row = evaluate(result.model, task, count=8)
    assert row["metrics"]["accuracy"]["mean"] == 1.0
    saved = model_folder.load_model(tmp_path / "last")
    assert isinstance(saved, DiffSortModel) and saved.config == model.config
    batch = task.training_batch(0, 0, 8)
    orders = [sample(kind, batch.items, decode="greedy").order for kind in (saved, result.model)]
    assert torch.equal(*orders)


@pytest.mark.parametrize("network", ["odd-even", "bitonic"])
def test_long_lists_have_finite_gradients(network):
    model = small_model(network=network, steepness=200.0, hard_weight=0.1)
    loss = loss_of(model, SortNumbers(200).training_batch(0, 0, 2))
    loss.backward()
    assert loss.isfinite() and all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_jigsaws_have_scores():
    task = Jigsaw(grid=3)
    model = METHODS["error-free-diffsort"].make(task, METHODS["error-free-diffsort"].options("jigsaw"))
    assert model.embed(torch.zeros(2, 9, 3, 10, 10, dtype=torch.uint8)).shape == (2, 9)


def test_errors():
    for changes, message in (
        ({"network": "shell"}, "network must be one of 'odd-even', 'bitonic', got 'shell'"),
        ({"swap": "step"}, "swap must be one of"),
        ({"steepness": 0.0}, "steepness must be positive and finite, got 0.0"),
        ({"hard_weight": -1.0}, "hard_weight must be at least 0 and finite, got -1.0"),
        ({"encoder_layers": -1}, "encoder_layers must be an integer of at least 0, got -1"),
        ({"heads": 3}, "d_model must be even and a multiple of heads = 3, got 64"),
    ):
        with pytest.raises(ValueError, match=message):
            DiffSortConfig(**changes)
    model = small_model(hard_weight=1.0)
    items = torch.rand(2, 3, 1)
    with pytest.raises(ValueError, match=r'a diffsort model gives one order .* needs decode="greedy"'):
        sample(model, items)
    for constraints in (pin(0), Constraints(before=[(0, 1)])):
        with pytest.raises(ValueError, match="a diffsort model sorts by scores: it takes no constraints"):
            sample(model, items, constraints=constraints, decode="greedy")
    with pytest.raises(ValueError, match=r"decode must not be Beam\(\.\.\.\) for a diffsort model"):
        sample(model, items, decode=Beam(3))
    with pytest.raises(ValueError, match="steps of this model must be its own 1, or None, got 5"):
        sample(model, items, decode="greedy", steps=5)
    with pytest.raises(ValueError, match="a diffsort model sorts by scores: it takes no fixed first item"):
        loss_of(model, SortNumbers(3, first=True).training_batch(0, 0, 2))
    with pytest.raises(ValueError, match="the hard term needs whole orders"):
        loss_of(model, SortNumbers(3, known=2).training_batch(0, 0, 2))
    with pytest.raises(ValueError, match=r"embedder must be a module, or config.embedder must name one, got neither"):
        DiffSortModel(DiffSortConfig())
    ids = DiffSortModel(DiffSortConfig(hard_weight=1.0, embedder={"kind": "learned", "num_items": 3}))
    batch = Batch(torch.arange(3)[None], torch.tensor([[1, 2, 0]]))
    with pytest.raises(ValueError, match=r"they must be images or vectors, got \(1, 3\) torch.int64; set hard_weight"):
        SortingLoss(ids)(batch, 0, NO_SAMPLES)
