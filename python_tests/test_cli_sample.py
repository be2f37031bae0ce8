"""`softrank sample`: options become one call of `sample`."""

import json

import numpy as np
import pytest
import torch

from softrank_ext import Beam, Bridge, Constraints, DataFacts, Draw, SoftRankConfig, SoftRankModel, sample
from softrank_ext.cli.main import main


@pytest.fixture
def folder(make_model, tmp_path, monkeypatch):
    """A folder with a model and items.npz, two instances of six items (2,); the current one."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(15)
    make_model("pointer").save_pretrained("model")
    np.savez("items.npz", items=torch.randn(2, 6, 2).numpy())
    return tmp_path


COMMAND = ["sample", "model", "items.npz", "orders.npz"]


def orders_of(*options: str) -> np.ndarray:
    assert main([*COMMAND, *options]) == 0
    return np.load("orders.npz")["order"]


def expected(**options) -> np.ndarray:
    items = np.load("items.npz")["items"]
    return sample(SoftRankModel.from_pretrained("model"), items, **options).order


@pytest.mark.parametrize(
    ("options", "call"),
    [
        (["--num-samples", "20"], {"num_samples": 20, "seed": 0}),
        (["--seed", "7", "--steps", "3"], {"seed": 7, "steps": 3}),
        (["--decode", "greedy"], {"decode": "greedy", "seed": 0}),
        (["--draw.temperature", "0.2"], {"decode": Draw(0.2), "seed": 0}),
        (["--decode", "beam", "--beam.width", "6", "--beam.kept", "2"], {"decode": Beam(6, 2), "seed": 0}),
        (["--process.noise-scale", "0.05", "--process.prior", "gaussian", "--process.carry", "reflected"],
         {"process": Bridge(0.05, "gaussian", "reflected"), "seed": 0}),
        (["--process.noise-scale", "0.05", "--steps", "3"], {"process": Bridge(0.05, sampling_steps=3), "seed": 0}),
        (["--engine.compiled", "False", "--engine.max-memory", "1"], {"seed": 0}),
        (["--pin", "3:0"], {"constraints": Constraints(pins={3: 0}), "seed": 0}),
    ],
)  # fmt: skip
def test_options_are_those_of_sample(folder, options, call):
    assert np.array_equal(orders_of(*options), expected(**call))


def test_rules(folder, capsys):
    rules = {"before": [[3, 5], [5, 1]], "pins": {"2": -1}, "forbidden": [[4, 0]], "together": [[0, 4]]}
    words = ["--before", "3:5", "5:1", "--pin", "2:-1", "--forbid", "4:0", "--together", "0,4"]
    wanted = expected(constraints=Constraints([(3, 5), (5, 1)], {2: -1}, [(4, 0)], [(0, 4)]), num_samples=20, seed=0)
    assert np.array_equal(orders_of(*words, "--num-samples", "20"), wanted)
    (folder / "rules.json").write_text(json.dumps([rules, rules]))
    file = ["--constraints", "rules.json"]
    assert np.array_equal(orders_of(*file, "--num-samples", "20"), wanted)
    capsys.readouterr()
    for given in (words, file):
        assert main([*COMMAND, *given, "--law", "conditioned", "--particles", "4"]) == 0
        assert "of 4 draws, in the worst instance" in capsys.readouterr().out
    (folder / "rules.json").write_text(json.dumps({**rules, "law": "conditioned", "particles": 3}))
    assert main([*COMMAND, *file]) == 0
    assert "of 3 draws, in the worst instance" in capsys.readouterr().out
    assert np.array_equal(
        orders_of("--before", "3:5", "--reflect-noise"),
        expected(constraints=Constraints([(3, 5)], reflect_noise=True), seed=0),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--constraints", "rules.json", "--before", "0:1"],
         "--constraints FILE excludes --before, --pin, --forbid and --together, got both"),
        (["--before", "3"], "--before must be written like 3:5, got '3'"),
        (["--together", "1,b"], "--together must be written like 3,5,7, got '1,b'"),
        (["--pin", "1:2", "1:3"], "--pin must name an item once, 1 is pinned to 2 and 3"),
        (["--before", "0:1", "1:0"], "constraints contradict each other: 0 before 1 before 0"),
        (["--law", "conditioned"], "--law, --particles and --reflect-noise are for draws under constraints, got none"),
        (["--beam.width", "4"], "--beam.width, .kept and .returned are for --decode beam, got --decode sample"),
        (["--decode", "greedy", "--draw.temperature", "2"], "--draw.temperature is for --decode sample, got --decode"),
    ],
)  # fmt: skip
def test_says_what_is_wrong(folder, options, message, capsys):
    assert main([*COMMAND, *options]) == 2
    assert message in capsys.readouterr().err


def test_a_process_that_a_model_has_not_is_told(folder, capsys):
    from softrank_ext import Riffle

    embedder = {"kind": "linear", "features": 2}
    config = SoftRankConfig(16, 24, 2, 1, 0, head="gpl", embedder=embedder, process=Riffle((0, 2, 7)))
    SoftRankModel(config).save_pretrained("model")
    assert main([*COMMAND, "--process.noise-scale", "0.1"]) == 2
    assert "--process.noise-scale cannot change the process of this model: Riffle(" in capsys.readouterr().err
    assert main([*COMMAND, "--steps", "2"]) == 0


TSPLIB = "NAME: five\nTYPE: TSP\nDIMENSION: 5\nEDGE_WEIGHT_TYPE: EUC_2D\nNODE_COORD_SECTION\n" + "".join(
    f"{node} {x} {y}\n" for node, (x, y) in enumerate([(0, 0), (9, 1), (4, 8), (2, 3), (7, 7)], 1)
)


@pytest.mark.parametrize("fixed_start", (True, False))
def test_tours_of_a_file_start_at_item_0_or_at_the_pin(tmp_path, monkeypatch, fixed_start):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "five.tsp").write_text(TSPLIB + "EOF\n")
    torch.manual_seed(0)
    data = DataFacts("tour", fixed_start=fixed_start)
    SoftRankModel(SoftRankConfig(16, 24, 2, 1, 1, embedder={"kind": "points"}, data=data)).save_pretrained("model")
    for options, first in (
        ([], 0), (["--pin", "3:0"], 3), (["--pin", "3:1"], 0), (["--before", "2:1"], 0), (["--pin", "0:2"], None),
    ):  # fmt: skip
        assert main(["sample", "model", "five.tsp", "orders.npz", "--num-samples", "8", *options]) == 0
        starts = set(np.load("orders.npz")["order"][0, :, 0].tolist())
        assert starts == {first} if first is not None else 0 not in starts


def test_orders_of_a_bundled_name_or_a_run(folder):
    SoftRankModel.from_pretrained("model").save_pretrained("run/best")
    assert main(["sample", "run", "items.npz", "orders.json", "--num-samples", "3", "--seed", "2"]) == 0
    orders = json.loads((folder / "orders.json").read_text())
    assert len(orders) == 6 and all(sorted(row["order"]) == [0, 1, 2, 3, 4, 5] for row in orders)
    assert main(["sample", "run", "items.npz", "orders.csv", "--pin", "1:0"]) == 0
    assert [line.split(",")[3] for line in (folder / "orders.csv").read_text().splitlines()] == ["place_0", "1", "1"]


def test_missing_models_and_unknown_endings_are_told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["sample", "nowhere", "a.npz", "a.csv"]) == 2
    assert "nowhere is neither a folder nor a bundled model" in capsys.readouterr().err
    assert main(["sample", "nowhere", "a.npz", "a.txt"]) == 2
    assert "orders are written to a file ending in .csv, .json, .npz, got a.txt" in capsys.readouterr().err
