"""All pages by keyboard, by what a screen reader is given, in both colour schemes, on a phone and on a desk."""

import numpy as np
import pytest
import torch
from testing import Tab, needs_browser

from softrank_ext import Drawing, Search, improve, plan_tour, schedule, show
from softrank_ext.metrics import tour_length
from softrank_ext.ranking.report import Curve, RankingReport
from softrank_ext.sampling.trajectory import Trajectory, TrajectoryPoint

pytestmark = needs_browser

SCREENS = [(width, dark) for width in (360, 1200) for dark in (False, True)]
PAGES = (
    "tour",
    "dense tour",
    "flow shop",
    "due dates",
    "list",
    "path of a tour",
    "lengths of a tour",
    "improvement",
    "report",
)
# Text that contrasts with its ground by less than 4.5, and marks by less than 3, as WCAG 2 counts them.
FAINT = r"""
(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  function rgba(colour) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  }
  const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  function ratio(a, b) {
    const [x, y] = [light(a), light(b)].sort((p, q) => q - p);
    return (x + 0.05) / (y + 0.05);
  }
  const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3])).concat(1);
  function behind(element) {
    const parents = [];
    for (let one = element; one; one = one.parentElement) parents.unshift(rgba(getComputedStyle(one).backgroundColor));
    return parents.reduce((below, top) => over(top, below), rgba("Canvas"));
  }
  const faults = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement, text = walk.currentNode.textContent.trim();
    if (!text || element.closest("script, style, noscript, option, title")) continue;
    if (!element.getClientRects().length) continue;
    const style = getComputedStyle(element), isSvg = element.namespaceURI.endsWith("svg");
    let back = behind(isSvg ? element.closest("svg") : element);
    if (isSvg) {  // a bar below the name
      const spot = element.getBoundingClientRect(), [x, y] = [spot.x + spot.width / 2, spot.y + spot.height / 2];
      for (const bar of element.closest("svg").querySelectorAll("rect")) {
        const box = bar.getBoundingClientRect();
        const isBelow = x > box.left && x < box.right && y > box.top && y < box.bottom;
        if (isBelow) back = over(rgba(getComputedStyle(bar).fill), back);
      }
    }
    const found = ratio(over(rgba(isSvg ? style.fill : style.color), back), back);
    if (found < 4.5) faults.push([text.slice(0, 30), element.tagName, +found.toFixed(2)]);
  }
  for (const line of document.querySelectorAll("svg line.leg, svg circle, svg polyline, svg .kept, svg .drawn")) {
    const style = getComputedStyle(line);
    const colour = style.stroke !== "none" ? style.stroke : style.fill;
    let opacity = 1;
    for (let one = line; one.tagName !== "svg"; one = one.parentElement) opacity *= getComputedStyle(one).opacity;
    if (opacity < 1) continue;
    const back = behind(line.closest("svg")), found = ratio(over(rgba(colour), back), back);
    if (found < 3) faults.push([line.getAttribute("class"), line.tagName, +found.toFixed(2)]);
  }
  return faults;
})()
"""
# The element that has the focus: what it is, whether it can be seen that it has it, and whether something covers it.
CONTROLS = "[...document.querySelectorAll('button, input, select, [tabindex]')]"
FOCUSED = """
(() => {
  const one = document.activeElement;
  if (one === document.body) return null;
  const style = getComputedStyle(one), box = one.getBoundingClientRect();
  const top = document.querySelector(".controls:not(:focus-within)")?.getBoundingClientRect().bottom ?? 0;
  const number = CONTROLS.indexOf(one), outline = style.outlineStyle === "solid" ? parseFloat(style.outlineWidth) : 0;
  return { number, outline, name: `${one.tagName} ${one.textContent.slice(0, 20)}`,
           size: Math.min(box.width, box.height), where: [box.top, box.bottom, top, innerHeight],
           covered: !one.matches(".scroll") && (box.top < top || box.bottom > innerHeight) };
})()
""".replace("CONTROLS", CONTROLS)


def report():
    curve = Curve([0.05, 0.0, 0.31], [0.08, 0.0, 0.25], [60, 0, 20], 0.0375)
    sure = Curve([0.0, 0.0, 0.86], [0.0, 0.0, 0.9], [0, 0, 80], 0.04)
    ndcg, error = {1: 0.81, 5: 0.86, 10: 0.9125}, {1: 0.03, 5: 0.02, 10: 0.0101}
    return RankingReport(ndcg, error, curve, curve, sure, 0.42, 8, 80, "validation groups")


def trajectory(size):
    generator = torch.Generator().manual_seed(0)
    ranks = [torch.rand(1, size, generator=generator) for _ in range(4)]
    return Trajectory(
        [TrajectoryPoint(1 - k / 3, rank, rank.argsort(1), rank.argsort(1)) for k, rank in enumerate(ranks)]
    )


# Names and numbers that a picture cuts off at its left or right edge.
CUT_OFF = """
[...document.querySelectorAll("svg text")].filter((one) => one.getClientRects().length).filter((one) => {
  const box = one.getBoundingClientRect(), edge = one.closest("svg").getBoundingClientRect();
  return box.left < edge.left - 1 || box.right > edge.right + 1;
}).map((one) => one.textContent)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


@pytest.fixture
def page(folder, make_model):
    """The page of a name, written once."""

    def write(name):
        path = folder / f"{name}.html"
        if path.exists():
            return path
        random = np.random.default_rng(0)
        if name == "tour":
            cities = {
                "name": ["Oslo", "Bergen", "Tromsø", "Trondheim"],
                "lat": [59.9, 60.4, 69.6, 63.4],
                "lon": [10.7, 5.3, 19.0, 10.4],
            }
            plan_tour(cities, metric="latlon", k=2, rounds=50, model=None).save_html(path)
        elif name == "dense tour":
            near = np.concatenate((random.normal(0.2, 0.02, (30, 2)), random.random((40, 2))))
            places = {"x": near[:, 0], "y": near[:, 1], "name": [f"Warehouse {i}" for i in range(70)]}
            plan_tour(places, metric="plane", rounds=500, model=None).save_html(path)
        elif name == "flow shop":
            schedule(random.integers(5, 99, (20, 5)).astype(float), seconds=0.1, model=None).save_html(path)
        elif name == "due dates":
            jobs = {
                "job": [f"order {i}" for i in range(9)],
                "time": random.integers(2, 9, 9),
                "due": random.integers(9, 30, 9),
                "weight": np.ones(9),
            }
            schedule(jobs, "weighted_tardiness", seconds=0.1, model=None).save_html(path)
        elif name == "list":
            trajectory(9).save_html(
                path, labels=[f"item {i}" for i in range(9)], true_order=[2, 0, 1, 8, 7, 6, 5, 4, 3]
            )
        elif name == "path of a tour":
            trajectory(9).save_html(path, torch.rand(9, 2), true_order=torch.arange(9))
        elif name == "lengths of a tour":  # with two digits before and after the point
            trajectory(9).save_html(path, 3 * torch.rand(9, 2, generator=torch.Generator().manual_seed(0)))
        elif name == "improvement":
            points = torch.rand(1, 9, 2, generator=torch.Generator().manual_seed(0))
            model = make_model("pointer", fixed_start=True, symmetry="tour")
            found = improve(
                model,
                points,
                tour_length,
                initial=2,
                rounds=5,
                seed=0,
                search=Search(fresh=0.0),
                drawing=Drawing(record=True),
            )
            path.write_text(show.improvement_page(found, points[0], best=2.0, title="A tour"), encoding="utf-8")
        else:
            report().save_html(path, "Hotels")
        return path

    return write


@pytest.mark.parametrize("name", PAGES)
def test_colours_widths_and_words(page, name):
    with Tab(page(name)) as tab:
        for width, dark in SCREENS:
            tab.look(width=width, dark=dark)
            assert tab.run("document.documentElement.scrollWidth") <= width
            assert tab.run(FAINT) == [] and tab.run(CUT_OFF) == []
        spoken = tab.spoken()
        for one in spoken:
            if one["role"] in ("image", "button", "slider", "combobox", "table", "region", "group"):
                assert one["name"].strip(), one
            if one["role"] == "image":
                assert one["description"].strip(), one
        roles = [one["role"] for one in spoken]
        assert "main" in roles and "heading" in roles and "image" in roles
        assert tab.run("document.documentElement.lang") == "en" and tab.run("document.title") != ""
        # Negative control.
        tab.run(
            "document.querySelector('main').insertAdjacentHTML('beforeend', '<p style=\"color: #777777\">pale</p>')"
        )
        assert [fault[0] for fault in tab.run(FAINT)] == ["pale"]


@pytest.mark.parametrize("width", (360, 1200))
@pytest.mark.parametrize("name", PAGES)
def test_the_keyboard_reaches_everything_and_can_be_followed(page, name, width):
    """With Tab from the first control to the last, and back."""
    with Tab(page(name)) as tab:
        tab.look(width=width, dark=False)
        numbers = tab.run(f"{CONTROLS}.map((one, i) => one.getClientRects().length ? i : -1).filter((i) => i >= 0)")
        for shift in (False, True):
            wanted = numbers[::-1] if shift else numbers
            for place, number in enumerate(wanted):
                if place > 0 or not shift:
                    tab.press("Tab", shift=shift)
                found = tab.run(FOCUSED)
                assert found["number"] == number
                assert found["outline"] >= 2 and found["size"] >= 24 and not found["covered"], str(found)


@pytest.mark.parametrize(
    ("name", "slider"), (("tour", "stop"), ("flow shop", "found"), ("list", "time"), ("improvement", "round"))
)
def test_arrow_keys_move_the_slider(page, name, slider):
    with Tab(page(name)) as tab:
        tab.run(f"document.getElementById('{slider}').focus()")
        said = "document.activeElement.getAttribute('aria-valuetext')"
        tab.press("Home")
        first = tab.run(said), tab.run("document.querySelector('main').innerHTML")
        for _ in range(3):
            tab.press("ArrowRight")
        later = tab.run(said), tab.run("document.querySelector('main').innerHTML")
        assert first[0] != "" and tab.run("document.activeElement.id") == slider
        assert first[1] != later[1]
        tab.press("End")
        most = tab.run("document.activeElement.max")
        assert tab.run("document.activeElement.value") == most
        tab.press("Home")
        assert (tab.run(said), tab.run("document.querySelector('main').innerHTML")) == first


def test_play_says_nothing_by_itself_until_it_stops(page):
    live = "[...document.querySelectorAll('output, [aria-live]')].filter((one) => one.ariaLive !== 'off').length"
    for name in ("flow shop", "improvement"):
        with Tab(page(name)) as tab:
            assert tab.run(live) == 1
            tab.run("document.querySelector('input').focus()")
            tab.press("Home")
            tab.run("document.getElementById('play').focus()")
            tab.press(" ")
            assert tab.run("document.getElementById('play').textContent") == "Pause" and tab.run(live) == 0
            tab.press(" ")
            assert tab.run("document.getElementById('play').textContent") == "Play" and tab.run(live) == 1


def test_a_job_is_chosen_by_the_keyboard(page):
    with Tab(page("flow shop")) as tab:
        tab.run("document.querySelectorAll('#times button')[3].focus()")
        job = tab.run("document.activeElement.textContent")
        for key, marked, pressed in (("Enter", 5, "true"), (" ", 0, "false")):
            tab.press(key)
            assert tab.run("document.activeElement.ariaPressed") == pressed
            assert tab.run("document.querySelectorAll('#chart rect.selected').length") == marked
            assert tab.run("document.activeElement.textContent") == job


OVERLAPS = """
(() => {
  const texts = [...document.querySelectorAll("#map text")];
  const boxes = texts.map((one) => [one.textContent, one.getBoundingClientRect()]);
  const map = document.getElementById("map").getBoundingClientRect();
  const found = boxes.filter(([, a]) => a.left < map.left - 1 || a.right > map.right + 1).map(([name]) => name);
  boxes.forEach(([name, a], i) => boxes.slice(i + 1).forEach(([other, b]) => {
    // Boxes of text are a little higher than the letters in them.
    const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (across > 1 && down > 4) found.push([name, other]);
  }));
  return found;
})()
"""


def test_names_on_a_map_do_not_overlap(page):
    with Tab(page("dense tour")) as tab:
        shown = {}
        for width in (1200, 360):
            tab.look(width=width, dark=False)
            for stop in (0, 1, 20, 69):
                tab.run(f"goTo({stop})")
                names = tab.run("[...document.querySelectorAll('#map text')].map((one) => one.textContent)")
                assert tab.run(OVERLAPS) == []
                assert tab.run("data.names[tour.order[Number(slider.value)]]") in names
            tab.run("goTo(0)")
            shown[width] = tab.run("document.querySelectorAll('#map text').length") - 1  # the scale is no name
            said = tab.run("document.getElementById('about-names').textContent")
            assert said == f"{70 - shown[width]} names have no room; the list has them all."
        assert 70 > shown[1200] > shown[360] > 5
        assert tab.run("document.querySelectorAll('#list tr').length") == 70


def test_the_report_in_a_browser(page):
    with Tab(page("report")) as tab:
        assert tab.run("document.title") == "Hotels"
        assert tab.run("document.getElementById('sum').textContent") == (
            "Measured on 8 groups with 80 rows (validation groups): NDCG@10 0.912 ± 0.010. "
            "Sharpness: an interval spans 42 % of its group."
        )
        rows = "[...document.querySelectorAll('#{} tbody tr')]"
        cells = f"{rows}.map((row) => [...row.children].map((one) => one.textContent))"
        assert tab.run(cells.format("first-table")) == [["5 %", "8 %", "60"], ["31 %", "25 %", "20"]]
        assert tab.run(cells.format("interval-table")) == [["86 %", "90 %", "80"]]
        assert tab.run(cells.format("ndcg-table"))[2] == ["10", "0.912", "0.010"]
        says = tab.run("document.getElementById('interval-says').textContent")
        assert says.startswith("Off by 4 % on average; 4 % too little on the whole.")
        # 0 to 1 is 58 to 330 across and 292 to 10 up.
        assert tab.run("document.querySelector('#first .curve').getAttribute('points')") == "71.6,269.44 142.32,221.5"
        assert tab.run("performance.getEntriesByType('resource').length") == 0
