"""From scores to places: the ranking, its intervals and probabilities, with or without rules.

The law of a group's order is Plackett-Luce with a score per row, so that the order by scores is exactly the one that
disagrees least with a draw (Kemeny's consensus), and P(first) is exact. Intervals and P(top 3) are counted over draws.
Under rules everything is counted over draws that keep them, and the ranking takes the best row that they allow, place
by place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext import noise, ops
from softrank_ext.answers import rank_interval, top_k
from softrank_ext.checks import check_integer, check_number
from softrank_ext.constraints import Constraints, rules_of
from softrank_ext.permutations import ranks_of
from softrank_ext.ranking.groups import Groups
from softrank_ext.ranking.members import law_of
from softrank_ext.tables import column_in, texts_in

MOST_DRAWN = 2**21  # rows of draws at a time


@dataclass(frozen=True)
class Quota:
    """A rule of predictions: at most so many rows with the same value of a column among the first `top` places.

    `Quota("seller", at_most=1, top=3)`: no two of a seller in the top 3. A draw that breaks it takes the next row that
    keeps it; what was passed over comes right after. Rows without a value count as different.
    """

    column: str
    at_most: int = 1
    top: int = 3

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise TypeError(f"column must be the name of a column, got {type(self.column).__name__}")
        check_integer("at_most", self.at_most, 1)
        check_integer("top", self.top, 1)


Rule = Quota | Constraints | Mapping[str, Constraints]


class GroupRules(NamedTuple):
    """Rules group by group: codes (rows,) of a quota's column, or Constraints by the number of the group."""

    quota: Quota | None = None
    codes: np.ndarray | None = None
    constraints: Mapping[int, Constraints] | None = None


class Places(NamedTuple):
    """Answers for every row, in the order of the table; places count from 1.

    place, low, high (rows,) int64; p_top1, p_top3, score, p_inside (rows,) float64: score is P(before another row of
    the group, drawn at random), p_inside the probability of low to high.
    """

    place: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_top1: np.ndarray
    p_top3: np.ndarray
    score: np.ndarray
    p_inside: np.ndarray


def rules_by_group(rules: Rule | None, columns: Mapping[str, np.ndarray], groups: Groups) -> GroupRules | None:
    """The rules of a call, checked against the table."""
    if rules is None:
        return None
    if isinstance(rules, Quota):
        column_in(columns, rules.column)
        texts = texts_in(columns, rules.column).tolist()
        numbers: dict[object, int] = {}
        keys = [("", row) if text is None else text for row, text in enumerate(texts)]
        codes = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
        for name, rows in zip(groups.names, groups.rows, strict=True):
            wanted = min(rules.top, len(rows))
            possible = int(np.minimum(np.unique(codes[rows], return_counts=True)[1], rules.at_most).sum())
            if possible < wanted:
                raise ValueError(
                    f"rules cannot be kept in group {name!r}: at most {rules.at_most} of a {rules.column} leaves "
                    f"{possible} rows for the first {wanted} places"
                )
        return GroupRules(rules, codes)
    if isinstance(rules, Constraints):
        return GroupRules(constraints=dict.fromkeys(range(len(groups.rows)), rules))
    if not isinstance(rules, Mapping):
        raise TypeError(
            f"rules must be Quota, Constraints, or a mapping from a group to Constraints, got {type(rules).__name__}"
        )
    found = {}
    for name, own in rules.items():
        if str(name) not in groups.names or not isinstance(own, Constraints):
            raise ValueError(f"rules must map groups of the table to Constraints, got {name!r}: {type(own).__name__}")
        found[groups.names.index(str(name))] = own
    return GroupRules(constraints=found)


class Settings(NamedTuple):
    """How places are drawn: how many draws, the level of intervals, the seed."""

    draws: int
    level: float
    seed: int


def checked_settings(draws: int, level: float, seed: int) -> Settings:
    """The settings, checked."""
    check_integer("draws", draws, 10, 100_000)
    check_number("level", level, "above 0 and below 1", isinstance(level, int | float) and 0 < level < 1)
    return Settings(draws, float(level), seed)


def places_of(
    scores: np.ndarray, groups: Groups, temperature: float, settings: Settings, rules: GroupRules | None = None
) -> Places:
    """Places of all rows. scores: (rows,) float64."""
    count = len(scores)
    made = Places(*(np.zeros(count, dtype=np.int64) for _ in range(3)), *(np.zeros(count) for _ in range(4)))
    by_size: dict[int, list[int]] = {}
    for number, rows in enumerate(groups.rows):
        by_size.setdefault(len(rows), []).append(number)
    for size, numbers in sorted(by_size.items()):
        at_once = max(1, MOST_DRAWN // (size * settings.draws))
        for start in range(0, len(numbers), at_once):
            own = numbers[start : start + at_once]
            rows = np.stack([groups.rows[number] for number in own])  # (B, N)
            found = _places_of_size(torch.from_numpy(scores[rows]), own, rows, temperature, settings, rules)
            for name, value in found._asdict().items():
                getattr(made, name)[rows] = value
    return made


def _places_of_size(
    scores: Tensor,
    numbers: list[int],
    rows: np.ndarray,
    temperature: float,
    settings: Settings,
    rules: GroupRules | None,
) -> Places:
    """Places of B groups of N rows each, all fields (B, N)."""
    B, N = scores.shape
    S = settings.draws
    # A draw is keyed by its group's number, whatever stands beside it.
    samples = (torch.tensor(numbers)[:, None] * S + torch.arange(S)).flatten()
    uniform = noise.uniform(settings.seed, samples, 0, N, stream=noise.PICK_STREAM, dtype=torch.float64)
    law = law_of(scores, torch.ones(B, N, dtype=torch.bool), temperature)
    mode = law.mode
    if rules is None:
        order = law.from_uniform(uniform.view(B, S, N).transpose(0, 1)).transpose(0, 1)  # (B, S, N)
    elif rules.quota is not None and rules.codes is not None:
        drawn = law.from_uniform(uniform.view(B, S, N).transpose(0, 1)).transpose(0, 1)
        both = torch.cat((mode[:, None], drawn), 1).numpy()  # (B, 1 + S, N)
        kept = np.stack([with_quota(both[b], rules.codes[rows[b]], rules.quota) for b in range(B)])
        mode, order = torch.from_numpy(kept[:, 0]), torch.from_numpy(kept[:, 1:])
    else:
        mode, order = _under_constraints(law.scores, numbers, uniform, rules.constraints or {})
    ranks = ranks_of(order)  # (B, S, N)
    interval = rank_interval(order, settings.level)
    inside = ((ranks >= interval.low[:, None]) & (ranks <= interval.high[:, None])).double().mean(1)
    if rules is None:
        first = law.scores.softmax(-1)
        beats = torch.sigmoid(law.scores[:, :, None] - law.scores[:, None])  # (B, N, N)
        score = (beats.sum(2) - 0.5) / max(N - 1, 1) if N > 1 else torch.ones(B, 1)
    else:
        first = (ranks == 0).double().mean(1)
        score = 1 - ranks.double().mean(1) / max(N - 1, 1)
    return Places(
        (ranks_of(mode) + 1).numpy(),
        (interval.low + 1).numpy(),
        (interval.high + 1).numpy(),
        first.numpy(),
        top_k(order, min(3, N)).value.numpy(),
        score.numpy(),
        inside.numpy(),
    )


def _under_constraints(
    scores: Tensor, numbers: list[int], uniform: Tensor, constraints: Mapping[int, Constraints]
) -> tuple[Tensor, Tensor]:
    """The best order (B, N) and draws (B, S, N) that keep each group's constraints, pick by pick."""
    B, N = scores.shape
    S = len(uniform) // B
    stages = scores[:, None].expand(B, N, N).contiguous()
    every = torch.ones(B, N, dtype=torch.bool)
    rules = rules_of([constraints.get(number) for number in numbers], B, N)
    if rules is None:
        best, _ = ops.decode_scores(stages, every)
        drawn, _ = ops.decode_scores(
            stages.repeat_interleave(S, 0), every.repeat_interleave(S, 0), ops.Choices(uniform=uniform)
        )
        return best, drawn.view(B, S, N)
    best, _ = ops.decode_scores(stages, every, ops.Choices(None, None, None, 1.0, None, *rules))
    per_draw = rules.rows(torch.arange(B).repeat_interleave(S))
    choices = ops.Choices(uniform, None, None, 1.0, None, *per_draw)
    drawn, _ = ops.decode_scores(stages.repeat_interleave(S, 0), every.repeat_interleave(S, 0), choices)
    return best, drawn.view(B, S, N)


def with_quota(order: np.ndarray, codes: np.ndarray, quota: Quota) -> np.ndarray:
    """Orders (draws, N) of one group that keep the quota: at each of the first places the next row that does."""
    order = order.copy()
    draws, N = order.shape
    values = np.unique(codes, return_inverse=True)[1]
    used = np.zeros((draws, values.max() + 1), dtype=np.int64)
    each, at = np.arange(draws), np.arange(N)
    for place in range(min(quota.top, N)):
        is_open = np.take_along_axis(used, values[order], 1) < quota.at_most
        is_open[:, :place] = False
        chosen = is_open.argmax(1)[:, None]
        # The chosen row moves up to `place`; those between move down by one.
        source = np.where((at > place) & (at <= chosen), at - 1, np.where(at == place, chosen, at))
        order = np.take_along_axis(order, source, 1)
        used[each, values[order[:, place]]] += 1
    return order
