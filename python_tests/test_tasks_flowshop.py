"""Flow shops: Taillard's generator and files, batches by seed and step, costs beside heuristics, errors."""

import os
import re
from pathlib import Path

import pytest
import torch

from softrank_ext import SoftRankConfig, SoftRankModel, evaluate
from softrank_ext.costs import Makespan, TotalFlowTime, iterated_greedy, neh
from softrank_ext.model import DataFacts
from softrank_ext.tasks.flowshop import FlowShop, read_taillard, taillard_times

DATA = os.environ.get("SOFTRANK_DATA")
# Published seeds of the ten instances of 20 jobs and 5 machines, and their best makespans, which are optimal.
SEEDS = (873654221, 379008056, 1866992158, 216771124, 495070989, 402959317, 1369363414, 2021925980, 573109518, 88325120)
OPTIMA = (1278, 1359, 1081, 1293, 1235, 1195, 1234, 1206, 1230, 1108)
NEH = (1286, 1365, 1159, 1325, 1305, 1228, 1278, 1223, 1291, 1151)


def taillard() -> torch.Tensor:
    return torch.stack([taillard_times(seed, 20, 5) for seed in SEEDS])


def write_taillard(path: Path, times: torch.Tensor) -> None:
    lines = []
    for instance in times:
        jobs, machines = instance.shape
        lines += ["number of jobs, number of machines, initial seed, upper bound and lower bound :"]
        lines += [f"  {jobs} {machines} 1 2 3", "processing times :"]
        lines += [" ".join(map(str, row)) for row in instance.T.tolist()]
    path.write_text("\n".join(lines) + "\n")


class TestTaillard:
    def test_the_generator_makes_the_published_times(self):
        first = taillard_times(873654221, 20, 5)
        assert first[:, 0].tolist() == [54, 83, 15, 71, 77, 36, 53, 38, 27, 87, 76, 91, 14, 29, 12, 77, 32, 87, 68, 94]
        assert first[:5, 4].tolist() == [58, 56, 20, 85, 53]

    def test_neh_and_optima(self):
        times = taillard()
        order = neh(times)
        assert Makespan()(times, order).tolist() == list(NEH)
        found = Makespan()(times, iterated_greedy(times, order, Makespan(), rounds=300))
        assert (found >= torch.tensor(OPTIMA)).all()
        assert float((found / torch.tensor(OPTIMA)).mean()) < 1.005

    @pytest.mark.skipif(not DATA or not Path(DATA, "flowshop").exists(), reason="needs Taillard's instances")
    def test_files_are_what_the_generator_makes(self):
        for path in Path(DATA or "", "flowshop").glob("tai*.txt"):
            times = read_taillard(path)
            seeds = re.findall(r"bound :\s+\d+\s+\d+\s+(\d+)", path.read_text())
            made = [taillard_times(int(seed), *times.shape[1:]) for seed in seeds]
            assert len(made) == 10 and torch.equal(times, torch.stack(made))

    def test_files(self, tmp_path):
        write_taillard(tmp_path / "tai20_5.txt", taillard()[:3])
        assert torch.equal(read_taillard(tmp_path / "tai20_5.txt"), taillard()[:3])
        task = FlowShop(num_jobs=10, test_file=str(tmp_path / "tai20_5.txt"))
        assert task.max_items() == 20
        first, second = task.test_batches(3, 2)
        assert torch.equal(torch.cat((first.items, second.items))[..., :5], taillard()[:3].float())
        assert first.extras == {} and not first.has_labels()
        rows = [f"tai20_5_{number + 1},20,5,0,{best}" for number, best in enumerate(OPTIMA[:3])]
        (tmp_path / "best.csv").write_text("\n".join(["instance,jobs,machines,neh,best", *rows]))
        _, second = task.test_batches(3, 2)
        assert second.extras["best"].tolist() == [1081]
        assert task.heuristics(second)["neh_gap"].tolist() == pytest.approx([1159 / 1081 - 1])
        assert task.test_count == 3 and FlowShop().test_count is None
        (flow,) = FlowShop(objective="total_flow_time", test_file=task.test_file).test_batches(1, 1)
        assert flow.extras == {}

    def test_bad_files(self, tmp_path):
        path = tmp_path / "wrong.txt"
        with pytest.raises(FileNotFoundError, match=r"wrong.txt is missing: it must be a file of Taillard's"):
            read_taillard(path)
        for text, message in (
            ("", "has no whole instance"),
            ("2 2 1 1 1\n1 2\n", "ends within an instance"),
            ("2 2 1 1 1\n1 2 3\n", "line 2 must have 2 times, got 3"),
            ("2 2 1\n", "line 1 must be jobs, machines, seed and two bounds, got '2 2 1'"),
            ("2 2 1 1 1\n1 x\n", "line 2: invalid literal"),
            (
                "1 1 1 1 1\n1\n2 1 1 1 1\n1 2\n",
                r"instances of one size, got jobs and machines \[\(1, 1\), \(2, 1\)\]",
            ),
        ):
            path.write_text(text)
            with pytest.raises(ValueError, match=message):
                read_taillard(path)


class TestBatches:
    def test_instances_are_uniform_and_by_seed_and_step(self):
        task = FlowShop(num_jobs=6, num_machines=3)
        batch, again, other = (task.training_batch(0, step, 500) for step in (0, 0, 1))
        assert batch.items.shape == (500, 6, 20) and batch.items.dtype == torch.float32 and not batch.has_labels()
        assert torch.equal(batch.items, again.items) and not torch.equal(batch.items, other.items)
        times = batch.items[..., :3]
        assert int(times.min()) == 1 and int(times.max()) == 99 and bool((batch.items[..., 3:] == 0).all())
        assert float(times.mean()) == pytest.approx(50, abs=1.5)  # deviation of the mean: 0.3
        whole = torch.cat([batch.items for batch in task.test_batches(7, 7)])
        assert torch.equal(whole, torch.cat([batch.items for batch in task.test_batches(7, 3)]))
        assert not torch.equal(whole, torch.cat([batch.items for batch in task.test_batches(7, 7, seed=1)]))

    def test_ranges(self):
        task = FlowShop(num_jobs=5, min_jobs=3, num_machines=4, min_machines=2)
        assert task.data_facts() == DataFacts(num_items=(3, 5), value_range=(0.0, 99.0), num_machines=(2, 4))
        assert task.max_items() == 5
        items = [task.training_batch(0, step, 2).items for step in range(60)]
        assert {batch.shape[1] for batch in items} == {3, 4, 5}
        assert {int((batch > 0).any(1).any(0).sum()) for batch in items} == {2, 3, 4}

    def test_items_of(self):
        times = torch.randint(1, 99, (2, 4, 7))
        items = FlowShop.items_of(times)
        assert items.shape == (2, 4, 20) and torch.equal(items[..., :7].long(), times)
        order = torch.tensor([[1, 3, 0, 2], [2, 0, 1, 3]])
        for cost in (Makespan(), TotalFlowTime()):
            assert torch.equal(cost(items, order), cost(times, order))


def test_scores_beside_heuristics():
    task = FlowShop(num_jobs=8, num_machines=4)
    model = SoftRankModel(SoftRankConfig(16, 24, heads=2, encoder_layers=1, decoder_layers=1, embedder=task.embedder()))
    row = evaluate(model, task, count=6, batch_size=4, steps=2)
    means = {name: value["mean"] for name, value in row["metrics"].items()}
    assert list(means) == ["cost", "neh_cost", "iterated_greedy_cost"]
    assert means["iterated_greedy_cost"] <= means["neh_cost"] < means["cost"]
    items = torch.cat([batch.items for batch in task.test_batches(6, 6)])
    assert means["neh_cost"] == pytest.approx(float(Makespan()(items, neh(items)).mean()))
    assert FlowShop(objective="total_flow_time").cost == TotalFlowTime()


def test_errors():
    for arguments, message in (
        ({"num_jobs": 0}, "num_jobs must be an integer of at least 1, got 0"),
        ({"num_machines": 21}, "num_machines must be an integer from 1 to 20, got 21"),
        ({"min_jobs": 30}, "min_jobs must be an integer from 1 to 20, got 30"),
        ({"min_machines": 6}, "min_machines must be an integer from 1 to 5, got 6"),
        ({"objective": "lateness"}, "objective must be one of 'makespan', 'total_flow_time', got 'lateness'"),
    ):
        with pytest.raises(ValueError, match=message):
            FlowShop(**arguments)
    with pytest.raises(TypeError, match="test_file must be the name of a file, got int"):
        FlowShop(test_file=3)
    with pytest.raises(ValueError, match=r"times must have 1 to 20 machines, got \(1, 2, 21\) float32"):
        FlowShop.items_of(torch.zeros(1, 2, 21))
    with pytest.raises(ValueError, match=r"times must be a \(B, jobs, machines\) tensor of .*, got \(2, 3\) float32"):
        FlowShop.items_of(torch.zeros(2, 3))
    for wrong in (-1.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match="times must be finite and not negative"):
            FlowShop.items_of(torch.full((1, 2, 2), wrong))
    with pytest.raises(ValueError, match="seed must be an integer from 1 to 2147483646, got 0"):
        taillard_times(0, 2, 2)


def test_too_many_instances(tmp_path):
    write_taillard(tmp_path / "two.txt", taillard()[:2])
    with pytest.raises(ValueError, match=r"two.txt has 2 instances, 3 were asked for"):
        list(FlowShop(test_file=str(tmp_path / "two.txt")).test_batches(3, 3))
