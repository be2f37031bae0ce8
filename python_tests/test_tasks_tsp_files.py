"""Files of tours: read, written, generated and solved."""

import itertools
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from softrank_ext import metrics
from softrank_ext.tasks import tsp_files
from softrank_ext.tasks.tsp_files import generate, read_instances, solve, write_instances

REAL = os.environ.get("SOFTRANK_DATA", "")


def test_reads_the_text_format(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("0.5 0.25 0 1 1e-1 0 output 2 3 1 2 \n\n0 0 1 0 1 1 output 3 1 2 3\n")
    points, order = read_instances(path)
    assert points.dtype == torch.float64 and points[0].tolist() == [[0.5, 0.25], [0, 1], [0.1, 0]]
    assert order.tolist() == [[1, 2, 0], [2, 0, 1]]


def test_writing_and_reading_keeps_every_bit(tmp_path):
    points = torch.rand(3, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order = torch.tensor([[1, 3, 2, 0, 4]] * 3)
    write_instances(tmp_path / "a.txt", points, order)
    read_points, read_order = read_instances(tmp_path / "a.txt")
    assert torch.equal(points, read_points) and torch.equal(order, read_order)
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0 1 0 1 1 output 1 2 3", r"line 1 must be x1 y1 .* got 6 coordinates and 3 nodes"),
        ("0 0 1 0 1 1", r"line 1 must be x1 y1 .* got 6 coordinates and 0 nodes"),
        ("0 0 1 0 1 1 output 1 2 3 2", "line 1 must be x1 y1"),
        ("0 0 1 zero output 1 2 1", "line 1: could not convert string to float: 'zero'"),
        ("0 0 1 0 1 1 output 1 3 3 1", "tours of .* must hold each of 0 to 2 once per row"),
        ("0 0 1 0 output 1 2 1\n0 0 1 0 1 1 output 1 2 3 1", "line 2 has 3 nodes, those before have 2"),
        ("0 0 1 nan 1 1 output 1 2 3 1", "line 1 must have finite coordinates, got '0 0 1 nan 1 1'"),
        ("", "has no instances"),
    ],
)
def test_broken_files_are_refused(tmp_path, line, message):
    path = tmp_path / "broken.txt"
    path.write_text(line)
    with pytest.raises(ValueError, match=message):
        read_instances(path)


def test_missing_file_says_which_command_makes_it(tmp_path):
    with pytest.raises(
        FileNotFoundError, match="is missing: make such a file with `python -m softrank_ext generate tsp`"
    ):
        read_instances(tmp_path / "none.txt")


def shortest(points):
    """Length of the best tour, by trying all."""
    tours = torch.tensor([(0, *rest) for rest in itertools.permutations(range(1, len(points)))])
    return metrics.tour_length(points.expand(len(tours), -1, -1), tours).min()


@pytest.mark.parametrize("num_nodes", [1, 2, 3, 7])
def test_small_instances_are_solved_exactly(num_nodes):
    points = torch.rand(num_nodes, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(num_nodes))
    tour = solve(points)
    assert sorted(tour.tolist()) == list(range(num_nodes)) and tour[0] == 0
    if num_nodes > 1:
        torch.testing.assert_close(metrics.tour_length(points[None], tour[None])[0], shortest(points))


def test_generate_makes_a_file_that_can_be_read(tmp_path):
    path = generate(tmp_path / "new" / "tsp6.txt", 7, 6, seed=3, block=3, progress=False)
    points, order = read_instances(path)
    assert points.shape == (7, 6, 2) and (order[:, 0] == 0).all() and points.unique().numel() == 84
    assert torch.equal(points, (points * 1e6).round() / 1e6)
    lengths = metrics.tour_length(points, order)
    torch.testing.assert_close(lengths, torch.stack([shortest(instance) for instance in points]))
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["tsp6.txt", "tsp6.txt.json"]


def test_generate_goes_on_where_it_stopped_and_makes_the_same_file(tmp_path, monkeypatch):
    path, solved = tmp_path / "tsp9.txt", []
    true_search = tsp_files.iterated_local_search

    def searched(points, *args, **options):
        solved.append(len(points))
        if len(solved) == stop_at:
            raise RuntimeError("stopped")
        return true_search(points, *args, **options)

    options = {"seed": 1, "rounds": 3, "block": 3, "progress": False}
    monkeypatch.setattr(tsp_files, "iterated_local_search", searched)
    stop_at = 3
    with pytest.raises(RuntimeError, match="stopped"):
        generate(path, 8, 9, **options)
    assert not path.exists() and len(list(tmp_path.glob("tsp9.txt.0*"))) == 2
    solved.clear()
    stop_at = 0
    generate(path, 8, 9, **options)
    assert solved == [2]
    threads = torch.get_num_threads()
    torch.set_num_threads(3 - min(threads, 2))  # one, or two where there was one
    again = generate(tmp_path / "again.txt", 8, 9, **options)
    torch.set_num_threads(threads)
    assert path.read_bytes() == again.read_bytes()
    assert path.read_bytes() != generate(tmp_path / "other.txt", 8, 9, **{**options, "seed": 2}).read_bytes()
    solved.clear()
    assert generate(path, 8, 9, **options) == path and solved == []
    assert json.loads((tmp_path / "tsp9.txt.json").read_text()) == {
        "count": 8, "num_nodes": 9, "seed": 1, "rounds": 3, "block": 3
    }  # fmt: skip


def test_ctrl_c_ends_generate(tmp_path, monkeypatch):
    true_search = tsp_files.iterated_local_search

    def interrupted(*args, **options):
        return replace(true_search(*args, **options), is_interrupted=True)

    monkeypatch.setattr(tsp_files, "iterated_local_search", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generate(tmp_path / "tsp.txt", 2, 5, progress=False)
    assert [entry.name for entry in tmp_path.iterdir()] == ["tsp.txt.json"]


def test_generate_errors(tmp_path):
    path = tmp_path / "tsp.txt"
    for name, arguments in (("count", (0, 5)), ("num_nodes", (5, 0))):
        with pytest.raises(ValueError, match=f"{name} must be an integer of at least 1, got 0"):
            generate(path, *arguments)
    with pytest.raises(ValueError, match="block must be an integer of at least 1, got 0"):
        generate(path, 1, 5, block=0)
    with pytest.raises(ValueError, match="rounds must be an integer of at least 0, got -1"):
        generate(path, 1, 5, rounds=-1)
    with pytest.raises(ValueError, match=r"seed must be a 64-bit integer, got 1\.5"):
        generate(path, 1, 5, seed=1.5)
    path.write_text("mine")
    with pytest.raises(ValueError, match="exists and was not made by generate: choose another name"):
        generate(path, 1, 5)
    other = tmp_path / "other.txt"
    generate(other, 1, 5, progress=False)
    with pytest.raises(ValueError, match=r"was made with .* not with .* choose another name or delete it"):
        generate(other, 2, 5)
    with pytest.raises(ValueError, match=r"points must be a \(N, 2\) tensor of .* float64, got \(3,\) float32"):
        solve(torch.rand(3))
    with pytest.raises(ValueError, match=r"points must lie in the unit square, got a coordinate of 2\.0"):
        solve(torch.tensor([[0.5, 2.0]]))
    with pytest.raises(ValueError, match="rounds must be an integer of at least 0, got -2"):
        solve(torch.rand(3, 2), rounds=-2)


@pytest.mark.skipif(not REAL, reason="needs SOFTRANK_DATA, a folder with tsp/")
@pytest.mark.parametrize(("name", "mean"), [("tsp20_uniform*", 3.844806), ("tsp50_concorde*", 5.674132)])
def test_real_tours_and_the_solver(name, mean):
    (path,) = Path(REAL, "tsp").glob(name)
    points, order = read_instances(path)
    best = metrics.tour_length(points, order)
    assert best.mean().item() == pytest.approx(mean, abs=1e-6)
    found = torch.stack([solve(instance) for instance in points[:60]])
    gap = metrics.gap(metrics.tour_length(points[:60], found), best[:60])
    assert gap.mean() < 1e-4 and (gap < 1e-6).double().mean() > 0.9
