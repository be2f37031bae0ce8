"""Proof that training learns: small sets by heart, whole distributions, and sorting pictures of numbers.

Budgets are from measurements; each bar is far enough from what was measured not to hang on the seed.
"""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from synthetic_tasks import Law, SortNumbers, cyclic, mallows
from testing import all_orders
from torch import Tensor

from softrank_ext import DataFacts, SoftRankConfig, SoftRankModel, sample
from softrank_ext.batch import Batch
from softrank_ext.evaluation import evaluate
from softrank_ext.tasks import Task
from softrank_ext.training import TrainConfig, train

pytestmark = pytest.mark.usefixtures("one_thread")
DATA = os.environ.get("SOFTRANK_DATA")
NUM_SAMPLES = 20_000
# One run (seed 0) measured 0.672, standard error 0.021 over its 512 lists; other seeds were not run.
SORTING_BAR = 0.55


BALLOTS = """# FILE NAME: ballots.soc
# DATA TYPE: soc
# NUMBER ALTERNATIVES: 4
# NUMBER VOTERS: 8
# NUMBER UNIQUE ORDERS: 2
# ALTERNATIVE NAME 1: Ada
# ALTERNATIVE NAME 2: Bo
# ALTERNATIVE NAME 3: Cy
# ALTERNATIVE NAME 4: Di
5: 2,4,3,1
3: 1,3,2,4
"""


def small_model(task: Task, head: str = "pointer", width: int = 32, **changes: object) -> SoftRankModel:
    torch.manual_seed(0)
    config = SoftRankConfig(
        d_model=width,
        feed_forward=2 * width,
        heads=4,
        encoder_layers=1,
        decoder_layers=1,
        dropout=0.0,
        head=head,
        max_items=task.max_items() if head == "linear" else None,
        embedder=task.embedder(),
        data=task.data_facts() if hasattr(task, "data_facts") else DataFacts(),
    )
    return SoftRankModel(replace(config, **changes))


@dataclass(frozen=True)
class Fixed:
    """Eight training instances of a task, again and again; they are also what is tested on."""

    task: Task
    name: str = "fixed"

    def embedder(self):
        return self.task.embedder()

    def max_items(self) -> int:
        return self.task.max_items()

    def data_facts(self) -> DataFacts:
        return DataFacts(fixed_start=self.task.training_batch(0, 1, 1).first is not None)

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        return self.task.training_batch(0, 1, 8)

    def test_batches(self, count: int, size: int, seed: int = 0):
        yield self.training_batch(0, 1, 8)

    def score(self, batch: Batch, order: Tensor) -> dict[str, Tensor]:
        places = torch.arange(order.shape[1])
        known = torch.full((len(order),), order.shape[1]) if batch.known is None else batch.known
        return {"accuracy": ((order == batch.order) | (places >= known[:, None])).all(1).double()}


def _real_tasks() -> dict[str, object]:
    """Makers of the real tasks, small; they are imported when they are made."""

    def sorting() -> Task:
        from softrank_ext.tasks.sorting import Sorting

        return Sorting(num_items=4, cnn="light")

    def jigsaw() -> Task:
        from softrank_ext.tasks.jigsaw import Jigsaw

        return Jigsaw(grid=2)

    def tsp() -> Task:
        from softrank_ext.tasks.tsp import TSP

        return TSP(training_file=str(next(Path(DATA or "", "tsp").glob("tsp20*.txt"))))

    return {"sorting": sorting, "jigsaw": jigsaw, "tsp": tsp}


def overfit(task: Task, iterations: int = 150, **changes: object) -> float:
    """Accuracy on eight instances after training on them."""
    config = TrainConfig(
        iterations=iterations, batch_size=8, noisy_orders=8, learning_rate=3e-3, warmup=20, ema=0.0, prefetch=False,
        log_every=iterations,
    )  # fmt: skip
    result = train(small_model(task, **changes), task, config, quiet=True)
    row = evaluate(result.model, task, count=8)
    return row["metrics"]["accuracy"]["mean"]


@pytest.mark.parametrize(("head", "num_items", "iterations"), (("pointer", 6, 150), ("linear", 3, 300)))
def test_overfits_eight_instances_of_numbers(head, num_items, iterations):
    assert overfit(SortNumbers(num_items, instances=8), iterations, head=head) == 1.0


def test_untrained_models_do_not_pass():
    assert overfit(SortNumbers(6, instances=8), iterations=1) < 0.5


@pytest.mark.skipif(DATA is None, reason="needs SOFTRANK_DATA")
@pytest.mark.parametrize("name", ("sorting", "jigsaw", "tsp"))
def test_overfits_eight_instances_of_the_real_task(name):
    assert overfit(Fixed(_real_tasks()[name]()), iterations=100, width=64) == 1.0


def test_learns_the_ballots_of_a_file(tmp_path):
    """Eight ballots of one election, two opinions: the model is their distribution, 5 to 3."""
    from softrank_ext.tasks.preferences import Preferences

    file = tmp_path / "ballots.soc"
    file.write_text(BALLOTS)
    task = Preferences(str(file), test_share=0)
    config = TrainConfig(iterations=150, batch_size=32, learning_rate=3e-3, warmup=20, ema=0.0, prefetch=False)
    model = train(small_model(task), task, config, quiet=True).model
    items = task.training_batch(0, 1, 1).items[0]  # the candidates by number
    ranked = items[sample(model, items, num_samples=4000, seed=1).order]
    share = {ballot: (ranked == torch.tensor(ballot)).all(1).double().mean() for ballot in ((1, 3, 2, 0), (0, 2, 1, 3))}
    # Four seeds measured: off by at most .063, and at most .001 of the draws are no ballot of the file.
    assert abs(share[1, 3, 2, 0] - 5 / 8) < 0.12
    assert sum(share.values()) > 0.99


def code_of(orders: Tensor) -> Tensor:
    """One number per order (..., N)."""
    N = orders.shape[-1]
    return (orders * N ** torch.arange(N)).sum(-1)


def total_variation(orders: Tensor, law: Law) -> float:
    """Half the sum of |share among the orders (M, N) - probability|."""
    N = law.max_items()
    truth = torch.zeros(N**N, dtype=torch.float64)
    truth[code_of(law.orders)] = law.probabilities
    shares = torch.bincount(code_of(orders), minlength=N**N).double() / len(orders)
    return float((shares - truth).abs().sum() / 2)


def sampling_floor(law: Law, count: int) -> float:
    """Total variation to expect of `count` draws from the law itself: mean deviations of binomials, as of normals."""
    p = law.probabilities
    return float((2 * p * (1 - p) / (math.pi * count)).sqrt().sum() / 2)


@torch.no_grad()
def mean_nll_at_the_end(model: SoftRankModel, law: Law) -> float:
    """Expected -log_prob at t = 1, exactly: over the law and over all arrangements, which are equally likely there.

    What is seen at t = 1 says nothing about the clean order, so no model can be below the law's entropy.
    """
    seen = all_orders(law.max_items())  # slot -> item
    pairs = seen.repeat_interleave(len(law.orders), 0)
    slots = pairs.argsort(1).gather(1, law.orders.repeat(len(seen), 1))
    log_probs = model.log_prob(pairs, 1.0, slots).total.double().view(len(seen), -1)
    return float(-(log_probs * law.probabilities).sum(1).mean())


LAWS = {
    "cyclic of 4": cyclic([1, 3, 2, 0]),
    "cyclic of 5": cyclic([1, 3, 4, 2, 0]),
    "Mallows of 4": mallows([1, 3, 2, 0], 0.7),
    "Mallows of 5": mallows([1, 3, 4, 2, 0], 0.7),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name.endswith("5") else name for name in LAWS]
)
def test_learns_a_distribution_and_not_a_mode(name):
    law = LAWS[name]
    iterations = 250 if name == "Mallows of 4" else 400
    config = TrainConfig(
        iterations=iterations, batch_size=128, learning_rate=3e-3, warmup=50, weight_decay=0.0, ema=0.99,
        log_every=iterations, prefetch=False,
    )  # fmt: skip
    model = train(small_model(law), law, config, quiet=True).model
    orders = sample(model, law.items(1), num_samples=NUM_SAMPLES, steps=5, seed=0).order[0]
    variation, floor = total_variation(orders, law), sampling_floor(law, NUM_SAMPLES)
    assert floor < 0.03
    assert variation <= 0.08
    entropy, nll = law.entropy(), mean_nll_at_the_end(model, law)
    assert entropy - 1e-4 <= nll <= 1.01 * entropy


@dataclass(frozen=True, eq=False)
class Prefixes(Law):
    """A law of which training knows two leading places; the rest of each order is shuffled, as a task would do it."""

    def training_batch(self, seed: int, step: int, size: int) -> Batch:
        batch = super().training_batch(seed, step, size)
        rest = torch.rand(size, self.max_items() - 2, generator=torch.Generator().manual_seed(step)).argsort(1)
        order = torch.cat((batch.order[:, :2], batch.order[:, 2:].gather(1, rest)), 1)
        return Batch(batch.items, order, known=torch.full((size,), 2))


def test_learns_the_known_places_of_partial_rankings():
    whole = LAWS["cyclic of 4"]
    law = Prefixes(whole.orders, whole.probabilities)
    config = TrainConfig(
        iterations=200, batch_size=128, learning_rate=3e-3, warmup=50, weight_decay=0.0, ema=0.99, log_every=200,
        prefetch=False,
    )  # fmt: skip
    model = train(small_model(law), law, config, quiet=True).model
    orders = sample(model, law.items(1), num_samples=4000, steps=5, seed=0).order[0]
    pairs = {tuple(order[:2]) for order in whole.orders.tolist()}
    counts = torch.tensor([sum((orders[:, :2] == torch.tensor(pair)).all(1)) for pair in sorted(pairs)]) / 4000
    assert float((counts - 0.25).abs().max()) < 0.08
    assert float(counts.sum()) > 0.97


def test_the_yardsticks_can_tell():
    """Draws of the law itself are at the floor; those of an untrained model, and a mode alone, are far off."""
    law = LAWS["Mallows of 5"]
    torch.manual_seed(0)
    drawn = law.orders[torch.multinomial(law.probabilities, NUM_SAMPLES, replacement=True)]
    assert total_variation(drawn, law) == pytest.approx(sampling_floor(law, NUM_SAMPLES), rel=0.3)
    assert total_variation(law.orders[law.probabilities.argmax()].expand(100, -1), law) > 0.8
    model = small_model(law)
    assert total_variation(sample(model, law.items(1), num_samples=2000, seed=0).order[0], law) > 0.3
    assert mean_nll_at_the_end(model, law) > 1.1 * law.entropy()


@pytest.mark.slow
@pytest.mark.skipif(DATA is None, reason="needs SOFTRANK_DATA")
def test_sorts_five_pictures_of_numbers():
    """About three minutes on one core: `SOFTRANK_DATA=... pytest -m slow -k five_pictures`."""
    from softrank_ext.tasks.sorting import Sorting

    task = Sorting(num_items=5, cnn="light")
    config = TrainConfig(
        iterations=600, batch_size=64, noisy_orders=4, learning_rate=1e-3, warmup=100, ema=0.99, log_every=100
    )
    model = train(small_model(task, width=64, encoder_layers=2, decoder_layers=2), task, config).model
    row = evaluate(model, task, count=512)
    assert row["metrics"]["accuracy"]["mean"] > SORTING_BAR  # guessing sorts 1 list in 120
