"""Embedders of the tasks: images as bytes or floats, patches normalised, points as waves; what they refuse."""

import math

import pytest
import torch
from torch import nn

from softrank_ext.model.task_embedders import (
    TASK_EMBEDDERS,
    DueJobsEmbedder,
    LightNumberCNN,
    NumberCNN,
    PatchCNN,
    PatchMLP,
    PointEmbedder,
    TimesEmbedder,
)

pytestmark = pytest.mark.usefixtures("one_thread")
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # of CIFAR-10's channels
NUMBERS = torch.randint(256, (2, 3, 1, 28, 112), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
PATCHES = torch.randint(256, (2, 4, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
IMAGE_EMBEDDERS = {
    "number": (lambda: NumberCNN(8), NUMBERS),
    "number without batch norm": (lambda: NumberCNN(8, batch_norm=False), NUMBERS),
    "light": (lambda: LightNumberCNN(8), NUMBERS),
    "patch": (lambda: PatchCNN(8, 6), PATCHES),
    "pixels": (lambda: PatchMLP(8, 6, hidden=16), PATCHES),
}
each_image_embedder = pytest.mark.parametrize(("make", "items"), IMAGE_EMBEDDERS.values(), ids=IMAGE_EMBEDDERS)


@each_image_embedder
def test_bytes_are_floats_times_255(make, items):
    torch.manual_seed(0)
    embedder = make().eval()
    with torch.no_grad():
        of_bytes, of_floats = embedder(items), embedder(items.float() / 255)
    assert of_bytes.shape == (*items.shape[:2], 8) and embedder.item_ndim == 3
    torch.testing.assert_close(of_bytes, of_floats)
    assert embedder.double()(items).dtype == torch.float64


@each_image_embedder
def test_items_are_embedded_one_by_one(make, items):
    torch.manual_seed(0)
    embedder = make().eval()
    with torch.no_grad():
        together = embedder(items)
        torch.testing.assert_close(embedder(items[1:, 2:3]), together[1:, 2:3], atol=1e-5, rtol=1e-5)
        assert (together[0, 0] - together[0, 1]).abs().max() > 1e-3


@each_image_embedder
def test_wrong_images_are_told(make, items):
    wanted = ", ".join(map(str, items.shape[2:]))
    for wrong in (items[..., 1:], items.long()):
        got = rf"\({', '.join(map(str, wrong.shape))}\) {wrong.dtype}"
        with pytest.raises(ValueError, match=rf"items must be \(B, N, {wanted}\) uint8 or float, got {got}"):
            make()(wrong)


def test_number_cnn_is_its_layers_in_torch():
    torch.manual_seed(0)
    embedder = NumberCNN(8).eval()
    conv1, norm1, conv2, norm2 = (layer for layer in embedder.layers if isinstance(layer, nn.Conv2d | nn.BatchNorm2d))
    with torch.no_grad():
        x = NUMBERS.flatten(0, 1).float() / 255
        x = nn.functional.max_pool2d(norm1(conv1(x)).relu(), 2)
        x = nn.functional.max_pool2d(norm2(conv2(x)).relu(), 2)
        wanted = embedder.layers[-1](x.flatten(1)).reshape(2, 3, 8)
        torch.testing.assert_close(embedder(NUMBERS), wanted, atol=1e-5, rtol=1e-5)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in NumberCNN(8, batch_norm=False).layers)


@pytest.mark.parametrize("embedder", [PatchCNN(8, 6), PatchMLP(8, 6, hidden=16)], ids=("cnn", "pixels"))
def test_patches_are_normalised_by_channel(embedder):
    normalized = embedder.normalized(PATCHES)
    assert normalized.shape == PATCHES.shape
    for channel in range(3):
        wanted = (PATCHES[:, :, channel].double() / 255 - MEAN[channel]) / DEVIATION[channel]
        torch.testing.assert_close(normalized[:, :, channel].double(), wanted, atol=1e-6, rtol=1e-5)


def test_sides_that_are_too_small():
    with pytest.raises(ValueError, match="side of a patch must be at least 2, got 1"):
        PatchCNN(8, 1)
    with pytest.raises(ValueError, match="side of a patch must be at least 1, got 0"):
        PatchMLP(8, 0)


def test_points_without_a_learned_part_are_waves():
    """Channels of x, then of y; pair i: sine and cosine of 2 pi cycles x / slowing^(2 i / (D / 2))."""
    points = torch.tensor([[[0.25, 0.9], [0.6, 0.1]]], dtype=torch.float64)
    waves = PointEmbedder(8, learned=False, cycles=3.0, slowing=100.0)(points)
    assert waves.shape == (1, 2, 8)
    for item in range(2):
        for channel in range(8):
            coordinate, pair = float(points[0, item, channel // 4]), (channel % 4) // 2
            angle = 2 * math.pi * 3.0 * coordinate / 100.0 ** (2 * pair / 4)
            wanted = (math.cos if channel % 2 else math.sin)(angle)
            assert float(waves[0, item, channel]) == pytest.approx(wanted, abs=1e-12)


def test_the_learned_part_reads_waves_and_coordinates():
    torch.manual_seed(0)
    points = torch.rand(2, 5, 2)
    embedder = PointEmbedder(8)
    waves = PointEmbedder(8, learned=False)(points)
    wanted = torch.cat((waves, points), 2) @ embedder.projection.weight.T + embedder.projection.bias
    torch.testing.assert_close(embedder(points), wanted)
    assert list(PointEmbedder(8, learned=False).parameters()) == []


def test_points_that_are_wrong():
    with pytest.raises(ValueError, match="d_model must be a multiple of 4 to embed points, got 6"):
        PointEmbedder(6)
    for wrong in (torch.zeros(2, 5, 3), torch.zeros(5, 2), torch.zeros(2, 5, 2, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"items must be \(B, N, 2\) float, got "):
            PointEmbedder(8)(wrong)


def test_names():
    images = {"number-cnn", "light-number-cnn", "patch-cnn", "patch-mlp"}
    assert set(TASK_EMBEDDERS) == images | {"points", "times", "due-jobs", "table"}


def test_jobs_are_read_relative_to_their_instance():
    times = TimesEmbedder(16, machines=5)
    items = torch.zeros(2, 4, 5)
    items[..., :3] = torch.rand(2, 4, 3) + 0.1
    torch.testing.assert_close(times(60 * items), times(items), rtol=1e-4, atol=1e-5)
    assert times(items).shape == (2, 4, 16)
    other = items.clone()
    other[1] *= 2
    other[1, 0, 0] += 5  # another longest time, in the second instance only
    assert torch.equal(times(other)[0], times(items)[0]) and not torch.allclose(times(other)[1], times(items)[1])
    jobs = DueJobsEmbedder(16)
    due = torch.rand(2, 4, 3) + 0.1
    scaled = due * torch.tensor([60.0, 7.0, 60.0])
    torch.testing.assert_close(jobs(scaled), jobs(due), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(jobs(due * torch.tensor([1.0, 1.0, 2.0])), jobs(due))
    assert jobs(torch.zeros(1, 3, 3)).isfinite().all() and times(torch.zeros(1, 3, 5)).isfinite().all()
    with pytest.raises(ValueError, match=r"items must be \(B, N, 5\) float, got \(2, 4, 3\) torch.float32"):
        times(due)
    with pytest.raises(ValueError, match=r"items must be \(B, N, 3\) float, got \(2, 4, 5\) torch.float32"):
        jobs(items)


def test_table_embedder():
    embedder = TASK_EMBEDDERS["table"](8, numbers=2, categories=[4], dropout=0.5)
    items = torch.tensor([[[0.5, -1.0, 2.0], [0.5, -1.0, 3.0], [0.5, -1.0, 99.0]]])
    embedder.eval()
    vectors = embedder(items)
    assert vectors.shape == (1, 3, 8)
    assert not torch.equal(vectors[0, 0], vectors[0, 1])
    assert torch.equal(vectors[0, 1], vectors[0, 2])  # codes are held to the table's
    embedder.train()
    draws = torch.stack([embedder(items)[0, 0] for _ in range(20)])
    assert len(draws.unique(dim=0)) > 2  # numbers and codes drop out
    with pytest.raises(ValueError, match=r"items must be \(B, N, 3\) float, got \(1, 3, 2\)"):
        embedder(items[..., :2])
    alone = TASK_EMBEDDERS["table"](8, categories=[4, 3])
    assert alone(torch.tensor([[[1.0, 2.0], [3.0, 0.0]]])).shape == (1, 2, 8)
