"""`softrank completion`: the shells accept it, and it completes commands and options."""

import json
import shutil
import subprocess

import pytest

from softrank_ext.cli.main import main

SHELLS = {"bash": ["bash", "-n"], "zsh": ["zsh", "-n"], "fish": ["fish", "--no-execute"]}
TRY = """
source "$1"
shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
_tyro_softrank
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        with pytest.MonkeyPatch.context() as patch, open(folder / shell, "w") as file:
            patch.setattr("sys.stdout", file)
            assert main(["completion", shell]) == 0
    return folder


@pytest.mark.parametrize("shell", SHELLS)
def test_shell_accepts_it(scripts, shell):
    assert "softrank" in (scripts / shell).read_text()
    if shutil.which(shell):
        subprocess.run([*SHELLS[shell], scripts / shell], check=True)


def test_json(scripts, capsys):
    assert main(["completion", "bash", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["shell"] == "bash" and found["script"].rstrip("\n") == (scripts / "bash").read_text().rstrip("\n")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ([""], {"train", "sample", "merge", "info"}),
        (["train", ""], {"sorting", "tsp"}),
        (["train", "sorting", "--learn"], {"--learning-rate"}),
        (["generate", ""], {"tsp"}),
        (["generate", "tsp", "--num"], {"--num-nodes"}),
        (["sample", "--sh"], {"--shard"}),
    ],
)
def test_bash_completes(scripts, words, completed):
    found = subprocess.run(
        ["bash", "-c", TRY, "try", scripts / "bash", "softrank", *words], capture_output=True, text=True, check=True
    )
    assert completed <= set(found.stdout.split())


def test_unknown_shell_is_an_error(capsys):
    with pytest.raises(SystemExit) as end:
        main(["completion", "powershell"])
    assert end.value.code == 2
    assert "bash" in capsys.readouterr().err
