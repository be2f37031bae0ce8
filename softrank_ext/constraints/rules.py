"""Constraints on orders: "a before b", pinned places, forbidden places, groups that stay together.

`Constraints` name items as they are given, `order[place] = item`. `rules_of` checks them against a batch, names the
items where they contradict each other, and makes `Rules`: tensors that the ops read, over items, or over slots by
`Rules.in_slots`.

A pick is allowed only if some completion keeps every rule, so decoding never reaches a dead end. How that is decided:
- order pairs, with or without groups: all predecessors are placed, and a group once begun is finished first. Exact.
- pairs with windows of places (pins are windows of one place): unit-time scheduling with release times and deadlines.
  Windows are tightened along the pairs, then counting deadlines is exact (Lageweg, Lawler).
- forbidden places without pairs or groups: a perfect matching of items and places is maintained; alternating paths from
  the item matched to the next place reach exactly the items that may stand there.
- pairs together with forbidden places inside a window, and groups together with pins or forbidden places (which is
  bin packing): no polynomial test is known to us. The tests above prune a depth-first search that remembers which sets
  of placed items can be completed. It is exact; after `ops.MOST_STATES` sets per row and call it raises
  RuntimeError instead of guessing.

Two laws (`Constraints.law`):
- "prefix": every prediction of the reverse process is drawn place by place from the model's softmax over the allowed
  items. Its probability of an order is the product of those renormalised softmaxes, which is not the model's law given
  the constraints: an early pick is not penalised for the unlikely picks that it forces later.
- "conditioned": the law of the final order of the whole unconstrained process, given that this order keeps the
  constraints. Only the last prediction is drawn as in "prefix"; a draw's weight is the product over its places of the
  model's probability of the allowed items. For each sample asked for, `particles` such draws are made, and samples are
  chosen among all of them in proportion to their weights. That is exact in the limit of many draws; the effective
  sample size says how many equally weighted draws they are worth. Earlier predictions are not constrained: the
  condition is on the final order.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext.checks import check_bool, check_choice, check_integer, check_tensor
from softrank_ext.constraints.rows import Row, RowArrays, arrays_of
from softrank_ext.permutations import arrange, ranks_of
from softrank_ext.text_files import parse_json, read_text

_MOST_ROWS = 2**24  # of one call

LAWS = ("prefix", "conditioned")


@dataclass(frozen=True)
class Constraints:
    """Rules that an order must keep. Items and places count from 0; a negative place counts from the end, -1 is last.

    before: pairs (a, b), "a stands before b"; or a mapping from an item to the items after it; or an (N, N) bool
    matrix, True at [a, b]. pins: item -> its place. forbidden: pairs (item, place). together: disjoint groups of items
    that stand next to each other, in any order.

    How orders are drawn under these rules, which must be the same for all instances of a call:
    law: "prefix" draws each pick from what the rules allow, which is fast; "conditioned" follows the model's law given
    the rules, by choosing among weighted draws, `particles` for each sample. reflect_noise: noisy soft ranks keep the
    order pairs too (law "prefix" only); in training the model saw such soft ranks no more often than by chance.
    """

    before: Iterable[tuple[int, int]] | Mapping[int, Iterable[int]] | Tensor | np.ndarray = ()
    pins: Mapping[int, int] = field(default_factory=dict)
    forbidden: Iterable[tuple[int, int]] = ()
    together: Iterable[Iterable[int]] = ()
    law: str = "prefix"
    particles: int = 16
    reflect_noise: bool = False

    def __post_init__(self) -> None:
        check_choice("law", self.law, LAWS)
        check_integer("particles", self.particles, 1)
        check_bool("reflect_noise", self.reflect_noise)
        if self.law == "conditioned" and self.reflect_noise:
            raise ValueError('law="conditioned" needs reflect_noise=False: it weighs the model\'s own draws')
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

    def renumbered(self, numbers: Sequence[int]) -> "Constraints":
        """The same rules for items with other numbers: item i is called numbers[i]."""
        return replace(
            self,
            before=[(numbers[a], numbers[b]) for a, b in _as_pairs(self.before)],
            pins={numbers[item]: place for item, place in self.pins.items()},
            forbidden=[(numbers[item], place) for item, place in self.forbidden],
            together=[[numbers[item] for item in group] for group in self.together],
        )

    @staticmethod
    def from_json(value: object) -> "Constraints":
        """Constraints from a parsed JSON object with some of the fields; the items of "pins" may be strings there."""
        names = [field.name for field in fields(Constraints)]
        if not isinstance(value, dict) or not set(value) <= set(names):
            got = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
            raise ValueError(f"constraints must be an object with some of {', '.join(names)}, got {got}")
        arguments = dict(value)
        for name in ("before", "pins"):
            if isinstance(arguments.get(name), dict):
                arguments[name] = {_item_of(name, item): rest for item, rest in arguments[name].items()}
        return Constraints(**arguments)


def _item_of(name: str, word: str) -> int:
    """The item that a name of a JSON object stands for."""
    if not (word.isascii() and word.removeprefix("-").isdigit() and len(word) < 20):
        raise ValueError(f"{name} must be an object whose names are items, integers, got {word!r}")
    return int(word)


def read_constraints(path: str | Path) -> Constraints | list[Constraints | None]:
    """Constraints from a JSON file: an object for all instances, or a list with an object or null per instance."""
    value = parse_json(path, read_text(path))
    if isinstance(value, list):
        return [None if row is None else Constraints.from_json(row) for row in value]
    return Constraints.from_json(value)


class Rules(NamedTuple):
    """Constraints as the ops read them, a row each; None where no row has that kind.

    before (B, N, N) bool: [a, b] = "a stands before b", and for whole groups: an item before one member of a group is
    before all of them. allowed (B, N, N) bool: [item, place], tightened along `before` and groups. group (B, N) int64:
    number of the item's group, -1 for none.
    """

    before: Tensor | None
    allowed: Tensor | None
    group: Tensor | None

    def rows(self, index: Tensor) -> "Rules":
        """The rules of these rows of the batch, index (M,) int64."""
        return Rules(*(None if rule is None else rule[index] for rule in self))

    def kept_by(self, order: Tensor) -> Tensor:
        """Whether these orders keep the rules, (B,) bool; order (B, N) int64, without padding."""
        before, allowed, group = self
        ranks = ranks_of(order)
        is_kept = torch.ones(len(order), dtype=torch.bool, device=order.device)
        if before is not None:
            is_kept &= ~(before & (ranks[:, :, None] > ranks[:, None])).flatten(1).any(1)
        if allowed is not None:
            is_kept &= allowed.gather(2, ranks[:, :, None]).flatten(1).all(1)
        if group is not None:
            # A group that stands together begins once.
            in_order = group.gather(1, order)
            is_begin = in_order >= 0
            is_begin[:, 1:] &= in_order[:, 1:] != in_order[:, :-1]
            ascending = group.sort(1).values
            is_first = ascending >= 0
            is_first[:, 1:] &= ascending[:, 1:] != ascending[:, :-1]
            is_kept &= is_begin.sum(1) == is_first.sum(1)
        return is_kept

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
    """The rules of a batch of B rows of N items; None if there are none. `Rules` are returned as they are.

    constraints: one for all rows, or one (or None) per row. mask (B, N) bool: True = real item; places count real
    items. first (B,) int64: an item pinned to place 0 in each row.
    Raises ValueError, with the items named, if a row's constraints contradict each other or name items or places that
    it does not have.
    """
    if constraints is None or isinstance(constraints, Rules):
        return constraints
    check_integer("B", B, 0, _MOST_ROWS)
    check_integer("N", N, 0, 2**20)
    if mask is not None:
        check_tensor("mask", mask, (B, N), torch.bool)
    if first is not None:
        check_tensor("first", first, (B,), torch.int64)
    per_row = _per_row(constraints, B)
    reals = [tuple(range(N))] * B if mask is None else [tuple(row.nonzero()[:, 0].tolist()) for row in mask.cpu()]
    firsts: list[int | None] = [None] * B if first is None else first.tolist()
    made: dict[tuple[int, tuple[int, ...], int | None], RowArrays] = {}
    keys = []
    for row, (own, real, pinned) in enumerate(zip(per_row, reals, firsts, strict=True)):
        keys.append((id(own), real, pinned))
        if keys[-1] not in made:
            try:
                made[keys[-1]] = arrays_of(_row_of(own or Constraints(), real, N, pinned), real, N)
            except ValueError as error:
                raise _in_row(error, row, constraints) from error
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


class ConstraintSettings(NamedTuple):
    """How orders are drawn under constraints; the fields of `Constraints` with these names."""

    law: str = "prefix"
    particles: int = 16
    reflect_noise: bool = False


def settings_of(constraints: Constraining) -> ConstraintSettings:
    """The settings of one `Constraints`, or of a list whose rows (None apart) agree; the defaults if there are none.

    Raises ValueError, naming two rows, if they differ.
    """
    if constraints is None or isinstance(constraints, Rules):
        return ConstraintSettings()
    found: tuple[int, ConstraintSettings] | None = None
    for number, row in enumerate(
        _per_row(constraints, 1 if isinstance(constraints, Constraints) else len(constraints))
    ):
        if row is None:
            continue
        own = ConstraintSettings(row.law, row.particles, row.reflect_noise)
        if found is None:
            found = number, own
        elif own != found[1]:
            names = "law, particles and reflect_noise"
            raise ValueError(
                f"constraints must have the same {names} in all rows, got {tuple(found[1])} in row {found[0]} and "
                f"{tuple(own)} in row {number}"
            )
    return ConstraintSettings() if found is None else found[1]


def pinned_first(
    constraints: Constraining, B: int, N: int, mask: Tensor | None = None
) -> tuple[Tensor | None, Constraining]:
    """The items pinned to place 0, (B,) int64, if every row pins one, and the constraints without these pins.

    Places count modulo the row's number of real items n, so -n is place 0 too. The second is None, for the batch or for
    a row of a list, where nothing else is asked for. If no row has such a pin: None, and the constraints as they are.
    Raises ValueError if only some rows have one, if a row has two, or if the item is not there.
    """
    if constraints is None or isinstance(constraints, Rules):
        return None, constraints
    check_integer("B", B, 0, _MOST_ROWS)
    check_integer("N", N, 1)
    if mask is not None:
        check_tensor("mask", mask, (B, N), torch.bool)
    counts: list[int] = [N] * B if mask is None else mask.sum(1).tolist()
    found: dict[tuple[int, int], tuple[int | None, Constraints | None]] = {}
    items: list[int | None] = []
    rests: list[Constraints | None] = []
    for row, (own, count) in enumerate(zip(_per_row(constraints, B), counts, strict=True)):
        key = id(own), count
        if key not in found:
            try:
                found[key] = _without_first(own, count)
            except ValueError as error:
                raise _in_row(error, row, constraints) from error
        items.append(found[key][0])
        rests.append(found[key][1])
    pinned = [item for item in items if item is not None]
    if not pinned:
        return None, constraints
    if len(pinned) < B:
        without = items.index(None)
        having = next(row for row, item in enumerate(items) if item is not None)
        raise ValueError(
            "constraints must pin an item to place 0 in every row or in none, "
            f"row {having} pins item {items[having]} and row {without} none"
        )
    first = torch.tensor(pinned, dtype=torch.int64, device=None if mask is None else mask.device)
    is_real = (first >= 0) & (first < N)
    if mask is not None:
        is_real &= mask.gather(1, first.clamp(0, N - 1)[:, None])[:, 0]
    if not bool(is_real.all()):
        row = int((~is_real).nonzero()[0])
        raise _in_row(_not_real(pinned[row], N), row, constraints)
    if all(rest is rests[0] for rest in rests) and (isinstance(constraints, Constraints) or rests[0] is None):
        return first, rests[0]
    return first, rests


def _without_first(constraints: Constraints | None, count: int) -> tuple[int | None, Constraints | None]:
    """The item pinned to place 0 of `count` places, and the other constraints, None if there are none."""
    if constraints is None:
        return None, None
    pinned = [item for item, place in constraints.pins.items() if place in (0, -count)]
    if not pinned:
        return None, constraints
    if len(pinned) > 1:
        raise ValueError(
            f"constraints contradict each other: items {pinned[0]} and {pinned[1]} are both pinned to place 0"
        )
    others = {item: place for item, place in constraints.pins.items() if item != pinned[0]}
    if others or constraints.before or constraints.forbidden or constraints.together:
        return pinned[0], replace(constraints, pins=others)
    return pinned[0], None


def _per_row(constraints: Constraints | Sequence[Constraints | None], B: int) -> list[Constraints | None]:
    if isinstance(constraints, Constraints):
        return [constraints] * B
    per_row = list(constraints)
    if len(per_row) != B or not all(row is None or isinstance(row, Constraints) for row in per_row):
        raise ValueError(f"constraints must be Constraints, or a list of {B} (None for no rules), got {constraints!r}")
    return per_row


def _in_row(error: ValueError, row: int, constraints: Constraining) -> ValueError:
    """The error, with its row where there is a list of constraints."""
    return ValueError(str(error) if isinstance(constraints, Constraints) else f"row {row}: {error}")


def _not_real(item: int, N: int) -> ValueError:
    what = "padding" if 0 <= item < N else f"not an item, 0 to {N - 1}"
    return ValueError(f"constraints must name real items, {item} is {what}")


def _row_of(constraints: Constraints, real: tuple[int, ...], N: int, first: int | None) -> Row:
    """The constraints of a row with these real items, checked, and with a pin of `first` to place 0."""
    known, count = set(real), len(real)

    def item(value: int) -> int:
        if value not in known:
            raise _not_real(value, N)
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
    pins = {item(i): place(at) for i, at in constraints.pins.items()}
    if first is not None and pins.setdefault(first, 0) != 0:
        raise ValueError(f"item {first} is fixed at place 0 and pinned to place {pins[first]}")
    return Row(
        [(item(a), item(b)) for a, b in before],
        pins,
        [(item(i), place(at)) for i, at in forbidden],
        [group for group in together if len(group) > 1],
    )


def _as_pairs(before: Iterable[Any] | Mapping[int, Iterable[int]] | Tensor | np.ndarray) -> Iterable[Any]:
    if isinstance(before, Mapping):
        return [(a, b) for a, after in before.items() for b in after]
    if isinstance(before, Tensor | np.ndarray):
        matrix = np.asarray(before)
        if matrix.dtype == np.bool_:
            if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
                raise ValueError(f"before must be an (N, N) bool matrix, got {matrix.shape}")
            matrix = np.argwhere(matrix)
        pairs: list[Any] = matrix.tolist()
        return pairs
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
