"""Fixtures shared by the tests."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from synthetic_runs import BALLOTS
from testing.devices import Device, FakeDevice, GpuDevice, load_cuda_guard
from testing.fake_cuda import fake_cuda

from softrank_ext import Bridge, DataFacts, Riffle
from softrank_ext.model import DECODER_HEADS, SoftRankConfig, SoftRankModel

# The same examples in every run, and no verdict about the machine's speed.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")
# A background job is started with Ctrl-C ignored, and its children too: tests that send it would wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """One thread for a whole file: models as small as in tests are faster so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_model() -> Callable[..., SoftRankModel]:
    """Makes tiny models of items (N, 2) whose random weights give distributions far from uniform."""

    def make(
        head: str,
        dtype: torch.dtype = torch.float32,
        *,
        norm_first: bool = True,
        max_items: int = 200,
        process: Bridge | Riffle = Bridge(),  # noqa: B008 (frozen)
        fixed_start: bool = False,
        reads: str = "order",
        partial: bool = False,
        symmetry: str = "none",
        copies: str = "none",
    ) -> SoftRankModel:
        torch.manual_seed(7)
        config = SoftRankConfig(
            init="published",  # what the bounds of the tests were measured with
            d_model=16,
            feed_forward=24,
            heads=2,
            encoder_layers=2,
            decoder_layers=2 if head in DECODER_HEADS else 0,
            head=head,
            max_items=max_items if head == "linear" else None,
            norm_first=norm_first,
            embedder={"kind": "linear", "features": 2},
            process=process,
            reads=reads,
            partial=partial,
            data=DataFacts(symmetry, fixed_start=fixed_start, copies=copies),
        )
        model = SoftRankModel(config).to(dtype)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("bias") or "norm" in name:
                    parameter += 0.1 * torch.randn_like(parameter)
            if head == "pointer":
                model.head.weight *= 2
                model.head.slot_weight += 0.2 * torch.randn_like(model.head.slot_weight)
            elif head == "linear":
                model.head.weight *= 2
            elif head == "pl":
                model.head[2].weight *= 15
        return model.eval()

    return make


@pytest.fixture(scope="session")
def cuda_guard(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What torch without CUDA needs for tensors that claim to be on a GPU; the test is skipped without a compiler."""
    if not torch.cuda.is_available():
        load_cuda_guard(tmp_path_factory.mktemp("cuda_guard"))


@pytest.fixture
def device(cuda_guard: None) -> Iterator[Device]:
    """The GPU where there is one, else one that is none (`testing.fake_cuda`)."""
    if torch.cuda.is_available():
        yield GpuDevice()
        return
    with fake_cuda():
        yield FakeDevice()


@pytest.fixture
def ballots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with ballots.soc and items.npz, two instances of its 4 alternatives; the current folder."""
    (tmp_path / "ballots.soc").write_text("\n".join(BALLOTS) + "\n")
    np.savez(tmp_path / "items.npz", items=np.array([[0, 1, 2, 3], [2, 1, 0, 3]]))
    monkeypatch.chdir(tmp_path)
    return tmp_path
