"""How a page looks in a browser: headless Chromium measures it and takes pictures, in light and dark."""

from __future__ import annotations

import html as escapes
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hakmem.report import html
from numpy.typing import NDArray
from PIL import Image
from sample_report import REPORTS


def runs(browser: str) -> bool:
    """What Ubuntu calls chromium-browser only says that it is a snap."""
    return (
        shutil.which(browser) is not None
        and subprocess.run([browser, "--version"], capture_output=True).returncode == 0
    )


CHROMIUM = next(filter(runs, ("chromium", "chromium-browser", "google-chrome")), None)
pytestmark = [
    pytest.mark.forms,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: Debian's package chromium"),
]

SCHEMES = {"dark": 0, "light": 1}
WIDTH, HEIGHT = 1200, 3200
READABLE = 4.5  # contrast that the Web Content Accessibility Guidelines ask of text (AA)
VISIBLE = 3.0  # and of what is drawn

# Measures the page in the browser and leaves the answer with it.
SCRIPT = """
const paint = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
function colour(name) {  // as red, green, blue, opacity
  paint.clearRect(0, 0, 1, 1); paint.fillStyle = name; paint.fillRect(0, 0, 1, 1);
  return [...paint.getImageData(0, 0, 1, 1).data];
}
function light(c) {
  const [r, g, b] = c.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
function behind(element) {
  for (let e = element; e; e = e.parentElement) {
    const c = colour(getComputedStyle(e).backgroundColor);
    if (c[3] === 255) return c;
  }
}
function contrast(element, name) {
  const [a, b] = [light(colour(name)), light(behind(element))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
const within = (inner, outer) => inner[0] >= outer[0] - 0.5 && inner[1] >= outer[1] - 0.5 &&
                                 inner[2] <= outer[2] + 0.5 && inner[3] <= outer[3] + 0.5;
const overlap = (a, b) => Math.min(a[2], b[2]) - Math.max(a[0], b[0]) > 1 &&
                          Math.min(a[3], b[3]) - Math.max(a[1], b[1]) > 3;
const letters = [...document.querySelectorAll("h1,h2,h3,p,li,th,td,dt,dd,summary,code,pre,svg text")]
  .filter(e => e.textContent.trim() && e.getClientRects().length);
const plots = [...document.querySelectorAll("svg.plot")].filter(e => e.getClientRects().length);
const answer = {
  width: document.documentElement.scrollWidth,
  plots: plots.map(e => [e.querySelector("title").textContent, ...box(e)]),
  pale: letters.map(e => [contrast(e, e.closest("svg") ? getComputedStyle(e).fill : getComputedStyle(e).color),
                          e.textContent.trim().slice(0, 40)]),
  cut: plots.flatMap(p => [...p.querySelectorAll("text")].filter(e => !within(box(e), box(p))).map(e => e.textContent)),
  hidden: plots.flatMap(p => { const t = [...p.querySelectorAll("text")];
    return t.flatMap((a, i) => t.slice(i + 1).filter(b => overlap(box(a), box(b)))
                               .map(b => a.textContent + " | " + b.textContent)); }),
  drawn: [...Array(12).keys()].map(n => "series-" + n).concat("better", "worse")
    .map(n => [n, contrast(document.querySelector("section"),
                           getComputedStyle(document.documentElement).getPropertyValue("--" + n))]),
};
document.documentElement.dataset.answer = JSON.stringify(answer);
"""

Look = tuple[dict[str, Any], NDArray[np.uint8]]


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str, int], Look]:
    """What is measured of a report's page, and a picture of it, once for each report, scheme and width."""
    seen: dict[tuple[str, str, int], Look] = {}
    folder = tmp_path_factory.mktemp("pages")

    def get(name: str, scheme: str, width: int = WIDTH) -> Look:
        key = (name, scheme, width)
        if key not in seen:
            assert CHROMIUM is not None
            written, picture = folder / "page.html", folder / "page.png"
            page = html.render(REPORTS[name]).replace("<details>", "<details open>")
            written.write_text(page.replace("</body>", f"<script>{SCRIPT}</script></body>"))
            command = [
                CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                f"--user-data-dir={folder / 'profile'}", "--hide-scrollbars", f"--window-size={width},{HEIGHT}",
                f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}", "--dump-dom", f"--screenshot={picture}",
                written.as_uri(),
            ]  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
            answer = re.search(r'data-answer="([^"]*)"', done.stdout)
            assert answer is not None
            with Image.open(picture) as image:
                seen[key] = json.loads(escapes.unescape(answer[1])), np.asarray(image.convert("RGB"))
        return seen[key]

    return get


CASES = [("command", "light"), ("command", "dark"), ("suite", "dark"), ("courses", "light"), ("one round", "light")]
EVERY_CASE = pytest.mark.parametrize(("name", "scheme"), CASES)


@EVERY_CASE
def test_no_plot_is_blank(look: Callable[[str, str], Look], name: str, scheme: str) -> None:
    answer, picture = look(name, scheme)
    boxes = [box for box in answer["plots"] if box[4] <= HEIGHT]
    assert boxes
    for title, *box in boxes:
        left, top, right, bottom = map(int, box)
        pixels = picture[top:bottom, left:right].reshape(-1, 3)
        colours, counts = np.unique(pixels, axis=0, return_counts=True)
        assert len(colours) > 30, f"{title}: {len(colours)} colours"
        assert 0.001 < 1 - counts.max() / counts.sum() < 0.5, f"{title}: nothing drawn, or nothing but drawing"
        assert "every run" not in title or np.ptp(colours.astype(int), axis=1).max() > 60, f"{title}: all grey"


@EVERY_CASE
def test_all_text_is_readable(look: Callable[[str, str], Look], name: str, scheme: str) -> None:
    answer, _ = look(name, scheme)
    assert len(answer["pale"]) > 20
    assert [pair for pair in answer["pale"] if pair[0] < READABLE] == []
    assert [pair for pair in answer["drawn"] if pair[1] < VISIBLE] == []


@EVERY_CASE
def test_no_label_is_cut_or_covers_another(look: Callable[[str, str], Look], name: str, scheme: str) -> None:
    answer, _ = look(name, scheme)
    assert answer["cut"] == []
    assert answer["hidden"] == []


@pytest.mark.parametrize("width", [WIDTH, 500])
def test_the_page_fits_its_window(look: Callable[[str, str, int], Look], width: int) -> None:
    """Wide tables and plots scroll by themselves."""
    answer, _ = look("suite", "dark", width)
    assert answer["width"] <= width


# A window can't be that narrow: a frame can.
NARROW = """<iframe src="page.html" style="width:400px;height:900px;border:0"></iframe>
<script>onmessage = event => { document.documentElement.dataset.answer = event.data; };</script>"""
FITS = """<script>
const out = [...document.querySelectorAll("td,th,p,li,dd,h1,h2")].filter(e => e.getClientRects().length)
  .filter(e => e.getBoundingClientRect().right > innerWidth && !e.closest("thead")).map(e => e.textContent);
parent.postMessage(JSON.stringify({out, width: document.documentElement.scrollWidth}), "*");
</script></body>"""


@pytest.mark.parametrize("name", REPORTS)
def test_a_phone_has_cards_in_place_of_wide_tables(name: str, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    (tmp_path / "page.html").write_text(html.render(REPORTS[name]).replace("</body>", FITS))
    (tmp_path / "outer.html").write_text(NARROW)
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000", "--dump-dom",
        (tmp_path / "outer.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    answer = re.search(r'data-answer="([^"]*)"', done.stdout)
    assert answer is not None
    found = json.loads(escapes.unescape(answer[1]))
    assert found["out"] == [] and found["width"] <= 400


def test_light_is_light_and_dark_is_dark(look: Callable[[str, str], Look]) -> None:
    light, dark = (look("command", scheme)[1].mean() for scheme in ("light", "dark"))
    assert light > 200 and dark < 60
