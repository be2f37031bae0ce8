"""`softrank tour`: the files that it writes, what it prints, and its errors."""

import json

import pytest

from softrank_ext.cli.main import main

STOPS = "name;lat;lon\ndepot;52,37;4,89\nMill;52,09;5,12\nInn;51,92;4,48\nFarm;52,07;4,30\n"


@pytest.fixture
def stops(tmp_path):
    (tmp_path / "stops.csv").write_text("\ufeff" + STOPS, encoding="utf-8")
    (tmp_path / "pairs.csv").write_text("pickup,delivery\nFarm,Mill\n")
    return tmp_path


def test_a_page_and_files(stops, capsys):
    outputs = [stops / f"tour.{ending}" for ending in ("html", "csv", "geojson")]
    words = ["tour", str(stops / "stops.csv"), "--start", "depot", "--pairs", str(stops / "pairs.csv")]
    assert main([*words, "--seconds", "0.1", "--output", *map(str, outputs)]) == 0
    told = capsys.readouterr().err
    assert "Tour(closed, 4 places, length " in told and "by search alone" in told and "No tour" in told
    names = [line.split(",")[1] for line in outputs[1].read_text().splitlines()[1:]]
    assert names[0] == "depot" and names.index("Farm") < names.index("Mill")
    assert len(json.loads(outputs[2].read_text())["features"]) == 5
    assert "Tour of stops" in outputs[0].read_text(encoding="utf-8")


def test_without_output_the_stops_are_printed(stops, capsys):
    words = ["--open", "--start", "depot", "--end", "Mill", "--group", "Inn,Farm", "--seconds", "0.1"]
    assert main(["tour", str(stops / "stops.csv"), *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "place,name,row,lat,lon,leg,so_far" and lines[1].startswith("0,depot,")
    assert lines[-1].startswith("3,Mill,1,52.09,5.12,,")


def test_pictures(stops):
    pytest.importorskip("matplotlib")
    assert main(["tour", str(stops / "stops.csv"), "--seconds", "0.1", "--output", str(stops / "tour.png")]) == 0
    assert (stops / "tour.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("words", "message"),
    (
        (["--start", "moon"], "start must name a place, 'moon' is no place"),
        (["--output", "tour.docx"], "output must end in .html, .csv, .geojson, .png, .svg, .pdf, got tour.docx"),
        (["--output", "nowhere/tour.csv"], "nowhere is not a folder: make it first"),
        (["--metric", "plane"], "must have a column 'x' or 'easting'"),
        (["--pairs", "nothing.csv"], "nothing.csv is missing"),
        (["--end", "Mill"], "--end needs --open: a closed tour ends where it starts"),
    ),
)
def test_errors(stops, capsys, words, message):
    assert main(["tour", str(stops / "stops.csv"), *words]) == 2
    assert message in capsys.readouterr().err


def test_a_metric_that_cannot_be_told_must_be_given(tmp_path, capsys):
    (tmp_path / "stops.csv").write_text("a,b\n0,1\n1,0\n")
    assert main(["tour", str(tmp_path / "stops.csv")]) == 2
    assert "--metric must be given: " in capsys.readouterr().err


def test_what_is_read_is_not_written_over(stops, capsys, monkeypatch):
    monkeypatch.chdir(stops)
    before = [(stops / name).read_bytes() for name in ("stops.csv", "pairs.csv")]
    for name in ("stops.csv", str(stops / "pairs.csv")):
        words = ["--pairs", "pairs.csv", "--seconds", "0.1", "--output", name]
        assert main(["tour", str(stops / "stops.csv"), *words]) == 2
        assert f"{name} is read here: write to another file" in capsys.readouterr().err
    assert [(stops / name).read_bytes() for name in ("stops.csv", "pairs.csv")] == before
