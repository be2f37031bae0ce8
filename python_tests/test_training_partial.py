"""Training with a part of an order noised and the rest kept."""

import math
from dataclasses import replace

import pytest
import torch
from synthetic_tasks import SortNumbers

from softrank_ext import DataFacts, Rebuild, SoftRankConfig, SoftRankModel, TrainConfig, noise, sample, train
from softrank_ext.batch import Batch
from softrank_ext.permutations import arrange, ranks_of
from softrank_ext.training.objectives import DenoisingLoss, Noising, noisy_orders
from softrank_ext.training.partial import noised_items

pytestmark = pytest.mark.usefixtures("one_thread")
CONFIG = SoftRankConfig(
    16, 24, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, partial=True,
    embedder={"kind": "linear", "features": 1},
)  # fmt: skip


def free_places(batch, noised):
    return noised.gather(1, batch.order)


def orders(R, N, **fields):
    order = torch.rand(R, N, generator=torch.Generator().manual_seed(1)).argsort(1)
    return Batch(order, order, **fields)


class TestParts:
    def test_share_sizes_and_kinds(self):
        batch = orders(4000, 8)
        is_partial, noised = noised_items(CONFIG, 0.3, batch, 0, torch.arange(4000))
        assert abs(float(is_partial.double().mean()) - 0.3) < 0.03
        sizes = noised.sum(1)
        assert sorted(sizes.unique().tolist()) == [2, 3, 4, 5, 6, 7, 8]
        assert abs(float((sizes == 5).double().mean()) - 1 / 7) < 0.03
        is_free = free_places(batch, noised)[sizes == 3]
        is_stretch = (is_free[:, 1:] != is_free[:, :-1]).sum(1) + is_free[:, 0] + is_free[:, -1] == 2
        # Half are stretches, and of the 56 sets of three places 6 are.
        assert abs(float(is_stretch.double().mean()) - (0.5 + 0.5 * 6 / 56)) < 0.06

    def test_of_tours_stretches_are_tails_and_the_first_item_is_kept(self):
        batch = orders(500, 8)
        batch = Batch(batch.order, batch.order, first=batch.order[:, 0])
        config = replace(CONFIG, data=DataFacts("tour", fixed_start=True))
        _, noised = noised_items(config, 0.5, batch, 0, torch.arange(500))
        is_free = free_places(batch, noised)
        assert not is_free[:, 0].any()
        uniform = noise.uniform(0, torch.arange(500), 20, 12, stream=noise.TRAINING_STREAM, dtype=torch.float64)
        stretches = is_free[uniform[:, 3] < 0.5]
        assert stretches[:, -1].all() and (stretches[:, 1:] >= stretches[:, :-1]).all()

    def test_padding_is_never_noised_and_short_rows_are_whole(self):
        mask = torch.tensor(
            [[True] * 6, [True, True, False, True, False, False], [True, False, False, True, False, False]]
        )
        order = torch.tensor([[2, 0, 4, 1, 5, 3], [3, 0, 1, 2, 4, 5], [3, 0, 1, 2, 4, 5]])
        batch = Batch(order, order, mask)
        for seed in range(50):
            is_partial, noised = noised_items(CONFIG, 0.9, batch, seed, torch.arange(3))
            assert not (noised & ~mask)[is_partial].any() and not is_partial[2]

    def test_rows_that_know_only_leading_places_are_whole(self):
        batch = orders(100, 6, known=torch.full((100,), 6).index_fill(0, torch.arange(50), 3))
        is_partial, _ = noised_items(CONFIG, 0.99, batch, 0, torch.arange(100))
        assert not is_partial[:50].any() and is_partial[50:].sum() > 40


class TestNoise:
    def test_kept_items_stand_where_they_stood(self):
        batch = SortNumbers(7).training_batch(0, 1, 300)
        noisy = noisy_orders(CONFIG, Noising(partial=0.6), batch, 0, torch.arange(300))
        assert 100 < int(noisy.kept.any(1).sum()) < 250
        assert torch.equal(ranks_of(noisy.order_t)[noisy.kept], ranks_of(batch.order)[noisy.kept])
        whole = noisy_orders(CONFIG, Noising(), batch, 0, torch.arange(300))
        rest = ~noisy.kept.any(1)
        is_all = noised_items(CONFIG, 0.6, batch, 0, torch.arange(300))[0][rest]
        assert torch.equal(noisy.order_t[rest][~is_all], whole.order_t[rest][~is_all])

    def test_at_time_one_the_part_is_uniform(self):
        config = replace(CONFIG, time_steps=1)
        order = torch.tensor([[2, 0, 3, 1]]).expand(60000, 4)
        noisy = noisy_orders(config, Noising(partial=0.99), Batch(order, order), 0, torch.arange(60000))
        is_kept = noisy.kept == torch.tensor([False, False, True, False])
        orders_t = noisy.order_t[is_kept.all(1)]
        assert len(orders_t) > 2000 and (orders_t[:, 0] == 2).all()
        counts = (orders_t[:, 1:] * torch.tensor([16, 4, 1])).sum(1).unique(return_counts=True)[1]
        expected = len(orders_t) / 6
        assert len(counts) == 6 and float(((counts - expected) ** 2 / expected).sum()) < 20.5  # p = 0.001


class TestLoss:
    def test_of_a_model_without_preference_counts_the_noised_items_alone(self):
        torch.manual_seed(0)
        model = SoftRankModel(CONFIG)
        torch.nn.init.zeros_(model.head.weight)
        batch = SortNumbers(6).training_batch(0, 1, 40)
        loss, _ = DenoisingLoss(model, partial=0.5)(batch, 0, torch.arange(40))
        is_partial, noised = noised_items(CONFIG, 0.5, batch, 0, torch.arange(40))
        sizes = torch.where(is_partial, noised.sum(1), 6)
        assert 0 < int(is_partial.sum()) < 40
        assert float(loss.detach()) == pytest.approx(
            sum(math.lgamma(size + 1) for size in sizes.tolist()) / 40, abs=1e-5
        )

    @pytest.mark.parametrize("head", ["pointer", "linear", "gpl"])
    def test_the_loss_is_the_law_of_the_draws(self, make_model, head):
        """`log_prob` with what is kept gives the log-probability that `sample` reports for what it drew."""
        model, items = make_model(head, torch.float64, partial=True), torch.randn(6, 7, 2, dtype=torch.float64)
        order = torch.rand(6, 7).argsort(1)
        noised = torch.rand(6, 7) < 0.6
        drawn = sample(model, items, start=Rebuild(order, noised, t=0.6), steps=1, seed=0, record=True)
        order_t = drawn.trajectory[0].order[:, 0]
        embedded = arrange(model.marked(model.embed(items), ~noised), order_t)
        slots = ranks_of(order_t).gather(1, drawn.order[:, 0])
        kept_t = arrange(~noised, order_t)
        per_place = model.log_prob(embedded, 0.6, slots, kept=kept_t, is_embedded=True).per_place
        torch.testing.assert_close(per_place.masked_fill(kept_t, 0.0).sum(1), drawn.log_prob[:, 0])

    def test_gradients_are_finite(self):
        torch.manual_seed(0)
        model = SoftRankModel(CONFIG)
        loss, _ = DenoisingLoss(model, partial=0.9)(
            SortNumbers(6, padded=2).training_batch(0, 1, 20), 0, torch.arange(20)
        )
        loss.backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        assert float(model.kept_mark.grad.abs().sum()) > 0

    def test_a_model_without_marks_refuses(self):
        with pytest.raises(ValueError, match=r"partial noise needs a model with SoftRankConfig\(partial=True\)"):
            DenoisingLoss(SoftRankModel(replace(CONFIG, partial=False)), partial=0.5)
        with pytest.raises(ValueError, match=r"partial must be at least 0 and below 1, got 1\.5"):
            TrainConfig(partial=1.5)


def test_a_trained_model_rebuilds_what_it_is_asked_to():
    torch.manual_seed(0)
    model, task = SoftRankModel(replace(CONFIG, d_model=32, feed_forward=64)), SortNumbers(6)
    config = TrainConfig(iterations=300, batch_size=64, warmup=20, learning_rate=3e-3, partial=0.6, ema=0.9)
    model = train(model, task, config, quiet=True).model
    batch = next(iter(task.test_batches(200, 200)))
    noised = torch.rand(200, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    shuffled = batch.order.clone()
    start = sample(model, batch.items, start=Rebuild(shuffled, noised), decode="greedy", seed=0)
    assert float((start.order[:, 0] == batch.order).all(1).double().mean()) > 0.8
    # A wrong part that is kept stays.
    wrong = torch.rand(200, 6).argsort(1)
    kept = sample(model, batch.items, start=Rebuild(wrong, noised), decode="greedy", seed=0)
    assert torch.equal(kept.ranks[:, 0][~noised], ranks_of(wrong)[~noised])
