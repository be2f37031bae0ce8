# ruff: noqa: E501 (a table)
# fmt: off
"""Calls that work, of every public function: name, function and keyword arguments, from which `attack.calls` makes more.

`UNCALLED` names what is public and not called here, with the reason. `missing()` lists public names that are neither.
"""

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from synthetic_runs import tiny_model
from synthetic_tasks import SortNumbers

import softrank_ext
from attack.op_calls import (
    DECODER,
    ENCODER,
    PACKED_ENCODER,
    B,
    D,
    N,
    choices,
    decoder_inputs,
    mask,
    order,
    prediction,
    rand,
)
from softrank_ext import (
    Beam,
    Bridge,
    Constraints,
    Draw,
    Drawing,
    Engine,
    Greedy,
    Rebuild,
    Search,
    TrainConfig,
    answers,
    certify,
    costs,
    distributions,
    evaluation,
    metrics,
    noise,
    ops,
    permutations,
    processes,
    schedule,
    training,
)
from softrank_ext import (
    choices as call_choices,
)
from softrank_ext.constraints import pinned_first, rules_of, settings_of
from softrank_ext.laws import (
    fit_generalized_plackett_luce,
    fit_mallows,
    fit_plackett_luce,
    rising_sequences,
    stagewise_log_probs,
)
from softrank_ext.likelihood import log_likelihood
from softrank_ext.model import make_embedder, square_copy
from softrank_ext.model.config import DataFacts, SoftRankConfig
from softrank_ext.processes import Riffle, bridge, riffle
from softrank_ext.ranking.places import Quota
from softrank_ext.sampling import (
    Annealed,
    IncrementalDecoder,
    Near,
    Part,
    Tail,
    Unsure,
    Whole,
    beam_decode,
    beam_search,
    improve,
    sample,
)
from softrank_ext.show import draw_walk, swapped_pairs
from softrank_ext.tasks.two_opt import two_opt

MODEL = tiny_model().eval()
PARTIAL = tiny_model(partial=True).eval()


def _cost(items: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return order.diff(dim=1).abs().double().sum(1)


class _Task:
    """`SortNumbers(3)`, whose fields are not for the fuzzer: what a task itself raises is passed on."""

    def __getattr__(self, name: str) -> Any:
        return getattr(SortNumbers(3), name)


def _drawn(law: Callable[..., Any]) -> Callable[..., Any]:
    def draw(**given: Any) -> None:
        made = law(**given)
        made.log_prob(made.sample((2,)))

    return draw


def _train(**given: Any) -> None:
    """One update, whatever the numbers are: a run of 10^9 is long, not wrong."""
    if isinstance(given["config"], TrainConfig):
        given["config"] = replace(given["config"], iterations=1, batch_size=2, noisy_orders=1, evaluate_count=2)
    with contextlib.suppress(FloatingPointError):  # the loss of huge rates, in train's own words
        training.train(**given)


def _evaluate(**given: Any) -> None:
    evaluation.evaluate(count=3, best_of=2, **given)


def _iterated_greedy(**given: Any) -> None:
    costs.iterated_greedy(seconds=0.01, **given)


def _iterated_local_search(**given: Any) -> None:
    costs.iterated_local_search(seconds=0.01, **given)


def _schedule(**given: Any) -> None:
    with contextlib.suppress(FileNotFoundError):  # a word is the name of a file
        schedule(seconds=0.01, **given)


def public_calls() -> list[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Name, function and arguments that work."""
    orders = {"order": order(3), "true_order": order(3).flip(1)}
    grid = {"order": order(3), "true_order": order(3).flip(1), "rows": 2, "columns": 2}
    items = {"items": rand(B, N, 1)}
    scores = {"scores": rand(B, N, N)}
    transformer = ops.Transformer(DECODER, None, 2, True)
    encoder = ops.Transformer([], PACKED_ENCODER, 2, True)
    ordered = {"order": order()}
    whole = Rebuild(order(), torch.tensor([[True, False, True, True]] * B), 0.5)
    law = torch.tensor([0.5, 0.3, 0.2])
    return [
        ("ops.reflect", ops.reflect, {"x": rand(B, N)}),
        ("ops.decode_chamber", ops.decode_chamber, {"soft_ranks": rand(B, N), "mask": mask()}),
        ("ops.read_order", ops.read_order, {"z": rand(B, N), "mask": mask()}),
        ("ops.lift_order", ops.lift_order, {"order": order(), "slots": order(), "mask": mask()}),
        ("ops.pick", ops.pick, {"scores": rand(B, N), "remaining": mask(), "uniform": rand(B)}),
        ("ops.decode_scores", ops.decode_scores, {**scores, "mask": mask(), "choices": ops.Choices(**choices())}),
        ("ops.decode_scores", ops.decode_scores,
         {**scores, "mask": mask(), "choices": ops.Choices(**choices(ruled=True))}),
        ("ops.allowed_picks", ops.allowed_picks, {"prefix": order()[:, :2], "mask": mask()}),
        ("ops.encode", ops.encode, {"encoder": encoder, "x": rand(B, N, D), "mask": mask()}),
        ("ops.project", ops.project, {"x": rand(B, N, D), "weight": rand(3, D), "packed": None}),
        ("ops.pack_projection", ops.pack_projection, {"weight": rand(3, D)}),
        ("ops.pack_encoder", ops.pack_encoder, {"weights": list(ENCODER)}),
        ("ops.checksum", ops.checksum, {"tensors": [rand(3)]}),
        ("ops.decode_order", ops.decode_order, {"decoder": transformer, "inputs": ops.DecoderInputs(**decoder_inputs()),
                                                "choices": ops.Choices(**choices())}),
        ("ops.open_decoder", ops.open_decoder, {"decoder": transformer, "memory": rand(B, N, D), "mask": mask()}),
        ("ops.prepare_decoder", ops.prepare_decoder,
         {"encoder": encoder, "inputs": ops.PredictionInputs(**prediction())}),
        ("permutations.ranks_of", permutations.ranks_of, {"order": order()}),
        ("permutations.order_of", permutations.order_of, {"ranks": order()}),
        ("permutations.arrange", permutations.arrange, {"items": rand(B, N, 3), "order": order()}),
        ("permutations.compose", permutations.compose, {"order": order(), "slots": order()}),
        ("permutations.check_order", permutations.check_order, {"order": order()}),
        ("permutations.chamber_margin", permutations.chamber_margin, {"soft_ranks": rand(B, N), "mask": mask()}),
        ("noise.uniform", noise.uniform, {"seed": 1, "samples": torch.arange(3), "step": 0, "count": 4, "stream": 1}),
        ("noise.seed_of", noise.seed_of, {"seed": 1}),
        ("noise.normal", noise.normal, {"seed": 1, "samples": torch.arange(3), "step": 0, "count": 4}),
        ("metrics.kendall_tau", metrics.kendall_tau, orders),
        ("metrics.accuracy", metrics.accuracy, orders),
        ("metrics.correctness", metrics.correctness, orders),
        ("metrics.tie_aware_accuracy", metrics.tie_aware_accuracy, {**orders, "labels": order(3)}),
        ("metrics.tour_length", metrics.tour_length, {"points": rand(3, N, 2), "order": order(3)}),
        ("metrics.matrix_tour_length", metrics.matrix_tour_length, {"distances": rand(3, N, N), "order": order(3)}),
        ("metrics.gap", metrics.gap, {"length": rand(3), "best_length": rand(3)}),
        ("metrics.tour_validity", metrics.tour_validity, {"order": order(3), "first": order(3)[:, 0]}),
        ("metrics.place_accuracy", metrics.place_accuracy, grid),
        ("metrics.manhattan_displacement", metrics.manhattan_displacement, grid),
        ("metrics.ndcg", metrics.ndcg, {"order": order(3), "relevance": rand(3, N), "k": 2}),
        ("answers.pairwise", answers.pairwise, {"samples": order(9)}),
        ("answers.top_k", answers.top_k, {"samples": order(9), "k": 2}),
        ("answers.rank_interval", answers.rank_interval, {"samples": order(9), "level": 0.8}),
        ("answers.consensus", answers.consensus, {"samples": order(9), "method": "kemeny"}),
        ("bridge.lift_to_grid", bridge.lift_to_grid, {"ranks": order()}),
        ("bridge.reflect_pairs", bridge.reflect_pairs,
         {"soft_ranks": rand(B, N), "before": torch.zeros(B, N, N, dtype=torch.bool)}),
        ("Bridge", Bridge, {"noise_scale": 0.5, "prior": "uniform", "sampling_steps": 3}),
        ("Bridge.noised", Bridge().noised, {"z_clean": rand(B, N), "z_prior": rand(B, N), "t": 0.5, "noise": rand(B, N)}),
        ("Bridge.step_back", Bridge().step_back,
         {"z_t": rand(B, N), "z_clean": rand(B, N), "t": 0.5, "s": 0.2, "noise": rand(B, N)}),
        ("Riffle", Riffle, {"visited": (0, 1, 3)}),
        ("riffle.draw_labels", riffle.draw_labels, {"uniform": rand(B, N).double(), "riffles": 2, "mask": mask()}),
        ("Constraints", Constraints, {"before": [(0, 1)], "pins": {2: 0}, "forbidden": [(1, 3)], "together": [(0, 1)]}),
        ("rules_of", rules_of, {"constraints": Constraints(before=[(0, 1)]), "mask": mask(), "B": B, "N": N}),
        ("Draw", Draw, {"temperature": 0.5}),
        ("Beam", Beam, {"width": 3, "kept": 2, "returned": 1}),
        ("Engine", Engine, {"compiled": True, "cache": True, "max_memory": 10**8}),
        ("DataFacts", DataFacts, {"num_items": (3, 3), "fixed_start": False}),
        ("SoftRankConfig", SoftRankConfig, {"d_model": 16, "feed_forward": 24, "heads": 2, "encoder_layers": 1,
                                            "decoder_layers": 1, "time_steps": 3, "dropout": 0.1}),
        ("PlackettLuce", _drawn(distributions.PlackettLuce), {"scores": rand(B, N)}),
        ("GeneralizedPlackettLuce", _drawn(distributions.GeneralizedPlackettLuce), scores),
        ("Mallows", _drawn(distributions.Mallows), {"center": order(), "dispersion": 0.5}),
        ("Riffle law", _drawn(distributions.Riffle), {"n": N, "shuffles": 2}),
        ("fit_plackett_luce", fit_plackett_luce, {"order": order(20)}),
        ("fit_generalized_plackett_luce", fit_generalized_plackett_luce, {"order": order(20), "l2": 0.1}),
        ("fit_mallows", fit_mallows, {"order": order(20), "counts": rand(20) + 1}),
        ("two_opt", two_opt, {"points": rand(B, N, 2), "order": order(), "neighbours": 3}),
        ("beam_search", beam_search, {**scores, "width": 3, "mask": mask(), "first": torch.tensor([1, 2])}),
        ("sample", sample, {"model": MODEL, **items, "mask": mask(), "num_samples": 2, "steps": 2, "seed": 1,
                            "decode": Draw(0.7), "constraints": Constraints(before=[(0, 1)])}),
        ("sample", sample, {"model": MODEL, **items, "mask": mask(), "num_samples": 1, "steps": 2, "seed": 1,
                            "decode": Beam(2), "first_sample": 3, "engine": Engine()}),
        ("sample", sample, {"model": MODEL, **items, "process": replace(MODEL.config.process, noise_scale=0.2),
                            "decode": Greedy(), "constraints": Constraints(pins={1: 0})}),
        ("model.decode", MODEL.decode, {**items, "t": 0.5, "mask": mask(), "uniform": rand(B, N), "decode": Draw(2.0)}),
        ("model.decode", MODEL.decode, {**items, "t": 0.5, "forced_order": order(), "draft": order()}),
        ("model.log_prob", MODEL.log_prob, {**items, "t": 0.5, "order": order(), "mask": mask()}),
        ("log_likelihood", log_likelihood, {"model": MODEL, **items, "order": order(), "num_samples": 2, "steps": 2}),
        ("IncrementalDecoder", lambda **given: IncrementalDecoder(**given).step(torch.tensor([1, 2])),
         {"model": MODEL, **items, "t": 0.5, "mask": mask()}),
        ("ops.decode_order", ops.decode_order, {"decoder": transformer, "inputs": ops.DecoderInputs(**decoder_inputs()),
                                                "choices": ops.Choices(**choices(ruled=True))}),
        ("ops.predict_order", ops.predict_order, {"encoder": encoder, "decoder": transformer, "inputs": ops.PredictionInputs(**prediction()),
                                                  "choices": ops.Choices(**choices())}),
        ("ops.advance_decoder", ops.advance_decoder,
         {"decoder": transformer, "cache": ops.open_decoder(transformer, rand(B, N, D), mask()), "inputs": rand(B, 2, D),
          "lengths": torch.tensor([0, 1]), "mask": mask()}),
        ("ops.pack_decoder", ops.pack_decoder, {"weights": list(DECODER)}),
        ("ops.layer_weight_names", ops.layer_weight_names, {"kind": "encoder"}),
        ("permutations.check_slots", permutations.check_slots, {**ordered, "mask": mask()}),
        ("permutations.turned", permutations.turned, {**ordered, "place": torch.tensor([1, 2])}),
        ("metrics.kendall_tau_of_ranks", metrics.kendall_tau_of_ranks, {**orders, "known": torch.tensor([2, 3, 4])}),
        ("metrics.tie_aware_correctness", metrics.tie_aware_correctness, {**orders, "labels": order(3)}),
        ("metrics.displacement_histogram", metrics.displacement_histogram, grid),
        ("metrics.backwards", metrics.backwards, {"order": order(3)}),
        ("metrics.counterclockwise", metrics.counterclockwise, {"points": rand(3, N, 2), "order": order(3)}),
        ("model.square_copy", square_copy, {"points": rand(3, N, 2), "number": torch.tensor([0, 3, 7])}),
        ("metrics.signed_area", metrics.signed_area, {"points": rand(3, N, 2), "order": order(3)}),
        ("answers.calibration", answers.calibration,
         {"samples": order(9).expand(B, 9, N), "true_order": order(), "bins": 4}),
        ("certify.certify_law", certify.certify_law,
         {"counts": torch.tensor([5, 3, 2]), "probabilities": law, "false_alarm": 1e-3, "missed": 1e-2}),
        ("certify.draws_needed", certify.draws_needed, {"probabilities": law, "distance": 0.1, "missed": 1e-2}),
        ("certify.certify_agreement", certify.certify_agreement, {"agrees": mask().flatten(), "most": 0.1}),
        ("certify.certify_estimates", certify.certify_estimates,
         {"counts": torch.tensor([3, 4, 5]), "weights": rand(3, 7), "most_weight": 2.0, "missed": 1e-2}),
        ("certify.certify_ranks", certify.certify_ranks, {"ranks": torch.arange(9), "numbers": 9}),
        ("certify.certify_same", certify.certify_same, {"first": rand(5, 2), "second": rand(7, 2)}),
        ("processes.OnePass", processes.OnePass, {"target": "clean"}),
        ("processes.process_from_json", processes.process_from_json,
         {"value": {"kind": "bridge", "noise_scale": 0.5, "sampling_steps": 3}}),
        ("processes.process_of_call", processes.process_of_call, {"own": Bridge(), "process": Bridge(0.2), "steps": 5}),
        ("pinned_first", pinned_first, {"constraints": Constraints(pins={1: 0}), "B": B, "N": N, "mask": mask()}),
        ("settings_of", settings_of, {"constraints": Constraints(before=[(0, 1)])}),
        ("stagewise_log_probs", stagewise_log_probs, {**scores, **ordered, "mask": mask()}),
        ("rising_sequences", rising_sequences, ordered),
        ("make_embedder", make_embedder, {"d_model": 16, "embedder": {"kind": "linear", "features": 2}}),
        ("decode_of", call_choices.decode_of, {"decode": "sample"}),
        ("Rebuild", Rebuild, {**ordered, "noised": whole.noised, "t": 0.5}),
        ("Part", Part, {"least": 0.3, "most": 0.9}), ("Tail", Tail, {"least": 2, "most": 3}), ("Near", Near, {"least": 0.2, "most": 3}),
        ("Unsure", Unsure, {"least": 1, "most": 0.5}), ("Whole", Whole, {"t": 0.4}), ("Annealed", Annealed, {"start": 0.1, "decay": 0.9}),
        ("Search", Search, {"rebuild": (Part(), Near()), "accept": Annealed(), "polish": None, "fresh": 0.2}),
        ("Drawing", Drawing, {"decode": Draw(0.5), "process": Bridge(), "engine": Engine(), "first_row": 3, "record": True}),
        ("sample", sample, {"model": PARTIAL, **items, "start": whole, "steps": 2, "num_samples": 2}),
        ("sample", sample, {"model": MODEL, **items, "constraints": Constraints(before=[(0, 1)], law="conditioned", particles=4),
                            "steps": 2, "num_samples": 2}),
        ("improve", improve, {"model": MODEL, **items, "cost": _cost, "start": order(), "mask": mask(), "initial": 2, "rounds": 2, "chains": 2}),
        ("improve", improve, {"model": PARTIAL, **items, "cost": _cost, "initial": 2, "rounds": 2, "seed": 3,
                              "search": Search(rebuild=(Near(), Whole(), Unsure())), "drawing": Drawing(first_row=1),
                              "constraints": Constraints(before=[(0, 1)])}),
        ("beam_decode", beam_decode, {"model": MODEL, **items, "t": 0.5, "width": 2, "mask": mask(), "first": torch.tensor([1, 2])}),
        ("costs.costs_of", costs.costs_of, {"cost": _cost, **items, **ordered, "mask": mask()}),
        ("costs.local_search", costs.local_search, {"items": rand(B, N, 2), **ordered, "cost": costs.TourLength(), "limit": 5,
                                                    "neighbours": 3, "keep_first": True, "mask": mask()}),
        ("costs.local_search", costs.local_search, {"items": rand(B, N, 2), **ordered, "cost": costs.Makespan(),
                                                    "moves": ("insert", "swap"), "constraints": Constraints(pins={0: 1}), "order": torch.tensor([[1, 0, 2, 3]] * B)}),
        ("costs.local_search", costs.local_search, {**items, **ordered, "cost": _cost, "limit": 2}),
        ("costs.insert_in_turn", costs.insert_in_turn, {"items": rand(B, N, 3), **ordered, "cost": costs.WeightedTardiness()}),
        ("costs.insert_in_turn", costs.insert_in_turn, {**items, **ordered, "cost": _cost}),
        ("costs.iterated_greedy", _iterated_greedy, {"items": rand(B, N, N), **ordered, "cost": costs.LinearOrdering(), "rounds": 2,
                                                     "removed": 2, "temperature": 0.5, "seed": 2}),
        ("costs.iterated_greedy", _iterated_greedy, {**items, **ordered, "cost": _cost, "rounds": 1, "removed": 2}),
        ("costs.iterated_local_search", _iterated_local_search,
         {"items": rand(B, N, 2), **ordered, "cost": costs.TourLength(), "rounds": 3, "kept": 2, "difference": 0.2, "neighbours": 3, "seed": 1}),
        ("schedule", _schedule, {"jobs": rand(N, 3).numpy(), "cost": "makespan", "machines": None, "before": [(0, 1)],
                                 "model": None, "seed": 1}),
        ("Ranker", softrank_ext.Ranker, {"features": ("a", "b"), "group": "query", "label": "grade", "labels": "grades", "members": 2,
                                         "width": 8, "layers": 1, "dropout": 0.1, "epochs": 2, "draws": 10, "seed": 1}),
        ("Quota", Quota, {"column": "a", "at_most": 1, "top": 3}),
        ("costs.neh", costs.neh, {"times": rand(B, N, 3), "cost": costs.TotalFlowTime()}),
        ("costs.atc", costs.atc, {"jobs": rand(B, N, 3), "lookahead": 2.0}),
        ("costs.nearest_neighbour", costs.nearest_neighbour, {"points": rand(B, N, 2), "first": torch.tensor([1, 2])}),
        ("costs.Makespan", costs.Makespan(), {"items": rand(B, N, 3), **ordered}),
        ("costs.TotalFlowTime", costs.TotalFlowTime(), {"items": rand(B, N, 3), **ordered}),
        ("costs.WeightedTardiness", costs.WeightedTardiness(), {"items": rand(B, N, 3), **ordered}),
        ("costs.LinearOrdering", costs.LinearOrdering(), {"items": rand(B, N, N), **ordered}),
        ("costs.TourLength", costs.TourLength(closed=False), {"items": rand(B, N, 2), **ordered}),
        ("costs.TourLength", costs.TourLength, {"closed": True}),
        ("costs.MatrixTourLength", costs.MatrixTourLength(), {"items": rand(B, N, N), **ordered}),
        ("costs.MatrixTourLength", costs.MatrixTourLength, {"closed": False, "distances": rand(N, N)}),
        ("training.SelfLabel", training.SelfLabel, {"draws": 4, "temperature": 0.5, "polish": 1}),
        ("training.Reinforce", training.Reinforce, {"draws": 4, "entropy": 0.1}),
        ("training.Preference", training.Preference, {"draws": 4, "law": "plackett-luce", "sharpness": 0.2}),
        ("training.TrainConfig", TrainConfig, {"iterations": 3, "batch_size": 2, "learning_rate": 1e-3, "partial": 0.1, "ema": 0.9,
                                               "final_rate": 0.1, "warmup": 1, "objective": "likelihood", "evaluate_steps": 2}),
        ("training.rate_at", training.rate_at, {"iteration": 2, "config": TrainConfig(), "peak": 0.1}),
        ("training.train", _train, {"model": tiny_model(), "task": _Task(), "config": TrainConfig(1, 2), "device": "cpu", "quiet": True}),
        ("evaluation.evaluate", _evaluate, {"model": MODEL, "task": _Task(), "batch_size": 2, "steps": 1, "decode": Draw(),
                                            "best_by": "log_prob", "symmetries": 1, "seed": 0, "engine": Engine()}),
        ("show.draw_walk", draw_walk, {"items": 4, "steps": 5, "process": Bridge(), "seed": 1}),
        ("show.swapped_pairs", swapped_pairs, {"ranks": order(3)}),
    ]


# What a room exports and is not called above, by the reason.
UNCALLED = {
    "a result, a protocol or a base class": (
        "Batch", "Calibration", "Certificate", "Conditions", "Consensus", "ConstraintSettings", "DecodedOrder", "Frames", "Finite",
        "Hypotheses", "Improved", "LikelihoodEstimate", "LogProb", "NoisyOrder", "OnePassModel", "OpError", "OrderDistribution",
        "OrderModel", "FoundTours", "PackedWeights", "Permutation", "Pool", "Prediction", "PretrainedModel", "PretrainedModels", "Probability",
        "RankInterval", "Rules", "Samples", "Task", "Schedule", "TrainResult", "Trajectory", "TrajectoryPoint", "Walk", "RoundDraw",
    ),
    "fields of a call above, or a method of it": (
        "Choices", "DecoderInputs", "Greedy", "PartialOrder", "PredictionInputs", "RowNoise", "Transformer", "ModelDistribution",
        "SoftRankModel", "LearnedEmbedder", "LinearEmbedder", "DecoderLayer", "EncoderLayer", "TimeEmbedder", "Muon",
    ),
    "a part of a call above that gets what it has checked": (
        "check_choices", "check_picks", "check_range", "conditions_of", "decode_order_uncached", "decoder_inputs_of", "embed_items",
        "embedder_of", "evaluating", "fresh_seed", "loss_of", "pins_of", "process_to_json", "processes", "record_of", "table_of",
        "sine_cosine", "keep_freed_memory", "describe", "goes_by_modules", "pick_each_place", "weight_shapes", "ModuleScores",
    ),
    "files: attack/fuzz_files.py, attack/crash_points.py": (
        "from_pretrained", "push_to_hub", "has_run", "list_pretrained", "trained_for", "read_constraints", "bundled_names", "folder_of",
    ),
    "not called yet; in the tests of its own file": ("Tour", "plan_tour", "tour_bound"),
    "takes no argument, or registers what is given": ("build_info", "model_class", "model_types", "register_model"),
    "draws what it is given into a picture or a page": (
        "improvement_page", "page_of", "plot_calibration", "plot_jigsaw", "plot_pairwise", "plot_rank_interval", "plot_soft_ranks",
        "plot_sorting", "plot_there_and_back", "plot_top_k", "plot_tour", "plot_walk", "save_figure", "plot_schedule", "schedule_page", "plot_places", "plot_ranking_report", "ranking_page",
    ),
}  # fmt: skip
_ROOMS = ("", ".permutations", ".noise", ".processes", ".constraints", ".choices", ".laws", ".metrics", ".costs", ".batch",
          ".model", ".sampling", ".likelihood", ".answers", ".certify", ".tasks", ".evaluation", ".training", ".pretrained",
          ".show", ".ops")


def missing() -> list[str]:
    """Public functions and classes that are neither called nor in `UNCALLED`."""
    known = {name.split(".")[-1] for name, _, _ in public_calls()} | {name for names in UNCALLED.values() for name in names}
    found = set()
    for room in _ROOMS:
        module = importlib.import_module(f"softrank_ext{room}")
        for name in getattr(module, "__all__", vars(module)):
            value = getattr(module, name)
            is_own = str(getattr(value, "__module__", "")).startswith(f"softrank_ext{room}")
            if callable(value) and is_own and not name.startswith("_") and not name.endswith("_reference"):
                found.add(name)
    return sorted(found - known)
