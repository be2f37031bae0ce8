"""A signal stops the ops that search, whichever of their threads does, and what its handler raises comes out."""

import signal
import subprocess
import sys

import pytest

from softrank_ext import build_info

pytestmark = pytest.mark.skipif(build_info()["kernels"] != "compiled", reason="the plain twins are Python")

# 32 easy rows, those of the calling thread if there are two; and 32 whose search takes a second each before it gives
# up: groups of three in windows full of holes.
SCRIPT = """
import os, signal, sys, threading, time
import torch
from softrank_ext import SoftRankConfig, SoftRankModel, ops
from softrank_ext.constraints import Rules

torch.set_num_threads(int(sys.argv[2]))
torch.manual_seed(0)
B, N = 64, 300
mask = torch.ones(B, N, dtype=torch.bool)
allowed, group = torch.ones(B, N, N, dtype=torch.bool), torch.full((B, N), -1)
allowed[B // 2 :] = (torch.rand(N, N) < 0.25) | torch.eye(N, dtype=torch.bool)
group[B // 2 :] = (torch.arange(N) // 3)[torch.randperm(N)]
nothing = torch.empty(B, 0, dtype=torch.int64)
choices = ops.Choices(allowed=allowed, group=group)
config = SoftRankConfig(d_model=16, feed_forward=16, heads=2, embedder={"kind": "points"})
model = SoftRankModel(config).eval()
call = {
    "allowed_picks": lambda: ops.allowed_picks(nothing, mask, None, allowed, group),
    "decode_scores": lambda: ops.decode_scores(torch.zeros(B, N, N), mask, choices),
    "decode_order": lambda: model.decode(torch.rand(B, N, 2), 1.0, constraints=Rules(None, allowed, group)),
    "torch.ops": lambda: torch.ops.softrank_ext.allowed_picks(nothing, mask, None, allowed, group),
}[sys.argv[1]]

class Raised(BaseException):
    pass

def raises(number, frame):
    raise Raised("by the handler")

def send(number):
    time.sleep(0.3 * seconds)
    sent.append(time.monotonic())
    os.kill(os.getpid(), number)

for _ in range(2):  # the second call is as long as those below
    began = time.monotonic()
    try:
        call()
    except RuntimeError:
        seconds = time.monotonic() - began

handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGUSR1: raises, signal.SIGUSR2: lambda *_: print("seen")}
for number, handler in handlers.items():
    signal.signal(number, handler)
    sent = []
    threading.Thread(target=send, args=(number,)).start()
    try:
        call()
    except (KeyboardInterrupt, Raised, RuntimeError) as error:
        if not isinstance(error, RuntimeError):
            assert time.monotonic() - sent[0] < 0.3 * seconds, (time.monotonic() - sent[0], seconds)
        print(type(error).__name__, str(error)[:36])
"""


def run_script(call: str, threads: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, call, str(threads)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd="/")


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("call", ("allowed_picks", "decode_scores", "decode_order"))
def test_a_signal_stops_the_search(call: str, threads: int) -> None:
    run = run_script(call, threads)
    assert run.returncode == 0, run.stderr
    said = run.stdout.splitlines()
    assert said[:3] == ["KeyboardInterrupt ", "Raised by the handler", "seen"]  # the last one returns: nothing stops
    assert said[3:] == ["OpError constraints are too hard to check: t"]


def test_of_a_bare_op_too() -> None:
    """It raises RuntimeError, which `except RuntimeError` may meet; KeyboardInterrupt follows at once."""
    run = run_script("torch.ops", 1)
    assert (run.returncode, run.stdout) == (-signal.SIGINT, "")
    assert run.stderr.endswith("\nKeyboardInterrupt\n")
