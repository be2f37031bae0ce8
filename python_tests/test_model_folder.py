"""Saving and loading: what is read is what was written, and every damage is named."""

import hashlib
import json
import os
import stat
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from softrank_ext import Bridge, SoftRankModel, model_folder
from softrank_ext.model import HEADS, SoftRankConfig


class OwnEmbedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 16)
        self.norm = nn.BatchNorm1d(16)

    def forward(self, items):
        return self.norm(self.first(items).flatten(0, 1)).unflatten(0, items.shape[:2])


@pytest.fixture
def folder(make_model, tmp_path):
    make_model("pointer").save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def bare(folder):
    """A saved model without its manifest, to be changed by hand."""
    (folder / "manifest.json").unlink()
    return folder


@pytest.mark.parametrize("dtype", (torch.float32, torch.float64), ids=str)
@pytest.mark.parametrize("head", HEADS)
def test_what_is_read_is_what_was_written(make_model, tmp_path, head, dtype):
    model, items = make_model(head, dtype), torch.randn(2, 5, 2, dtype=dtype)
    model.train().save_pretrained(tmp_path)
    read = SoftRankModel.from_pretrained(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "manifest.json", "model.safetensors"]
    assert not read.training and read.config == model.config
    for got, wanted in zip(read.decode(items, 0.4), model.eval().decode(items, 0.4), strict=True):
        assert torch.equal(got, wanted)


def test_saving_again_replaces(folder, make_model):
    model = make_model("pointer")
    with torch.no_grad():
        model.start += 1
    model.save_pretrained(folder)
    assert torch.equal(SoftRankModel.from_pretrained(folder).start, model.start)
    assert len(list(folder.iterdir())) == 3


def test_a_failed_save_leaves_the_old_files(folder, make_model, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(number):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        make_model("linear").save_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_every_flipped_bit_is_told(folder, name):
    """In files of before 0.2, and in those whose manifest was deleted, a flipped bit of a weight is not seen."""
    whole = (folder / name).read_bytes()
    for bit in range(0, 8 * len(whole), 8 * len(whole) // 25):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name} must be the {len(whole)} bytes with the SHA-256 .* got other"):
            SoftRankModel.from_pretrained(folder)
    (folder / name).write_bytes(whole)
    SoftRankModel.from_pretrained(folder)


def test_folders_without_a_manifest_are_read(bare, make_model):
    assert torch.equal(SoftRankModel.from_pretrained(bare).start, make_model("pointer").start)
    assert model_folder.is_saved(make_model("pointer"), bare)


def test_whether_a_model_is_saved(folder, make_model):
    model = make_model("pointer")
    assert model_folder.is_saved(model, folder) and not model_folder.is_saved(model, folder / "none")
    assert not model_folder.is_saved(make_model("linear"), folder)
    with torch.no_grad():
        model.start[0] = -0.0
    model.save_pretrained(folder)
    with torch.no_grad():
        model.start[0] = 0.0
    assert not model_folder.is_saved(model, folder)


def test_embedder_of_the_users_own(tmp_path):
    config = SoftRankConfig(d_model=16, feed_forward=24, heads=2, encoder_layers=1, decoder_layers=1)
    model = SoftRankModel(config, OwnEmbedder())
    model.embed(torch.randn(4, 5, 3))
    model.eval().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="was saved with an embedder of its own: pass from_pretrained"):
        SoftRankModel.from_pretrained(tmp_path)
    read = SoftRankModel.from_pretrained(tmp_path, embedder=OwnEmbedder())
    items = torch.randn(2, 5, 3)
    assert torch.equal(read.embed(items), model.embed(items))


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_files_have_the_permissions_of_the_umask(make_model, tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        for _ in range(2):  # new files, and files in the place of others
            make_model("pointer").save_pretrained(tmp_path)
            model_folder.save_training(tmp_path, {"a": torch.zeros(2)}, {})
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("config.json", "manifest.json", "model.safetensors", "training.safetensors"), mode)


def test_configs_of_before_0_2_are_read(bare):
    """Bits of their networks are the same, so are the processes that they meant."""
    path = bare / "config.json"
    fields = json.loads(path.read_text())
    del fields["process"], fields["data"], fields["time_steps"], fields["model_type"]
    path.write_text(json.dumps({**fields, "steps": 7, "process": "soft-rank", "target": "clean", "visited": None}))
    config = SoftRankModel.from_pretrained(bare).config
    assert config.process == Bridge(sampling_steps=7) and config.time_steps == 7


def test_unknown_model_types_are_told(bare):
    path = bare / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "oracle"}))
    with pytest.raises(ValueError, match=r"config\.json: model_type must be one of soft-rank, .*, got 'oracle'"):
        model_folder.load_model(bare)


def test_half_the_size(make_model, tmp_path):
    model = make_model("pointer")
    model_folder.save_pretrained(model, tmp_path / "half", half=True)
    model_folder.save_pretrained(model, tmp_path / "whole")
    half, whole = (tmp_path / name / "model.safetensors" for name in ("half", "whole"))
    assert half.stat().st_size < 0.7 * whole.stat().st_size  # names and norms weigh in a model this small
    read = SoftRankModel.from_pretrained(tmp_path / "half")
    for name, tensor in model.state_dict().items():
        saved = read.state_dict()[name]
        assert saved.dtype == tensor.dtype == torch.float32
        # float16 has 10 bits after the leading one, and steps of 2^-24 near 0
        assert (
            torch.equal(saved, tensor) if tensor.ndim < 2 else torch.allclose(saved, tensor, rtol=2**-11, atol=2**-25)
        )
    with torch.no_grad():
        model.head.weight[0, 0] = 1e5
    with pytest.raises(ValueError, match=r"head\.weight has numbers that float16 cannot hold, up to 100000"):
        model_folder.save_pretrained(model, tmp_path / "half", half=True)


def test_vectors_of_half_precision_are_refused(bare):
    path = bare / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(path).items()}, path)
    with pytest.raises(ValueError, match=r"must be torch\.float32 or torch\.float64, got torch\.float16"):
        SoftRankModel.from_pretrained(bare)


def test_missing_files(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors is missing: a saved model is a folder with"):
        SoftRankModel.from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing: a saved model is a folder with"):
        SoftRankModel.from_pretrained(folder)


@pytest.mark.parametrize("kept", (0, 5, 1000, -1))
def test_truncated_weights(bare, kept):
    path = bare / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or not a safetensors file"):
        SoftRankModel.from_pretrained(bare)


def test_wrong_tensors(bare):
    path = bare / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if name != "start"}, path)
    with pytest.raises(ValueError, match=r"does not fit its config\.json: missing start, unexpected nothing"):
        SoftRankModel.from_pretrained(bare)
    save_file({**tensors, "stop": tensors["start"].clone()}, path)
    with pytest.raises(ValueError, match=r"does not fit its config\.json: missing nothing, unexpected stop"):
        SoftRankModel.from_pretrained(bare)
    save_file({**tensors, "start": torch.zeros(8)}, path)
    with pytest.raises(ValueError, match=r"does not fit its config\.json: start must be \(16,\), got \(8,\)"):
        SoftRankModel.from_pretrained(bare)
    save_file({**tensors, "start": torch.zeros(16, dtype=torch.int64)}, path)
    with pytest.raises(ValueError, match=r"start must be torch\.float32 or torch\.float64, got torch\.int64"):
        SoftRankModel.from_pretrained(bare)


def test_wrong_config(bare):
    path = bare / "config.json"
    fields = json.loads(path.read_text())
    for text, message in (
        (json.dumps({**fields, "colour": 1}), "has unknown field colour; known are d_model, feed_forward, heads"),
        (json.dumps({**fields, "heads": 3}), r"config\.json: d_model must be even and a multiple of heads = 3"),
        (json.dumps([1]), "must hold a JSON object, got list"),
        (path.read_text()[:20], "is not valid JSON"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            SoftRankModel.from_pretrained(bare)


def test_config_of_another_size_is_told(bare, make_model):
    config = replace(make_model("pointer").config, feed_forward=32)
    path = bare / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "feed_forward": config.feed_forward}))
    with pytest.raises(ValueError, match=r"feed_in\.(weight|bias) must be \(32.*got \(24"):
        SoftRankModel.from_pretrained(bare)


def test_training_state_is_read_as_written(tmp_path):
    tensors = {"model.a": torch.arange(6.0).view(2, 3).T, "optimizer.step.a": torch.tensor(3.0)}
    model_folder.save_training(tmp_path / "last", tensors, {"iteration": 7, "best": None, "config": {"seed": 1}})
    read, state = model_folder.load_training(tmp_path / "last")
    assert state == {"iteration": 7, "best": None, "config": {"seed": 1}}
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    assert sorted(path.name for path in (tmp_path / "last").iterdir()) == ["manifest.json", "training.safetensors"]


def test_wrong_training_states_are_told(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no run to resume in .*: .*training\.safetensors is missing"):
        model_folder.load_training(tmp_path / "last")
    save_file({"a": torch.zeros(2)}, tmp_path / "training.safetensors")
    with pytest.raises(ValueError, match=r"training\.safetensors is not a training state: its header has no state"):
        model_folder.load_training(tmp_path)
    (tmp_path / "training.safetensors").write_bytes(b"half")
    with pytest.raises(ValueError, match=r"training\.safetensors is truncated or not a safetensors file"):
        model_folder.load_training(tmp_path)


def test_space_is_tried_and_given_back(tmp_path):
    model_folder.check_space(tmp_path / "run", 3 * 2**20 + 5)
    assert list((tmp_path / "run").iterdir()) == []


def test_hash_is_that_of_the_weights_file(folder):
    expected = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert model_folder.hash_of(folder) == expected


def test_sizes_in_a_config_are_compared_with_the_weights_before_anything_is_allocated(bare):
    path = bare / "config.json"
    fields = json.loads(path.read_text())
    path.write_text(json.dumps({**fields, "embedder": {"kind": "linear", "features": 10**6}}))
    with pytest.raises(ValueError, match=r"does not fit its config.json: .*must be \(16, 1000000\)"):
        SoftRankModel.from_pretrained(bare)
    path.write_text(json.dumps({**fields, "embedder": {"kind": "linear", "features": 10**12}}))
    with pytest.raises(ValueError, match=r"features must be an integer of at most 1048576, got 1000000000000"):
        SoftRankModel.from_pretrained(bare)
    for wrong in ({"kind": "linear", "features": "many"}, {"kind": "linear", "colour": 1}, {"kind": 3}, [], "linear"):
        path.write_text(json.dumps({**fields, "embedder": wrong}))
        with pytest.raises(ValueError, match=r"config\.json"):
            SoftRankModel.from_pretrained(bare)
