"""Reports: TensorBoard, and what metrics.jsonl keeps of an interrupted run."""

import dataclasses
import json
import sys
import types

import pytest
from synthetic_runs import QUICK, tiny_model
from synthetic_tasks import SortNumbers

from softrank_ext.training import train
from softrank_ext.training.run_folder import forget_later_lines, read_metrics


def test_tensorboard(tmp_path, monkeypatch):
    scalars = []

    class SummaryWriter:
        def __init__(self, folder):
            assert folder == str(tmp_path / "run" / "tensorboard")

        def add_scalar(self, name, number, iteration):
            scalars.append((name, iteration))

        def close(self):
            scalars.append("closed")

    fake = types.SimpleNamespace(SummaryWriter=SummaryWriter)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", fake)
    config = dataclasses.replace(QUICK, tensorboard=True)
    train(tiny_model(), SortNumbers(3), config, tmp_path / "run", quiet=True)
    assert ("loss", 8) in scalars and scalars[-1] == "closed"


def test_tensorboard_that_is_not_there_is_told_before_training(tmp_path, monkeypatch):
    config = dataclasses.replace(QUICK, tensorboard=True)
    with pytest.raises(ValueError, match="tensorboard needs an output folder"):
        train(tiny_model(), SortNumbers(3), config)
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r'tensorboard is not installed: pip install "softrank_ext\[tensorboard\]"'):
        train(tiny_model(), SortNumbers(3), config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_later_lines_and_half_a_line_are_forgotten(tmp_path):
    lines = [{"iteration": 2, "loss": 0.1}, {"iteration": 4, "loss": 1 / 3}, {"iteration": 6, "loss": 0.3}]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"iteration": 8, "lo')
    assert read_metrics(tmp_path, 4) == lines[:2]
    forget_later_lines(tmp_path, 4)
    assert path.read_text() == "".join(json.dumps(line) + "\n" for line in lines[:2])
    assert read_metrics(tmp_path / "nowhere", 4) == []
