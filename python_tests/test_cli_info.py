"""`softrank info`."""

import json

import torch

import softrank_ext
from softrank_ext.cli.main import main


def test_info_prints_aligned_lines_and_json(capsys, monkeypatch):
    info_with_gaps = softrank_ext.build_info() | {"cuda_architectures": ""}
    monkeypatch.setattr("softrank_ext.cli.info.build_info", lambda: info_with_gaps)
    assert main(["info"]) == 0
    build, models = capsys.readouterr().out.split("\n\nbundled models\n")
    lines = build.splitlines()
    names = [line.split()[0] for line in lines]
    width = max(map(len, names))
    assert all(line[width : width + 2] == "  " and line[width + 2] != " " for line in lines)
    assert main(["info", "--json"]) == 0
    info = json.loads(capsys.readouterr().out)
    assert list(info) == [*names, "models"]
    assert info["torch_running"] == torch.__version__
    assert set(info["models"]) == {model.name for model in softrank_ext.list_pretrained()}
    assert all(name in models for name in info["models"])
    if "sorting" in info["models"]:
        assert info["models"]["sorting"]["trained_for"] == "trained for 6 to 32 items"
        assert "handwritten" in models
