"""Reports as text, markdown and HTML. How a page looks is tested in test_report_page.py."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hakmem.report import grid, html, markdown, plots, text
from hakmem.report.model import Case, Comparison, Course, Entry, Line, Report, Share, Shares, Table
from hakmem.statistics import Interval, Verdict
from sample_report import EFFECTS, NAMES, REPORTS, comparison, course, memory, report

FASTER = Entry("hakmem", (0.9,) * 6, Interval(0.9, 0.88, 0.92), Verdict.FASTER)
SLOWER = Entry("jemalloc", (1.2,) * 6, Interval(1.2, 1.1, 1.3), Verdict.SLOWER)
SAME = Entry("mimalloc", (1.0,) * 6, Interval(1.004, 0.99, 1.02), Verdict.NO_DIFFERENCE)
BASE = Entry("glibc", (1.0,) * 6)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(shown: Report) -> list[str]:
    file = io.StringIO()
    text.write(shown, file)
    return file.getvalue().splitlines()


def small(*entries: Entry, cases: int = 1) -> Comparison:
    return Comparison("wall time", "s", "glibc", tuple(Case(f"case {number}", entries) for number in range(cases)))


# ---- Rows and columns ----------------------------------------------------------------------------------------------


def test_one_case_has_a_row_for_each_allocator() -> None:
    shown = grid.of(small(BASE, FASTER))
    assert shown.columns == ("allocator", "median", "scatter", "ratio", "interval", "verdict")
    assert [cell.text for cell in shown.rows[0]] == ["glibc", "1.00 s", "0.0 %", "baseline", "", ""]
    assert [cell.text for cell in shown.rows[1]][3:] == ["0.900", "0.880 to 0.920", "better"]


def test_two_allocators_have_a_row_for_each_case() -> None:
    shown = grid.of(small(BASE, FASTER, cases=2))
    assert shown.columns == ("", "glibc", "hakmem", "ratio", "interval", "verdict")
    assert [cell.text for cell in shown.rows[1]] == [
        "case 1",
        "1.00 s",
        "900.0 ms",
        "0.900",
        "0.880 to 0.920",
        "better",
    ]


def test_more_are_a_matrix_whose_signs_stand_for_verdicts() -> None:
    shown = grid.of(small(BASE, FASTER, SLOWER, SAME, cases=2))
    assert shown.columns == ("", "glibc", "hakmem", "jemalloc", "mimalloc")
    assert [cell.text for cell in shown.rows[0]] == ["case 0", "1.00 s", "0.90 +", "1.20 -", "1.00"]
    assert [cell.strength for cell in shown.rows[0]] == [0, 0, 2, 3, 0]
    every = grid.every_interval(small(BASE, FASTER, SLOWER, SAME, cases=2))
    assert len(every.rows) == 6 and every.rows[0][4].text == "0.880 to 0.920"


def test_in_a_matrix_only_what_is_shown_to_be_no_difference_has_no_sign() -> None:
    every = [replace(SAME, name=verdict.value, verdict=verdict) for verdict in Verdict]
    cells = grid.of(small(BASE, *every, cases=2)).rows[0]
    assert [cell.verdict for cell in cells if re.fullmatch(r"[\d.]+", cell.text)] == [Verdict.NO_DIFFERENCE]


def test_an_allocator_without_figures_keeps_its_place() -> None:
    failed = Comparison("wall time", "s", "glibc", (Case("a", (BASE, FASTER, SLOWER)), Case("b", (BASE, FASTER))))
    assert [cell.text for cell in grid.of(failed).rows[1]] == ["b", "1.00 s", "0.90 +", "-"]


def test_a_baseline_without_figures_leaves_medians() -> None:
    lost = Comparison("wall time", "s", "glibc", (Case("a", (Entry("hakmem", (0.5,)),)),))
    assert [cell.text for cell in grid.of(lost).rows[0]][:4] == ["glibc", "-", "-", "baseline"]
    assert [cell.text for cell in grid.of(lost).rows[1]][:4] == ["hakmem", "500.0 ms", "-", "-"]


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Interval(0.9, 0.88, 0.92), ("0.900", "0.880 to 0.920")),
        (Interval(0.99957, 0.9994, 0.9998), ("0.9996", "0.9994 to 0.9998")),
        (Interval(1.004, 1.0002, 1.009), ("1.0040", "1.0002 to 1.0090")),
        (Interval(1.0002, 0.9999, 1.0004), ("1.000", "1.000 to 1.000")),
        (Interval(0.5, 0.0, float("inf")), ("0.500", "-")),
    ],
)
def test_what_differs_from_one_does_not_read_as_one(ratio: Interval, said: tuple[str, str]) -> None:
    assert (grid.ratio_text(ratio), grid.interval_text(ratio)) == said


# ---- Text ----------------------------------------------------------------------------------------------------------


def test_plain_text() -> None:
    assert plain(report(small(BASE, FASTER), EFFECTS)) == [
        "python3 script.py",
        "hakmem against glibc, wall time: no difference",
        "failed: case 2 on tcmalloc: killed by signal 11",
        "",
        "wall time: less is better; medians of 6 rounds; ratios to glibc",
        "allocator    median  scatter     ratio        interval  verdict",
        "glibc        1.00 s    0.0 %  baseline",
        "hakmem     900.0 ms    0.0 %     0.900  0.880 to 0.920   better",
        "",
        "effects",
        "switch      factor",
        "K1           1.035",
        "K1 with K2   0.844",
        "Corrected for 3.",
        "Not every run printed the same.",
        "",
        "Some CPU, 2 cores; load 0.50 before, 0.60 after; 2026-01-02 03:04 UTC",
        "record 2026-01-02-sample",
    ]


@pytest.mark.parametrize("name", REPORTS)
def test_plain_text_has_neither_colours_nor_cuts(name: str) -> None:
    lines = plain(REPORTS[name])
    assert not any("\x1b" in line or "\N{HORIZONTAL ELLIPSIS}" in line for line in lines)


def test_a_terminal_gets_wide_tables_in_parts_and_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in {"TERM": "xterm-256color", "COLUMNS": "80"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.delenv("NO_COLOR", raising=False)
    file = Terminal()
    text.write(report(comparison(12, 3), command="", summary=(), failures=()), file)
    assert "\x1b[" in file.getvalue()
    lines = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()
    rows = [line for line in lines if not line.startswith("Ratios to")]  # which the terminal wraps
    assert max(map(len, rows)) <= 80
    assert sum("case 1" in line for line in lines) > 1
    assert all(sum(name in line for line in lines) >= 1 for name in NAMES)


def test_markup_in_names_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = report(Table("[red]t[/]", ("[b]c",), (("[/x]",),)), title="[bold]a", summary=("[/]b",), failures=("[c]",))
    lines = plain(odd)
    assert lines[:3] == ["[bold]a", "[/]b", "failed: [c]"] and "[/x]" in lines and "[red]t[/]" in lines


# ---- Markdown ------------------------------------------------------------------------------------------------------


def test_markdown() -> None:
    shown = markdown.render(report(small(BASE, FASTER, SLOWER, cases=2), course(), EFFECTS))
    assert "| case 0 | 1.00 s | 0.90 + | 1.20 - |" in shown
    assert "| glibc | 104.0 MiB |" not in shown and "| glibc |" in shown
    assert "| switch | factor |\n| --- | ---: |" in shown
    assert shown.endswith("```\nhakmem compare -n 10 -- python3 script.py\n```\n")


def test_what_markdown_has_in_one_line_is_in_one_line_whatever_its_name() -> None:
    table = Table("a\n# b", ("", "x"), (), ("c\n# d",))
    named = replace(report(table), title="e\n# f", summary=("g\n# h",), failures=("i\n# j",))
    heads = [line for line in markdown.render(named).splitlines() if line.startswith("#")]
    assert heads == ["# e # f", "## a # b"]


def test_markdown_tables_are_whole_whatever_the_cells_hold() -> None:
    shown = markdown.table(("a", "b"), [("x | y", "two\nlines"), ("\\", "")])
    assert shown.splitlines()[2:] == ["| x \\| y | two lines |", "| \\\\ |  |"]


@pytest.mark.parametrize("name", REPORTS)
def test_rows_of_a_markdown_table_are_equally_wide(name: str) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", markdown.render(REPORTS[name]), flags=re.MULTILINE)
    assert all(len({line.count("|") for line in table.splitlines()}) == 1 for table in tables)


# ---- HTML ----------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Whether elements are closed in order, and what they refer to."""

    EMPTY = {"meta", "br", "link", "img", "input"}

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.words: list[str] = []
        self.tags: list[str] = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.EMPTY:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name == "aria-labelledby":
                self.targets += (value or "").split()
            elif name in ("href", "xlink:href", "src"):
                assert value and value.startswith("#")
                self.targets.append(value[1:])

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


PAGES: dict[str, str] = {}


def page_of(name: str) -> str:
    if name not in PAGES:
        PAGES[name] = html.render(REPORTS[name])
    return PAGES[name]


SMALL = [name for name in REPORTS if name != "everything"]


@pytest.mark.parametrize("name", SMALL)
def test_a_page_is_whole_and_needs_nothing_else(name: str) -> None:
    shown = page_of(name)
    page = Page(shown)
    assert len(page.ids) == len(set(page.ids))
    assert set(page.targets) <= set(page.ids)
    assert set(re.findall(r"url\((.*?)\)", shown)) <= {f"#{name}" for name in page.ids}
    assert "@import" not in shown and "<script" not in shown and "http" not in shown


@pytest.mark.parametrize("name", SMALL)
def test_every_plot_has_an_alternative_in_words(name: str) -> None:
    page = Page(page_of(name))
    assert page.tags.count("svg") == page.tags.count("desc") == page.tags.count("title") - 1
    assert len([target for target in page.targets if target.endswith("-text")]) == page.tags.count("svg")


@pytest.mark.parametrize("name", SMALL)
def test_every_colour_is_the_style_sheets_in_light_and_dark(name: str) -> None:
    shown = page_of(name)
    light, dark = shown.partition("prefers-color-scheme: dark")[::2]
    used = set(re.findall(r"var\(--([\w-]+)\)", shown)) - {"font", "code"}
    for half in (light, dark):
        assert used <= set(re.findall(r"--([\w-]+): #", half))
    for plot in re.findall(r"<svg.*?</svg>", shown, flags=re.DOTALL):
        assert set(re.findall(r"(?:fill|stroke): ?(#\w+)", plot)) == set()


def test_a_page_is_the_same_each_time() -> None:
    assert html.render(REPORTS["command"]) == page_of("command")


@pytest.mark.parametrize("cases", [1, 2])
@pytest.mark.parametrize("nasty", ["<script>1</script>&\"'", "sh -c '$A_^ $B'"])
def test_names_are_text_and_not_markup(nasty: str, cases: int) -> None:
    entries = (Entry(nasty, (1.0,) * 6), Entry(nasty + "2", (1.1,) * 6, Interval(1.1, 1.0, 1.2), Verdict.NO_DIFFERENCE))
    named = tuple(Case(nasty + str(number), entries) for number in range(cases))
    one = Comparison(nasty, "s", nasty, named, notes=(nasty,))
    shares = Shares(nasty, "B", 2e6, (Share(nasty, 2e6, parts=((nasty, 1e6),)),))
    lines = Course(nasty, "s", (Line(nasty, (0.0, 1.0), (1.0, 2.0)),), nasty)
    parts = (one, shares, lines)
    shown = html.render(report(*parts, title=nasty, command=nasty, machine={nasty: nasty}, records=(nasty,)))
    assert "<script" not in shown and nasty in "".join(Page(shown).words)


def test_every_run_is_a_dot_and_a_point_of_its_line() -> None:
    section = comparison(3, 1, rounds=7)
    plot = plots.runs(section, section.cases[0], "p")
    assert plot.count("<use") == 2 * 3 * 7


@pytest.mark.parametrize("name", ["one round", "one allocator", "one value", "equal values"])
def test_no_plot_is_empty(name: str) -> None:
    drawn = re.findall(r"<svg.*?</svg>", page_of(name), flags=re.DOTALL)
    assert drawn and all("<use" in plot for plot in drawn)


def test_without_a_difference_that_is_shown_a_mark_is_hollow() -> None:
    plot = plots.ratios(small(BASE, SAME), "p")
    assert "var(--surface)" in plot and "var(--better)" not in plot
    plot = plots.ratios(small(BASE, FASTER, SLOWER), "p")
    assert "var(--surface)" not in plot and "fill: var(--better)" in plot and "fill: var(--worse)" in plot


def test_sides_of_a_plot_of_ratios_follow_the_metric() -> None:
    less, more = (plots.ratios(memory(less_is_better=better), "p") for better in (True, False))
    assert "\N{LEFTWARDS ARROW} better" in less and "worse \N{RIGHTWARDS ARROW}" in less
    assert "\N{LEFTWARDS ARROW} worse" in more and "better \N{RIGHTWARDS ARROW}" in more


def test_a_large_comparison_shows_the_mean_and_hides_no_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "runs", lambda *_: '<svg class="plot"></svg>')
    shown = html.render(REPORTS["everything"])
    assert "geometric mean, hakmem" in shown and "case 1, hakmem" not in shown
    assert shown.count('class="matrix"') == 1
    assert len(re.findall(r"<td[^>]*>\d\.\d+ to \d\.\d+</td>", shown)) == 31 * 11


def test_a_line_goes_through_its_values() -> None:
    plot = plots.course(Course("RSS", "B", (Line("glibc", (0, 10, 30, 40), (1e6, 2e6, 2e6, 4e6)),)), "p")
    path = re.search(r'd="(M [^"]*)"[^>]*stroke: var\(--series-0\)', plot)
    assert path is not None
    x, y = zip(*(map(float, point.split()) for point in re.findall(r"[\d.]+ [\d.]+", path[1])), strict=True)
    assert [(at - x[0]) / (x[3] - x[0]) for at in x] == pytest.approx([0, 0.25, 0.75, 1])
    assert [(at - y[0]) / (y[3] - y[0]) for at in y] == pytest.approx([0, 1 / 3, 1 / 3, 1])


def test_labels_at_lines_ends_keep_apart() -> None:
    places = plots._apart([5.0, 5.1, 5.2, 0.0], least=1.0, high=5.5)
    ordered = sorted(places)
    assert all(after - before >= 1 - 1e-9 for before, after in zip(ordered, ordered[1:], strict=False))
    assert max(places) <= 5.5 and places[0] < places[1] < places[2]


def test_nothing_is_drawn_before_it_is_asked_for() -> None:
    """matplotlib takes longer to import than the command line may take to start."""
    ask = "import sys, hakmem.cli, hakmem.report.text; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", ask]).returncode == 0
