"""The attack jobs themselves, in short: the long forms are run by .ci/attack."""

import json
import os
import subprocess
import sys

import pytest
from synthetic_runs import TESTS

CHECKED = """
import sys
sys.path.insert(0, sys.argv[1])
from attack import calls, fuzz_calls

def broken(**given):
    raise AttributeError("no such thing")

calls.CALLS[:] = [("broken", broken, dict)]
sys.argv = ["fuzz_calls", "--calls", "3", "--processes", "1"]
sys.exit(fuzz_calls.main())
"""


@pytest.fixture
def run(tmp_path):
    """Runs Python in a folder of its own: the current one may hold an uncompiled softrank_ext."""

    def run_words(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=600)

    return run_words


def test_every_op_and_public_function_is_called():
    """A new one needs a line in attack/op_calls.py or attack/public_calls.py, or its reason in UNCALLED there."""
    from attack import calls

    assert calls.MISSING == []


def test_fuzzed_calls_find_nothing(run):
    done = run(str(TESTS / "attack" / "fuzz_calls.py"), "--calls", "400", "--processes", "1")
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["tried"] == 400 and counts["defects"] == 0 and 20 < counts["returned"] < 380


def test_fuzzed_calls_would_find_something(run):
    done = run("-c", CHECKED, str(TESTS))
    assert done.returncode == 1
    assert json.loads(done.stdout)["defects"] == 3 and "raised AttributeError: no such thing: broken()" in done.stderr


@pytest.mark.parametrize("name", ["abort", "hang"])
def test_fuzzed_calls_survive_what_ends_or_holds_a_process(run, name):
    body = "__import__('os').abort()" if name == "abort" else "__import__('time').sleep(600)"
    script = CHECKED.replace('raise AttributeError("no such thing")', body)
    script = script.replace("def broken", "fuzz_calls.PATIENCE = 1.0\ndef broken", 1)
    done = run("-c", script, str(TESTS))
    assert done.returncode == 1
    wanted = "ended the process with -6" if name == "abort" else "hung for more than 1 s"
    assert done.stderr.count(wanted) == 3


def test_fuzzed_files_find_nothing(run):
    done = run(str(TESTS / "attack" / "fuzz_files.py"), "--files", "96")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"job": "fuzzed files", "tried": 96, "defects": 0}


@pytest.mark.slow
def test_runs_in_odd_folders(run):
    done = run(str(TESTS / "attack" / "run_folders.py"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tried"] == 9
