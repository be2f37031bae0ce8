"""Counter-based random numbers: no generator state, no order of drawing.

A number is a function of (seed, sample, step, stream, index) through Philox-4x32-10: sample i's noise does not depend
on the batch that it is computed in, its row there, the number of threads or the device, and the plain-torch reference
gives the same bits. `step` counts diffusion steps and `index` places or items. `stream` keeps uses apart.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from softrank_ext.checks import FLOAT_DTYPES, check_integer, check_seed, check_tensor, dtype_name
from softrank_ext.ops.library import call_op

PRIOR_STREAM = 0  # z_prior, where the reverse process starts
PICK_STREAM = 1  # the uniforms that `pick` reads the inverse CDF at
BRIDGE_STREAM = 2  # the Gaussian part of a bridge step
TRAINING_STREAM = 3  # times drawn in training
RESAMPLE_STREAM = 4  # which of weighted draws are kept
GUIDANCE_STREAM = 5  # which Gaussian a guided bridge step is drawn from
SEARCH_STREAM = 6  # which part of an order is drawn again, and whether the result is taken

MOST_NUMBERS = 2**29  # that one call may draw


def seed_of(seed: int | torch.Generator) -> int:
    """The seed, checked, or the one that a generator given as the seed draws.

    Nothing else is taken from the generator: one number, so the next call with it has another seed.
    """
    if isinstance(seed, torch.Generator):
        return int(torch.randint(2**63 - 1, (), generator=seed, device=seed.device))
    return check_seed(seed)


def uniform(
    seed: int, samples: Tensor, step: int, count: int, *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Uniform numbers in [0, 1): (B, count), row b belonging to sample `samples[b]`.

    seed: any 64-bit integer. samples: (B,) int64. step: 0 to 2^24 - 1. stream: 0 to 255. dtype: float32 or float64 (the
    float32 number is the float64 one cut off after 24 bits).
    """
    _check(seed, samples, step, count, stream, dtype)
    drawn: Tensor = call_op(torch.ops.softrank_ext.random_uniform, samples, seed, step, stream, count, dtype)
    return drawn


def normal(
    seed: int, samples: Tensor, step: int, count: int, *, stream: int = 0, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal numbers (B, count), keyed as in `uniform`: the normal quantile of the same random bits."""
    _check(seed, samples, step, count, stream, dtype)
    drawn: Tensor = call_op(torch.ops.softrank_ext.random_normal, samples, seed, step, stream, count, dtype)
    return drawn


def _check(seed: int, samples: Tensor, step: int, count: int, stream: int, dtype: torch.dtype) -> None:
    check_tensor("samples", samples, ("B",), torch.int64)
    check_seed(seed)
    for name, value, most in (("step", step, 2**24 - 1), ("stream", stream, 255), ("count", count, 2**31 - 1)):
        check_integer(name, value, 0, most)
    if len(samples) * count > MOST_NUMBERS:
        raise ValueError(f"samples times count must be at most {MOST_NUMBERS}, got {len(samples)} times {count}")
    if dtype not in FLOAT_DTYPES:
        raise ValueError(f"dtype must be float32 or float64, got {dtype_name(dtype)}")


@dataclass(frozen=True, eq=False)
class RowNoise:
    """The random numbers of a batch's rows, for a noise process to read as it needs them.

    samples (B,) int64: the rows' sample numbers. count: numbers per row, N. mask (B, N) bool: True = real item, None =
    all. first (B,) int64: the item held at soft rank 0 in each row, None for none.
    """

    seed: int
    samples: Tensor
    count: int
    dtype: torch.dtype = torch.float32
    mask: Tensor | None = None
    first: Tensor | None = None

    def uniform(self, step: int, stream: int, dtype: torch.dtype | None = None) -> Tensor:
        """Uniform numbers (B, N) in [0, 1)."""
        return uniform(self.seed, self.samples, step, self.count, stream=stream, dtype=dtype or self.dtype)

    def normal(self, step: int, stream: int) -> Tensor:
        """Standard normal numbers (B, N)."""
        return normal(self.seed, self.samples, step, self.count, stream=stream, dtype=self.dtype)

    def of_items(self, drawn: Tensor) -> Tensor:
        """Noise per item: numbered along the real items, so that padding in between does not shift it; 0 at `first`."""
        if self.mask is not None:
            drawn = drawn.gather(1, (self.mask.cumsum(1) - 1).clamp(min=0))
        return self.held(drawn)

    def held(self, drawn: Tensor) -> Tensor:
        """The noise with 0 at `first`, whose soft rank stays 0."""
        return drawn if self.first is None else drawn.scatter(1, self.first[:, None], 0.0)
