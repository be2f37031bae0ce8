"""Tiny models of numbers whose random weights give distributions far from uniform."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from softrank_ext import Bridge, DataFacts, Riffle, SoftRankConfig, SoftRankModel
from softrank_ext.model import DECODER_HEADS

RIFFLES = Riffle((0, 1, 3), "previous")


def small_model(
    process: Bridge | Riffle = RIFFLES, head: Any = "gpl", N: int = 4, *, fixed_start: bool = False, **changes: Any
) -> SoftRankModel:
    """A model of numbers on a grid of two steps, in eval mode. changes: of the config."""
    torch.manual_seed(4)
    is_decoder = head in DECODER_HEADS
    config = SoftRankConfig(
        d_model=16,
        feed_forward=32,
        heads=2,
        encoder_layers=1,
        decoder_layers=1 if is_decoder else 0,
        dropout=0.0,
        head=head,
        max_items=N if head == "linear" else None,
        norm_first=is_decoder,
        time_steps=2,
        init="published",
        embedder={"kind": "linear", "features": 1},
        process=process,
        data=DataFacts(fixed_start=fixed_start),
    )
    return SoftRankModel(replace(config, **changes)).eval()


def numbers_of(N: int) -> Tensor:
    """N numbers to sort, (N, 1)."""
    return torch.tensor([0.3, -1.2, 2.0, 0.7, -0.4, 1.1])[:N, None]
