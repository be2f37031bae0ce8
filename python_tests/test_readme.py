"""The README's code runs, and the commands it promises are the ones that CI runs."""

import re
from pathlib import Path

import pytest

from softrank_ext.pretrained import bundled_names

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else ""
MAIN_COMMAND = " && ".join(
    (
        "python3 -m venv .venv",
        '.venv/bin/pip install torch==2.13.0 ".[plots]"',
        ".venv/bin/softrank demo",
    )
)
TEST_COMMAND = (
    'python3 -m venv .venv-test && .venv-test/bin/pip install torch==2.13.0 ".[test]" && .venv-test/bin/pytest'
)


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_there_is_code_to_run():
    assert len(code_blocks("python")) >= 3


@pytest.mark.parametrize("block", code_blocks("python"))
def test_python_block_runs(block, tmp_path, monkeypatch):
    if 'from_pretrained("' in block and not bundled_names():
        pytest.skip("needs bundled models")
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("command", [MAIN_COMMAND, TEST_COMMAND])
def test_command_is_a_block_of_its_own(command):
    assert command + "\n" in code_blocks("bash")


def test_ci_runs_the_test_command_literally():
    ci = ROOT / ".ci" / "run"
    if not ci.exists():
        pytest.skip("not in a clone: an sdist has no .ci")
    assert TEST_COMMAND in [line.strip() for line in ci.read_text().splitlines()]


def test_links_point_at_files():
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", README)
    assert "CONTRIBUTING.md" in links
    for link in links:
        assert (ROOT / link).exists(), link
