"""How good a ranker is on labelled groups: NDCG, whether its probabilities hold, and how much they say."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from softrank_ext import metrics
from softrank_ext.ranking.groups import Groups
from softrank_ext.ranking.places import Places

BINS = 10
CUTS = (1, 5, 10)
HIGHEST_GRADE = 31  # up to which gains are 2^grade - 1


@dataclass(frozen=True)
class Curve:
    """Predicted against observed frequencies, bin by bin; error: the mean over rows of their distance."""

    predicted: list[float]
    observed: list[float]
    rows: list[int]
    error: float


@dataclass(frozen=True)
class RankingReport:
    """What `Ranker.report` returns.

    ndcg, ndcg_error: by the number of first places. p_top1, p_top3, interval: predicted probabilities against what
    happened; of intervals, that the place lies inside. width: of an interval as a share of its group, on average
    (sharpness; 0 if certain). groups, rows: what it was measured on, source says which. Rows that tie share their
    places.
    """

    ndcg: dict[int, float]
    ndcg_error: dict[int, float]
    p_top1: Curve
    p_top3: Curve
    interval: Curve
    width: float
    groups: int
    rows: int
    source: str

    def __repr__(self) -> str:
        ndcg = ", ".join(f"@{k} {self.ndcg[k]:.3f} ± {self.ndcg_error[k]:.3f}" for k in self.ndcg)
        errors = ", ".join(f"{name} {curve.error:.3f}" for name, curve in self._curves())
        return (
            f"RankingReport on {self.source}: {self.groups} groups, {self.rows} rows\n"
            f"  NDCG {ndcg}\n  calibration error: {errors}\n  an interval spans {100 * self.width:.0f} % of its group"
        )

    def _curves(self) -> tuple[tuple[str, Curve], ...]:
        return (("p_top1", self.p_top1), ("p_top3", self.p_top3), ("interval", self.interval))

    def _repr_html_(self) -> str:
        cells = [(f"NDCG@{k}", f"{self.ndcg[k]:.3f} ± {self.ndcg_error[k]:.3f}") for k in self.ndcg]
        cells += [(f"calibration error of {name}", f"{curve.error:.3f}") for name, curve in self._curves()]
        cells += [("width of intervals", f"{100 * self.width:.0f} % of the group")]
        rows = "".join(f"<tr><th scope='row'>{name}</th><td>{value}</td></tr>" for name, value in cells)
        return f"<table><caption>{self.groups} groups of {self.source}</caption>{rows}</table>"

    def to_frame(self) -> Any:
        """One line per number, as a DataFrame."""
        from softrank_ext.tables import frame_of

        names = [f"ndcg@{k}" for k in self.ndcg] + [f"calibration error of {name}" for name, _ in self._curves()]
        values = [*self.ndcg.values(), *(curve.error for _, curve in self._curves()), self.width]
        return frame_of({"name": np.array([*names, "width"], dtype=object), "value": np.array(values)})

    def plot(self, path: str | None = None) -> Any:
        """A matplotlib figure of the three calibration curves and NDCG; written to `path` if one is given."""
        from softrank_ext.show import plot_ranking_report
        from softrank_ext.show.style import save_figure

        figure = plot_ranking_report(self)
        if path is not None:
            save_figure(figure, path)
        return figure

    def save_html(self, path: str | Path, title: str = "Ranking report") -> None:
        """Write a page with calibration, sharpness and NDCG: one file, without network."""
        from softrank_ext.show import ranking_page

        Path(path).write_text(ranking_page(self, title), encoding="utf-8")

    def to_json(self) -> dict[str, Any]:
        """The report as JSON can hold it."""
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "RankingReport":
        """What `to_json` gave."""
        fields = dict(value)
        for name in ("ndcg", "ndcg_error"):
            fields[name] = {int(k): number for k, number in fields[name].items()}
        for name in ("p_top1", "p_top3", "interval"):
            fields[name] = Curve(**fields[name])
        return RankingReport(**fields)


def gains_of(levels: np.ndarray, labels: str, label_range: tuple[float, float]) -> np.ndarray:
    """2^grade - 1; grades beyond 0 to 31, and places, are first brought to 0 to 4 by the range of training."""
    low, high = label_range
    if labels == "places" or low < 0 or high > HIGHEST_GRADE:
        levels = 4 * (levels - low) / max(high - low, 1e-12)
    return np.where(np.isnan(levels), 0.0, 2.0 ** np.clip(levels, 0, HIGHEST_GRADE) - 1)


def ndcg_of(place: np.ndarray, gains: np.ndarray, k: int) -> float:
    """NDCG of the first k places of one group; 1 where no row has a gain. place: (N,) from 1."""
    if not (gains > 0).any():
        return 1.0
    order = torch.from_numpy(np.argsort(place, kind="stable"))
    return float(metrics.ndcg(order, torch.from_numpy(gains), min(k, len(order))))


def places_of_levels(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and last place (N,), from 1, that a row of a group may have: rows that tie share theirs. NaN: below all."""
    known = np.where(np.isnan(levels), -np.inf, levels)
    first = (known[None] > known[:, None]).sum(1) + 1
    last = (known[None] >= known[:, None]).sum(1)
    return first, last


def report_of(
    places: Places, levels: np.ndarray, gains: np.ndarray, groups: Groups, measured: list[int], source: str
) -> RankingReport:
    """The report of the groups of these numbers."""
    rows = np.concatenate([groups.rows[number] for number in measured])
    first, last, sizes = (np.zeros(len(levels)) for _ in range(3))
    for number in measured:
        own = groups.rows[number]
        first[own], last[own] = places_of_levels(levels[own])
        sizes[own] = len(own)

    def share_within(low: Any, high: Any) -> np.ndarray:
        """The share of the places from first to last that lie between low and high."""
        inside = np.clip(np.minimum(last, high) - np.maximum(first, low) + 1, 0, None)
        return np.asarray(inside / np.maximum(last - first + 1, 1))

    found = {k: np.array([ndcg_of(places.place[own], gains[own], k) for own in map(groups.rows.__getitem__, measured)])
             for k in CUTS}  # fmt: skip
    return RankingReport(
        ndcg={k: float(values.mean()) for k, values in found.items()},
        ndcg_error={k: float(values.std() / math.sqrt(max(len(values) - 1, 1))) for k, values in found.items()},
        p_top1=_curve(places.p_top1[rows], share_within(1, 1)[rows]),
        p_top3=_curve(places.p_top3[rows], share_within(1, 3)[rows]),
        interval=_curve(places.p_inside[rows], share_within(places.low, places.high)[rows]),
        width=float(((places.high - places.low) / np.maximum(sizes - 1, 1))[rows].mean()),
        groups=len(measured),
        rows=len(rows),
        source=source,
    )


def _curve(predicted: np.ndarray, observed: np.ndarray) -> Curve:
    which = np.minimum((predicted * BINS).astype(int), BINS - 1)
    rows = np.bincount(which, minlength=BINS)
    divisor = np.maximum(rows, 1)
    mean_predicted = np.bincount(which, predicted, BINS) / divisor
    mean_observed = np.bincount(which, observed, BINS) / divisor
    error = float((np.abs(mean_predicted - mean_observed) * rows).sum() / max(len(predicted), 1))
    return Curve(mean_predicted.tolist(), mean_observed.tolist(), rows.tolist(), error)
