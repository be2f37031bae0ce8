"""Random draws of the tasks as functions of (seed, step): no state is kept from one call to the next."""

import hashlib
from functools import lru_cache

import torch
from torch import Tensor


def generator_of(seed: int, step: int, use: str) -> torch.Generator:
    """A CPU generator for one use ("shuffle", say) at one step; other seeds, steps and uses give unrelated numbers."""
    digest = hashlib.blake2b(f"{seed} {step} {use}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)


def random_orders(rows: int, items: int, generator: torch.Generator) -> Tensor:
    """Uniformly random orders (rows, items) int64."""
    # float64: among 24-bit numbers, equal ones would come up in every thousandth row of 200 items.
    return torch.rand(rows, items, generator=generator, dtype=torch.float64).argsort(1)


def rows_of_passes(count: int, seed: int, start: int, size: int, use: str) -> Tensor:
    """Rows `start` to `start + size - 1` of an endless list: all of 0 to count - 1 shuffled, then shuffled again, ...

    Returns (size,) int64: every row comes once per pass.
    """
    positions = torch.arange(start, start + size)
    passes, places = positions // count, positions % count
    if size == 0:
        return places
    shuffled = [_shuffled(count, seed, number, use) for number in range(int(passes[0]), int(passes[-1]) + 1)]
    return torch.stack(shuffled)[passes - passes[0], places]


@lru_cache(maxsize=8)
def _shuffled(count: int, seed: int, number: int, use: str) -> Tensor:
    return torch.randperm(count, generator=generator_of(seed, number, use))
