"""SymmetricDiffusers and the ablation grid: published sizes and times, and that every cell of the grid learns."""

import pytest
from synthetic_tasks import SortNumbers
from testing.tiny_models import small_model

from softrank_ext import Bridge, evaluate
from softrank_ext.baselines import symmetric_diffusers
from softrank_ext.laws import Riffle
from softrank_ext.methods import method_of
from softrank_ext.processes import Riffle as RiffleProcess
from softrank_ext.tasks.jigsaw import Jigsaw
from softrank_ext.tasks.sorting import Sorting
from softrank_ext.tasks.tsp import TSP
from softrank_ext.training import TrainConfig, train

pytestmark = pytest.mark.usefixtures("one_thread")
PROCESSES = {
    "bridge": Bridge(sampling_steps=2),
    "bridge, previous": Bridge(target="previous", sampling_steps=2),
    "riffle": RiffleProcess((0, 1, 3)),
    "riffle, previous": RiffleProcess((0, 1, 3), "previous"),
}


@pytest.mark.parametrize(
    ("task", "layers", "width", "feed_forward", "embedder"),
    [
        (Sorting(num_items=9), 7, 128, 512, 832 + 64 + 51_264 + 128 + 12_544 * 128 + 128),
        (Sorting(num_items=52), 7, 128, 512, 832 + 64 + 51_264 + 128 + 12_544 * 128 + 128),
        (Jigsaw(grid=3), 7, 128, 512, 27 * 32 + 32 + 64 + 800 * 464 + 464 + 464 * 128 + 128),
        (TSP("tours.txt"), 16, 256, 1024, 0),  # waves of the points, nothing learned
    ],
    ids=["sorting 9", "sorting 52", "jigsaw 3x3", "tsp 20"],
)
def test_number_of_parameters(task, layers, width, feed_forward, embedder, tmp_path, monkeypatch):
    """Of the published sizes: the final norm has no scale and shift."""
    monkeypatch.chdir(tmp_path)
    tour = " ".join(str(node) for node in [*range(1, 21), 1])
    (tmp_path / "tours.txt").write_text(f"{' '.join(['0.5'] * 40)} output {tour} \n")
    method = method_of("symmetric-diffusers-as-published")
    model = method.make(task, method.options(task.name))
    assert (model.config.norm_first, model.config.init) == (False, "published")
    options = method_of("symmetric-diffusers").options(task.name)
    assert (options.norm_first, options.init, options.head) == (True, "quick", "gpl")
    attention = 4 * (width**2 + width)
    feed = 2 * width * feed_forward + feed_forward + width
    time = 256 * width + width + width**2 + width
    wanted = layers * (attention + feed + 4 * width) + time + embedder
    assert sum(parameter.numel() for parameter in model.parameters()) == wanted
    assert (model.config.heads, model.config.head) == (8, "gpl")
    assert isinstance(model.process, RiffleProcess) and model.process.target == "previous"


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


@pytest.mark.parametrize(
    ("process", "head"),
    [*((process, head) for process in PROCESSES for head in ("gpl", "linear", "pointer")), ("riffle, previous", "pl")],
)
def test_every_cell_learns_eight_instances_by_heart(process, head):
    task = SortNumbers(4, instances=8)
    model = small_model(PROCESSES[process], head, d_model=32, feed_forward=64, heads=4)
    iterations, rate = (150, 6e-3) if head == "linear" else (75, 8e-3)  # measured: the others have all by then
    config = TrainConfig(
        iterations=iterations,
        batch_size=8,
        noisy_orders=4,
        times="all",
        learning_rate=rate,
        warmup=10,
        ema=0,
        prefetch=False,
        optimizer="adamw",
    )
    train(model, task, config, quiet=True)
    row = evaluate(model, task, count=8)
    assert row["steps"] == 2
    assert row["metrics"]["accuracy"]["mean"] >= 0.75
