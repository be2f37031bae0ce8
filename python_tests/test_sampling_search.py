"""The state of a search: its pool, and the share of fresh draws."""

import pytest
import torch
from tqdm import tqdm

from softrank_ext import Drawing, Engine, Search
from softrank_ext.choices import Draw
from softrank_ext.constraints import ConstraintSettings
from softrank_ext.processes import Bridge
from softrank_ext.sampling.reverse import Call
from softrank_ext.sampling.search import Instances, SearchRows

pytestmark = pytest.mark.usefixtures("one_thread")


def first_item(items, order):
    """A cost of six values."""
    return order[:, 0].double() + 1


@pytest.fixture
def rows(make_model):
    torch.manual_seed(0)
    model, items = make_model("pointer"), torch.randn(2, 6, 2)
    process = Bridge(sampling_steps=1)
    call = Call(
        model, process, Draw(), ConstraintSettings(), Engine(), 0, False, model.packed_weights(), tqdm(disable=True)
    )
    every = torch.arange(6).expand(2, 6)
    searches = SearchRows(
        call, first_item, Search(), Instances(torch.arange(2), items, every, None, None), 1, Drawing()
    )
    searches.begin(16)
    return searches


def test_the_pool_is_ascending_and_different(rows):
    assert rows.pool.shape[1] == 8
    for costs, orders in zip(rows.pool_cost, rows.pool, strict=True):
        finite = costs[costs.isfinite()]
        assert torch.equal(finite, finite.unique())
        assert torch.equal(first_item(None, orders)[: len(finite)], finite)
    for number in range(1, 30):
        rows.take(rows.drawn(number))
        assert torch.equal(rows.pool_cost, rows.pool_cost.sort(1).values)


def test_the_share_follows_what_pays(rows):
    before = rows._fresh_share()
    rows.wins[0], rows.tries[0] = 5.0, 8.0
    assert (rows._fresh_share() > before).all()
    rows.wins[0], rows.wins[1], rows.tries[1] = 0.0, 5.0, 8.0
    assert (rows._fresh_share() < before).all()
