"""Losses by hand: what the network is asked, and that a model without preference has the logarithm of the choices."""

import math

import numpy as np
import pytest
import torch
from synthetic_runs import tiny_model
from synthetic_tasks import SortNumbers

from softrank_ext import Bridge, DataFacts, SoftRankModel
from softrank_ext.batch import Batch
from softrank_ext.training.objectives import DenoisingLoss, times_from


class TestLoss:
    @pytest.mark.parametrize(
        ("task", "counted"),
        [
            (SortNumbers(5), 5 * 4 * 3 * 2),
            (SortNumbers(6, padded=2), 4 * 3 * 2),
            (SortNumbers(5, first=True), 4 * 3 * 2),
            (SortNumbers(5, known=2), 5 * 4),
            (SortNumbers(6, padded=2, first=True, known=3), 3 * 2),
            (SortNumbers(1), 1),
        ],
        ids=lambda value: "",
    )
    @pytest.mark.parametrize("draws", (1, 3))
    def test_of_a_model_without_preference_is_the_logarithm_of_the_choices(self, task, counted, draws):
        model = tiny_model(data=DataFacts(fixed_start=task.first))
        torch.nn.init.zeros_(model.head.weight)
        batch = task.training_batch(0, 1, 7)
        loss, _ = DenoisingLoss(model, draws=draws)(batch, 0, torch.arange(7))
        assert float(loss.detach()) == pytest.approx(math.log(counted), abs=1e-5)

    def test_per_place_divides_by_the_places_counted(self):
        model = tiny_model(data=DataFacts(fixed_start=True)).eval()
        batch = SortNumbers(6, padded=2, first=True).training_batch(0, 1, 7)
        loss, per_place = DenoisingLoss(model)(batch, 0, torch.arange(7))
        assert float(per_place) == pytest.approx(float(loss.detach()) / 3, rel=1e-5)

    @pytest.fixture
    def seen(self, monkeypatch):
        """What the network is asked: (items as it sees them, t, target slots, mask) of each call."""
        calls = []
        original = SoftRankModel.log_prob

        def log_prob(self, items, t, order, mask=None, *, is_embedded=False):
            calls.append((items.detach(), t, order, mask))
            return original(self, items, t, order, mask, is_embedded=is_embedded)

        monkeypatch.setattr(SoftRankModel, "log_prob", log_prob)
        return calls

    @pytest.mark.parametrize("task", [SortNumbers(6), SortNumbers(6, padded=2), SortNumbers(6, first=True)], ids=str)
    @pytest.mark.parametrize("draws", (1, 2))
    def test_target_slots_put_the_seen_items_in_order(self, seen, task, draws):
        model = tiny_model(dropout=0.0, data=DataFacts(fixed_start=task.first))
        batch = task.training_batch(0, 1, 50)
        DenoisingLoss(model, draws=draws)(batch, 0, torch.arange(50))
        items, _, slots, mask = seen[0]
        rows = torch.arange(50 * draws)[:, None]
        clean = batch.items[rows // draws, batch.order[rows[:, 0] // draws]]
        real = task.num_items - task.padded
        torch.testing.assert_close(items[rows, slots][:, :real], model.embed(clean)[:, :real], rtol=0, atol=1e-6)
        if mask is not None:
            assert bool(mask[:, :real].all()) and not bool(mask[:, real:].any())
        if task.first:
            assert not bool(slots[:, 0].any()), "what is fixed at place 0 is in slot 0"
            assert bool((slots[:, 1:] != torch.arange(1, 6)).any()), "the others are shuffled"

    def test_draws_of_an_instance_differ(self, seen):
        DenoisingLoss(tiny_model(), draws=2)(SortNumbers(6).training_batch(0, 1, 50), 0, torch.arange(50))
        slots = seen[0][2].view(50, 2, 6)
        assert float((slots[:, 0] != slots[:, 1]).any(1).float().mean()) > 0.5

    def test_times(self, seen):
        batch, samples = SortNumbers(2).training_batch(0, 1, 5000), torch.arange(5000)
        DenoisingLoss(tiny_model())(batch, 0, samples)
        DenoisingLoss(tiny_model(time="continuous"))(batch, 0, samples)
        values, counts = seen[0][1].unique(return_counts=True)
        torch.testing.assert_close(values, torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0]))
        assert float(((counts - 1000.0) ** 2 / 1000).sum()) < 18.5  # chi-square of 4 degrees at 0.001
        continuous = seen[1][1].sort().values
        assert float(continuous[0]) > 0 and float(continuous[-1]) <= 1
        ends = torch.tensor([0.0, 1 - 2**-24])
        assert times_from(tiny_model().config, ends).tolist() == pytest.approx([0.2, 1.0])
        assert times_from(tiny_model(time="continuous").config, ends).tolist() == [1.0, 2**-24]
        expected = torch.linspace(0, 1, 5000)
        assert float((continuous - expected).abs().max()) < 1.95 / math.sqrt(5000)  # Kolmogorov at 0.001

    @pytest.mark.parametrize("prior", ("uniform", "gaussian"))
    @pytest.mark.parametrize("target", ("clean", "previous"))
    def test_noisy_orders_have_the_bridge_s_law(self, seen, prior, target):
        """How often the target equals the seen order, by time, against the formulas simulated in numpy."""
        size, N, steps, scale = 20_000, 3, 2, 0.5
        batch = SortNumbers(N).training_batch(0, 1, size)
        process = Bridge(scale, prior, target=target, sampling_steps=steps)
        loss = DenoisingLoss(tiny_model(time_steps=steps, process=process))
        loss(batch, 5, torch.arange(size))
        _, t, slots, _ = seen[0]
        is_kept = (slots == torch.arange(N)).all(1)

        random = np.random.default_rng(1)

        def fold(x):
            return np.abs((x + 1) % 2 - 1)

        z_clean = np.tile(np.linspace(0, 1, N), (10 * size, 1))
        z_prior = random.random(z_clean.shape) if prior == "uniform" else fold(random.normal(size=z_clean.shape))
        for time in (0.5, 1.0):
            z_t = fold(
                (1 - time) * z_clean
                + time * z_prior
                + scale * math.sqrt(time * (1 - time)) * random.normal(size=z_clean.shape)
            )
            z_target = z_clean
            if target == "previous" and time == 1.0:
                z_target = fold(0.5 * z_clean + 0.5 * z_t + scale * math.sqrt(0.25) * random.normal(size=z_clean.shape))
            expected = (z_t.argsort(1) == z_target.argsort(1)).all(1).mean()
            got = float(is_kept[t == time].double().mean())
            assert got == pytest.approx(expected, abs=4 * math.sqrt(0.25 / (size / 2)))

    def test_noise_belongs_to_the_sample(self):
        model, batch = tiny_model(dropout=0.0), SortNumbers(6).training_batch(0, 1, 8)
        loss = DenoisingLoss(model)
        whole, _ = loss(batch, 0, torch.arange(8))
        halves = [
            loss(Batch(batch.items[rows], batch.order[rows]), 0, torch.arange(8)[rows])[0]
            for rows in (slice(0, 4), slice(4, 8))
        ]
        torch.testing.assert_close(whole, (halves[0] + halves[1]) / 2)
        assert float(whole.detach()) != float(loss(batch, 1, torch.arange(8))[0].detach())

    def test_says_what_is_wrong(self):
        with pytest.raises(ValueError, match="times must be one of 'drawn', 'all', got 'some'"):
            DenoisingLoss(tiny_model(), times="some")
        with pytest.raises(ValueError, match="draws must be an integer of at least 1, got 0"):
            DenoisingLoss(tiny_model(), draws=0)
        with pytest.raises(ValueError, match='times "all" are those of a grid'):
            DenoisingLoss(tiny_model(time="continuous"), times="all")
        batch = SortNumbers(5, known=2).training_batch(0, 1, 3)
        with pytest.raises(ValueError, match='target "previous" needs whole orders'):
            DenoisingLoss(tiny_model(process=Bridge(target="previous")))(batch, 0, torch.arange(3))
