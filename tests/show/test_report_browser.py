"""The report in a real browser: its controls work, from the keyboard too, it fits a phone, and asks nothing of the network."""

import json
import time

import numpy as np
import pytest
from chromium import Chromium, find_chromium
from PIL import Image
from report_pages import labelled, write_labels, write_many, write_run

from melm.data import Source
from melm.learn.run_folder import WATCHED
from melm.show.report import write_report
from writers import Picture, Thing, write_coco

NAMES = ("cat", "<script>alert(1)</script>", '猫 "x"')
SIZE = (160, 120)
# id -> its boxes: class, confidence, place
BOXES = {
    "a": [(NAMES[0], 0.9, 10, 10, 60, 60), (NAMES[0], 0.7, 70, 10, 110, 60)],
    "b": [(NAMES[0], 0.8, 0, 0, 50, 50), (NAMES[1], 0.35, 60, 60, 150, 110)],
    "c": [(NAMES[2], 0.5, 20, 20, 100, 100)],
    "d": [(NAMES[1], 0.15, 30, 30, 70, 70), (NAMES[2], 0.6, 5, 5, 30, 30)],
    "e": [],
}
BY_DOUBT = ["d", "b", "c", "a", "e"]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium: install one, or name it with MELM_CHROMIUM")
    browser = Chromium(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A page with right and wrong boxes, names that look like code, and a strip of a watched image."""
    folder = tmp_path_factory.mktemp("page")
    things = {"a": (Thing(NAMES[0], (10, 10, 60, 60)), Thing(NAMES[0], (0, 70, 30, 110))), "c": (Thing(NAMES[2]),)}
    things |= {"b": (Thing(NAMES[1], (60, 60, 150, 110)), Thing(NAMES[0], (100, 0, 150, 40)))}
    data = write_coco(folder, [Picture(f"{id}.png", things.get(id, ()), SIZE) for id in BOXES])
    images = [labelled(id, next(folder.rglob(f"{id}.png")), NAMES, boxes) for id, boxes in BOXES.items()]
    run = write_run(folder / "run", NAMES, data=data)
    write_labels(run / "labels", NAMES, images)
    box = [10.0, 10.0, 60.0, 60.0]
    look = {"id": "a", "file": str(images[0].path), "tag": NAMES[0], "box": box, "likely": [box], "cliques": [[box]]}
    (run / WATCHED).write_text("".join(json.dumps({"epoch": epoch, **look}) + "\n" for epoch in range(1, 9)))
    written = write_report(run, None, Source(data))
    assert written.images == 5
    return written.path


@pytest.fixture
def page(browser, report):
    return browser.page(report)


SHOWN = "[...document.querySelectorAll('{}')].filter((e) => e.checkVisibility()).length"
BOX, TRUE, FIGURE = (SHOWN.format(f"#gallery {name}") for name in ("rect.box", "rect.true", "figure.shot"))
COUNT = "document.getElementById('count').textContent"
TITLE = "document.getElementById('large-title').textContent"


def put(page, id, value):
    """Sets a control, as a user's hand would, and says so."""
    control = f"document.getElementById('{id}')"
    page(f"{control}.value = '{value}'; {control}.dispatchEvent(new Event('input'))")


def choose(page, name):
    put(page, "class", "" if name is None else NAMES.index(name))


def set_slider(page, value):
    put(page, "threshold", value)


def rectangle(page, selector):
    """Left, top, width and height of what is seen of something."""
    found = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
    return page(f"(() => {{ const b = {found}; return [b.x, b.y, b.width, b.height] }})()")


def test_nothing_is_asked_of_the_network_and_nothing_complains(page, report):
    assert page("document.title") == "run: melm report"
    page.press("Tab")
    assert page.requests() == [report.absolute().as_uri()]
    assert page.complaints() == []
    assert page("document.scripts.length") == 1
    page("document.getElementById('gallery').scrollIntoView({behavior: 'instant'})")
    page.wait("[...document.querySelectorAll('#gallery img')].filter((i) => i.naturalWidth > 0).length == 5")
    assert page("[...document.getElementById('class').options].map((o) => o.textContent)") == ["all", *NAMES]


def test_the_page_lets_no_script_in(page):
    """A script or a picture from outside that got into the page would do nothing."""
    page(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.got = 1\"><img src=http://[::1]:9/x.png>')"
    )
    page(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.got = 2'; document.body.append(s) })()"
    )
    page("new Promise((done) => setTimeout(done, 200))")
    assert page("window.got") is None
    assert sum("Content Security Policy" in text for text in page.complaints()) >= 2


def test_the_slider_hides_boxes(page):
    assert (page(BOX), page(TRUE), page(FIGURE)) == (7, 5, 5)
    assert page(COUNT) == "7 boxes shown in 4 images"
    page("document.getElementById('threshold').focus()")
    for _ in range(20):
        page.press("ArrowRight")
    assert page("document.getElementById('least').textContent") == "0.20"
    assert (page(BOX), page(FIGURE)) == (6, 5) and page(COUNT) == "6 boxes shown in 4 images"
    set_slider(page, 0.7)  # of the labels, the one with exactly so much is still there
    scores = page(
        "[...document.querySelectorAll('rect.box')].filter((e) => e.checkVisibility()).map((e) => e.dataset.score)"
    )
    assert sorted(scores) == ["0.7", "0.8", "0.9"] and page(COUNT) == "3 boxes shown in 2 images"
    assert page("document.querySelectorAll('.shot.empty').length") == 2
    page.press("End")
    assert page(BOX) == 0 and page(COUNT) == "0 boxes shown in 0 images"
    page.press("Home")
    assert page(BOX) == 7
    assert page.complaints() == []


def test_the_class_filter(page):
    choose(page, NAMES[0])
    assert (page(BOX), page(TRUE), page(FIGURE)) == (3, 3, 2) and page(COUNT) == "3 boxes shown in 2 images"
    set_slider(page, 0.85)
    assert page(BOX) == 1 and page(COUNT) == "1 box shown in 1 image"
    choose(page, NAMES[2])
    assert (page(BOX), page(FIGURE)) == (0, 2)
    set_slider(page, 0)
    choose(page, None)
    assert (page(BOX), page(FIGURE)) == (7, 5)


def test_true_objects_can_be_hidden(page):
    page.click("#truth")
    assert (page(TRUE), page(BOX)) == (0, 7)
    page.click("#truth")
    assert page(TRUE) == 5


def test_colours_are_those_of_the_paper(page):
    stroke = "getComputedStyle(document.querySelector('{}')).stroke"
    assert page(stroke.format("rect.right")) == "rgb(46, 204, 64)"
    assert page(stroke.format("rect.wrong")) == "rgb(235, 40, 40)"
    assert page(stroke.format("rect.true")) == "rgb(255, 220, 0)"
    dashes = "getComputedStyle(document.querySelector('{}')).strokeDasharray"
    assert page(dashes.format("rect.best")) == "none" != page(dashes.format("rect.box:not(.best)"))


def test_boxes_are_where_they_should_be(page):
    """The overlay lies on the picture: a box of a quarter of the image is a quarter of what is seen of it."""
    page.click("#image-0 button")
    page.wait("document.querySelector('#stage img').naturalWidth > 0")
    picture, box = rectangle(page, "#stage svg"), rectangle(page, '#stage rect.box[data-score="0.15"]')
    scale = min(picture[2] / SIZE[0], picture[3] / SIZE[1])
    left, top = picture[0] + (picture[2] - SIZE[0] * scale) / 2, picture[1] + (picture[3] - SIZE[1] * scale) / 2
    x, y, w, h = 30, 30, 40, 40  # of image d, the most doubtful
    np.testing.assert_allclose(box, [left + x * scale, top + y * scale, w * scale, h * scale], atol=4)


def test_one_image_large_from_the_keyboard(page):
    page("document.querySelector('#image-0 button').focus()")
    page.press("Enter")
    assert page("document.getElementById('large').open")
    seen = [page(TITLE)]
    for _ in range(5):  # one more than there are others
        page.press("ArrowRight")
        seen.append(page(TITLE))
    assert [title[0] for title in seen] == [*BY_DOUBT, "e"]
    page.press("ArrowLeft")
    assert page(TITLE).startswith("a")
    assert page("document.getElementById('large-place').textContent") == "4 of 5"
    assert page("[...document.querySelectorAll('#large-boxes li')].map((li) => li.textContent)") == [
        "cat 0.90, right",
        "cat 0.70, wrong: background, another object of its tag",
    ]
    page.press("Home")
    assert page(TITLE).startswith("d")
    page.press("End")
    page.press("ArrowUp")
    page.press("Escape")
    assert not page("document.getElementById('large').open")
    page.wait("document.activeElement.closest('figure')?.id === 'image-3'")  # set by `close`, an event of its own
    page.press("ArrowLeft")  # in the gallery, too
    assert page("document.activeElement.closest('figure').id") == "image-2"
    assert page.complaints() == []


def test_large_images_are_those_that_are_shown(page):
    choose(page, NAMES[0])
    set_slider(page, 0.85)
    page.click("#image-3 button")
    assert page(TITLE).startswith("a") and page("document.getElementById('large-place').textContent") == "2 of 2"
    assert page("document.querySelectorAll('#large-boxes li').length") == 1
    assert page("[...document.querySelectorAll('#stage text')].map((t) => t.textContent)") == ["cat 0.90"]
    page.click("#back")
    assert page(TITLE).startswith("b")
    page.click("#close")
    assert not page("document.getElementById('large').open")


WIDTH = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_it_fits_the_window(browser, report, width):
    page = browser.page(report, width, 700)
    page("document.querySelectorAll('details').forEach((d) => { d.open = true })")
    assert page(WIDTH) <= width
    page("document.querySelector('#image-0 button').click()")
    right = page("document.getElementById('large').getBoundingClientRect().right")
    assert right <= width and page(WIDTH) <= width
    for control in ("threshold", "class", "truth"):
        left, _, wide, _ = rectangle(page, f"#{control}")
        assert left >= 0 < wide and left + wide <= width


CONTRAST = """(() => {
  const light = (text) => {
    const shares = text.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255);
    const parts = shares.map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const colour = getComputedStyle(node).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
  };
  return [...document.querySelectorAll('h1, p, a, th, td, dt, dd, li, figcaption, summary, label, code, .doubt, .missing')]
    .filter((node) => node.checkVisibility() && node.textContent.trim())
    .map((node) => [light(getComputedStyle(node).color), light(behind(node))].sort())
    .map(([dark, bright]) => (bright + 0.05) / (dark + 0.05)).reduce((a, b) => Math.min(a, b), 99);
})()"""


def test_light_and_dark(browser, report, tmp_path):
    """Two different pages to look at, both with words that can be read (WCAG AA)."""
    backs, pictures = [], []
    for dark in (False, True):
        page = browser.page(report, dark=dark)
        backs.append(page("getComputedStyle(document.body).backgroundColor"))
        assert page(CONTRAST) >= 4.5
        page.screenshot(tmp_path / "page.png")
        pictures.append(np.asarray(Image.open(tmp_path / "page.png").convert("L")).mean())
    assert backs[0] != backs[1]
    assert pictures[0] > 180 and pictures[1] < 80


def test_focus_is_seen(page):
    page("document.querySelector('#image-1 button').focus()")
    page.press("ArrowLeft")
    assert page("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert page("document.querySelectorAll('button:not([aria-label])').length") == 0


def test_many_images_open_fast(browser, tmp_path):
    run, _ = write_many(tmp_path, 350)
    written = write_report(run)
    began = time.monotonic()
    page = browser.page(written.path)
    assert time.monotonic() - began < 15  # on a busy machine; else about one
    assert page(COUNT) == "300 boxes shown in 300 images"
    began = time.monotonic()
    set_slider(page, 0.5)
    assert (
        time.monotonic() - began < 2
        and 100 < page("document.querySelectorAll('#gallery rect.box:not(.off)').length") < 250
    )
    assert page.complaints() == []
