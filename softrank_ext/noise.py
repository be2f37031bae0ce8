"""Counter-based random numbers: no generator state, no order of drawing.

A number is a function of (seed, sample, step, stream, index) through Philox-4x32-10: sample i's noise does not depend
on the batch that it is computed in, its row there, the number of threads or the device, and the plain-torch reference
gives the same bits. `step` counts diffusion steps and `index` places or items. `stream` keeps uses apart.
"""

import torch
from torch import Tensor

REFERENCE_STREAM = 0  # z_ref, where the reverse process starts
PICK_STREAM = 1  # the uniforms that `pick` reads the inverse CDF at
BRIDGE_STREAM = 2  # the Gaussian part of a bridge step
TRAINING_STREAM = 3  # times drawn in training
RESAMPLE_STREAM = 4  # which of weighted draws are kept
GUIDANCE_STREAM = 5  # which Gaussian a guided bridge step is drawn from

_FLOAT_DTYPES = (torch.float32, torch.float64)


def uniform(
    seed: int, samples: Tensor, step: int, count: int, *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Uniform numbers in [0, 1): (B, count), row b belonging to sample `samples[b]`.

    seed: any 64-bit integer. samples: (B,) int64. step: 0 to 2^24 - 1. stream: 0 to 255. dtype: float32 or float64 (the
    float32 number is the float64 one cut off after 24 bits).
    """
    _check(seed, samples, step, count, stream, dtype)
    return torch.ops.softrank_ext.random_uniform(samples, seed, step, stream, count, dtype)


def normal(
    seed: int, samples: Tensor, step: int, count: int, *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal numbers (B, count), keyed as in `uniform`: the normal quantile of the same random bits."""
    _check(seed, samples, step, count, stream, dtype)
    return torch.ops.softrank_ext.random_normal(samples, seed, step, stream, count, dtype)


def _check(seed: int, samples: Tensor, step: int, count: int, stream: int, dtype: torch.dtype) -> None:
    if not isinstance(samples, Tensor) or samples.ndim != 1 or samples.dtype != torch.int64:
        got = f"{tuple(samples.shape)} {samples.dtype}" if isinstance(samples, Tensor) else type(samples).__name__
        raise ValueError(f"samples must be a (B,) int64 tensor, got {got}")
    for name, value, low, high in (
        ("seed", seed, -(2**63), 2**63 - 1),
        ("step", step, 0, 2**24 - 1),
        ("stream", stream, 0, 255),
        ("count", count, 0, 2**31 - 1),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name} must be from {low} to {high}, got {value}")
    if dtype not in _FLOAT_DTYPES:
        raise ValueError(f"dtype must be float32 or float64, got {dtype}")
