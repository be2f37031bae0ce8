"""What picks are made by, the checks of it, and picking place by place from given scores.

`Choices` is the one tuple that crosses to the kernels of `decode_order`, `predict_order` and `decode_scores`.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from softrank_ext.checks import (
    FLOAT_DTYPES,
    check_instance,
    check_mask,
    check_number,
    check_tensor,
    described,
)
from softrank_ext.ops.constraints import PlacedUnderRules, allowed_picks, check_rules
from softrank_ext.ops.library import call_op, define
from softrank_ext.permutations import check_slots


class Choices(NamedTuple):
    """How a slot is chosen at each place; without anything, the highest score is taken.

    uniform (B, N) in [0, 1): the number that place i's inverse CDF is read at; None = the highest score.
    forced_order (B, N) int64: score this order (real slots first) instead of choosing, or only its first forced_places.
    temperature: scores are divided by it.
    draft (B, N) int64: a guess of the order (real slots first). A kernel checks several of its places in one pass, with
    the same numbers, and keeps the picks up to the first that differs: the result does not depend on the draft.
    before, allowed, group: constraints, as in `allowed_picks`; each pick is among what they allow.
    """

    uniform: Tensor | None = None
    forced_order: Tensor | None = None
    forced_places: int | None = None
    temperature: float = 1.0
    draft: Tensor | None = None
    before: Tensor | None = None
    allowed: Tensor | None = None
    group: Tensor | None = None

    def has_rules(self) -> bool:
        """Whether there are constraints."""
        return self.before is not None or self.allowed is not None or self.group is not None


def check_choices(choices: Choices, mask: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError unless the choices fit mask (B, N) and scores of dtype. Reads the data of orders and rules."""
    check_instance("choices", choices, Choices)
    uniform, forced_order, forced_places, temperature, draft, before, allowed, group = choices
    for name in ("uniform", "forced_order", "draft", "before", "allowed", "group"):
        if getattr(choices, name) is not None:
            check_instance(name, getattr(choices, name), Tensor)
    check_number("temperature", temperature, "a number")
    if uniform is not None and (uniform.shape != mask.shape or uniform.dtype != dtype):
        raise ValueError(f"uniform must be {tuple(mask.shape)} of {dtype}, got {described(uniform)}")
    is_read = not torch.compiler.is_compiling()  # a graph does not look at data
    if is_read and uniform is not None and not bool(((uniform >= 0) & (uniform <= 1)).all()):
        raise ValueError("uniform must be from 0 to 1, got a number outside or NaN")
    if not torch.finfo(dtype).tiny <= temperature < math.inf:
        raise ValueError(
            f"temperature must be positive and finite, got {temperature}; for greedy picks pass no uniform"
        )
    if forced_order is not None:
        if is_read:
            check_slots(forced_order, mask, "forced_order")
        if uniform is not None and forced_places is None:
            raise ValueError("uniform and a whole forced_order exclude each other, got both; give forced_places")
    is_number = isinstance(forced_places, int) and 0 <= forced_places <= mask.shape[1]
    if forced_places is not None and (forced_order is None or not is_number):
        raise ValueError(
            f"forced_places must be from 0 to {mask.shape[1]} and go with a forced_order, got {forced_places}"
        )
    if draft is not None and is_read:
        check_slots(draft, mask, "draft")
    check_rules(mask, before, allowed, group)
    if forced_order is not None and choices.has_rules() and is_read:
        _check_forced(forced_order if forced_places is None else forced_order[:, :forced_places], choices, mask)


def _check_forced(forced: Tensor, choices: Choices, mask: Tensor) -> None:
    """Raise ValueError unless the forced places (B, P) keep the constraints."""
    allowed = allowed_picks(forced[:, :-1], mask, choices.before, choices.allowed, choices.group)
    is_kept = allowed.gather(2, forced[..., None])[..., 0]
    is_broken = ~is_kept & (torch.arange(forced.shape[1], device=mask.device) < mask.sum(1, keepdim=True))
    if bool(is_broken.any()):
        row, place = is_broken.nonzero()[0].tolist()
        raise ValueError(
            f"forced_order must keep the constraints, row {row} has {int(forced[row, place])} at place {place}"
        )


def decode_scores(scores: Tensor, mask: Tensor, choices: Choices = Choices()) -> tuple[Tensor, Tensor]:
    """`decode_order` for scores (B, place, slot) that do not depend on earlier picks, as those of GPL and PL.

    mask (B, N) bool: True = real slot. A draft is of no use here. Returns order and log_probs.
    """
    check_tensor("scores", scores, ("B", "N", "N"), FLOAT_DTYPES)
    N = scores.shape[1]
    if scores.shape[2] != N:
        raise ValueError(f"scores must be (B, N, N), place by slot, got {described(scores)}")
    check_mask("mask", mask, "scores' slots", scores[:, 0] if N > 0 else scores.flatten(1))
    check_choices(choices, mask, scores.dtype)
    order, log_probs = call_op(torch.ops.softrank_ext.decode_scores, scores, mask, *choices)
    check_picks(log_probs)
    return order, log_probs


def check_picks(log_probs: Tensor) -> None:
    """Raise RuntimeError if a pick failed on a GPU, whose kernels mark it by a log-probability of NaN. CPUs raise.

    Makes the host wait for the device, so it is called once, at the end. Nothing is looked at while compiling.
    """
    if log_probs.is_cuda and not torch.compiler.is_compiling() and bool(log_probs.isnan().any()):
        raise RuntimeError("scores must not be NaN for a real slot: memory, tokens or weights hold NaN or infinities")


@torch.no_grad()
def decode_scores_reference(scores: Tensor, mask: Tensor, choices: Choices) -> tuple[Tensor, Tensor]:
    """Picks from scores (B, place, slot) in plain torch; see `decode_scores`.

    Rules are looked up by the CPU. As the scores do not depend on picks, it makes these too, once it has the scores.
    """
    if choices.has_rules() and not scores.is_cpu:
        there = [x.cpu() if isinstance(x, Tensor) else x for x in (scores, mask, *choices)]
        order, log_probs = torch.ops.softrank_ext.decode_scores(*there)
        return order.to(scores.device, non_blocking=True), log_probs.to(scores.device, non_blocking=True)
    return pick_each_place(lambda step, _: scores[:, step], mask, scores.dtype, choices)


def _fake_decode_scores(scores: Tensor, mask: Tensor, choices: Choices) -> tuple[Tensor, Tensor]:
    return scores.new_empty(scores.shape[:2], dtype=torch.int64), scores.new_empty(scores.shape[:2])


define(
    "decode_scores",
    ("Tensor scores", "Tensor mask", Choices),
    "(Tensor order, Tensor log_probs)",
    decode_scores_reference,
    _fake_decode_scores,
)


def pick_each_place(
    scores_at: Callable[[int, Tensor | None], Tensor], mask: Tensor, dtype: torch.dtype, choices: Choices
) -> tuple[Tensor, Tensor]:
    """Pick a slot per place; `scores_at(step, last choice)` gives the scores (B, N) of the slots for place `step`.

    The last real slot of a row is what is left: nothing is scored for it, its log-probability is 0. A row that has
    come so far while others go on keeps that slot as its only candidate and draws it again with log-probability 0.
    """
    uniform, forced_order, forced_places, temperature, _, before, allowed, group = choices
    B, N = mask.shape
    slots = torch.arange(N, device=mask.device)
    count = mask.sum(1)  # (B,)
    is_left_alone = count[:, None] <= slots + 1  # (B, step): one candidate or none
    remaining = mask | ((count[:, None] == 0) & (slots == 0))
    log_probs = torch.zeros(B, N, dtype=dtype, device=mask.device)
    place_of_slot = torch.where(mask, N, N + 1)
    choice = None
    rules = PlacedUnderRules(mask, before, allowed, group) if choices.has_rules() else None
    forced = 0 if forced_order is None else N if forced_places is None else forced_places
    # The longest row is asked for on CPUs only: elsewhere the host would have to wait for the device.
    longest = 0 if B == 0 else int(count.max()) if mask.is_cpu else N
    for step in range(longest - 1):
        scores = scores_at(step, choice)
        if temperature != 1.0:
            scores = scores / temperature
        candidates = remaining if rules is None else rules.next_slots(remaining)
        if forced_order is None or step >= forced:
            step_uniform = None if uniform is None else uniform[:, step].contiguous()
            choice, log_probs[:, step] = call_op(torch.ops.softrank_ext.pick, scores, candidates, step_uniform)
        else:
            # A row that is left alone keeps its slot, whatever the forced order has at this place.
            alone = remaining.to(torch.int8).argmax(1)
            choice = torch.where(is_left_alone[:, step], alone, forced_order[:, step])
            log_prob = scores.masked_fill(~candidates, -torch.inf).log_softmax(1).gather(1, choice[:, None])[:, 0]
            log_probs[:, step] = log_prob.masked_fill(is_left_alone[:, step], 0.0)
        remaining.scatter_(1, choice[:, None], is_left_alone[:, step : step + 1])
        place_of_slot.scatter_(1, choice[:, None], step)
        if rules is not None and step < longest - 2:
            rules.place(choice)
    return torch.argsort(place_of_slot, dim=1, stable=True), log_probs
