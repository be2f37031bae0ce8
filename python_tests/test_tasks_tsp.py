"""Tours: files, augmentation by hand, generation, the embedder."""

import json
import math
import os
from dataclasses import replace

import pytest
import torch

from softrank_ext import Constraints, SoftRankConfig, SoftRankModel, metrics, model_folder, sample
from softrank_ext.costs import TourLength, nearest_neighbour
from softrank_ext.evaluation import evaluate
from softrank_ext.metrics import signed_area
from softrank_ext.model import DataFacts, square_copy
from softrank_ext.tasks.tsp import (
    TSP,
    read_instances,
    rotated,
    tour_batch,
    write_instances,
)  # fmt: skip
from softrank_ext.training import TrainConfig, describe, train

REAL = os.environ.get("SOFTRANK_DATA", "")

# A square walked round counter-clockwise by 2, 0, 3, 1.
SQUARE = torch.tensor([[0.9, 0.1], [0.1, 0.8], [0.1, 0.1], [0.9, 0.9]], dtype=torch.float64)
TOUR = torch.tensor([2, 0, 3, 1])
TOURS = DataFacts(symmetry="tour", fixed_start=True)


@pytest.fixture
def file(tmp_path):
    """Three instances of four nodes: the square, and the square walked the other way, scaled."""
    path = tmp_path / "tsp4.txt"
    backwards = torch.tensor([2, 1, 3, 0])
    points = torch.stack((SQUARE, SQUARE / 2, SQUARE / 4))
    write_instances(path, points, torch.stack((TOUR, backwards, TOUR)))
    return str(path)


def test_batches_pin_the_start(file):
    task = TSP(training_file=file, test_file=file)
    assert task.max_items() == 4 and task.test_count == 3
    batch = task.training_batch(0, 0, 3)
    assert batch.items.dtype == torch.float32 and batch.items.shape == (3, 4, 2)
    assert batch.first.tolist() == [2, 2, 2] == batch.order[:, 0].tolist()
    (test,) = task.test_batches(3, 8)
    assert test.order.tolist() == [[2, 0, 3, 1], [2, 1, 3, 0], [2, 0, 3, 1]]
    length = 0.8 + 0.8 + (0.8**2 + 0.1**2) ** 0.5 + 0.7
    torch.testing.assert_close(
        test.extras["best_length"], length * torch.tensor([1, 0.5, 0.25]).double(), atol=1e-12, rtol=0
    )


def test_a_changed_file_is_read_again(file):
    task = TSP(test_file=file)
    next(task.test_batches(1, 1))
    write_instances(file, SQUARE[None, [1, 0, 2, 3]], TOUR[None])
    os.utime(file, ns=(1, 1))
    assert torch.equal(next(task.test_batches(1, 1)).items[0], SQUARE[[1, 0, 2, 3]].float())


def test_signed_area_by_hand():
    assert signed_area(SQUARE[None], TOUR[None]).item() == pytest.approx(0.8 * 0.75)
    assert signed_area(SQUARE[None], torch.tensor([[2, 1, 3, 0]])).item() == pytest.approx(-0.8 * 0.75)


def test_directions(file):
    ways = {(2, 0, 3, 1), (2, 1, 3, 0)}
    batch = TSP(training_file=file, direction="counterclockwise", symmetries=True).training_batch(0, 0, 30)
    assert (signed_area(batch.extras["points"], batch.order) > 0).all()
    assert {tuple(order) for order in batch.order.tolist()} == ways  # mirrored points turn the tour round
    (test,) = TSP(test_file=file, direction="counterclockwise").test_batches(3, 3)
    assert test.order.tolist() == [[2, 0, 3, 1]] * 3
    drawn = TSP(training_file=file, direction="random").training_batch(0, 0, 90).order
    assert {tuple(order) for order in drawn.tolist()} == ways
    assert 20 < (drawn[:, 1] == 0).sum() < 70


def test_symmetries_are_the_eight_of_the_square():
    points = torch.tensor([[[0.25, 0.125]]] * 8, dtype=torch.float64)
    images = square_copy(points, torch.arange(8))[:, 0].tolist()
    assert images[:4] == [[0.25, 0.125], [0.75, 0.125], [0.25, 0.875], [0.75, 0.875]]
    assert sorted(images[4:]) == sorted([y, x] for x, y in images[:4])


def test_symmetries_and_starts_keep_the_tour(file):
    task = TSP(training_file=file, symmetries=True, random_start=True)
    batch = task.training_batch(0, 0, 60)
    assert set(batch.first.tolist()) == {0, 1, 2, 3} and torch.equal(batch.first, batch.order[:, 0])
    edges = {frozenset(pair) for pair in ((2, 0), (0, 3), (3, 1), (1, 2))}
    for order in batch.order.tolist():
        assert {frozenset(pair) for pair in zip(order, order[1:] + order[:1], strict=True)} == edges
    lengths = metrics.tour_length(batch.extras["points"], batch.order)
    torch.testing.assert_close(batch.extras["best_length"], lengths)
    assert len({tuple(point.flatten().tolist()) for point in batch.extras["points"]}) > 16
    again = TSP(training_file=file, symmetries=True, random_start=True).training_batch(0, 0, 60)
    assert torch.equal(batch.items, again.items) and torch.equal(batch.order, again.order)


def test_random_starts_keep_the_direction(file):
    batch = TSP(training_file=file, random_start=True).training_batch(0, 0, 60)
    area, file_area = signed_area(batch.extras["points"], batch.order), 0.8 * 0.75 * torch.tensor([1, -1 / 4, 1 / 16])
    assert sorted(set(area.float().tolist())) == pytest.approx(sorted(file_area.tolist()))


@pytest.fixture
def files(tmp_path):
    """Files of 3, 4 and 5 instances with as many nodes; the first coordinate tells the instance's number."""
    names = []
    for n in (3, 4, 5):
        points = torch.rand(n, n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) / 2
        points[:, 0, 0] = torch.arange(n) / 8
        write_instances(tmp_path / f"tsp{n}.txt", points, torch.arange(n).roll(1).expand(n, n))
        names.append(str(tmp_path / f"tsp{n}.txt"))
    return tuple(names)


def test_batches_of_several_files(files):
    task = TSP(training_file=files)
    assert task.max_items() == 5
    sizes = [task.training_batch(2, step, 2).items.shape[1] for step in range(60)]
    for turn in range(20):
        assert sorted(sizes[3 * turn : 3 * turn + 3]) == [3, 4, 5]  # each file once in three steps,
    assert len({tuple(sizes[3 * turn : 3 * turn + 3]) for turn in range(20)}) > 3  # in an order of the seed's
    assert [task.training_batch(3, step, 2).items.shape[1] for step in range(60)] != sizes
    for n in (3, 4, 5):  # and every instance of a file once per pass over it
        steps = [step for step in range(60) if sizes[step] == n][:n]
        drawn = [int(row[0, 0] * 8) for step in steps for row in task.training_batch(2, step, 2).items]
        assert sorted(drawn[:n]) == sorted(drawn[n:]) == list(range(n))
    one, same = TSP(training_file=files[0]), TSP(training_file=[files[0]])
    assert one == same and hash(one) == hash(same)
    assert torch.equal(one.training_batch(0, 7, 2).items, same.training_batch(0, 7, 2).items)
    described = json.loads(json.dumps(describe(task)))
    assert described.pop("name") == "tsp" and described["training_file"] == list(files)
    assert TSP(**described) == task
    assert describe(one)["training_file"] == files[0]


def test_a_run_on_several_files_resumes_to_the_same_weights(files, tmp_path, monkeypatch):
    def model():
        torch.manual_seed(0)
        config = SoftRankConfig(
            16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder={"kind": "points"}, data=TOURS
        )
        return SoftRankModel(config)

    task = TSP(training_file=files, rotations=True)
    config = TrainConfig(iterations=6, batch_size=2, checkpoint_every=2, warmup=1, prefetch=False)
    whole = train(model(), task, config, tmp_path / "whole", quiet=True)

    def stop_at_five(self, seed, step, size):
        if step == 5:
            raise KeyboardInterrupt
        return batch_of(self, seed, step, size)

    batch_of = TSP.training_batch
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(TSP, "training_batch", stop_at_five)
        train(model(), task, config, tmp_path / "part", quiet=True)
    resumed = train(model(), TSP(training_file=list(files), rotations=True), config, tmp_path / "part", resume=True,
                    quiet=True)  # fmt: skip
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name])
    with pytest.raises(ValueError, match=r"has training_file = \[.*\] \(task\), got"):
        train(model(), TSP(training_file=files[:2], rotations=True), config, tmp_path / "part", resume=True, quiet=True)
    with pytest.raises(ValueError, match=r"has rotations = True \(task\), got False"):
        train(model(), TSP(training_file=files), config, tmp_path / "part", resume=True, quiet=True)


def test_a_run_from_before_an_option_resumes_with_its_default(files, tmp_path, monkeypatch):
    torch.manual_seed(0)
    facts = replace(TOURS, copies="square")
    sizes = {"heads": 2, "encoder_layers": 1, "decoder_layers": 1, "embedder": {"kind": "points"}, "data": facts}
    model = SoftRankModel(SoftRankConfig(16, 24, **sizes))
    config = TrainConfig(iterations=1, batch_size=2)
    train(model, TSP(training_file=files[0]), config, tmp_path, quiet=True)
    tensors, state = model_folder.load_training(tmp_path / "last")
    assert state["task"].pop("rotations") is False and state["model"]["data"].pop("copies") == "square"
    monkeypatch.setattr(model_folder, "load_training", lambda folder: (tensors, state))
    assert train(model, TSP(training_file=files[0]), config, tmp_path, resume=True, quiet=True).is_finished
    with pytest.raises(ValueError, match=r"has rotations = False \(task\), got True"):
        train(model, TSP(training_file=files[0], rotations=True), config, tmp_path, resume=True, quiet=True)


def test_rotations_by_hand():
    points = torch.tensor([[[0.5, 0.5], [1.0, 0.5], [0.75, 0.5]], [[0.5, 0.5], [1.0, 1.0], [0.75, 0.75]]]).double()
    quarter, eighth = math.pi / 2, math.pi / 4
    turned_points = rotated(points, torch.tensor([quarter, eighth], dtype=torch.float64))
    wanted = torch.tensor([[[0.5, 0.5], [0.5, 1.0], [0.5, 0.75]], [[0.5, 0.5], [0.5, 1.0], [0.5, 0.75]]]).double()
    torch.testing.assert_close(turned_points, wanted, atol=1e-12, rtol=0)  # the corner is drawn in to the edge
    inside = torch.tensor([[[0.5, 0.75], [0.5, 0.5], [0.4, 0.5]]], dtype=torch.float64)
    kept = rotated(inside, torch.tensor([1.0], dtype=torch.float64))
    torch.testing.assert_close(torch.pdist(kept[0]), torch.pdist(inside[0]), atol=1e-12, rtol=0)  # nothing to draw in


def test_rotations_keep_the_tour(files):
    plain, rotations = TSP(training_file=files[2]), TSP(training_file=files[2], rotations=True)
    before, after = plain.training_batch(0, 3, 40), rotations.training_batch(0, 3, 40)
    assert torch.equal(before.order, after.order)
    points = after.extras["points"]
    assert ((points >= 0) & (points <= 1)).all()
    scale = after.extras["best_length"] / before.extras["best_length"]
    assert (scale <= 1 + 1e-12).all() and (scale < 0.999).any()
    for row in range(40):
        distances = torch.pdist(before.extras["points"][row]) * scale[row]
        torch.testing.assert_close(torch.pdist(points[row]), distances, atol=1e-9, rtol=0)
    assert not torch.equal(points, rotations.training_batch(0, 4, 40).extras["points"])
    assert torch.equal(points, rotations.training_batch(0, 3, 40).extras["points"])
    area = signed_area(points, after.order) / signed_area(before.extras["points"], before.order)
    torch.testing.assert_close(area, scale**2, atol=1e-9, rtol=0)  # turned, not mirrored


def test_score(file):
    task = TSP(test_file=file)
    (batch,) = task.test_batches(3, 3)
    scores = task.score(batch, batch.order)
    assert (scores["gap"].abs() < 1e-12).all() and (scores["validity"] == 1).all()
    other = task.score(batch, torch.tensor([[2, 3, 0, 1], [2, 0, 0, 1], [0, 3, 1, 2]]))
    assert other["gap"][0] > 0.1 and other["validity"].tolist() == [1.0, 0.0, 0.0]
    assert other["gap"][2] == pytest.approx(0.0)  # the right tour from another start
    assert other["gap_after_2opt"][0] == pytest.approx(0.0)  # four corners: 2-opt undoes the crossing
    assert other["length_after_2opt"][1] == other["length"][1]  # not a tour: left alone


def test_task_errors(file):
    with pytest.raises(ValueError, match="direction must be one of 'file', 'counterclockwise', 'random', got 'left'"):
        TSP(direction="left")
    with pytest.raises(ValueError, match="reader must be one of 'paper', 'fine', got 'eyes'"):
        TSP(reader="eyes")
    for name in ("symmetries", "rotations", "random_start"):
        with pytest.raises(ValueError, match=f"{name} must be True or False, got 'no'"):
            TSP(**{name: "no"})
    for name, value, got in (
        ("training_file", 3, "int"),
        ("training_file", ["a", 3], "int"),
        ("test_file", ["a"], "list"),
    ):
        with pytest.raises(TypeError, match=f"{name} must be the name of a file, got {got}"):
            TSP(**{name: value})
    with pytest.raises(
        ValueError, match="training_file, or num_points for random points, must be given to be trained on"
    ):
        TSP(test_file=file).training_batch(0, 0, 1)
    with pytest.raises(
        ValueError, match="test_file, or num_points for random points, must be given to be evaluated on"
    ):
        next(TSP(training_file=file).test_batches(1, 1))
    with pytest.raises(ValueError, match="needs a training_file or a test_file"):
        TSP().max_items()
    with pytest.raises(ValueError, match=r"tsp4.txt has 3 instances, 4 were asked for"):
        next(TSP(test_file=file).test_batches(4, 1))


@pytest.mark.parametrize("coordinate", ["1.5", "-0.25"])
def test_points_outside_the_unit_square_are_refused(tmp_path, coordinate):
    path = tmp_path / "far.txt"
    path.write_text(f"0.5 0.25 0 1 {coordinate} 0 output 2 3 1 2\n")
    message = rf"points of .*far\.txt must lie in the unit square, got a coordinate of {coordinate}"
    with pytest.raises(ValueError, match=message):
        TSP(training_file=str(path)).training_batch(0, 0, 1)
    with pytest.raises(ValueError, match=message):
        next(TSP(test_file=str(path)).test_batches(1, 1))
    assert read_instances(path)[0].shape == (1, 3, 2)


def test_a_mask_is_not_ignored(file):
    task = TSP(test_file=file)
    (batch,) = task.test_batches(3, 3)
    with pytest.raises(ValueError, match="a batch of tours must have no mask"):
        task.score(replace(batch, mask=torch.ones(3, 4, dtype=torch.bool)), batch.order)


def test_data_facts(file, tmp_path):
    larger = tmp_path / "tsp6.txt"
    write_instances(larger, torch.rand(2, 6, 2, dtype=torch.float64), torch.arange(6).expand(2, 6))
    for direction in ("file", "counterclockwise", "random"):
        facts = TSP(training_file=(str(larger), file), direction=direction).data_facts()
        assert facts == DataFacts(
            symmetry="tour",
            direction=direction,
            fixed_start=True,
            num_items=(4, 6),
            value_range=(0.0, 1.0),
            scaling="unit square",
        )
    assert TSP(test_file=file).data_facts().num_items is None  # nothing was seen in training
    copies = [TSP(training_file=file, symmetries=given).data_facts().copies for given in (False, True)]
    assert copies == ["none", "square"]


@pytest.mark.parametrize(
    ("reader", "fastest", "slowest"), [("paper", 1.0, 1 / 10000**0.75), ("fine", 16.0, 16 / 64**0.75)]
)
def test_waves_of_the_readers(reader, fastest, slowest):
    embedder = {**TSP(reader=reader).embedder(), "learned": False}
    model = SoftRankModel(SoftRankConfig(d_model=16, heads=2, embedder=embedder)).double()
    points = torch.tensor([[[0.3, 0.8], [0.05, 0.0]]], dtype=torch.float64)
    waves = model.embed(points)  # four pairs per coordinate
    for row, point in enumerate(points[0].tolist()):
        for half, coordinate in enumerate(point):
            for pair, cycles in ((0, fastest), (3, slowest)):
                channel = 8 * half + 2 * pair
                angle = 2 * math.pi * cycles * coordinate
                assert waves[0, row, channel : channel + 2].tolist() == pytest.approx(
                    [math.sin(angle), math.cos(angle)], abs=1e-12
                )


def test_point_embedder_by_formula():
    embedder = {"kind": "points", "learned": False}
    model = SoftRankModel(SoftRankConfig(d_model=8, heads=2, embedder=embedder))
    x, y = 0.3, 0.6
    angles = torch.tensor([2 * torch.pi * x, 2 * torch.pi * x / 100, 2 * torch.pi * y, 2 * torch.pi * y / 100])
    wanted = torch.stack((angles.sin(), angles.cos()), 1).flatten()
    torch.testing.assert_close(model.embed(torch.tensor([[[x, y]]]))[0, 0], wanted, atol=1e-6, rtol=1e-6)
    assert not list(model.embedder.parameters())


def test_models_read_the_items(file, tmp_path):
    task = TSP(training_file=file)
    model = SoftRankModel(SoftRankConfig(d_model=16, heads=2, embedder=task.embedder())).eval()
    items = task.training_batch(0, 0, 2).items
    assert model.embed(items).shape == (2, 4, 16)
    model.save_pretrained(tmp_path / "saved")
    assert torch.equal(SoftRankModel.from_pretrained(tmp_path / "saved").embed(items), model.embed(items))
    with pytest.raises(ValueError, match=r"items must be \(B, N, 2\) float, got \(1, 4, 3\)"):
        model.embed(torch.rand(1, 4, 3))
    with pytest.raises(ValueError, match="d_model must be a multiple of 4 to embed points, got 6"):
        SoftRankModel(SoftRankConfig(d_model=6, heads=2, embedder=task.embedder()))


def test_tour_batch_measures_the_tour():
    batch = tour_batch(SQUARE[None], TOUR[None])
    assert batch.first.tolist() == [2] and batch.extras["best_length"].shape == (1,)


def test_symmetric_copies_keep_every_length(file):
    points = torch.rand(3, 6, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    copies = TSP(test_file=file).symmetric_copies(points).unflatten(0, (3, 8))
    assert torch.equal(copies[:, 0], points)
    for row in range(3):
        assert len({tuple(copy.flatten().tolist()) for copy in copies[row]}) == 8
        for copy in copies[row]:
            assert ((copy >= 0) & (copy <= 1)).all()
            torch.testing.assert_close(torch.pdist(copy), torch.pdist(points[row]), atol=1e-12, rtol=0)


@pytest.mark.parametrize("best_of", [1, 2])
def test_evaluation_with_symmetries_keeps_the_shortest_of_all_copies(tmp_path, best_of):
    generator = torch.Generator().manual_seed(4)
    points = torch.rand(5, 7, 2, generator=generator, dtype=torch.float64)
    order = torch.rand(5, 7, generator=generator).argsort(1)
    write_instances(tmp_path / "tsp7.txt", points, order)
    torch.manual_seed(0)
    model = SoftRankModel(
        SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder={"kind": "points"}, data=TOURS)
    )
    task = TSP(test_file=str(tmp_path / "tsp7.txt"))
    settings = {"count": 5, "batch_size": 2, "best_of": best_of, "best_by": "length"}
    row = evaluate(model, task, symmetries=8, **settings)
    shortest = []
    for instance in range(5):
        lengths = []
        for copy in range(8):
            x, y = points[instance].unbind(1)
            x, y = (1 - x if copy % 2 else x), (1 - y if copy // 2 % 2 else y)
            moved = torch.stack((y, x) if copy >= 4 else (x, y), 1).float()
            number = (instance * 8 + copy) * best_of
            start = Constraints(pins={int(order[instance, 0]): 0})
            options = {"num_samples": best_of, "first_sample": number, "decode": "greedy", "seed": 0}
            drawn = sample(model, moved, constraints=start, **options).order
            lengths += metrics.tour_length(points[instance], drawn).tolist()
        shortest.append(min(lengths))
    assert row["metrics"]["length"]["mean"] == pytest.approx(sum(shortest) / 5, abs=1e-9)
    assert row["symmetries"] == 8
    assert evaluate(model, task, **settings)["metrics"]["length"]["mean"] > sum(shortest) / 5


class TestWithoutLabels:
    def test_random_points(self):
        task = TSP(num_points=6, min_points=4)
        facts = DataFacts("tour", None, True, (4, 6), (0.0, 1.0), "unit square", "square")
        assert task.data_facts() == facts and task.max_items() == 6 and task.cost == TourLength()
        assert TSP(num_points=6).data_facts().num_items == (6, 6) and TSP().cost is None
        first, again, other = (task.training_batch(0, step, 3) for step in (2, 2, 3))
        assert torch.equal(first.items, again.items) and first.items.dtype == torch.float32
        assert not torch.equal(first.items[:, :4], other.items[:, :4])
        assert not first.has_labels() and first.first.tolist() == [0, 0, 0] and (first.order[:, 0] == 0).all()
        assert {task.training_batch(0, step, 1).items.shape[1] for step in range(40)} == {4, 5, 6}
        fixed = TSP(num_points=5)
        whole = torch.cat([batch.items for batch in fixed.test_batches(7, 7)])
        assert torch.equal(whole, torch.cat([batch.items for batch in fixed.test_batches(7, 3)]))
        assert not torch.equal(whole, torch.cat([batch.items for batch in fixed.test_batches(7, 7, seed=1)]))

    def test_costs_stand_beside_heuristics(self):
        task = TSP(num_points=9)
        (batch,) = task.test_batches(5, 5)
        scores, found = task.score(batch, batch.order), task.heuristics(batch)
        assert list(scores) == ["cost", "length", "validity", "length_after_2opt"]
        length = metrics.tour_length(batch.extras["points"], batch.order)
        assert torch.equal(scores["cost"], length) and torch.equal(scores["length"], length)
        assert list(found) == ["nearest_neighbour_cost", "local_search_cost"]
        nearest = metrics.tour_length(batch.extras["points"], nearest_neighbour(batch.extras["points"], batch.first))
        assert torch.equal(found["nearest_neighbour_cost"], nearest)
        assert (found["local_search_cost"] <= nearest).all() and (nearest < length).any()

    def test_labels_of_a_test_file_give_gaps(self, file):
        task = TSP(num_points=4, test_file=file)
        (batch,) = task.test_batches(3, 3)
        assert batch.has_labels()
        assert list(task.score(batch, batch.order))[:2] == ["cost", "gap"]
        assert task.heuristics(batch)["local_search_gap"].tolist() == pytest.approx([0, 0, 0], abs=1e-12)
        assert TSP(test_file=file).heuristics(batch) == {}

    def test_errors(self, file):
        with pytest.raises(ValueError, match="num_points must be left out where there is a training_file, got both"):
            TSP(training_file=file, num_points=4)
        with pytest.raises(ValueError, match="num_points must be an integer of at least 1, got 0"):
            TSP(num_points=0)
        with pytest.raises(ValueError, match="min_points must be an integer from 1 to 4, got 5"):
            TSP(num_points=4, min_points=5)
