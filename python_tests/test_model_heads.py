"""Heads: scores of decoder states and encoder outputs, `state . head_keys + head_bias`."""

import pytest
import torch

from softrank_ext.model.heads import LinearHead, PointerHead


def test_pointer_scores_are_biaffine():
    """Paper eq. 12 without the terms that are the same for every slot."""
    head = PointerHead(4).double()
    head.requires_grad_(False)
    head.slot_weight += torch.randn(4, dtype=torch.float64)
    memory, state = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    keys, bias = head(memory, torch.arange(3)[None])
    for row in range(2):
        for slot in range(3):
            e = memory[row, slot]
            wanted = float(state @ head.weight @ e + head.slot_weight @ e)
            assert float(state @ keys[row, slot] + bias[row, slot]) == pytest.approx(wanted, abs=1e-12)
    projected = memory @ head.projection().T
    torch.testing.assert_close(projected[..., :4], keys)
    torch.testing.assert_close(projected[..., 4], bias)


def test_linear_keys_belong_to_positions():
    head = LinearHead(4, 6)
    with torch.no_grad():
        head.bias += torch.arange(6.0)
    positions = torch.tensor([[0, 2, 5]])
    keys, bias = head(torch.randn(2, 3, 4), positions)
    assert torch.equal(keys, head.weight[[0, 2, 5]][None]) and bias.tolist() == [[0, 2, 5]]


def test_linear_head_uses_its_first_slots(make_model):
    model = make_model("linear", max_items=9)
    items, order = torch.randn(2, 5, 2), torch.tensor([[1, 3, 2, 4, 0], [4, 0, 1, 3, 2]])
    before = model.log_prob(items, 0.4, order).total
    with torch.no_grad():
        model.head.weight[5:] = 1e3
    torch.testing.assert_close(model.log_prob(items, 0.4, order).total, before)
    with pytest.raises(
        ValueError, match="this linear head takes up to 9 items, got 10; a pointer head takes any number"
    ):
        model.decode(torch.randn(1, 10, 2), 0.4)
