"""From the columns of a table to what the network reads: items (rows, inputs) float32. Fitted on training rows.

A number gives its place in the training data as a normal deviate (monotone, so no scale or outlier matters), its place
within its group, and, where training rows miss it, whether it is missing. A category gives a code; values that training
has not seen share code 0, missing ones have code 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

from softrank_ext.tables import check_names, is_number_column, numbers_in, texts_in

MOST_KNOTS = 65  # of a number's curve
MOST_CODES = 10_000  # of a category: the most frequent values
UNSEEN, MISSING = 0, 1


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers: a curve through (knots, heights), constant outside; whether training rows miss it."""

    name: str
    knots: list[float]
    heights: list[float]
    has_missing: bool


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories or ids: code i + 2 is values[i]."""

    name: str
    values: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Preprocessing:
    """What training rows say about the features; columns that are the same in all training rows are left out."""

    numbers: list[NumberColumn]
    categories: list[CategoryColumn]

    @staticmethod
    def fitted(columns: Mapping[str, np.ndarray], features: Sequence[str]) -> "Preprocessing":
        """The preprocessing of these training rows."""
        numbers, categories = [], []
        for name in features:
            if columns[name].dtype.kind in "mM":
                raise ValueError(f"column {name!r} has dates or durations: count days or seconds, or leave it out")
            if is_number_column(columns[name]):
                found = _number_column(name, numbers_in(columns, name, missing=True))
                if found is not None:
                    numbers.append(found)
            else:
                check_names(columns, name)
                values, counts = np.unique(_known(texts_in(columns, name)), return_counts=True)
                frequent = values[np.argsort(-counts, kind="stable")][:MOST_CODES]
                if len(frequent) > 0:
                    categories.append(CategoryColumn(name, frequent.tolist()))
        if not numbers and not categories:
            raise ValueError(f"no feature differs between training rows: {', '.join(map(repr, features))}")
        return Preprocessing(numbers, categories)

    @property
    def num_numbers(self) -> int:
        """How many numbers an item has; its category codes follow them."""
        return sum(2 + column.has_missing for column in self.numbers)

    def items(self, columns: Mapping[str, np.ndarray], group: np.ndarray) -> np.ndarray:
        """Items (rows, inputs) float32. group: (rows,) int64, the number of each row's group."""
        inputs: list[np.ndarray] = []
        for column in self.numbers:
            values = numbers_in(columns, column.name, missing=True)
            is_missing = np.isnan(values)
            inputs.append(np.where(is_missing, 0.0, np.interp(values, column.knots, column.heights)))
            inputs.append(places_in_groups(values, group))
            if column.has_missing:
                inputs.append(is_missing.astype(np.float64))
        for category in self.categories:
            codes = {value: code for code, value in enumerate(category.values, 2)}
            texts = texts_in(columns, category.name).tolist()
            coded = [MISSING if text is None else codes.get(text, UNSEEN) for text in texts]
            inputs.append(np.array(coded, dtype=np.float64))
        return np.stack(inputs, 1).astype(np.float32)

    def embedder(self, dropout: float) -> dict[str, Any]:
        """The embedder of a SoftRankConfig for these items."""
        sizes = [len(column.values) + 2 for column in self.categories]
        numbers = {"numbers": self.num_numbers} if self.num_numbers > 0 else {}
        return {"kind": "table", **numbers, "categories": sizes, "dropout": dropout}

    def described(self) -> str:
        """Which columns are read as numbers and which as categories."""
        kinds = (("numbers", self.numbers), ("categories", self.categories))
        return " and ".join(f"{_listed([one.name for one in found])} as {kind}" for kind, found in kinds if found)

    def to_json(self) -> dict[str, Any]:
        """The preprocessing as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Preprocessing":
        """What `to_json` gave."""
        return Preprocessing(
            [NumberColumn(**column) for column in value["numbers"]],
            [CategoryColumn(**column) for column in value["categories"]],
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:5])} and {len(names) - 5} more"


def _known(texts: np.ndarray) -> np.ndarray:
    return np.array([text for text in texts.tolist() if text is not None], dtype=object)


def _number_column(name: str, values: np.ndarray) -> NumberColumn | None:
    """The curve of a column; None if it says nothing."""
    is_missing = np.isnan(values)
    known = np.sort(values[~is_missing])
    knots = np.unique(known)
    if len(knots) > MOST_KNOTS:
        knots = np.unique(known[np.linspace(0, len(known) - 1, MOST_KNOTS).round().astype(int)])
    if len(knots) < 2 and not (len(knots) == 1 and is_missing.any()):
        return None
    # The share of the training rows below a knot, those at it counted half.
    share = (np.searchsorted(known, knots, "left") + np.searchsorted(known, knots, "right")) / (2 * len(known))
    normal = NormalDist()
    heights = np.array([normal.inv_cdf(min(max(one, 0.0005), 0.9995)) for one in share])
    curve = np.interp(known, knots, heights)
    deviation = float(curve.std())
    heights = (heights - curve.mean()) / (deviation if deviation > 1e-6 else 1.0)
    return NumberColumn(name, knots.tolist(), heights.tolist(), bool(is_missing.any()))


def places_in_groups(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The place of each value among those of its group, mean 0 and deviation about 1; 0 where missing.

    Equal values share their mean place. values (rows,) float64, NaN where missing; group (rows,) int64.
    """
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], group[known]))]
    places = np.zeros(len(values))
    if len(order) == 0:
        return places
    numbers = np.arange(len(order))
    new_group = np.r_[True, group[order][1:] != group[order][:-1]]
    new_run = new_group | np.r_[True, values[order][1:] != values[order][:-1]]
    run, member = new_run.cumsum() - 1, new_group.cumsum() - 1
    run_mean = np.bincount(run, numbers) / np.bincount(run)
    group_mean = np.bincount(member, numbers) / np.bincount(member)
    size = np.bincount(member)
    places[order] = (run_mean[run] - group_mean[member]) / (size[member] / np.sqrt(12))
    return places
