"""Methods by name: each cell of the ablation grid and each baseline is one command; so are models of one pass."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from synthetic_tasks import SortNumbers
from torch import Tensor, nn

from softrank_ext import SoftRankModel, model_folder, pretrained, sample
from softrank_ext.batch import Batch
from softrank_ext.cli.main import main
from softrank_ext.evaluation import evaluate
from softrank_ext.methods import METHODS, method_of
from softrank_ext.model import LinearEmbedder, OnePassModel
from softrank_ext.permutations import ranks_of
from softrank_ext.training import TrainConfig, train

BALLOTS = ["# NUMBER ALTERNATIVES: 4", "# ALTERNATIVE NAME 1: a", "# ALTERNATIVE NAME 2: b", "# ALTERNATIVE NAME 3: c",
           "# ALTERNATIVE NAME 4: d", "# NUMBER VOTERS: 12", "# NUMBER UNIQUE ORDERS: 2", "8: 2,3,1,4",
           "4: 3,1,4,2"]  # fmt: skip
SMALL = ["--model.d-model", "16", "--model.feed-forward", "24", "--model.heads", "2", "--model.encoder-layers", "1"]
QUICK = ["--iterations", "2", "--batch-size", "4", "--no-prefetch", "--task.file", "ballots.soc"]


@pytest.fixture
def ballots(tmp_path, monkeypatch):
    """A folder with ballots.soc and items.npz, and the current one."""
    (tmp_path / "ballots.soc").write_text("\n".join(BALLOTS) + "\n")
    monkeypatch.chdir(tmp_path)
    np.savez("items.npz", items=np.array([[0, 1, 2, 3], [2, 1, 0, 3]]))
    return tmp_path


def run_through(folder, words: list[str], evaluation: tuple[str, ...] = ()) -> dict:
    """Train, evaluate and sample by the command line; returns the row of the evaluation."""
    assert main(["train", "preferences", *words, *QUICK, "--output", "run"]) == 0
    assert main(["evaluate", "preferences", "run", "--count", "4", "--output", "row.json", *evaluation]) == 0
    assert main(["sample", "run", "items.npz", "orders.json", "--num-samples", "2"]) == 0
    orders = json.loads((folder / "orders.json").read_text())
    assert len(orders) == 4 and all(sorted(row["order"]) == [0, 1, 2, 3] for row in orders)
    (row,) = json.loads((folder / "row.json").read_text())["rows"]
    return row


@pytest.mark.parametrize("target", ("clean", "previous"))
@pytest.mark.parametrize("head", ("gpl", "linear", "pointer"))
@pytest.mark.parametrize("process", ("soft-rank", "riffle"))
def test_a_cell_of_the_ablation_grid_is_one_command(ballots, process, head, target):
    layers = "0" if head == "gpl" else "1"
    cell = ["--model.process", process, "--model.head", head, "--model.target", target]
    row = run_through(ballots, [*cell, *SMALL, "--model.decoder-layers", layers])
    config = SoftRankModel.from_pretrained("run/last").config
    assert (config.process, config.head, config.target) == (process, head, target)
    assert config.visited == ((0, 2, 7) if process == "riffle" else None)
    assert row["steps"] == (2 if process == "riffle" else 5)


@pytest.mark.parametrize("trained", ("uniform", "gaussian"))
@pytest.mark.parametrize("sampled", ("uniform", "gaussian"))
def test_a_row_of_the_reference_table_is_one_command(ballots, trained, sampled):
    row = run_through(ballots, [*SMALL, "--model.decoder-layers", "1", "--reference", trained],
                      ("--reference", sampled))  # fmt: skip
    assert json.loads((ballots / "run" / "run.json").read_text())["config"]["reference"] == trained
    assert row["reference"] == sampled


def test_symmetric_diffusers(ballots):
    beam = ("--decode", "beam", "--beam", "24", "--beam-kept", "6")
    row = run_through(ballots, ["--method", "symmetric-diffusers", *SMALL], beam)
    assert (row["decode"], row["beam"], row["beam_kept"], row["steps"]) == ("beam", 24, 6, 2)
    record = json.loads((ballots / "run" / "run.json").read_text())
    assert (record["config"]["draws"], record["config"]["times"]) == (3, "all")
    saved = json.loads((ballots / "run" / "last" / "config.json").read_text())
    assert {name: saved[name] for name in ("model_type", "process", "target", "head", "visited", "norm_first")} == {
        "model_type": "soft-rank", "process": "riffle", "target": "previous", "head": "gpl", "visited": [0, 2, 7],
        "norm_first": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "model_type", "decode"),
    [
        (["--method", "diffsort", "--model.network", "bitonic", "--model.swap", "optimal"], "diffsort", "greedy"),
        (["--method", "error-free-diffsort", *SMALL, "--model.hard-weight", "0"], "diffsort", "greedy"),
        (["--method", "lehmer", *SMALL], "factorised", "sample"),
        (["--method", "lehmer", "--model.code", "insertion", *SMALL], "factorised", "sample"),
    ],
)
def test_one_pass_baselines(ballots, words, model_type, decode, capsys):
    train = ["train", "preferences", *words, *QUICK, "--output", "run"]
    assert main(train) == 0
    assert json.loads((ballots / "run" / "last" / "config.json").read_text())["model_type"] == model_type
    assert main(["evaluate", "preferences", "run", "--count", "4", "--output", "row.json"]) == 0
    command = ["sample", "run", "items.npz", "orders.json", "--num-samples", "3", "--decode", decode]
    drawn = []
    for seed in ("1", "1", "2"):
        assert main([*command, "--seed", seed]) == 0
        drawn.append([row["order"] for row in json.loads((ballots / "orders.json").read_text())])
    assert len(drawn[0]) == 6 and all(sorted(order) == [0, 1, 2, 3] for order in drawn[0])
    assert drawn[0] == drawn[1]
    assert (drawn[0] != drawn[2]) == (decode == "sample")
    assert main([*train, "--resume"]) == 0  # nothing is left to do
    if decode == "greedy":
        assert main(["sample", "run", "items.npz", "orders.json"]) == 1
        assert 'it needs decode="greedy"' in capsys.readouterr().err


def test_error_free_diffsort_has_the_published_settings(ballots, capsys):
    assert main(["train", "preferences", "--method", "error-free-diffsort", *QUICK, "--output", "run"]) == 1
    assert "they must be images or vectors, got (4, 4) torch.int64; set hard_weight to 0" in capsys.readouterr().err


def test_the_method_may_stand_in_a_file(ballots):
    (ballots / "run.yaml").write_text("method: symmetric-diffusers\nmodel:\n  visited: [0, 3, 8]\n  head: pl\n")
    row = run_through(ballots, ["--config", "run.yaml", *SMALL])
    config = SoftRankModel.from_pretrained("run/last").config
    assert (config.process, config.visited, config.head) == ("riffle", (0, 3, 8), "pl")
    assert row["steps"] == 2


def test_unknown_methods_are_told(ballots, capsys):
    with pytest.raises(ValueError, match=r"method must be one of softrank, symmetric-diffusers.*, got 'softsort'"):
        method_of("softsort")
    assert main(["train", "preferences", "--method", "softsort"]) == 1
    assert "method must be one of softrank, symmetric-diffusers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "preferences", "--method=symmetric-diffusers", "--help"])
    told = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "--model.process {soft-rank,riffle} (default: riffle)" in told
    assert all(name in told for name in METHODS)


def test_a_run_of_another_method_is_not_resumed(ballots, capsys):
    run_through(ballots, ["--method", "symmetric-diffusers", *SMALL])
    again = ["train", "preferences", *QUICK, *SMALL, "--model.decoder-layers", "1", "--output", "run", "--resume"]
    assert main(again) == 1
    assert "resume with what it was started with" in capsys.readouterr().err


def test_a_run_of_before_is_resumed(ballots):
    """Its records have the target among the options of training, and nothing of processes."""
    words = ["train", "preferences", *QUICK, *SMALL, "--model.decoder-layers", "1", "--output", "run"]
    assert main(words) == 0
    tensors, state = model_folder.load_training(ballots / "run" / "last")
    state["config"]["target"] = "clean"
    del state["config"]["times"], state["config"]["objective"]
    for name in ("model_type", "process", "target", "visited"):
        del state["model"][name]
    model_folder.save_training(ballots / "run" / "last", tensors, state)
    assert main([*words, "--resume"]) == 0


@dataclass(frozen=True)
class ScorerConfig:
    d_model: int
    embedder: dict


class Scorer(OnePassModel):
    """Orders by a score per item, or draws from Plackett-Luce; trained by the likelihood of Plackett-Luce."""

    model_type = "test-scorer"
    config_type = ScorerConfig

    def __init__(self, config: ScorerConfig, embedder: nn.Module | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedder = embedder or LinearEmbedder(config.d_model, config.embedder["features"])
        self.score = nn.Linear(config.d_model, 1)

    def embed(self, items: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.score(self.embedder(items).relu())

    def choose(self, embedded, mask, first, uniform, temperature):
        scores = embedded[..., 0] / temperature
        if uniform is not None:
            scores = scores - (-uniform.log()).log()
        if first is not None:
            scores = scores.scatter(1, first[:, None], math.inf)
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return scores.argsort(dim=1, descending=True, stable=True), torch.full((len(scores),), math.nan)

    def loss_module(self) -> nn.Module:
        return ScorerLoss(self)

    def bytes_per_sample(self, N: int) -> int:
        return 4 * N * self.config.d_model


class ScorerLoss(nn.Module):
    def __init__(self, model: Scorer) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, seed: int, samples: Tensor) -> tuple[Tensor, Tensor]:
        arranged = self.model.embed(batch.items)[..., 0].gather(1, batch.order)
        loss = -(arranged - arranged.flip(1).logcumsumexp(1).flip(1)).sum(1).mean()
        return loss, (loss / batch.order.shape[1]).detach()


class TestOnePassModel:
    @pytest.fixture(autouse=True)
    def registered(self, monkeypatch):
        monkeypatch.setitem(model_folder.MODEL_TYPES, Scorer.model_type, Scorer)

    def model(self) -> Scorer:
        torch.manual_seed(1)
        return Scorer(ScorerConfig(8, {"kind": "linear", "features": 1}))

    def test_trains_evaluates_saves_and_resumes(self, tmp_path):
        task = SortNumbers(5)
        config = TrainConfig(iterations=60, batch_size=32, learning_rate=0.1, warmup=0, evaluate_every=60, ema=0.5)
        result = train(self.model(), task, config, tmp_path, quiet=True)
        assert result.metrics["accuracy"] > 0.9
        saved = pretrained.from_pretrained(tmp_path / "last")
        assert isinstance(saved, Scorer) and not saved.training
        row = evaluate(saved, task, count=200)
        assert row["metrics"]["accuracy"]["mean"] > 0.9 and row["steps"] == 1
        assert train(self.model(), task, config, tmp_path, resume=True, quiet=True).is_finished
        with pytest.raises(ValueError, match=r"holds a test-scorer model: use checkpoint\.from_pretrained"):
            SoftRankModel.from_pretrained(tmp_path / "last")

    def test_samples(self):
        model, items = self.model(), torch.randn(5, 4, 1)
        drawn = sample(model, items, num_samples=300, seed=1)
        assert drawn.order.shape == (5, 300, 4)
        assert torch.equal(drawn.ranks, ranks_of(drawn.order))
        assert len(drawn.order[0].unique(dim=0)) > 5
        assert torch.equal(sample(model, items[2:3], num_samples=300, seed=1, first_sample=600).order, drawn.order[2:3])
        assert torch.equal(sample(model, items, num_samples=300, seed=1, max_memory=1).order, drawn.order)
        greedy = sample(model, items, decode="greedy", first=3)
        assert bool((greedy.order[..., 0] == 3).all())
        assert int(drawn.passes.max()) == 1 and sample(model, items[0].numpy()).order.shape == (1, 4)
        mask = torch.tensor([True, False, True, True]).expand(5, 4)
        assert bool((sample(model, items, mask=mask).order[..., 3] == 1).all())

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"steps": 5}, "a test-scorer model takes one step, got steps = 5"),
            ({"record": True}, "are for diffusions, this is a test-scorer model"),
            ({"decode": "beam", "beam": 3}, "are for diffusions, this is a test-scorer model"),
        ],
    )
    def test_says_what_is_wrong(self, options, message):
        with pytest.raises(ValueError, match=message):
            sample(self.model(), torch.randn(2, 4, 1), **options)
