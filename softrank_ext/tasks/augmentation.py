"""Random changes of training images, uint8 in and out: digits warped, photos moved and recoloured."""

import math

import torch
from torch import Tensor
from torch.nn import functional

NODES = 4  # along a side, of the coarse grid that elastic shifts are drawn on


def warped(
    images: Tensor,
    generator: torch.Generator,
    *,
    rotation: float = 0.0,
    scale: float = 0.0,
    shear: float = 0.0,
    elastic: float = 0.0,
) -> Tensor:
    """Images (count, height, width) uint8, each turned, scaled, sheared and bent on its own about its centre.

    Drawn uniformly: the angle up to `rotation` degrees, either side's factor in `exp(+-scale)`, the shear up to
    `shear`, and a smooth shift of up to `elastic` pixels along both axes. What enters from outside is 0.
    """
    count, height, width = images.shape
    angle, shears, *scales = (2 * torch.rand(4, count, generator=generator) - 1).unbind()
    angle = angle * (math.pi / 180 * rotation)
    shears = shears * shear
    x_scale, y_scale = ((-scale * part).exp() for part in scales)
    # Where a pixel comes from: x and y in [-1, 1], sheared, turned, then scaled.
    cos, sin = angle.cos(), angle.sin()
    across = torch.stack((x_scale * cos, x_scale * (shears * cos - sin)), 1)
    down = torch.stack((y_scale * sin, y_scale * (shears * sin + cos)), 1)
    matrix = torch.stack((across, down), 1)  # (count, 2, 2)
    affine = torch.cat((matrix, matrix.new_zeros(count, 2, 1)), 2)
    places = functional.affine_grid(affine, [count, 1, height, width], align_corners=False)  # (count, H, W, 2)
    if elastic > 0:
        pixels = (2 * torch.rand(count, 2, NODES, NODES, generator=generator) - 1) * elastic
        smooth = functional.interpolate(pixels, (height, width), mode="bilinear", align_corners=True)
        places = places + smooth.movedim(1, 3) * (2 / torch.tensor([width, height]))
    changed = functional.grid_sample(images[:, None].float(), places, align_corners=False)[:, 0]
    return changed.round().to(torch.uint8)


def moved_crops(images: Tensor, generator: torch.Generator, most: int) -> Tensor:
    """Images (B, C, height, width) uint8, each moved by up to `most` pixels along both axes; borders are mirrored."""
    B, C, height, width = images.shape
    padded = functional.pad(images.float(), (most, most, most, most), mode="reflect").to(images.dtype)
    offsets = torch.randint(2 * most + 1, (B, 2), generator=generator)
    rows = (offsets[:, :1] + torch.arange(height))[:, None, :, None]  # (B, 1, height, 1)
    columns = (offsets[:, 1:] + torch.arange(width))[:, None, None]  # (B, 1, 1, width)
    return padded[torch.arange(B)[:, None, None, None], torch.arange(C)[:, None, None], rows, columns]


def recoloured(images: Tensor, generator: torch.Generator, most: float) -> Tensor:
    """Photos (B, 3, height, width) uint8, each with its brightness, contrast and saturation changed.

    The factors are drawn uniformly from `1 - most` to `1 + most`: of all values, of their distance from the photo's
    mean, and of their distance from the pixel's grey.
    """
    factors = 1 + most * (2 * torch.rand(3, len(images), generator=generator) - 1)
    brightness, contrast, saturation = (factor[:, None, None, None] for factor in factors)
    values = images.float() * brightness
    mean = values.mean((1, 2, 3), keepdim=True)
    values = mean + contrast * (values - mean)
    grey = (values * values.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(1, keepdim=True)
    changed: Tensor = (grey + saturation * (values - grey)).round().clamp(0, 255).to(torch.uint8)
    return changed
