"""bench/figures.py and bench/readme.py on tiny models and made-up data: they run, and draw what was measured."""

import importlib
import json
import sys
from pathlib import Path

import pytest
import synthetic_data
import torch

from softrank_ext import pretrained

BENCH = Path(__file__).parents[1] / "bench"
pytestmark = pytest.mark.skipif(not BENCH.exists(), reason="needs the bench folder")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return synthetic_data.write_models(tmp_path_factory.mktemp("weights"), ("sorting", "jigsaw-3x3"))


def test_figures_are_measured_and_drawn(weights, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    data = tmp_path / "data"
    synthetic_data.write_mnist(data)
    synthetic_data.write_cifar10(data, per_file=12)
    monkeypatch.setenv("SOFTRANK_DATA", str(data))
    results = tmp_path / "results"
    results.mkdir()
    options = ["--measure", "--count", "12", "--sizes", "9", "15", "--weights", str(weights), "--results", str(results)]
    monkeypatch.setattr(sys, "argv", ["figures.py", *options, "--threads", str(torch.get_num_threads())])
    monkeypatch.syspath_prepend(str(BENCH))
    assert importlib.import_module("figures").main() == 0
    measured = json.loads((results / "figures.json").read_text())
    assert [(row["items"], row["lists"]) for row in measured["sorting"]] == [(9, 12), (15, 12)]
    jigsaw = measured["jigsaws"]["jigsaw-3x3"]
    assert sum(jigsaw["displacement"]) == 12 * 9 and [row["steps"] for row in jigsaw["speed"]] == [1, 2, 3, 5, 10]
    assert all(speed > 0 for row in jigsaw["speed"] for speed in row["samples_per_second"].values())
    drawn = {path.name for path in results.glob("*.png")}
    assert drawn == {
        "sorting-9.png", "sorting-32.png", "jigsaw-9.png", "there_and_back.png", "accuracy_over_n.png",
        "jigsaw_errors.png", "accuracy_and_speed.png",
    }  # fmt: skip
    assert "left out: what needs measurements of jigsaw-4x4" in capsys.readouterr().out


@pytest.fixture
def readme(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("readme")


def test_readme_gets_the_output_of_the_demo(readme, weights, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(pretrained, "BUNDLED", tmp_path / "nowhere")
    assert readme.demo(tmp_path) == "No model is bundled yet."
    monkeypatch.setattr(pretrained, "BUNDLED", weights)
    text = readme.demo(tmp_path)
    assert text.startswith("```text\n$ softrank demo\ntask ") and "Left out: tsp" in text and "outputs/demo" in text
    assert {path.name for path in tmp_path.glob("*.png")} == {"sorting-9.png", "jigsaw-9.png"}
    assert "![A jigsaw of nine patches being solved](bench/results/jigsaw-9.png)" in text


def test_readme_parts_are_replaced_between_their_marks(readme, tmp_path):
    begin, end = "<!-- demo: written by bench/readme.py -->\n", "<!-- end of demo -->\n"
    assert readme.with_section(f"a\n{begin}old\n{end}b\n", "demo", "new") == f"a\n{begin}new\n{end}b\n"
    assert readme.with_section(f"a\n{begin}old\n{end}b\n", "demo", "") == f"a\n{begin}{end}b\n"
    with pytest.raises(SystemExit, match="must have the marks <!-- figures: written"):
        readme.with_section(f"{begin}{end}", "figures", "new")
    assert readme.figures(tmp_path) == ""
    (tmp_path / "jigsaw_errors.png").touch()
    assert readme.figures(tmp_path).count("bench/results/") == 1
    text = (BENCH.parent / "README.md").read_text()
    for title in ("demo", "figures"):
        assert readme.with_section(text, title, "new") != text


def test_numbers_beside_the_paper_are_those_of_cards_and_tables(readme, tmp_path):
    card = tmp_path / "weights" / "sorting" / "README.md"
    card.parent.mkdir(parents=True)
    card.write_text(
        "```bash\nsoftrank evaluate sorting x --task.num-items 9 --count 4\n```\n\n"
        "| steps | accuracy |\n| --- | --- |\n| 5 | 0.1234 ± 0.0100 |\n"
    )
    score = {"mean": 0.25, "standard_error": 0.125}
    metrics = {"gap": score, "gap_after_2opt": score}
    evaluations = [{"line": "", "paper": {"gap": 0.5}, "paper_size": size, "metrics": metrics} for size in (20, 50)]
    result = {
        "name": "A",
        "size": 20,
        "updates": 7,
        "settings": {"budget": 3, "threads": 1, "reader": "tsp"},
        "evaluations": evaluations,
    }
    (tmp_path / "table_tsp.json").write_text(json.dumps({"table": "tsp", "results": [result]}))
    lines = readme.beside_the_paper(tmp_path, tmp_path / "weights").splitlines()
    assert "| 9 four-digit images sorted, all right | 12.34 % ± 1.00 | 93.29 % |" in lines
    assert "| 20 | A | 0.250 ± 0.125 | 0.250 ± 0.125 | 0.500 | 7 |" in lines
    assert "| 20 | A | 0.250 ± 0.125 | 0.250 ± 0.125 | 0.500 at 50 | 7 |" in lines
    assert any(line.startswith("**tsp**, 3 minutes a row on 1 thread, reader of tsp ") for line in lines)
    assert sum("all right" in line for line in lines) == 1  # other models have no card here


def test_speed_in_the_readme_is_what_was_measured(readme):
    rows = readme.runtime_rows(BENCH / "results")
    text = (BENCH.parent / "README.md").read_text()
    for title, table in (("runtime", readme.runtime_table(rows)), ("speed", readme.speed_table(rows))):
        assert readme.with_section(text, title, table) == text
    first = next(row for row in rows if row["part"] == "speed")
    first["ratio"] += 1
    assert readme.with_section(text, "speed", readme.speed_table(rows)) != text


def test_every_number_beside_the_paper_is_on_a_card(readme):
    found = [line.split("|")[1].strip() for line in readme.bundled_lines(readme.WEIGHTS)[2:]]
    assert found == [line[0] for line in readme.BUNDLED]
