"""`softrank selftest`."""

import pytest
import torch

from softrank_ext import noise
from softrank_ext.cli import selftest
from softrank_ext.cli.main import main


def test_the_cpu_passes(capsys):
    assert main(["selftest", "--device", "cpu"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "PASS"
    said = {name: line for name in selftest.CHECKS for line in lines if line.startswith(name.ljust(28))}
    assert list(said) == list(selftest.CHECKS)
    for name in ("CUDA kernels", "side stream", "second GPU", "CUDA graph"):
        assert " -- " in said[name]
    assert all(" ok " in line for name, line in said.items() if " -- " not in line)


def test_a_device_that_differs_fails(capsys, monkeypatch):
    """Negative control: noise with one bit wrong where the device is asked, and an op that raises."""
    uniform, calls = noise.uniform, []

    def wrong(*arguments, **options):
        calls.append(arguments)
        return uniform(*arguments, **options) + (2.0**-20 if len(calls) % 2 == 0 else 0)

    monkeypatch.setattr(noise, "uniform", wrong)
    wrong.__name__ = "uniform"
    checks = {name: selftest.CHECKS[name] for name in ("noise", "ops on rows")}

    def raises(device: torch.device) -> str:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(selftest, "CHECKS", checks | {"broken": raises})
    assert main(["selftest", "--device", "cpu"]) == 1
    out = capsys.readouterr().out
    assert "FAILED AssertionError: uniform in torch.float32 has other bits than on the CPU" in out
    assert "FAILED RuntimeError: an illegal memory access was encountered" in out
    assert out.splitlines()[-1] == "FAILED: noise, broken"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(capsys):
    assert main(["selftest", "--device", "cuda"]) == 2
    assert "device must be one that is there, got cuda: torch sees no GPU" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_gpu_passes(capsys):
    assert main(["selftest", "--device", "cuda"]) == 0, capsys.readouterr().out
