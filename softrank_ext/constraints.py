"""Constraints on orders: "a before b", pinned places, forbidden places, groups that stay together.

`Constraints` speaks of the items as given, `order[place] = item`. `rules_of` checks them against a batch, names what
contradicts itself, and makes `Rules`: tensors that the ops read, over items, or over slots by `Rules.in_slots`.

A pick is allowed only if some completion keeps every rule, so decoding never meets a dead end. Which test decides that:
- order pairs, with or without groups: all predecessors stand, and an open group is finished first. Exact.
- pairs with windows of places (pins are windows of one place): unit-time scheduling with release times and deadlines.
  Windows are tightened along the pairs, then counting deadlines is exact (Lageweg, Lawler).
- forbidden places without pairs or groups: one perfect matching of items and places is kept; alternating paths from the
  item matched to the next place reach exactly the items that may stand there.
- pairs together with forbidden places inside a window, and groups together with pins or forbidden places (which is
  bin packing): we know no polynomial test. The tests above cut a depth-first search that remembers which sets of placed
  items can be completed. It is exact; after `ops.MOST_STATES` sets per row and call it raises RuntimeError rather
  than guess.

Two laws (`sample`'s argument `law`):
- "prefix": every prediction of the reverse process is drawn place by place from the model's softmax over the allowed
  items. Its probability of an order is the product of those renormalised softmaxes, which is not the model's law given
  the constraints: an early pick is not charged for the unlikely picks that it forces later.
- "conditioned": the law of the final order of the whole unconstrained process, given that this order keeps the
  constraints. Only the last prediction is drawn as in "prefix"; a draw's weight is the product over its places of the
  model's probability of the allowed items. Of `particles` such draws per sample asked for, samples are drawn in
  proportion to their weights. That is exact in the limit of many draws; the effective sample size tells how many equal
  draws the weighted ones are worth. Earlier predictions are not constrained: what is conditioned on is the final order.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext import ops
from softrank_ext.permutations import arrange

LAWS = ("prefix", "conditioned")


@dataclass(frozen=True)
class Constraints:
    """Rules that an order must keep. Items and places count from 0; a negative place counts from the end, -1 is last.

    before: pairs (a, b), "a stands before b"; or a mapping from an item to the items after it; or an (N, N) bool
    matrix, True at [a, b]. pins: item -> its place. forbidden: pairs (item, place). together: disjoint groups of items
    that stand next to each other, in any order.
    """

    before: Iterable[tuple[int, int]] | Mapping[int, Iterable[int]] | Tensor | np.ndarray = ()
    pins: Mapping[int, int] = field(default_factory=dict)
    forbidden: Iterable[tuple[int, int]] = ()
    together: Iterable[Iterable[int]] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.pins, Mapping):
            raise TypeError(f"pins must be a mapping from item to place, got {type(self.pins).__name__}")
        normal: dict[str, Any] = {
            "before": _pairs("before", _as_pairs(self.before)),
            "pins": dict(_pairs("pins", self.pins.items())),
            "forbidden": _pairs("forbidden", self.forbidden),
            "together": tuple(tuple(_integer("together", item) for item in group) for group in self.together),
        }
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def from_json(value: object) -> "Constraints":
        """Constraints from a parsed JSON object with some of the fields; the items of "pins" may be strings there."""
        names = ("before", "pins", "forbidden", "together")
        if not isinstance(value, dict) or not set(value) <= set(names):
            got = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"constraints must be an object with some of {', '.join(names)}, got {got}")
        fields = dict(value)
        for name in ("before", "pins"):
            if isinstance(fields.get(name), dict):
                fields[name] = {int(item): rest for item, rest in fields[name].items()}
        return Constraints(**fields)


def read_constraints(path: str | Path) -> Constraints | list[Constraints | None]:
    """Constraints from a JSON file: an object for all instances, or a list with an object or null per instance."""
    try:
        value = json.loads(Path(path).read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if isinstance(value, list):
        return [None if row is None else Constraints.from_json(row) for row in value]
    return Constraints.from_json(value)


class Rules(NamedTuple):
    """Constraints as the ops read them, a row each; None where no row has that kind.

    before (B, N, N) bool: [a, b] = "a stands before b", and for whole groups: who stands before a member stands before
    all. allowed (B, N, N) bool: [item, place], tightened along `before` and groups. group (B, N) int64: number of the
    item's group, -1 for none.
    """

    before: Tensor | None
    allowed: Tensor | None
    group: Tensor | None

    def rows(self, index: Tensor) -> "Rules":
        """The rules of these rows of the batch, index (M,) int64."""
        return Rules(*(None if rule is None else rule[index] for rule in self))

    def in_slots(self, order: Tensor) -> "Rules":
        """The same rules over slots, where slot s holds item `order[b, s]`; order (B, N) int64."""
        before, allowed, group = self
        if before is not None:
            before = arrange(arrange(before, order).transpose(1, 2), order).transpose(1, 2)
        return Rules(
            before,
            None if allowed is None else arrange(allowed, order),
            None if group is None else arrange(group, order),
        )


Constraining = Constraints | Sequence[Constraints | None] | Rules | None


def rules_of(
    constraints: Constraining,
    B: int,
    N: int,
    mask: Tensor | None = None,
    *,
    device: torch.device | None = None,
    first: Tensor | None = None,
) -> Rules | None:
    """The rules of a batch of B rows of N items; None if there are none. Rules that are made already are returned.

    constraints: one for all rows, or one (or None) per row. mask (B, N) bool: True = real item; places count real
    items. first (B,) int64: an item pinned to place 0 in each row.
    Raises ValueError, with the items named, if a row's constraints contradict each other or name what is not there.
    """
    if constraints is None or isinstance(constraints, Rules):
        return constraints
    if isinstance(constraints, Constraints):
        per_row: list[Constraints | None] = [constraints] * B
    else:
        per_row = list(constraints)
        if len(per_row) != B or not all(row is None or isinstance(row, Constraints) for row in per_row):
            raise ValueError(
                f"constraints must be Constraints, or a list of {B} (None for no rules), got {constraints!r}"
            )
    reals = [tuple(range(N))] * B if mask is None else [tuple(row.nonzero()[:, 0].tolist()) for row in mask.cpu()]
    firsts = [None] * B if first is None else first.tolist()
    made: dict[tuple, tuple] = {}
    keys = []
    for row, (own, real, pinned) in enumerate(zip(per_row, reals, firsts, strict=True)):
        keys.append((id(own), real, pinned))
        if keys[-1] not in made:
            try:
                made[keys[-1]] = _arrays_of(own or Constraints(), real, N, pinned)
            except ValueError as error:
                raise ValueError(
                    str(error) if isinstance(constraints, Constraints) else f"row {row}: {error}"
                ) from error
    numbers = {key: number for number, key in enumerate(made)}
    index = torch.tensor([numbers[key] for key in keys], dtype=torch.int64)
    tensors: list[Tensor | None] = []
    for kind, absent in enumerate((np.zeros((N, N), bool), np.ones((N, N), bool), np.full(N, -1))):
        arrays = [arrays[kind] for arrays in made.values()]
        if all(array is None for array in arrays):
            tensors.append(None)
            continue
        distinct = torch.from_numpy(np.stack([absent if array is None else array for array in arrays])).to(device)
        tensors.append(distinct.expand(B, *distinct.shape[1:]) if len(arrays) == 1 else distinct[index.to(device)])
    return None if all(tensor is None for tensor in tensors) else Rules(*tensors)


class _Row(NamedTuple):
    """The constraints of one row, items checked, places counted from the start, groups of two and more."""

    before: list[tuple[int, int]]
    pins: dict[int, int]
    forbidden: list[tuple[int, int]]
    together: list[tuple[int, ...]]


def _arrays_of(
    constraints: Constraints, real: tuple[int, ...], N: int, first: int | None
) -> tuple[np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """The rules of one row as arrays (see `Rules`), None where there are none."""
    named = _row_of(constraints, real, N)
    if first is not None:
        if named.pins.get(first, 0) != 0:
            raise ValueError(f"item {first} is first, and pinned to place {named.pins[first]}")
        named.pins[first] = 0
    _check_pins(named)
    before, group = _pair_matrix(named, N), _group_numbers(named, N)
    cycle = _cycle_of(before, real)
    if cycle is not None:
        is_widened = any(pair not in named.before for pair in pairwise(cycle))
        groups = [f"; items {_listed(g)} stay together" for g in named.together if is_widened and set(g) & set(cycle)]
        raise ValueError(f"constraints contradict each other: {' before '.join(map(str, cycle))}{''.join(groups)}")
    allowed = _tightened(named, before, real, N)
    if not _can_begin(before, allowed, group, real):
        raise ValueError(f"no order keeps the constraints: {_contradiction(named, allowed, real, N)}")
    return before if before.any() else None, allowed, group if (group >= 0).any() else None


def _row_of(constraints: Constraints, real: tuple[int, ...], N: int) -> _Row:
    known, count = set(real), len(real)

    def item(value: int) -> int:
        if value not in known:
            what = "padding" if 0 <= value < N else f"not an item, 0 to {N - 1}"
            raise ValueError(f"constraints must name real items, {value} is {what}")
        return value

    def place(value: int) -> int:
        if not -count <= value < count:
            raise ValueError(f"constraints must name places from {-count} to {count - 1}, got {value}")
        return value % count

    before, forbidden = _pairs("before", _as_pairs(constraints.before)), _pairs("forbidden", constraints.forbidden)
    together = [tuple(dict.fromkeys(map(item, group))) for group in constraints.together]
    members = [member for group in together for member in group]
    for member in members:
        if members.count(member) > 1:
            raise ValueError(f"together must be disjoint groups, item {member} is in two")
    return _Row(
        [(item(a), item(b)) for a, b in before],
        {item(i): place(at) for i, at in constraints.pins.items()},
        [(item(i), place(at)) for i, at in forbidden],
        [group for group in together if len(group) > 1],
    )


def _check_pins(constraints: _Row) -> None:
    pinned: dict[int, int] = {}
    for item, place in constraints.pins.items():
        if place in pinned:
            raise ValueError(
                f"constraints contradict each other: items {pinned[place]} and {item} are both pinned to place {place}"
            )
        pinned[place] = item
        if (item, place) in constraints.forbidden:
            raise ValueError(
                f"constraints contradict each other: item {item} is pinned to place {place}, which is forbidden to it"
            )


def _pair_matrix(constraints: _Row, N: int) -> np.ndarray:
    """before[a, b] for the pairs, each widened to the whole groups of a and b (unless they share one)."""
    block = {item: group for group in constraints.together for item in group}
    before = np.zeros((N, N), dtype=bool)
    for a, b in constraints.before:
        if block.get(a) == block.get(b):
            before[a, b] = True
        else:
            before[np.ix_(block.get(a, (a,)), block.get(b, (b,)))] = True
    return before


def _group_numbers(constraints: _Row, N: int) -> np.ndarray:
    group = np.full(N, -1, dtype=np.int64)
    for number, members in enumerate(constraints.together):
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


def _tightened(constraints: _Row, before: np.ndarray, real: tuple[int, ...], N: int) -> np.ndarray | None:
    """allowed[item, place] by pins and forbidden places, cut to windows that pairs and groups leave; None if all."""
    if not constraints.pins and not constraints.forbidden:
        return None
    count = len(real)
    allowed = np.zeros((N, N), dtype=bool)
    allowed[np.ix_(real, range(count))] = True
    for item, place in constraints.forbidden:
        allowed[item, place] = False
    for item, place in constraints.pins.items():
        allowed[item, :place] = allowed[item, place + 1 :] = False  # others keep the place: their windows have no hole
    places = np.arange(N)
    while True:
        is_open = allowed.any(1)
        first = np.where(is_open, allowed.argmax(1), count)
        last = np.where(is_open, N - 1 - allowed[:, ::-1].argmax(1), -1)
        first = np.maximum(first, np.where(before, first[:, None] + 1, 0).max(0))
        last = np.minimum(last, np.where(before, last - 1, count).min(1))
        for group in map(list, constraints.together):
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


def _contradiction(constraints: _Row, allowed: np.ndarray | None, real: tuple[int, ...], N: int) -> str:
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
    if constraints.before or constraints.together:
        core = _smallest_contradiction(constraints, real, N)
        said = [f"{a} before {b}" for a, b in core.before]
        said += [f"item {item} pinned to place {place}" for item, place in core.pins.items()]
        banned: dict[int, list[int]] = {}
        for item, place in core.forbidden:
            banned.setdefault(item, []).append(place)
        said += [f"item {item} forbidden at {_listed(places)}" for item, places in banned.items()]
        said += [f"items {_listed(group)} together" for group in core.together]
        parts.append(f"what contradicts itself: {', '.join(said)}")
    return "; ".join(parts)


def _smallest_contradiction(constraints: _Row, real: tuple[int, ...], N: int) -> _Row:
    """A part of contradictory constraints of which no rule can be dropped; an item's forbidden places count as one."""
    kept = constraints

    def contradicts(fewer: _Row) -> bool:
        before = _pair_matrix(fewer, N)
        allowed = _tightened(fewer, before, real, N)
        return not _can_begin(before, allowed, _group_numbers(fewer, N), real)

    for pair in constraints.before:
        fewer = kept._replace(before=[other for other in kept.before if other != pair])
        kept = fewer if contradicts(fewer) else kept
    for group in constraints.together:
        fewer = kept._replace(together=[other for other in kept.together if other != group])
        kept = fewer if contradicts(fewer) else kept
    for pinned in constraints.pins:
        fewer = kept._replace(pins={item: place for item, place in kept.pins.items() if item != pinned})
        kept = fewer if contradicts(fewer) else kept
    for banned in {item for item, _ in constraints.forbidden}:
        fewer = kept._replace(forbidden=[pair for pair in kept.forbidden if pair[0] != banned])
        kept = fewer if contradicts(fewer) else kept
    return kept


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _as_pairs(before: Any) -> Iterable[Any]:
    if isinstance(before, Mapping):
        return [(a, b) for a, after in before.items() for b in after]
    if isinstance(before, Tensor | np.ndarray):
        matrix = np.asarray(before)
        if matrix.dtype == np.bool_:
            if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
                raise ValueError(f"before must be an (N, N) bool matrix, got {matrix.shape}")
            return np.argwhere(matrix).tolist()
        return matrix.tolist()
    return before


def _pairs(name: str, values: Iterable[Any]) -> tuple[tuple[int, int], ...]:
    try:
        pairs = [tuple(pair) for pair in values]
    except TypeError as error:
        raise TypeError(f"{name} must hold pairs of integers, got {values!r}") from error
    for pair in pairs:
        if len(pair) != 2:
            raise ValueError(f"{name} must hold pairs of integers, got {pair}")
    return tuple((_integer(name, a), _integer(name, b)) for a, b in pairs)


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} must hold integers, got {value!r}")
    return int(value)
