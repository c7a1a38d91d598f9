"""Small plots of the documentation, drawn as SVG without a library: the same bytes wherever they are made, so that they
can be checked. A picture has its own background, and colours for light and dark that the reader's system chooses from.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LIGHT = {
    "surface": "#ffffff",
    "ink": "#1f2328",
    "muted": "#57606a",
    "grid": "#d8dee4",
    "first": "#0b5cad",
    "second": "#a3410e",
    "third": "#57606a",
}
DARK = {
    "surface": "#0d1117",
    "ink": "#e6edf3",
    "muted": "#9da7b3",
    "grid": "#30363d",
    "first": "#6cb6ff",
    "second": "#ff9f5c",
    "third": "#9da7b3",
}
DASHES = {"first": "", "second": "7 4", "third": "2 3"}
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:var(--ink)}.small{font-size:12px;fill:var(--muted)}"
    ".title{font-weight:600}.surface{fill:var(--surface)}.axis{stroke:var(--muted)}.grid{stroke:var(--grid)}"
    "path{fill:none;stroke-width:1}.interval{stroke:var(--third);stroke-width:1.5}"
)
HEAD, MARKS, AXIS = 24, 18, 22  # heights of a panel's title, the numbers of its axis, the axis' title
LEFT, GAP = 64, 30
LEGEND = 42


@dataclass(frozen=True)
class Axis:
    """What a direction of a panel means, with its unit in the title."""

    title: str
    low: float
    high: float
    marks: Sequence[float]
    is_logarithmic: bool = False
    names: Sequence[str] = ()  # of the marks, in place of their numbers

    def share(self, value: float) -> float:
        if self.is_logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


class Panel:
    """Axes with a title, and what is drawn between them."""

    def __init__(self, title: str, x: Axis, y: Axis, width: float, height: float) -> None:
        self.title, self.x, self.y, self.width, self.height = title, x, y, width, height
        self.drawn: list[str] = []

    def place(self, x: float, y: float) -> tuple[float, float]:
        return self.width * self.x.share(x), self.height * (1 - self.y.share(y))

    def line(self, points: Iterable[tuple[float, float]], series: str) -> None:
        self.drawn.append(_stroke([self.place(*point) for point in points], series))

    def cross(self, xs: tuple[float, float], ys: tuple[float, float], at: tuple[float, float], series: str) -> None:
        """An interval in both directions."""
        for ends in (((xs[0], at[1]), (xs[1], at[1])), ((at[0], ys[0]), (at[0], ys[1]))):
            (x1, y1), (x2, y2) = (self.place(*end) for end in ends)
            self.drawn.append(f'<path class="{series}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>')

    def mark(self, at: tuple[float, float], series: str, radius: float) -> None:
        x, y = self.place(*at)
        self.drawn.append(f'<circle class="{series}-mark" cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}"/>')

    def name(self, x: float, y: float, text: str, style: str = "small", anchor: str = "start") -> None:
        """At a place of the panel's own, in pixels."""
        self.drawn.append(_text(x, y, text, style, anchor))

    def svg(self) -> str:
        bottom = self.height
        lines = [_text(0, -10, self.title, "title")]
        for mark, name in zip(self.y.marks, self.y.names or [f"{mark:g}" for mark in self.y.marks], strict=True):
            _, y = self.place(self.x.low, mark)
            lines.append(f'<path class="grid" d="M0 {y:.1f}H{self.width:g}"/>')
            lines.append(_text(-8, y + 4, name, "small", "end"))
        for mark in self.x.marks:
            x, _ = self.place(mark, self.y.low)
            lines.append(f'<path class="grid" d="M{x:.1f} 0V{bottom:g}"/>')
            lines.append(_text(x, bottom + MARKS, f"{mark:g}", "small", "middle"))
        lines.append(f'<path class="axis" d="M0 0V{bottom:g}H{self.width:g}"/>')
        lines.append(_text(self.width / 2, bottom + MARKS + AXIS, self.x.title, "small", "middle"))
        middle = f'transform="translate({16 - LEFT},{bottom / 2:g}) rotate(-90)"'
        lines.append(f"<g {middle}>{_text(0, 0, self.y.title, 'small', 'middle')}</g>")
        return "\n".join([*lines, *self.drawn])


def picture(title: str, text: str, panels: Sequence[Panel], legend: Sequence[tuple[str, str, bool]]) -> str:
    """The panels side by side, above what their series mean: name of the series, words, whether it is a mark.
    `text` tells what is to be seen to those who don't see it."""
    lefts = [max(LEFT, 16 + 7 * max(map(len, panel.y.names), default=0)) for panel in panels]
    wide = sum(lefts) + sum(panel.width for panel in panels) + len(panels) * GAP
    high = HEAD + 12 + max(panel.height for panel in panels) + MARKS + AXIS + LEGEND
    used = sorted({series for series, _, _ in legend} & set(DASHES))
    series = "".join(
        f".{name}{{stroke:var(--{name});stroke-width:2{f';stroke-dasharray:{DASHES[name]}' if DASHES[name] else ''}}}"
        f".{name}-mark{{fill:var(--{name});stroke:var(--surface);stroke-width:1.5}}"
        for name in used
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" role="img" '
        'aria-labelledby="title text">',
        f'<title id="title">{html.escape(title)}</title>',
        f'<desc id="text">{html.escape(text)}</desc>',
        f"<style>svg{{{_variables(LIGHT)}}}@media(prefers-color-scheme:dark){{svg{{{_variables(DARK)}}}}}",
        f"{STYLE}{series}</style>",
        f'<rect class="surface" width="{wide:g}" height="{high:g}" rx="6"/>',
    ]
    left: float = 0
    for panel, own in zip(panels, lefts, strict=True):
        lines.append(f'<g transform="translate({left + own:g},{HEAD + 12})">\n{panel.svg()}\n</g>')
        left += own + panel.width + GAP
    left, middle = LEFT, high - 16
    for name, words, is_mark in legend:
        if is_mark:
            lines.append(f'<circle class="{name}-mark" cx="{left + 12:g}" cy="{middle - 4:g}" r="6"/>')
        else:
            lines.append(_stroke([(left, middle - 4), (left + 26, middle - 4)], name))
        lines.append(_text(left + 34, middle, words, "small"))
        left += 34 + 7 * len(words) + 26
    return "\n".join([*lines, "</svg>\n"])


def _variables(colours: dict[str, str]) -> str:
    return ";".join(f"--{name}:{colour}" for name, colour in colours.items())


def _stroke(points: Sequence[tuple[float, float]], series: str) -> str:
    return f'<path class="{series}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}"{side}>{html.escape(text)}</text>'
