"""The constraints of one row as arrays that the ops read, and the names of the items where they contradict each other.

`constraints` makes a `Row` of what the user wrote: items are checked and places count from the start.
"""

import time
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from softrank_ext import ops

MOST_SECONDS = 2.0  # of looking for the fewest rules that contradict each other
_MOST_NAMED = 20


class Row(NamedTuple):
    """The constraints of one row: items are real, places count from 0, groups have two and more items."""

    before: list[tuple[int, int]]
    pins: dict[int, int]
    forbidden: list[tuple[int, int]]
    together: list[tuple[int, ...]]


class RowArrays(NamedTuple):
    """One row of `Rules`: before (N, N) bool, allowed (N, N) bool, group (N,) int64; None where there are none."""

    before: np.ndarray | None
    allowed: np.ndarray | None
    group: np.ndarray | None


def arrays_of(row: Row, real: tuple[int, ...], N: int) -> RowArrays:
    """The rules of one row, whose real items are `real`, as arrays.

    Raises ValueError, with the items named, if the constraints contradict each other.
    """
    _check_pins(row)
    before, group = _pair_matrix(row, N), _group_numbers(row, N)
    cycle = _cycle_of(before, real)
    if cycle is not None:
        is_widened = any(pair not in row.before for pair in pairwise(cycle))
        groups = [f"; items {_listed(g)} stay together" for g in row.together if is_widened and set(g) & set(cycle)]
        raise ValueError(f"constraints contradict each other: {' before '.join(map(str, cycle))}{''.join(groups)}")
    allowed = _tightened(row, before, real, N)
    if not _can_begin(before, allowed, group, real):
        raise ValueError(f"no order keeps the constraints: {_contradiction(row, allowed, real, N)}")
    return RowArrays(before if before.any() else None, allowed, group if (group >= 0).any() else None)


def _check_pins(row: Row) -> None:
    pinned: dict[int, int] = {}
    for item, place in row.pins.items():
        if place in pinned:
            raise ValueError(
                f"constraints contradict each other: items {pinned[place]} and {item} are both pinned to place {place}"
            )
        pinned[place] = item
        if (item, place) in row.forbidden:
            raise ValueError(
                f"constraints contradict each other: item {item} is pinned to place {place}, which is forbidden to it"
            )


def _pair_matrix(row: Row, N: int) -> np.ndarray:
    """before[a, b] for the pairs, each widened to the whole groups of a and b (unless they share one)."""
    block = {item: group for group in row.together for item in group}
    before = np.zeros((N, N), dtype=bool)
    for a, b in row.before:
        if block.get(a) == block.get(b):
            before[a, b] = True
        else:
            before[np.ix_(block.get(a, (a,)), block.get(b, (b,)))] = True
    return before


def _group_numbers(row: Row, N: int) -> np.ndarray:
    group = np.full(N, -1, dtype=np.int64)
    for number, members in enumerate(row.together):
        group[list(members)] = number
    return group


def _cycle_of(before: np.ndarray, real: tuple[int, ...]) -> list[int] | None:
    """A cycle of the relation as items, the first again at the end; None if there is none."""
    left = np.array(real)
    while True:  # take away items without a predecessor; what stays has one inside
        has_predecessor = before[np.ix_(left, left)].any(0)
        if not has_predecessor.any():
            return None
        if has_predecessor.all():
            break
        left = left[has_predecessor]
    path = [int(left[0])]
    while True:
        path.append(int(left[before[left, path[-1]].argmax()]))
        if path[-1] in path[:-1]:
            return path[path.index(path[-1]) :][::-1]


def _tightened(row: Row, before: np.ndarray, real: tuple[int, ...], N: int) -> np.ndarray | None:
    """allowed[item, place] by pins and forbidden places, cut to windows that pairs and groups leave; None if all."""
    if not row.pins and not row.forbidden:
        return None
    count = len(real)
    allowed = np.zeros((N, N), dtype=bool)
    allowed[np.ix_(real, range(count))] = True
    for item, place in row.forbidden:
        allowed[item, place] = False
    for item, place in row.pins.items():
        allowed[item, :place] = allowed[item, place + 1 :] = False  # others keep the place: their windows have no hole
    places = np.arange(N)
    while True:
        is_open = allowed.any(1)
        first = np.where(is_open, allowed.argmax(1), count)
        last = np.where(is_open, N - 1 - allowed[:, ::-1].argmax(1), -1)
        first = np.maximum(first, np.where(before, first[:, None] + 1, 0).max(0))
        last = np.minimum(last, np.where(before, last - 1, count).min(1))
        for group in map(list, row.together):
            reach = len(group) - 1
            first[group] = np.maximum(first[group], first[group].max() - reach)
            last[group] = np.minimum(last[group], last[group].min() + reach)
        cut = allowed & (places >= first[:, None]) & (places <= last[:, None])
        if (cut == allowed).all():
            return allowed
        allowed = cut


def _can_begin(before: np.ndarray, allowed: np.ndarray | None, group: np.ndarray, real: tuple[int, ...]) -> bool:
    """Whether some order keeps rules without cycles."""
    if allowed is None:
        return True
    mask = torch.zeros(1, len(allowed), dtype=torch.bool)
    mask[0, list(real)] = True
    rules = [torch.from_numpy(rule)[None] for rule in (before, allowed, group)]
    return bool(ops.allowed_picks(torch.empty(1, 0, dtype=torch.int64), mask, *rules).any())


def _hall_violator(allowed: np.ndarray, real: tuple[int, ...]) -> list[int] | None:
    """Items that have fewer places between them than they are, None if items and places can be matched."""
    open_places = {item: np.flatnonzero(allowed[item]).tolist() for item in real}
    item_at: dict[int, int] = {}
    for start in real:
        came_from: dict[int, int] = {}  # place -> the item that reached it
        reached = [start]
        free = None
        for item in reached:
            for place in open_places[item]:
                if place not in came_from:
                    came_from[place] = item
                    if place not in item_at:
                        free = place
                        break
                    reached.append(item_at[place])
            if free is not None:
                break
        if free is None:
            return sorted(reached)
        while free is not None:
            item = came_from[free]
            before = next((place for place, holder in item_at.items() if holder == item), None)
            item_at[free] = item
            free = before
    return None


def _contradiction(row: Row, allowed: np.ndarray | None, real: tuple[int, ...], N: int) -> str:
    """What contradicts itself, in words: items that have too few places, and rules of which none can be dropped."""
    parts = []
    items = None if allowed is None else _hall_violator(allowed, real)
    if allowed is not None and items is not None:
        places = np.flatnonzero(allowed[items].any(0)).tolist()
        left = f"only place{'s' * (len(places) > 1)} {_listed(places)}" if places else "no place"
        parts.append(
            f"item{'s' * (len(items) > 1)} {_listed(items)} {'have' if len(items) > 1 else 'has'} {left} left"
            + (f" ({len(items)} items for {len(places)})" if len(items) > 1 else "")
        )
    if row.before or row.together:
        core, is_smallest = _smallest_contradiction(row, real, N)
        said = [f"{a} before {b}" for a, b in core.before]
        said += [f"item {item} pinned to place {place}" for item, place in core.pins.items()]
        banned: dict[int, list[int]] = {}
        for item, place in core.forbidden:
            banned.setdefault(item, []).append(place)
        said += [f"item {item} forbidden at {_listed(places)}" for item, places in banned.items()]
        said += [f"items {_listed(group)} together" for group in core.together]
        rest = f" and {len(said) - _MOST_NAMED} more rules" if len(said) > _MOST_NAMED else ""
        maybe = "" if is_smallest else ", maybe with less"
        parts.append(f"what contradicts itself{maybe}: {', '.join(said[:_MOST_NAMED])}{rest}")
    return "; ".join(parts)


def _smallest_contradiction(row: Row, real: tuple[int, ...], N: int) -> tuple[Row, bool]:
    """A part of contradictory constraints of which no rule can be dropped; an item's forbidden places count as one.

    Also returns whether it is that: after MOST_SECONDS what is left by then is returned.
    """
    end = time.monotonic() + MOST_SECONDS
    kinds: dict[str, list[Any]] = {
        "before": row.before,
        "together": row.together,
        "pins": list(row.pins.items()),
        "forbidden": [[pair for pair in row.forbidden if pair[0] == item] for item in dict(row.forbidden)],
    }
    rules = [(kind, rule) for kind, own in kinds.items() for rule in own]

    def row_of(kept: list[tuple[str, Any]]) -> Row:
        before, together, pins, forbidden = ([rule for name, rule in kept if name == kind] for kind in kinds)
        return Row(before, dict(pins), [pair for pairs in forbidden for pair in pairs], together)

    def contradict(kept: list[tuple[str, Any]]) -> bool:
        fewer = row_of(kept)
        before = _pair_matrix(fewer, N)
        try:
            return not _can_begin(before, _tightened(fewer, before, real, N), _group_numbers(fewer, N), real)
        except RuntimeError:  # too hard to say: these rules are not shown to contradict
            return False

    # Many at once first: few of many rules are most often to blame.
    size = max(len(rules) // 2, 1)
    while True:
        for start in range(len(rules) - 1 - (len(rules) - 1) % size, -1, -size):
            if time.monotonic() > end:
                return row_of(rules), False
            fewer = rules[:start] + rules[start + size :]
            if contradict(fewer):
                rules = fewer
        if size == 1:
            return row_of(rules), True
        size //= 2


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
