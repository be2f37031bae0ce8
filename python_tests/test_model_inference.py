"""Predictions get the same inputs from every engine, by item with an order or by slot."""

import pytest
import torch

from softrank_ext import Engine, ops
from softrank_ext._libraries import uses_reference
from softrank_ext.model import HEADS
from softrank_ext.permutations import arrange

pytestmark = pytest.mark.usefixtures("one_thread")
ENGINES = (Engine(), Engine(compiled=False), Engine(compiled=False, cache=False))
MASK = torch.tensor([[True, True, False, True, True], [True] * 5, [False, True, True, False, True]])
ORDER = torch.tensor([[3, 0, 4, 1, 2], [2, 4, 0, 1, 3], [4, 1, 2, 0, 3]])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("is_padded", (False, True))
def test_items_with_an_order_are_slots(make_model, head, is_padded):
    model = make_model(head, torch.float64)
    torch.manual_seed(2)
    mask = MASK if is_padded else None
    embedded = model.embed(torch.randn(3, 5, 2), mask)
    mask_t = None if mask is None else arrange(mask, ORDER)
    choices = ops.Choices(uniform=torch.rand(3, 5, dtype=torch.float64))
    wanted = model.decode(arrange(embedded, ORDER), 0.4, mask_t, uniform=choices.uniform, is_embedded=True)
    for engine in ENGINES:
        got = model.decode_embedded(embedded, 0.4, mask_t, choices, order=ORDER, engine=engine)
        assert torch.equal(got.order, wanted.order)
        torch.testing.assert_close(got.log_probs, wanted.log_probs, atol=1e-12, rtol=0)
    scored = model.decode_embedded(embedded, 0.4, mask_t, ops.Choices(forced_order=wanted.order), order=ORDER)
    torch.testing.assert_close(scored.log_probs, wanted.log_probs, atol=1e-12, rtol=0)


def test_decoder_inputs_are_those_of_the_compiled_prediction(make_model):
    model, items = make_model("pointer", torch.float64), torch.randn(3, 5, 2, dtype=torch.float64)
    compiled, plain = (model.decoder_inputs(items, 0.7, MASK, engine=engine) for engine in ENGINES[:2])
    for name, value in plain._asdict().items():
        other = getattr(compiled, name)
        is_real = MASK.reshape(3, 5, *(1,) * (value.ndim - 2)) if value.shape[:2] == (3, 5) else True
        torch.testing.assert_close(
            torch.where(torch.as_tensor(is_real), value.double(), 0.0),
            torch.where(torch.as_tensor(is_real), other.double(), 0.0),
            atol=1e-12,
            rtol=0,
        )
    with pytest.raises(ValueError, match="a gpl head has no decoder: use pointer or linear"):
        make_model("gpl").decoder_inputs(items.float(), 0.7)


@pytest.mark.skipif(uses_reference(), reason="a check of the kernels")
@pytest.mark.parametrize("head", ("pointer", "linear"))
def test_the_kernel_refuses_no_items(make_model, head):
    model = make_model(head)
    with pytest.raises(RuntimeError, match=r"embedded must be \(B, N, D\) with N and D at least 1, got N = 0, D = 16"):
        model.decode_embedded(torch.zeros(3, 0, model.config.d_model), 1.0)
