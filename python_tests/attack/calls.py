# ruff: noqa: E501 (a table)
# fmt: off
"""Calls that work, of every op and every public function: what the fuzzing of calls starts from.

`CALLS` holds name, function and a maker of keyword arguments. Models are tiny and made once.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from synthetic_runs import tiny_model
from torch import Tensor

import softrank_ext
from softrank_ext import (
    Beam,
    Bridge,
    Constraints,
    Draw,
    Engine,
    Greedy,
    answers,
    distributions,
    metrics,
    noise,
    ops,
    permutations,
)
from softrank_ext.constraints import rules_of
from softrank_ext.laws import fit_plackett_luce
from softrank_ext.likelihood import log_likelihood
from softrank_ext.model.config import DataFacts, SoftRankConfig
from softrank_ext.processes import Riffle, bridge, riffle
from softrank_ext.sampling import IncrementalDecoder, beam_search, sample
from softrank_ext.tasks.two_opt import two_opt

Make = Callable[[], dict[str, Any]]
B, N, D = 2, 4, 16
_MODEL = tiny_model().eval()
_ENCODER = [
    parameter.detach() for parameter in (*_MODEL.encoder_layers.parameters(), *_MODEL.encoder_norm.parameters())
]
_DECODER = [
    parameter.detach() for parameter in (*_MODEL.decoder_layers.parameters(), *_MODEL.decoder_norm.parameters())
]
_PACKED_ENCODER, _PACKED_DECODER = ops.pack_encoder(_ENCODER), ops.pack_decoder(_DECODER)


def _rand(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(1))


def _order(rows: int = B, size: int = N) -> Tensor:
    return _rand(rows, size).argsort(1)


def _mask() -> Tensor:
    return torch.ones(B, N, dtype=torch.bool)


def _encoder(prefix: str = "", *, packed: bool = True) -> dict[str, Any]:
    weights = [] if packed else list(_ENCODER)
    return {f"{prefix}weights": weights, f"{prefix}packed": _PACKED_ENCODER if packed else None,
            f"{prefix}heads": 2, f"{prefix}norm_first": True}


def _decoder(prefix: str = "", *, packed: bool = True) -> dict[str, Any]:
    weights = [] if packed else list(_DECODER)
    return {f"{prefix}weights": weights, f"{prefix}packed": _PACKED_DECODER if packed else None,
            f"{prefix}heads": 2, f"{prefix}norm_first": True}


def _inputs() -> dict[str, Any]:
    return {"memory": _rand(B, N, D), "tokens": _rand(B, N, D), "start": _rand(B, D), "places": _rand(N, D),
            "head_keys": _rand(B, N, D), "head_bias": _rand(B, N), "mask": _mask()}


def _prediction() -> dict[str, Any]:
    return {"embedded": _rand(B, N, D), "order": _order(), "time": _rand(B, 1, D), "start": _rand(D), "places": _rand(N, D),
            "head": _rand(D + 1, D), "head_bias": None, "packed_head": None, "mask": _mask()}


def _choices(*, ruled: bool = False) -> dict[str, Any]:
    drawn = {"uniform": _rand(B, N), "forced_order": _order(), "forced_places": 1, "temperature": 1.0, "draft": _order(),
             "before": None, "allowed": None, "group": None}
    if ruled:
        allowed = torch.ones(B, N, N, dtype=torch.bool)
        allowed[:, 0, 1] = False
        drawn |= {"forced_order": None, "forced_places": None, "before": torch.zeros(B, N, N, dtype=torch.bool),
                  "allowed": allowed, "group": torch.tensor([[0, 0, -1, -1]] * B)}
    return drawn


def _ops() -> dict[str, list[Make]]:
    """Arguments of the `torch.ops` schemas."""
    float32 = {"dtype": torch.float32}
    numbers = {"samples": torch.arange(3), "seed": 1, "step": 0, "stream": 1, "count": 5}
    made: dict[str, list[Make]] = {
        "reflect": [lambda: {"x": _rand(B, N)}],
        "decode_chamber": [lambda: {"soft_ranks": _rand(B, N), "mask": _mask()}],
        "read_order": [lambda: {"z": _rand(B, N), "mask": _mask()}],
        "lift_order": [lambda: {"order": _order(), "slots": _order(), "mask": _mask(), **float32}],
        "pick": [lambda: {"scores": _rand(B, N), "remaining": _mask(), "uniform": _rand(B)}],
        "decode_scores": [
            lambda: {"scores": _rand(B, N, N), "mask": _mask(), **_choices()},
            lambda: {"scores": _rand(B, N, N), "mask": _mask(), **_choices(ruled=True)},
        ],
        "allowed_picks": [
            lambda: {"prefix": _order()[:, :2], "mask": _mask(),
                     **{key: _choices(ruled=True)[key] for key in ("before", "allowed", "group")}},
        ],
        "random_uniform": [lambda: {**numbers, **float32}],
        "random_normal": [lambda: {**numbers, **float32}],
        "checksum": [lambda: {"tensors": [_rand(3), _rand(B, N)]}],
        "encode": [lambda: {**_encoder(), "x": _rand(B, N, D), "mask": _mask()},
                   lambda: {**_encoder(packed=False), "x": _rand(B, N, D), "mask": _mask()}],
        "project": [lambda: {"x": _rand(B, N, D), "weight": _rand(3, D), "packed": ops.pack_projection(_rand(3, D))}],
        "pack_encoder": [lambda: {"weights": list(_ENCODER)}],
        "pack_decoder": [lambda: {"weights": list(_DECODER)}],
        "pack_projection": [lambda: {"weight": _rand(3, D)}],
        "layer_weight_names": [lambda: {"kind": "encoder"}],
        "cpu_capability": [dict],
        "decode_order": [lambda: {**_decoder(), **_inputs(), **_choices()},
                         lambda: {**_decoder(packed=False), **_inputs(), **_choices(ruled=True)}],
        "prepare_decoder": [lambda: {**_encoder(), **_prediction()}],
        "predict_order": [lambda: {**_encoder("encoder_"), **_decoder("decoder_"), **_prediction(), **_choices()}],
        "open_decoder": [lambda: {**_decoder(), "memory": _rand(B, N, D), "mask": _mask()}],
        "advance_decoder": [
            lambda: {**_decoder(packed=False), "cache": ops.open_decoder(ops.Transformer(_DECODER, None, 2, True),
                                                             _rand(B, N, D), _mask()),
                     "inputs": _rand(B, 2, D), "lengths": torch.tensor([0, 1]), "mask": _mask()},
        ],
    }
    return made


def _public() -> list[tuple[str, Callable[..., Any], Make]]:
    """Public functions."""
    orders = {"order": _order(3), "true_order": _order(3).flip(1)}
    grid = {"order": _order(3), "true_order": _order(3).flip(1), "rows": 2, "columns": 2}
    items = {"items": _rand(B, N, 1)}
    scores = {"scores": _rand(B, N, N)}
    transformer = ops.Transformer(_DECODER, None, 2, True)
    encoder = ops.Transformer([], _PACKED_ENCODER, 2, True)
    calls: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
        ("ops.reflect", ops.reflect, {"x": _rand(B, N)}),
        ("ops.decode_chamber", ops.decode_chamber, {"soft_ranks": _rand(B, N), "mask": _mask()}),
        ("ops.read_order", ops.read_order, {"z": _rand(B, N), "mask": _mask()}),
        ("ops.lift_order", ops.lift_order, {"order": _order(), "slots": _order(), "mask": _mask()}),
        ("ops.pick", ops.pick, {"scores": _rand(B, N), "remaining": _mask(), "uniform": _rand(B)}),
        ("ops.decode_scores", ops.decode_scores, {**scores, "mask": _mask(), "choices": ops.Choices(**_choices())}),
        ("ops.decode_scores", ops.decode_scores,
         {**scores, "mask": _mask(), "choices": ops.Choices(**_choices(ruled=True))}),
        ("ops.allowed_picks", ops.allowed_picks, {"prefix": _order()[:, :2], "mask": _mask()}),
        ("ops.encode", ops.encode, {"encoder": encoder, "x": _rand(B, N, D), "mask": _mask()}),
        ("ops.project", ops.project, {"x": _rand(B, N, D), "weight": _rand(3, D), "packed": None}),
        ("ops.pack_projection", ops.pack_projection, {"weight": _rand(3, D)}),
        ("ops.pack_encoder", ops.pack_encoder, {"weights": list(_ENCODER)}),
        ("ops.checksum", ops.checksum, {"tensors": [_rand(3)]}),
        ("ops.decode_order", ops.decode_order, {"decoder": transformer, "inputs": ops.DecoderInputs(**_inputs()),
                                                "choices": ops.Choices(**_choices())}),
        ("ops.open_decoder", ops.open_decoder, {"decoder": transformer, "memory": _rand(B, N, D), "mask": _mask()}),
        ("ops.prepare_decoder", ops.prepare_decoder,
         {"encoder": encoder, "inputs": ops.PredictionInputs(**_prediction())}),
        ("permutations.ranks_of", permutations.ranks_of, {"order": _order()}),
        ("permutations.order_of", permutations.order_of, {"ranks": _order()}),
        ("permutations.arrange", permutations.arrange, {"items": _rand(B, N, 3), "order": _order()}),
        ("permutations.compose", permutations.compose, {"order": _order(), "slots": _order()}),
        ("permutations.check_order", permutations.check_order, {"order": _order()}),
        ("permutations.chamber_margin", permutations.chamber_margin, {"soft_ranks": _rand(B, N), "mask": _mask()}),
        ("noise.uniform", noise.uniform, {"seed": 1, "samples": torch.arange(3), "step": 0, "count": 4, "stream": 1}),
        ("noise.normal", noise.normal, {"seed": 1, "samples": torch.arange(3), "step": 0, "count": 4}),
        ("metrics.kendall_tau", metrics.kendall_tau, orders),
        ("metrics.accuracy", metrics.accuracy, orders),
        ("metrics.correctness", metrics.correctness, orders),
        ("metrics.tie_aware_accuracy", metrics.tie_aware_accuracy, {**orders, "labels": _order(3)}),
        ("metrics.tour_length", metrics.tour_length, {"points": _rand(3, N, 2), "order": _order(3)}),
        ("metrics.matrix_tour_length", metrics.matrix_tour_length, {"distances": _rand(3, N, N), "order": _order(3)}),
        ("metrics.gap", metrics.gap, {"length": _rand(3), "best_length": _rand(3)}),
        ("metrics.tour_validity", metrics.tour_validity, {"order": _order(3), "first": _order(3)[:, 0]}),
        ("metrics.place_accuracy", metrics.place_accuracy, grid),
        ("metrics.manhattan_displacement", metrics.manhattan_displacement, grid),
        ("metrics.ndcg", metrics.ndcg, {"order": _order(3), "relevance": _rand(3, N), "k": 2}),
        ("answers.pairwise", answers.pairwise, {"samples": _order(9)}),
        ("answers.top_k", answers.top_k, {"samples": _order(9), "k": 2}),
        ("answers.rank_interval", answers.rank_interval, {"samples": _order(9), "level": 0.8}),
        ("answers.consensus", answers.consensus, {"samples": _order(9), "method": "kemeny"}),
        ("bridge.lift_to_grid", bridge.lift_to_grid, {"ranks": _order()}),
        ("bridge.reflect_pairs", bridge.reflect_pairs,
         {"soft_ranks": _rand(B, N), "before": torch.zeros(B, N, N, dtype=torch.bool)}),
        ("Bridge", Bridge, {"noise_scale": 0.5, "prior": "uniform", "sampling_steps": 3}),
        ("Bridge.noised", Bridge().noised, {"z_clean": _rand(B, N), "z_prior": _rand(B, N), "t": 0.5, "noise": _rand(B, N)}),
        ("Bridge.step_back", Bridge().step_back,
         {"z_t": _rand(B, N), "z_clean": _rand(B, N), "t": 0.5, "s": 0.2, "noise": _rand(B, N)}),
        ("Riffle", Riffle, {"visited": (0, 1, 3)}),
        ("riffle.draw_labels", riffle.draw_labels, {"uniform": _rand(B, N).double(), "riffles": 2, "mask": _mask()}),
        ("Constraints", Constraints, {"before": [(0, 1)], "pins": {2: 0}, "forbidden": [(1, 3)], "together": [(0, 1)]}),
        ("rules_of", rules_of, {"constraints": Constraints(before=[(0, 1)]), "mask": _mask(), "B": B, "N": N}),
        ("Draw", Draw, {"temperature": 0.5}),
        ("Beam", Beam, {"width": 3, "kept": 2, "returned": 1}),
        ("Engine", Engine, {"compiled": True, "cache": True, "max_memory": 10**8}),
        ("DataFacts", DataFacts, {"num_items": (3, 3), "fixed_start": False}),
        ("SoftRankConfig", SoftRankConfig, {"d_model": 16, "feed_forward": 24, "heads": 2, "encoder_layers": 1,
                                            "decoder_layers": 1, "time_steps": 3, "dropout": 0.1}),
        ("PlackettLuce", _drawn(distributions.PlackettLuce), {"scores": _rand(B, N)}),
        ("GeneralizedPlackettLuce", _drawn(distributions.GeneralizedPlackettLuce), scores),
        ("Mallows", _drawn(distributions.Mallows), {"center": _order(), "dispersion": 0.5}),
        ("Riffle law", _drawn(distributions.Riffle), {"n": N, "shuffles": 2}),
        ("fit_plackett_luce", fit_plackett_luce, {"order": _order(20)}),
        ("two_opt", two_opt, {"points": _rand(B, N, 2), "order": _order(), "neighbours": 3}),
        ("beam_search", beam_search, {**scores, "width": 3, "mask": _mask(), "first": torch.tensor([1, 2])}),
        ("sample", sample, {"model": _MODEL, **items, "mask": _mask(), "num_samples": 2, "steps": 2, "seed": 1,
                            "decode": Draw(0.7), "constraints": Constraints(before=[(0, 1)])}),
        ("sample", sample, {"model": _MODEL, **items, "mask": _mask(), "num_samples": 1, "steps": 2, "seed": 1,
                            "decode": Beam(2), "first_sample": 3, "engine": Engine()}),
        ("sample", sample, {"model": _MODEL, **items, "process": replace(_MODEL.config.process, noise_scale=0.2),
                            "decode": Greedy(), "constraints": Constraints(pins={1: 0})}),
        ("model.decode", _MODEL.decode, {**items, "t": 0.5, "mask": _mask(), "uniform": _rand(B, N), "decode": Draw(2.0)}),
        ("model.decode", _MODEL.decode, {**items, "t": 0.5, "forced_order": _order(), "draft": _order()}),
        ("model.log_prob", _MODEL.log_prob, {**items, "t": 0.5, "order": _order(), "mask": _mask()}),
        ("log_likelihood", log_likelihood, {"model": _MODEL, **items, "order": _order(), "num_samples": 2, "steps": 2}),
        ("IncrementalDecoder", lambda **given: IncrementalDecoder(**given).step(torch.tensor([1, 2])),
         {"model": _MODEL, **items, "t": 0.5, "mask": _mask()}),
    ]
    return [(name, function, lambda arguments=arguments: dict(arguments)) for name, function, arguments in calls]


def _drawn(law: Callable[..., Any]) -> Callable[..., Any]:
    def draw(**given: Any) -> None:
        made = law(**given)
        made.log_prob(made.sample((2,)))

    return draw


CALLS: list[tuple[str, Callable[..., Any], Make]] = [
    *(
        (f"torch.ops.{name}", getattr(torch.ops.softrank_ext, name), make)
        for name, makes in _ops().items()
        for make in makes
    ),
    *_public(),
]
# Every schema of the library is here: a new op without a line would not be fuzzed.
_SCHEMAS = {
    name.removeprefix("softrank_ext::")
    for name in torch._C._dispatch_get_all_op_names()
    if name.startswith("softrank_ext::")
}
MISSING = sorted(_SCHEMAS - set(_ops()))
assert softrank_ext.__all__
