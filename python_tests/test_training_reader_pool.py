"""A pool of items read once: same loss as reading them, a reader that stays, pools by (seed, number)."""

from dataclasses import replace

import pytest
import torch
from synthetic_data import write_mnist
from synthetic_runs import assert_same_weights, weights_of
from synthetic_tasks import SortNumbers

from softrank_ext import SoftRankConfig, SoftRankModel, TrainConfig, train
from softrank_ext.batch import Batch
from softrank_ext.permutations import check_order
from softrank_ext.tasks import Pool
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.training.objectives import DenoisingLoss
from softrank_ext.training.reader_pool import ReaderPool

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = TrainConfig(6, 4, warmup=2, log_every=2, checkpoint_every=3, ema=0.9, pool=30, pool_updates=4)


@pytest.fixture
def task(tmp_path):
    return Sorting(6, 3, "light", root=str(write_mnist(tmp_path / "data")))


def small_model(task, **changes):
    torch.manual_seed(1)
    config = SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=task.embedder())
    return SoftRankModel(replace(config, **changes))


def test_a_pooled_list_has_the_numbers_of_its_items_in_order(task):
    pool = Pool(3, 1, 2500)
    items = torch.cat(list(task.pool_items(pool)))
    assert items.shape == (2500, 1, 28, 112) and items.dtype == torch.uint8
    digits = (items[:, 0, 14, 14::28].long() - 1) % 10  # as the synthetic pictures show them
    numbers = (digits * torch.tensor([1000, 100, 10, 1])).sum(1)
    seen = []
    for step in range(1, 9):
        batch = task.pooled_batch(pool, step, 5)
        check_order(batch.order)
        assert torch.equal(batch.extras["labels"], numbers[batch.items])
        assert (batch.extras["labels"].gather(1, batch.order).diff(dim=1) >= 0).all()
        seen.append(batch.items.flatten())
    assert len(torch.cat(seen).unique()) == len(torch.cat(seen))  # of one pass: every row once
    assert {len(rows) // 5 for rows in seen} <= {3, 4, 5, 6} and len({len(rows) for rows in seen}) > 1
    again = torch.cat(list(task.pool_items(pool)))
    assert torch.equal(items, again)
    for other in (Pool(3, 2, 2500), Pool(4, 1, 2500)):
        assert not torch.equal(items, next(task.pool_items(other))[: len(items)])


def test_the_loss_is_that_of_the_items_read(task):
    model = small_model(task, dropout=0.0)
    pool = ReaderPool(model, task, SETTINGS)
    loss, samples = DenoisingLoss(model), torch.arange(4)
    for iteration in (4, 5):  # on either side of a new pool
        rows = pool.batch(iteration)
        items = torch.cat(list(task.pool_items(Pool(0, (iteration - 1) // 4, 30))))[rows.items]
        wanted, _ = loss(Batch(items, rows.order), 0, samples)
        got, _ = loss(pool.read(rows, iteration), 0, samples)
        assert got.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert model.training


def test_the_reader_keeps_its_weights_and_a_resumed_run_repeats(task, tmp_path):
    model = small_model(task)
    before = weights_of(model)
    result = train(model, task, SETTINGS, tmp_path / "whole", quiet=True)
    after = weights_of(result.model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and not any(name.startswith("embedder.") for name in changed)
    assert any(name.startswith("decoder") for name in changed)

    class Stopping(Sorting):
        def pooled_batch(self, pool, step, size):
            if step == 6:
                raise RuntimeError("power cut")
            return super().pooled_batch(pool, step, size)

    stopping = Stopping(6, 3, "light", root=task.root)
    with pytest.raises(RuntimeError, match="power cut"):
        train(small_model(task), stopping, SETTINGS, tmp_path / "again", quiet=True)
    again = train(small_model(task), task, SETTINGS, tmp_path / "again", resume=True, quiet=True)
    assert_same_weights(weights_of(again.model), after)


def test_drafts_are_drawn_from_pooled_items(task, tmp_path):
    model = small_model(task, partial=True)
    settings = replace(SETTINGS, partial=0.9, drafts=0.9)
    assert train(model, task, settings, quiet=True).is_finished


def test_errors(task):
    with pytest.raises(ValueError, match="pool must be 0 for the task numbers, which has no pools of items, got 30"):
        train(small_model(task), SortNumbers(3), SETTINGS, quiet=True)
    with pytest.raises(ValueError, match="pool must be an integer of at least 0, got -1"):
        TrainConfig(pool=-1)
    with pytest.raises(ValueError, match="pool needs the objective \"likelihood\", got 'lookalike'"):
        TrainConfig(pool=10, objective="lookalike")
