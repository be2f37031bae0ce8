"""Bundled models by name, and any model by its folder."""

import pytest

from softrank_ext import SoftRankModel, from_pretrained, list_pretrained, model_folder, pretrained
from softrank_ext.baselines.diffsort import DiffSortConfig, DiffSortModel


@pytest.fixture
def bundle(make_model, tmp_path, monkeypatch):
    """A package that comes with the models `first` and `tsp`."""
    for name, head in (("first", "linear"), ("tsp", "pointer")):
        make_model(head).save_pretrained(tmp_path / "weights" / name)
    monkeypatch.setattr(pretrained, "BUNDLED", tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_bundled_models_are_found_by_name(bundle, make_model):
    assert pretrained.bundled_names() == ["first", "tsp"]
    assert from_pretrained("tsp").config.head == SoftRankModel.from_pretrained("tsp").config.head == "pointer"
    make_model("linear").save_pretrained(bundle / "tsp")
    assert from_pretrained("tsp").config.head == "linear"  # a folder goes first
    with pytest.raises(
        FileNotFoundError, match=r"mnist is neither a folder nor a bundled model \(bundled: first, tsp\)"
    ):
        from_pretrained("mnist")
    with pytest.raises(FileNotFoundError, match="is neither a folder nor a bundled model"):
        SoftRankModel.from_pretrained(bundle / "nowhere")


def test_models_of_any_type_are_read(tmp_path):
    model = DiffSortModel(DiffSortConfig(8, embedder={"kind": "linear", "features": 1}))
    model_folder.save_pretrained(model, tmp_path)
    assert isinstance(from_pretrained(tmp_path), DiffSortModel)
    with pytest.raises(ValueError, match=r"holds a diffsort model: use softrank_ext\.from_pretrained"):
        SoftRankModel.from_pretrained(tmp_path)


def test_the_list_is_a_table(bundle):
    models = list_pretrained()
    assert [model.name for model in models] == ["first", "tsp"]
    assert models[1].items == "(B, N, 2) float: points in the unit square"
    assert repr(models).splitlines() == [
        "name   what it does             items",
        "first  not described            not described",
        "tsp    finds short round trips  (B, N, 2) float: points in the unit square",
    ]


@pytest.mark.skipif(not pretrained.bundled_names(), reason="no model is bundled")
def test_every_bundled_model_is_described():
    for model in list_pretrained():
        assert "not described" not in model, f"{model.name} needs a line in pretrained.py"
        assert from_pretrained(model.name).config.embedder is not None
