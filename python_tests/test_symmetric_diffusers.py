"""SymmetricDiffusers and the ablation grid: networks, losses, sampler and beam, by hand or by enumeration."""

import json
import math
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
import torch
from scipy import stats
from synthetic_tasks import SortNumbers, all_orders
from torch import Tensor, nn

from softrank_ext import SoftRankConfig, SoftRankModel, model_folder, noise, sample
from softrank_ext.baselines import symmetric_diffusers
from softrank_ext.evaluation import evaluate
from softrank_ext.laws import GeneralizedPlackettLuce, PlackettLuce, Riffle
from softrank_ext.methods import method_of
from softrank_ext.model import DECODER_HEADS, sine_cosine
from softrank_ext.permutations import compose, ranks_of
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.tasks.tsp import TSP
from softrank_ext.training import TrainConfig, train
from softrank_ext.training.objectives import DenoisingLoss, Noising, ReinforceLoss, noisy_orders

pytestmark = pytest.mark.usefixtures("one_thread")
CELLS = [(process, target) for process in ("soft-rank", "riffle") for target in ("clean", "previous")]


def small_model(process: str = "riffle", target: str = "previous", head: str = "gpl", N: int = 4, **changes: object):
    """A model of numbers; its random weights, enlarged, give distributions far from uniform."""
    torch.manual_seed(4)
    is_decoder = head in DECODER_HEADS
    config = SoftRankConfig(
        d_model=16, feed_forward=32, heads=2, encoder_layers=1, decoder_layers=1 if is_decoder else 0, dropout=0.0,
        head=head, max_items=N if head == "linear" else None, norm_first=is_decoder, steps=2,
        embedder={"kind": "linear", "features": 1}, process=process, target=target,
        visited=(0, 1, 3) if process == "riffle" else None,
    )  # fmt: skip
    return SoftRankModel(replace(config, **changes)).eval()


def numbers_of(N: int) -> Tensor:
    return torch.tensor([0.3, -1.2, 2.0, 0.7, -0.4, 1.1])[:N, None]


class TestNetwork:
    def test_gpl_is_a_stack_of_torch_s_layers_on_items_and_zero_tokens(self):
        """The published network: post-norm layers, zero tokens behind the items, who sees whom, a plain product."""
        model = small_model(N=5, encoder_layers=2)
        items = torch.randn(3, 5, 1)
        with torch.no_grad():
            time = model.time_embedder(torch.tensor([3.0]))
            tokens = torch.cat((model.embed(items), torch.zeros(3, 5, 16)), 1) + sine_cosine(10, 16, items) + time
            hidden = torch.ones(10, 10, dtype=torch.bool)
            for query in range(10):
                hidden[query, :5] = False
                for earlier in range(5, query):
                    hidden[query, earlier] = False
            for layer in model.encoder_layers:
                twin = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
                attention = twin.self_attn
                for own, theirs in (
                    (layer.self_qkv.weight, attention.in_proj_weight), (layer.self_qkv.bias, attention.in_proj_bias),
                    (layer.self_out.weight, attention.out_proj.weight), (layer.self_out.bias, attention.out_proj.bias),
                    (layer.feed_in.weight, twin.linear1.weight), (layer.feed_in.bias, twin.linear1.bias),
                    (layer.feed_out.weight, twin.linear2.weight), (layer.feed_out.bias, twin.linear2.bias),
                ):  # fmt: skip
                    theirs.copy_(own)
                tokens = twin.train()(tokens, src_mask=hidden)
            tokens = nn.functional.layer_norm(tokens, (16,))
            wanted = tokens[:, 5:] @ tokens[:, :5].transpose(1, 2)
            got = model.scores(model.embed(items), 1.0, torch.zeros(3, 5, dtype=torch.int64))
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)

    def test_time_is_the_number_of_riffles(self):
        model = small_model(visited=(0, 2, 7))
        seen = []
        model.time_embedder.register_forward_pre_hook(lambda _, inputs: seen.append(float(inputs[0])))
        sample(model, torch.randn(2, 4, 1), decode="greedy")
        assert seen == pytest.approx([7, 2])

    def test_gpl_with_equal_rows_is_pl(self):
        model, items = small_model(head="pl", N=5), numbers_of(5)[None]
        orders = all_orders(5)
        got = model.log_prob(items.expand(120, 5, 1), 1.0, orders).total
        scores = model.scores(model.embed(items), 1.0, torch.arange(5)[None])[0].detach()
        assert bool((scores == scores[0]).all()) and len(scores[0].unique()) == 5
        by_hand = []
        for order in orders.tolist():
            strengths = [math.exp(float(scores[0, slot])) for slot in order]
            by_hand.append(sum(math.log(strengths[place] / sum(strengths[place:])) for place in range(5)))
        torch.testing.assert_close(got, torch.tensor(by_hand), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(got, GeneralizedPlackettLuce(scores).log_prob(orders), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(got, PlackettLuce(scores[0]).log_prob(orders), atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize(
        ("task", "layers", "width", "feed_forward", "embedder"),
        [
            (Sorting(num_items=9), 7, 128, 512, 832 + 64 + 51_264 + 128 + 12_544 * 128 + 128),
            (Sorting(num_items=52), 7, 128, 512, 832 + 64 + 51_264 + 128 + 12_544 * 128 + 128),
            (Jigsaw(grid=3), 7, 128, 512, 27 * 32 + 32 + 64 + 800 * 464 + 464 + 464 * 128 + 128),
            (TSP("tours.txt"), 16, 256, 1024, (256 + 2) * 256 + 256),
        ],
        ids=["sorting 9", "sorting 52", "jigsaw 3x3", "tsp 20"],
    )
    def test_number_of_parameters(self, task, layers, width, feed_forward, embedder, tmp_path, monkeypatch):
        """Of the published sizes: the final norm has no scale and shift."""
        monkeypatch.chdir(tmp_path)
        tour = " ".join(str(node) for node in [*range(1, 21), 1])
        (tmp_path / "tours.txt").write_text(f"{' '.join(['0.5'] * 40)} output {tour} \n")
        method = method_of("symmetric-diffusers")
        model = method.make(task, method.options(task.name))
        attention = 4 * (width**2 + width)
        feed = 2 * width * feed_forward + feed_forward + width
        time = 256 * width + width + width**2 + width
        wanted = layers * (attention + feed + 4 * width) + time + embedder
        assert sum(parameter.numel() for parameter in model.parameters()) == wanted
        assert (model.config.heads, model.config.head, model.config.norm_first) == (8, "gpl", False)
        assert (model.config.process, model.config.target) == ("riffle", "previous")


class TestVisitedTimes:
    @pytest.mark.parametrize(
        ("num_items", "wanted"),
        [
            (1, (0, 2, 7)), (3, (0, 2, 7)), (9, (0, 3, 5, 9)), (10, (0, 3, 5, 9)), (15, (0, 4, 7, 10)),
            (16, (0, 4, 6, 10)), (64, (0, 5, 6, 7, 10, 13)), (75, (0, 5, 6, 7, 10, 13)), (100, (0, 8, 10, 15)),
            (150, (0, 8, 10, 15)), (200, (0, 9, 10, 12)), (400, (0, 9, 10, 12)),
        ],
    )  # fmt: skip
    def test_are_those_of_the_next_smaller_number(self, num_items, wanted):
        assert symmetric_diffusers.visited_times(num_items) == wanted

    def test_of_tours(self):
        assert symmetric_diffusers.visited_times(20, is_tour=True) == (0, 4, 5, 7)
        assert symmetric_diffusers.visited_times(20) == (0, 4, 6, 10)
        with pytest.raises(ValueError, match="num_items must be at least 1, got 0"):
            symmetric_diffusers.visited_times(0)

    @pytest.mark.parametrize(
        ("num_items", "wanted"),
        [(3, 0.0039), (5, 0.0046), (7, 0.0078), (9, 0.0058), (15, 0.0064), (32, 0.0053), (52, 0.0054), (75, 0.0091),
         (100, 0.0036), (150, 0.0065), (200, 0.0794)],
    )  # fmt: skip
    def test_end_close_to_uniform(self, num_items, wanted):
        last = symmetric_diffusers.visited_times(num_items)[-1]
        assert float(Riffle(num_items, last).total_variation()) == pytest.approx(wanted, abs=5e-5)


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """P-value of the counts of categories, those of probability 0 left out (they must not occur)."""
    possible = probabilities > 0
    assert int(counts[~possible].sum()) == 0
    expected = probabilities[possible] / probabilities[possible].sum() * counts.sum()
    return float(stats.chisquare(counts[possible].numpy(), expected.numpy()).pvalue)


def counts_of(orders: Tensor) -> Tensor:
    """How often each order occurs, in the order of `all_orders`."""
    number = {tuple(order): index for index, order in enumerate(all_orders(orders.shape[1]).tolist())}
    index = torch.tensor([number[tuple(order)] for order in orders.tolist()])
    return torch.bincount(index, minlength=len(number)).double()


class TestNoisyOrders:
    size = 20_000

    def noisy(self, target: str, times: str = "drawn", draws: int = 1, task: SortNumbers | None = None):
        batch = (task or SortNumbers(4)).training_batch(0, 1, self.size)
        config = small_model(target=target).config
        return batch, noisy_orders(config, Noising(draws=draws, times=times), batch, 3, torch.arange(self.size))

    @pytest.mark.parametrize("target", ("clean", "previous"))
    def test_have_the_law_of_riffles(self, target):
        batch, noisy = self.noisy(target)
        riffles = (noisy.t * 3).round()
        assert riffles.unique().tolist() == [1, 3]
        for last, before in ((1, 0), (3, 1 if target == "previous" else 0)):
            rows = riffles == last
            seen = ranks_of(batch.order).gather(1, noisy.order_t)[rows]  # places of the clean list
            assert chi_square(counts_of(seen), Riffle(4, last).log_prob(all_orders(4)).double().exp()) > 0.001
            jump = ranks_of(noisy.target).gather(1, noisy.order_t)[rows]
            law = Riffle(4, last - before).log_prob(all_orders(4)).double().exp()
            assert chi_square(counts_of(jump), law) > 0.001
            if target == "clean":
                assert torch.equal(noisy.target, batch.order)
        inverse = ranks_of(noisy.order_t).gather(1, noisy.target)[rows]
        wrong = counts_of(inverse)
        assert int(wrong[law == 0].sum()) > 0 or chi_square(wrong, law) < 1e-6, "the way back has another law"

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
        model, batch = small_model(N=3, visited=(0, 2)), self.batch()
        loss_module = ReinforceLoss(model, candidates=4, entropy=0.1, memory=0.75).train()
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
            iterations=6, batch_size=2, warmup=0, log_every=1, checkpoint_every=3, objective="reinforce", ema=0
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
        with pytest.raises(ValueError, match="the objective reinforce needs a gpl or pl head, got pointer"):
            ReinforceLoss(small_model(head="pointer"))
        with pytest.raises(ValueError, match="needs whole orders with no item first by decree"):
            ReinforceLoss(small_model())(SortNumbers(4, first=True).training_batch(0, 1, 2), 0, torch.arange(2))


@pytest.mark.parametrize(
    ("process", "target", "head"),
    [*((*cell, head) for cell in CELLS for head in ("gpl", "linear", "pointer")), ("riffle", "previous", "pl")],
)
def test_every_cell_learns_eight_instances_by_heart(process, target, head):
    task = SortNumbers(4, instances=8)
    model = small_model(process, target, head, d_model=32, feed_forward=64, heads=4)
    config = TrainConfig(
        iterations=150, batch_size=8, draws=4, times="all", learning_rate=6e-3, warmup=10, ema=0, prefetch=False
    )
    train(model, task, config, quiet=True)
    row = evaluate(model, task, count=8)
    assert row["steps"] == 2
    assert row["metrics"]["accuracy"]["mean"] >= 0.75


def chain_law(model: SoftRankModel, items: Tensor, is_composed: bool = True) -> Tensor:
    """Probabilities of the final order, in the order of `all_orders`: a sum over all paths of the process."""
    N, times = len(items), model.config.reverse_times()
    orders = [tuple(order) for order in permutations(range(N))]
    law = dict.fromkeys(orders, 1 / len(orders))
    for t, s in pairwise(times):
        following = dict.fromkeys(orders, 0.0)
        for order_t, probability in law.items():
            seen = items[list(order_t)].expand(len(orders), N, -1)
            slots_law = model.log_prob(seen, t, all_orders(N)).total.exp().tolist()
            for slots, share in zip(orders, slots_law, strict=True):
                order = tuple(order_t[slot] for slot in slots) if is_composed else slots
                if model.config.target == "previous" or s == 0:
                    following[order] += probability * share
                    continue
                most = model.config.visited[-1]
                for middle, weight in riffle_posterior(order, order_t, round(t * most), round(s * most)).items():
                    following[middle] += probability * share * weight
        law = following
    return torch.tensor([law[order] for order in orders], dtype=torch.float64)


def riffle_posterior(clean: tuple, last: tuple, t: int, s: int) -> dict[tuple, float]:
    def law(before: tuple, after: tuple, riffles: int) -> float:
        places = [before.index(item) for item in after]
        rising = 1 + sum(places.index(card) > places.index(card + 1) for card in range(len(places) - 1))
        return math.comb(max(2**riffles + len(places) - rising, 0), len(places)) / 2 ** (riffles * len(places))

    weights = {middle: law(clean, middle, s) * law(middle, last, t - s) for middle in permutations(range(len(clean)))}
    if sum(weights.values()) == 0:
        weights = {middle: law(clean, middle, s) for middle in weights}
    return {middle: weight / sum(weights.values()) for middle, weight in weights.items()}


@pytest.mark.parametrize(
    ("process", "target", "head"),
    [("riffle", "previous", "gpl"), ("riffle", "previous", "pointer"), ("soft-rank", "previous", "pointer"),
     ("riffle", "clean", "gpl"), ("riffle", "clean", "linear")],
)  # fmt: skip
def test_samples_have_the_law_of_the_reverse_process(process, target, head):
    model = small_model(process, target, head, N=3)
    with torch.no_grad():
        if head == "gpl":
            model.encoder_norm = torch.nn.LayerNorm(model.config.d_model)
            model.encoder_norm.weight *= 0.5  # or some orders would be too rare to count
        elif head == "linear":
            model.head.weight *= 3
    items = numbers_of(3)
    drawn = sample(model, items, num_samples=20_000, seed=2).order
    with torch.no_grad():
        law = chain_law(model, items)
        wrong = chain_law(model, items, is_composed=False)
    assert float(law.min()) > 1e-3
    counts = counts_of(drawn)
    assert chi_square(counts, law) > 0.001
    assert chi_square(counts, wrong) < 1e-6, "slots are not items"


class TestSampling:
    @pytest.mark.parametrize(("process", "target"), CELLS)
    def test_first_and_padding(self, process, target):
        model = small_model(process, target, N=5)
        items = torch.randn(6, 5, 1)
        alone = sample(model, items, first=2, num_samples=3, seed=1)
        assert bool((alone.order[..., 0] == 2).all())
        padded = torch.full((6, 7, 1), 99.0)
        padded[:, [0, 1, 3, 4, 6]] = items
        mask = torch.tensor([True, True, False, True, True, False, True]).expand(6, 7)
        again = sample(model, padded, mask=mask, first=3, num_samples=3, seed=1)
        item_of = torch.tensor([0, 1, 9, 2, 3, 9, 4])
        assert torch.equal(item_of[again.order[..., :5]], alone.order)
        torch.testing.assert_close(again.log_prob, alone.log_prob, atol=1e-4, rtol=1e-4)

    def test_the_start_does_not_depend_on_how_the_items_came(self):
        """Items that came sorted are shuffled first: an untrained model must not profit from it."""
        model = small_model(head="pl", N=5)
        torch.nn.init.zeros_(model.head[2].weight)
        drawn = sample(model, torch.arange(5.0)[:, None], num_samples=200, decode="greedy").order
        assert float((drawn == torch.arange(5)).all(1).double().mean()) < 0.1

    def test_steps_are_the_model_s_own(self):
        items = torch.randn(2, 4, 1)
        for process, target in CELLS:
            model = small_model(process, target)
            assert torch.equal(sample(model, items).order, sample(model, items, steps=2).order)
            if (process, target) == ("soft-rank", "clean"):
                sample(model, items, steps=7)
                continue
            with pytest.raises(ValueError, match="steps of this model must be its own 2, or None, got 7"):
                sample(model, items, steps=7)

    def test_trajectory(self):
        samples = sample(small_model(), torch.randn(2, 4, 1), record=True, seed=3)
        first, second = samples.trajectory
        assert (first.t, second.t) == (1.0, pytest.approx(1 / 3))
        assert torch.equal(first.predicted_order, second.order), "the predicted order is the next state"


class TestBeam:
    def test_of_full_width_finds_the_most_likely_order(self):
        model, items = small_model(N=5, visited=(0, 8), head="gpl"), numbers_of(5)[None]
        found = sample(model, items, decode="beam", beam=120, seed=1)
        order_t = sample(model, items, seed=1, record=True).trajectory[0].order[0, 0]
        with torch.no_grad():
            log_probs = model.log_prob(items[0, order_t].expand(120, 5, 1), 1.0, all_orders(5)).total
        best = compose(order_t, all_orders(5)[log_probs.argmax()])
        assert torch.equal(found.order[0, 0], best)
        assert float(found.log_prob[0, 0]) == pytest.approx(float(log_probs.max()), abs=1e-4)

    @pytest.mark.parametrize("process", ("riffle", "soft-rank"))
    def test_carried_over_time_finds_the_most_likely_path(self, process):
        model, items = small_model(process, N=4), numbers_of(4)
        orders, times = all_orders(4), model.config.reverse_times()
        start = sample(model, items[None], seed=6, record=True).trajectory[0].order[0, 0]
        with torch.no_grad():
            first = model.log_prob(items[start].expand(24, 4, 1), times[0], orders).total
            middles = [compose(start, slots) for slots in orders]
            second = [model.log_prob(items[middle].expand(24, 4, 1), times[1], orders).total for middle in middles]
        totals = torch.stack([first[index] + row for index, row in enumerate(second)])  # (24, 24)
        best = int(totals.argmax())
        wanted = compose(middles[best // 24], orders[best % 24])
        found = sample(model, items[None], decode="beam", beam=24 * 24, beam_kept=24, seed=6).order[0, 0]
        assert torch.equal(found, wanted)

    def test_returns_what_it_kept_and_the_shortest_is_chosen(self):
        model, items = small_model(N=5), torch.rand(3, 5, 1)
        options = {"decode": "beam", "beam": 40, "beam_kept": 10, "seed": 2}
        one, all_kept = sample(model, items, **options), sample(model, items, **options, beam_returned=10)
        assert all_kept.order.shape == (3, 10, 5)
        assert torch.equal(all_kept.order[:, 0], one.order[:, 0])
        assert all(len(kept.unique(dim=0)) == 10 for kept in all_kept.order)

        class LastItem(SortNumbers):
            def score(self, batch, order):
                return {"length": order[:, -1].double()}

        task = LastItem(5)
        row = evaluate(model, task, count=3, best_by="length", **options, beam_returned=10)
        items = next(task.test_batches(3, 3, 2)).items
        kept = sample(model, items, **options, beam_returned=10).order
        assert row["metrics"]["length"]["mean"] == pytest.approx(float(kept[..., -1].amin(1).double().mean()))

    def test_says_what_is_wrong(self):
        with pytest.raises(ValueError, match="beam_returned must be an integer from 1 to beam_kept = 2, got 3"):
            sample(small_model(), torch.randn(1, 4, 1), decode="beam", beam=4, beam_kept=2, beam_returned=3)


class TestConfig:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"process": "cards"}, "process must be one of soft-rank, riffle, got 'cards'"),
            ({"target": "next"}, "target must be one of clean, previous, got 'next'"),
            ({"process": "riffle"}, "visited must be ascending numbers of riffles from 0 to 52"),
            ({"process": "riffle", "visited": (1, 3)}, r"as \(0, 3, 5, 9\), got \(1, 3\)"),
            ({"process": "riffle", "visited": (0, 3, 3)}, r"got \(0, 3, 3\)"),
            ({"process": "riffle", "visited": (0, 2.5)}, r"got \(0, 2.5\)"),
            ({"process": "riffle", "visited": (0, 53)}, r"got \(0, 53\)"),
            ({"visited": (0, 3)}, 'visited is for process "riffle"'),
            ({"process": "riffle", "visited": (0, 3), "time": "continuous"}, 'time must be "grid" for riffle'),
            ({"target": "previous", "time": "continuous"}, 'time must be "grid" for soft-rank and target'),
        ],
    )
    def test_says_what_is_wrong(self, changes, message):
        with pytest.raises(ValueError, match=message):
            SoftRankConfig(**changes)

    def test_saved_model_knows_how_it_is_sampled(self, tmp_path):
        model, items = small_model(), torch.randn(3, 4, 1)
        model.save_pretrained(tmp_path)
        again = SoftRankModel.from_pretrained(tmp_path)
        assert again.config == model.config and again.config.visited == (0, 1, 3)
        assert torch.equal(sample(again, items, seed=1).order, sample(model, items, seed=1).order)

    def test_files_of_before_are_read(self, tmp_path):
        model = small_model("soft-rank", "clean", "pointer")
        model.save_pretrained(tmp_path)
        path = tmp_path / model_folder.CONFIG_FILE
        fields = json.loads(path.read_text())
        for name in ("model_type", "process", "target", "visited"):
            del fields[name]
        path.write_text(json.dumps(fields))
        assert SoftRankModel.from_pretrained(tmp_path).config == model.config

    def test_unknown_model_types_are_told(self, tmp_path):
        small_model().save_pretrained(tmp_path)
        path = tmp_path / model_folder.CONFIG_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "oracle"}))
        with pytest.raises(ValueError, match=r"model_type must be one of soft-rank.*, got 'oracle'"):
            model_folder.load_model(tmp_path)


def test_the_loss_counts_all_times():
    model, batch = small_model("soft-rank", "clean", "pl", steps=3), SortNumbers(4).training_batch(0, 1, 5)
    torch.nn.init.zeros_(model.head[2].weight)
    loss, per_place = DenoisingLoss(model, times="all", draws=2)(batch, 0, torch.arange(5))
    assert float(loss.detach()) == pytest.approx(math.log(24), abs=1e-5)
    assert float(per_place) == pytest.approx(math.log(24) / 4, abs=1e-5)
