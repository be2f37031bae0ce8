"""Objectives that learn from a cost instead of right orders: which they are, and the losses of the drawn orders.

The model draws several orders of each instance, each by one prediction from its own noise at time 1, and the task's
cost judges them (`draws`). `SelfLabel` makes the cheapest the right order of the instance; `Reinforce` and `Preference`
raise the log-probability of cheap draws and lower that of costly ones. It is that of the one prediction, given the
noise that it was drawn from: the whole diffusion has no closed form.
"""

from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from softrank_ext.checks import check_choice, check_integer, check_not_negative, check_positive

DRAWN_BY = ("average", "model")
PREFERENCES = ("bradley-terry", "plackett-luce")


@dataclass(frozen=True)
class SelfLabel:
    """Train on the cheapest of the model's own draws as if it were the right order.

    For fixed instances the label is the cheapest order found so far, and is kept in the checkpoint. The steadiest of
    the objectives; the model is trained at all times of its process, so any number of diffusion steps may follow.
    """

    draws: int = 32
    """Orders drawn per instance and update."""
    temperature: float = 1.0
    """Of the draws; above 1 looks further around."""
    polish: int = 0
    """Most moves of a local search on each draw before it is judged; 0 for none."""
    rebuilt: int = 0
    """How many of the draws draw a part of the cheapest order again: of the other draws, or found before."""
    drawn_by: Literal["average", "model"] = "average"
    """Whose draws they are: of the running average of the weights, which draws better orders, or of the weights as they
    are."""

    def __post_init__(self) -> None:
        check_integer("draws", self.draws, 1)
        check_positive("temperature", self.temperature)
        check_integer("polish", self.polish, 0)
        check_integer("rebuilt", self.rebuilt, 0, self.draws - 1)
        check_choice("drawn_by", self.drawn_by, DRAWN_BY)


@dataclass(frozen=True)
class Reinforce:
    """The gradient of the expected cost, with the mean cost of an instance's other draws as the baseline.

    Costs are divided by their deviation within the instance. Trains the prediction at time 1: sample with steps=1.
    """

    draws: int = 16
    """Orders drawn per instance and update, at least 2."""
    entropy: float = 0.0
    """Weight of the entropy, which keeps draws apart; in deviations of the cost per nat."""

    def __post_init__(self) -> None:
        check_integer("draws", self.draws, 2)
        check_not_negative("entropy", self.entropy)


@dataclass(frozen=True)
class Preference:
    """The likelihood of the draws' ranking by cost, where a draw's strength is its log-probability times `sharpness`.

    Only which draw is cheaper counts, not by how much. Trains the prediction at time 1: sample with steps=1.
    """

    draws: int = 16
    """Orders drawn per instance and update, at least 2."""
    law: Literal["bradley-terry", "plackett-luce"] = "bradley-terry"
    """Every pair of draws on its own, or the whole ranking."""
    sharpness: float = 0.1
    """What log-probabilities are multiplied by before they are compared."""

    def __post_init__(self) -> None:
        check_integer("draws", self.draws, 2)
        check_choice("law", self.law, PREFERENCES)
        check_positive("sharpness", self.sharpness)


CostObjective = SelfLabel | Reinforce | Preference
COST_OBJECTIVES: dict[str, type[CostObjective]] = {
    "self-label": SelfLabel,
    "reinforce": Reinforce,
    "preference": Preference,
}


def objective_to_json(objective: str | CostObjective) -> str | dict[str, Any]:
    """An objective as JSON can hold it: its name, or its kind and options."""
    if isinstance(objective, str):
        return objective
    kind = next(name for name, made in COST_OBJECTIVES.items() if type(objective) is made)
    return {"kind": kind, **asdict(objective)}


def ranking_loss(objective: Reinforce | Preference, log_prob: Tensor, cost: Tensor) -> Tensor:
    """The loss (B,) of each instance's draws. log_prob: (B, draws), with gradient. cost: (B, draws), infinite where an
    order is not allowed; an instance that has no allowed draw has the loss 0."""
    if isinstance(objective, Reinforce):
        return _reinforce(log_prob, cost, objective.entropy)
    strength = objective.sharpness * log_prob
    if objective.law == "bradley-terry":
        return _bradley_terry(strength, cost)
    return _plackett_luce(strength, cost)


def _reinforce(log_prob: Tensor, cost: Tensor, entropy: float) -> Tensor:
    finite = cost.isfinite()
    worst = cost.masked_fill(~finite, -torch.inf).amax(1, keepdim=True)
    cost = torch.where(finite, cost, worst).masked_fill(~finite.any(1, keepdim=True), 0.0)
    # Deviations below rounding are none: costs that are equal give no direction.
    deviation = cost.std(1, correction=0, keepdim=True)
    least = 1e-12 * cost.abs().amax(1, keepdim=True)
    scaled = torch.where(deviation > least, (cost - cost.mean(1, keepdim=True)) / deviation, 0.0)
    value = scaled.to(log_prob.dtype) + entropy * log_prob.detach()
    others = (value.sum(1, keepdim=True) - value) / (value.shape[1] - 1)  # leave-one-out mean
    return ((value - others) * log_prob).mean(1).masked_fill(~finite.any(1), 0.0)


def _bradley_terry(strength: Tensor, cost: Tensor) -> Tensor:
    """Mean over pairs of draws with different costs of `-log sigmoid(strength of the cheaper - that of the other)`."""
    is_cheaper = cost[:, :, None] < cost[:, None]  # (B, draws, draws)
    pairs = -F.logsigmoid(strength[:, :, None] - strength[:, None])
    return pairs.masked_fill(~is_cheaper, 0.0).sum((1, 2)) / is_cheaper.sum((1, 2)).clamp(min=1)


def _plackett_luce(strength: Tensor, cost: Tensor) -> Tensor:
    """Mean over draws, but for the worst, of `-log(its share of strength among those that are not cheaper)`."""
    is_cheaper = cost[:, :, None] < cost[:, None]
    is_counted = is_cheaper.any(2)  # (B, draws): some draw is worse
    rivals = strength[:, None].masked_fill(is_cheaper.mT, -torch.inf).logsumexp(2)  # those as dear or dearer
    return (rivals - strength).masked_fill(~is_counted, 0.0).sum(1) / is_counted.sum(1).clamp(min=1)
