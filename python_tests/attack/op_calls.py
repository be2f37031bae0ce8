# fmt: off
"""Calls that work, of every op: makers of the arguments of the `torch.ops` schemas, and of their parts."""

from collections.abc import Callable
from typing import Any

import torch
from synthetic_runs import tiny_model
from torch import Tensor

from softrank_ext import ops

Make = Callable[[], dict[str, Any]]
B, N, D = 2, 4, 16
_MODEL = tiny_model().eval()
ENCODER = [
    parameter.detach() for parameter in (*_MODEL.encoder_layers.parameters(), *_MODEL.encoder_norm.parameters())
]
DECODER = [
    parameter.detach() for parameter in (*_MODEL.decoder_layers.parameters(), *_MODEL.decoder_norm.parameters())
]
PACKED_ENCODER, PACKED_DECODER = ops.pack_encoder(ENCODER), ops.pack_decoder(DECODER)


def rand(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def order(rows: int = B, size: int = N) -> Tensor:
    return rand(rows, size).argsort(1)


def mask() -> Tensor:
    return torch.ones(B, N, dtype=torch.bool)


def _encoder(prefix: str = "", *, packed: bool = True) -> dict[str, Any]:
    weights = [] if packed else list(ENCODER)
    return {f"{prefix}weights": weights, f"{prefix}packed": PACKED_ENCODER if packed else None,
            f"{prefix}heads": 2, f"{prefix}norm_first": True}


def _decoder(prefix: str = "", *, packed: bool = True) -> dict[str, Any]:
    weights = [] if packed else list(DECODER)
    return {f"{prefix}weights": weights, f"{prefix}packed": PACKED_DECODER if packed else None,
            f"{prefix}heads": 2, f"{prefix}norm_first": True}


def decoder_inputs() -> dict[str, Any]:
    return {"memory": rand(B, N, D), "tokens": rand(B, N, D), "start": rand(B, D), "places": rand(N, D),
            "head_keys": rand(B, N, D), "head_bias": rand(B, N), "mask": mask()}


def prediction() -> dict[str, Any]:
    return {"embedded": rand(B, N, D), "order": order(), "time": rand(B, 1, D), "start": rand(D), "places": rand(N, D),
            "head": rand(D + 1, D), "head_bias": None, "packed_head": None, "mask": mask()}


def choices(*, ruled: bool = False) -> dict[str, Any]:
    drawn = {"uniform": rand(B, N), "forced_order": order(), "forced_places": 1, "temperature": 1.0, "draft": order(),
             "before": None, "allowed": None, "group": None}
    if ruled:
        allowed = torch.ones(B, N, N, dtype=torch.bool)
        allowed[:, 0, 1] = False
        drawn |= {"forced_order": None, "forced_places": None, "before": torch.zeros(B, N, N, dtype=torch.bool),
                  "allowed": allowed, "group": torch.tensor([[0, 0, -1, -1]] * B)}
    return drawn


def op_calls() -> dict[str, list[Make]]:
    """Arguments of the `torch.ops` schemas."""
    float32 = {"dtype": torch.float32}
    numbers = {"samples": torch.arange(3), "seed": 1, "step": 0, "stream": 1, "count": 5}
    made: dict[str, list[Make]] = {
        "reflect": [lambda: {"x": rand(B, N)}],
        "decode_chamber": [lambda: {"soft_ranks": rand(B, N), "mask": mask()}],
        "read_order": [lambda: {"z": rand(B, N), "mask": mask()}],
        "lift_order": [lambda: {"order": order(), "slots": order(), "mask": mask(), **float32}],
        "pick": [lambda: {"scores": rand(B, N), "remaining": mask(), "uniform": rand(B)}],
        "decode_scores": [
            lambda: {"scores": rand(B, N, N), "mask": mask(), **choices()},
            lambda: {"scores": rand(B, N, N), "mask": mask(), **choices(ruled=True)},
        ],
        "allowed_picks": [
            lambda: {"prefix": order()[:, :2], "mask": mask(),
                     **{key: choices(ruled=True)[key] for key in ("before", "allowed", "group")}},
        ],
        "random_uniform": [lambda: {**numbers, **float32}],
        "random_normal": [lambda: {**numbers, **float32}],
        "checksum": [lambda: {"tensors": [rand(3), rand(B, N)]}],
        "encode": [lambda: {**_encoder(), "x": rand(B, N, D), "mask": mask()},
                   lambda: {**_encoder(packed=False), "x": rand(B, N, D), "mask": mask()}],
        "project": [lambda: {"x": rand(B, N, D), "weight": rand(3, D), "packed": ops.pack_projection(rand(3, D))}],
        "pack_encoder": [lambda: {"weights": list(ENCODER)}],
        "pack_decoder": [lambda: {"weights": list(DECODER)}],
        "pack_projection": [lambda: {"weight": rand(3, D)}],
        "layer_weight_names": [lambda: {"kind": "encoder"}],
        "cpu_capability": [dict],
        "build_facts": [dict],
        "decode_order": [lambda: {**_decoder(), **decoder_inputs(), **choices()},
                         lambda: {**_decoder(packed=False), **decoder_inputs(), **choices(ruled=True)}],
        "prepare_decoder": [lambda: {**_encoder(), **prediction()}],
        "predict_order": [lambda: {**_encoder("encoder_"), **_decoder("decoder_"), **prediction(), **choices()}],
        "open_decoder": [lambda: {**_decoder(), "memory": rand(B, N, D), "mask": mask()}],
        "advance_decoder": [
            lambda: {**_decoder(packed=False), "cache": ops.open_decoder(ops.Transformer(DECODER, None, 2, True),
                                                             rand(B, N, D), mask()),
                     "inputs": rand(B, 2, D), "lengths": torch.tensor([0, 1]), "mask": mask()},
        ],
    }
    return made
