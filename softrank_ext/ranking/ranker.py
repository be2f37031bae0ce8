"""`Ranker`: learn to rank the rows of a table, group by group, with places, intervals and probabilities."""

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from softrank_ext.checks import check_choice, check_integer, check_not_negative, check_positive, check_seed, check_share
from softrank_ext.model import SoftRankModel
from softrank_ext.ranking.groups import (
    LABELS,
    Groups,
    RankingData,
    data_of_pairs,
    folds_of,
    groups_of,
    levels_of,
    read_table,
    sizes_in_words,
    watched_of,
)  # fmt: skip
from softrank_ext.ranking.law import Temperatures, best_temperatures
from softrank_ext.ranking.members import Learning, fit_member, mean_scores, member_scores, new_member
from softrank_ext.ranking.places import Places, Rule, Settings, answers_of, checked_settings, places_of, rules_by_group
from softrank_ext.ranking.preprocessing import Preprocessing
from softrank_ext.ranking.ranker_folder import RANKER_FILE, read_ranker, save_ranker
from softrank_ext.ranking.report import RankingReport, gains_of, report_of
from softrank_ext.tables import column_in, frame_of, unmasked

BAR_DELAY = 2.0  # seconds before predict shows its bar


class Ranker:
    """Learns from a table of rows in groups (documents of a query, offers of a search, runners of a race).

    features: columns to rank by, None for all but group and label; numbers of any scale, with missing cells, and texts
    or ids, also those that training has not seen. group: the column that tells groups apart, None if all rows are one
    group (arrays: sizes in `fit`). label: the column of `labels`: "grades", higher is better, "places", 1 is best and
    missing comes after all that are named (top k), or "clicks", 0 or 1. Rows of one group that tie are interchangeable.
    members: networks whose scores are averaged; without validation groups each is stopped early on its own part of the
    training groups. width, layers, dropout, weight_decay, learning_rate, epochs: of the networks and their training.
    draws: orders that intervals are counted over. seed: of everything random.

    It follows scikit-learn's conventions; scikit-learn is not needed.
    """

    def __init__(
        self,
        features: Sequence[str] | None = None,
        group: str | None = None,
        label: str | None = None,
        *,
        labels: str = "grades",
        members: int = 5,
        width: int = 64,
        layers: int = 1,
        dropout: float = 0.3,
        weight_decay: float = 0.1,
        learning_rate: float = 0.001,
        epochs: int = 40,
        draws: int = 500,
        seed: int = 0,
    ) -> None:
        self.features, self.group, self.label, self.labels = features, group, label, labels
        self.members, self.width, self.layers, self.dropout = members, width, layers, dropout
        self.weight_decay, self.learning_rate, self.epochs = weight_decay, learning_rate, epochs
        self.draws, self.seed = draws, seed

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments that the ranker was made with."""
        return {name: getattr(self, name) for name in _parameter_names()}

    def set_params(self, **params: Any) -> "Ranker":
        """Change arguments by name; returns the ranker."""
        for name, value in params.items():
            if name not in _parameter_names():
                raise ValueError(f"{name!r} is no parameter of Ranker; it has {', '.join(_parameter_names())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks an estimator, for `cross_val_score`, `GridSearchCV` and `check_estimator`."""
        from sklearn.utils import InputTags, Tags, TargetTags

        return Tags(
            estimator_type=None,
            target_tags=TargetTags(required=self.label is None),
            input_tags=InputTags(allow_nan=True, string=True),
        )

    def fit(
        self,
        table: Any,
        y: Any = None,
        group: Sequence[int] | None = None,
        *,
        validation: Any = None,
        pairs: Sequence[tuple[int, int]] | None = None,
        progress: bool | None = None,
    ) -> "Ranker":
        """Learn from labelled rows; returns the ranker.

        table: see `softrank_ext.tables`, or an array (rows, features). y: (rows,) labels, if they are not a column.
        group: sizes of consecutive groups, if they are not a column. validation: another table, or (table, y, group),
        whose groups stop training early. pairs: (better row, worse row) of one group each, in place of labels.
        progress: show a bar; None for one on terminals. Ctrl-C ends training and keeps the best so far.
        """
        self._check_parameters()
        columns, _ = read_table(table)
        groups = groups_of(columns, None if group is not None else self.group, group)
        if len(groups.group) == 1:
            raise ValueError("the table has one row (1 sample): there is nothing to learn")
        features = self._features_in(columns)
        preprocessing = Preprocessing.fitted(columns, features)
        items = preprocessing.items(columns, groups.group)
        if pairs is not None:
            data = data_of_pairs(items, groups, pairs)
        else:
            data = RankingData(items, self._levels(columns, y, groups), groups)
        held_out = None
        if validation is not None:
            held_out = self._validation_data(validation, preprocessing)
        learnable = data.informative()
        if not learnable:
            raise ValueError("no group has rows with different labels: there is nothing to learn")
        known = data.levels[~np.isnan(data.levels)]
        self._name_features(features)
        self.preprocessing_ = preprocessing
        self.label_range_ = (float(known.min()), float(known.max()))
        sizes = [len(rows) for rows in data.groups.rows]  # of pairs: each is a group of two rows
        self.trained_on_ = {"groups": len(sizes), "rows": sum(sizes), "smallest": min(sizes), "largest": max(sizes)}
        folds: list[tuple[list[int], list[int]]] = [(learnable, [])] * self.members
        if held_out is None and len(learnable) > 1:
            folds = folds_of(learnable, self.members, self.seed, data.groups)
        fitted = self._fit_members(data, folds, held_out, sys.stderr.isatty() if progress is None else progress)
        self.members_ = [member for member, _ in fitted]
        self._measure(data, [fold for _, fold in fitted], held_out)
        return self

    def _fit_members(
        self,
        data: RankingData,
        folds: list[tuple[list[int], list[int]]],
        held_out: RankingData | None,
        progress: bool,
    ) -> list[tuple[SoftRankModel, list[int]]]:
        """Members with the groups that each was stopped on."""
        fitted: list[tuple[SoftRankModel, list[int]]] = []
        learning = self._learning()
        with torch.random.fork_rng(devices=[]), tqdm(total=len(folds), unit="member", disable=not progress) as bar:
            for number, (training, watched) in enumerate(folds):
                seed = (self.seed * 1000 + number) % 2**63
                torch.manual_seed(seed)
                member = new_member(self.preprocessing_, learning)
                checked: list[float] = []

                def each_update(done: int, updates: int, loss: float, number: int = number,
                                checked: list[float] = checked) -> None:  # fmt: skip
                    bar.n = round(number + done / updates, 3)
                    if np.isfinite(loss):
                        checked.append(loss)
                        bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
                    bar.refresh() if done % 20 == 0 else None

                validation = None
                if held_out is not None:
                    validation = held_out, watched_of(held_out.informative(), held_out.groups, seed)
                elif watched:
                    validation = data, watched
                try:
                    fit_member(member, data, training, validation, learning, seed, each_update)
                except KeyboardInterrupt:
                    if checked or validation is None:
                        fitted.append((member, watched))
                    if not fitted:
                        raise
                    print("interrupted: the best so far is kept", file=sys.stderr)
                    break
                fitted.append((member, watched))
        return fitted

    def _measure(self, data: RankingData, watched: list[list[int]], held_out: RankingData | None) -> None:
        """Fit the temperatures and write the report, on groups that did not train the members asked about them."""
        if held_out is not None:
            asked = [(self.members_, held_out, held_out.informative())]
            source, measured_data = "validation groups", held_out
        else:
            first_asked: dict[int, int] = {}
            for member, numbers in enumerate(watched):
                for number in numbers:
                    first_asked.setdefault(number, member)
            asked = [
                ([self.members_[member]], data, [one for one, first in first_asked.items() if first == member])
                for member in range(len(self.members_))
            ]
            source, measured_data = "training groups, each by a member that left it out", data
        scored, scores, measured = [], np.zeros(len(measured_data.levels)), []
        for members, source_data, numbers in asked:
            for own, batch in source_data.batches(numbers):
                found = torch.stack([member_scores(member, batch.items, batch.mask) for member in members]).mean(0)
                scored.append((found, batch))
                for row, number in enumerate(own):
                    rows = source_data.groups.rows[number]
                    scores[rows] = found[row, : len(rows)].numpy()
                measured += own
        self.temperatures_ = best_temperatures(scored)
        self.report_ = None
        if measured:
            settings = checked_settings(self.draws, 0.8, self.seed)
            places = places_of(scores, measured_data.groups, self.temperatures_, settings)
            gains = gains_of(measured_data.levels, self.labels, self.label_range_)
            self.report_ = report_of(places, measured_data.levels, gains, measured_data.groups, measured, source)

    def predict(
        self,
        table: Any,
        group: Sequence[int] | None = None,
        *,
        rules: Rule | None = None,
        level: float = 0.8,
        top: int | None = None,
        progress: bool | None = None,
    ) -> Any:
        """The same rows in the same order with the columns place, low, high, p_top1, p_top3 and score.

        place: in the group, from 1. low, high: the places between which the row stands with probability `level`.
        p_top1, p_top3: P(first), P(among the first three). score: P(before another row of its group).
        top: if 10, only ten places are drawn, faster for long groups; the columns are then place, p_top1 and p_top10.
        rules: `Quota("seller", at_most=1, top=3)`, `Constraints` on the rows of every group (numbered from 0), or a
        mapping from groups to Constraints. progress: show a bar; None for one on terminals, after two seconds.
        A DataFrame gives a DataFrame, any other table a dict of columns.
        """
        columns, array = self._read(table)
        settings = checked_settings(self.draws, level, self.seed, top)
        taken = [name for name in settings.columns if name in columns and array is None]
        if taken:
            raise ValueError(f"the table has a column {taken[0]!r} already, which predict would add; rename it")
        is_shown = sys.stderr.isatty() if progress is None else progress
        added = dict(zip(settings.columns, self._answers(columns, group, rules, settings, is_shown), strict=False))
        whole = added if array is not None else {**columns, **added}
        is_frame = type(table).__name__ == "DataFrame"
        if is_frame and type(table).__module__.startswith("pandas"):
            return table.assign(**added)
        return frame_of(whole, like=table) if is_frame else whole

    def score(self, table: Any, y: Any = None, group: Sequence[int] | None = None) -> float:
        """Mean NDCG@10 over groups; those without a relevant row count 1."""
        return self._report_on(table, y, group).ndcg[10]

    def report(self, table: Any = None, y: Any = None, group: Sequence[int] | None = None) -> RankingReport:
        """NDCG, calibration and sharpness on a labelled table; None for the groups that stopped training."""
        self._check_fitted()
        if table is not None:
            return self._report_on(table, y, group)
        if self.report_ is None:
            raise ValueError("one group of training data leaves none to measure on: give report a labelled table")
        return self.report_

    def _report_on(self, table: Any, y: Any, group: Sequence[int] | None) -> RankingReport:
        columns, _ = self._read(table)
        places = Places(*self._answers(columns, group, None, checked_settings(self.draws, 0.8, self.seed)))
        groups = groups_of(columns, None if group is not None else self.group, group)
        levels = self._levels(columns, y, groups)
        every = list(range(len(groups.rows)))
        return report_of(
            places, levels, gains_of(levels, self.labels, self.label_range_), groups, every, "the table given"
        )

    def _read(self, table: Any) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """`read_table` of a table to rank."""
        self._check_fitted()
        columns, array = read_table(table)
        if array is not None and self.features is None and len(columns) != self.n_features_in_:
            raise ValueError(
                f"X has {len(columns)} features, but Ranker is expecting {self.n_features_in_} features as input"
            )
        return columns, array

    def _answers(
        self,
        columns: dict[str, np.ndarray],
        group: Sequence[int] | None,
        rules: Rule | None,
        settings: Settings,
        is_shown: bool = False,
    ) -> tuple[np.ndarray, ...]:
        self._check_fitted()
        if group is None and self.group is not None:
            column_in(columns, self.group)
        groups = groups_of(columns, None if group is not None else self.group, group)
        for name in self.features_:
            column_in(columns, name)
        checked = rules_by_group(rules, columns, groups)
        items = self.preprocessing_.items(columns, groups.group)
        # A row counts half when it is scored and half when it is placed.
        with tqdm(total=len(items), unit="row", unit_scale=True, delay=BAR_DELAY, disable=not is_shown) as bar:
            return answers_of(
                mean_scores(self.members_, items, groups, bar), groups, self.temperatures_, settings, checked, bar
            )

    def save(self, folder: str | Path) -> None:
        """Write the ranker with its preprocessing into a folder; nothing is pickled."""
        self._check_fitted()
        state = {
            "parameters": {**self.get_params(), "features": None if self.features is None else list(self.features)},
            "features": self.features_,
            "preprocessing": self.preprocessing_.to_json(),
            "temperatures": self.temperatures_,
            "label_range": self.label_range_,
            "trained_on": self.trained_on_,
            "report": None if self.report_ is None else self.report_.to_json(),
        }
        save_ranker(folder, state, self.members_)

    @staticmethod
    def load(folder: str | Path) -> "Ranker":
        """The ranker that `save` wrote."""
        state, members = read_ranker(folder)
        try:
            ranker = Ranker(**state["parameters"])
            ranker.preprocessing_ = Preprocessing.from_json(state["preprocessing"])
            for temperature in state["temperatures"]:
                check_positive("temperatures", temperature)
            ranker.temperatures_ = Temperatures(*map(float, state["temperatures"]))
            ranker.label_range_ = (float(state["label_range"][0]), float(state["label_range"][1]))
            ranker.trained_on_ = dict(state["trained_on"])
            ranker.report_ = None if state["report"] is None else RankingReport.from_json(state["report"])
            ranker._name_features(list(state["features"]))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"{Path(folder) / RANKER_FILE} is no ranker: {error!r}") from error
        ranker.members_ = members
        return ranker

    def _name_features(self, features: list[str]) -> None:
        self.features_ = features
        self.n_features_in_ = len(features)
        self.feature_names_in_ = np.array(features, dtype=object)

    def __repr__(self) -> str:
        defaults = {name: parameter.default for name, parameter in inspect.signature(Ranker).parameters.items()}
        given = [f"{name}={value!r}" for name, value in self.get_params().items() if value != defaults[name]]
        if not hasattr(self, "members_"):
            return f"Ranker({', '.join(given)})"
        measured = "" if self.report_ is None else f", NDCG@10 {self.report_.ndcg[10]:.3f} on {self.report_.source}"
        return (
            f"Ranker({', '.join(given)}), {len(self.members_)} member{'s' * (len(self.members_) != 1)} trained on "
            f"{sizes_in_words(**self.trained_on_)}{measured}; "
            f"it reads {self.preprocessing_.described()}"
        )

    def _learning(self) -> Learning:
        return Learning(self.width, self.layers, self.dropout, self.weight_decay, self.learning_rate, self.epochs)

    def _check_parameters(self) -> None:
        check_choice("labels", self.labels, LABELS)
        for name in ("members", "width", "layers", "epochs"):
            check_integer(name, getattr(self, name), 1)
        check_share("dropout", self.dropout)
        check_not_negative("weight_decay", self.weight_decay)
        check_positive("learning_rate", self.learning_rate)
        check_seed(self.seed)
        checked_settings(self.draws, 0.8, self.seed)
        if self.features is not None and (isinstance(self.features, str) or len(self.features) == 0):
            raise ValueError(f"features must be a list of column names, got {self.features!r}")

    def _check_fitted(self) -> None:
        if not hasattr(self, "members_"):
            raise _not_fitted()

    def _features_in(self, columns: dict[str, np.ndarray]) -> list[str]:
        if self.features is None:
            found = [name for name in columns if name not in (self.group, self.label)]
            if not found:
                raise ValueError("the table has no column beside group and label to rank by")
            return found
        for name in self.features:
            column_in(columns, name)
            if name in (self.group, self.label):
                raise ValueError(f"features must not name the group or the label, got {name!r}")
        return list(self.features)

    def _levels(self, columns: dict[str, np.ndarray], y: Any, groups: Groups) -> np.ndarray:
        if y is None:
            if self.label is None:
                raise ValueError(
                    "Ranker requires y to be passed, but the target y is None; or name the column: Ranker(label=...)"
                )
            return levels_of(columns, self.label, self.labels, groups)
        given = np.asarray(unmasked(y))
        if given.shape != (len(groups.group),):
            raise ValueError(f"y must be ({len(groups.group)},), a label per row, got {given.shape}")
        return levels_of({"y": given}, "y", self.labels, groups)

    def _validation_data(self, validation: Any, preprocessing: Preprocessing) -> RankingData:
        given = validation if isinstance(validation, tuple) else (validation,)
        if not 1 <= len(given) <= 3:
            raise ValueError(f"validation must be a table, or a tuple (table, y, group), got a tuple of {len(given)}")
        table, y, group = (*given, None, None)[:3]
        columns, _ = read_table(table)
        groups = groups_of(columns, None if group is not None else self.group, group)
        data = RankingData(preprocessing.items(columns, groups.group), self._levels(columns, y, groups), groups)
        if not data.informative():
            raise ValueError("validation must have a group with different labels, it has none")
        return data


def _parameter_names() -> list[str]:
    return list(inspect.signature(Ranker.__init__).parameters)[1:]


def _not_fitted() -> Exception:
    message = "this Ranker is not fitted: call fit, or Ranker.load"
    sklearn = sys.modules.get("sklearn.exceptions")
    return ValueError(message) if sklearn is None else sklearn.NotFittedError(message)
