"""The contest: who is ranked where is arithmetic on one record, and a loss is told as a win is."""

from __future__ import annotations

import datetime
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from hakmem import catalogue, claims, cli, contest, ledger, native, peers, tree
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.ledger import FailedRun, Record
from sample_record import Values, record

ROUNDS = 8


def rows(title: str, text: str) -> list[list[str]]:
    """Cells of the table below a heading, without those of the head."""
    part = text.partition(f"### {title}\n\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines()[2:]]


def figures(rate: dict[str, dict[str, float]], mib: dict[str, dict[str, float]]) -> Values:
    """Throughput and peak RSS by case and allocator, the same in each round but for a little."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for metric, table, unit in (("operations_per_s", rate, 1e6), ("peak_rss_bytes", mib, 2.0**20)):
        for case, of_case in table.items():
            for name, amount in of_case.items():
                values[case, name, metric] = [amount * unit * (1 + number / 1e4) for number in range(ROUNDS)]
    return values


FIGURES = figures(
    {"a": {"hakmem": 4, "glibc": 1, "x": 2}, "b": {"hakmem": 1, "glibc": 1, "x": 4}},
    {"a": {"hakmem": 2, "glibc": 1, "x": 3}, "b": {"hakmem": 1, "glibc": 2, "x": 3}},
)


def shown(values: Values = FIGURES, **changes: object) -> str:
    return contest.markdown(record(values, kind=contest.KIND, **changes), lambda name: f"{name}.json")


def test_ranks_have_wins_and_losses_of_all() -> None:
    text = shown()
    assert rows("Time: ranks", text) == [
        ["1", "x", "0.354 (0.354-0.354)", "1", "0", "a: 2.000 (2.000-2.000)"],
        ["2", "*hakmem*", "0.500 (0.500-0.500)", "1", "1", "b: 4.000 (4.000-4.000)"],
        ["3", "glibc", "1.000 (1.000-1.000)", "0", "1", "a: 4.000 (4.000-4.000)"],
    ]
    assert [row[1] for row in rows("Peak RSS: ranks", text)] == ["*hakmem*", "glibc", "x"]


def test_cases_are_to_the_best_of_each() -> None:
    assert rows("Time: every case", shown()) == [["a", "2.00", "**1.00**", "4.00"], ["b", "**1.00**", "4.00", "4.00"]]


def test_what_the_rounds_do_not_tell_from_the_best_is_bold_too() -> None:
    values = {**FIGURES}
    values["a", "x", "operations_per_s"] = [4e6 * (0.9 if number % 2 else 1.1) for number in range(ROUNDS)]
    (of_a, _) = rows("Time: every case", shown(values))
    assert of_a[1].startswith("**") and of_a[2].startswith("**") and of_a[3] == "4.00"


def test_who_is_shown_to_be_behind_does_not_look_like_the_best() -> None:
    behind = [3.99e6 * (1 + number / 1e4) for number in range(ROUNDS)]
    (of_a, _) = rows("Time: every case", shown({**FIGURES, ("a", "x", "operations_per_s"): behind}))
    assert of_a == ["a", "1.003", "**1.00**", "4.00"]


def test_rounds_that_tell_nobody_from_the_best_are_no_contest() -> None:
    few = {key: values[:5] for key, values in FIGURES.items()}
    with pytest.raises(LabError, match="too few rounds: 5 of at least 6"):
        shown(few)


def test_a_case_that_the_baseline_failed_is_in_no_mean_and_in_no_number_of_cases() -> None:
    text = shown({key: some for key, some in FIGURES.items() if key[:2] != ("b", "glibc")})
    assert {row[1]: row[2] for row in rows("Time: ranks", text)} == {
        "*hakmem*": "0.250 (0.250-0.250)",
        "x": "0.500 (0.500-0.500)",
        "glibc": "1.000 (1.000-1.000)",
    }
    assert text.count("Geometric mean over 1 cases, and in how many of all 2 it is best and last.") == 2


def test_with_what_intervals_hold_is_told() -> None:
    assert shown().count("Each interval holds with 95%. So of many verdicts one may be by chance.") == 2


def test_who_failed_a_case_is_ranked_over_the_others_and_named() -> None:
    values = {key: some for key, some in FIGURES.items() if key[:2] != ("b", "x")}
    text = shown(values, failures=[FailedRun(case="b", variant="x", round=1, reason="was killed by signal 11")])
    ranks = {row[1]: row[2] for row in rows("Time: ranks", text)}
    assert ranks["x (1 cases)"] == "0.500 (0.500-0.500)"
    assert ["b", "**1.00**", "failed", "**1.00**"] in rows("Time: every case", text)
    assert "- b under x: was killed by signal 11" in text


def test_who_failed_every_case_has_no_rank() -> None:
    values = {key: some for key, some in FIGURES.items() if key[1] != "x"}
    facts = record(FIGURES).variants
    assert [row[1] for row in rows("Time: ranks", shown(values, variants=facts))] == ["*hakmem*", "glibc"]


# ---- The page --------------------------------------------------------------------------------------------------------

PAGE = "# Contest\n\n<!-- contest: newest -->\n<!-- end -->\n"


def call(*words: str) -> object:
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--contest", *words])
    return ended.value.code


def keep(tree: Path, **changes: object) -> Record:
    path = ledger.keep(record(FIGURES, kind=contest.KIND, **changes), tree / "evidence")
    return ledger.load(path)


def test_the_page_is_of_the_newest_record_that_may_be_cited(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert claims.write(tmp_path) == ["page.md"] and "wasn't measured yet" in page.read_text()
    assert claims.audit(tmp_path) == []
    old = keep(tmp_path)
    assert "not what the record gives" in str(claims.audit(tmp_path)[0])
    assert claims.write(tmp_path) == ["page.md"] and old.id in page.read_text() and claims.audit(tmp_path) == []
    later = record().date.replace(year=2027)
    keep(tmp_path, date=later, clean=False)
    keep(tmp_path, date=later, size="sanity")
    keep(tmp_path, date=later, interrupted=True)
    assert claims.write(tmp_path) == []
    new = keep(tmp_path, date=later)
    assert claims.write(tmp_path) == ["page.md"] and new.id in page.read_text() and old.id not in page.read_text()


@pytest.mark.forms
def test_one_command_makes_record_and_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    msgspec.json.Decoder(ledger.Record)  # looks its annotations up now, before datetime is another
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "contest.md").write_text(PAGE)
    monkeypatch.setattr(ledger, "folder", lambda: tmp_path / "evidence")
    monkeypatch.setattr(tree, "checked_out", lambda: ("0" * 40, True))
    monkeypatch.setattr(tree, "is_built", lambda: True)
    at_once = datetime.datetime(2026, 11, 27, tzinfo=datetime.timezone.utc)  # both contests
    still = SimpleNamespace(datetime=SimpleNamespace(now=lambda _: at_once), timezone=datetime.timezone)
    monkeypatch.setattr(ledger, "datetime", still)
    glibc = Allocator("glibc", None)
    monkeypatch.setattr("hakmem.allocators.installed", lambda: [Allocator("hakmem", native.library()), glibc])
    assert call("-n", "6", "bulk 1k") == 0
    said = capsys.readouterr().err
    assert "hakmem: wrote docs/contest.md" in said
    (path,) = (tmp_path / "evidence").glob("*-contest-*.json")
    kept = ledger.load(path)
    assert kept.kind == contest.KIND and list(kept.variants) == ["hakmem", "glibc"]
    part, own, other = kept.notes
    assert part.startswith(f"{contest.PART}2 of {2 + len(peers.PEERS)} allocators, 1 of ")
    assert own.startswith("hakmem: ") and other.startswith("glibc: ")
    page = (tmp_path / "docs" / "contest.md").read_text()
    assert kept.id in page and "| 1 | " in page and claims.audit(tmp_path) == []
    assert page.startswith(PAGE.partition("newest -->")[0]) and page.index(f"**{part}.**") < page.index("ranks")
    looks = iter([True, False])  # somebody changes the tree before the first run
    with monkeypatch.context() as changing:
        changing.setattr(tree, "checked_out", lambda: ("0" * 40, next(looks)))
        assert call("-n", "6", "bulk 1k") == 0
    said = capsys.readouterr().err
    assert "wrote docs" not in said and "docs/contest.md has no word of it: the record " in said
    assert "is of a tree with changes" in said and (tmp_path / "docs" / "contest.md").read_text() == page
    at_once = at_once.replace(year=2025)  # the clock was set back
    assert call("-n", "6", "bulk 1k") == 0
    said = capsys.readouterr().err
    assert f"docs/contest.md has no word of it: the record {kept.id} has a later date" in said


def test_a_case_of_short_runs_is_left_out_and_named() -> None:
    of_two: Values = {
        (case, name, metric): [base * factor + number for number in range(6)]
        for case in ("long", "short")
        for name, factor in (("hakmem", 1.0), ("glibc", 2.0))
        for metric, base in (("cpu_s", 100.0), ("peak_rss_bytes", 1e6))
    }
    page = contest.markdown(record(of_two, kind=contest.KIND, short_cases=["short"]), str)
    assert "**Left out, of too short runs: short.**" in page and page.count("| short |") == 0
    assert page.count("| long |") == 2 and "Geometric mean over 1 cases" in page


def test_a_record_of_all_is_no_part() -> None:
    every = ("hakmem", "glibc", *peers.PEERS)
    assert contest.part(every, catalogue.usual()) == []
    (without,) = contest.part(every, catalogue.usual()[1:])
    there = len(catalogue.usual())
    assert without == f"{contest.PART}{there - 1} of {there} cases"


@pytest.mark.parametrize("words", [("--with", "glibc,hakmem"), ("--baseline", "hakmem"), ("--sanity",)])
def test_nothing_is_picked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("hakmem.commands.suites.compare", lambda *_, **__: pytest.fail("measures"))
    assert call(*words, "hot") == 2
    said = capsys.readouterr().err
    assert "it takes no --with, --baseline or --sanity" in said and said.count("\n") == 1


def test_rounds_that_are_too_few_for_a_page_are_refused_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tree, "checked_out", lambda: ("0" * 40, True))
    monkeypatch.setattr(tree, "is_built", lambda: True)
    monkeypatch.setattr("hakmem.commands.suites.compare", lambda *_, **__: pytest.fail("measures"))
    assert call("-n", "5", "hot") == 2
    said = capsys.readouterr().err
    assert "too few rounds: 5 of at least 6" in said and said.count("\n") == 1


@pytest.mark.parametrize("clean", [False, None])
def test_a_tree_with_changes_is_refused_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], clean: bool | None
) -> None:
    monkeypatch.setattr(tree, "checked_out", lambda: ("0" * 40, clean))
    monkeypatch.setattr("hakmem.commands.suites.compare", lambda *_, **__: pytest.fail("measures"))
    assert call("hot") == 2
    said = capsys.readouterr().err
    assert "this tree has changes" in said and said.count("\n") == 1


def test_so_is_a_library_of_another_tree(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(tree, "checked_out", lambda: ("0" * 40, True))
    monkeypatch.setattr(tree, "is_built", lambda: False)
    monkeypatch.setattr("hakmem.commands.suites.compare", lambda *_, **__: pytest.fail("measures"))
    assert call("hot") == 2
    assert "is older than its sources" in capsys.readouterr().err


def test_an_installed_package_has_no_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(native, "checkout", lambda: None)
    assert call() == 2
    assert "--contest writes a page of a checkout of hakmem" in capsys.readouterr().err
