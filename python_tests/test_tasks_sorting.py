"""Sorting four-digit images: pictures and labels agree, ties are random, batches are functions of (seed, step)."""

import os
from collections.abc import Callable

import pytest
import torch
from synthetic_data import write_mnist
from torch import nn

from softrank_ext import SoftRankConfig, SoftRankModel
from softrank_ext.model import DataFacts
from softrank_ext.permutations import arrange, check_order
from softrank_ext.tasks.sorting import Sorting

REAL = os.environ.get("SOFTRANK_DATA", "")


@pytest.fixture
def make_task(tmp_path) -> Callable[..., Sorting]:
    root = write_mnist(tmp_path)
    return lambda *arguments, **options: Sorting(*arguments, root=str(root), **options)


def digits_of(items, first_grey):
    """Digits of synthetic numbers, read off the picture: (B, N, 4)."""
    return (items[:, :, 0, 14, 14::28].long() - first_grey) % 10


def test_pictures_labels_and_order_agree(make_task):
    task = make_task(7)
    batch = task.training_batch(0, 3, 16)
    assert batch.items.shape == (16, 7, 1, 28, 112) and batch.items.dtype == torch.uint8
    assert batch.mask is None and batch.first is None and batch.known is None
    numbers = (digits_of(batch.items, 1) * torch.tensor([1000, 100, 10, 1])).sum(2)
    assert torch.equal(batch.extras["labels"], numbers)
    check_order(batch.order)
    assert (arrange(numbers, batch.order).diff(dim=1) >= 0).all()
    # The corner of each digit is white: digits are neither turned nor mixed with their neighbours.
    assert (batch.items[:, :, 0, 0, ::28] == 255).all()
    assert ((batch.items == 255).sum((2, 3, 4)) == 4).all()


def test_shift_moves_every_digit_on_its_own_within_its_square(make_task):
    still, moved = make_task(5).training_batch(0, 1, 40), make_task(5, shift=2).training_batch(0, 1, 40)
    assert torch.equal(still.order, moved.order) and torch.equal(still.extras["labels"], moved.extras["labels"])
    seen = set()
    for before, after in zip(still.items.split(28, 4), moved.items.split(28, 4), strict=True):  # digit by digit
        padded = nn.functional.pad(before[:, :, 0], (2, 2, 2, 2))
        fits = {
            (down, right): (padded[:, :, 2 - down : 30 - down, 2 - right : 30 - right] == after[:, :, 0]).all((2, 3))
            for down in range(-2, 3)
            for right in range(-2, 3)
        }
        assert torch.stack(list(fits.values())).any(0).all()
        seen |= {move for move, fit in fits.items() if fit.any()}
    assert len(seen) == 25
    again = make_task(5, shift=2).training_batch(0, 1, 40)
    assert torch.equal(moved.items, again.items)
    (test,), (test_still,) = make_task(5, shift=2).test_batches(8, 8), make_task(5).test_batches(8, 8)
    assert torch.equal(test.items, test_still.items)


def test_warps_change_training_digits_alone(make_task):
    options = {"rotation": 10.0, "scale": 0.1, "shear": 0.1, "elastic": 1.0}
    still, changed = make_task(5).training_batch(0, 1, 8), make_task(5, **options).training_batch(0, 1, 8)
    assert torch.equal(still.order, changed.order) and torch.equal(still.extras["labels"], changed.extras["labels"])
    assert torch.equal(digits_of(still.items, 1), digits_of(changed.items, 1))  # the centres keep their grey
    assert not (still.items == changed.items).flatten(2).all(2).any()
    assert torch.equal(changed.items, make_task(5, **options).training_batch(0, 1, 8).items)
    (test,), (test_still,) = make_task(5, **options).test_batches(8, 8), make_task(5).test_batches(8, 8)
    assert torch.equal(test.items, test_still.items)
    for name, wanted in (("rotation", 45), ("scale", 0.5), ("shear", 0.5), ("elastic", 4)):
        with pytest.raises(ValueError, match=rf"{name} must be .*from 0 to {wanted}, got -1"):
            Sorting(**{name: -1})


def test_training_and_test_images_are_apart(make_task):
    task = make_task(5)
    assert task.training_batch(0, 0, 8).items[..., 14, 14].max() <= 40
    (batch,) = task.test_batches(8, 8)
    assert batch.items[..., 14, 14].min() > 100


def test_batches_are_functions_of_seed_and_step(make_task):
    task = make_task(5)
    batch, again = task.training_batch(1, 2, 4), make_task(5).training_batch(1, 2, 4)
    assert torch.equal(batch.items, again.items) and torch.equal(batch.order, again.order)
    assert not torch.equal(batch.items, task.training_batch(1, 3, 4).items)
    assert not torch.equal(batch.items, task.training_batch(2, 2, 4).items)


def test_test_instances_do_not_depend_on_the_batch_size(make_task):
    task = make_task(5)
    whole, parts = list(task.test_batches(10, 10)), list(task.test_batches(10, 4))
    assert [len(part.order) for part in parts] == [4, 4, 2]
    assert torch.equal(whole[0].items, torch.cat([part.items for part in parts]))
    assert torch.equal(whole[0].order, torch.cat([part.order for part in parts]))
    other = next(task.test_batches(10, 10, seed=1))
    assert not torch.equal(whole[0].items, other.items)


def test_order_of_ties_is_random(tmp_path):
    root = write_mnist(tmp_path, train=1)  # a single image: every number is 0000
    orders = Sorting(3, root=str(root)).training_batch(0, 0, 1200).order
    counts = orders.unique(dim=0, return_counts=True)[1]
    assert len(counts) == 6 and counts.min() > 150


def test_number_of_items_from_a_range(make_task):
    task = make_task(6, min_items=3)
    sizes = [task.training_batch(0, step, 2).order.shape[1] for step in range(40)]
    assert set(sizes) == {3, 4, 5, 6} and task.max_items() == 6
    assert {batch.order.shape[1] for batch in task.test_batches(80, 2)} == {3, 4, 5, 6}


def test_score(make_task):
    task = make_task(6)
    batch = task.training_batch(0, 0, 32)
    scores = task.score(batch, batch.order)
    assert all(score.shape == (32,) and (score == 1).all() for score in scores.values())
    assert {"kendall_tau", "accuracy", "correctness", "tie_aware_accuracy"} <= set(scores)
    wrong = task.score(batch, batch.order.roll(1, 1))
    assert all((score < 1).all() for score in wrong.values())


def test_only_tie_aware_scores_forgive_exchanged_ties(tmp_path):
    root = write_mnist(tmp_path, train=1)
    task = Sorting(4, root=str(root))
    batch = task.training_batch(0, 0, 3)
    scores = task.score(batch, batch.order.roll(1, 1))
    assert (scores["tie_aware_accuracy"] == 1).all() and (scores["tie_aware_correctness"] == 1).all()
    assert (scores["accuracy"] == 0).all()


def multiply_adds(module, items):
    """Of one image, counted from the shapes that pass through the layers."""
    total = 0

    def count(layer, _, output):
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            total += output[0].numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.Linear):
            total += layer.weight.numel()

    handles = [layer.register_forward_hook(count) for layer in module.modules()]
    module.eval()(items[:1, :1])
    for handle in handles:
        handle.remove()
    return total


@pytest.mark.parametrize(("cnn", "wanted"), [("paper", 44_255_232), ("light", 4_313_344)])
def test_models_read_the_items(make_task, tmp_path, cnn, wanted):
    task = make_task(3, cnn=cnn)
    config = SoftRankConfig(d_model=128, encoder_layers=1, decoder_layers=1, embedder=task.embedder())
    model = SoftRankModel(config)
    batch = task.training_batch(0, 0, 2)
    assert model.train().embed(batch.items).shape == (2, 3, 128)
    assert multiply_adds(model.embedder, batch.items) == wanted
    model.eval()
    torch.testing.assert_close(model.embed(batch.items), model.embed(batch.items.float() / 255), atol=1e-6, rtol=1e-5)
    model.save_pretrained(tmp_path / "saved")
    restored = SoftRankModel.from_pretrained(tmp_path / "saved")
    assert torch.equal(restored.embed(batch.items), model.embed(batch.items))
    with pytest.raises(ValueError, match=r"items must be \(B, N, 1, 28, 112\) uint8 or float, got \(2, 3, 1, 28, 28\)"):
        model.embed(batch.items[..., :28])


def test_light_embedding_does_not_depend_on_the_batch(make_task):
    task = make_task(3, cnn="light")
    model = SoftRankModel(SoftRankConfig(embedder=task.embedder(), dropout=0.0)).train()
    items = task.training_batch(0, 0, 4).items
    torch.testing.assert_close(model.embed(items)[:1], model.embed(items[:1]), atol=1e-5, rtol=1e-5)


def test_data_facts_are_the_numbers_of_items():
    assert Sorting(9).data_facts() == DataFacts(num_items=(9, 9))
    assert Sorting(9, min_items=3).data_facts() == DataFacts(num_items=(3, 9))


def test_errors():
    with pytest.raises(ValueError, match="num_items must be an integer of at least 1, got 0"):
        Sorting(0)
    with pytest.raises(ValueError, match="min_items must be an integer from 1 to 4, got 5"):
        Sorting(4, min_items=5)
    with pytest.raises(ValueError, match="shift must be an integer from 0 to 4, got 5"):
        Sorting(shift=5)
    with pytest.raises(ValueError, match="cnn must be one of 'paper', 'light', got 'tiny'"):
        Sorting(cnn="tiny")


@pytest.mark.skipif(not REAL, reason="needs SOFTRANK_DATA, a folder with MNIST")
def test_ties_of_real_numbers_are_as_frequent_as_the_class_counts_say():
    labels = torch.cat([batch.extras["labels"] for batch in Sorting(100).test_batches(400, 100)])
    is_tie = labels[:, :, None] == labels[:, None]
    pairs = (is_tie.sum() - labels.numel()).item() / (400 * 100 * 99)
    assert pairs == pytest.approx(1.0141e-4, rel=0.15)
