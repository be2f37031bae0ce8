"""`softrank walk`: what it writes, and that the path drawn is one path of the bridge."""

import json

import pytest
import torch

from softrank_ext.cli.main import main
from softrank_ext.cli.walk import draw_walk


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
        (["--steps", "0"], "sampling_steps must be an integer of at least 1, got 0"),
        (["--noise-scale", "-1"], "noise_scale must be at least 0 and finite, got -1.0"),
        (["--output", "no/such/folder/walk.png"], "No such file or directory"),
    ],
)
def test_walk_says_what_is_wrong(arguments, message, capsys):
    pytest.importorskip("matplotlib")
    assert main(["walk", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_walk_runs_from_the_grid_to_the_prior():
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
