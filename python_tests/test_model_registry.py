"""Model types by name: our own, those registered by the decorator, those that a package names as an entry point."""

import json
from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest
import torch
from synthetic_tasks import SortNumbers
from testing.scorer import Scorer, make_scorer
from torch import nn

from softrank_ext import SoftRankModel, evaluate, model_folder, register_model, sample
from softrank_ext.baselines.diffsort import DiffSortModel
from softrank_ext.baselines.factorised import FactorisedModel
from softrank_ext.model import model_class, model_types, registry
from softrank_ext.training import TrainConfig, train

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def entry_point(monkeypatch):
    """An installed package that names Scorer as its model type."""
    point = EntryPoint("test-scorer", "testing.scorer:Scorer", registry.ENTRY_POINTS)

    def entry_points(*, group: str) -> tuple[EntryPoint, ...]:
        assert group == "softrank_ext.models"
        return (point,)

    monkeypatch.setattr(registry, "entry_points", entry_points)


def test_our_own_types():
    assert model_types() == ["soft-rank", "diffsort", "factorised"]
    for name, kind in (("soft-rank", SoftRankModel), ("diffsort", DiffSortModel), ("factorised", FactorisedModel)):
        assert model_class(name) is kind and kind.model_type == name


def assert_saved_and_read(folder) -> None:
    """A scorer goes into a folder and comes back the same."""
    model, items = make_scorer(), torch.randn(5, 4, 1)
    model_folder.save_pretrained(model, folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "test-scorer"
    again = model_folder.from_pretrained(folder)
    assert isinstance(again, Scorer) and again.config == model.config and not again.training
    assert torch.equal(sample(again, items, seed=1).order, sample(model, items, seed=1).order)


def test_a_type_registered_by_the_decorator_is_saved_and_read(tmp_path):
    assert register_model(Scorer) is Scorer
    assert model_types()[-1] == "test-scorer" and model_class("test-scorer") is Scorer
    assert_saved_and_read(tmp_path)


def test_a_type_of_an_entry_point_is_saved_and_read(tmp_path, entry_point):
    assert model_types()[-1] == "test-scorer" and model_class("test-scorer") is Scorer
    assert_saved_and_read(tmp_path)


def test_a_type_that_nobody_knows_is_told(tmp_path):
    model_folder.save_pretrained(make_scorer(), tmp_path)
    message = r"config\.json: model_type must be one of soft-rank, diffsort, factorised, got 'test-scorer'"
    with pytest.raises(ValueError, match=message):
        model_folder.from_pretrained(tmp_path)


def test_another_class_of_a_known_name_is_refused():
    @dataclass(frozen=True)
    class Config:
        d_model: int = 4

    class Other(nn.Module):
        model_type = "test-scorer"
        config_type = Config

    class Ours(nn.Module):
        model_type = "soft-rank"
        config_type = Config

    register_model(Scorer)
    register_model(Scorer)  # a cell of a notebook that runs twice
    with pytest.raises(ValueError, match="model_type 'test-scorer' of Other must be new, another class has it"):
        register_model(Other)
    with pytest.raises(ValueError, match="model_type 'soft-rank' of Ours must be new, another class has it"):
        register_model(Ours)


def test_a_class_without_names_is_refused():
    class Nameless(nn.Module):
        config_type = dict

    class Formless(nn.Module):
        model_type = "formless"

    for kind in (Nameless, Formless):
        with pytest.raises(TypeError, match=rf"{kind.__name__} must have a model_type \(a name\) and a config_type"):
            register_model(kind)


def test_a_registered_type_trains_evaluates_saves_and_resumes(tmp_path):
    register_model(Scorer)
    task = SortNumbers(5)
    config = TrainConfig(iterations=60, batch_size=32, learning_rate=0.1, warmup=0, evaluate_every=60, ema=0.5)
    result = train(make_scorer(), task, config, tmp_path, quiet=True)
    assert result.metrics["accuracy"] > 0.9
    saved = model_folder.from_pretrained(tmp_path / "last")
    assert isinstance(saved, Scorer) and not saved.training
    row = evaluate(saved, task, count=200)
    assert row["metrics"]["accuracy"]["mean"] > 0.9 and row["steps"] == 1
    assert train(make_scorer(), task, config, tmp_path, resume=True, quiet=True).is_finished
    with pytest.raises(ValueError, match=r"holds a test-scorer model: use .*from_pretrained"):
        SoftRankModel.from_pretrained(tmp_path / "last")
