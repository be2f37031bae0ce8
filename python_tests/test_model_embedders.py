"""Embedders: what they make of items, by the names that a config has for them, and what they refuse."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from softrank_ext.model import (
    EMBEDDERS,
    LearnedEmbedder,
    LinearEmbedder,
    SoftRankConfig,
    SoftRankModel,
    embed_items,
    embedder_of,
    make_embedder,
)

TINY = SoftRankConfig(d_model=16, feed_forward=24, heads=2, encoder_layers=1, decoder_layers=1)


def test_linear_is_a_product_and_a_shift():
    embedder = LinearEmbedder(2, 3)
    with torch.no_grad():
        embedder.projection.weight.copy_(torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 3.0]]))
        embedder.projection.bias.copy_(torch.tensor([10.0, 20.0]))
    assert embedder(torch.tensor([[[1.0, 1.0, 1.0], [0.0, 2.0, 1.0]]])).tolist() == [[[13, 22], [14, 21]]]
    assert embedder.item_ndim == 1


def test_learned_looks_ids_up():
    embedder = LearnedEmbedder(2, 3)
    with torch.no_grad():
        embedder.vectors.weight.copy_(torch.tensor([[0.0, 0.5], [1.0, 1.5], [2.0, 2.5]]))
    assert embedder(torch.tensor([[2, 0], [1, 1]])).tolist() == [[[2, 2.5], [0, 0.5]], [[1, 1.5], [1, 1.5]]]
    assert embedder(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 2)
    assert embedder.item_ndim == 0


def test_every_name_makes_its_class():
    arguments: dict[str, dict[str, object]] = {
        "linear": {"features": 3},
        "learned": {"num_items": 4},
        "patch-cnn": {"side": 4},
        "patch-mlp": {"side": 4},
        "times": {"machines": 3},
        "table": {"numbers": 2, "categories": [3]},
    }
    for name, kind in EMBEDDERS.items():
        made = make_embedder(8, {"kind": name, **arguments.get(name, {})})
        assert type(made) is kind and made.item_ndim in (0, 1, 3)


def test_embedder_of_a_config_or_as_given():
    named = replace(TINY, embedder={"kind": "linear", "features": 2})
    assert isinstance(embedder_of(named, None), LinearEmbedder)
    own = nn.Linear(2, 16)
    assert embedder_of(TINY, own) is own


def test_embed_items_zeroes_padding_before_and_after():
    class Biased(nn.Module):
        def forward(self, items: Tensor) -> Tensor:
            seen.append(items)
            return items.double().sum(-1, keepdim=True).expand(-1, -1, 2) + 1

    seen: list[Tensor] = []
    items = torch.tensor([[[1.0, 2.0], [float("nan"), 5.0]]])
    mask = torch.tensor([[True, False]])
    made = embed_items(Biased(), items, mask, 2, torch.float64)
    assert made.tolist() == [[[4, 4], [0, 0]]]
    assert seen[0].dtype == torch.float64 and seen[0].tolist() == [[[1, 2], [0, 0]]]
    ids = torch.tensor([[7, 9]])
    embed_items(LearnedEmbedder(2, 8), ids, mask, 2, torch.float64)  # the id 9 is padding, and not looked up
    with pytest.raises(ValueError, match=r"the embedder must return \(1, 2, 3\), got \(1, 2, 2\)"):
        embed_items(Biased(), items, mask, 3, torch.float64)


class Centred(nn.Module):
    """An embedder in which slots see each other."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(2, 16)

    def forward(self, items: Tensor) -> Tensor:
        return self.projection(items - items.sum(1, keepdim=True))


def test_padding_is_zeroed_before_the_embedder():
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1]], dtype=torch.bool)
    items = torch.randn(2, 4, 2)
    model = SoftRankModel(TINY, Centred())
    wanted = model.embed(items.masked_fill(~mask[..., None], 0.0), mask)
    assert torch.equal(model.embed(items.masked_fill(~mask[..., None], torch.nan), mask), wanted)
    learned = SoftRankModel(replace(TINY, embedder={"kind": "learned", "num_items": 4}))
    assert learned.embed(torch.tensor([[1, 3, 0, 99], [-1, 2, -1, 3]]), mask).isfinite().all()


def test_float64_items_are_cast(make_model):
    model, items = make_model("pointer"), torch.randn(2, 4, 2, dtype=torch.float64)
    assert torch.equal(model.embed(items), model.embed(items.float()))


def test_embedder_errors():
    with pytest.raises(ValueError, match=r"embedder must be a module, or config\.embedder must name one, got neither"):
        SoftRankModel(TINY)
    named = replace(TINY, embedder={"kind": "linear", "features": 2})
    with pytest.raises(ValueError, match=r"embedder must be left out where config\.embedder names one, got both"):
        SoftRankModel(named, nn.Linear(2, 16))
    with pytest.raises(ValueError, match=r"embedder kind must be one of linear, learned, .*got 'cnn'"):
        make_embedder(16, {"kind": "cnn"})
    with pytest.raises(ValueError, match=r"embedder kind must be one of linear, .*got \['linear'\]"):
        make_embedder(16, {"kind": ["linear"]})
    with pytest.raises(ValueError, match=r"embedder of kind 'linear' does not take \{'sizes': 2\}"):
        make_embedder(16, {"kind": "linear", "sizes": 2})
    with pytest.raises(ValueError, match=r"items must be \(B, N, 2\) float, got \(1, 3, 2\) torch.int64"):
        SoftRankModel(named).embed(torch.zeros(1, 3, 2, dtype=torch.int64))
    learned = SoftRankModel(replace(TINY, embedder={"kind": "learned", "num_items": 4}))
    with pytest.raises(ValueError, match="items must be ids from 0 to 3, got 0 to 4"):
        learned.embed(torch.tensor([[0, 4]]))
    with pytest.raises(ValueError, match=r"items must be \(B, N\) int64, got \(1, 2\) torch.float32"):
        learned.embed(torch.zeros(1, 2))
    with pytest.raises(ValueError, match=r"the embedder must return \(1, 3, 16\), got \(1, 3, 8\)"):
        SoftRankModel(TINY, nn.Linear(2, 8)).embed(torch.zeros(1, 3, 2))
