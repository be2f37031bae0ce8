"""bench/making: figures and pages on tiny models and made-up data; they run, and show what was measured."""

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


@pytest.fixture(autouse=True)
def paths(monkeypatch):
    for folder in (BENCH, BENCH / "making"):
        monkeypatch.syspath_prepend(str(folder))


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
    assert "skipped: no measurements of jigsaw-4x4" in capsys.readouterr().out


@pytest.fixture
def readme():
    return importlib.import_module("readme")


@pytest.fixture
def result_tables():
    return importlib.import_module("result_tables")


def test_readme_gets_the_output_of_the_demo(readme, weights, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(pretrained, "BUNDLED", tmp_path / "nowhere")
    assert readme.run_demo(tmp_path) == "No model is bundled yet."
    monkeypatch.setattr(pretrained, "BUNDLED", weights)
    parts = readme.parts_of(tmp_path, weights)
    text = parts["demo"]()
    assert text.startswith("```text\n$ softrank demo\ntask ") and "tsp skipped: no such model." in text
    assert "outputs/demo" in text
    assert {path.name for path in tmp_path.glob("*.png")} == {"sorting-9.png", "jigsaw-9.png"}
    pictures = parts["pictures"]()
    assert "![A jigsaw of nine patches being solved](bench/results/jigsaw-9.png)" in pictures
    assert pictures.count("](bench/results/") == 2


def test_parts_are_replaced_between_their_marks(readme):
    begin, end = "<!-- demo: written by bench/making/readme.py -->\n", "<!-- end of demo -->\n"
    page = readme.ROOT / "README.md"
    parts = {"demo": lambda: "new", "figures": lambda: ""}
    assert readme.filled(f"a\n{begin}old\n{end}b\n", parts, page) == f"a\n{begin}new\n{end}b\n"
    assert readme.filled(f"{begin}old\n{end}", {"figures": lambda: ""}, page) == f"{begin}old\n{end}"
    other = begin.replace("demo", "figures"), end.replace("demo", "figures")
    both = f"{begin}old\n{end}between\n{other[0]}old\n{other[1]}"
    assert readme.filled(both, parts, page) == f"{begin}new\n{end}between\n{other[0]}{other[1]}"
    for text in (f"{begin}old\n", f"{begin}{other[0]}{other[1]}{end}"):
        with pytest.raises(SystemExit, match="the mark of demo has no end: <!-- end of demo -->"):
            readme.filled(text, parts, page)
    assert readme.unknown_parts(begin.replace("demo", "weather")) == {"weather"}


def test_links_are_relative_to_the_page(readme):
    mark = "<!-- pictures: written by bench/making/readme.py -->\n<!-- end of pictures -->\n"
    parts = {"pictures": lambda: "![x](bench/results/x.png) and `bench/runtime.py`"}
    for page, link in (("README.md", "bench"), ("docs/speed.md", "../bench"), ("docs/guides/a.md", "../../bench")):
        text = readme.filled(mark, parts, readme.ROOT / page)
        assert f"![x]({link}/results/x.png) and `bench/runtime.py`\n" in text


def test_pages_are_filled_by_name(readme, tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    begin, end = "<!-- ops: written by bench/making/readme.py -->\n", "<!-- end of ops -->\n"
    (tmp_path / "README.md").write_text("no marks\n")
    page = tmp_path / "docs" / "speed.md"
    page.write_text(f"{begin}{end}{begin.replace('ops', 'demo')}kept\n{end.replace('ops', 'demo')}")
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    monkeypatch.setattr(readme, "pages", lambda: [tmp_path / "README.md", page])
    assert readme.main(["ops"]) == 0
    assert capsys.readouterr().out == "docs/speed.md: written\n"
    assert "| reflect 1e+03 |" in page.read_text() and "kept" in page.read_text()
    with pytest.raises(SystemExit):
        readme.main(["weather"])
    assert "parts must be of demo, pictures," in capsys.readouterr().err
    page.write_text(f"{begin.replace('ops', 'weather')}")
    with pytest.raises(SystemExit, match="no such part: weather; there are demo"):
        readme.main([])


def test_figures_are_those_that_were_drawn(readme, tmp_path):
    assert readme.parts_of(tmp_path)["figures"]() == ""
    (tmp_path / "jigsaw_errors.png").touch()
    assert readme.parts_of(tmp_path)["figures"]().count("bench/results/") == 1


def test_numbers_beside_the_paper_are_those_of_cards_and_tables(result_tables, tmp_path):
    card = tmp_path / "weights" / "sorting" / "README.md"
    card.parent.mkdir(parents=True)
    card.write_text(
        "```bash\nsoftrank evaluate sorting x --task.num-items 9 --count 4\n```\n\n"
        "| steps | accuracy |\n| --- | --- |\n| 5 | 0.1234 ± 0.0100 |\n"
    )
    lines = result_tables.bundled_table(tmp_path / "weights").splitlines()
    assert lines == [
        "|  | steps | bundled | paper |",
        "| --- | ---: | ---: | ---: |",
        "| 9 four-digit images sorted, all right | 5 | 12.34 % ± 1.00 | 93.29 % |",
    ]  # other models have no card here
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
    lines = result_tables.measured_tables(tmp_path).splitlines()
    assert "| 20 | A | 0.250 ± 0.125 | 0.250 ± 0.125 | 0.500 | 7 |" in lines
    assert "| 20 | A | 0.250 ± 0.125 | 0.250 ± 0.125 | 0.500 at 50 | 7 |" in lines
    assert lines[0].startswith("**tsp**, 3 minutes a row on 1 thread, reader of tsp ")


MEASURED = ("bundled", "tables", "runtime", "speed", "decode", "ops", "constraints", "law", "heads")


def test_tables_in_the_pages_are_what_was_measured(readme):
    parts = {name: make for name, make in readme.parts_of().items() if name in MEASURED}
    shown = ""
    for page in readme.pages():
        text = page.read_text()
        shown += text
        assert readme.unknown_parts(text) == set()
        assert readme.filled(text, parts, page) == text, f"{page}: run python bench/making/readme.py"
    for name in ("bundled", "speed"):
        assert f"<!-- {name}: written by" in shown


def test_every_number_beside_the_paper_is_on_a_card(readme, result_tables):
    found = [line.split("|")[1].strip() for line in result_tables.bundled_table(readme.WEIGHTS).splitlines()[2:]]
    assert found == [line.what for line in result_tables.BUNDLED]


def test_heads_stand_with_the_steps_that_they_gain_from(result_tables, tmp_path):
    assert result_tables.heads_table(tmp_path) == ""
    row = {
        "model": "GPL",
        "mean": 0.5,
        "error": 0.01,
        "difference_error": 0.002,
        "updates": 1200,
        "minutes": 3.14,
        "count": 40,
    }
    rows = [
        {**row, "metric": metric, "steps": steps, "difference": gain}
        for metric in ("accuracy", "correctness")
        for steps, gain in ((1, 0.0), (20, 0.125))
    ]
    (tmp_path / "steps_heads.json").write_text(json.dumps({"machine": {"processor": "P"}, "rows": rows}))
    lines = result_tables.heads_table(tmp_path).splitlines()
    assert lines[0] == "| head | right | 1 step | 20 steps | 20 less 1, paired |"
    assert lines[2] == "| GPL | whole lists | 0.500 ± 0.010 | 0.500 ± 0.010 | +0.125 ± 0.002 |"
    assert lines[3].startswith("| GPL | places |") and lines[-1].startswith("1,200 updates each (GPL 3.1 minutes on 1 ")


def test_measured_rows_become_lines(result_tables):
    decode = [
        {"name": "batch 1, N 64: compiled, eager", "ours_ms": 3.83, "other_ms": 46.08, "ratio": 12.04},
        {"name": "batch 1, N 64: compiled, teacher-forced", "ours_ms": 3.83, "other_ms": 2.78, "ratio": 1.378},
        {"name": "batch 64, N 9: eager with caches, without", "ours_ms": 31.5, "other_ms": 84.1, "ratio": 2.67},
    ]
    assert result_tables.decode_table(decode).splitlines()[2:] == ["| 1 | 3.8 ms | 46.1 ms | 12.0x | 2.8 ms | 1.38 |"]
    rules = [
        {"name": "batch 64, N 50: 50 pairs, a set per instance, without", "ours_ms": 1.0, "ratio": 1.065},
        {"name": "100000 samples, N 5 to 50: rules broken", "ratio": 0},
    ]
    assert result_tables.constraints_table(rules).splitlines()[2:] == ["| 50 pairs, a set per instance | 1.06 |"]
    speed = [
        {"part": "speed", "name": f"N 9, batch 1, {decode}: x", "ours_ms": 4.0, "eager_ms": 140.0, "ratio": 35.0,
         "required": 10.0, "ratio_at_peak": 52.6, "gflops": 36.0, "accepted": 0.8}
        for decode in ("greedy", "sample")
    ]  # fmt: skip
    cells = "| 9, 1 | 4.0, 140 ms | 35.0x | 4.0, 140 ms | 35.0x | 10x | 52.6x, 52.6x | 36, 36 | 80%, 80% |"
    assert result_tables.speed_table(speed).splitlines()[2:] == [cells]


def test_total_variation_over_steps(result_tables, tmp_path):
    row = {
        "data": "4 items", "what": "whole orders", "reads": "their order", "steps": 1, "draws": 2000, "seconds": 90.0,
        "tv": 0.01234, "error": 0.001, "perfect": 0.002, "perfect_spread": 0.0001,
    }  # fmt: skip
    first_places = {"data": "films", "steps": 20, "what": "first places"}
    for name, changes in (("a", {}), ("b", {"steps": 20, "tv": 0.5}), ("c", first_places)):
        rows = [row | changes, row | changes | {"what": "first two places"}] if name == "c" else [row | changes]
        report = {"machine": {"cores": 2, "torch": "x"}, "rows": rows}
        (tmp_path / f"law_{name}.txt").write_text("any text\n" + json.dumps(report) + "\n")
    lines = result_tables.law_table(tmp_path).splitlines()
    assert lines[0] == "| law | of | read | 1 step | 20 steps | the law itself | draws |"
    assert lines[2:] == [
        "| 4 items | whole orders | their order | 0.0123 ± 0.0010 | 0.5000 ± 0.0010 | 0.0020 ± 0.0001 | 2,000 |",
        "| films | first places | their order | - | 0.0123 ± 0.0010 | 0.0020 ± 0.0001 | 2,000 |",
        "| films | first two places | their order | - | 0.0123 ± 0.0010 | 0.0020 ± 0.0001 | 2,000 |",
        "",
        "Drawn in 4 minutes in all, on a machine that others used too: cores 2, torch x.",
    ]


@pytest.fixture
def plots():
    pytest.importorskip("matplotlib")
    return importlib.import_module("plots")


def test_accuracy_over_size_is_drawn_on_a_logit_scale(plots):
    series = {"ours": [(9, 0.9), (32, 0.5)], "paper": [(9, 1.0), (32, 0.0)]}
    (axes,) = plots.plot_accuracy_over_size(series, "ours").axes
    assert axes.get_yscale() == "logit" and axes.get_xscale() == "log"
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.lines if line.get_label() in series}
    assert lines == {"ours": [0.9, 0.5], "paper": [0.999, 0.001]}
    open_marks = [line for line in axes.lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_ydata()) for line in open_marks] == [[0.999], [0.001]]


def test_random_displacement_of_a_two_by_two_square(plots):
    # Of 16 pairs of cells 4 are equal, 8 are neighbours, 4 lie across.
    assert plots.random_displacement(2, 2).tolist() == [0.25, 0.5, 0.25]
    distribution = plots.random_displacement(8, 8)
    assert float((distribution * torch.arange(15)).sum()) == pytest.approx(2 * 63 / 24)


def test_jigsaw_errors_show_shares_and_displacements(plots):
    shares = {"2x2": torch.tensor([[1.0, 0.5], [0.25, 0.75]])}
    figure = plots.plot_jigsaw_errors(shares, {"2x2": torch.tensor([6, 2, 2])})
    heat, bars = figure.axes[:2]
    assert [text.get_text() for text in heat.texts] == ["100", "50", "25", "75"]
    assert [bar.get_height() for bar in bars.patches] == pytest.approx([60, 20, 20])
    assert bars.get_title() == "mean 0.60 (random: 1.00)"


def test_accuracy_and_speed_has_a_line_per_way(plots):
    panels = {"3x3": {"compiled": [(100.0, 0.5, "K = 1"), (50.0, 0.75, "K = 2")], "eager": [(10.0, 0.75, "K = 2")]}}
    (axes,) = plots.plot_accuracy_and_speed(panels, {"3x3": 70.0}).axes
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [[50, 75], [75]]
    assert list(axes.lines[2].get_xdata()) == [70, 70]
    assert [text.get_text() for text in axes.texts] == ["K = 1", "K = 2", "K = 2"]


def test_deliveries_say_which_pickups_come_late(plots):
    points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    tours = {"free": torch.tensor([0, 1, 2, 3]), "kept": torch.tensor([0, 3, 2, 1])}
    free, kept = plots.plot_deliveries(points, tours, [(3, 1)], "title").axes
    assert free.get_title() == "free\nlength 4.00, 1 of 1 deliveries before their pickup"
    assert kept.get_title() == "kept\nlength 4.00, every pickup first"
    assert len(free.lines) == len(kept.lines) + 1
