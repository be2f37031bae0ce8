"""Rows of a table in groups, their labels as levels, and padded batches of groups.

A level is a float per row, higher is better; rows of one group and level tie. NaN: not known, below all that are.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softrank_ext.tables import columns_of, numbers_in, texts_in

LABELS = ("grades", "places", "clicks")
MOST_ROWS = 1000  # of a group
MOST_WATCHED, FEWEST_WATCHED = 20_000, 50  # rows and groups that early stopping looks at: a loss of enough digits
_BELOW_ALL = -3e38  # the level of rows whose level is not known
MOST_TRAINED = 100  # rows of a group that one update sees


@dataclass(frozen=True, eq=False)
class Groups:
    """Rows in groups: rows[g] are the row numbers of group g, names[g] what it is called; group (rows,) is g."""

    rows: list[np.ndarray]
    names: list[str]
    group: np.ndarray


def read_table(table: Any) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
    """The columns of a table; of a plain 2-d array x0, x1, ..., and the array itself."""
    if isinstance(table, np.ndarray) and table.dtype.names is None:
        if table.ndim != 2:
            raise ValueError(
                f"an array of rows must be 2-d, got {table.ndim}-d. Reshape your data: one row is (1, features)"
            )
        if table.shape[1] == 0:
            raise ValueError(f"0 feature(s) (shape={table.shape}) while a minimum of 1 is required.")
        columns = columns_of(table, [f"x{number}" for number in range(table.shape[1])])
    else:
        columns = columns_of(table)
    if len(next(iter(columns.values()))) == 0:
        raise ValueError("the table has no rows")
    return columns, table if isinstance(table, np.ndarray) and table.dtype.names is None else None


def groups_of(columns: Mapping[str, np.ndarray], name: str | None, sizes: Sequence[int] | None) -> Groups:
    """The groups of the rows: by a column, by sizes of consecutive groups, or all rows as one group."""
    count = len(next(iter(columns.values())))
    if sizes is not None:
        lengths = np.asarray(sizes)
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or (lengths < 1).any() or lengths.sum() != count:
            raise ValueError(f"group must be sizes of at least 1 that sum to the {count} rows, got {_short(sizes)}")
        group = np.repeat(np.arange(len(lengths)), lengths)
        names = [str(number) for number in range(len(lengths))]
    elif name is None:
        group, names = np.zeros(count, dtype=np.int64), ["all rows"]
    else:
        texts = texts_in(columns, name).tolist()
        if None in texts:
            raise ValueError(f"column {name!r} has no group in row {texts.index(None)}; rows count from 0")
        numbers: dict[str, int] = {}
        group = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
        names = list(numbers)
    ascending = np.argsort(group, kind="stable")
    rows = np.split(ascending, np.cumsum(np.bincount(group))[:-1])
    largest = max(range(len(rows)), key=lambda number: len(rows[number]))
    if len(rows[largest]) > MOST_ROWS:
        hint = "" if name is not None or sizes is not None else "; name the column that tells groups apart: group="
        raise ValueError(f"a group may have up to {MOST_ROWS} rows, {names[largest]!r} has {len(rows[largest])}{hint}")
    return Groups(rows, names, group)


def sizes_in_words(groups: int, rows: int, smallest: int, largest: int) -> str:
    """How many groups there are and how large they are, as a part of a sentence."""
    each = f"{smallest} to {largest} rows" if smallest < largest else f"{rows // groups} row{'s' * (largest > 1)}"
    return f"{groups} group{'s' * (groups > 1)} of {each}"


def levels_of(columns: Mapping[str, np.ndarray], name: str, kind: str, groups: Groups) -> np.ndarray:
    """Levels (rows,) of a column of grades or clicks, higher is better, or places, 1 is best and missing below all."""
    values = numbers_in(columns, name, missing=kind == "places")
    if kind == "clicks":
        is_wrong = (values != 0) & (values != 1)
        if is_wrong.any():
            row = int(is_wrong.argmax())
            raise ValueError(f"column {name!r} must have clicks, 0 or 1, got {values[row]:g} in row {row}")
    if kind != "places":
        return values
    if (values < 1).any():
        row = int((values < 1).argmax())
        raise ValueError(f"column {name!r} must have places from 1, got {values[row]:g} in row {row}")
    return -values


def is_informative(levels: np.ndarray) -> bool:
    """Whether the levels of a group put any of its rows before another."""
    known = levels[~np.isnan(levels)]
    return len(known) > 0 and (len(np.unique(known)) > 1 or len(known) < len(levels))


class GroupBatch(NamedTuple):
    """Padded groups: items (B, N, inputs) float32, mask (B, N) bool, levels (B, N) float64, NaN where not known."""

    items: Tensor
    mask: Tensor
    levels: Tensor


@dataclass(frozen=True, eq=False)
class RankingData:
    """All that training needs of a table: items (rows, inputs), levels (rows,), and the groups."""

    items: np.ndarray
    levels: np.ndarray
    groups: Groups

    def informative(self) -> list[int]:
        """Numbers of the groups to learn from."""
        return [number for number, rows in enumerate(self.groups.rows) if is_informative(self.levels[rows])]

    def batch(self, numbers: Sequence[int], rng: np.random.Generator | None = None) -> GroupBatch:
        """Groups of these numbers. rng: draws the rows of groups that are longer than an update sees."""
        rows = [self.groups.rows[number] for number in numbers]
        if rng is not None:
            rows = [rng.permutation(own)[:MOST_TRAINED] if len(own) > MOST_TRAINED else own for own in rows]
        B, N = len(rows), max(map(len, rows))
        items = np.zeros((B, N, self.items.shape[1]), dtype=np.float32)
        mask, levels = np.zeros((B, N), dtype=bool), np.full((B, N), np.nan)
        for place, own in enumerate(rows):
            items[place, : len(own)] = self.items[own]
            mask[place, : len(own)] = True
            levels[place, : len(own)] = self.levels[own]
        return GroupBatch(torch.from_numpy(items), torch.from_numpy(mask), torch.from_numpy(levels))

    def batches(self, numbers: Sequence[int], most_items: int = 4096) -> Iterator[tuple[list[int], GroupBatch]]:
        """These groups in batches of similar sizes and about so many items, with their numbers."""
        for own in batches_by_size(self.groups, numbers, most_items):
            yield own, self.batch(own)


def data_of_pairs(items: np.ndarray, groups: Groups, pairs: Sequence[tuple[int, int]]) -> RankingData:
    """Each pair as a group of two rows."""
    given = np.asarray(pairs)
    if given.ndim != 2 or given.shape[1] != 2 or len(given) == 0 or given.dtype.kind not in "iu":
        raise ValueError(f"pairs must be a list of (better row, worse row), got shape {given.shape} {given.dtype}")
    if given.min() < 0 or given.max() >= len(items):
        raise ValueError(f"pairs must name rows from 0 to {len(items) - 1}, got {given.min()} to {given.max()}")
    is_wrong = (groups.group[given[:, 0]] != groups.group[given[:, 1]]) | (given[:, 0] == given[:, 1])
    if is_wrong.any():
        first = given[int(is_wrong.argmax())].tolist()
        raise ValueError(f"pairs must be of two rows of one group, got {tuple(first)}")
    numbers = np.arange(2 * len(given)).reshape(-1, 2)
    levels = np.tile([1.0, 0.0], len(given))
    two = Groups([*numbers], [str(number) for number in range(len(given))], np.repeat(np.arange(len(given)), 2))
    return RankingData(items[given.ravel()], levels, two)


def folds_of(numbers: Sequence[int], count: int, seed: int, groups: Groups) -> list[tuple[list[int], list[int]]]:
    """`count` ways to part these groups in those to train on and those to leave out, at least five ways to do so."""
    mixed = np.random.default_rng(seed % 2**63).permutation(list(numbers)).tolist()
    parts = min(max(count, 5), len(mixed))
    folds = []
    for number in range(count):
        watched = _few_of(mixed[number % parts :: parts], groups)
        left_out = set(watched)
        folds.append(([one for one in mixed if one not in left_out], watched))
    return folds


def watched_of(numbers: Sequence[int], groups: Groups, seed: int) -> list[int]:
    """Those of these groups that early stopping looks at: all, or, of many, some by the seed."""
    few = _few_of(np.random.default_rng(seed % 2**63).permutation(list(numbers)).tolist(), groups)
    return few if len(few) < len(numbers) else list(numbers)


def _few_of(numbers: list[int], groups: Groups) -> list[int]:
    """The first of these groups, MOST_WATCHED rows or FEWEST_WATCHED groups, whichever are more."""
    ends = np.cumsum([len(groups.rows[number]) for number in numbers])
    return numbers[: max(int(np.searchsorted(ends, MOST_WATCHED)) + 1, FEWEST_WATCHED)]


def batches_by_size(groups: Groups, numbers: Sequence[int], most_items: int) -> Iterator[list[int]]:
    """Numbers of groups in lists of similar sizes, each of about so many items with padding."""
    batch: list[int] = []
    for number in sorted(numbers, key=lambda number: len(groups.rows[number])):
        if batch and (len(batch) + 1) * len(groups.rows[number]) > most_items:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def drawn_orders(batch: GroupBatch, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Right orders (B, N) int64, real rows first, ties broken at random, and how many leading places are known (B,)."""
    is_known = ~batch.levels.isnan()
    tie_break = torch.rand(batch.levels.shape, generator=generator, dtype=torch.float64)
    order = tie_break.argsort(1)
    key = torch.where(is_known, batch.levels, torch.where(batch.mask, _BELOW_ALL, -torch.inf).double())
    by_key = key.gather(1, order).argsort(dim=1, descending=True, stable=True)
    return order.gather(1, by_key), (is_known & batch.mask).sum(1)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
