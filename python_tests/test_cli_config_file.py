"""Options from a YAML file."""

import pytest

from softrank_ext.cli.config_file import with_config_file
from softrank_ext.cli.main import main


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", "a.yaml must hold options by name, got list"),
        ("a: [1\n", "a.yaml is not valid YAML"),
        ("seed: 1\ntask: {file: a}\nseed: 2\n", "a.yaml, line 3 must name an option once, got 'seed' again"),
        ("task: {a-b: 1, a_b: 2}\n", "a.yaml, line 1 must name an option once, got 'a_b' again"),
        (None, "No such file or directory: 'a.yaml'"),
    ],
)
def test_wrong_config_files_are_told(ballots, text, message, capsys):
    if text is not None:
        (ballots / "a.yaml").write_text(text)
    assert main(["train", "preferences", "--config", "a.yaml"]) == 2
    assert message in capsys.readouterr().err


def test_config_file_needs_a_name_and_known_options(ballots, capsys):
    assert main(["train", "preferences", "--config"]) == 2
    assert "--config needs the name of a YAML file" in capsys.readouterr().err
    (ballots / "a.yaml").write_text("learning_rat: 1\ntask: {file: ballots.soc}\n")
    with pytest.raises(SystemExit):
        main(["train", "preferences", "--config=a.yaml"])
    assert "--learning-rate" in capsys.readouterr().err


def test_config_file_becomes_options(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "steps: [1, 5]\nmodel: {norm_first: false, process: {noise_scale: 0.2}}\nresume: true\ndevice: null\n"
    )
    assert with_config_file(["run", "--config", str(path), "--seed", "1"]) == [
        "run", "--steps", "1", "5", "--model.no-norm-first", "--model.process.noise-scale", "0.2", "--resume",
        "--device", "None", "--config", str(path), "--seed", "1",
    ]  # fmt: skip


def test_aliases_and_files_of_any_size_are_refused(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n")
    with pytest.raises(ValueError, match=r"must hold options as they are, got an alias \(\*name\)"):
        with_config_file(["--config", str(path)])
    path.write_text("a: " + "x" * 2**20)
    with pytest.raises(ValueError, match="must be a file of options, of at most 1048576 bytes, got more"):
        with_config_file(["--config", str(path)])
    path.write_text("[" * 1_000_000)  # not the seconds or hours of a parser that takes it all in
    with pytest.raises(ValueError, match="must hold options in at most 20 levels, got more"):
        with_config_file(["--config", str(path)])
