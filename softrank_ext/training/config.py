"""How to train: the options of `train`, checked, and the learning rate that they stand for."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from softrank_ext.checks import (
    check_choice,
    check_instance,
    check_integer,
    check_not_negative,
    check_number,
    check_seed,
    check_share,
)
from softrank_ext.training import objectives
from softrank_ext.training.cost_objectives import CostObjective, objective_to_json

SCHEDULES = ("cosine", "transformer", "constant")
OPTIMIZERS = ("muon", "adamw")


@dataclass(frozen=True)
class TrainConfig:
    """How to train."""

    iterations: int = 10_000
    """Optimizer updates."""
    batch_size: int = 64
    """Instances per update, over all processes."""
    noisy_orders: int = 1
    """Noisy orders per instance and update; items are embedded once for all of them."""
    times: Literal["drawn", "all"] = "drawn"
    """Times that a noisy order is seen at: one drawn, or all times of the model's reverse process."""
    prior_share: float = 0.0
    """Share of noisy orders at time 1, where every sample begins, whatever times the others are drawn from: more than
    the grid's own share makes the first prediction better, which is all that one step needs."""
    partial: float = 0.0
    """Share of noisy orders of which only a part is noised and the rest kept; the model needs partial=True."""
    drafts: float = 0.0
    """Share of these whose kept part comes from a draft of the model's own, as in use, so that it is not always right;
    with a cost, the cheapest of a few redraws is the target. Needs noisy_orders=1 and times="drawn"."""
    pool: int = 0
    """If above 0, lists are drawn from a pool of so many items that the model's reader has read once, and the reader
    keeps its weights: long lists at the price of the transformer alone. For tasks that have pools (sorting)."""
    pool_updates: int = 2000
    """Updates between one pool and the next."""
    objective: Literal["likelihood", "lookalike"] | CostObjective = "likelihood"
    """Cross-entropy of the right order, SymmetricDiffusers' objective for jigsaws, or an objective that learns from the
    task's cost: `SelfLabel(...)`, `Reinforce(...)` or `Preference(...)`."""
    optimizer: Literal["muon", "adamw"] = "muon"
    """Muon for the matrices inside layers and AdamW for the rest, or AdamW for all."""
    learning_rate: float = 4e-4
    """AdamW's peak rate. SymmetricDiffusers' is (d_model * warmup)^-0.5 with the transformer schedule."""
    matrix_rate: float = 3e-3
    """Muon's peak rate."""
    schedule: Literal["cosine", "transformer", "constant"] = "cosine"
    """After the warm-up: cosine decay, decay with the inverse square root, or no decay."""
    warmup: int = 500
    """Updates of linear warm-up."""
    final_rate: float = 0.01
    """Share of the peak rate that cosine decay ends at."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    beta1: float = 0.9
    """AdamW's decay of the mean gradient."""
    beta2: float = 0.98
    """AdamW's decay of the mean squared gradient."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    ema: float = 0.999
    """Decay of the averaged weights that are saved and evaluated; 0 for the weights as they are."""
    seed: int = 0
    """Another seed, other data, noise and dropout."""
    log_every: int = 50
    """Updates between reports."""
    checkpoint_every: int = 1000
    """Updates between checkpoints."""
    evaluate_every: int = 0
    """Updates between evaluations on held-out instances; 0 for none."""
    evaluate_count: int = 256
    """Held-out instances of an evaluation, or all where the task has fewer."""
    evaluate_steps: int | None = None
    """Diffusion steps of an evaluation's samples, by default the model's own."""
    evaluate_decode: Literal["greedy", "sample"] = "greedy"
    """How an evaluation picks items."""
    best_metric: str | None = None
    """The evaluated metric that the model in best/ is best at; by default the loss, or the cost if the task has no
    right orders."""
    best_is: Literal["lowest", "highest"] = "lowest"
    """Which value of that metric is best."""
    tensorboard: bool = False
    """Write TensorBoard files as well."""
    prefetch: bool = True
    """Make the next batch in a thread while this one is trained on."""
    keep_memory: bool = False
    """Let this process keep freed memory (`keep_freed_memory`): faster on CPUs, for the rest of its life."""

    def __post_init__(self) -> None:
        for name, least in (
            ("iterations", 1), ("batch_size", 1), ("noisy_orders", 1), ("warmup", 0), ("log_every", 1),
            ("checkpoint_every", 1), ("evaluate_every", 0), ("evaluate_count", 1), ("pool", 0), ("pool_updates", 1),
        ):  # fmt: skip
            check_integer(name, getattr(self, name), least)
        check_seed(self.seed)
        if self.evaluate_steps is not None:
            check_integer("evaluate_steps", self.evaluate_steps, 1)
        for name in ("learning_rate", "matrix_rate", "weight_decay", "clip"):
            check_not_negative(name, getattr(self, name))
        for name in ("beta1", "beta2", "ema", "prior_share", "partial", "drafts"):
            check_share(name, getattr(self, name))
        check_number("final_rate", self.final_rate, "from 0 to 1", lambda x: 0 <= x <= 1)
        for name, allowed in (
            ("schedule", SCHEDULES), ("optimizer", OPTIMIZERS), ("times", objectives.TIMES),
            ("evaluate_decode", ("greedy", "sample")), ("best_is", ("lowest", "highest")),
        ):  # fmt: skip
            check_choice(name, getattr(self, name), allowed)
        if self.prior_share > 0 and (self.times != "drawn" or self.objective == "lookalike"):
            raise ValueError('prior_share needs times="drawn" and another objective than "lookalike"')
        if self.drafts > 0 and (self.partial == 0 or self.noisy_orders > 1 or self.times != "drawn"):
            raise ValueError('drafts needs partial above 0, noisy_orders=1 and times="drawn"')
        if self.pool > 0 and self.objective != "likelihood":
            raise ValueError(f'pool needs the objective "likelihood", got {self.objective!r}')
        if not isinstance(self.objective, CostObjective) and self.objective not in objectives.OBJECTIVES:
            names = ", ".join(map(repr, objectives.OBJECTIVES))
            raise ValueError(
                f"objective must be {names}, SelfLabel(...), Reinforce(...) or Preference(...), got {self.objective!r}"
            )

    def to_json(self) -> dict[str, Any]:
        """The options as JSON can hold them."""
        return {**dataclasses.asdict(self), "objective": objective_to_json(self.objective)}


def rate_at(iteration: int, config: TrainConfig, peak: float | None = None) -> float:
    """Learning rate of the optimizer's update number `iteration`, counted from 1; peak: by default learning_rate."""
    check_integer("iteration", iteration, 1)
    check_instance("config", config, TrainConfig)
    peak, warmup = config.learning_rate if peak is None else peak, config.warmup
    if iteration < warmup:
        return peak * iteration / warmup
    if config.schedule == "constant":
        return peak
    if config.schedule == "transformer":
        return peak * math.sqrt(max(warmup, 1) / iteration)
    progress = (iteration - warmup) / max(config.iterations - warmup, 1)
    return peak * (config.final_rate + (1 - config.final_rate) * (1 + math.cos(math.pi * progress)) / 2)
