"""The demo with tiny models of random weights: what it shows, writes and refuses. What bundled models reach is measured
elsewhere; here they only have to run, where there are any."""

import re

import pytest
import synthetic_data
import torch

from softrank_ext import pretrained
from softrank_ext.cli.main import main
from softrank_ext.show import demo


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A folder of tiny models by name; jigsaw-4x4 is missing."""
    return synthetic_data.write_models(tmp_path_factory.mktemp("weights"), ("sorting", "tsp", "jigsaw-3x3", "flowshop"))


def page_of(folder, n):
    """The page of the search for a tour of n nodes."""
    return (folder / "out" / f"tsp-{n}-improve.html").read_text()


def test_all_cases_with_one_model_missing(weights, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main(["demo", "--weights", str(weights), "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "jigsaw-4x4 skipped: no such model." in printed
    table = [line.split() for line in printed.splitlines()[1:11]]
    assert [line[:4] for line in table] == [
        ["sorting", "9", "64", "1"], ["sorting", "32", "64", "1"], ["tsp", "20", "16", "1"], ["tsp", "20", "16", "16"],
        ["tsp-improve", "20", "16", "64"], ["tsp", "50", "16", "1"], ["tsp", "50", "16", "16"],
        ["tsp-improve", "50", "16", "64"], ["jigsaw", "9", "24", "1"], ["flowshop", "20", "1", "1"],
    ]  # fmt: skip
    stems = ("sorting-9", "sorting-32", "tsp-20", "tsp-50", "jigsaw-9")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    improved = {"tsp-20-improve.html", "tsp-50-improve.html"}
    assert files == improved | {"flowshop-20.html"} | {
        f"{stem}.{ending}" for stem in stems for ending in ("png", "html")
    }
    for n in (20, 50):
        told = re.search(r'"title":"A tour of (\d+) nodes: of 16 the one that gets shorter most"', page_of(tmp_path, n))
        assert told and told[1] == str(n) and "rounds found a shorter tour: from" in page_of(tmp_path, n)
    assert (tmp_path / "out" / "tsp-20.png").read_bytes().startswith(b"\x89PNG")
    assert re.search(r'"title":"A tour of 20 nodes"', (tmp_path / "out" / "tsp-20.html").read_text())
    assert all(name in printed for name in files) and str(tmp_path / "out") in printed


@pytest.mark.parametrize(
    ("task", "n", "name"), [("sorting", 5, "sorting"), ("jigsaw", 9, "jigsaw-3x3"), ("tsp", 20, "tsp")]
)
def test_rows_are_scored_against_the_truth(task, n, name, weights, tmp_path, monkeypatch):
    """Where `sample` gives the right order everything is right; with two places swapped, just these are wrong."""
    _, batch = demo.batch_of(task, n, 3)
    real_sample = demo.sample

    def rows_with(is_swapped):
        """The demo's rows if draws are right, or their first two places swapped in the first draw of each instance."""

        def fake_sample(model, items, *, num_samples=1, **_):
            samples = real_sample(model, items, num_samples=num_samples, steps=1, record=True)
            samples.order.copy_(batch.order[: len(items), None].expand_as(samples.order))
            if is_swapped:
                samples.order[:, 0, :2] = samples.order[:, 0, :2].flip(1)
            return samples

        monkeypatch.setattr(demo, "sample", fake_sample)
        return demo.run(task, n, seed=3, output=tmp_path, weights=weights).rows

    row, *more = rows_with(is_swapped=False)
    assert (row.task, row.items, row.instances, row.draws) == (task, n, len(batch.order), 1)
    swapped, *more_swapped = rows_with(is_swapped=True)
    if task == "tsp":
        assert row.gap == pytest.approx(0, abs=1e-9) and row.all_right is None and swapped.gap > 0.01
        assert more_swapped[0].draws == 16 and more_swapped[0].gap == pytest.approx(0, abs=1e-9)
    else:
        assert more == [] and row.all_right == row.places_right == 1 and row.gap is None
        assert swapped.all_right == 0 and swapped.places_right == pytest.approx(1 - 2 / n)


def test_without_matplotlib_it_says_how_to_get_pictures(weights, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    words = ["demo", "--task", "sorting", "--n", "4", "--weights", str(weights), "--output", str(tmp_path)]
    assert main(words) == 0
    assert 'need matplotlib: pip install "softrank_ext[plots]"' in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["sorting-4.html"]
    monkeypatch.undo()
    assert main(["demo", "--task", "flowshop", "--weights", str(weights), "--output", str(tmp_path)]) == 0
    assert "No pictures" not in capsys.readouterr().out  # it has a page alone


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n", "9"], "n is the number of items of one task: choose that task, one of sorting, tsp, jigsaw, flowshop"),
        (["--task", "tsp", "--n", "30"], "n must be 20 or 50 for tsp, got 30"),
        (["--task", "flowshop", "--n", "30"], "n must be 20 for flowshop, got 30"),
        (["--task", "jigsaw", "--n", "64"], "n must be 9 or 16 for jigsaw, got 64"),
        (["--task", "sorting", "--n", "101"], "n must be from 2 to 100 for sorting, got 101"),
        (["--task", "jigsaw", "--n", "16"], "the demo needs jigsaw-4x4, a folder with a model, in"),
    ],
)
def test_what_cannot_be_shown_is_refused(words, message, weights, tmp_path, capsys):
    assert main(["demo", *words, "--weights", str(weights), "--output", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_items_are_orders_with_their_truth():
    items = demo.items_of_file()
    assert items["digits"].shape == (256, 28, 28) and items["digits"].dtype == torch.uint8
    assert set(items["digit_labels"].tolist()) == set(range(10))
    assert demo.ITEMS_FILE.stat().st_size < 150_000
    for n in (20, 50):
        points, tours = items[f"points_{n}"], items[f"tours_{n}"]
        assert points.shape == (16, n, 2) and bool(((points >= 0) & (points <= 1)).all())
        assert torch.equal(tours.sort(1).values, torch.arange(n).expand(16, n))
    _, batch = demo.batch_of("sorting", 7, seed=1)
    sorted_labels = batch.extras["labels"].gather(1, batch.order)
    assert bool((sorted_labels[:, 1:] >= sorted_labels[:, :-1]).all())
    _, again = demo.batch_of("sorting", 7, seed=1)
    _, other = demo.batch_of("sorting", 7, seed=2)
    assert torch.equal(batch.items, again.items) and not torch.equal(batch.items, other.items)
    _, jigsaw = demo.batch_of("jigsaw", 16, seed=0)
    patches = jigsaw.items[0][jigsaw.order[0]]  # raster order
    assert torch.equal(patches[5], items["images"][0][:, 8:16, 8:16])


@pytest.mark.parametrize("case", [("sorting", 9), ("tsp", 20), ("jigsaw", 9), ("jigsaw", 16), ("flowshop", 20)])
def test_bundled_models_run(case, tmp_path):
    name = demo.model_name(*case)
    if name not in pretrained.bundled_names():
        pytest.skip(f"{name} is not bundled")
    rows = demo.run(*case, output=tmp_path).rows
    # Far above chance, which is 1/n for places and some 170 % for a tour of 20 nodes.
    assert all(row.gap < 1 if row.gap is not None else row.places_right > 0.3 for row in rows)
