"""The dossier: a rule that is there before the first run, what it answers, and what is measured for it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hakmem import allocators, cli, ledger, process
from hakmem.dossier import cases, making, page
from hakmem.dossier.rule import CHANGED, OTHER_OUTPUT, Answer, Rule, conclude, judge, prose
from hakmem.errors import LabError
from hakmem.ledger import FailedRun, Record, VariantFacts
from hakmem.measure import Measurement, Sample, Variant
from hakmem.report import html
from hakmem.report.model import Table
from sample_record import record as sample

COMPARE = [sys.executable, "-m", "hakmem", "compare"]
ROUNDS = 10
NOISE = [0.0, 0.002, -0.002, 0.001, -0.001, 0.003, -0.003, 0.0005, -0.0005, 0.0015]


def rule(*names: str, **changes: Any) -> Rule:
    facts = {name: VariantFacts(allocator=name, library=None, sha256=None, settings={}) for name in ("glibc", *names)}
    given: dict[str, Any] = {
        "date": "2026-01-02T03:04:05+00:00",
        "incumbent": "glibc",
        "contestants": facts,
        "commands": ["work"],
        "client": None,
        "outputs": [],
        "idle_s": 0,
        "rounds": ROUNDS,
        "warmup": 1,
        "time": "wall_s",
        "gain": 0.05,
        "loss": 0.02,
    }
    return Rule(**{**given, **changes})


def measured(**ratios: tuple[float, float]) -> Record:
    """Of each contestant its time and memory as ratios to glibc's, with a little noise."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for name, (wall, rss) in {"glibc": (1.0, 1.0), **ratios}.items():
        shift = len(name)
        noise = [(1 + NOISE[(i + shift) % ROUNDS], 1 + NOISE[(i * 3 + shift) % ROUNDS]) for i in range(ROUNDS)]
        values["work", name, "wall_s"] = [wall * own for own, _ in noise]
        values["work", name, "peak_rss_bytes"] = [rss * 1e8 * own for _, own in noise]
    return sample(values, kind="dossier")


def answer(record: Record, of: Rule | None = None) -> tuple[Answer, str]:
    (found,) = judge(of or rule("new"), record)
    return found.answer, found.why


# ---- The rule's answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ((0.90, 1.00), Answer.SWITCH),  # faster, and no more memory
        ((1.00, 0.90), Answer.SWITCH),  # as fast, in less memory
        ((0.90, 1.05), Answer.STAY),  # faster, but larger than the rule allows
        ((1.05, 0.80), Answer.STAY),
        ((0.98, 1.00), Answer.STAY),  # better, and not by enough
        ((1.00, 1.00), Answer.STAY),
        ((0.95, 1.00), Answer.UNKNOWN),  # on the bar
        ((0.90, 1.02), Answer.UNKNOWN),  # perhaps too large
    ],
)
def test_what_is_shown_decides(ratios: tuple[float, float], expected: Answer) -> None:
    assert answer(measured(new=ratios))[0] is expected


def test_all_commands_count() -> None:
    """A gain in one is enough; a loss in one is too much."""
    both = measured(new=(0.90, 1.00)).series + [
        replaced for one in measured(new=(1.04, 1.00)).series if (replaced := _of_case(one, "large"))
    ]
    record = sample(
        {(one.case, one.variant, one.metric): one.values for one in both},
    )
    two = rule("new", commands=["work", "large"])
    found, why = answer(record, two)
    assert found is Answer.STAY and "wall time of large" in why
    even = measured(new=(0.90, 1.00)).series + [
        replaced for one in measured(new=(1.00, 1.00)).series if (replaced := _of_case(one, "large"))
    ]
    record = sample({(one.case, one.variant, one.metric): one.values for one in even})
    assert answer(record, two)[0] is Answer.SWITCH


def _of_case(one: ledger.Series, case: str) -> ledger.Series:
    return ledger.Series(case=case, variant=one.variant, metric=one.metric, unit=one.unit, values=one.values)


def test_who_fails_or_prints_something_else_is_not_switched_to() -> None:
    better = measured(new=(0.5, 0.5))
    for reason in ("killed by signal 11", f"{OTHER_OUTPUT} glibc"):
        failed = FailedRun("work", "new", 3, reason)
        record = sample(better.by_name, failures=[failed])
        assert answer(record) == (Answer.STAY, reason)
        failed = FailedRun("work", "glibc", 3, reason)
        assert answer(sample(better.by_name, failures=[failed]))[0] is Answer.UNKNOWN


def test_what_was_not_measured_as_planned_is_not_known() -> None:
    better = measured(new=(0.5, 0.5))
    assert answer(better)[0] is Answer.SWITCH
    assert "10 of the planned 20 rounds" in answer(better, rule("new", rounds=20))[1]
    assert answer(sample(better.by_name, interrupted=True))[0] is Answer.UNKNOWN
    assert answer(sample(better.by_name, notes=[CHANGED])) == (Answer.UNKNOWN, CHANGED)
    assert "no figure of 99th percentile" in answer(better, rule("new", time="p99_s"))[1]
    few = sample({key: values[:6] for key, values in better.by_name.items()})
    assert answer(few, rule("new", rounds=6)) == (Answer.UNKNOWN, "too few rounds: 6 of at least 7")


def test_more_contestants_make_each_interval_wider() -> None:
    assert rule("a", "b", "c", commands=["x", "y"]).each == pytest.approx(1 - 0.05 / 12)
    assert rule("a", "b", "c").least_rounds > rule("a").least_rounds


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ({"a": (0.90, 1.0), "b": (0.80, 1.0)}, "switch to b"),
        ({"a": (0.90, 1.0), "b": (1.50, 1.0)}, "switch to a"),
        ({"a": (1.00, 1.0), "b": (1.50, 1.0)}, "don't switch"),
        ({"a": (0.95, 1.0), "b": (1.50, 1.0)}, "don't know"),
    ],
)
def test_the_answer_is_that_of_the_best(ratios: dict[str, tuple[float, float]], said: str) -> None:
    assert conclude(judge(rule("a", "b"), measured(**ratios)))[1] == said


def test_the_rule_says_its_numbers() -> None:
    said = dict(prose(rule("new", gain=0.07, loss=0.0025)))
    assert said["rounds"].startswith("10 interleaved ones, after 1 ")
    assert said["a gain that is worth it"].startswith("from 7% on")
    assert said["a loss that forbids it"].startswith("more than 0.25%,")
    assert said["intervals"] == "all hold together with 95%: each with 97.50%"


# ---- What is measured ------------------------------------------------------------------------------------------------


def test_latencies_are_the_lines_that_are_numbers() -> None:
    printed = b"0.5\n1e-3\nanswer 7\n 2 \nnan\n-1\n1e999\n"
    assert cases.read_latencies(printed) == ([0.5, 0.001, 2.0], b"answer 7\nnan\n-1\n1e999\n")
    assert cases.percentile([float(one) for one in range(1, 101)], 0.99) == 99
    assert cases.percentile([3.0, 1.0, 2.0], 0.99) == 3


def test_calls_are_the_total_of_strace() -> None:
    head = "% time     seconds  usecs/call     calls    errors syscall\n 60.00    0.1     1     50     2 read\n"
    assert cases.counted_calls(head + "100.00    0.000000           0      1234        45 total\n") == 1234
    assert cases.counted_calls(head + "100.00    0.000000                  77           total\n") == 77
    assert cases.counted_calls(head + "100,00    0,000000           0      1234        45 total\n") == 1234
    assert cases.counted_calls(head) is None


FREES = "x = [bytes(3000) for _ in range(20000)]; y = x[::2000]; del x"


@pytest.mark.parametrize("name", ["hakmem", "glibc"])
def test_a_trim_at_the_end_gives_back_what_is_free(name: str) -> None:
    (allocator,) = allocators.resolve([name])
    settings = {"PYTHONMALLOC": "malloc", "MALLOC_TRIM_THRESHOLD_": "1000000000", "HAKMEM_KNOBS": "decay_ms=3600000"}
    words = [sys.executable, "-c", FREES]
    trimmed = process.run(words, allocator, {**settings, **cases.TRIM}).root()
    assert trimmed is not None and trimmed.trimmed_rss_bytes and trimmed.end_rss_bytes
    assert trimmed.trimmed_rss_bytes < trimmed.end_rss_bytes and trimmed.threads == 1
    plain = process.run(words, allocator, settings).root()
    assert plain is not None and plain.trimmed_rss_bytes is None


def test_glibc_takes_part_as_its_users_set_it() -> None:
    names = [one.name for one in making.contestants(allocators.resolve(["hakmem,glibc"]))]
    assert names[:3] == ["hakmem", "glibc", "glibc-2-arenas"]
    assert ("glibc-huge-pages" in names) == making.has_huge_pages()
    assert [one.name for one in making.contestants(allocators.resolve(["hakmem"]))] == ["hakmem"]


def done(**digests: list[str]) -> Measurement:
    variants = [Variant(name, allocators.glibc()) for name in digests]
    found = Measurement([], variants, rounds=2)
    found.samples = {"work": {name: [Sample({}, one, True) for one in some] for name, some in digests.items()}}
    return found


def test_output_is_compared_with_the_incumbent_s() -> None:
    odd = done(glibc=["a", "a"], new=["a", "b"], good=["a", "a"])
    making.compare_outputs(odd, "glibc")
    assert [(one.variant, one.reason) for one in odd.failures] == [("new", f"{OTHER_OUTPUT} glibc")]
    restless = done(glibc=["a", "b"], new=["a", "c"])
    making.compare_outputs(restless, "glibc")
    assert restless.failures == []
    assert restless.notes == [f"{page.UNMEASURED}output: glibc's differs from run to run, of work"]
    within = done(glibc=["a b"], new=["c"])
    making.compare_outputs(within, "glibc")
    assert within.failures == [] and within.notes == restless.notes


def test_who_failed_has_no_output() -> None:
    whole = measured(new=(1.0, 1.0))
    left = [one for one in whole.series if one.variant != "new"]
    record = sample(whole.by_name, series=left, failures=[FailedRun("work", "new", 1, "killed by signal 11")])
    sections = page.report(record, rule("new"), "0" * 64, None).sections
    (table,) = [one for one in sections if isinstance(one, Table) and one.title == "Takeover and output"]
    assert {row[0]: row[3:] for row in table.rows} == {"glibc": ("the same", "30"), "new": ("none", "0")}


def test_what_was_not_measured_is_said_with_the_reason() -> None:
    restless = done(glibc=["a", "b"], new=["a", "c"])
    restless.samples = {"sh -c 'echo a: b'": restless.samples["work"]}
    making.compare_outputs(restless, "glibc")
    notes = [f"{page.UNMEASURED}system calls: strace is not installed", *restless.notes]
    record = sample(measured(new=(1.0, 1.0)).by_name, notes=notes)
    shown = page.report(record, rule("new"), "0" * 64, None)
    (table,) = [one for one in shown.sections if isinstance(one, Table) and one.title == "Not measured"]
    rows = dict(table.rows)
    assert rows["system calls"] == "strace is not installed"
    assert rows["output"] == "glibc's differs from run to run, of sh -c 'echo a: b'"
    assert {"99th percentile of the latency", "memory after idling", "RSS after a trim, new"} <= rows.keys()


# ---- As a user types it ----------------------------------------------------------------------------------------------


def compare(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*COMPARE, *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=cwd)


SMALL = ["-n", 1, "--warmup", 0, "--with", "hakmem,hakmem"]


@pytest.mark.forms
def test_the_rule_is_there_before_the_first_run_and_with_the_result(tmp_path: Path) -> None:
    # The command fails where there is no rule yet, and no checksum that fits.
    checks = "cd new && sha256sum --status -c rule.json.sha256 && test -s rule.md && ! test -e dossier.md"
    program = f"import subprocess, sys; sys.exit(subprocess.call({checks!r}, shell=True))"
    found = compare("--dossier", "new", *SMALL, "--", sys.executable, "-c", program, cwd=tmp_path)
    assert found.returncode == 0, found
    folder = tmp_path / "new"
    digest = hashlib.sha256((folder / "rule.json").read_bytes()).hexdigest()
    plain = json.loads((folder / "rule.json").read_text())
    assert (plain["rounds"], plain["gain"], plain["loss"], plain["time"]) == (1, 0.05, 0.02, "wall_s")
    assert digest in (folder / "rule.md").read_text()
    for name in ("dossier.md", "dossier.html"):
        text = (folder / name).read_text()
        assert digest in text and "know" in text and "Takeover and output" in text
    (path,) = folder.glob("*-dossier-*.json")
    record = ledger.load(path)
    assert record.kind == "dossier" and any(digest in note for note in record.notes)
    metrics = {"wall_s", "cold_s", "cpu_s", "peak_rss_bytes", "end_rss_bytes", "minor_faults", "threads"}
    metrics |= {"trimmed_rss_bytes"} | ({"system_calls"} if shutil.which("strace") else set())
    assert metrics <= set(record.metrics())
    assert "1 rounds can't tell" in found.stderr


@pytest.mark.forms
def test_a_program_that_prints_something_else_is_not_switched(tmp_path: Path) -> None:
    says = "grep -c libhakmem /proc/self/maps | sed 's/[1-9].*/hakmem/'"
    small = [*SMALL[:-1], "hakmem,glibc"]
    found = compare("--dossier", "new", *small, "--", "sh", "-c", says, cwd=tmp_path)
    assert found.returncode == 1, found
    text = (tmp_path / "new" / "dossier.md").read_text()
    assert f"| hakmem | don't switch | - | {OTHER_OUTPUT} glibc |" in text and "| another |" in text


@pytest.mark.forms
def test_files_that_are_written_are_compared(tmp_path: Path) -> None:
    work = ["--", "sh", "-c", "echo text >out; echo $$ >pid"]
    for name, said in (("out", "the same"), ("pid", "not compared")):
        found = compare("--dossier", f"new-{name}", *SMALL, "--output", name, *work, cwd=tmp_path)
        assert found.returncode == 0 and said in found.stdout, found
    (tmp_path / "old").write_text("")
    os.utime(tmp_path / "old", (1, 1))
    os.mkfifo(tmp_path / "pipe")
    refusals = {"none": "No such file", "old": "the run has not written it", "pipe": "not a regular file"}
    for name, said in refusals.items():
        refused = compare("--dossier", f"new-{name}", *SMALL, "--output", name, *work, cwd=tmp_path)
        assert refused.returncode == 2 and f"--output {name}: " in refused.stderr and said in refused.stderr


@pytest.mark.forms
def test_a_file_that_only_the_run_before_has_written_is_refused(tmp_path: Path) -> None:
    work = ["--", "sh", "-c", "[ -e done ] || echo text >out; touch done"]
    refused = compare("--dossier", "new", *SMALL, "--output", "out", *work, cwd=tmp_path)
    assert refused.returncode == 2 and "--output out: the run has not written it" in refused.stderr, refused


@pytest.mark.forms
def test_who_changes_the_rule_gets_no_answer(tmp_path: Path) -> None:
    found = compare("--dossier", "new", *SMALL, "--", "sh", "-c", "echo >>new/rule.json", cwd=tmp_path)
    assert found.returncode == 0 and CHANGED in found.stdout and "switch to" not in found.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--idle", 5], "--idle is for a dossier: expected --dossier DIR too"),
        (["--also", "true"], "--also is for a dossier"),
        (["--dossier", "there"], "can't write there: it is a directory already"),
        (["--dossier", "new", "--also", "'"], "--also ': No closing quotation"),
        (["--dossier", "new", "--also", ""], "expected a command"),
        (["--dossier", "new", "--also", "nosuch 1"], "nosuch: command not found"),
        (["--dossier", "new", "--also", "true"], "--also true: named twice"),
        (["--dossier", "new", "--client", "nosuch"], "nosuch: command not found"),
        (["--dossier", "new", "--with", "hakmem"], "nothing to compare it with"),
        (["--dossier", "new", "--baseline", "nosuch"], "--baseline nosuch: not among"),
        (["--dossier", "new", "--gain", 0], "--gain"),
        (["--dossier", "new", "--by", "p99_s"], "--by p99_s: expected one of wall_s, cpu_s, "),
        (
            ["--dossier", "new", "--by", "wall_s", "--client", "true"],
            "--by wall_s: expected one of p99_s, measured_s, ",
        ),
        (["--dossier", "new", "--by", "peak_rss_bytes"], "--by peak_rss_bytes: expected one of wall_s"),
        (["--dossier", "no/new"], "can't write no/new: No such file or directory"),
    ],
)
def test_bad_input_is_refused_in_one_line(words: list[object], said: str, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    found = compare(*words, "--", "true", cwd=tmp_path)
    assert found.returncode == 2 and said in found.stderr and found.stderr.count("\n") == 1, found
    assert not (tmp_path / "new").exists()


@pytest.mark.forms
def test_ctrl_c_writes_what_there_is(tmp_path: Path) -> None:
    words = [*COMPARE, "--dossier", "new", "-n", "1000", "--warmup", "0", "--with", "hakmem,hakmem", "--", "true"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=-1, stderr=-1, text=True, start_new_session=True) as child:
        assert child.stderr is not None
        for line in child.stderr:
            if "round 3" in line:
                break
        time.sleep(0.1)
        os.killpg(child.pid, signal.SIGINT)
        child.communicate(timeout=600)
    assert child.returncode == 130
    assert "of the planned 1000 rounds were run" in (tmp_path / "new" / "dossier.md").read_text()


SERVICE = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answer " * 999)
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
CLIENT = """
import sys, time, urllib.request
def ask():
    return urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/").read()
for attempt in range(6000):
    try:
        print(len(ask()), "bytes")
        break
    except OSError:
        time.sleep(0.05)
for request in range(int(sys.argv[2])):
    start = time.perf_counter()
    ask()
    print(time.perf_counter() - start)
"""


@pytest.mark.forms
@pytest.mark.parametrize("requests", [100, 0])
def test_a_service_is_loaded_idles_and_is_asked_to_end(requests: int, tmp_path: Path) -> None:
    from hakmem.servers import free_port

    port = free_port()
    (tmp_path / "service.py").write_text(SERVICE)
    (tmp_path / "client.py").write_text(CLIENT)
    client = f"{sys.executable} client.py {port} {requests}"
    words = ["--idle", 0.2, "--client", client, "--", sys.executable, "service.py", port]
    if not requests:
        refused = compare("--dossier", "none", *SMALL, *words, cwd=tmp_path)
        assert refused.returncode == 2 and "printed 0 latencies, and the rule goes by" in refused.stderr
        words = ["--by", "measured_s", *words]
    found = compare("--dossier", "new", *SMALL, *words, cwd=tmp_path)
    assert found.returncode == 0, found
    (path,) = (tmp_path / "new").glob("*-dossier-*.json")
    record = ledger.load(path)
    assert {"idle_bytes", "measured_s", "cold_s", "trimmed_rss_bytes", "threads"} <= set(record.metrics())
    assert "wall_s" not in record.metrics()
    assert ("p99_s" in record.metrics()) == (requests > 0)
    assert ("fewer than 100 latencies" in (tmp_path / "new" / "dossier.md").read_text()) == (requests == 0)
    (case,) = record.cases
    idle = record.values(case, "hakmem", "idle_bytes")[0]
    assert 1 << 20 < idle < record.values(case, "hakmem", "peak_rss_bytes")[0] * 1.5


@pytest.mark.forms
@pytest.mark.parametrize(
    ("client", "limit_s", "said"),
    [
        ("sh -c 'echo broken >&2; exit 3'", 600, "the client sh failed: broken"),
        ("sleep 600", 1, "did not end within 1 s"),
    ],
)
def test_a_client_that_fails_is_no_figure(client: str, limit_s: int, said: str, tmp_path: Path) -> None:
    words = ["--timeout", limit_s, "--idle", 0, "--client", client, "--", "sleep", "1000"]
    found = compare("--dossier", "new", *SMALL, *words, cwd=tmp_path)
    assert found.returncode == 2 and said in found.stderr


@pytest.mark.forms
@pytest.mark.parametrize("client", ["sleep 1", "sleep 1000"])
@pytest.mark.parametrize(
    ("service", "said"),
    [
        ("sleep 0.1", "the service was gone before it was asked to end"),
        ("true", "the service was gone before it was asked to end"),
        ("echo address in use >&2; exit 7", "sh ended with exit status 7: address in use"),
        ("sleep 0.1; kill -SEGV $$", "sh was killed by signal 11"),
    ],
)
def test_a_service_that_ends_by_itself_is_told(service: str, client: str, said: str, tmp_path: Path) -> None:
    """Whatever its client does, which may wait for it forever."""
    start = time.monotonic()
    words = ["--idle", 0, "--client", client, "--", "sh", "-c", service]
    found = compare("--dossier", "new", *SMALL, *words, cwd=tmp_path)
    assert found.returncode == 2 and said in found.stderr, found
    assert time.monotonic() - start < 300


@pytest.mark.forms
def test_what_was_measured_is_shown_where_the_folder_can_not_be_written(tmp_path: Path) -> None:
    """It was removed, and somebody else has made a file of its name."""
    work = ["--", "sh", "-c", "rm -rf new; echo text >new"]
    found = compare("--dossier", "new", *SMALL, *work, cwd=tmp_path)
    assert (
        found.returncode == 2 and "can't keep the record " in found.stderr and found.stderr.count("hakmem: can't") == 1
    )
    assert CHANGED in found.stdout and "peak RSS" in found.stdout


def test_what_was_measured_is_shown_where_a_page_can_not_be_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(report: object) -> str:
        raise ValueError("no plot")

    monkeypatch.setattr(html, "render", broken)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main(["compare", "--dossier", "new", *map(str, SMALL), "--", "true"])
    said = capsys.readouterr()
    assert (ended.value.code, "no plot" in said.err, "peak RSS" in said.out) == (70, True, True)


@pytest.mark.forms
def test_a_word_that_is_no_text(tmp_path: Path) -> None:
    words = [*COMPARE, "--dossier", "new", "-n", "1", "--warmup", "0", "--with", "hakmem,hakmem", "--"]
    found = subprocess.run([*words, b"echo", b"\xff | \n a"], capture_output=True, cwd=tmp_path, timeout=600)
    assert found.returncode == 0, found
    assert {"dossier.md", "dossier.html", "rule.json", "rule.md"} <= {
        path.name for path in (tmp_path / "new").iterdir()
    }
    (path,) = (tmp_path / "new").glob("*-dossier-*.json")
    assert ledger.load(path).cases
    assert (tmp_path / "new" / "dossier.md").read_text().partition("\n")[0].endswith("?")
    assert "\n    echo '" in (tmp_path / "new" / "rule.md").read_text()


@pytest.mark.long
def test_a_real_program(tmp_path: Path) -> None:
    """Two sizes, enough rounds: there is an answer, and every contestant is proved to have run."""
    program = "d = {i: str(i) * 9 for i in range(int(sys.argv[1]))}; print(len(d), sum(map(len, d.values())))"
    (tmp_path / "work.py").write_text(f"import sys; {program}")
    also = f"{sys.executable} work.py 60000"
    words = ["--also", also, "--", sys.executable, "work.py", 20000]
    found = compare("--dossier", "new", "--warmup", 0, "--with", "hakmem,glibc", *words, cwd=tmp_path)
    assert found.returncode == 0, found
    (path,) = (tmp_path / "new").glob("*-dossier-*.json")
    record = ledger.load(path)
    assert record.rounds == 12 and len(record.cases) == 2 and record.failures == []
    assert {"hakmem", "glibc", "glibc-2-arenas"} <= record.variants.keys()
    assert "too few rounds" not in (tmp_path / "new" / "dossier.md").read_text()


def test_a_service_that_a_script_starts_without_exec_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's memory is not the service's, and the service goes on when the script is asked to end."""
    monkeypatch.setattr(cases, "END_S", 0.2)
    service = ("sh", "-c", "sleep 600; true")
    case = cases.DossierCase(service, client=("sleep", "0.5"), counts_calls=False)
    with pytest.raises(LabError, match="what the service has started did not end within .* without exec"):
        case.run(Variant("glibc", allocators.glibc()))
