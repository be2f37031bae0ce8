"""The command line: which command runs, help, errors and exit codes."""

import json
import subprocess
import sys

import pytest

from softrank_ext.cli.main import main


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
