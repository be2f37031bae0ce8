"""A model is what torch expects of a module: wrappers call its forward, graphs take a whole decode, subclasses load."""

import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from softrank_ext import Engine, SoftRankModel, from_pretrained
from softrank_ext.ops import Choices
from softrank_ext.ops.library import DEFAULT_KERNELS

pytestmark = pytest.mark.usefixtures("one_thread")
ORDERS = torch.tensor([[1, 3, 2, 0, 4], [4, 2, 0, 1, 3], [3, 0, 4, 1, 2]])
MASK = torch.tensor([[True] * 5, [True, True, True, False, True], [True] * 5])
WITHOUT_TENSORS = {"cpu_capability", "build_facts", "layer_weight_names", "checksum"}  # in what they return


class Mine(SoftRankModel):
    """A subclass, as a user has it."""


class Decoding(nn.Module):
    """One decode, as it is deployed."""

    def __init__(self, model: SoftRankModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, items: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return tuple(self.model.decode(items, 0.4, uniform=uniform))


@pytest.fixture
def one_process(tmp_path: Path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("head", ("pointer", "linear", "gpl", "pl"))
def test_forward_is_the_log_probability_of_an_order(make_model, head):
    model, items = make_model(head), torch.randn(3, 5, 2)
    with torch.no_grad():
        assert torch.equal(model(items, 0.4, ORDERS, MASK), model.log_prob(items, 0.4, ORDERS, MASK).total)


def test_data_parallel_wrappers_call_forward(make_model, one_process):
    model, items = make_model("pointer"), torch.randn(3, 5, 2)
    model(items, 0.4, ORDERS, MASK).sum().backward()
    wanted = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    DistributedDataParallel(model)(items, 0.4, ORDERS, MASK).sum().backward()
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_sharded_models_train_and_decode(make_model, one_process):
    from torch.distributed.fsdp import fully_shard

    model, items = make_model("pointer"), torch.randn(3, 5, 2)
    with torch.no_grad():
        wanted = model(items, 0.4, ORDERS)
    mesh = dist.init_device_mesh("cpu", (1,))
    for layer in (*model.encoder_layers, *model.decoder_layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    got = model(items, 0.4, ORDERS)
    torch.testing.assert_close(got.detach(), wanted)
    got.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize("head", ("pointer", "linear"))
def test_graphs_take_a_whole_decode_and_a_loss(make_model, head):
    model, items, uniform = make_model(head), torch.randn(3, 5, 2), torch.rand(3, 5)
    wanted = model.decode(items, 0.4, uniform=uniform)
    graph = torch.compile(Decoding(model), fullgraph=True, backend="aot_eager")
    for got, own in zip(graph(items, uniform), wanted, strict=True):
        assert torch.equal(got, own)
    loss = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(loss(items, 0.4, ORDERS, MASK), model(items, 0.4, ORDERS, MASK))


def test_a_decode_is_exported(make_model):
    model, items, uniform = make_model("pointer"), torch.randn(3, 5, 2), torch.rand(3, 5)
    program = torch.export.export(Decoding(model), (items, uniform))
    assert "softrank_ext.predict_order" in str(program)
    others = torch.randn(3, 5, 2), torch.rand(3, 5)  # not those that it was traced with
    for got, own in zip(program.module()(*others), Decoding(model)(*others), strict=True):
        assert torch.equal(got, own)


@pytest.mark.slow
def test_a_decode_is_compiled_ahead_of_time(make_model, tmp_path):
    model, items, uniform = make_model("pointer"), torch.randn(3, 5, 2), torch.rand(3, 5)
    program = torch.export.export(Decoding(model), (items, uniform))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(tmp_path / "decode.pt2"))
    for got, own in zip(
        torch._inductor.aoti_load_package(package)(items, uniform), Decoding(model)(items, uniform), strict=True
    ):
        torch.testing.assert_close(got, own)


def test_every_op_that_returns_tensors_has_a_fake_kernel():
    without = {
        name
        for name in DEFAULT_KERNELS
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"softrank_ext::{name}", "Meta")
    }
    assert without == WITHOUT_TENSORS


def test_every_op_is_checked_by_opcheck():
    tests = "".join(path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py")))
    checked = set(re.findall(r"opcheck\(\s*torch\.ops\.softrank_ext\.(\w+)", tests))
    unchecked = [name for name in DEFAULT_KERNELS if name not in WITHOUT_TENSORS | checked]
    assert unchecked == ["random_uniform", "random_normal"]  # by name, in test_ops.py


def test_opcheck_of_picks_from_scores():
    scores, uniform = torch.randn(3, 5, 5), torch.rand(3, 5)
    for choices in (Choices(), Choices(uniform=uniform), Choices(forced_order=ORDERS)):
        torch.library.opcheck(
            torch.ops.softrank_ext.decode_scores, (scores, torch.ones(3, 5, dtype=torch.bool), *choices)
        )


def test_a_subclass_loads_itself(make_model, tmp_path):
    model, items = make_model("pointer"), torch.randn(3, 5, 2)
    model.save_pretrained(tmp_path)
    mine = Mine.from_pretrained(tmp_path)
    assert type(mine) is Mine and type(SoftRankModel.from_pretrained(tmp_path)) is SoftRankModel
    assert type(from_pretrained(tmp_path)) is SoftRankModel
    with torch.no_grad():
        assert torch.equal(mine(items, 0.4, ORDERS), model(items, 0.4, ORDERS))
    assert torch.equal(
        mine.decode(items, 0.4, engine=Engine(compiled=True)).order, model.decode(items, 0.4).order
    )  # a subclass that changes nothing keeps the kernels
