"""Ranker beside LightGBM's LGBMRanker: NDCG in pairs, group by group, calibration, and seconds.

    python bench/ranking.py ltr --data FOLDER
    python bench/ranking.py lists
    python bench/ranking.py speed
    python bench/ranking.py fits --data FOLDER

`ltr`: LightGBM's own example of learning to rank (251 queries, 3,773 documents, 300 features, grades 0 to 4), in five
folds over all queries. `lists`: drawn here; what a row is worth depends on the other rows of its group. Both rankers
get the same rows; LightGBM has the settings of SETTINGS. Queries without a relevant document count 1. `speed`: rows
predicted in a minute. `fits`: seconds to fit both, on the first fold's training groups of both sets. Ranker's defaults
were chosen by cross-validation within the training queries of fold 0 of `ltr`; the test queries of the other folds are
among those, so they took part in that choice.
"""

import argparse
import gzip
import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from timing import fix_threads, machine, timed_once

from softrank_ext import Ranker
from softrank_ext.ranking import members
from softrank_ext.ranking.groups import groups_of
from softrank_ext.ranking.places import Places, Settings
from softrank_ext.ranking.report import CUTS, RankingReport, ndcg_of, report_of

RESULTS = Path(__file__).parent / "results"
FOLDS = 5
SETTINGS: dict[str, Any] = {"n_estimators": 100, "learning_rate": 0.05, "num_leaves": 15, "min_child_samples": 20}


class Rows(NamedTuple):
    """Labelled rows: X (rows, features), y (rows,), and the group (rows,) of each, ascending."""

    X: np.ndarray
    y: np.ndarray
    group: np.ndarray

    def of(self, groups: np.ndarray) -> "Rows":
        """The rows of these groups."""
        own = np.isin(self.group, groups)
        return Rows(self.X[own], self.y[own], self.group[own])

    def sizes(self) -> list[int]:
        """Rows of each group."""
        sizes: list[int] = np.unique(self.group, return_counts=True)[1].tolist()
        return sizes


def read_ltr(folder: Path) -> Rows:
    """The queries of rank.train.gz and then of rank.test.gz."""
    grades, cells, sizes = [], [], []
    for part in ("train", "test"):
        sizes += [int(word) for word in (folder / f"rank.{part}.query").read_text().split()]
        with gzip.open(folder / f"rank.{part}.gz", "rt") as file:
            for line in file:
                grade, *words = line.split()
                grades.append(int(grade))
                cells.append([(int(column), float(value)) for column, value in (word.split(":") for word in words)])
    X = np.zeros((len(grades), max(column for row in cells for column, _ in row)))
    for row, found in enumerate(cells):
        for column, value in found:
            X[row, column - 1] = value
    return Rows(X, np.array(grades), np.repeat(np.arange(len(sizes)), sizes))


def drawn_lists(groups: int = 300, seed: int = 0) -> Rows:
    """Rows that are judged beside each other: a low price within the list, and a maker that is rare in it, count."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(5, 21, groups)
    group = np.repeat(np.arange(groups), sizes)
    level = rng.normal(0, 2, groups)[group]  # a list is cheap or expensive as a whole
    price, quality = level + rng.normal(size=len(group)), rng.normal(size=len(group))
    maker = rng.integers(0, 4, len(group))
    others = np.array([(maker[group == g][:, None] == maker[group == g]).mean(1) for g in range(groups)], dtype=object)
    worth = quality - 1.5 * (price - level) - 3 * np.concatenate(others).astype(float) + rng.normal(0, 0.5, len(group))
    edges = np.quantile(worth, (0.5, 0.75, 0.9, 0.97))
    return Rows(np.stack((price, quality, maker), 1), np.searchsorted(edges, worth), group)


class Compared(NamedTuple):
    """NDCG of test groups, (groups, CUTS), by both; the report of Ranker's probabilities on all of them; seconds."""

    ours: np.ndarray
    lightgbm: np.ndarray
    report: RankingReport
    fit_seconds: list[float]


def compare(data: Rows, folds: list[np.ndarray]) -> Compared:
    """Both rankers on each fold's groups, trained on all others."""
    from lightgbm import LGBMRanker

    parts: list[dict[str, np.ndarray]] = []
    ours, theirs, seconds = [], [], []
    for number, test_groups in enumerate(folds):
        training, test = data.of(np.setdiff1d(data.group, test_groups)), data.of(test_groups)
        ranker = Ranker()
        seconds.append(timed_once(lambda: ranker.fit(training.X, training.y, training.sizes())))  # noqa: B023
        found = Places(*ranker._answers(*_columns(test), None, Settings(ranker.draws, 0.8, ranker.seed)))
        other = LGBMRanker(**SETTINGS, num_threads=1, verbose=-1)
        other.fit(training.X, training.y, group=training.sizes())
        place = (-np.asarray(other.predict(test.X))).argsort(kind="stable")
        ranks = np.empty(len(place))
        ranks[place] = np.arange(len(place))
        for group in np.unique(test.group):
            own, gains = test.group == group, 2.0 ** test.y[test.group == group] - 1
            ours.append([ndcg_of(found.place[own], gains, k) for k in CUTS])
            theirs.append([ndcg_of(ranks[own], gains, k) for k in CUTS])
        parts.append({"y": test.y, "sizes": np.array(test.sizes()), **found._asdict()})
        means = np.mean(ours, 0)[-1], np.mean(theirs, 0)[-1]
        print(f"fold {number}: NDCG@10 so far {means[0]:.4f}, LightGBM {means[1]:.4f}", flush=True)
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    sizes, y = together.pop("sizes").tolist(), together.pop("y").astype(float)
    groups = groups_of({"y": y}, None, sizes)
    report = report_of(type(found)(**together), y, 2.0**y - 1, groups, list(range(len(sizes))), "test groups")
    return Compared(np.array(ours), np.array(theirs), report, seconds)


def _columns(rows: Rows) -> tuple[dict[str, np.ndarray], list[int]]:
    return {f"x{number}": column for number, column in enumerate(rows.X.T)}, rows.sizes()


def lines_of(name: str, found: Compared) -> list[str]:
    """The table of a comparison."""
    lines = [f"{name}: {found.report.groups} test groups, {found.report.rows} rows"]
    for number, k in enumerate(CUTS):
        mine, theirs = found.ours[:, number], found.lightgbm[:, number]
        error = (mine - theirs).std(ddof=1) / math.sqrt(len(mine))
        difference = f"difference {mine.mean() - theirs.mean():+.4f} ± {error:.4f}"
        lines.append(f"  NDCG@{k:<2}  Ranker {mine.mean():.4f}  LightGBM {theirs.mean():.4f}  {difference}")
    report = found.report
    lines.append(
        f"  calibration error: p_top1 {report.p_top1.error:.4f}, p_top3 {report.p_top3.error:.4f}, "
        f"interval {report.interval.error:.4f}; an interval spans {100 * report.width:.0f} % of its group"
    )
    return lines


def speed_lines() -> list[str]:
    """Rows per minute of `predict`, for short and long groups; the fit is short, which does not change the speed."""
    data = drawn_lists(40)
    members.FEWEST_UPDATES = 5
    ranker = Ranker(epochs=1).fit(data.X, data.y, data.sizes())
    lines = []
    for size in (10, 100, 1000):
        X = np.random.default_rng(0).normal(size=(20_000, 3))
        sizes = [size] * (len(X) // size)
        ranker.predict(X[:1000], [size] * (1000 // size))
        seconds = timed_once(lambda: ranker.predict(X, sizes))  # noqa: B023
        lines.append(f"groups of {size:>4} rows: {60 * len(X) / seconds:>10,.0f} rows per minute")
    return lines


def fit_lines(folder: Path) -> list[str]:
    """Seconds to fit both on the training groups of the first fold, all else as in `compare`."""
    from lightgbm import LGBMRanker

    lines = []
    for name, data in (("ltr", read_ltr(folder)), ("lists", drawn_lists())):
        own = data.of(np.setdiff1d(data.group, folds_of(data)[0]))
        given, other = (own.X, own.y), LGBMRanker(**SETTINGS, num_threads=1, verbose=-1)
        seconds = timed_once(lambda: Ranker().fit(*given, own.sizes()))  # noqa: B023
        others = timed_once(lambda: other.fit(*given, group=own.sizes()))  # noqa: B023
        shape = f"{len(own.sizes())} groups, {len(own.y)} rows, {own.X.shape[1]} features"
        lines.append(f"fit to {name} ({shape}): Ranker {seconds:.0f} s, LightGBM {others:.1f} s")
    return lines


def folds_of(data: Rows) -> list[np.ndarray]:
    """The groups of each fold's test."""
    mixed = np.random.default_rng(0).permutation(int(data.group.max()) + 1)
    return [mixed[fold::FOLDS] for fold in range(FOLDS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ltr", "lists", "speed", "fits"))
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SOFTRANK_DATA", ".")) / "ltr")
    parser.add_argument("--folds", type=int, default=FOLDS, help="run only the first so many, and write nothing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    fix_threads(arguments.threads)
    figures: dict[str, Any] = {}
    if arguments.what == "speed":
        lines = speed_lines()
    elif arguments.what == "fits":
        lines = fit_lines(arguments.data)
    else:
        data = read_ltr(arguments.data) if arguments.what == "ltr" else drawn_lists()
        found = compare(data, folds_of(data)[: arguments.folds])
        lines = lines_of(arguments.what, found)
        print(f"seconds per fit: {', '.join(f'{one:.0f}' for one in found.fit_seconds)}")
        figures = {"report": found.report.to_json(), "ours": found.ours.tolist(), "lightgbm": found.lightgbm.tolist()}
    text = "\n".join((*lines, json.dumps(machine()))) + "\n"
    print(text, end="")
    if figures and arguments.folds < FOLDS:
        print(f"{arguments.folds} of {FOLDS} folds: not written")
        return
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / f"ranking_{arguments.what}.txt").write_text(text)
    if figures:
        (arguments.output / f"ranking_{arguments.what}.json").write_text(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
