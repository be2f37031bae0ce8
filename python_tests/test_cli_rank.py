"""`softrank rank`."""

import csv
import io
import json

import numpy as np
import pytest

from softrank_ext.cli.main import main
from softrank_ext.ranking import members
from softrank_ext.tables import write_csv


@pytest.fixture(autouse=True)
def few_updates(monkeypatch):
    monkeypatch.setattr(members, "FEWEST_UPDATES", 30)
    monkeypatch.setattr(members, "MOST_UPDATES", 30)
    monkeypatch.setattr(members, "CHECKS", 3)


def written(path, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=40)
    columns = {
        "query": np.repeat([f"q{number}" for number in range(8)], 5),
        "x": x,
        "seller": rng.choice(["a", "b", "c"], 40),
        "grade": np.clip(np.round(x + 1), 0, 3).astype(int),
    }
    for start in range(0, 40, 5):
        columns["seller"][start : start + 3] = ["a", "b", "c"]
    write_csv(columns, path)
    return path


def test_train_and_rank(tmp_path, capsys):
    train, new, model = written(tmp_path / "train.csv"), written(tmp_path / "new.csv", 1), tmp_path / "model"
    words = ["rank", str(train), "--group", "query", "--label", "grade", "--features", "x", "--output", str(model)]
    assert main([*words, "--report", str(tmp_path / "none" / "report.html")]) == 2
    assert "none is not a folder: make it first" in capsys.readouterr().err and not model.exists()
    assert main([*words, "--report", str(tmp_path / "report.html")]) == 0
    assert '"title":"Ranking of train.csv"' in (tmp_path / "report.html").read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert "5 members trained on 8 groups of 5 rows" in said and f"saved in {model}" in said
    assert main(["rank", str(new), "--model", str(model)]) == 0
    out = capsys.readouterr()
    assert "5 members" in out.err  # which model answers
    rows = list(csv.DictReader(io.StringIO(out.out)))
    assert list(rows[0]) == ["query", "x", "seller", "grade", "place", "low", "high", "p_top1", "p_top3", "score"]
    assert [row["query"] for row in rows] == [row["query"] for row in csv.DictReader(new.read_text().splitlines())]
    assert sorted(int(row["place"]) for row in rows[:5]) == [1, 2, 3, 4, 5]
    assert (
        main(["rank", str(new), "--model", str(model), "--quota", "seller:1:3", "--ranked", str(tmp_path / "r.csv")])
        == 0
    )
    ranked = list(csv.DictReader((tmp_path / "r.csv").read_text().splitlines()))
    for start in range(0, 40, 5):
        top = [row["seller"] for row in ranked[start : start + 5] if int(row["place"]) <= 3]
        assert len(set(top)) == 3
    capsys.readouterr()
    assert main(["rank", str(new), "--model", str(model), "--top", "2"]) == 0
    first = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(first[0])[4:] == ["place", "p_top1", "p_top2"]
    assert [row["place"] for row in first] == [row["place"] for row in rows]
    assert main(["rank", str(new), "--model", str(model), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [str(place) for place in told["rows"]["place"]] == [row["place"] for row in rows]
    assert main([*words[:-1], str(tmp_path / "again"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["output"] == str(tmp_path / "again") and "ndcg" in told["report"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give --output FOLDER to train a ranker, or --model FOLDER to rank with one"),
        (["--output", "m"], "training needs --label"),
        (["--output", "m", "--label", "grad"], "did you mean 'grade'?"),
        (["--output", "m", "--label", "grade", "--quota", "a:1:3"], "--quota, --ranked and --top are for ranking"),
        (["--model", "m", "--label", "grade"], "--label is for training"),
        (["--model", "none"], "ranker.json is missing"),
    ],
)
def test_errors(words, said, tmp_path, capsys):
    assert main(["rank", str(written(tmp_path / "train.csv")), *words]) == 2
    assert said in capsys.readouterr().err


def test_bad_quota(tmp_path, capsys):
    train, model = written(tmp_path / "train.csv"), tmp_path / "model"
    assert main(["rank", str(train), "--label", "grade", "--features", "x", "--output", str(model)]) == 0
    assert main(["rank", str(train), "--model", str(model), "--quota", "seller"]) == 2
    assert "--quota must be written like seller:1:3, got 'seller'" in capsys.readouterr().err


def test_where_to_write_is_checked_before_the_work(tmp_path, capsys, monkeypatch):
    train, model = written(tmp_path / "train.csv"), tmp_path / "model"
    words = ["rank", str(train), "--group", "query", "--label", "grade", "--features", "x"]
    assert main([*words, "--output", str(model)]) == 0
    monkeypatch.setattr("softrank_ext.ranking.Ranker.fit", None)  # not asked
    monkeypatch.setattr("softrank_ext.ranking.Ranker.predict", None)
    before = train.read_text()

    def error_of(*words):
        capsys.readouterr()
        assert main([*map(str, words)]) == 2
        return capsys.readouterr().err

    assert f"{train} is a file: a ranker is saved in a folder" in error_of(*words, "--output", train)
    assert f"{tmp_path / 'no'} is not a folder: make it first" in error_of(
        "rank", train, "--model", model, "--ranked", tmp_path / "no" / "r.csv"
    )
    assert "train.csv is read here: write to another file" in error_of(
        "rank", train, "--model", model, "--ranked", train
    )
    assert "train.csv is read here" in error_of(*words, "--output", tmp_path / "other", "--report", train)
    assert train.read_text() == before
