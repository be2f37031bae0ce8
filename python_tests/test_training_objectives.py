"""What training minimises: losses by hand, noisy orders and their times by their laws."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic_tasks import SortNumbers
from testing import all_orders, chi_square, counts_of
from testing.tiny_models import small_model

from softrank_ext import Bridge, DataFacts, Riffle, SoftRankConfig, SoftRankModel, noise
from softrank_ext.batch import Batch
from softrank_ext.laws import Riffle as RiffleLaw
from softrank_ext.permutations import ranks_of
from softrank_ext.training import TrainConfig, train
from softrank_ext.training.objectives import (
    OBJECTIVES,
    DenoisingLoss,
    LookalikeLoss,
    Noising,
    noisy_orders,
    times_from,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def tiny_model(fixed_start: bool = False, **changes: object) -> SoftRankModel:
    torch.manual_seed(3)
    embedder = {"kind": "linear", "features": 1}
    data = DataFacts(fixed_start=fixed_start)
    config = SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=embedder, data=data)
    return SoftRankModel(dataclasses.replace(config, **changes))


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
        model = tiny_model(fixed_start=True)
        torch.nn.init.zeros_(model.head.weight)
        batch = task.training_batch(0, 1, 7)
        loss, _ = DenoisingLoss(model, noisy_orders=draws)(batch, 0, torch.arange(7))
        assert float(loss.detach()) == pytest.approx(math.log(counted), abs=1e-5)

    def test_per_place_divides_by_the_places_counted(self):
        model = tiny_model(fixed_start=True).eval()
        batch = SortNumbers(6, padded=2, first=True).training_batch(0, 1, 7)
        loss, per_place = DenoisingLoss(model)(batch, 0, torch.arange(7))
        assert float(per_place) == pytest.approx(float(loss.detach()) / 3, rel=1e-5)

    @pytest.fixture
    def seen(self, monkeypatch):
        """What the network is asked: (items as it sees them, t, target slots, mask) of each call."""
        calls = []
        original = SoftRankModel.log_prob

        def log_prob(self, items, t, order, mask=None, *, kept, is_embedded=False):
            calls.append((items.detach(), t, order, mask))
            return original(self, items, t, order, mask, is_embedded=is_embedded)

        monkeypatch.setattr(SoftRankModel, "log_prob", log_prob)
        return calls

    @pytest.mark.parametrize("task", [SortNumbers(6), SortNumbers(6, padded=2), SortNumbers(6, first=True)], ids=str)
    @pytest.mark.parametrize("draws", (1, 2))
    def test_target_slots_put_the_seen_items_in_order(self, seen, task, draws):
        model = tiny_model(dropout=0.0, fixed_start=True)
        batch = task.training_batch(0, 1, 50)
        DenoisingLoss(model, noisy_orders=draws)(batch, 0, torch.arange(50))
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
        DenoisingLoss(tiny_model(), noisy_orders=2)(SortNumbers(6).training_batch(0, 1, 50), 0, torch.arange(50))
        slots = seen[0][2].view(50, 2, 6)
        assert float((slots[:, 0] != slots[:, 1]).any(1).float().mean()) > 0.5

    def test_times(self, seen):
        batch, samples = SortNumbers(2).training_batch(0, 1, 5000), torch.arange(5000)
        DenoisingLoss(tiny_model(time_steps=5))(batch, 0, samples)
        DenoisingLoss(tiny_model(time="continuous"))(batch, 0, samples)
        values, counts = seen[0][1].unique(return_counts=True)
        torch.testing.assert_close(values, torch.tensor([0.2, 0.4, 0.6, 0.8, 1.0]))
        assert float(((counts - 1000.0) ** 2 / 1000).sum()) < 18.5  # chi-square of 4 degrees at 0.001
        continuous = seen[1][1].sort().values
        assert float(continuous[0]) > 0 and float(continuous[-1]) <= 1
        ends = torch.tensor([0.0, 1 - 2**-24])
        assert times_from(tiny_model(time_steps=5).config, ends).tolist() == pytest.approx([0.2, 1.0])
        assert times_from(tiny_model(time="continuous").config, ends).tolist() == [1.0, 2**-24]
        DenoisingLoss(tiny_model(time_steps=5), prior_share=0.5)(batch, 0, samples)
        counts = seen[2][1].unique(return_counts=True)[1]
        shares = torch.tensor([0.1, 0.1, 0.1, 0.1, 0.6]) * 5000
        assert float(((counts - shares) ** 2 / shares).sum()) < 18.5
        assert times_from(tiny_model(time="continuous").config, torch.tensor([0.2, 0.5, 0.75]), 0.5).tolist() == [
            1.0, 1.0, 0.5
        ]  # fmt: skip
        expected = torch.linspace(0, 1, 5000)
        assert float((continuous - expected).abs().max()) < 1.95 / math.sqrt(5000)  # Kolmogorov at 0.001

    @pytest.mark.parametrize("prior", ("uniform", "gaussian"))
    @pytest.mark.parametrize("target", ("clean", "previous"))
    def test_noisy_orders_have_the_bridge_s_law(self, seen, prior, target):
        """How often the target equals the seen order, by time, against the formulas simulated in numpy."""
        size, N, steps, scale = 20_000, 3, 2, 0.5
        batch = SortNumbers(N).training_batch(0, 1, size)
        process = Bridge(scale, prior, target=target, sampling_steps=steps)
        DenoisingLoss(tiny_model(time_steps=steps, process=process))(batch, 5, torch.arange(size))
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
        with pytest.raises(ValueError, match="noisy_orders must be an integer of at least 1, got 0"):
            DenoisingLoss(tiny_model(), noisy_orders=0)
        with pytest.raises(ValueError, match='times "all" are those of a grid'):
            DenoisingLoss(tiny_model(time="continuous"), times="all")
        batch = SortNumbers(5, known=2).training_batch(0, 1, 3)
        with pytest.raises(ValueError, match='target "previous" needs whole orders'):
            DenoisingLoss(tiny_model(process=Bridge(target="previous")))(batch, 0, torch.arange(3))

    def test_by_hand(self):
        """Two lists of three numbers scored by their value alone: Plackett-Luce, written out."""
        model = small_model(Bridge(), "pl", N=3)

        class ByValue(torch.nn.Module):
            def forward(self, memory):
                return memory[..., :1]

        model.head, model.encode = ByValue(), lambda embedded, t, mask: embedded
        model.embed = lambda items, mask: torch.nn.functional.pad(items, (0, 15))
        items = torch.tensor([[[0.5], [2.0], [-1.0]], [[1.0], [0.0], [3.0]]])
        order = torch.tensor([[1, 0, 2], [0, 2, 1]])

        def log_prob(values: list[float]) -> float:
            return sum(value - math.log(sum(math.exp(other) for other in values[place:]))
                       for place, value in enumerate(values))  # fmt: skip

        wanted = -(log_prob([2.0, 0.5, -1.0]) + log_prob([1.0, 3.0, 0.0])) / 2
        for draws, times in ((1, "drawn"), (3, "drawn"), (2, "all")):
            loss, per_place = DenoisingLoss(model, noisy_orders=draws, times=times)(
                Batch(items, order), 0, torch.arange(2)
            )
            assert float(loss) == pytest.approx(wanted, abs=1e-5)
            assert float(per_place) == pytest.approx(wanted / 3, abs=1e-5)
        # A place that is not known is not counted, nor is one that is fixed.
        known = Batch(items, order, known=torch.tensor([1, 3]))
        first_place = 2.0 - math.log(math.exp(2.0) + math.exp(0.5) + math.exp(-1.0))
        loss, per_place = DenoisingLoss(model)(known, 0, torch.arange(2))
        wanted = -(first_place + log_prob([1.0, 3.0, 0.0]))
        assert float(loss) == pytest.approx(wanted / 2, abs=1e-5)
        assert float(per_place) == pytest.approx(wanted / 4, abs=1e-5)
        tours = small_model(Bridge(), "pl", N=3, fixed_start=True)
        tours.head, tours.encode, tours.embed = model.head, model.encode, model.embed
        loss, _ = DenoisingLoss(tours)(Batch(items, order, first=order[:, 0].clone()), 0, torch.arange(2))
        wanted = -(log_prob([0.5, -1.0]) + log_prob([3.0, 0.0])) / 2
        assert float(loss) == pytest.approx(wanted, abs=1e-5)

    @pytest.mark.parametrize("carry", ("exact", "reflected"))
    def test_of_a_model_that_reads_soft_ranks(self, carry):
        """Row by row, without padding, with the state that was drawn: unfolded, or folded where samples carry that."""
        process = Bridge(1.3, carry=carry)
        model = small_model(process, "pointer", fixed_start=True, time="continuous", reads="soft-ranks")
        batch, samples = SortNumbers(5, first=True, padded=1).training_batch(0, 1, 6), torch.arange(6)
        batch = replace(batch, items=batch.items.masked_fill(~batch.mask[..., None], torch.nan))
        noisy = noisy_orders(model.config, Noising(noisy_orders=2), batch, 3, samples)
        rows, total = noise.RowNoise(3, noisy.samples, 5, mask=noisy.batch.mask, first=noisy.batch.first), 0.0
        z_t = process.draw_noisy(noisy.batch.order, noisy.t, rows, 2).z_t
        is_inside = ((z_t >= 0) & (z_t <= 1))[noisy.batch.mask].all()
        assert bool(is_inside) == (carry == "reflected")
        for row in range(12):
            items, order_t = batch.items[row // 2], noisy.order_t[row, :4]
            embedded = model.embedder(items[order_t]) + model.soft_rank_embedder(z_t[row : row + 1, order_t])[0]
            slots = ranks_of(noisy.order_t)[row][noisy.target[row, :4]]
            per_place = model.log_prob(embedded[None], noisy.t[row], slots[None], is_embedded=True).per_place
            total -= float(per_place[0, 1:].detach().sum())
        loss, _ = DenoisingLoss(model, noisy_orders=2)(batch, 3, samples)
        assert float(loss.detach()) == pytest.approx(total / 12, abs=1e-4)
        loss.backward()
        assert model.soft_rank_embedder.projection.weight.grad.abs().min() > 0

    @pytest.mark.parametrize("process", [Bridge(), Riffle((0, 1, 3), "previous")], ids=("bridge", "riffle"))
    def test_a_fixed_first_item_needs_a_model_that_knows_of_it(self, process):
        batch = SortNumbers(4, first=True).training_batch(0, 1, 3)
        message = (
            r"batch\.first fixes the items at place 0: the model's config needs data=DataFacts\(fixed_start=True\)"
        )
        with pytest.raises(ValueError, match=message):
            DenoisingLoss(small_model(process))(batch, 0, torch.arange(3))
        loss, _ = DenoisingLoss(small_model(process, fixed_start=True))(batch, 0, torch.arange(3))
        assert loss.isfinite()


def test_the_process_is_the_model_s_own():
    batch, samples = SortNumbers(6).training_batch(0, 1, 200), torch.arange(200)

    def orders_of(process: Bridge) -> torch.Tensor:
        return noisy_orders(small_model(process).config, Noising(), batch, 3, samples).order_t

    default = orders_of(Bridge())
    assert torch.equal(default, orders_of(Bridge(carry="reflected", sampling_steps=9))), "these are for samples"
    assert not torch.equal(default, orders_of(Bridge(noise_scale=0.1)))
    assert not torch.equal(default, orders_of(Bridge(prior="gaussian")))


def test_names():
    assert {"likelihood": DenoisingLoss, "lookalike": LookalikeLoss} == OBJECTIVES


def test_the_loss_counts_all_times():
    model, batch = small_model(Bridge(sampling_steps=2), "pl", time_steps=3), SortNumbers(4).training_batch(0, 1, 5)
    torch.nn.init.zeros_(model.head[2].weight)
    loss, per_place = DenoisingLoss(model, times="all", noisy_orders=2)(batch, 0, torch.arange(5))
    assert float(loss.detach()) == pytest.approx(math.log(24), abs=1e-5)
    assert float(per_place) == pytest.approx(math.log(24) / 4, abs=1e-5)


class TestNoisyOrders:
    size = 20_000

    def noisy(self, target: str, times: str = "drawn", draws: int = 1, task: SortNumbers | None = None):
        batch = (task or SortNumbers(4)).training_batch(0, 1, self.size)
        config = small_model(Riffle((0, 1, 3), target), fixed_start=True).config
        return batch, noisy_orders(config, Noising(noisy_orders=draws, times=times), batch, 3, torch.arange(self.size))

    @pytest.mark.parametrize("target", ("clean", "previous"))
    def test_have_the_law_of_riffles(self, target):
        batch, noisy = self.noisy(target)
        riffles = (noisy.t * 3).round()
        assert riffles.unique().tolist() == [1, 3]
        for last, before in ((1, 0), (3, 1 if target == "previous" else 0)):
            rows = riffles == last
            seen = ranks_of(batch.order).gather(1, noisy.order_t)[rows]  # places of the clean list
            assert chi_square(counts_of(seen), RiffleLaw(4, last).log_prob(all_orders(4)).double().exp()) > 0.001
            jump = ranks_of(noisy.target).gather(1, noisy.order_t)[rows]
            law = RiffleLaw(4, last - before).log_prob(all_orders(4)).double().exp()
            assert chi_square(counts_of(jump), law) > 0.001
            if target == "clean":
                assert torch.equal(noisy.target, batch.order)
        inverse = ranks_of(noisy.order_t).gather(1, noisy.target)[rows]
        assert chi_square(counts_of(inverse), law) < 1e-6, "the way back has another law"

    def test_all_times_are_of_one_trajectory(self):
        batch, noisy = self.noisy("previous", times="all", draws=3)
        assert noisy.repeats == 6 and noisy.t.tolist()[:4] == pytest.approx([1, 1 / 3, 1, 1 / 3])
        order_t, target = (x.view(self.size, 3, 2, 4) for x in (noisy.order_t, noisy.target))
        assert torch.equal(target[:, :, 0], order_t[:, :, 1]), "the target of the last time is the order before it"
        assert torch.equal(target[:, :, 1], batch.order[:, None].expand(-1, 3, -1))
        assert not torch.equal(order_t[:, 0], order_t[:, 1]), "draws differ"

    def test_first_stays_first_and_padding_last(self):
        task = SortNumbers(5, first=True, padded=1)
        batch, noisy = self.noisy("previous", task=task)
        for order in (noisy.order_t, noisy.target):
            assert torch.equal(order[:, 0], batch.first)
            assert bool((order[:, 4] == 4).all())
        assert int((noisy.order_t != batch.order).any(1).sum()) > self.size / 4


class TestReinforce:
    def batch(self):
        return SortNumbers(3).training_batch(0, 1, 2)

    def test_by_hand(self):
        """Candidates drawn again from the same numbers; weights, running mean and loss written out."""
        model, batch = small_model(Riffle((0, 2), "previous"), N=3), self.batch()
        loss_module = LookalikeLoss(model, candidates=4, entropy=0.1, memory=0.75).train()
        noisy = noisy_orders(model.config, Noising(), batch, 5, torch.arange(2))
        items = batch.items[..., 0].tolist()
        for mean_before, mean_after in ((0.0, None), (None, None)):
            mean_before = float(loss_module.running_mean) if mean_before is None else mean_before
            losses, all_weights = [], []
            for row in range(2):
                order_t, target = noisy.order_t[row], noisy.target[row]
                seen = batch.items[row, order_t]
                drawn, log_probs, squares = [], [], []
                for number in range(4):
                    uniform = noise.uniform(
                        5, torch.tensor([row]), 4 + number, 3, stream=noise.TRAINING_STREAM, dtype=torch.float64
                    )
                    slots = model.double().decode(seen[None].double(), 1.0, uniform=uniform).order[0]
                    model.float()
                    drawn.append(slots)
                    log_probs.append(float(model.log_prob(seen[None], 1.0, slots[None]).total.detach()))
                    squares.append(
                        sum((items[row][int(target[i])] - items[row][int(order_t[slots[i]])]) ** 2 for i in range(3))
                    )
                total = sum(math.exp(-square / 2) for square in squares)
                weights = [math.exp(-s / 2) / total - 0.1 * p for s, p in zip(squares, log_probs, strict=True)]
                losses.append(-sum((w - mean_before) * p for w, p in zip(weights, log_probs, strict=True)))
                all_weights += weights
            loss, _ = loss_module(batch, 5, torch.arange(2))
            assert float(loss.detach()) == pytest.approx(sum(losses) / 2, abs=1e-4)
            mean_after = 0.75 * mean_before + 0.25 * sum(all_weights) / 8
            assert float(loss_module.running_mean) == pytest.approx(mean_after, abs=1e-4)

    def test_its_running_mean_survives_a_stop(self, tmp_path):
        config = TrainConfig(
            iterations=6, batch_size=2, warmup=0, log_every=1, checkpoint_every=3, objective="lookalike", ema=0
        )
        whole = train(small_model(N=3), SortNumbers(3), config, tmp_path / "whole", quiet=True).model

        class Stopped(Exception):
            pass

        class Stopping(SortNumbers):
            def training_batch(self, seed, step, size):
                if step == 5:
                    raise Stopped
                return super().training_batch(seed, step, size)

        slow = replace(config, prefetch=False)
        with pytest.raises(Stopped):
            train(small_model(N=3), Stopping(3), slow, tmp_path / "parts", quiet=True)
        parts = train(small_model(N=3), SortNumbers(3), config, tmp_path / "parts", resume=True, quiet=True).model
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, parts.state_dict()[name]), name

    def test_says_what_is_wrong(self):
        with pytest.raises(ValueError, match="the objective lookalike needs a gpl or pl head, got pointer"):
            LookalikeLoss(small_model(head="pointer"))
        with pytest.raises(ValueError, match="needs whole orders without a fixed first item"):
            LookalikeLoss(small_model())(SortNumbers(4, first=True).training_batch(0, 1, 2), 0, torch.arange(2))


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # of torch's own switch
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_half_precision_and_autocast(dtype):
    """The loss and its gradients are those of float32 but for rounding; log-probabilities are summed in float32."""
    batch, samples = SortNumbers(6).training_batch(0, 1, 20), torch.arange(20)
    wanted = float(DenoisingLoss(tiny_model().eval())(batch, 0, samples)[0].detach())
    half, model = tiny_model().eval().to(dtype), tiny_model().eval()
    with torch.backends.mkldnn.flags(enabled=False):  # its bfloat16 products end the process on some processors
        losses = [DenoisingLoss(half)(batch, 0, samples)[0]]
        with torch.autocast("cpu", dtype):
            losses.append(DenoisingLoss(model)(batch, 0, samples)[0])
        for loss, trained in zip(losses, (half, model), strict=True):
            assert loss.dtype == torch.float32
            assert float(loss.detach()) == pytest.approx(wanted, rel=0.02)
            loss.backward()
            assert all(p.grad is None or p.grad.isfinite().all() for p in trained.parameters())
            assert any(p.grad is not None and bool(p.grad.any()) for p in trained.parameters())
