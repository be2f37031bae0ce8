"""Jigsaws: patches by hand, the order that restores them, equal patches, batches as functions of (seed, step)."""

import os
from collections.abc import Callable

import pytest
import torch
from synthetic_data import write_cifar10

from softrank_ext import SoftRankConfig, SoftRankModel
from softrank_ext.model import DataFacts, make_embedder
from softrank_ext.permutations import arrange
from softrank_ext.tasks import data
from softrank_ext.tasks.jigsaw import Jigsaw, classes_of_equal, cut

REAL = os.environ.get("SOFTRANK_DATA", "")


@pytest.fixture
def make_task(tmp_path) -> Callable[..., Jigsaw]:
    root = write_cifar10(tmp_path)
    return lambda *arguments, **options: Jigsaw(*arguments, root=str(root), **options)


def test_cut_by_hand():
    image = torch.arange(25).reshape(1, 1, 5, 5)
    assert cut(image, 2).tolist() == [
        [[[[0, 1], [5, 6]]], [[[2, 3], [7, 8]]], [[[10, 11], [15, 16]]], [[[12, 13], [17, 18]]]]
    ]


@pytest.mark.parametrize(("grid", "side"), [(2, 16), (3, 10), (4, 8), (8, 4)])
def test_order_restores_the_image(make_task, grid, side):
    task = make_task(grid)
    batch = task.training_batch(0, 0, 20)
    assert batch.items.shape == (20, grid**2, 3, side, side) and batch.items.dtype == torch.uint8
    restored = arrange(batch.items, batch.order)
    rows = restored.unflatten(1, (grid, grid)).permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)
    wanted = data.cifar10(True, task.root)[:, :, : grid * side, : grid * side]
    assert {image.numpy().tobytes() for image in rows} == {image.numpy().tobytes() for image in wanted}
    assert not torch.equal(batch.order, batch.order.argsort(1))


def test_training_takes_every_image_once_and_shuffles_anew(make_task):
    task = make_task(2)
    first, second = task.training_batch(0, 0, 20), task.training_batch(0, 1, 20)
    assert not torch.equal(first.order, second.order)
    again = make_task(2).training_batch(0, 1, 20)
    assert torch.equal(second.items, again.items) and torch.equal(second.order, again.order)
    assert not torch.equal(second.items, task.training_batch(1, 1, 20).items)


def test_test_instances_do_not_depend_on_the_batch_size(make_task):
    task = make_task(3)
    (whole,), parts = task.test_batches(4, 4), list(task.test_batches(4, 3))
    assert torch.equal(whole.items, torch.cat([part.items for part in parts]))
    assert torch.equal(whole.order, torch.cat([part.order for part in parts]))
    assert not torch.equal(whole.order, next(task.test_batches(4, 4, seed=1)).order)


def test_flips_mirror_about_half_of_the_images(make_task):
    plain, flipped = make_task(2).training_batch(0, 0, 20), make_task(2, flip=True).training_batch(0, 0, 20)
    images, mirrored = (arrange(batch.items, batch.order) for batch in (plain, flipped))
    is_same = (images == mirrored).flatten(1).all(1)
    is_mirrored = (images[:, [1, 0, 3, 2]].flip(4) == mirrored).flatten(1).all(1)
    assert (is_same | is_mirrored).all() and 4 <= is_same.sum() <= 16


def test_crops_and_colours_change_training_images_alone(make_task):
    plain = make_task(4).training_batch(0, 0, 20)
    for options in ({"crop": 2}, {"colour": 0.4}):
        changed = make_task(4, **options).training_batch(0, 0, 20)
        assert torch.equal(changed.order, plain.order)
        assert (changed.items != plain.items).flatten(1).any(1).sum() > 12
        assert torch.equal(changed.items, make_task(4, **options).training_batch(0, 0, 20).items)
        (test,), (plain_test,) = make_task(4, **options).test_batches(4, 4), make_task(4).test_batches(4, 4)
        assert torch.equal(test.items, plain_test.items)
    with pytest.raises(ValueError, match="crop must be an integer from 0 to 8, got 9"):
        Jigsaw(crop=9)
    with pytest.raises(ValueError, match=r"colour must be .*from 0 to 1, got 2"):
        Jigsaw(colour=2)


def test_equal_patches_are_interchangeable(make_task):
    items = torch.randint(0, 256, (1, 4, 3, 2, 2), dtype=torch.uint8)
    items[0, 3] = items[0, 1]
    assert classes_of_equal(items).tolist() == [[0, 1, 2, 1]]
    items[0, 3, 0, 0, 0] += 1
    assert classes_of_equal(items).tolist() == [[0, 1, 2, 3]]

    task = make_task(2)
    batch = task.training_batch(0, 0, 20)
    scores = task.score(batch, batch.order.roll(1, 1))
    is_plain = (batch.extras["patch_classes"] == 0).all(1)
    assert is_plain.sum() == 5  # the first image of each training file is of one colour
    assert torch.equal(scores["tie_aware_accuracy"], is_plain.double()) and (scores["accuracy"] == 0).all()
    assert torch.equal(scores["tie_aware_correctness"], is_plain.double())
    # A place to the right, or down to the other row, or back up to the first place: 1 + 2 + 1 + 2 over four patches.
    assert scores["displacement"].unique().tolist() == [1.5]
    right = task.score(batch, batch.order)
    assert (right.pop("displacement") == 0).all()
    assert all((score == 1).all() for score in right.values())


@pytest.mark.parametrize("grid", [2, 3, 8])
def test_models_read_the_items(make_task, tmp_path, grid):
    task = make_task(grid)
    model = SoftRankModel(SoftRankConfig(encoder_layers=1, decoder_layers=1, embedder=task.embedder()))
    hidden = {2: 1088, 3: 464, 8: 128}[grid]
    assert model.embedder.layers[5].out_features == hidden
    items = task.training_batch(0, 0, 2).items
    model.train().embed(items)  # moves the batch norm's averages
    model.eval()
    torch.testing.assert_close(model.embed(items), model.embed(items.float() / 255), atol=1e-6, rtol=1e-5)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(SoftRankModel.from_pretrained(tmp_path / "saved").embed(items), model.embed(items))
    with pytest.raises(ValueError, match=r"items must be \(B, N, 3, .*\) uint8 or float, got \(2, .*\) torch.int64"):
        model.embed(items.long())


def test_pixels_are_normalised_by_channel(make_task):
    model = SoftRankModel(SoftRankConfig(encoder_layers=1, decoder_layers=1, embedder=make_task(2).embedder()))
    seen = []
    model.embedder.layers[0].register_forward_hook(lambda layer, inputs, output: seen.append(inputs[0]))
    model.embed(torch.full((1, 1, 3, 16, 16), 51, dtype=torch.uint8))
    wanted = (0.2 - torch.tensor([0.4914, 0.4822, 0.4465])) / torch.tensor([0.2023, 0.1994, 0.2010])
    torch.testing.assert_close(seen[0][0, :, 3, 4], wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("grid", [2, 3, 8])
def test_the_reader_of_edges_by_hand(make_task, tmp_path, grid):
    task = make_task(grid, reader="edges")
    model = SoftRankModel(SoftRankConfig(encoder_layers=1, decoder_layers=1, embedder=task.embedder()))
    items = task.training_batch(0, 0, 2).items
    reader = model.embedder
    patch = items[1, 2].double() / 255
    mean, deviation = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2023, 0.1994, 0.2010])
    pixels = ((patch - mean.double()[:, None, None]) / deviation.double()[:, None, None]).flatten()
    weights = {name: weight.double() for name, weight in reader.state_dict().items()}
    hidden = (weights["layers.0.weight"] @ pixels + weights["layers.0.bias"]).clamp(min=0)
    summed = weights["layers.2.weight"] @ hidden + weights["layers.2.bias"]
    summed += weights["direct.weight"] @ pixels + weights["direct.bias"]
    wanted = (summed - summed.mean()) / (summed.var(unbiased=False) + 1e-5).sqrt()
    with torch.no_grad():
        embedded = model.embed(items)
    torch.testing.assert_close(embedded[1, 2].double(), wanted, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(model.embed(items), model.embed(items.float() / 255), atol=1e-5, rtol=1e-5)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(SoftRankModel.from_pretrained(tmp_path / "saved").embed(items), model.embed(items))


def test_every_border_pixel_counts():
    """A change of any one pixel along the border changes what the reader of edges makes of a patch."""
    torch.manual_seed(0)
    reader = make_embedder(16, {"kind": "patch-mlp", "side": 5})
    patch = torch.rand(1, 1, 3, 5, 5)
    for place in range(25):
        changed = patch.clone()
        changed.flatten(3)[0, 0, 0, place] += 0.1
        assert (reader(changed) - reader(patch)).abs().max() > 1e-3


def test_errors(make_task):
    with pytest.raises(ValueError, match="flip must be True or False, got 2"):
        Jigsaw(flip=2)
    with pytest.raises(ValueError, match="reader must be one of 'paper', 'edges', got 'corners'"):
        Jigsaw(3, reader="corners")
    with pytest.raises(ValueError, match="side must be an integer of at least 1, got 0"):
        make_embedder(16, {"kind": "patch-mlp", "side": 0})
    with pytest.raises(ValueError, match="grid must be one of 2, 3, 4, 8, got 5"):
        Jigsaw(5)
    with pytest.raises(ValueError, match="side of a patch must be at least 2, got 1"):
        SoftRankModel(SoftRankConfig(embedder={"kind": "patch-cnn", "side": 1}))


@pytest.mark.skipif(not REAL, reason="needs SOFTRANK_DATA, a folder with CIFAR-10")
@pytest.mark.parametrize(("grid", "share"), [(4, 0.002), (8, 0.047)])
def test_share_of_real_images_with_equal_patches(grid, share):
    classes = classes_of_equal(cut(data.cifar10(False)[:1017], grid))
    has_equal = (classes != torch.arange(grid**2)).any(1)
    assert has_equal.double().mean().item() == pytest.approx(share, abs=0.0005)


def test_data_facts_are_the_number_of_patches():
    assert Jigsaw(4).data_facts() == DataFacts(num_items=(16, 16))
