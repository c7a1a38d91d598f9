from __future__ import annotations

import errno
import json
import os
import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hakmem import claims, comparison, figures, ledger, pictures, uncited
from hakmem.errors import LabError
from hakmem.ledger import FailedRun, VariantFacts
from hakmem.report import chart
from sample_record import MACHINE, VALUES, Values, keep_unsigned, record

ID = "2026-01-02-sample"
RATIO = 'ratio("mixed 400", hakmem, glibc, operations_per_s)'
LINK = f"([record](evidence/{ID}.json))"
TABLE = "<!-- table: sample -->\n<!-- end -->\n"
DEFINITION = f"""[sample]
record = "{ID}"
[sample.rows]
"random" = "mixed 400"
[sample.columns]
"throughput" = "ratio(case, hakmem, best, operations_per_s)"
"peak RSS" = "median(case, hakmem, peak_rss_bytes)"
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    keep_unsigned(record(), tmp_path / "evidence")
    return tmp_path


def findings(tree: Path, text: str, name: str = "README.md") -> list[str]:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return [str(finding) for finding in claims.audit(tree)]


def define(tree: Path, definition: str, page: str = "README") -> None:
    path = tree / "docs" / "tables" / f"{page}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(definition)


# ---- What counts as a figure -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "It reaches 22.6 M ops/s.",
        "It reaches 25.1M operations per second on this machine.",
        "10-11 M at most.",
        "It does 107,054,320 operations/s.",
        "Up to 1.5 x the memory.",
        "It is 3x faster.",
        "About 1.8× jemalloc.",
        "Twice as fast as glibc.",
        "ten times less memory",
        "a 4-fold gain",
        "-12 % page faults",
        "costs 20 percent",
        "malloc takes 5 ns.",
        "a refill of 3.5 us",
        "172,000 faults are left.",
        "16 instructions",
        "The median was 1.065 (0.9-1.3).",
        "Ratio to mimalloc: 0.71.",
        "Its peak is 35 MiB.",
        "RSS falls to 12 MB after it.",
        "This took 12 s.",
        "a latency of 4 ms",
        "- throughput, in a list: 5 %",
        "# 2 x in a heading",
        "```\nThroughput = 107054320 operations per second\n```",
        "    indented: 100 M/s",
        "`1.9 x` in code",
        "| | throughput |\n|---|---|\n| hot | 105 |",
        "| case | value |\n|---|---|\n| peak RSS | 12 |",
        "<!-- a comment\n --> and then 5 ns",
        "<div>5 ns</div>",
        "[5 % faster](https://example.com)",
        "25.1 million operations a second",
        "It does 3 thousand requests each second.",
        "twice the throughput of glibc",
        "double the rate",
        "It takes half of glibc's time.",
        "with a third of the peak",
        "two thirds of their page faults",
        "a thousand requests per second",
        "hakmem needs 35 MiB where glibc needs more.",
        "40 requests/s",
        "It writes 3 GiB/s.",
        "ten times faster than before",
        "several times as slow",
        "twenty percent of it",
        "half as much memory",
        "latency has been cut in half",
        "It halves peak memory.",
        "It doubles the throughput.",
        "an order of magnitude",
        "3 times glibc's peak",
        "half of jemalloc",
        "12 % fewer page faults",
        "a refill of five microseconds",
        "5 nanoseconds",
        "1.2 million page faults",
        "It saves 5 percent.",
        "It costs 12 milliseconds.",
        "Its peak is 35 megabytes.",
        "It needs 40 MiB where glibc needs 80 MiB.",
        "Half of what glibc needs is enough.",
        "It is faster by a factor of three.",
        "a speed-up of 4",
        "halving the memory",
        "Memory was halved.",
        "The peak fell to a third.",
        "10 million mallocs/second",
        "25 million allocs per second",
        "1e6 ops/s",
        "10k QPS",
        "10k req/s",
        "one third faster",
        "hundred times faster",
        "It is **12** times faster.",
        "*Twice* the ***throughput***.",
        "_Half_ the __memory__ of jemalloc",
        "25&nbsp;million operations a second",
        "It is 3 &times; the speed.",
        "25 <b>million</b> operations a second",
        "12\\% slower",
        "[twice](https://example.com) the throughput",
        "> twice\n> the throughput",
        "Its throughput is twice that of glibc.",
        '<img alt="ten times faster" src="x">',
        "![ten times faster](x.svg)",
        '[a page](https://example.com "ten times faster")',
        "slower by a\nquarter",
        "Startup drops from 12 s to 7 s.",
        "The build goes from 12 s down to 7 s.",
        "It shrinks from 4 GiB to 1 GiB.",
        "The run finishes in 7 s instead of 12 s.",
        "It needs 40 MiB where it needed 80 MiB.",
        "12 s → 7 s",
        "It runs in 1.2 s against 2.4 s on glibc.",
        "It ends after 1.2 s vs. 2.4 s.",
        "It holds 40 MiB versus 80 MiB.",
        "It ends within 7 s, compared to 12 s.",
        "It holds 40 MiB at the end, against 80 MiB.",
        "It runs for 7 s in all instead of 12 s.",
        "case | peak RSS\n--- | ---\nhot | 12",
        "case | peak RSS |\n:-- | --: |\nhot | 12 |",
        "| case | peak RSS\n|---|---\n| hot | 12",
        "> case | peak RSS\n> --- | ---\n> hot | 12",
        "> | case | value |\n> |---|---|\n> | peak RSS | 12 |",
        "Throughput rises from 12 to 25.",
        "Memory falls to 40 MiB.",
        "1/3 of the memory",
        "one-third the memory",
        "⅓ of the memory",
    ],
)
def test_a_figure_without_a_record_is_found(tree: Path, text: str) -> None:
    found = findings(tree, f"# Title\n\n{text}\n")
    assert found and all(": a figure that no record backs: " in line for line in found)
    assert all(line.startswith("README.md:") for line in found)


@pytest.mark.parametrize(
    "text",
    [
        "A slab is 64 KiB, a SuperSlab 2 MiB, a range 64 GiB.",
        "The decay period is 1000 ms, and 10 s at most.",
        "Sizes of 16 to 1040 B, blocks of 2048 bytes.",
        "Linux on x86-64 and aarch64; gcc 11, clang 14, CMake 3.25, Python 3.10, Ubuntu 22.04.",
        "What was measured on mimalloc 2.0.9 and tcmalloc (gperftools 2.10).",
        "`libhakmem.so.1.0.1.0` and C++17, C23, `-O2`, 0x7f3c5a400040.",
        "1. first\n2. second",
        "See issue 12 and 2026-01-02.",
        "| option | default |\n|---|---|\n| `HAKMEM_PREWARM` | 0 |",
        "[a page](https://example.com/5%25/10x)",
        "sixteen instructions",
        "A matrix of 2 x 2 settings.",
        "half of the block, and a third of a page",
        "the last one is tried twice",
        "two slow paths in a row, and twice as many slots",
        "It ends after ten hours.",
        "glibc maps objects from 128 KiB on.",
        "Blocks of 64 KiB to 1 MiB; periods from 5 s to 60 s.",
        "`HAKMEM_GUARD=1/2`, a ratio in a path: a/1/2/b",
        "option | default\n--- | ---\n`HAKMEM_PREWARM` | 0",
        "The peak | 12\n\n---\n",
        "*Twice* it is asked, and _three_ times it answers; `a * b * c`, snake_case_names",
    ],
)
def test_what_is_no_figure_needs_no_marker(tree: Path, text: str) -> None:
    assert findings(tree, f"# Title\n\n{text}\n") == []


def test_the_line_of_a_finding_is_the_figures(tree: Path) -> None:
    text = "one\ntwo\n\n| a | throughput |\n|---|---|\n| b | c |\n| hot | 7 |\n\n**last\nline**: **5** ns\n"
    assert findings(tree, text) == [
        "README.md:7: a figure that no record backs: 7",
        "README.md:10: a figure that no record backs: 5 ns",
    ]


def test_what_is_no_page_in_text_is_told_in_one_line(tree: Path) -> None:
    (tree / ".#README.md").symlink_to("somebody@host.1234")  # as Emacs locks a file
    assert findings(tree, "text") == []
    (tree / "latin.md").write_bytes(b"caf\xe9")
    with pytest.raises(LabError, match="^latin.md: no text in UTF-8$"):
        claims.audit(tree)


def test_a_page_for_which_there_is_no_room_stays_as_it_was(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    page = f"x <!-- figure: {ID} {RATIO} --><!-- end -->\n"
    (tree / "README.md").write_text(page)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        claims.write(tree)
    assert (tree / "README.md").read_text() == page


def test_every_markdown_file_is_read_but_what_is_built_or_hidden(tree: Path) -> None:
    shown = (".github/a.md", "CHANGELOG.md", "bench/README.md", "docs/build/b.md", "docs/decisions/1.md")
    for name in (*shown, "build/x.md", ".venv/x.md"):
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("5 ns\n")
    found = {str(finding).partition(":")[0] for finding in claims.audit(tree)}
    assert found == {*shown}


# ---- What is no document ---------------------------------------------------------------------------------------------

SAID = ": a figure of performance where no record can back it: "
PLACES = {
    "src/a.c": "int x; /* one\n * {} */\n",
    "src/a.h": "// one\n// {}\nint x;\n",
    "lab/a.py": '"""One.\n\n{}\n"""\n',
    "lab/b.py": 'def f() -> None:\n    """{}"""\n',
    "lab/c.py": "x = 1  # {}\n",
    "pyproject.toml": 'description = "{}"\n',
    "notes.txt": "{}\n",
    "CMakeLists.txt": "# {}\n",
    "scripts/a.sh": "# {}\n",
    "dev": "# {}\n",
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    "said",
    ["25.1 million operations a second", "ten times faster", "twice the throughput", "5 % slower", "takes about 5 ns"],
)
def test_a_claim_outside_of_documents_is_found(tree: Path, name: str, said: str) -> None:
    text = PLACES[name].format(f"It has {said}.")
    line = next(number for number, one in enumerate(text.splitlines(), start=1) if said in one)
    assert findings(tree, text, name) == [f"{name}:{line}{SAID}{said}"]


@pytest.mark.parametrize("name", PLACES)
def test_a_claim_over_the_end_of_a_line_is_found(tree: Path, name: str) -> None:
    gap = {"a.h": "\n// ", "a.c": "\n * ", "a.py": "\n", "b.py": "\n    "}.get(name.rpartition("/")[2], " ")
    (found,) = findings(tree, PLACES[name].format(f"Twice{gap}the throughput."), name)
    assert found.endswith("Twice the throughput")


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    "said",
    [
        "A slab is 64 KiB, kept for 1000 ms; 12.5 % of it is free.",
        "Twice as many slots, in ten steps.",
        "It ends within two slow periods, half of the time.",
        "Sixteen instructions; 16 instructions.",
    ],
)
def test_constants_of_the_design_are_no_claims(tree: Path, name: str, said: str) -> None:
    assert findings(tree, PLACES[name].format(said), name) == []


def test_what_a_program_prints_or_looks_for_is_no_remark(tree: Path) -> None:
    assert findings(tree, 'char *s = "ten times faster"; // "quoted\nchar c = \'"\';\n', "src/a.c") == []
    assert findings(tree, 'PATTERN = "ten times faster"\nNOTE = """5 ns, 3 M ops/s"""\n', "lab/a.py") == []
    assert findings(tree, "a = b'\\xff'\n", "bench/data.json") == []


# ---- Figures and tables from records ---------------------------------------------------------------------------------


def test_write_fills_in_what_the_record_says_and_then_the_audit_passes(tree: Path) -> None:
    define(tree, DEFINITION)
    text = f"Faster: x <!-- figure: {ID} {RATIO} -->?<!-- end --> {LINK}.\n\n{TABLE}"
    assert len(findings(tree, text)) == 2
    assert claims.write(tree) == ["README.md"]
    written = (tree / "README.md").read_text()
    assert "-->1.100 (1.099-1.101)<!-- end -->" in written
    assert "| random | 1.100 (1.099-1.101) | 2.00 MiB |" in written
    assert "8 interleaved rounds on 2026-01-02; Some CPU, 2 cores, kernel 6.1" in written
    assert f" ([record](evidence/{ID}.json)).\n" in written
    assert claims.audit(tree) == []
    assert claims.write(tree) == []


def test_a_mean_over_all_cases_and_what_is_worse(tree: Path) -> None:
    definition = DEFINITION.replace("[sample.columns]", '"mean" = "*"\n[sample.columns]')
    define(tree, definition.replace("median(case, hakmem,", "ratio(case, hakmem, best,"))
    findings(tree, TABLE)
    claims.write(tree)
    written = (tree / "README.md").read_text()
    assert "| random | 1.100 (1.099-1.101) | **2.000 (2.000-2.000)** |" in written
    assert "| mean | 1.483 (1.483-1.484) | **1.414 (1.414-1.414)** |" in written


def test_where_there_is_no_interval_what_every_round_says_is_worse(tmp_path: Path) -> None:
    times = {"hakmem": [1.2, 1.3, 1.1], "quick": [1.0, 1.0, 1.0], "same": [1.25, 1.25, 1.25]}
    keep_unsigned(record({("hot", name, "wall_s"): of for name, of in times.items()}), tmp_path / "evidence")
    columns = "".join(f'"{name}" = "ratio(case, hakmem, {name}, wall_s)"\n' for name in ("quick", "same"))
    define(tmp_path, f'[sample]\nrecord = "{ID}"\nrows = {{ hot = "hot" }}\n[sample.columns]\n{columns}')
    findings(tmp_path, TABLE)
    claims.write(tmp_path)
    written = (tmp_path / "README.md").read_text()
    assert "| hot | **1.198** | 0.958 |" in written
    assert "too few for intervals; bold is what was worse in every one" in written


def test_a_cell_of_a_case_that_failed_says_so(tmp_path: Path) -> None:
    values = {("hot", "hakmem", "wall_s"): [1.0] * 8, ("cold", "hakmem", "wall_s"): [1.0] * 8}
    values |= {("hot", "frail", "wall_s"): [2.0] * 8}
    failure = ledger.FailedRun(case="cold", variant="frail", round=1, reason="out of memory")
    keep_unsigned(record(values, failures=[failure]), tmp_path / "evidence")
    rows = 'rows = { hot = "hot", cold = "cold" }'
    columns = 'columns = { frail = "ratio(case, hakmem, frail, wall_s)" }'
    define(tmp_path, f'[sample]\nrecord = "{ID}"\n{rows}\n{columns}\n')
    findings(tmp_path, TABLE)
    claims.write(tmp_path)
    written = (tmp_path / "README.md").read_text()
    assert "| hot | 0.500 (0.500-0.500) |" in written and "| cold | failed |" in written


def test_the_best_rival_is_no_ceiling(tmp_path: Path) -> None:
    times = {"hakmem": 2.0, "quick": 1.0, "ceiling": 0.5}
    keep_unsigned(record({("hot", name, "wall_s"): [of] * 8 for name, of in times.items()}), tmp_path / "evidence")
    text = f"x <!-- figure: {ID} ratio(hot, hakmem, best, wall_s) -->2.000 (2.000-2.000)<!-- end --> {LINK}"
    assert findings(tmp_path, text) == []


def test_the_best_rival_is_that_of_the_metric(tmp_path: Path) -> None:
    values = {
        ("hot", name, metric): [factor] * 8
        for name, fast, lean in (("hakmem", 3.0, 3.0), ("quick", 4.0, 6.0), ("small", 2.0, 1.5))
        for metric, factor in (("operations_per_s", fast), ("peak_rss_bytes", lean))
    }
    keep_unsigned(record(values), tmp_path / "evidence")
    rivals = {
        "best, operations_per_s": "0.750 (0.750-0.750)",
        "best, peak_rss_bytes": "2.000 (2.000-2.000)",
        "best(quick), peak_rss_bytes": "0.500 (0.500-0.500)",
        "best(quick, small), operations_per_s": "0.750 (0.750-0.750)",
    }
    for words, expected in rivals.items():
        text = f"x <!-- figure: {ID} ratio(hot, hakmem, {words}) -->{expected}<!-- end --> {LINK}"
        assert findings(tmp_path, text) == []


def test_figures_of_several_machines_name_all_of_them() -> None:
    other = msgspec.structs.replace(MACHINE, cpu="another")
    kept = record(rounds=8, machines={"a": MACHINE, "b": other}, blocks=["a", "b"] * 4)
    said = figures.provenance(kept)
    assert MACHINE.cpu in said and "1 x another" in said and "2 machines" in said


def test_a_rival_with_zeros_is_not_the_best(tmp_path: Path) -> None:
    faults = {"hakmem": 2.0, "quick": 1.0, "none": 0.0}
    keep_unsigned(
        record({("hot", name, "major_faults"): [of] * 8 for name, of in faults.items()}), tmp_path / "evidence"
    )
    text = f"x <!-- figure: {ID} ratio(hot, hakmem, best, major_faults) -->2.000 (2.000-2.000)<!-- end --> {LINK}"
    assert findings(tmp_path, text) == []


@pytest.mark.parametrize(
    "claim",
    [
        "hakmem is two and a half times faster than glibc",
        "it is faster by half",
        "hakmem beats glibc by a third",
        "RSS is one sixth of glibc's",
        "it takes a seventh of the time",
        "it serves twice as many requests",
        "it needs nine tenths of the time",
        "it takes 0.93 of jemalloc's time",
        "hakmem is better by a factor of 2.3",
        "a 20-percent gain",
        "memory is down a third",
        "a gain of a fifth",
    ],
)
def test_a_claim_in_words_is_found(tmp_path: Path, claim: str) -> None:
    (found,) = findings(tmp_path, f"{claim}.")
    assert "a figure that no record backs" in found


def test_parts_changes_and_medians(tree: Path) -> None:
    printed = {
        RATIO + ".estimate": "1.100",
        RATIO + ".low": "1.099",
        RATIO + ".high": "1.101",
        RATIO.replace("ratio(", "change("): "+10.0 % (+9.9 to +10.1 %)",
        RATIO.replace("ratio(", "change(") + ".high": "+10.1 %",
        "median(hot, glibc, operations_per_s)": "400.0 M/s",
    }
    for expression, expected in printed.items():
        assert findings(tree, f"x <!-- figure: {ID} {expression} -->{expected}<!-- end --> {LINK}") == []


def test_a_part_that_is_shown_to_differ_does_not_read_as_no_change(tmp_path: Path) -> None:
    times = {"hakmem": [1.0003] * 8, "glibc": [1.0] * 8}
    keep_unsigned(record({("hot", name, "wall_s"): of for name, of in times.items()}), tmp_path / "evidence")
    figure = f"<!-- figure: {ID} change(hot, hakmem, glibc, wall_s).low -->+0.03 %<!-- end -->"
    assert findings(tmp_path, f"x {figure} {LINK}") == []


def test_too_few_rounds_have_no_interval(tmp_path: Path) -> None:
    keep_unsigned(record({key: values[:4] for key, values in VALUES.items()}), tmp_path / "evidence")
    assert findings(tmp_path, f"x <!-- figure: {ID} {RATIO} -->1.100<!-- end --> {LINK}") == []
    (found,) = findings(tmp_path, f"x <!-- figure: {ID} {RATIO}.low -->1.100<!-- end --> {LINK}")
    assert found == f"README.md:1: {ID}: 4 rounds are too few for an interval"


def test_links_are_as_seen_from_the_document(tree: Path) -> None:
    define(tree, DEFINITION, "one")
    findings(tree, TABLE, "docs/decisions/one.md")
    claims.write(tree)
    assert f"([record](../../evidence/{ID}.json))" in (tree / "docs/decisions/one.md").read_text()
    assert claims.audit(tree) == []


def test_a_figure_or_a_table_edited_by_hand_is_found(tree: Path) -> None:
    define(tree, DEFINITION)
    findings(tree, f"Faster: x <!-- figure: {ID} {RATIO} -->?<!-- end --> {LINK}.\n\n{TABLE}")
    claims.write(tree)
    good = (tree / "README.md").read_text()
    assert findings(tree, good.replace("-->1.100", "-->1.200")) == [
        "README.md:1: '1.200 (1.099-1.101)' is not what the record gives, which says 1.100 (1.099-1.101)"
        " (hakmem claims --write)"
    ]
    assert findings(tree, good.replace("| random | 1.1", "| random | 1.2")) == [
        "README.md:3: this table is not what the record gives (hakmem claims --write)"
    ]


def test_a_figure_needs_a_link_to_its_record_in_the_paragraph(tree: Path) -> None:
    findings(tree, f"{LINK}\n\nFaster: x <!-- figure: {ID} {RATIO} -->?<!-- end -->.\n")
    claims.write(tree)
    assert [str(finding) for finding in claims.audit(tree)] == [
        f"README.md:3: no link to the record {ID} in this paragraph"
    ]


def test_a_figure_may_not_cite_a_record_that_does_not_exist(tree: Path) -> None:
    text = f"Faster: x <!-- figure: 2026-01-01-none {RATIO} -->1.1<!-- end --> {LINK}"
    (found,) = findings(tree, text)
    assert found.startswith("README.md:1: no record 2026-01-01-none")
    (found,) = findings(tree, "See [record](evidence/2026-01-01-none.json).")
    assert found.startswith("README.md:1: no record 2026-01-01-none")
    (found,) = findings(tree, f"x <!-- figure: ../secret {RATIO} -->1.1<!-- end -->")
    assert found == "README.md:1: '../secret' is no record's id"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"size": "sanity"}, f"the record {ID} is of sanity size: it proves that something ran, nothing else"),
        ({"rounds": 2}, f"the record {ID} has 2 runs of each; a figure needs 3"),
        ({"clean": False}, f"the record {ID} is of a tree with changes: nobody can measure that again"),
        ({"clean": None}, f"the record {ID} is of a tree with changes: nobody can measure that again"),
        (
            {"interrupted": True},
            f"the record {ID} has fewer rounds than were asked for: who may stop at will stops when it looks good",
        ),
    ],
)
def test_a_record_that_proves_nothing_may_not_be_cited(
    tmp_path: Path, changes: dict[str, object], expected: str
) -> None:
    values = {key: some[: int(str(changes.get("rounds", 8)))] for key, some in VALUES.items()}
    keep_unsigned(record(values, **changes), tmp_path / "evidence")
    assert findings(tmp_path, f"x <!-- figure: {ID} {RATIO} -->1.1<!-- end -->") == [f"README.md:1: {expected}"]
    assert findings(tmp_path, LINK) == [f"README.md:1: {expected}"]
    define(tmp_path, DEFINITION)
    assert findings(tmp_path, TABLE) == [f"README.md:1: {expected}"]


def test_an_edited_record_is_refused_and_writing_does_not_make_it_true(tree: Path) -> None:
    """Of an unsigned record the sum tells, of a signed one its digest."""
    signed = ledger.keep(record(command="another"), tree / "evidence")
    unsigned = tree / "evidence" / f"{ID}.json"
    for path, said in ((unsigned, "SHA256SUMS has another"), (signed, "does not give its digest")):
        text = f"Faster: x <!-- figure: {path.stem} {RATIO} -->?<!-- end --> ([record](evidence/{path.name})).\n"
        findings(tree, text)
        claims.write(tree)
        assert claims.audit(tree) == []
        good = path.read_text()
        path.write_text(good.replace("[108000000.0,", "[208000000.0,"))
        edited = path.read_text()
        assert edited != good
        before = [str(one) for one in claims.audit(tree)]
        assert len(before) == 2 and all(said in one for one in before)  # the record, and the line that cites it
        assert claims.write(tree) == [] and path.read_text() == edited
        assert [str(one) for one in claims.audit(tree)] == before
        path.write_text(good)


def test_an_unsigned_record_that_is_not_in_the_list_is_refused(tree: Path) -> None:
    path = tree / "evidence" / f"{ID}.json"
    other = path.with_name("2026-01-03-other.json")
    other.write_text(path.read_text().replace(ID, other.stem))
    assert findings(tree, "Nothing.") == [f"evidence/{other.name}:1: not signed, and not in SHA256SUMS"]
    other.unlink()
    path.unlink()
    assert findings(tree, "Nothing.") == [f"evidence/SHA256SUMS:1: there is no record {ID}"]


def test_a_change_of_figures_in_documents_alone_fails(tree: Path) -> None:
    """Whichever figure is edited, in a marker or out of one, and whatever is put around it."""
    define(tree, DEFINITION)
    findings(tree, f"Faster: x <!-- figure: {ID} {RATIO} -->?<!-- end --> {LINK}.\n\n{TABLE}\nIt has 64 KiB slabs.\n")
    claims.write(tree)
    good = (tree / "README.md").read_text()
    assert claims.audit(tree) == []
    edits = [
        ("1.100 (1.099-1.101)<!-- end -->", "1.300 (1.299-1.301)<!-- end -->"),
        ("| random | 1.100", "| random | 1.300"),
        ("2.00 MiB", "1.00 MiB"),
        ("It has", "It is 1.3 x as fast, and has"),
        ("It has", "It has twice the throughput and"),
        (f"<!-- figure: {ID} {RATIO} -->1.100", "<!-- not measured: x -->1.300 times faster, 1.300"),
    ]
    for old, new in edits:
        assert good.replace(old, new) != good
        assert findings(tree, good.replace(old, new)) != []


def test_a_short_case_of_a_full_record_may_not_be_cited(tmp_path: Path) -> None:
    keep_unsigned(record(short_cases=["mixed 400"]), tmp_path / "evidence")
    expected = f"'mixed 400' is of sanity size in {ID}: it proves that it ran, nothing else"
    assert findings(tmp_path, f"See {LINK}") == []
    define(tmp_path, DEFINITION)
    assert findings(tmp_path, TABLE) == [f"README.md:1: {expected}"]


def test_a_damaged_record_is_found_whether_or_not_it_is_cited(tree: Path) -> None:
    path = tree / "evidence" / f"{ID}.json"
    plain = json.loads(path.read_text())
    plain["series"][0]["values"].pop()
    path.write_text(json.dumps(plain))
    (found,) = findings(tree, "Nothing.")
    assert found.startswith(f"evidence/{ID}.json:1: damaged record: ") and "7 values in 8 rounds" in found
    assert len(findings(tree, TABLE)) == 2


def test_a_record_that_lies_deeper_is_found(tree: Path) -> None:
    """No command reads it there, so nothing it says would be listed."""
    deeper = tree / "evidence" / "old" / "than"
    deeper.mkdir(parents=True)
    (deeper / "record.json").write_bytes((tree / "evidence" / f"{ID}.json").read_bytes())
    (found,) = findings(tree, "Nothing.")
    assert found == "evidence/old/than/record.json:1: no command reads it there: a record lies in evidence/ itself"


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1.07", "a value that no record backs, in a place for measured figures: 1.07"),
        ("107 M/s", "not a figure: '107 M/s'"),
        ("ratio(hot, hakmem, operations_per_s)", "not a figure: "),
        ("__import__('os').system('true')", "not a figure: "),
        ("ratio(warm, hakmem, glibc, operations_per_s)", f"{ID} has no case 'warm'; it has mixed 400, hot"),
        ("ratio(hot, hakmem, mimalloc, operations_per_s)", f"{ID} has no variant 'mimalloc'; it has hakmem, glibc"),
        ("ratio(hot, hakmem, glibc, wall_s)", f"{ID} has no metric 'wall_s'; it has operations_per_s, peak_rss_bytes"),
        ("ratio(case, hakmem, glibc, wall_s)", "'ratio(case, hakmem, glibc, wall_s)': `case` has a meaning in tables"),
    ],
)
def test_an_expression_must_be_answered_by_its_record(tree: Path, expression: str, expected: str) -> None:
    (found,) = findings(tree, f"x <!-- figure: {ID} {expression} -->1<!-- end --> {LINK}")
    assert found.startswith(f"README.md:1: {expected}")


# ---- What nobody measured --------------------------------------------------------------------------------------------


def test_expected_values_and_constants_stand_between_markers_that_say_so(tree: Path) -> None:
    assert findings(tree, "At most <!-- not measured: spacing of the classes -->12.5 %<!-- end --> waste.") == []
    assert findings(tree, "The goal is <!-- expected: issue 4 -->1.5 x<!-- end -->.") == []
    example = "<!-- not measured: an example of the output -->\n\n```\nhot  105 M/s\n```\n\n<!-- end -->\n"
    assert findings(tree, example) == []


def test_they_need_a_source_or_a_reason(tree: Path) -> None:
    wrong = "README.md:1: an expected value without a source that can be looked up: "
    assert findings(tree, "x <!-- expected: -->1.5 x<!-- end -->") == [f"{wrong}<!-- expected: SOURCE -->"]
    (tree / "model.py").touch()
    for source in ("issue 4", "decision 21", "https://a.org/b", "A. Person, Title, 2022", "model.py", "by model.py"):
        assert findings(tree, f"x <!-- expected: {source} -->1.5 x<!-- end -->") == []
    for source in ("my feeling", "a paper", "other.py", "/etc/passwd", "1.5 x"):
        assert findings(tree, f"x <!-- expected: {source} -->1.5 x<!-- end -->") == [wrong + source]
    assert findings(tree, "x <!-- not measured: -->1.5 x<!-- end -->") == [
        "README.md:1: not measured, but what is it? <!-- not measured: WHAT -->"
    ]
    define(tree, DEFINITION + EXPECTED_COLUMN.replace("issue 4", "my feeling"))
    assert f"{wrong}my feeling" in findings(tree, TABLE)


@pytest.mark.parametrize(
    "text",
    [
        "x <!-- expected: issue 4 -->1.5 x",
        "x 1 <!-- end -->",
        "x <!-- figure: 2026-01-02-sample --> y <!-- not measured: z -->1<!-- end -->",
    ],
)
def test_a_marker_without_its_other_half_is_found(tree: Path, text: str) -> None:
    assert any("a marker without its other half" in line for line in findings(tree, text))


def test_markers_in_code_are_examples_of_markers(tree: Path) -> None:
    assert findings(tree, "```\n<!-- expected: SOURCE -->\n```\n\nAnd `<!-- end -->`.\n") == []


def test_a_marker_does_not_begin_a_line_of_a_paragraph(tree: Path) -> None:
    text = "At most\n<!-- not measured: spacing -->12.5 %<!-- end --> waste."
    assert findings(tree, text) == [
        "README.md:2: a line that begins with a marker ends the paragraph: put a word before it"
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x <!-- not measured: spacing -->12.5 %. It is 3 % for others<!-- end -->", "a marker wider than a phrase: "),
        (f"x <!-- expected: issue 4 -->{'long ' * 17}1.5 x<!-- end -->", "a marker wider than a phrase: "),
        ("<!-- not measured: spacing -->\nIt is 12.5 %.\n<!-- end -->", "a marker around more than a table or a block"),
        ("<!-- not measured: x -->\n```\n5 ns\n```\nIt is 5 ns.\n<!-- end -->", "a marker around more than a table"),
        ("x <!-- not measured: luck -->25 M ops/s<!-- end -->", "a rate or a comparison is measured, or expected: 25"),
        ("x <!-- not measured: luck -->ten times faster<!-- end -->", "a rate or a comparison is measured"),
        ("x is <!-- not measured: luck -->ten times<!-- end --> faster", "a rate or a comparison is measured"),
        ("it takes <!-- not measured: luck -->5 ns<!-- end --> a call", "a rate or a comparison is measured"),
        ("<!-- not measured: luck -->\n| a |\n|---|\n| 5 % slower |\n<!-- end -->", "a rate or a comparison is"),
    ],
)
def test_a_marker_is_as_wide_as_its_purpose(tree: Path, text: str, expected: str) -> None:
    (found,) = findings(tree, text)
    assert found.startswith(f"README.md:1: {expected}")


def test_a_table_and_an_example_in_code_may_stand_in_a_marker(tree: Path) -> None:
    for body in ("| a | 5 % |\n|---|---|\n| b | 7 % |", "```\nhot  105 M/s\n```", "    hot  105 M/s\n    cold  9 M/s"):
        assert findings(tree, f"<!-- not measured: an example -->\n{body}\n<!-- end -->\n") == []
        assert findings(tree, f"<!-- not measured: an example -->\n\n{body}\n\n<!-- end -->\n") == []


# ---- Tables: measured and expected never share a column --------------------------------------------------------------


EXPECTED_COLUMN = '"goal" = { source = "issue 4", unit = "x", amounts = { "random" = 1.05 } }\n'


def test_a_column_of_expected_values_says_so(tree: Path) -> None:
    define(tree, DEFINITION + EXPECTED_COLUMN)
    findings(tree, TABLE)
    claims.write(tree)
    written = (tree / "README.md").read_text()
    assert "| | throughput | peak RSS | goal (expected) |" in written
    assert "| random | 1.100 (1.099-1.101) | 2.00 MiB | 1.05 x |" in written
    assert "Nobody measured 'goal': issue 4." in written
    assert claims.audit(tree) == []


MEASURED = '"ratio(case, hakmem, best, operations_per_s)"'


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (MEASURED, "1.05", "an expected value in the measured column 'throughput': 1.05"),
        (MEASURED, '"1.05"', "a value that no record backs, in a place for measured figures: 1.05"),
        (MEASURED, '{ source = "", unit = "x", amounts = {} }', "the table's definition: "),
        ("[sample.rows]", "[sample.rows", "docs/tables/README.toml is no TOML"),
        ('record = "2', 'records = "2', "the table's definition: "),
        (ID, "../secret", "'../secret' is no record's id"),
        (
            '"peak RSS"',
            EXPECTED_COLUMN.replace('"random"', '"other"') + '"peak RSS"',
            "the expected column 'goal' needs one amount for each",
        ),
        ('"mixed 400"', '"warm"', f"{ID} has no case 'warm'"),
    ],
)
def test_a_table_definition_that_says_nothing_is_refused(tree: Path, old: str, new: str, expected: str) -> None:
    define(tree, DEFINITION.replace(old, new, 1))
    (found,) = findings(tree, TABLE)
    assert found.startswith(f"README.md:1: {expected}")


def test_each_page_has_the_tables_that_are_defined_for_it(tree: Path) -> None:
    assert findings(tree, TABLE) == ["README.md:1: docs/tables/README.toml has no [sample]"]
    define(tree, DEFINITION, "other")
    assert findings(tree, "# Title\n") == ["docs/tables/other.toml:1: no page has [sample]"]


# ---- Pictures --------------------------------------------------------------------------------------------------------

PICTURE = "<!-- picture: sample -->\n<!-- end -->\n"
POINTS = f"""[sample]
title = "Time and memory"
baseline = "glibc"
time = "operations_per_s"
memory = "peak_rss_bytes"
panels = [{{ title = "one thread", record = "{ID}", cases = ["mixed 400", "hot"] }}]
"""


def test_a_picture_is_drawn_from_its_record_and_told_in_words(tree: Path) -> None:
    define(tree, POINTS)
    assert findings(tree, PICTURE) == ["README.md:1: this picture is not what the record gives (hakmem claims --write)"]
    assert claims.write(tree) == ["docs/sample.svg", "README.md"]
    assert claims.audit(tree) == [] and claims.write(tree) == []
    written = (tree / "README.md").read_text()
    assert "glibc = 1. one thread: hakmem 0.67 and 1.41.](docs/sample.svg)" in written
    assert f"([record](evidence/{ID}.json))" in written
    drawn = ElementTree.parse(tree / "docs" / "sample.svg").getroot()
    said = [text for element in drawn.iter() for text in [element.text] if text and element.tag.endswith("text")]
    assert {"peak memory, glibc = 1; less is better", "time per operation, glibc = 1; less is better"} <= set(said)
    assert {"one thread", "hakmem", "glibc", "others", "95 % interval"} <= set(said)


LINES = f"""[sample]
title = "Memory"
axis = "peak memory, glibc = 1"
record = "{ID}"
metric = "peak_rss_bytes"
baseline = "glibc"
cases = ["mixed 400", "hot"]
"""


def test_one_metric_has_a_line_for_each_case(tree: Path) -> None:
    define(tree, LINES)
    findings(tree, PICTURE)
    assert claims.write(tree) == ["docs/sample.svg", "README.md"] and claims.audit(tree) == []
    told = "peak memory, glibc = 1. mixed 400: hakmem 2.00, others 1.00 to 1.00; hot: hakmem 1.00, others 1.00 to 1.00."
    assert f"![{told}](docs/sample.svg)" in (tree / "README.md").read_text()
    drawn = list(ElementTree.parse(tree / "docs" / "sample.svg").getroot().iter())
    names = {element.text: float(element.get("y", 0)) for element in drawn if element.tag.endswith("text")}
    assert names["mixed 400"] < names["hot"]
    points = [element.attrib for element in drawn if element.tag.endswith("circle")]
    own = [(float(one["cx"]), float(one["cy"])) for one in points if one["class"] == "first-mark" and one["r"] == "7"]
    (first, second), height = own, {one["cy"] for one in points if one["r"] == "5"}
    assert first[0] > second[0] and first[1] < second[1] and len(height) == 2
    findings(tree, PICTURE)
    define(tree, LINES.replace("peak_rss_bytes", "operations_per_s"))
    (found,) = findings(tree, PICTURE)
    assert found.startswith("README.md:1: less of operations_per_s is not better")


def test_a_picture_that_was_edited_or_is_gone_is_found(tree: Path) -> None:
    define(tree, POINTS)
    findings(tree, PICTURE)
    claims.write(tree)
    picture = tree / "docs" / "sample.svg"
    picture.write_text(picture.read_text().replace("cx=", "cx =", 1))
    found = ["README.md:1: docs/sample.svg is not what the record gives (hakmem claims --write)"]
    assert [str(one) for one in claims.audit(tree)] == found
    picture.unlink()
    assert [str(one) for one in claims.audit(tree)] == found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('"glibc"', '"none"', f"{ID} has no variant 'none'"),
        ('time = "operations_per_s"', 'time = "peak_rss_bytes"', "more of peak_rss_bytes is not better"),
        ("baseline", "base", "the picture's definition: "),
    ],
)
def test_a_picture_that_its_record_cannot_give_is_refused(tree: Path, old: str, new: str, expected: str) -> None:
    define(tree, POINTS.replace(old, new, 1))
    (found,) = findings(tree, PICTURE)
    assert found.startswith(f"README.md:1: {expected}")


def test_names_of_points_that_lie_close_do_not_cover_each_other() -> None:
    marks = {f"name{number}": (100.0 + number * 3, 100.0 + number) for number in range(6)}
    found = pictures._labels(marks, [])
    boxes = []
    for name, (x, y, anchor) in found.items():
        wide = len(name) * pictures.LETTER
        left = x - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        boxes.append((left, y - pictures.LINE + 3, left + wide, y + 3))
    assert not any(pictures._overlap(one, other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("colours", [chart.LIGHT, chart.DARK])
def test_letters_and_lines_stand_out_from_the_background(colours: dict[str, str]) -> None:
    """As WCAG 2 asks: 4.5 to 1 for text, 3 to 1 for what else carries meaning."""

    def luminance(colour: str) -> float:
        shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    def contrast(name: str) -> float:
        low, high = sorted((luminance(colours[name]), luminance(colours["surface"])))
        return (high + 0.05) / (low + 0.05)

    assert min(contrast(name) for name in ("ink", "muted")) >= 4.5
    assert min(contrast(name) for name in chart.DASHES) >= 3


def test_columns_of_a_table_typed_by_hand_do_not_mix_either(tree: Path) -> None:
    figure = f"<!-- figure: {ID} {RATIO} -->1.100 (1.099-1.101)<!-- end -->"
    expected = "<!-- expected: issue 4 -->1.05 x<!-- end -->"
    head = f"{LINK}\n| | throughput |\n|---|---|\n"
    assert findings(tree, f"{head}| a | {figure} |\n| b | {figure} |\n") == []
    assert findings(tree, f"{head}| a | {figure} |\n| b | {expected} |\n") == [
        "README.md:2: an expected value in a column of measured figures"
    ]


# ---- Records that no document cites ----------------------------------------------------------------------------------


LIST = "<!-- uncited: records -->\n<!-- end -->\n"


def test_a_record_that_no_document_cites_is_listed_with_what_it_shows(tree: Path) -> None:
    (tree / "docs").mkdir()
    assert [str(one) for one in claims.audit(tree)] == []
    path = tree / "docs" / "records.md"
    path.write_text(f"# Title\n\n{LIST}")
    assert "docs/records.md:3: this table is not what the record gives" in str(claims.audit(tree)[0])
    assert claims.write(tree) == ["docs/records.md"] and claims.audit(tree) == []
    (row,) = [line for line in path.read_text().splitlines() if ID in line]
    assert row.startswith(f"| [`{ID}`](../evidence/{ID}.json) | ")
    assert "hakmem to glibc, throughput (more is better): better, " in row
    assert "peak RSS (less is better): worse, 1.414 (1.414-1.414); of 2 cases better in 0, worse in 1 (mixed 400" in row


def test_a_record_that_is_cited_by_what_is_written_is_not_listed(tree: Path) -> None:
    (tree / "docs" / "tables").mkdir(parents=True)
    (tree / "docs" / "tables" / "README.toml").write_text(DEFINITION)
    (tree / "docs" / "records.md").write_text(f"# Title\n\n{LIST}")
    (tree / "README.md").write_text(f"# Title\n\n{TABLE}")
    assert set(claims.write(tree)) == {"README.md", "docs/records.md"}
    assert claims.audit(tree) == [] and ID not in (tree / "docs" / "records.md").read_text()


def test_a_record_that_is_cited_is_not_listed(tree: Path) -> None:
    (tree / "docs").mkdir()
    (tree / "docs" / "records.md").write_text(f"# Title\n\n{LIST}")
    (tree / "README.md").write_text(f"See {LINK}.\n")
    claims.write(tree)
    assert ID not in (tree / "docs" / "records.md").read_text()
    for hidden in ("See nothing.", f"See <!-- {LINK} --> nothing.", f"x <!-- not measured: {ID} -->1<!-- end -->"):
        (tree / "README.md").write_text(hidden + "\n")
        assert any("this table is not" in str(one) for one in claims.audit(tree))


def rates(*cases: str, metric: str = "operations_per_s", **of: float) -> Values:
    """Of variants, the same in each round but for a little, with a MiB each."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for case in cases:
        for name, amount in of.items():
            values[case, name, metric] = [amount * (1 + i / 1000) for i in range(8)]
            values[case, name, "peak_rss_bytes"] = [1e6] * 8
    return values


@pytest.mark.parametrize(
    ("variants", "told"),
    [
        (("hakmem", "secure", "scudo", "hardened_malloc", "ceiling"), ["secure to hakmem"]),
        (("hakmem", "glibc", "mimalloc", "secure", "ceiling"), ["hakmem to glibc", "secure to glibc"]),
        (("hakmem", "mimalloc", "jemalloc", "ceiling"), ["mimalloc to hakmem", "jemalloc to hakmem"]),
        (("b", "a"), ["b to a"]),
        (("hakmem", "ceiling"), []),
        (("ceiling",), []),
    ],
)
def test_a_record_tells_what_it_was_made_for(variants: tuple[str, ...], told: list[str]) -> None:
    """Builds and settings of hakmem, and peers where there is nothing else. The ceiling is none to compare with."""
    values = rates("hot", **{name: 1e6 * (1 + number) for number, name in enumerate(variants)})
    (row,) = [line for line in uncited.listing([record(values)], str).splitlines() if ID in line]
    assert re.findall(r"(\w+ to \w+), throughput", row) == told and (told or "one side only" in row)


def test_a_setting_of_glibc_is_none_of_hakmem() -> None:
    facts = {
        name: VariantFacts(allocator=allocator, library=None, sha256=None, settings={})
        for name, allocator in (("hakmem", "hakmem"), ("glibc", "glibc"), ("tuned", "glibc"), ("own", "own"))
    }
    values = rates("hot", **{name: 1e6 * (1 + number) for number, name in enumerate(facts)})
    told = uncited.listing([record(values, variants=facts)], str)
    assert re.findall(r"(\w+ to \w+), throughput", told) == ["hakmem to glibc", "own to glibc"]


def test_each_kind_of_case_is_told_by_its_own_time() -> None:
    mixed = {
        **rates("hot", "mixed 400", hakmem=2e6, glibc=1e6),
        **rates("python3", "gcc", "git", metric="wall_s", hakmem=2.0, glibc=1.0),
    }
    told = uncited.listing([record(mixed)], str)
    for what, verdict, count in (("throughput (more", "better", 2), ("wall time (less", "worse", 3)):
        assert re.search(rf"hakmem to glibc, {re.escape(what)} is better\): {verdict}, [^;]*; of {count} cases", told)
    assert "no difference, 1.000 (1.000-1.000); of 5 cases" in told


def test_a_record_is_one_row_whatever_its_cases_are_called() -> None:
    told = uncited.listing([record(rates("sh -c 'a |\nb'", hakmem=2.0, glibc=1.0))], str)
    assert "bench: sh -c 'a \\| b' |" in told


def test_with_what_the_intervals_of_the_list_hold_is_told() -> None:
    assert uncited.listing([record()], str).endswith(f"\n\n{comparison.BY_CHANCE}")


def test_what_was_shown_to_be_worse_is_named() -> None:
    values: dict[tuple[str, str, str], list[float]] = {}
    for case, factor in {"good": 0.5, "bad": 1.5, "worst": 2.0, "same": 1.0}.items():
        values[case, "a", "wall_s"] = [2.0 + i / 1000 for i in range(10)]
        values[case, "b", "wall_s"] = [(2.0 + (9 - i) / 1000) * factor for i in range(10)]
    told = uncited.listing([record(values, kind="ab")], lambda name: f"{name}.json")
    assert "b to a, wall time (less is better): worse, 1.107 (1.104-1.109); of 4 cases better in 1, " in told
    assert "worse in 2 (worst 2.0" in told and "bad 1.5" in told
    failed = [FailedRun(f"case {number}", "b", 1, "was killed by signal 11") for number in range(5)]
    told = uncited.listing([record(values, kind="ab", failures=failed, interrupted=True)], str)
    assert (
        "; failed: case 0 on b, case 1 on b, case 2 on b, 2 more |" in told
        and ", fewer rounds than were asked for |" in told
    )
    few = {("case", "a", "wall_s"): [1.0], ("case", "b", "wall_s"): [2.0]}
    assert "one round" in uncited.listing([record(few, kind="ab")], str)
