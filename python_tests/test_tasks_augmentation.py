"""Random changes of training images: what each one does and how far it goes."""

import math

import pytest
import torch

from softrank_ext.tasks.augmentation import moved_crops, recoloured, warped


def numbers(seed=0):
    return torch.Generator().manual_seed(seed)


def bars(count, vertical=True):
    """Images with a bright bar through the centre."""
    images = torch.zeros(count, 28, 28, dtype=torch.uint8)
    images[:, 4:24, 13:15] = 200
    return images if vertical else images.mT.contiguous()


def tilt_and_size(images):
    """Angle of the main axis from the vertical in degrees, and the lengths along the axes, of each image."""
    weight = images.double() / images.double().sum((1, 2), keepdim=True)
    grid = torch.arange(28.0, dtype=torch.float64) - 13.5
    x, y = weight.sum(1) @ grid, weight.sum(2) @ grid
    xx, yy = weight.sum(1) @ grid**2 - x**2, weight.sum(2) @ grid**2 - y**2
    xy = torch.einsum("bij,i,j->b", weight, grid, grid) - x * y
    return torch.atan2(2 * xy, yy - xx).rad2deg() / 2, xx.sqrt(), yy.sqrt()


def test_nothing_asked_changes_nothing():
    images = torch.randint(0, 256, (5, 28, 28), dtype=torch.uint8, generator=numbers())
    assert torch.equal(warped(images, numbers()), images)


def test_rotation_turns_by_every_angle_up_to_the_largest():
    angle, _, length = tilt_and_size(warped(bars(400), numbers(), rotation=20))
    assert angle.abs().max() < 21 and angle.min() < -17 and angle.max() > 17 and abs(angle.mean()) < 2.5
    assert angle.std() == pytest.approx(40 / math.sqrt(12), rel=0.1)
    assert ((length / angle.deg2rad().cos() - 5.77).abs() < 0.3).all()  # 20 pixels long, whatever the angle


def test_scale_and_shear():
    length = tilt_and_size(warped(bars(400), numbers(), scale=0.2))[2]
    factor = (length / (20 / math.sqrt(12))).log()
    assert factor.abs().max() < 0.22 and factor.min() < -0.15 and factor.max() > 0.15 and abs(factor.mean()) < 0.03
    across = tilt_and_size(warped(bars(400, vertical=False), numbers(), scale=0.2))[1]
    assert ((across / 5.77).log() - factor).abs().max() > 0.2  # either side has a factor of its own
    slant = tilt_and_size(warped(bars(400), numbers(), shear=0.3))[0].deg2rad().tan()
    assert slant.abs().max() < 0.33 and slant.min() < -0.22 and slant.max() > 0.22
    level = tilt_and_size(warped(bars(400, vertical=False), numbers(), shear=0.3))[0]
    assert (level.abs() - 90).abs().max() < 1  # a shear moves along the rows


def test_elastic_bends_smoothly():
    bent = warped(bars(200), numbers(), elastic=2.0).double()
    middle = (bent * torch.arange(28)).sum(2) / bent.sum(2).clamp(min=1)  # of each row: where the bar is
    inside = middle[:, 7:21] - 13.5
    assert 1.0 < inside.abs().max() < 2.2
    assert inside.diff(dim=1).abs().max() < 1.0
    assert inside.std(1).mean() > 0.2  # it bends, it does not only move


def test_crops_move_and_mirror_the_border():
    images = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8, generator=numbers())
    moved = moved_crops(images, numbers(1), 1)
    padded = torch.nn.functional.pad(images.float(), (1, 1, 1, 1), mode="reflect").to(torch.uint8)
    found = torch.stack([
        (padded[:, :, down : down + 8, right : right + 8] == moved).flatten(1).all(1)
        for down in range(3) for right in range(3)
    ])  # fmt: skip
    assert torch.equal(found.sum(0), torch.ones(60, dtype=torch.int64)) and found.any(1).all()


def test_colours_keep_a_grey_photo_grey_and_stay_in_range():
    photos = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8, generator=numbers())
    changed = recoloured(photos, numbers(1), 0.4).double()
    assert changed.shape == photos.shape and not torch.equal(changed, photos.double())
    ratio = changed.mean((1, 2, 3)) / photos.double().mean((1, 2, 3))
    assert 0.55 < ratio.min() < 0.8 and 1.1 < ratio.max() < 1.45
    grey = photos[:, :1].expand(-1, 3, -1, -1)
    after = recoloured(grey, numbers(1), 0.4).int()
    assert (after - after[:, :1]).abs().max() <= 1
    assert torch.equal(recoloured(photos, numbers(), 0.0), photos)
