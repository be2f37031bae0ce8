"""From scores to places: the ranking, its intervals and probabilities, with or without rules.

The law of a group's order has a score per row (`law`), so that the order by scores is exactly the one that disagrees
least with a draw (Kemeny's consensus), and P(first) is exact. Intervals and P(top 3) are counted over draws.
Under rules everything is counted over draws that keep them, and the ranking takes the best row that they allow, place
by place.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from softrank_ext import noise, ops
from softrank_ext.answers import rank_interval, top_k
from softrank_ext.checks import check_integer, check_number
from softrank_ext.constraints import Constraints, rules_of
from softrank_ext.permutations import ranks_of
from softrank_ext.ranking.groups import Groups
from softrank_ext.ranking.law import GroupLaw, Temperatures
from softrank_ext.tables import column_in, texts_in

_WHOLE = ("place", "low", "high")
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


class FirstPlaces(NamedTuple):
    """Answers for every row about the first places alone.

    place (rows,) int64, from 1; p_top1, p_top (rows,) float64: P(first), P(among the first places that were asked for).
    """

    place: np.ndarray
    p_top1: np.ndarray
    p_top: np.ndarray


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
                    f"{possible} row{'s' * (possible > 1)} for the first {wanted} places"
                )
        return GroupRules(rules, codes)
    if isinstance(rules, Constraints):
        return _checked(dict.fromkeys(range(len(groups.rows)), rules), groups)
    if not isinstance(rules, Mapping):
        raise TypeError(
            f"rules must be Quota, Constraints, or a mapping from a group to Constraints, got {type(rules).__name__}"
        )
    found = {}
    for name, own in rules.items():
        if str(name) not in groups.names or not isinstance(own, Constraints):
            raise ValueError(f"rules must map groups of the table to Constraints, got {name!r}: {type(own).__name__}")
        found[groups.names.index(str(name))] = own
    return _checked(found, groups)


def _checked(constraints: Mapping[int, Constraints], groups: Groups) -> GroupRules:
    """Rules of groups, after each group has been asked whether it can keep its own."""
    checked: set[tuple[int, int]] = set()  # groups of one size are asked once about the same rules
    for number, own in constraints.items():
        size = len(groups.rows[number])
        if (size, id(own)) not in checked:
            try:
                rules_of(own, 1, size)
            except ValueError as error:
                raise ValueError(f"rules cannot be kept in group {groups.names[number]!r}: {error}") from error
            checked.add((size, id(own)))
    return GroupRules(constraints=constraints)


class Settings(NamedTuple):
    """How places are drawn: how many draws, the level of intervals, the seed; `top` for the first places alone."""

    draws: int
    level: float
    seed: int
    top: int | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a prediction adds: the first fields of `Places`, or those of `FirstPlaces`."""
        if self.top is None:
            return Places._fields[:-1]
        return ("place", "p_top1") if self.top == 1 else ("place", "p_top1", f"p_top{self.top}")


def checked_settings(draws: int, level: float, seed: int, top: int | None = None) -> Settings:
    """The settings, checked."""
    check_integer("draws", draws, 10, 100_000)
    check_number("level", level, "above 0 and below 1", lambda x: 0 < x < 1)
    return Settings(draws, float(level), seed, None if top is None else check_integer("top", top, 1))


def places_of(
    scores: np.ndarray,
    groups: Groups,
    temperatures: Temperatures,
    settings: Settings,
    rules: GroupRules | None = None,
    bar: tqdm | None = None,
) -> Places:
    """Places of all rows. scores: (rows,) float64. bar: moved by half a row for each row."""
    made = Places(*(np.zeros(len(scores), int if name in _WHOLE else float) for name in Places._fields))
    for rows, law, mode, order in _drawn_groups(scores, groups, temperatures, settings, rules, bar):
        found = _places_of_size(law, mode, order, settings.level, rules)
        for name, value in found._asdict().items():
            getattr(made, name)[rows] = value
    return made


def answers_of(
    scores: np.ndarray,
    groups: Groups,
    temperatures: Temperatures,
    settings: Settings,
    rules: GroupRules | None = None,
    bar: tqdm | None = None,
) -> Places | FirstPlaces:
    """`places_of`, or with `settings.top` what is asked of the first places, from draws of these alone."""
    if settings.top is None:
        return places_of(scores, groups, temperatures, settings, rules, bar)
    made = FirstPlaces(*(np.zeros(len(scores), int if name in _WHOLE else float) for name in FirstPlaces._fields))
    for rows, law, mode, order in _drawn_groups(scores, groups, temperatures, settings, rules, bar):
        made.place[rows] = ranks_of(mode) + 1
        made.p_top1[rows] = law.p_first if rules is None else _share_among(order[..., :1], mode.shape[1])
        made.p_top[rows] = _share_among(order[..., : settings.top], mode.shape[1])
    return made


def _share_among(order: Tensor, N: int) -> Tensor:
    """Of the draws (B, S, places), the share that has each of the N rows, (B, N)."""
    among = order.flatten(1)
    counts = torch.zeros(len(order), N, dtype=torch.float64)
    return counts.scatter_add(1, among, torch.ones(among.shape, dtype=torch.float64)) / order.shape[1]


def _drawn_groups(
    scores: np.ndarray,
    groups: Groups,
    temperatures: Temperatures,
    settings: Settings,
    rules: GroupRules | None,
    bar: tqdm | None,
) -> Iterator[tuple[np.ndarray, GroupLaw, Tensor, Tensor]]:
    """B groups of N rows at a time: their rows in the table (B, N), their law, the ranking (B, N), draws (B, S, N)."""
    by_size: dict[int, list[int]] = {}
    for number, rows in enumerate(groups.rows):
        by_size.setdefault(len(rows), []).append(number)
    for size, numbers in sorted(by_size.items()):
        at_once = max(1, MOST_DRAWN // (size * settings.draws))
        for start in range(0, len(numbers), at_once):
            own = numbers[start : start + at_once]
            rows = np.stack([groups.rows[number] for number in own])
            law = GroupLaw(torch.from_numpy(scores[rows]).double(), temperatures)
            yield rows, law, *_drawn(law, own, rows, settings, rules)
            if bar is not None:
                bar.update(rows.size / 2)


def _drawn(
    law: GroupLaw, numbers: list[int], rows: np.ndarray, settings: Settings, rules: GroupRules | None
) -> tuple[Tensor, Tensor]:
    """The ranking (B, N) and draws (B, S, N) of B groups of N rows each; without rules only the places asked for.

    rows: (B, N), in the table.
    """
    B, N = law.scores.shape
    S = settings.draws
    # A draw is keyed by its group's number, whatever stands beside it.
    samples = (torch.tensor(numbers)[:, None] * S + torch.arange(S)).flatten()
    uniform = noise.uniform(settings.seed, samples, 0, N, stream=noise.PICK_STREAM, dtype=torch.float64).view(B, S, N)
    mode = law.mode
    if rules is None:
        order = law.drawn(uniform, settings.top)
    elif rules.quota is not None and rules.codes is not None:
        both = torch.cat((mode[:, None], law.drawn(uniform)), 1).numpy()  # (B, 1 + S, N)
        kept = np.stack([with_quota(both[b], rules.codes[rows[b]], rules.quota) for b in range(B)])
        mode, order = torch.from_numpy(kept[:, 0]), torch.from_numpy(kept[:, 1:])
    else:
        mode, order = _under_constraints(law, numbers, uniform, rules.constraints or {})
    return mode, order


def _places_of_size(law: GroupLaw, mode: Tensor, order: Tensor, level: float, rules: GroupRules | None) -> Places:
    """Places of B groups of N rows each, all fields (B, N). mode: the ranking (B, N); order: draws (B, S, N)."""
    B, N = mode.shape
    ranks = ranks_of(order)  # (B, S, N)
    interval = rank_interval(order, level)
    inside = ((ranks >= interval.low[:, None]) & (ranks <= interval.high[:, None])).double().mean(1)
    if rules is None:
        first = law.p_first
        score = (law.p_before(order).sum(2) - 0.5) / max(N - 1, 1) if N > 1 else torch.ones(B, 1)
        # It falls with the place, which is exact; what draws have mixed up is put right.
        score = score.sort(dim=1, descending=True).values.gather(1, ranks_of(mode))
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
    law: GroupLaw, numbers: list[int], uniform: Tensor, constraints: Mapping[int, Constraints]
) -> tuple[Tensor, Tensor]:
    """The best order (B, N) and draws (B, S, N) that keep each group's constraints, pick by pick."""
    B, S, N = uniform.shape
    stages, uniform = law.by_place(), uniform.reshape(B * S, N)
    every = torch.ones(B, N, dtype=torch.bool)
    rules = rules_of([constraints.get(number) for number in numbers], B, N)
    best_choices, choices = ops.Choices(), ops.Choices(uniform=uniform)
    if rules is not None:
        best_choices = ops.Choices(None, None, None, 1.0, None, *rules)
        choices = ops.Choices(uniform, None, None, 1.0, None, *rules.rows(torch.arange(B).repeat_interleave(S)))
    best, _ = ops.decode_scores(stages, every, best_choices)
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
