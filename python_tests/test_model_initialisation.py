"""First weights: torch's own, the published ones, and a linear head that points at what it attends to."""

import math

import pytest
import torch
from torch import nn

from softrank_ext import SoftRankConfig, SoftRankModel
from softrank_ext.model.initialisation import initialize_quickly

D, F = 64, 96
EMBEDDER = {"kind": "linear", "features": 1}


def model_of(init: str, head: str = "pointer") -> SoftRankModel:
    torch.manual_seed(0)
    max_items = 7 if head == "linear" else None
    return SoftRankModel(
        SoftRankConfig(D, F, 4, 1, 2, 0.0, head=head, max_items=max_items, embedder=EMBEDDER, init=init)
    )


@pytest.mark.parametrize("kind", ("encoder", "decoder"))
def test_quick_weights_are_spread_as_those_of_torch_s_layers(kind):
    """Deviations of matrices and biases, compared with a torch layer's of the same size."""
    if kind == "encoder":
        theirs: nn.Module = nn.TransformerEncoderLayer(D, 4, F)
        layer = model_of("quick").encoder_layers[0]
    else:
        theirs = nn.TransformerDecoderLayer(D, 4, F)
        layer = model_of("quick").decoder_layers[0]
    twins = {"feed_in": "linear1", "feed_out": "linear2", "self_out": "self_attn.out_proj"}
    if kind == "decoder":
        twins["memory_out"] = "multihead_attn.out_proj"
    for ours, name in twins.items():
        mine, twin = layer.get_submodule(ours), theirs.get_submodule(name)
        assert float(mine.weight.detach().std()) == pytest.approx(float(twin.weight.detach().std()), rel=0.05), ours
        assert float(mine.bias.detach().std()) == pytest.approx(float(twin.bias.detach().std()), rel=0.3), ours
    spread = float(theirs.self_attn.in_proj_weight.detach().std())
    joined = ("self_qkv",) if kind == "encoder" else ("self_qkv", "memory_query", "memory_key_value")
    for name in joined:
        assert float(layer.get_submodule(name).weight.detach().std()) == pytest.approx(spread, rel=0.05), name
        assert layer.get_submodule(name).bias.eq(0).all()


def test_published_weights_are_xavier_s():
    for layer in (*model_of("published").encoder_layers, *model_of("published").decoder_layers):
        for name, part in layer.named_children():
            if isinstance(part, nn.Linear):
                rows, columns = part.weight.shape
                assert float(part.weight.detach().std()) == pytest.approx(math.sqrt(2 / (rows + columns)), rel=0.05), (
                    name
                )
                assert part.bias.eq(0).all()


def test_a_linear_head_begins_as_the_position_table():
    model = model_of("quick", "linear")
    expected = [
        [f(slot / 10000 ** (2 * pair / D)) * math.sqrt(2 / D) for pair in range(D // 2) for f in (math.sin, math.cos)]
        for slot in range(7)
    ]
    torch.testing.assert_close(model.head.weight.detach(), torch.tensor(expected), rtol=1e-5, atol=1e-6)
    for layer in model.decoder_layers:
        assert torch.equal(layer.memory_key_value.weight[D:], torch.eye(D))
        assert torch.equal(layer.memory_out.weight, torch.eye(D))
        assert float(layer.memory_key_value.weight[:D].detach().std()) == pytest.approx(
            math.sqrt(2 / (4 * D)), rel=0.05
        )
    assert not torch.equal(model_of("quick").decoder_layers[0].memory_out.weight, torch.eye(D))


def test_a_saved_model_of_before_says_published():
    fields = SoftRankConfig(embedder=EMBEDDER).to_json()
    assert fields.pop("init") == "quick"
    assert SoftRankConfig.from_json(fields).init == "published"
    with pytest.raises(ValueError, match="init must be one of 'quick', 'published', got 'zeros'"):
        SoftRankConfig(init="zeros")


def test_the_same_seed_gives_the_same_weights():
    first, second = model_of("quick", "linear"), model_of("published", "linear")
    torch.manual_seed(5)
    initialize_quickly(second)
    torch.manual_seed(5)
    initialize_quickly(first)
    for (name, ours), theirs in zip(
        first.encoder_layers.named_parameters(), second.encoder_layers.parameters(), strict=True
    ):
        if "self_qkv" not in name:
            assert torch.equal(ours, theirs), name
