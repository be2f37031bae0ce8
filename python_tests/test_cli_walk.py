"""`softrank walk`."""

import json

import pytest

from softrank_ext.cli.main import main


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
        (["--items", "0"], "items must be an integer of at least 1, got 0"),
        (["--steps", "0"], "sampling_steps must be an integer of at least 1, got 0"),
        (["--process.noise-scale", "-1"], "noise_scale must be at least 0 and finite, got -1.0"),
        (["--output", "no/such/folder/walk.png"], "No such file or directory"),
    ],
)
def test_walk_says_what_is_wrong(arguments, message, capsys):
    pytest.importorskip("matplotlib")
    assert main(["walk", *arguments]) == 2
    assert message in capsys.readouterr().err
