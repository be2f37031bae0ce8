"""The command line: which command runs, help, errors and exit codes."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import softrank_ext
from softrank_ext.cli.main import COMMANDS, main


def test_module_runs_as_a_process(tmp_path):
    # In tmp_path: `-m` looks into the current folder first, and the source tree need not be compiled.
    command = [sys.executable, "-m", "softrank_ext", "info", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "version" in json.loads(done.stdout)


def test_unknown_command_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["wlak"])
    told = capsys.readouterr().err
    assert exit.value.code == 2
    assert "softrank: error: unknown command 'wlak'; did you mean walk?" in told
    assert all(command in told for command in ("train", "evaluate", "sample", "generate", "download", "info", "walk"))
    with pytest.raises(SystemExit):
        main(["train", "sortin"])
    assert "softrank train: error: unknown command 'sortin'; did you mean sorting?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["generate"])
    assert "softrank generate: error: missing command" in capsys.readouterr().err


@pytest.mark.parametrize("words", (["--help"], ["train", "--help"]))
def test_help_lists_the_commands(words, capsys):
    with pytest.raises(SystemExit) as exit:
        main(words)
    assert exit.value.code == 0
    assert "preferences" in capsys.readouterr().out


def test_help_of_training_has_typed_options_with_their_defaults(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["train", "tsp", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert exit.value.code == 0
    assert "--learning-rate FLOAT AdamW's peak rate." in told
    assert "--schedule {cosine,transformer,constant}" in told
    assert "--model.d-model INT (default: 256)" in told
    assert "--model.process.noise-scale FLOAT Noise of the bridge, paper eta. (default: 0.5)" in told
    assert "--task.direction" in told


@pytest.mark.parametrize(
    ("words", "nearest"),
    [
        (["train", "tsp", "--learning-rat", "1"], "--learning-rate"),
        (["evaluate", "tsp", "model", "--cuont", "1"], "--count"),
        (["walk", "--item", "1"], "--items"),
    ],
)
def test_unknown_option_names_the_nearest(words, nearest, capsys):
    with pytest.raises(SystemExit) as exit:
        main(words)
    assert exit.value.code == 2
    told = capsys.readouterr().err
    assert "Unrecognized options" in told and nearest in told


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"softrank_ext {softrank_ext.__version__}\n"
    assert main(["--version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "softrank_ext", "version": softrank_ext.__version__}


def test_interrupted_command_says_so(capsys, monkeypatch):
    def interrupted() -> None:
        """Walk until Ctrl-C."""
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "walk", interrupted)
    assert main(["walk"]) == 130
    assert capsys.readouterr().err == "softrank: interrupted\n"


def leaves(commands: dict, path: tuple = ()) -> list[tuple]:
    parts = ((*path, name) for name in commands)
    return [
        leaf
        for part in parts
        for leaf in (leaves(commands[part[-1]], part) if isinstance(commands[part[-1]], dict) else [part])
    ]


@pytest.mark.parametrize("path", [path for path in leaves(COMMANDS) if path != ("completion",)])
def test_every_command_has_json(path, capsys):
    with pytest.raises(SystemExit):
        main([*path, "--help"])
    assert "--json" in capsys.readouterr().out


def test_walk_and_generate_in_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("matplotlib")
    assert main(["walk", "--items", "4", "--steps", "9", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sorted(told["noise"]) == sorted(told["clean"]) == [0, 1, 2, 3]
    assert main(["generate", "tsp", "tours.txt", "--count", "3", "--num-nodes", "5", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"output": "tours.txt", "count": 3, "num_nodes": 5, "seed": 0}
    assert shown.err == ""  # no bar in a log file


def test_a_reader_that_leaves_is_no_error(tmp_path):
    command = [sys.executable, "-m", "softrank_ext", "info"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    running.stdout.close()
    assert running.stderr.read() == "" and running.wait(60) == 141
    running.stderr.close()


@pytest.mark.parametrize(
    "words",
    [
        ("sample", "tsp", "places.csv", "./places.csv"),
        ("tour", "places.csv", "--metric", "plane", "--output", "places.csv"),
        ("schedule", "places.csv", "--output", "places.csv"),
        ("rank", "places.csv", "--model", "ranker", "--ranked", "link.csv"),
    ],
    ids=lambda words: words[0],
)
def test_a_file_that_is_read_is_not_written_over(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    Path("places.csv").write_text("x,y\n0,1\n1,0\n1,1\n")
    Path("link.csv").symlink_to("places.csv")
    assert main(list(words)) == 2
    assert re.search(r"(places|link)\.csv is read here: write to another file", capsys.readouterr().err)
    assert Path("places.csv").read_text().startswith("x,y\n0,1")
