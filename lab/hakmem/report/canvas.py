"""What all plots share: size, style, and matplotlib's SVG made fit for a page.

Every colour is drawn as a placeholder and becomes a CSS variable, letters take the page's font: one picture serves
light and dark. Margins are given in the picture's own units, which a wide page shows as pixels.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

WIDTH = 960
FONT = 12
FAMILY = "DejaVu Sans"  # comes with matplotlib; wider than what pages show, so nothing outgrows its place
LETTER = 7.2  # the width of a letter, generously
TOP, BOTTOM = 30, 46
UNIT = 1 / 72  # inch

SERIES = 12
VARIABLES = ("ink", "muted", "grid", "surface", "better", "worse", *(f"series-{number}" for number in range(SERIES)))
COLOURS = {variable: f"#0000{10 + number:02x}" for number, variable in enumerate(VARIABLES)}

STYLE = {
    "svg.fonttype": "none",
    "font.family": FAMILY,
    "font.size": FONT,
    "text.color": COLOURS["ink"],
    "text.parse_math": False,
    "axes.edgecolor": COLOURS["grid"],
    "axes.facecolor": "none",
    "axes.labelcolor": COLOURS["muted"],
    "axes.titlecolor": COLOURS["muted"],
    "axes.titlelocation": "left",
    "axes.titlesize": FONT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 1,
}


def styled() -> AbstractContextManager[None]:
    return rc_context(STYLE)


def figure(height: float) -> Figure:
    """Room for axes of this height."""
    made = Figure(figsize=(WIDTH * UNIT, (height + TOP + BOTTOM) * UNIT), dpi=72)
    made.patch.set_visible(False)
    return made


def axes(on: Figure, left: float, right: float) -> Axes:
    """Between these distances from the figure's left side, as high as the figure has room for."""
    height = on.get_figheight() / UNIT
    return on.add_axes((left / WIDTH, BOTTOM / height, (right - left) / WIDTH, 1 - (TOP + BOTTOM) / height))


def margin(names: Iterable[str]) -> float:
    """For these names beside the axes."""
    return max((len(short(name)) for name in names), default=0) * LETTER + 16


def short(name: str, letters: int = 28) -> str:
    """Cut in the middle: paths and settings differ at their ends."""
    if len(name) <= letters:
        return name
    return f"{name[: letters // 2]}\N{HORIZONTAL ELLIPSIS}{name[len(name) - letters + letters // 2 + 1 :]}"


def svg(of: Figure, name: str, title: str, description: str) -> str:
    """As an element of a page. `name`, of letters and digits, is different for each picture of it."""
    file = io.StringIO()
    with rc_context({"svg.hashsalt": name}):
        of.savefig(file, format="svg", metadata={key: None for key in ("Date", "Creator", "Format", "Type")})
    drawn = file.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r"<!--.*?-->", "", drawn, flags=re.DOTALL)
    drawn = re.sub(r' id="[a-zA-Z0-9.]+_\d+"', "", drawn)  # nothing refers to these, and every picture has them
    drawn = re.sub(r"<defs><style.*?</style></defs>", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace(f"'{FAMILY}'", "var(--font)")
    drawn = re.sub(r' transform="rotate\(-0 [^"]*\)"', "", drawn)
    drawn = re.sub(r"#0000[0-9a-f]{2}\b", lambda found: _variable(found[0]), drawn)
    drawn = re.sub(r">\s+<", "><", drawn)
    view = re.search(r'viewBox="[^"]+"', drawn)
    assert view is not None
    head = (
        f'<svg class="plot" {view[0]} role="img" aria-labelledby="{name}-title {name}-text">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-text">{html.escape(description)}</desc>'
    )
    return head + drawn[drawn.index(">") + 1 :]


def _variable(colour: str) -> str:
    return next((f"var(--{variable})" for variable, own in COLOURS.items() if own == colour), colour)
