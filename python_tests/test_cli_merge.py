"""Samples in parts: shards and torchrun give the bits of one process, and `softrank merge` wants all parts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from softrank_ext.cli import sample as sample_command
from softrank_ext.cli.main import main
from softrank_ext.cli.merge import merge_parts, part_of


@pytest.fixture
def folder(make_model, tmp_path, monkeypatch):
    """The current folder, with two models and items.npz: 70 instances of up to six items, in three blocks."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(15)
    make_model("pointer").save_pretrained("model")
    make_model("gpl").save_pretrained("flat")  # its network is plain torch's, whose rounding depends on the batch
    mask = torch.rand(70, 6) < 0.8
    mask[:, 2] = True
    np.savez("items.npz", items=torch.randn(70, 6, 2).numpy(), mask=mask.numpy())
    return tmp_path


def run(*words: str) -> None:
    assert main(["sample", *words, "--num-samples", "3", "--seed", "5"]) == 0


@pytest.mark.parametrize("model", ["model", "flat"])
@pytest.mark.parametrize("ending", [".csv", ".json", ".npz"])
def test_shards_have_the_bytes_of_one_process(folder, model, ending):
    run(model, "items.npz", f"whole{ending}")
    whole = (folder / f"whole{ending}").read_bytes()
    for count in (1, 2, 4):  # of four, one has nothing to do
        for number in reversed(range(1, count + 1)):
            run(model, "items.npz", f"parts{count}{ending}", "--shard", f"{number}/{count}")
        assert main(["merge", f"parts{count}{ending}"]) == 0
        assert (folder / f"parts{count}{ending}").read_bytes() == whole


def test_blocks_do_not_change_what_a_call_draws(folder, monkeypatch):
    run("model", "items.npz", "blocks.npz")
    monkeypatch.setattr(sample_command, "BLOCK", 1000)
    run("model", "items.npz", "call.npz")
    with np.load("blocks.npz") as blocks, np.load("call.npz") as call:
        assert np.array_equal(blocks["order"], call["order"])


def test_constraints_by_instance_go_with_their_shard(folder):
    rules = [{"pins": {"2": 0}} if row % 2 else {"before": [[2, 0]]} for row in range(70)]
    (folder / "rules.json").write_text(json.dumps(rules))
    np.savez("items.npz", items=torch.randn(70, 6, 2).numpy())
    run("model", "items.npz", "whole.json", "--constraints", "rules.json")
    for number in (1, 2):
        run("model", "items.npz", "parts.json", "--constraints", "rules.json", "--shard", f"{number}/2")
    assert main(["merge", "parts.json"]) == 0
    assert (folder / "parts.json").read_bytes() == (folder / "whole.json").read_bytes()
    rows = json.loads((folder / "parts.json").read_text())
    assert all(row["order"][0] == 2 for row in rows if row["instance"] % 2)
    (folder / "rules.json").write_text(json.dumps(rules[:-1]))
    assert main(["sample", "model", "items.npz", "x.json", "--constraints", "rules.json"]) == 2


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_processes_of_torchrun_write_one_file(folder, count):
    run("model", "items.npz", "whole.csv")
    words = ["sample", "model", "items.npz", "orders.csv", "--num-samples", "3", "--seed", "5", "--device", "cpu"]
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), "-m", "softrank_ext"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *start, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines() == ["210 orders written to orders.csv"]
    assert (folder / "orders.csv").read_bytes() == (folder / "whole.csv").read_bytes()
    assert not list(folder.glob("orders.*-of-*.csv"))


def test_output_of_a_shard_says_what_it_holds(folder, capsys):
    run("model", "items.npz", "orders.csv", "--shard", "2/2", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told == {"output": "orders.2-of-2.csv", "orders": 3 * 38, "instances": 38, "seed": 5}
    assert (folder / "orders.2-of-2.csv").read_text().splitlines()[1].startswith("32,0,")
    assert not (folder / "orders.csv").exists()


def test_merge_wants_all_parts(folder, capsys):
    def error_of(*words: str) -> str:
        assert main(list(words)) == 2
        return capsys.readouterr().err

    assert "there are no parts of orders.csv, files like orders.1-of-4.csv" in error_of("merge", "orders.csv")
    run("model", "items.npz", "orders.csv", "--shard", "2/3")
    assert "missing: orders.1-of-3.csv, orders.3-of-3.csv" in error_of("merge", "orders.csv")
    run("model", "items.npz", "orders.csv", "--shard", "1/2")
    assert "got parts of 2 and of 3" in error_of("merge", "orders.csv")
    for word in ("0/2", "3/2", "2", "a/b", "-1/2"):
        assert "--shard must be I/N" in error_of("sample", "model", "items.npz", "orders.csv", f"--shard={word}")


def test_a_part_of_very_many_is_told_in_a_moment(folder, capsys):
    """The names of all parts were made before one was looked for."""
    (folder / f"orders.1-of-{10**12}.csv").write_text("instance\n")
    assert main(["merge", "orders.csv"]) == 2
    error = capsys.readouterr().err
    assert "missing: orders.2-of-1000000000000.csv, orders.3-of-1000000000000.csv" in error and "and more" in error


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("orders.1-of-1.csv", "", "orders.1-of-1.csv is empty"),
        ("orders.1-of-1.json", "5", "orders.1-of-1.json must hold a JSON list"),
        ("orders.1-of-1.json", '[{"a": NaN}]', "orders.1-of-1.json"),
        ("orders.1-of-1.json", "[", "orders.1-of-1.json"),
        ("orders.1-of-1.npz", "no zip", "orders.1-of-1.npz"),
    ],
)
def test_broken_parts_are_named(folder, capsys, name, text, message):
    (folder / name).write_text(text)
    assert main(["merge", f"orders{Path(name).suffix}"]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in folder.glob("orders*")] == [name]


@pytest.mark.parametrize("ending", [".csv", ".npz"])
def test_parts_of_different_items_are_refused(folder, ending):
    run("model", "items.npz", f"orders{ending}", "--shard", "1/2")
    np.savez("items.npz", items=torch.randn(70, 4, 2).numpy())
    run("model", "items.npz", f"orders{ending}", "--shard", "2/2")
    parts = [part_of(folder / f"orders{ending}", number, 2) for number in (1, 2)]
    with pytest.raises(ValueError, match="they are of different items"):
        merge_parts(folder / f"orders{ending}", parts)
    assert sorted(path.name for path in folder.glob("orders*")) == [
        f"orders.{number}-of-2{ending}" for number in (1, 2)
    ]


def without_row(path: Path, row: int) -> None:
    """Take a row of a part away, counted from its end."""
    if path.suffix == ".csv":
        lines = path.read_text().splitlines(keepends=True)
        del lines[row]
        path.write_text("".join(lines))
    else:
        rows = json.loads(path.read_text())
        del rows[row]
        path.write_text(json.dumps(rows))


@pytest.mark.parametrize("ending", [".csv", ".json"])
@pytest.mark.parametrize(
    ("number", "row", "message"),
    [
        (1, -1, "orders.2-of-2{} must begin with sample 2 of instance 31, got sample 0 of instance 32"),
        (1, -2, "orders.1-of-2{} must have sample 1 of instance 31, got sample 2 of instance 31"),
        (2, -1, "orders.2-of-2{} must have sample 2 of instance 69: it has lost rows"),
    ],
)
def test_parts_that_lost_rows_are_refused(folder, capsys, ending, number, row, message):
    """They made a file with fewer orders, of which nothing was said."""
    for part in (1, 2):
        run("model", "items.npz", f"orders{ending}", "--shard", f"{part}/2")
    without_row(part_of(folder / f"orders{ending}", number, 2), row)
    assert main(["merge", f"orders{ending}"]) == 2
    assert message.format(ending) in capsys.readouterr().err
    assert not (folder / f"orders{ending}").exists()
