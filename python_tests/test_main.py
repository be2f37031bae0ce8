"""The command line, called as a function and once as a process."""

import json
import subprocess
import sys

import pytest
import torch

import softrank_ext
from softrank_ext.__main__ import draw_walk, main


def test_info_prints_aligned_lines_and_json(capsys, monkeypatch):
    info_with_gaps = softrank_ext.build_info() | {"cuda_architectures": ""}
    monkeypatch.setattr("softrank_ext.__main__.build_info", lambda: info_with_gaps)
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    width = max(map(len, names))
    assert all(line[width : width + 2] == "  " and line[width + 2] != " " for line in lines)
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert list(info) == names
    assert info["torch_running"] == torch.__version__


def test_module_runs_as_a_process(tmp_path):
    # In tmp_path: `-m` looks into the current folder first, and the source tree need not be compiled.
    command = [sys.executable, "-m", "softrank_ext", "info", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "version" in json.loads(done.stdout)


def test_walk_writes_a_picture_and_prints_both_orders(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "walk.png"
    assert main(["walk", "--items", "5", "--steps", "10", "--seed", "3", "--output", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for line in printed.splitlines()[:2]:
        assert sorted(json.loads(line.split(": ")[1])) == [0, 1, 2, 3, 4]
    assert str(picture) in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--items", "0"], "--items must be at least 1, got 0"),
        (["--steps", "0"], "steps must be an integer of at least 1, got 0"),
        (["--noise-scale", "-1"], "noise_scale must be at least 0, got -1.0"),
        (["--output", "no/such/folder/walk.png"], "No such file or directory"),
    ],
)
def test_walk_says_what_is_wrong(arguments, message, capsys):
    pytest.importorskip("matplotlib")
    assert main(["walk", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_unknown_command_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        main(["wlak"])
    assert "walk" in capsys.readouterr().err


def test_walk_runs_from_the_grid_to_the_reference():
    times, soft_ranks = draw_walk(6, 50, noise_scale=0.5, seed=1)
    assert (times[0], times[-1], len(times)) == (0.0, 1.0, 51)
    torch.testing.assert_close(soft_ranks[0].sort().values, torch.linspace(0, 1, 6))
    assert bool(((soft_ranks >= 0) & (soft_ranks <= 1)).all())


def test_walk_is_one_path():
    """A path's steps have deviation noise_scale / sqrt(steps); independent marginals would jump by about 0.3."""
    _, soft_ranks = draw_walk(200, 400, noise_scale=0.5, seed=0)
    steps = soft_ranks.diff(dim=0)
    assert float(steps.abs().max()) < 6 * 0.5 / 20
    expected = 0.5 / 20
    inner = steps[100:300].square().mean().sqrt()
    assert 0.9 * expected < float(inner) < 1.1 * expected


def test_walk_without_noise_is_the_straight_line():
    times, soft_ranks = draw_walk(7, 4, noise_scale=0.0, seed=2)
    share = torch.tensor(times)[:, None]
    torch.testing.assert_close(soft_ranks, (1 - share) * soft_ranks[0] + share * soft_ranks[-1])
