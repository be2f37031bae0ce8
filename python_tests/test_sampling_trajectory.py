"""Trajectories: the path of one sample, and the page that plays it, as Python writes it and as a browser shows it."""

import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from testing import browse, needs_browser, run_in

from softrank_ext import sample
from softrank_ext.sampling.trajectory import Trajectory, TrajectoryPoint

# Two diffusion steps of four items, made by hand. Order [1, 3, 2, 0] is not its own inverse.
SOFT_RANKS = [[0.9, 0.1, 0.3, 0.5], [0.8, 0.3, 0.4, 0.2]]
ORDERS = [[1, 2, 3, 0], [3, 1, 2, 0]]
PREDICTED = [[3, 1, 2, 0], [1, 3, 2, 0]]


def make_trajectory(shape=(4,)):
    def reshaped(values):
        return torch.tensor(values).reshape(shape)

    return Trajectory(
        TrajectoryPoint(t, *map(reshaped, fields))
        for t, *fields in zip((1.0, 0.5), SOFT_RANKS, ORDERS, PREDICTED, strict=True)
    )


def data_of(path):
    script = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    return json.loads(script[1])


def test_a_trajectory_is_a_sequence_of_points():
    trajectory = make_trajectory()
    assert len(trajectory) == 2 and [point.t for point in trajectory] == [1.0, 0.5]
    assert trajectory[-1].predicted_order.tolist() == [1, 3, 2, 0]
    assert isinstance(trajectory[:1], Trajectory) and len(trajectory[:1]) == 1


def test_a_trajectory_says_what_it_holds_in_a_line():
    assert repr(make_trajectory((1, 1, 4))) == "Trajectory(2 times from t = 1 to 0.5, orders (1, 1, 4))"
    assert repr(make_trajectory()[:0]) == "Trajectory(0 times)"


class Elements(HTMLParser):
    """Names and attributes of the elements of a page, character references resolved."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


@pytest.mark.parametrize("shape", [(4,), (1, 1, 4)])
def test_a_notebook_shows_the_page(shape, tmp_path):
    trajectory = make_trajectory(shape)
    ((tag, attributes),) = Elements(trajectory._repr_html_()).found  # one element: all of the page is an attribute
    trajectory.save_html(tmp_path / "page.html")
    assert tag == "iframe" and attributes["srcdoc"] == (tmp_path / "page.html").read_text(encoding="utf-8")
    assert attributes["sandbox"] == "allow-scripts" and attributes["width"] == "100%"
    assert int(attributes["height"]) > 400


def test_a_notebook_says_which_sample_to_take():
    several = Trajectory([TrajectoryPoint(1.0, torch.rand(2, 4), torch.zeros(2, 4), torch.zeros(2, 4))])
    assert several._repr_html_() == (
        "<code>Trajectory(1 time from t = 1 to 1, orders (2, 4))</code>: "
        "samples[instance][draw].trajectory shows its page"
    )
    assert "Trajectory(0 times)" in make_trajectory()[:0]._repr_html_()


@pytest.mark.parametrize("shape", [(4,), (1, 4), (1, 1, 4)])
def test_frames_end_at_the_grid_of_the_last_order(shape):
    frames = make_trajectory(shape).frames()
    assert frames.times == [1.0, 0.5, 0.0]
    torch.testing.assert_close(frames.soft_ranks, torch.tensor([*SOFT_RANKS, [1, 0, 2 / 3, 1 / 3]]))
    assert frames.order.tolist() == [*ORDERS, [1, 3, 2, 0]]
    assert frames.predicted_order.tolist() == [*PREDICTED, [1, 3, 2, 0]]


def test_frames_leave_padding_out():
    point = TrajectoryPoint(
        1.0, torch.tensor([0.7, 0.0, 0.2, 0.4]), torch.tensor([2, 3, 0, 1]), torch.tensor([3, 0, 2, 1])
    )
    frames = Trajectory([point]).frames(torch.tensor([True, False, True, True]))
    torch.testing.assert_close(frames.soft_ranks, torch.tensor([[0.7, 0.2, 0.4], [0.5, 1.0, 0.0]]))
    assert frames.order.tolist() == [[1, 2, 0], [2, 0, 1]]
    assert frames.predicted_order.tolist() == [[2, 0, 1], [2, 0, 1]]


def test_recorded_samples_have_pages(make_model, tmp_path):
    points = torch.rand(2, 5, 2, generator=torch.Generator().manual_seed(0))
    samples = sample(make_model("pointer"), points, num_samples=3, steps=4, record=True)
    one = samples[1][2]
    one.trajectory.save_html(tmp_path / "tour.html", points[1])
    data = data_of(tmp_path / "tour.html")
    assert data["times"] == [1.0, 0.75, 0.5, 0.25, 0.0] and data["layout"] == "tour"
    assert data["predicted_order"][-1] == one.order.tolist()
    np.testing.assert_allclose(data["soft_ranks"][-1], one.soft_ranks, atol=1e-5)
    np.testing.assert_allclose(data["points"], points[1], rtol=1e-6)
    with pytest.raises(ValueError, match=r"one sample here, got leading dimensions \(2, 3\): take it first, samples"):
        samples.trajectory.save_html(tmp_path / "all.html")
    arrays = sample(make_model("pointer"), points[0].numpy(), steps=2, record=True)
    arrays.trajectory.save_html(tmp_path / "array.html", points[0].numpy())
    assert data_of(tmp_path / "array.html")["predicted_order"][-1] == arrays.order[0].tolist()


def test_text_of_the_user_cannot_leave_the_data(tmp_path):
    title, label = "</script><script>alert(1)</script><!--", '<img src=x onerror="alert(2)">'
    make_trajectory().save_html(tmp_path / "page.html", labels=[label, "b", 3, "é"], title=title)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "alert(1)</script>" not in page and "<img" not in page
    data = data_of(tmp_path / "page.html")
    assert data["title"] == title and data["labels"] == [label, "b", "3", "é"]


def test_nothing_comes_from_elsewhere(tmp_path):
    make_trajectory().save_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert set(re.findall(r"https?://[^\s\"']+", page)) == {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert not re.search(r"\b(src|href)\s*=|@import|\burl\((?!#)", page)


def test_float_images_become_bytes_and_padding_is_left_out(tmp_path):
    images = torch.tensor([0.0, 0.5, 1.0]).reshape(3, 1, 1, 1).expand(3, 1, 1, 2)
    point = TrajectoryPoint(1.0, torch.tensor([0.7, 0.0, 0.2]), torch.tensor([2, 0, 1]), torch.tensor([0, 2, 1]))
    mask = torch.tensor([True, False, True])
    Trajectory([point]).save_html(
        tmp_path / "page.html", images, mask=mask, labels=["x", "y", "z"], true_order=[2, 0, 1]
    )
    data = data_of(tmp_path / "page.html")
    assert data["pixels"] == "AAD//w=="  # bytes 0 0 255 255
    assert (data["height"], data["width"], data["channels"]) == (1, 2, 1)
    assert data["labels"] == ["x", "z"] and data["true_order"] == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"items": torch.rand(3, 2)}, r"items must be points \(4, 2\) or images .*, got \(3, 2\)"),
        ({"items": torch.rand(4, 2, 5, 5)}, r"items must be points .* got \(4, 2, 5, 5\)"),
        ({"items": torch.rand(4, 2), "layout": "grid"}, "layout must be tour for these items, got 'grid'"),
        ({"items": torch.rand(4, 1, 5, 5), "layout": "tour"}, "layout must be row or grid for these items, got 'tour'"),
        ({"items": 2 * torch.ones(4, 1, 5, 5)}, r"images must be uint8, or float in \[0, 1\], got torch.float32"),
        ({"labels": ["a", "b"]}, "labels must be 4 texts, got 2"),
        ({"true_order": [0, 1, 2]}, r"true_order must be \(4,\) int64, got \(3,\)"),
        ({"true_order": [0, 1, 2, 2]}, "true_order"),
        ({"mask": torch.ones(3, dtype=torch.bool)}, r"mask must be \(4,\) bool, True = real item, got \(3,\)"),
    ],
)
def test_what_a_page_cannot_show_is_refused(arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        make_trajectory().save_html(tmp_path / "page.html", **arguments)


def test_a_grid_is_a_square(tmp_path):
    point = TrajectoryPoint(1.0, torch.rand(3), torch.tensor([2, 0, 1]), torch.tensor([2, 0, 1]))
    with pytest.raises(ValueError, match="a grid needs a square number of patches, got 3"):
        Trajectory([point]).save_html(tmp_path / "page.html", torch.rand(3, 1, 2, 2), layout="grid")


READ = """
const $ = (id) => document.getElementById(id);
const wordsOf = (id) => [...$(id).querySelectorAll("span")].map((entry) => entry.textContent);
const read = () => ({order: $("order").textContent, read: wordsOf("read").join(""),
                     score: $("score").textContent, now: $("now").textContent,
                     dot: $("ranks").querySelector("circle").getAttribute("cy"), play: $("play").textContent,
                     value: Number($("time").value)});
const slide = (value) => { $("time").value = value; $("time").dispatchEvent(new Event("input")); return read(); };
"""


@needs_browser
def test_slider_and_play_button_move_the_picture(tmp_path):
    page = tmp_path / "page.html"
    make_trajectory().save_html(page, labels="abcd", true_order=[1, 3, 2, 0])
    script = """
    seen.start = read();
    seen.half = slide(1);
    seen.end = slide(2);
    seen.between = slide(0.5);
    seen.noise = slide(0);
    seen.says = $("says").textContent;
    seen.scores = $("scores-title").textContent;
    const pointsOf = (name) => $("scores").querySelector(name).getAttribute("points").split(" ");
    const heights = (name) => pointsOf(name).map((point) => Number(point.split(",")[1]));
    seen.lines = [".predicted-line", ".read-line"].map(heights);
    $("play").click();
    setTimeout(() => { seen.playing = read(); }, 1000);
    setTimeout(() => { $("play").click(); seen.paused = read(); }, 1100);
    setTimeout(() => { seen.later = read(); $("play").click(); }, 2000);
    setTimeout(() => { seen.played = read(); }, 9000);
    seen.controls = ["play", "time"].map((id) => { $(id).focus(); return document.activeElement.id; });
    seen.fetched = performance.getEntriesByType("resource").length;
    """
    seen = run_in(page, READ + script)
    assert seen["start"]["order"] == "Order: d, b, c, a" and seen["start"]["score"] == "2 of 4 places right"
    assert seen["half"]["order"] == "Order: b, d, c, a" and seen["half"]["score"] == "4 of 4 places right"
    assert seen["start"]["now"] == "t = 1.00, step 0 of 2" and seen["end"]["now"] == "t = 0.00, step 2 of 2"
    # Item a goes down from 0.9 over 0.8 to 1; half-way to the second time the soft ranks are .85 .2 .35 .35.
    heights = [float(seen[name]["dot"]) for name in ("start", "between", "half", "end")]
    top, bottom = 14, 390
    assert heights == pytest.approx([top + rank * (bottom - top) for rank in (0.9, 0.85, 0.8, 1.0)])
    assert seen["between"]["read"] == "bcda" and seen["noise"]["read"] == "bcda"
    assert seen["noise"]["order"] == "Order: d, b, c, a" and seen["end"]["read"] == "bdca"
    assert seen["says"] == (
        "The first prediction, from noise alone, has 2 of 4 places as in the answer; "
        "from t = 0.5 on the prediction does not change any more."
    )
    # Predicted: 2, 4 and 4 places right; read: of b, c, d, a two, then what stands at t = 0.5, then all.
    assert seen["scores"] == "Places that are right"
    assert seen["lines"][0] == pytest.approx([112, 14, 14]) and seen["lines"][1][0] == pytest.approx(112)
    assert seen["lines"][1][-1] == pytest.approx(14)
    assert seen["playing"]["play"] == "Pause" and 0.4 < seen["playing"]["value"] < 1.2
    assert seen["paused"]["play"] == "Play" and seen["later"]["value"] == seen["paused"]["value"]
    assert seen["played"]["play"] == "Play" and seen["played"]["value"] == 2
    assert seen["played"]["order"] == "Order: b, d, c, a" and seen["played"]["dot"] == seen["end"]["dot"]
    assert seen["controls"] == ["play", "time"] and seen["fetched"] == 0


@needs_browser
def test_patches_and_tours_follow_the_order(tmp_path):
    patches = torch.tensor([10, 20, 30, 40], dtype=torch.uint8)[:, None, None, None] * torch.tensor(
        [1, 2, 3], dtype=torch.uint8
    ).reshape(1, 3, 1, 1)
    make_trajectory().save_html(
        tmp_path / "grid.html", patches.expand(4, 3, 2, 2), layout="grid", true_order=[1, 3, 2, 0]
    )
    script = """
    const pixels = () => [...document.querySelectorAll("#picture canvas")].map(
        (canvas) => [...canvas.getContext("2d").getImageData(1, 1, 1, 1).data]);
    seen.start = pixels();
    seen.wrong = [...document.querySelectorAll("#picture li")].map((entry) => entry.className);
    slide(2);
    seen.end = pixels();
    """
    seen = run_in(tmp_path / "grid.html", READ + script)
    colours = {item: [10 * (item + 1) * colour for colour in (1, 2, 3)] + [255] for item in range(4)}
    assert seen["start"] == [colours[item] for item in (3, 1, 2, 0)]
    assert seen["end"] == [colours[item] for item in (1, 3, 2, 0)]
    assert seen["wrong"] == ["wrong", "wrong", "", ""]

    square = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    make_trajectory().save_html(tmp_path / "tour.html", square, true_order=[0, 1, 2, 3])
    script = "const tour = () => document.querySelector('#picture .edge').getAttribute('points');\n" + (
        "seen.start = tour(); seen.score = read().score; slide(2); seen.end = tour(); seen.last = read().score;"
        "seen.width = document.documentElement.scrollWidth - innerWidth;"
    )
    seen = run_in(tmp_path / "tour.html", READ + script)
    corners = ["20,480", "480,480", "480,20", "20,20"]
    assert seen["start"] == " ".join(corners[item] for item in (3, 1, 2, 0))
    assert seen["end"] == " ".join(corners[item] for item in (1, 3, 2, 0))
    crossed = 2 + 2 * 2**0.5  # both orders walk two sides and both diagonals
    assert (
        seen["score"] == f"Length {crossed:.4f}; the best tour (dashed) has 4.0000: {25 * crossed - 100:.2f} % above it"
    )
    assert seen["width"] <= 0


@needs_browser
def test_a_link_to_a_step_gives_another_picture(tmp_path):
    page = tmp_path / "page.html"
    make_trajectory().save_html(page, labels=["<b>a</b>", "b", "c", "d"], title="<i>title</i>")
    pictures = []
    for number, step in enumerate((0, 0, 2)):
        picture = tmp_path / f"{number}.png"
        browse(page, f"--screenshot={picture}", "--window-size=360,1100", fragment=f"#step={step}")
        pictures.append(picture.read_bytes())
    assert pictures[0].startswith(b"\x89PNG") and pictures[0] == pictures[1] != pictures[2]
    dom = browse(page, "--dump-dom", fragment="#step=2")
    assert "Order: b, d, c, &lt;b&gt;a&lt;/b&gt;" in dom and "&lt;i&gt;title&lt;/i&gt;</h1>" in dom
