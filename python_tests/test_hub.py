"""Models on the hub, against a fake of its HTTP API: what is pushed, what is read back, what a card says."""

import hashlib
import importlib
import json
import sys
from pathlib import Path

import pytest
import torch
import yaml
from testing.fake_hub import FakeHub, fake_hub

import softrank_ext
from softrank_ext import from_pretrained, hub, list_pretrained, model_folder, push_to_hub, sample
from softrank_ext.cli.main import main
from softrank_ext.pretrained import BUNDLED, bundled_names

pytest.importorskip("huggingface_hub")


def point_at(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let huggingface_hub talk to this address."""
    constants = importlib.import_module("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(importlib.import_module("huggingface_hub.hf_api").api, "endpoint", url)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A fake hub that huggingface_hub talks to, with a cache of its own; the current folder is empty."""
    monkeypatch.chdir(tmp_path)
    with fake_hub() as found:
        constants = importlib.import_module("huggingface_hub.constants")
        point_at(found.url, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", "hf_fake")
        yield found


def files_of(server: FakeHub, name: str) -> dict[str, bytes]:
    return server.repositories[name][-1]


def metadata_of(server: FakeHub, name: str) -> dict:
    return yaml.safe_load(files_of(server, name)["README.md"].decode().split("---")[1])


def test_a_model_comes_back_as_it_was_pushed(server, make_model):
    model = make_model("pointer").eval()
    address = model.push_to_hub("someone/sorter")
    assert address == f"{server.url}/someone/sorter/commit/{server.revision('someone/sorter')}"
    assert set(files_of(server, "someone/sorter")) == {"README.md", "config.json", "manifest.json", "model.safetensors"}
    back = from_pretrained("someone/sorter")
    items = torch.randn(2, 5, 2)
    assert torch.equal(sample(back, items, seed=1).order, sample(model, items, seed=1).order)
    assert all(torch.equal(a, b) for a, b in zip(back.state_dict().values(), model.state_dict().values(), strict=True))
    assert type(softrank_ext.SoftRankModel.from_pretrained("someone/sorter")) is softrank_ext.SoftRankModel
    weights = files_of(server, "someone/sorter")["model.safetensors"]
    card = files_of(server, "someone/sorter")["README.md"].decode()
    assert f"SHA-256 of the weights: `{hashlib.sha256(weights).hexdigest()}`" in card
    assert 'from_pretrained("someone/sorter")' in card


def test_weights_that_were_changed_on_the_hub_are_refused(server, make_model):
    push_to_hub(make_model("pointer"), "someone/sorter")
    files = files_of(server, "someone/sorter")
    files["model.safetensors"] = files["model.safetensors"][:-1] + b"x"
    with pytest.raises(ValueError, match=r"model\.safetensors"):
        from_pretrained("someone/sorter")


def test_what_was_fetched_is_kept(server, make_model, monkeypatch):
    push_to_hub(make_model("pointer"), "someone/sorter")
    from_pretrained("someone/sorter")
    server.requests.clear()
    from_pretrained("someone/sorter")
    assert not any(request.startswith("GET /someone") for request in server.requests)  # nothing is fetched twice
    point_at("http://127.0.0.1:9", monkeypatch)  # nobody is there
    from_pretrained("someone/sorter")
    with pytest.raises(FileNotFoundError, match="someone/else was never fetched, and the hub cannot be reached"):
        from_pretrained("someone/else")


@pytest.mark.parametrize("name", bundled_names())
def test_bundled_models_pass_through_the_same_door(server, name):
    push_to_hub(name, f"someone/{name}")
    files = files_of(server, f"someone/{name}")
    for file in ("config.json", "model.safetensors"):
        assert files[file] == (BUNDLED / name / file).read_bytes()
    metadata = metadata_of(server, f"someone/{name}")
    assert metadata["library_name"] == "softrank_ext" and metadata["license"] == "mit"
    assert set(metadata["tags"]) == set(hub.TAGS)
    assert metadata.get("datasets", []) == (
        ["ylecun/mnist"] if name == "sorting" else ["uoft-cs/cifar10"] if "jigsaw" in name else []
    )
    results = metadata["model-index"][0]["results"]
    assert len(metadata["metrics"]) == len({metric["type"] for result in results for metric in result["metrics"]}) > 0
    text = (BUNDLED / name / "README.md").read_text()
    assert files["README.md"].decode().endswith(text.strip() + "\n")
    mine, own = from_pretrained(f"someone/{name}").state_dict(), from_pretrained(name).state_dict()
    assert all(torch.equal(mine[key], own[key]) for key in own)


def test_metrics_of_a_card_are_those_of_its_tables():
    text = """
| not | a metric |
| --- | --- |
| 1 | 2 |

## Metrics

```bash
softrank evaluate tsp weights/tsp --count 7
```

| steps | instances | gap | gap after 2opt |
| --- | --- | --- | --- |
| 5 | 7 | 0.0062 ± 0.0005 | 0.0036 |
| 1 | 7 | 0.5 | -0.25 |
"""
    found = [(metric.name, metric.value) for metric in hub.metrics_of_card(text)]
    assert found == [("gap", 0.0062), ("gap after 2opt", 0.0036), ("gap", 0.5), ("gap after 2opt", -0.25)]
    assert hub.metrics_of_card(text)[0].data == "steps 5, instances 7: softrank evaluate tsp weights/tsp --count 7"


def test_metrics_of_rows_and_own_texts(server, make_model):
    row = {"decode": "greedy", "steps": 5, "draws": 1, "instances": 9, "metrics": {"accuracy": {"mean": 0.75}}}
    metrics = hub.metrics_of_rows([row], "my photos")
    options = {"text": "# Mine", "metrics": metrics, "datasets": ["someone/photos"], "license": "apache-2.0"}
    hub.push_to_hub(make_model("pointer"), "someone/mine", **options, private=True, message="first")
    metadata = metadata_of(server, "someone/mine")
    (result,) = metadata["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "accuracy", "value": 0.75}]
    assert result["dataset"]["name"] == "my photos, greedy, 5 steps, best of 1, 9 instances"
    assert metadata["license"] == "apache-2.0" and metadata["datasets"] == ["someone/photos"]
    assert files_of(server, "someone/mine")["README.md"].decode().endswith("---\n\n# Mine\n")


def test_saved_folders_and_the_command_line(server, make_model, capsys):
    model_folder.save_pretrained(make_model("pointer"), "saved")
    Path("saved/README.md").write_text("# Saved\n")
    push_to_hub("saved", "someone/saved")
    assert files_of(server, "someone/saved")["model.safetensors"] == Path("saved/model.safetensors").read_bytes()
    Path("items.csv").write_text("0.1,0.2\n0.3,0.4\n0.5,0.6\n")
    assert main(["sample", "someone/saved", "items.csv", "orders.json"]) == 0
    (row,) = json.loads(Path("orders.json").read_text())
    assert sorted(row["order"]) == [0, 1, 2]


def test_lists(server, make_model):
    for name in ("someone/b", "someone/a", "other/c"):
        push_to_hub(make_model("pointer"), name)
    server.repositories["someone/unrelated"] = [{"README.md": b"# a model of another library"}]
    assert [model.name for model in list_pretrained("someone")] == ["someone/a", "someone/b"]
    assert [model.name for model in hub.list_models()] == ["other/c", "someone/a", "someone/b"]
    assert hub.list_models("other")[0].revision == server.revision("other/c")
    assert [model.name for model in list_pretrained()] == bundled_names()  # asks nobody


def test_errors(server, make_model, monkeypatch):
    with pytest.raises(FileNotFoundError, match="the hub has no model someone/nothing that may be read"):
        from_pretrained("someone/nothing")
    push_to_hub(make_model("pointer"), "someone/sorter")
    with pytest.raises(FileNotFoundError, match="no model someone/sorter at v9"):
        from_pretrained("someone/sorter", revision="v9")
    for wrong in ("sorter", "a/b/c", "a b/c", ""):
        with pytest.raises(ValueError, match="repository must be user/name, got"):
            push_to_hub(make_model("pointer"), wrong)
    Path("someone").mkdir()
    with pytest.raises(FileNotFoundError, match="neither a folder nor a bundled model"):
        from_pretrained("someone/sorter")  # the folder is here, and has no such model
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ImportError, match=r'pip install "softrank_ext\[hub\]"'):
        from_pretrained("else/sorter")
