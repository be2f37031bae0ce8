"""Rank the rows of a table."""

import itertools
import json
import math
import os
import pickle
import re
import signal
import threading

import numpy as np
import pandas
import polars
import pytest
import scipy.sparse
import torch

from softrank_ext import Constraints, Quota, Ranker, noise
from softrank_ext.permutations import ranks_of
from softrank_ext.ranking import RankingReport, members, ranker_folder
from softrank_ext.ranking import groups as groups_module
from softrank_ext.ranking.groups import (
    FEWEST_WATCHED,
    MOST_WATCHED,
    GroupBatch,
    Groups,
    RankingData,
    data_of_pairs,
    drawn_orders,
    folds_of,
    groups_of,
    read_table,
    watched_of,
)
from softrank_ext.ranking.law import GroupLaw, Temperatures, best_temperatures
from softrank_ext.ranking.members import member_scores
from softrank_ext.ranking.places import (
    FirstPlaces,
    GroupRules,
    Settings,
    answers_of,
    places_of,
    rules_by_group,
    with_quota,
)
from softrank_ext.ranking.preprocessing import Preprocessing, places_in_groups
from softrank_ext.ranking.report import ndcg_of, places_of_levels, report_of
from softrank_ext.tables import write_csv

SMALL = {"members": 2, "width": 16, "epochs": 1, "learning_rate": 0.01, "dropout": 0.1, "draws": 200}


@pytest.fixture(scope="module", autouse=True)
def few_updates():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(members, "FEWEST_UPDATES", 60)
        patch.setattr(members, "CHECKS", 6)
        yield


def hotels(groups=40, seed=0):
    """A table whose grade rises with stars and falls with the price, which is huge and sometimes missing."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, groups)
    query = np.repeat([f"q{number}" for number in range(groups)], sizes)
    price, stars = rng.lognormal(12, 1, len(query)), rng.integers(1, 6, len(query)).astype(float)
    city = rng.choice(["Bonn", "Rom", "Wien"], len(query))
    worth = stars - 1.5 * np.log(price) + 2.0 * (city == "Rom") + rng.normal(0, 0.3, len(query))
    grade = np.clip(np.round(worth + 18), 0, 4)
    price[rng.random(len(price)) < 0.05] = np.nan
    seller = rng.choice(["a", "b", "c", "d"], len(query))
    return {"query": query, "price": price, "stars": stars, "city": city, "grade": grade, "seller": seller}


FEATURES = ["price", "stars", "city"]


@pytest.fixture(scope="module")
def ranker(few_updates):
    return Ranker(FEATURES, "query", "grade", **SMALL).fit(pandas.DataFrame(hotels()))


def check_places(out, query):
    for name in np.unique(query):
        own = np.asarray(query) == name
        n = own.sum()
        assert sorted(out["place"][own]) == list(range(1, n + 1))
        assert (out["low"][own] >= 1).all() and (out["high"][own] <= n).all()
        assert (out["low"][own] <= out["high"][own]).all()
        assert math.isclose(out["p_top1"][own].sum(), 1, abs_tol=1e-6)
        assert math.isclose(out["p_top3"][own].sum(), min(3, n), abs_tol=1e-6)
        assert ((out["score"][own] >= 0) & (out["score"][own] <= 1)).all()


def test_fit_and_predict(ranker):
    new = pandas.DataFrame(hotels(30, seed=1)).sample(frac=1, random_state=0)  # groups need not stand together
    out = ranker.predict(new)
    assert isinstance(out, pandas.DataFrame) and out.index.equals(new.index)
    assert list(out.columns) == [*new.columns, "place", "low", "high", "p_top1", "p_top3", "score"]
    assert out[list(new.columns)].equals(new)
    check_places({name: out[name].to_numpy() for name in out}, new["query"].to_numpy())
    assert ranker.score(new) > 0.9  # 0.75 by chance
    shuffled = new.assign(grade=np.random.default_rng(0).permutation(new["grade"]))
    assert ranker.score(shuffled) < ranker.score(new) - 0.05


def test_every_kind_of_table_gives_the_same_answer(ranker, tmp_path):
    new = hotels(10, seed=2)
    frame = pandas.DataFrame(new)
    wanted = ranker.predict(frame)["p_top3"].to_numpy()
    np.testing.assert_array_equal(ranker.predict(new)["p_top3"], wanted)
    out = ranker.predict(polars.DataFrame(new))
    assert isinstance(out, polars.DataFrame)
    np.testing.assert_array_equal(out["p_top3"].to_numpy(), wanted)
    for separator, encoding in ((",", "utf-8"), (";", "utf-8-sig")):
        frame.to_csv(tmp_path / "new.csv", index=False, sep=separator, encoding=encoding)
        np.testing.assert_allclose(ranker.predict(tmp_path / "new.csv")["p_top3"], wanted)


def test_arrays_with_group_sizes():
    rng = np.random.default_rng(0)
    X, sizes = rng.normal(size=(60, 3)), [6] * 10
    y = (X[:, 0] > 0).astype(int) + (X[:, 0] > 1)
    ranker = Ranker(labels="grades", **SMALL).fit(X, y, sizes)
    out = ranker.predict(X, sizes)
    assert list(out) == ["place", "low", "high", "p_top1", "p_top3", "score"]
    check_places(out, np.repeat(np.arange(10), 6))
    assert ranker.score(X, y, sizes) > 0.95
    with pytest.raises(ValueError, match=r"group must be sizes of at least 1 that sum to the 60 rows, got \[6, 6\]"):
        ranker.predict(X, [6, 6])
    with pytest.raises(ValueError, match=r"y must be \(60,\), a label per row, got \(59,\)"):
        ranker.fit(X, y[:-1], sizes)
    with pytest.raises(ValueError, match="an array of rows must be 2-d, got 1-d"):
        ranker.predict(X[0])


def chances_of_orders(scores, temperatures):
    """Every order with its probability, pick by pick."""
    chances = {}
    for order in itertools.permutations(range(len(scores))):
        chance, left = 1.0, list(order)
        for place, item in enumerate(order):
            divisor = temperatures[0] if place < 3 else temperatures[1]
            chance *= math.exp(scores[item] / divisor) / sum(math.exp(scores[other] / divisor) for other in left)
            left.remove(item)
        chances[order] = chance
    return chances


@pytest.mark.parametrize("temperatures", [(1.5, 1.5), (0.6, 2.5)])
def test_places_of_scores_are_those_of_their_law(temperatures):
    """Against all orders: P(first), P(top 3), the mean place, intervals, the consensus."""
    scores = np.array([0.3, 1.2, -0.5, 0.9, -1.4])
    N, probability = len(scores), chances_of_orders(scores, temperatures)
    ranks = np.zeros((N, N))  # item by place
    for order, p in probability.items():
        ranks[order, np.arange(N)] += p

    def disagreement(order):
        return sum(
            p
            for other, p in probability.items()
            for a, b in itertools.combinations(order, 2)
            if other.index(a) > other.index(b)
        )

    consensus = min(probability, key=disagreement)
    groups = Groups([np.arange(N)], ["g"], np.zeros(N, dtype=int))
    found = places_of(scores, groups, Temperatures(*temperatures), Settings(20_000, 0.8, 0))
    np.testing.assert_allclose(found.p_top1, ranks[:, 0], atol=1e-12)
    np.testing.assert_allclose(found.p_top3, ranks[:, :3].sum(1), atol=0.015)
    near = 1e-12 if temperatures[0] == temperatures[1] else 0.003  # else the draws say how often neither is in the top
    np.testing.assert_allclose(found.score, 1 - ranks @ np.arange(N) / (N - 1), atol=near)
    assert np.argsort(found.place).tolist() == list(consensus) == np.argsort(-found.score).tolist()
    for item in range(N):
        inside = sum(ranks[item][found.low[item] - 1 : found.high[item]])
        assert inside > 0.79 and math.isclose(inside, found.p_inside[item], abs_tol=0.015)


@pytest.mark.parametrize("temperatures", [(1.5, 1.5), (0.6, 2.5)])
def test_first_places_are_those_of_whole_draws(temperatures):
    """The same draws, cut: 40 rows, so that only the earliest are looked for; with rules whole orders are cut."""
    scores = np.random.default_rng(0).normal(size=40)
    groups = Groups([np.arange(40)], ["g"], np.zeros(40, dtype=int))
    law = GroupLaw(torch.from_numpy(scores)[None], Temperatures(*temperatures))
    whole = law.drawn(noise.uniform(3, torch.arange(500), 0, 40, stream=noise.PICK_STREAM, dtype=torch.float64)[None])
    for top in (1, 3, 5, 20, 40, 50):
        settings = Settings(500, 0.8, 3, top)
        found = answers_of(scores, groups, Temperatures(*temperatures), settings)
        assert isinstance(found, FirstPlaces)
        among = (whole[0, :, :top, None] == torch.arange(40)).any(1).double().mean(0)
        np.testing.assert_allclose(found.p_top, among.numpy(), atol=1e-12)
        np.testing.assert_allclose(found.p_top1, law.p_first[0].numpy(), atol=1e-12)
        assert found.place.tolist() == ranks_of(law.mode)[0].add(1).tolist()
    rules = GroupRules(Quota("seller", 1, 2), np.arange(40) % 2)
    ruled = answers_of(scores, groups, Temperatures(*temperatures), Settings(500, 0.8, 3, 2), rules)
    assert isinstance(ruled, FirstPlaces)
    assert ruled.p_top[::2].sum() == pytest.approx(1) == ruled.p_top[1::2].sum()  # one of each


def test_only_the_first_places(ranker):
    table = hotels(30, seed=1)
    found, whole = ranker.predict(table, top=3), ranker.predict(table)
    assert [name for name in found if name not in table] == ["place", "p_top1", "p_top3"]
    for name in ("place", "p_top1"):
        assert np.array_equal(found[name], whole[name])
    np.testing.assert_allclose(found["p_top3"], whole["p_top3"], atol=1e-12)
    assert "p_top1" in ranker.predict(table, top=1) and "p_top10" in ranker.predict(table, top=10)
    with pytest.raises(ValueError, match="top must be an integer of at least 1, got 0"):
        ranker.predict(table, top=0)
    with pytest.raises(ValueError, match="the table has a column 'p_top7' already"):
        ranker.predict({**table, "p_top7": table["stars"]}, top=7)


def test_draws_have_the_law_of_the_two_temperatures():
    scores = torch.tensor([[0.3, 1.2, -0.5, 0.9, -1.4]], dtype=torch.float64)
    probability = chances_of_orders(scores[0].tolist(), (0.6, 2.5))
    uniform = torch.rand(1, 50_000, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def surprise(temperatures):
        drawn, counts = GroupLaw(scores, temperatures).drawn(uniform)[0].unique(dim=0, return_counts=True)
        wanted = np.array([probability[tuple(order)] for order in drawn.tolist()]) * 50_000
        is_frequent = wanted > 5
        return float(((counts.numpy() - wanted) ** 2 / wanted)[is_frequent].sum() - is_frequent.sum())

    assert surprise(Temperatures(0.6, 2.5)) < 4 * math.sqrt(2 * 120)  # chi-square of at most 120 cells
    assert surprise(Temperatures(0.6, 1.25)) > 400
    assert surprise(Temperatures(0.7, 2.5)) > 400
    far = GroupLaw(torch.tensor([[0.0, -900.0, -2000.0, 5.0, -1000.0]]).double(), Temperatures(0.5, 1.0))
    assert far.drawn(uniform[:, :10])[0, :, :2].tolist() == [[3, 0]] * 10
    assert far.drawn(uniform[:, :10]).sort(2).values.eq(torch.arange(5)).all()


def test_the_top_may_be_surer_than_the_rest():
    """Labels whose lower half ties: one temperature cannot hold for both ends, two do."""
    rng = np.random.default_rng(0)
    B, N = 1500, 10
    scores = 2 * rng.normal(size=(B, N))
    worth = scores + 0.7 * rng.normal(size=(B, N))
    levels = np.where(worth > np.median(worth), worth, -9.0).ravel()
    groups = Groups([*np.arange(B * N).reshape(B, N)], [str(b) for b in range(B)], np.repeat(np.arange(B), N))
    data = RankingData(np.zeros((B * N, 1), dtype=np.float32), levels, groups)
    half = list(range(B // 2))
    found = best_temperatures([(torch.from_numpy(scores[: B // 2]), data.batch(half))])
    assert found.rest > 1.5 * found.first
    errors = []
    for temperatures in (found, Temperatures(found.rest, found.rest)):
        places = places_of(scores.ravel(), groups, temperatures, Settings(300, 0.8, 0))
        report = report_of(places, levels, np.ones(B * N), groups, list(range(B // 2, B)), "x")
        errors.append((report.p_top1.error, report.p_top3.error))
    assert max(errors[0]) < 0.02 and errors[1][1] > 0.03


def test_answers_of_a_group_do_not_depend_on_other_groups(ranker):
    new = pandas.DataFrame(hotels(6, seed=3))
    first = new[new["query"] == "q0"]
    together, alone = ranker.predict(new), ranker.predict(first)
    np.testing.assert_allclose(together.loc[first.index, "p_top1"], alone["p_top1"], atol=1e-6)
    np.testing.assert_array_equal(together.loc[first.index, "low"], alone["low"])


def test_quota(ranker):
    new = pandas.DataFrame({**hotels(20, seed=4)})
    new = new[new.groupby("query")["seller"].transform("nunique") >= 3]
    out = ranker.predict(new, rules=Quota("seller", at_most=1, top=3))
    plain = ranker.predict(new)
    check_places({name: out[name].to_numpy() for name in out}, new["query"].to_numpy())
    top, plain_top = out[out["place"] <= 3], plain[plain["place"] <= 3]
    assert top.groupby(["query", "seller"]).size().max() == 1
    assert plain_top.groupby(["query", "seller"]).size().max() > 1  # the rule was needed
    one = pandas.DataFrame(hotels(3, seed=5)).assign(query="q", seller="a")
    with pytest.raises(ValueError, match=r"rules cannot be kept in group 'q': at most 1 of a seller leaves 1 row for"):
        ranker.predict(one, rules=Quota("seller"))
    with pytest.raises(ValueError, match="no column 'shop'"):
        ranker.predict(new, rules=Quota("shop"))
    with pytest.raises(TypeError, match="rules must be Quota, Constraints, or a mapping"):
        ranker.predict(new, rules=["seller"])
    with pytest.raises(ValueError, match="at_most must be an integer of at least 1, got 0"):
        Quota("seller", at_most=0)


def test_with_quota_takes_the_next_row_that_keeps_it():
    order = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    codes = np.array([7, 7, 8, 7, 9])
    found = with_quota(order, codes, Quota("x", at_most=1, top=3))
    assert found.tolist() == [[0, 2, 4, 1, 3], [4, 3, 2, 1, 0]]
    assert with_quota(order, codes, Quota("x", at_most=2, top=3)).tolist() == [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]]


def test_constraints(ranker):
    new = pandas.DataFrame({"query": ["q"] * 4 + ["r"] * 2, "price": [9e5, 1e4, 5e4, 2e5, 1e5, 1e4],
                            "stars": [1.0, 5, 4, 3, 2, 5], "city": ["Bonn"] * 6})  # fmt: skip
    assert ranker.predict(new)["place"].iloc[0] == 4
    out = ranker.predict(new, rules={"q": Constraints(pins={0: 0}, before=[(3, 1)])})
    q = out[out["query"] == "q"]
    assert q["place"].iloc[0] == 1 and q["low"].iloc[0] == q["high"].iloc[0] == 1 and q["p_top1"].iloc[0] == 1
    assert q["place"].iloc[3] < q["place"].iloc[1]
    np.testing.assert_array_equal(out["place"].iloc[4:], ranker.predict(new)["place"].iloc[4:])
    with pytest.raises(ValueError, match="contradict each other"):
        ranker.predict(new, rules={"q": Constraints(before=[(0, 1), (1, 0)])})
    with pytest.raises(ValueError, match="rules must map groups of the table to Constraints, got 'z'"):
        ranker.predict(new, rules={"z": Constraints()})
    everywhere = ranker.predict(new, rules=Constraints(before=[(0, 1)]))
    assert everywhere["place"].iloc[0] < everywhere["place"].iloc[1]
    assert everywhere["place"].iloc[4] < everywhere["place"].iloc[5]


def test_ties_are_interchangeable():
    levels = torch.tensor([[1.0, 2.0, 1.0, math.nan, 1.0, math.nan]], dtype=torch.float64)
    batch = GroupBatch(torch.zeros(1, 6, 1), torch.tensor([[True] * 5 + [False]]), levels)
    generator = torch.Generator().manual_seed(0)
    seen = {}
    for _ in range(600):
        order, known = drawn_orders(batch, generator)
        assert known.tolist() == [4]  # the row without a level, and padding, are not known
        assert order[0, 0] == 1 and order[0, 4] == 3 and order[0, 5] == 5
        seen[tuple(order[0, 1:4].tolist())] = seen.get(tuple(order[0, 1:4].tolist()), 0) + 1
    assert set(seen) == set(itertools.permutations((0, 2, 4)))
    assert all(60 < count < 140 for count in seen.values())  # 100 expected, deviation 9


@pytest.mark.parametrize("labels", ["places", "top", "clicks", "pairs"])
def test_every_kind_of_label(labels):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6))
    table = {"x": x.ravel(), "g": np.repeat(np.arange(40), 6)}
    place = (-x).argsort(1).argsort(1) + 1.0
    options = {"group": "g", **SMALL}
    if labels == "pairs":
        rows = np.arange(240).reshape(40, 6)
        pairs = [(rows[g, i], rows[g, j]) if x[g, i] > x[g, j] else (rows[g, j], rows[g, i])
                 for g in range(40) for i, j in ((0, 1), (2, 3), (4, 5), (0, 5))]  # fmt: skip
        ranker = Ranker(**options).fit(table, pairs=pairs)
    else:
        y = {"places": place, "top": np.where(place <= 2, place, np.nan), "clicks": (place == 1).astype(int)}[labels]
        kind = "clicks" if labels == "clicks" else "places"
        ranker = Ranker(label="y", labels=kind, **options).fit({**table, "y": y.ravel()})
    new = {"x": np.array([0.1, -2.0, 2.0, 1.0]), "g": np.zeros(4, dtype=int)}
    place = ranker.predict(new)["place"].tolist()
    assert place == [3, 4, 1, 2] or (labels in ("clicks", "top") and place.index(1) == 2)  # the top is all they tell
    assert ranker.report().ndcg[10] > 0.9


def test_bad_labels():
    table = {"x": [1.0, 2, 3, 4], "g": [0, 0, 1, 1]}
    with pytest.raises(ValueError, match="column 'y' must have clicks, 0 or 1, got 2 in row 1"):
        Ranker(group="g", label="y", labels="clicks").fit({**table, "y": [0, 2, 0, 1]})
    with pytest.raises(ValueError, match="column 'y' must have places from 1, got -1 in row 3"):
        Ranker(group="g", label="y", labels="places").fit({**table, "y": [1, 2, 1, -1]})
    with pytest.raises(ValueError, match="column 'y' has text in row 2: 'abc'"):
        Ranker(group="g", label="y").fit({**table, "y": ["1", "2", "abc", "1"]})
    with pytest.raises(ValueError, match="column 'y' has no number in row 0"):
        Ranker(group="g", label="y").fit({**table, "y": [None, 2, 1, 1]})
    with pytest.raises(ValueError, match="no group has rows with different labels"):
        Ranker(group="g", label="y").fit({**table, "y": [1, 1, 2, 2]})
    with pytest.raises(ValueError, match="labels must be one of 'grades', 'places', 'clicks', got 'stars'"):
        Ranker(group="g", label="y", labels="stars").fit(table)
    with pytest.raises(ValueError, match=r"requires y to be passed, .* or name the column: Ranker\(label=...\)"):
        Ranker(group="g").fit(table)
    for pairs, match in (
        ([(0, 2)], r"pairs must be of two rows of one group, got \(0, 2\)"),
        ([(0, 9)], "pairs must name rows from 0 to 3, got 0 to 9"),
        ([0, 1], r"pairs must be a list of \(better row, worse row\)"),
    ):
        with pytest.raises(ValueError, match=match):
            Ranker(group="g").fit(table, pairs=pairs)


def test_bad_tables(ranker):
    good = hotels(5)
    for change, match in (
        ({"price": np.full(len(good["price"]), np.inf)}, "column 'price' must have finite numbers, got inf in row 0"),
        ({"query": [None, *good["query"][1:]]}, "column 'query' has no group in row 0"),
        ({"stars": ["x", *good["stars"][1:]]}, "column 'stars' has text in row 0: 'x'"),
    ):
        with pytest.raises(ValueError, match=match):
            ranker.predict({**good, **change})
    empty = {name: values[:0] for name, values in good.items()}
    with pytest.raises(ValueError, match="the table has no rows"):
        ranker.predict(empty)
    with pytest.raises(ValueError, match="the table has no rows"):
        Ranker(FEATURES, "query", "grade").fit(empty)
    with pytest.raises(ValueError, match="the table has no column 'stars', it has"):
        ranker.predict({name: values for name, values in good.items() if name != "stars"})
    with pytest.raises(ValueError, match=r"no column 'prize'.*; did you mean 'price'"):
        Ranker(["prize"], "query", "grade").fit(good)
    with pytest.raises(ValueError, match="features must not name the group or the label, got 'grade'"):
        Ranker(["grade"], "query", "grade").fit(good)
    with pytest.raises(ValueError, match="features must be a list of column names, got 'price'"):
        Ranker("price", "query", "grade").fit(good)
    with pytest.raises(ValueError, match="has a column 'place' already"):
        ranker.predict({**good, "place": good["stars"]})
    with pytest.raises(ValueError, match="no feature differs between training rows: 'same'"):
        Ranker(["same"], "query", "grade").fit({**good, "same": np.ones(len(good["price"]))})
    with pytest.raises(ValueError, match="no column beside group and label"):
        Ranker(None, "query", "grade").fit({"query": good["query"], "grade": good["grade"]})
    with pytest.raises(ValueError, match="validation must have a group with different labels"):
        Ranker(FEATURES, "query", "grade").fit(good, validation={**good, "grade": np.ones(len(good["grade"]))})


def test_group_sizes_are_limited():
    long = {"x": np.arange(1001.0), "y": np.arange(1001) % 3}
    with pytest.raises(ValueError, match="a group may have up to 1000 rows, 'all rows' has 1001; name the column"):
        Ranker(label="y").fit(long)
    columns, _ = read_table({"g": np.arange(10**6) // 10})
    groups = groups_of(columns, "g", None)  # a million rows
    assert len(groups.rows) == 10**5 and groups.rows[7].tolist() == list(range(70, 80))


def test_one_group_and_one_row(ranker):
    one = {"price": [1e5], "stars": [3.0], "city": ["Rom"], "query": ["q"]}
    out = ranker.predict(one)
    assert [out[name].tolist() for name in ("place", "low", "high", "p_top1", "p_top3", "score")] == [[1]] * 6
    x = np.random.default_rng(0).normal(size=300)  # longer than an update sees
    alone = Ranker(label="y", **SMALL).fit({"x": x, "y": np.round(x)})
    assert alone.score({"x": x, "y": np.round(x)}) > 0.95
    with pytest.raises(ValueError, match="one group of training data leaves none to measure on"):
        alone.report()


def test_unseen_and_missing_values(ranker):
    new = pandas.DataFrame(hotels(5, seed=6)).assign(city="Paris")
    new.loc[0, "city"] = None
    new.loc[1, ["price", "stars"]] = np.nan
    assert np.isfinite(ranker.predict(new)["p_top1"]).all()


def test_validation_table():
    table, other = hotels(30), hotels(10, seed=7)
    ranker = Ranker(FEATURES, "query", "grade", **SMALL).fit(table, validation=other)
    report = ranker.report()
    assert report.source == "validation groups" and report.groups <= 10
    X, sizes = np.random.default_rng(0).normal(size=(40, 2)), [4] * 10
    fitted = Ranker(**SMALL).fit(X, X[:, 0].round(), sizes, validation=(X, X[:, 0].round(), sizes))
    assert fitted.report().groups == 10


def test_the_scale_of_a_column_does_not_matter():
    table = hotels(20)
    scaled = {**table, "price": table["price"] * 1e9}
    a, b = (
        Ranker(FEATURES, "query", "grade", **{**SMALL, "members": 1}).fit(one).predict(one)["place"]
        for one in (table, scaled)
    )
    np.testing.assert_array_equal(a, b)


def test_save_and_load(ranker, tmp_path):
    ranker.save(tmp_path / "model")
    loaded = Ranker.load(tmp_path / "model")
    assert loaded.get_params() == ranker.get_params() and repr(loaded) == repr(ranker)
    new = hotels(8, seed=8)
    for name, column in ranker.predict(new).items():
        np.testing.assert_array_equal(loaded.predict(new)[name], column)
    assert loaded.report() == ranker.report()
    with pytest.raises(FileNotFoundError, match=r"ranker\.json is missing"):
        Ranker.load(tmp_path)
    Ranker(**{**ranker.get_params(), "seed": 5, "members": 1}).fit(hotels(10)).save(tmp_path / "other")
    (own,), (other,) = ((tmp_path / name).glob("member-0-*") for name in ("model", "other"))
    own.rename(tmp_path / "away")
    other.rename(own)
    with pytest.raises(ValueError, match=r"member-0-\w+ does not belong to .*ranker\.json"):
        Ranker.load(tmp_path / "model")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "ranker.json").write_text(json.dumps({"format": 7}))
    with pytest.raises(ValueError, match=r"ranker\.json is no ranker: format must be 1, got 7"):
        Ranker.load(broken)
    with pytest.raises(ValueError, match="this Ranker is not fitted: call fit"):
        Ranker().save(tmp_path / "none")


def test_a_save_that_breaks_off_leaves_the_ranker_that_was_there(ranker, tmp_path, monkeypatch):
    folder, new = tmp_path / "model", hotels(8, seed=8)
    ranker.save(folder)
    members_before = sorted(path.name for path in folder.glob("member-*"))
    other = Ranker(**{**ranker.get_params(), "seed": 5, "members": 1}).fit(hotels(10))

    def full(*given):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ranker_folder, "save_files", full)
        with pytest.raises(OSError, match="No space left"):
            other.save(folder)
    np.testing.assert_array_equal(Ranker.load(folder).predict(new)["place"], ranker.predict(new)["place"])
    (folder / "member-0-new-0123abcd").mkdir()  # of a process that was killed
    other.save(folder)
    np.testing.assert_array_equal(Ranker.load(folder).predict(new)["place"], other.predict(new)["place"])
    left = sorted(path.name for path in folder.glob("member-*"))
    assert len(left) == 1 and left[0] not in members_before  # of what was replaced or broke off nothing is left


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("members", [5]),
        ("members", ["../../etc"]),
        ("members", []),
        ("temperatures", [math.nan, 1.0]),
        ("temperatures", [1.0, -1.0]),
    ],
)
def test_crafted_rankers_are_refused(ranker, tmp_path, name, value):
    ranker.save(tmp_path)
    state = json.loads((tmp_path / "ranker.json").read_text())
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "ranker.json").write_text(json.dumps({**state, name: value}))
    with pytest.raises(ValueError, match=r"ranker\.json is no ranker: .*" + name):
        Ranker.load(tmp_path)


def test_ctrl_c_keeps_the_best_so_far(capsys, monkeypatch):
    monkeypatch.setattr(members, "FEWEST_UPDATES", 10**6)
    monkeypatch.setattr(members, "MOST_UPDATES", 10**6)
    monkeypatch.setattr(members, "CHECKS", 10**5)  # every tenth update
    monkeypatch.setattr(members, "PATIENCE", 10**6)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    checks = []
    real = members.validation_loss

    def counted(*arguments):
        checks.append(real(*arguments))
        if len(checks) == 4:
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
        return checks[-1]

    monkeypatch.setattr(members, "validation_loss", counted)
    try:
        ranker = Ranker(FEATURES, "query", "grade", **SMALL).fit(hotels(20))
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted: the best so far is kept" in capsys.readouterr().err
    assert len(ranker.members_) == 1 and np.isfinite(ranker.score(hotels(20)))


def test_same_seed_same_answer():
    table = hotels(10)
    first, again, other = (
        Ranker(FEATURES, "query", "grade", **{**SMALL, "members": 1}, seed=seed).fit(table).predict(table)["p_top1"]
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    state = torch.random.get_rng_state()
    Ranker(FEATURES, "query", "grade", **SMALL).fit(table)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_report(ranker, tmp_path):
    report = ranker.report(hotels(30, seed=9))
    assert report.groups == 30 and report.source == "the table given" and 0 < report.width < 1
    assert sum(report.p_top1.rows) == report.rows
    assert "NDCG @1" in repr(report) and "calibration error: p_top1" in repr(report)
    assert "<th scope='row'>NDCG@10</th>" in report._repr_html_()
    assert RankingReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert report.to_frame()["name"].tolist()[0] == "ndcg@1"
    report.save_html(tmp_path / "report.html", "A <title>")
    assert '"title":"A \\u003ctitle>"' in (tmp_path / "report.html").read_text(encoding="utf-8")
    report.plot(str(tmp_path / "report.png"))
    assert (tmp_path / "report.png").stat().st_size > 5000


def test_report_of_a_known_law():
    """Labels drawn from the law that is reported on: calibrated; labels against it: not."""
    rng = np.random.default_rng(0)
    B, N = 800, 5
    scores = rng.normal(size=(B, N))
    order = (scores + rng.gumbel(size=(B, N))).argsort(1)[:, ::-1]
    levels = -order.argsort(1).astype(float)
    groups = Groups([*np.arange(B * N).reshape(B, N)], [str(b) for b in range(B)], np.repeat(np.arange(B), N))
    places = places_of(scores.ravel(), groups, Temperatures(1.0, 1.0), Settings(500, 0.8, 0))
    gains = 2.0 ** (levels.ravel() + 4) - 1
    good = report_of(places, levels.ravel(), gains, groups, list(range(B)), "x")
    assert max(good.p_top1.error, good.p_top3.error, good.interval.error) < 0.02
    sure = places_of(scores.ravel(), groups, Temperatures(0.3, 0.3), Settings(500, 0.8, 0))
    bad = report_of(sure, levels.ravel(), gains, groups, list(range(B)), "x")
    assert bad.p_top1.error > 0.05 and bad.ndcg == good.ndcg and bad.width < good.width
    batch = RankingData(np.zeros((B * N, 1), dtype=np.float32), levels.ravel(), groups).batch(range(B))
    for scale in (1, 2):
        found = best_temperatures([(torch.from_numpy(scale * scores), batch)])
        assert 0.9 * scale < found.first < 1.1 * scale and 0.85 * scale < found.rest < 1.15 * scale
    top = data_of_pairs(np.zeros((2, 1)), Groups([np.arange(2)], ["g"], np.zeros(2, dtype=int)), [(0, 1)])
    alone = best_temperatures([(torch.tensor([[1.0, 0.0]]), top.batch([0]))])
    assert alone.first == alone.rest  # nothing is known of later places


def test_ndcg_and_places_of_levels():
    # DCG 3 / log2(2) + 1 / log2(3); the best is that of the same grades sorted.
    assert math.isclose(
        ndcg_of(np.array([2, 1]), np.array([3.0, 1.0]), 10), (1 + 3 / math.log2(3)) / (3 + 1 / math.log2(3))
    )
    assert ndcg_of(np.array([1, 2]), np.zeros(2), 5) == 1
    first, last = places_of_levels(np.array([2.0, 5.0, 2.0, np.nan]))
    assert first.tolist() == [2, 1, 2, 4] and last.tolist() == [3, 1, 3, 4]


def test_places_in_groups():
    values = np.array([10.0, 30, 20, 5, 5, np.nan, 7])
    found = places_in_groups(values, np.array([0, 0, 0, 1, 1, 1, 2]))
    np.testing.assert_allclose(found, [-1 / (3 / 12**0.5), 1 / (3 / 12**0.5), 0, 0, 0, 0, 0])


def test_preprocessing():
    columns = {"a": np.array([1.0, np.nan, 100.0, 1e9]), "b": np.array(["x", "y", None, "x"], dtype=object),
               "c": np.ones(4)}  # fmt: skip
    made = Preprocessing.fitted(columns, ["a", "b", "c"])
    assert [column.name for column in made.numbers] == ["a"] and made.categories[0].values == ["x", "y"]
    items = made.items(columns, np.zeros(4, dtype=int))
    assert items.shape == (4, 4) and items.dtype == np.float32
    assert items[1, 0] == 0 and items[:, 2].tolist() == [0, 1, 0, 0] and items[:, 3].tolist() == [2, 3, 1, 2]
    np.testing.assert_allclose(items[[0, 2, 3], 0].mean(), 0, atol=1e-6)
    unseen = made.items({"a": np.array([-5.0]), "b": np.array(["z"], dtype=object)}, np.zeros(1, dtype=int))
    assert unseen[0, 0] == items[0, 0] and unseen[0, 3] == 0
    assert Preprocessing.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_scores_do_not_depend_on_the_order_of_rows(ranker):
    rng = np.random.default_rng(0)
    items = torch.from_numpy(rng.normal(size=(1, 5, ranker.preprocessing_.num_numbers + 1)).astype(np.float32))
    mask = torch.ones(1, 5, dtype=torch.bool)
    member = ranker.members_[0]
    order = torch.tensor([3, 0, 4, 1, 2])
    scores, shuffled = member_scores(member, items, mask), member_scores(member, items[:, order], mask)
    assert float((scores[:, order] - shuffled).abs().max()) < 0.3 * float(scores.std())
    padded = torch.cat((items, torch.full((1, 2, items.shape[2]), 9.0)), 1)
    found = member_scores(member, padded, torch.tensor([[True] * 5 + [False] * 2]))
    assert found[0, 5:].tolist() == [0, 0] and float((found[:, :5] - scores).abs().max()) < 0.5


def test_rules_by_group_counts_missing_values_as_different():
    columns = {"seller": np.array([None, None, "a"], dtype=object)}
    groups = Groups([np.arange(3)], ["g"], np.zeros(3, dtype=int))
    rules = rules_by_group(Quota("seller"), columns, groups)
    assert len(set(rules.codes.tolist())) == 3


def test_parameters():
    ranker = Ranker(["a"], "g", "y", width=32)
    assert ranker.get_params()["width"] == 32 and ranker.set_params(seed=3).seed == 3
    assert repr(ranker) == "Ranker(features=['a'], group='g', label='y', width=32, seed=3)"
    with pytest.raises(ValueError, match="'depth' is no parameter of Ranker; it has features, group"):
        ranker.set_params(depth=3)
    for change, match in (
        ({"members": 0}, "members must be an integer of at least 1, got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"learning_rate": 0}, "learning_rate must be positive"),
        ({"draws": 1}, "draws must be an integer from 10"),
    ):
        with pytest.raises(ValueError, match=match):
            Ranker(label="grade", **change).fit(hotels(3))
    with pytest.raises(ValueError, match="level must be above 0 and below 1, got 2"):
        Ranker(FEATURES, "query", "grade", **SMALL).fit(hotels(5)).predict(hotels(5), level=2)


# What scikit-learn checks of an estimator that is no ranker.
IS_NO_TABLE_OF_NUMBERS = "predict gives columns, not an array"
IS_PLACED_IN_ITS_GROUP = "a row's place depends on the other rows of its group: a part of the rows is another question"
EXPECTED_FAILURES = {
    "check_complex_data": "complex columns raise a TypeError, as other wrong types do",
    "check_estimators_pickle": IS_NO_TABLE_OF_NUMBERS,
    "check_fit_idempotent": IS_NO_TABLE_OF_NUMBERS,
    "check_methods_sample_order_invariance": IS_PLACED_IN_ITS_GROUP,
    "check_methods_subset_invariance": IS_PLACED_IN_ITS_GROUP,
}


@pytest.mark.filterwarnings("ignore")  # scikit-learn warns of what it expects to fail
def test_scikit_learns_own_checks(monkeypatch):
    checks = pytest.importorskip("sklearn.utils.estimator_checks")
    monkeypatch.setattr(members, "FEWEST_UPDATES", 20)
    ranker = Ranker(**{**SMALL, "members": 1, "width": 8, "draws": 50})
    found = checks.check_estimator(ranker, expected_failed_checks=EXPECTED_FAILURES, on_fail=None)
    failed = [(one["check_name"], one["exception"]) for one in found if one["status"] == "failed"]
    assert not failed
    assert {one["check_name"] for one in found if one["status"] == "xfail"} == set(EXPECTED_FAILURES)
    assert sum(one["status"] == "passed" for one in found) > 30


def test_scikit_learns_tools(ranker):
    sklearn = pytest.importorskip("sklearn")
    from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score

    copy = sklearn.clone(ranker)
    assert copy.get_params() == ranker.get_params() and not hasattr(copy, "members_")
    with pytest.raises(sklearn.exceptions.NotFittedError):
        Ranker().predict(hotels(2))
    table = pandas.DataFrame(hotels(20))
    small = Ranker(FEATURES, "query", "grade", **{**SMALL, "members": 1})
    scores = cross_val_score(small, table, groups=table["query"], cv=GroupKFold(2))
    assert scores.shape == (2,) and (scores > 0.75).all()
    search = GridSearchCV(small, {"dropout": [0.1, 0.9]}, cv=GroupKFold(2)).fit(table, groups=table["query"])
    assert search.best_estimator_.score(table) > 0.8
    restored = pickle.loads(pickle.dumps(ranker))
    pandas.testing.assert_frame_equal(restored.predict(table), ranker.predict(table))


def test_categories_alone():
    shops = np.random.default_rng(0).choice(["good", "fair", "bad"], 120)
    table = {"g": np.repeat(np.arange(30), 4), "shop": shops, "y": (shops == "good") + (shops != "bad")}
    fitted = Ranker(None, "g", "y", **{**SMALL, "members": 1}).fit({**table, "y": table["y"].astype(float)})
    out = fitted.predict({"g": [0, 0, 0, 0], "shop": ["bad", "good", "new", "fair"]})
    assert out["place"][1] == 1 and out["place"][0] > out["place"][3]
    assert "reads shop as categories" in repr(fitted)


def test_early_stopping_looks_at_some_of_many_groups():
    groups = Groups([np.arange(100 * g, 100 * g + 100) for g in range(2000)], list(map(str, range(2000))), np.zeros(0))
    for training, watched in folds_of(range(2000), 5, 0, groups):
        assert len(watched) == MOST_WATCHED // 100 and not set(training) & set(watched)
        assert sorted(training + watched) == list(range(2000))  # the others are trained on
    assert min(watched) < 50 and max(watched) > 1950 and watched_of(range(100), groups, 0) == list(range(100))
    long = Groups([np.arange(1000)] * 300, list(map(str, range(300))), np.zeros(0))
    assert [len(watched) for _, watched in folds_of(range(300), 2, 0, long)] == [FEWEST_WATCHED] * 2
    held_out = watched_of(range(300), long, 0)
    assert len(set(held_out)) == FEWEST_WATCHED and held_out != sorted(held_out)


def test_validation_groups_that_stop_training_are_not_all(monkeypatch):
    monkeypatch.setattr(groups_module, "MOST_WATCHED", 30)
    monkeypatch.setattr(groups_module, "FEWEST_WATCHED", 2)
    looked_at, own = [], members.validation_loss

    def spy(model, data, numbers):
        looked_at.append(len(numbers))
        return own(model, data, numbers)

    monkeypatch.setattr(members, "validation_loss", spy)
    report = Ranker(FEATURES, "query", "grade", **SMALL).fit(hotels(30), validation=hotels(60, seed=1)).report()
    assert max(looked_at) < 25 and report.groups > 30  # the report is on all


def test_what_is_read_is_said(ranker):
    assert repr(ranker).endswith("it reads price, stars as numbers and city as categories")
    X = np.random.default_rng(0).normal(size=(20, 9))
    wide = Ranker(**{**SMALL, "members": 1}).fit(X, X[:, 0].round(), [4] * 5)
    assert "1 member trained on 5 groups of 4 rows, NDCG" in repr(wide)
    alone = Ranker(**{**SMALL, "members": 1}).fit(X, X[:, 0].round())
    assert "1 member trained on 1 group of 20 rows; it reads" in repr(alone)
    assert "x0, x1, x2, x3, x4 and 4 more as numbers" in repr(wide)


def test_rules_name_the_group_that_cannot_keep_them(ranker):
    new = pandas.DataFrame({"query": ["q"] * 4 + ["r"] * 2, "price": np.arange(6.0), "stars": 1, "city": "Rom"})
    with pytest.raises(ValueError, match=r"rules cannot be kept in group 'r': .*3 is not an item"):
        ranker.predict(new, rules=Constraints(before=[(0, 3)]))
    with pytest.raises(ValueError, match=r"rules cannot be kept in group 'q': .*both pinned to place 0"):
        ranker.predict(new, rules={"q": Constraints(pins={0: 0, 1: 0})})


def test_what_is_neither_number_nor_category(ranker):
    table = hotels(4)
    days = np.datetime64("2024-01-01") + np.arange(len(table["price"]))
    with pytest.raises(ValueError, match="column 'day' has dates or durations: count days or seconds, or leave it out"):
        Ranker(["stars", "day"], "query", "grade").fit({**table, "day": days})
    with pytest.raises(ValueError, match="column 'p' must have places from 1, got 0 in row 1"):  # did not finish?
        Ranker(["stars"], "query", "p", labels="places").fit({**table, "p": 1.0 * (np.arange(len(days)) != 1)})
    with pytest.raises(
        ValueError, match=r"validation must be a table, or a tuple \(table, y, group\), got a tuple of 4"
    ):
        Ranker(FEATURES, "query", "grade", **SMALL).fit(table, validation=(table, None, None, 3))


def test_a_text_among_numbers_is_no_category(tmp_path):
    table = hotels(10)
    told = r"column 'price' has text in row 17 among numbers: '12 EUR'; leave that cell empty, or, if these are names"
    price = table["price"].tolist()
    price[17] = "12 EUR"
    with pytest.raises(ValueError, match=told):
        Ranker(["price"], "query", "grade", **SMALL).fit({**table, "price": price})
    write_csv({**table, "price": price}, tmp_path / "table.csv")
    with pytest.raises(ValueError, match=told):
        Ranker(["price"], "query", "grade", **SMALL).fit(tmp_path / "table.csv")
    price[17] = "n/a"
    fitted = Ranker(["price"], "query", "grade", **SMALL).fit({**table, "price": price})
    assert repr(fitted).endswith("it reads price as numbers")
    # Names of which a part are digits stay names.
    names = [f"{number}A" if number % 4 else str(number) for number in range(len(price))]
    assert repr(Ranker(["price"], "query", "grade", **SMALL).fit({**table, "price": names})).endswith("as categories")


def test_arrays_of_another_width():
    X, sizes = np.random.default_rng(0).normal(size=(40, 3)), [4] * 10
    fitted = Ranker(**{**SMALL, "members": 1}).fit(X, X[:, 0].round(), sizes)
    for width in (2, 4):
        with pytest.raises(ValueError, match=f"X has {width} features, but Ranker is expecting 3 features as input"):
            fitted.predict(np.zeros((4, width)), [4])
    for wrong, match in (
        (np.zeros((4, 0)), r"0 feature\(s\) \(shape=\(4, 0\)\) while a minimum of 1"),
        (np.zeros((1, 3)), r"the table has one row \(1 sample\): there is nothing to learn"),
    ):
        with pytest.raises(ValueError, match=match):
            Ranker(**SMALL).fit(wrong, np.zeros(len(wrong)))
    with pytest.raises(TypeError, match=r"got csr_array; sparse tables are not read: give its toarray\(\)"):
        fitted.predict(scipy.sparse.csr_array(X))


def test_progress_bar(capsys, monkeypatch):
    ranker = Ranker(FEATURES, "query", "grade", **{**SMALL, "members": 1}).fit(hotels(5), progress=True)
    assert "member" in capsys.readouterr().err
    monkeypatch.setattr("softrank_ext.ranking.ranker.BAR_DELAY", 0)
    quiet, shown = (ranker.predict(hotels(5), progress=progress) for progress in (False, True))
    assert all(np.array_equal(quiet[name], shown[name]) for name in ("place", "low", "high", "score"))
    rows = len(hotels(5)["query"])
    assert re.search(rf"100%.* {rows}(\.0)?/{rows}", capsys.readouterr().err)


def test_a_file_is_no_place_to_save_in(ranker, tmp_path):
    (tmp_path / "model").write_text("mine")
    for folder in (tmp_path / "model", tmp_path / "model" / "inner"):
        with pytest.raises(ValueError, match=f"{tmp_path / 'model'} is a file: a ranker is saved in a folder"):
            ranker.save(folder)
    assert (tmp_path / "model").read_text() == "mine"


def test_pairs_are_told_as_pairs():
    table = {"x": np.arange(6.0), "y": [0, 1, 0, 1, 1, 0], "q": [1, 1, 1, 2, 2, 2]}
    found = Ranker(["x", "y"], "q", members=1, width=8, epochs=1).fit(table, pairs=[(1, 0), (2, 1), (5, 3), (2, 0)])
    assert "trained on 4 groups of 2 rows" in repr(found)
