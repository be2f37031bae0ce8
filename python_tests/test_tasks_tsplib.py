"""TSPLIB: its distance rules by hand and by the published optima."""

import csv
import os
from pathlib import Path

import pytest
import torch

from softrank_ext import metrics
from softrank_ext.tasks.tsp import TSP
from softrank_ext.tasks.tsplib import read_tsplib, read_tsplib_tour, tsplib_batch

REAL = os.environ.get("SOFTRANK_DATA", "")


def write(folder, fields, section, lines, name="a.tsp"):
    path = folder / name
    path.write_text("\n".join([*(f"{key} : {value}" for key, value in fields.items()), section, *lines, "EOF", ""]))
    return path


COORDINATES = ["1 0.0 0.0", "3 10.0 0.0", "2 3.0 4.6"]


def test_euclidean_rounds_to_the_nearest(tmp_path):
    fields = {"NAME": "three", "DIMENSION": 3, "EDGE_WEIGHT_TYPE": "EUC_2D"}
    instance = read_tsplib(write(tmp_path, fields, "NODE_COORD_SECTION", COORDINATES))
    assert instance.name == "three" and instance.points.tolist() == [[0, 0], [3, 4.6], [10, 0]]
    # sqrt(9 + 21.16) = 5.49, sqrt(49 + 21.16) = 8.38
    assert instance.distances.tolist() == [[0, 5, 10], [5, 0, 8], [10, 8, 0]]


def test_pseudo_euclidean_rounds_up(tmp_path):
    fields = {"DIMENSION": 3, "EDGE_WEIGHT_TYPE": "ATT"}
    instance = read_tsplib(write(tmp_path, fields, "NODE_COORD_SECTION", COORDINATES))
    # sqrt(30.16 / 10) = 1.74, sqrt(100 / 10) = 3.16, sqrt(70.16 / 10) = 2.65
    assert instance.distances.tolist() == [[0, 2, 4], [2, 0, 3], [4, 3, 0]]
    assert instance.name == "a"


def test_geographical_by_hand(tmp_path):
    fields = {"DIMENSION": 2, "EDGE_WEIGHT_TYPE": "GEO"}
    # A degree and a half of latitude, 1.30 in degrees and minutes: 6378.388 * 1.5 * 3.141592 / 180 = 166.98 km, + 1.
    instance = read_tsplib(write(tmp_path, fields, "NODE_COORD_SECTION", ["1 0.0 7.0", "2 1.30 7.0"]))
    assert instance.distances.tolist() == [[0, 167], [167, 0]]


@pytest.mark.parametrize(
    ("form", "numbers"),
    [
        ("FULL_MATRIX", "0 1 2 1 0 3 2 3 0"),
        ("UPPER_ROW", "1 2 3"),
        ("LOWER_ROW", "1 2 3"),
        ("UPPER_DIAG_ROW", "0 1 2 0 3 0"),
        ("LOWER_DIAG_ROW", "0 1 0 2 3 0"),
    ],
)
def test_tables(tmp_path, form, numbers):
    fields = {"DIMENSION": 3, "EDGE_WEIGHT_TYPE": "EXPLICIT", "EDGE_WEIGHT_FORMAT": form}
    instance = read_tsplib(write(tmp_path, fields, "EDGE_WEIGHT_SECTION", numbers.split()))
    assert instance.distances.tolist() == [[0, 1, 2], [1, 0, 3], [2, 3, 0]] and instance.points is None


def test_tours(tmp_path):
    path = write(tmp_path, {"TYPE": "TOUR", "DIMENSION": 3}, "TOUR_SECTION", ["2 3", "1", "-1"])
    assert read_tsplib_tour(path).tolist() == [1, 2, 0]


def test_batch_is_scored_by_the_table(tmp_path):
    fields = {"DIMENSION": 3, "EDGE_WEIGHT_TYPE": "EUC_2D"}
    instance = read_tsplib(write(tmp_path, fields, "NODE_COORD_SECTION", COORDINATES))
    batch = tsplib_batch(instance, torch.tensor([1, 2, 0]))
    torch.testing.assert_close(batch.items, torch.tensor([[[0, 0], [0.3, 0.46], [1.0, 0]]]), atol=1e-6, rtol=0)
    assert batch.first.tolist() == [1] and batch.extras["best_length"].tolist() == [23.0]
    scores = TSP().score(batch, torch.tensor([[1, 0, 2]]))
    assert scores["length"].tolist() == [23] and scores["gap"].tolist() == [0.0] and scores["validity"].tolist() == [1]


@pytest.mark.parametrize(
    ("fields", "section", "lines", "message"),
    [
        ({"DIMENSION": 1, "EDGE_WEIGHT_TYPE": "XRAY1"}, "NODE_COORD_SECTION", [], "TYPE must be one of EUC_2D"),
        ({"EDGE_WEIGHT_TYPE": "ATT"}, "NODE_COORD_SECTION", [], "DIMENSION must be a positive integer, got ''"),
        ({"DIMENSION": 2, "EDGE_WEIGHT_TYPE": "ATT"}, "TOUR_SECTION", [], "NODE_COORD_SECTION is missing"),
        (
            {"DIMENSION": 2, "EDGE_WEIGHT_TYPE": "ATT"}, "NODE_COORD_SECTION", ["1 0 0"],
            "NODE_COORD_SECTION must have 2 lines of three numbers, got 3 numbers",
        ),
        (
            {"DIMENSION": 2, "EDGE_WEIGHT_TYPE": "EXPLICIT"}, "EDGE_WEIGHT_SECTION", ["1"],
            "EDGE_WEIGHT_FORMAT must be one of FULL_MATRIX, .* got ''",
        ),
        (
            {"DIMENSION": 3, "EDGE_WEIGHT_TYPE": "EXPLICIT", "EDGE_WEIGHT_FORMAT": "UPPER_ROW"}, "EDGE_WEIGHT_SECTION",
            ["1 2"], "UPPER_ROW of 3 nodes must have 3 numbers, got 2",
        ),
        (
            {"DIMENSION": 2, "EDGE_WEIGHT_TYPE": "EXPLICIT", "EDGE_WEIGHT_FORMAT": "FULL_MATRIX"},
            "EDGE_WEIGHT_SECTION", ["0 1 2 0"], "the table must be symmetric",
        ),
        # What would be left out without a word.
        (
            {"TYPE": "CVRP", "DIMENSION": 3, "EDGE_WEIGHT_TYPE": "EUC_2D"}, "NODE_COORD_SECTION", COORDINATES,
            r"TYPE must be TSP, got 'CVRP'",
        ),
        (
            {"DIMENSION": 3, "EDGE_WEIGHT_TYPE": "EUC_2D"}, "NODE_COORD_SECTION",
            [*COORDINATES, "FIXED_EDGES_SECTION", "1 2", "-1"],
            "its sections must be among NODE_COORD_SECTION, .*, got FIXED_EDGES_SECTION",
        ),
        (
            {"DIMENSION": 3, "EDGE_WEIGHT_TYPE": "EUC_2D"}, "NODE_COORD_SECTION",
            [*COORDINATES[:1], "NODE_COORD_SECTION", *COORDINATES[1:]],
            "NODE_COORD_SECTION must be there once, line 5 has it again",
        ),
        (
            {"DIMENSION": 2, "EDGE_WEIGHT_TYPE": "EUC_2D", "DIMENSION ": 3}, "NODE_COORD_SECTION", COORDINATES,
            "DIMENSION must be there once, line 3 has it again",
        ),
    ],
)  # fmt: skip
def test_broken_instances_are_refused(tmp_path, fields, section, lines, message):
    with pytest.raises(ValueError, match=message):
        read_tsplib(write(tmp_path, fields, section, lines))


def test_other_errors(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.tsp is missing"):
        read_tsplib(tmp_path / "none.tsp")
    (tmp_path / "text.tsp").write_text("hello\n")
    with pytest.raises(ValueError, match="is not a TSPLIB file: a line before the first section is 'hello'"):
        read_tsplib(tmp_path / "text.tsp")
    with pytest.raises(ValueError, match="TOUR_SECTION is missing"):
        read_tsplib_tour(write(tmp_path, {"DIMENSION": 3}, "NODE_COORD_SECTION", COORDINATES))
    with pytest.raises(ValueError, match="DIMENSION is 4, got 3 nodes"):
        read_tsplib_tour(write(tmp_path, {"DIMENSION": 4}, "TOUR_SECTION", ["2 3 1 -1"]))
    with pytest.raises(ValueError, match="must hold each of 0 to 2 once"):
        read_tsplib_tour(write(tmp_path, {"DIMENSION": 3}, "TOUR_SECTION", ["2 3 2 -1"]))
    for word in ("x", "1.0", "1_0", "9" * 30, "-2", "0"):
        with pytest.raises(ValueError, match=rf"\.tour: TOUR_SECTION must hold numbers of nodes, got '{word}'"):
            read_tsplib_tour(write(tmp_path, {}, "TOUR_SECTION", ["1 2", word, "-1"]).rename(tmp_path / "a.tour"))
    with pytest.raises(ValueError, match="TOUR_SECTION must end with -1, got 3 behind it"):
        read_tsplib_tour(write(tmp_path, {}, "TOUR_SECTION", ["1 2 -1", "3"]))
    with pytest.raises(ValueError, match="TOUR_SECTION must have at least one node"):
        read_tsplib_tour(write(tmp_path, {}, "TOUR_SECTION", ["-1"]))
    fields = {"NAME": "table", "DIMENSION": 2, "EDGE_WEIGHT_TYPE": "EXPLICIT", "EDGE_WEIGHT_FORMAT": "UPPER_ROW"}
    with pytest.raises(ValueError, match="table has no coordinates for a model to read"):
        tsplib_batch(read_tsplib(write(tmp_path, fields, "EDGE_WEIGHT_SECTION", ["1"])), torch.tensor([0, 1]))


@pytest.mark.skipif(not REAL, reason="needs SOFTRANK_DATA, a folder with tsplib/")
def test_published_optima():
    folder = Path(REAL, "tsplib")
    rows = list(csv.DictReader((folder / "optima.csv").open()))
    assert len(rows) == 25 and {row["edge_weight_type"] for row in rows} == {"EUC_2D", "ATT", "GEO", "EXPLICIT"}
    for row in rows:
        instance, tour = read_tsplib(folder / f"{row['name']}.tsp"), read_tsplib_tour(folder / row["tour_file"])
        assert instance.edge_weight_type == row["edge_weight_type"]
        length = metrics.matrix_tour_length(instance.distances[None], tour[None])
        assert length.tolist() == [int(row["optimal_length"])], row["name"]
        if instance.points is not None:
            batch = tsplib_batch(instance, tour)
            assert batch.items.min() == 0 and batch.items.max() == 1


@pytest.mark.parametrize("size", ["1000000000", "9" * 5000, "²", "-3", "0"])
def test_a_dimension_is_not_believed(tmp_path, size):
    path = tmp_path / "a.tsp"
    path.write_text(f"DIMENSION : {size}\nEDGE_WEIGHT_TYPE : EXPLICIT\nEDGE_WEIGHT_FORMAT : FULL_MATRIX\n")
    with pytest.raises(ValueError, match=r"DIMENSION must be (a positive integer|at most 10000), got"):
        read_tsplib(path)
    path.write_text(
        "DIMENSION : 9999\nEDGE_WEIGHT_TYPE : EXPLICIT\nEDGE_WEIGHT_FORMAT : UPPER_ROW\nEDGE_WEIGHT_SECTION\n1\n"
    )
    with pytest.raises(ValueError, match="UPPER_ROW of 9999 nodes must have 49985001 numbers, got 1"):
        read_tsplib(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2 nan 0", r"NODE_COORD_SECTION must hold numbers of at most 1e\+12 in size, got nan at node 2"),
        ("2 0 1e400", r"NODE_COORD_SECTION must hold numbers of at most 1e\+12 in size, got inf at node 2"),
        ("2 0 1e13", r"NODE_COORD_SECTION must hold numbers of at most 1e\+12 in size, got 1e\+13 at node 2"),
        ("2 1_0 0", "NODE_COORD_SECTION must hold numbers, got '1_0'"),
        ("2 x 0", "NODE_COORD_SECTION must hold numbers, got 'x'"),
        ("1 3 0", "NODE_COORD_SECTION must number its nodes 1 to 3, each once"),
    ],
)
def test_wrong_coordinates(tmp_path, line, message):
    """Some became distances of -9223372036854775808."""
    fields = {"DIMENSION": 3, "EDGE_WEIGHT_TYPE": "EUC_2D"}
    with pytest.raises(ValueError, match=message):
        read_tsplib(write(tmp_path, fields, "NODE_COORD_SECTION", ["1 0 0", line, "3 1 1"]))


@pytest.mark.parametrize("word", ("9" * 30, "x", "1_0", "1.5", "-" + "9" * 30))
def test_wrong_weights(tmp_path, word):
    fields = {"DIMENSION": 2, "EDGE_WEIGHT_TYPE": "EXPLICIT", "EDGE_WEIGHT_FORMAT": "UPPER_ROW"}
    with pytest.raises(ValueError, match=f"EDGE_WEIGHT_SECTION must hold integers below 2\\^53 in size, got '{word}'"):
        read_tsplib(write(tmp_path, fields, "EDGE_WEIGHT_SECTION", [word]))
