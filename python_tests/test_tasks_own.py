"""Data of one's own: arrays and datasets, padding, what is random."""

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

from softrank_ext import SoftRankConfig, SoftRankModel
from softrank_ext.model import DataFacts
from softrank_ext.tasks.own import Own

ITEMS = np.arange(2 * 3 * 2, dtype=np.float32).reshape(2, 3, 2)
ORDER = np.array([[1, 2, 0], [2, 0, 1]])


class Lengths(Dataset):
    """Row r has r + 1 items, all of value r + 1; the order moves the first to the back."""

    def __len__(self):
        return 4

    def __getitem__(self, row):
        return torch.full((row + 1, 2), row + 1.0), torch.arange(row + 1).roll(-1)


def test_arrays():
    task = Own((ITEMS, ORDER))
    assert task.max_items() == 3 and task.embedder() == {"kind": "linear", "features": 2}
    batch = task.training_batch(0, 0, 2)
    assert sorted(batch.order.tolist()) == [[1, 2, 0], [2, 0, 1]] and batch.mask is None
    (test,) = task.test_batches(2, 8)
    assert test.order.tolist() == ORDER.tolist() and test.items.tolist() == ITEMS.tolist()
    model = SoftRankModel(SoftRankConfig(d_model=16, heads=2, embedder=task.embedder()))
    assert model.embed(test.items).shape == (2, 3, 16)


def test_datasets_are_padded():
    task = Own(Lengths())
    assert task.max_items() == 4
    (batch,) = task.test_batches(4, 4)
    assert batch.items.shape == (4, 4, 2) and batch.mask.sum(1).tolist() == [1, 2, 3, 4]
    assert batch.order.tolist() == [[0, 1, 2, 3], [1, 0, 2, 3], [1, 2, 0, 3], [1, 2, 3, 0]]
    assert torch.equal(batch.items[..., 0] > 0, batch.mask)
    (last,) = list(task.test_batches(4, 3))[1:]
    assert last.mask is None
    assert [score.tolist() for score in task.score(batch, batch.order).values()] == [[1.0] * 4] * 4
    # The order given in full is wrong from the second instance on, and padding does not count.
    wrong = task.score(batch, torch.arange(4).expand(4, 4).contiguous())
    assert wrong["correctness"].tolist() == [1, 0, 0, 0] and wrong["accuracy"].tolist() == [1, 0, 0, 0]


def test_training_takes_every_pair_once_per_pass():
    task = Own(Lengths())
    drawn = [task.training_batch(0, step, 2) for step in range(4)]
    lengths = torch.cat([(batch.items[..., 0] > 0).sum(1) for batch in drawn]).tolist()
    assert sorted(lengths[:4]) == [1, 2, 3, 4] == sorted(lengths[4:])
    again = Own(Lengths()).training_batch(0, 3, 2)
    assert torch.equal(again.items, drawn[3].items) and torch.equal(again.order, drawn[3].order)


def test_ids_and_an_embedder_of_ones_own():
    ids = np.array([[5, 6, 7], [7, 5, 6]])
    assert Own((ids, ORDER)).embedder() is None
    task = Own((ids, ORDER), (ids[:1], ORDER[:1]), embedder={"kind": "learned", "num_items": 8}, max_items=9)
    assert task.embedder() == {"kind": "learned", "num_items": 8} and task.max_items() == 9
    assert [len(batch.order) for batch in task.test_batches(1, 4)] == [1]


def test_lists_of_pairs():
    task = Own([([[0.1], [0.2], [0.3]], [1, 2, 0])])
    assert task.training_batch(0, 0, 1).order.tolist() == [[1, 2, 0]]


def test_data_facts_are_the_numbers_of_items():
    assert Own((ITEMS, ORDER)).data_facts() == DataFacts(num_items=(3, 3))
    sizes = [len(order) for _, order in (Lengths()[row] for row in range(len(Lengths())))]
    assert min(sizes) < max(sizes)
    assert Own(Lengths()).data_facts() == DataFacts(num_items=(min(sizes), max(sizes)))
    # What was seen in training: the test data may have more.
    shorter = Own((ITEMS, ORDER), Lengths())
    assert shorter.data_facts() == DataFacts(num_items=(3, 3)) and shorter.max_items() == max(3, *sizes)
    assert Own(Lengths(), max_items=9).data_facts() == DataFacts(num_items=(1, 9))


def test_errors():
    with pytest.raises(ValueError, match="max_items must be an integer of at least 1, got 0"):
        Own((ITEMS, ORDER), max_items=0)
    with pytest.raises(TypeError, match="training must be a tuple of two arrays, items and order"):
        Own((ITEMS, ORDER, ORDER))
    with pytest.raises(
        ValueError, match=r"test must be items \(count, N, ...\) and order \(count, N\), got .* and \(3,\)"
    ):
        Own((ITEMS, ORDER), (ITEMS, ORDER[0]))
    with pytest.raises(ValueError, match="order of training must hold each of 0 to 2 once per row, row 1"):
        Own((ITEMS, np.array([[1, 2, 0], [1, 1, 0]])))

    class Stream(IterableDataset):
        def __iter__(self):
            return iter([(ITEMS[0], ORDER[0])])

    with pytest.raises(
        TypeError, match=r"training must have len\(\) and \[\], got Stream; iterable datasets do not resume"
    ):
        Own(Stream())
    with pytest.raises(ValueError, match="training is empty"):
        Own([])
    with pytest.raises(
        ValueError,
        match=r"pair 0 must be items \(N, ...\) and order \(N,\) int64, got \(3, 2\) float\d\d and \(2,\) int64",
    ):
        Own([(ITEMS[0], np.array([1, 0]))])
    with pytest.raises(ValueError, match="an instance has 4 items, max_items is 3"):
        next(Own(Lengths(), max_items=3).test_batches(4, 4))
    with pytest.raises(ValueError, match="the test data has 4 instances, 5 were asked for"):
        next(Own(Lengths()).test_batches(5, 5))
    repeated = Own([(ITEMS[0], np.array([1, 1, 0]))])
    with pytest.raises(ValueError, match="order must hold each of 0 to 2 once per row"):
        repeated.training_batch(0, 0, 1)


def heights(items, order):
    """A cost: items times place + 1."""
    return (items[..., 0].gather(1, order) * torch.arange(1, order.shape[1] + 1)).sum(1)


class Heights(Dataset):
    """Row r has r + 1 items, all of value r + 1."""

    def __len__(self):
        return 4

    def __getitem__(self, row):
        return torch.full((row + 1, 2), row + 1.0)


class TestCost:
    def test_arrays(self):
        task = Own(ITEMS, cost=heights)
        assert task.max_items() == 3 and task.embedder() == {"kind": "linear", "features": 2}
        assert task.data_facts() == DataFacts(num_items=(3, 3)) and task.cost is heights
        batch = task.training_batch(0, 0, 2)
        assert not batch.has_labels() and batch.mask is None
        assert batch.items.tolist() == ITEMS[batch.extras["instance"]].tolist()
        assert sorted(batch.extras["instance"].tolist()) == [0, 1]
        (test,) = task.test_batches(2, 8)
        assert test.items.tolist() == ITEMS.tolist() and test.known.tolist() == [0, 0]
        # 0 2 4 and 6 8 10
        assert task.score(test, torch.tensor(ORDER)) == {"cost": pytest.approx([2 + 8 + 0, 10 + 12 + 24])}
        assert Own(ITEMS, test=ITEMS[:1], cost=heights).training_batch(0, 0, 2).items.shape == (2, 3, 2)

    def test_datasets_are_padded_and_padding_costs_nothing(self):
        task = Own(Heights(), cost=heights)
        assert task.max_items() == 4 and task.data_facts() == DataFacts(num_items=(1, 4))
        (batch,) = task.test_batches(4, 4)
        assert batch.mask.sum(1).tolist() == [1, 2, 3, 4] and batch.extras["instance"].tolist() == [0, 1, 2, 3]
        assert batch.order.tolist() == [[0, 1, 2, 3]] * 4
        assert task.score(batch, batch.order)["cost"].tolist() == [1, 2 * 3, 3 * 6, 4 * 10]

    def test_functions_draw_by_seed_and_step(self):
        def instances(count, generator):
            return torch.rand(count, 5, 3, generator=generator)

        task = Own(instances, cost=heights)
        assert task.max_items() == 5 and task.embedder() == {"kind": "linear", "features": 3}
        first, again, second = (task.training_batch(0, step, 4) for step in (0, 0, 1))
        assert torch.equal(first.items, again.items) and not torch.equal(first.items, second.items)
        assert first.items.shape == (4, 5, 3) and first.extras == {}
        whole = torch.cat([batch.items for batch in task.test_batches(5, 5, seed=3)])
        parts = torch.cat([batch.items for batch in task.test_batches(5, 2, seed=3)])
        assert torch.equal(whole, parts) and len(whole.unique(dim=0)) == 5
        assert not torch.equal(whole, torch.cat([batch.items for batch in task.test_batches(5, 5, seed=4)]))

    def test_errors(self):
        with pytest.raises(TypeError, match=r"cost must be a function cost\(items, order\) -> \(rows,\), got int"):
            Own(ITEMS, cost=3)
        with pytest.raises(TypeError, match="training must be items alone, since a cost is given, got a tuple of 2"):
            Own((ITEMS, ORDER), cost=heights)
        with pytest.raises(TypeError, match="test must be items alone, since a cost is given, got tuple in row 0"):
            Own(ITEMS, test=Lengths(), cost=heights)
        with pytest.raises(
            ValueError, match=r"training must be items \(count, N, ...\), at least one, got \(0, 3, 2\)"
        ):
            Own(ITEMS[:0], cost=heights)
        with pytest.raises(
            ValueError, match=r"training must draw a tensor of items \(1, N, ...\), got \(2, 3\) float32"
        ):
            Own(lambda count, generator: torch.zeros(2, 3), cost=heights)
        with pytest.raises(TypeError, match=r"training must have len\(\) and \[\], got int"):
            Own(3, cost=heights)
        with pytest.raises(ValueError, match="the test data has 2 instances, 3 were asked for"):
            list(Own(ITEMS, cost=heights).test_batches(3, 3))
        with pytest.raises(ValueError, match="an instance has 4 items, max_items is 3"):
            list(Own(Heights(), cost=heights, max_items=3).test_batches(4, 4))
