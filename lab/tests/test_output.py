"""Where results go, and that the command line turns bad input into one line and an exit status."""

from __future__ import annotations

import errno
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hakmem import allocators, cli, comparison, ctl, ledger, measure, native, output, report
from hakmem.errors import LabError
from hakmem.report.model import Report
from sample_record import record

SAMPLE = record()


def finish(**files: object) -> None:
    wanted = {"json_file": None, "markdown_file": None, "html_file": None, "keep": None, **files}
    output.finish(SAMPLE, lambda kept: comparison.suite_report(SAMPLE, "suite", kept=kept), **wanted)  # type: ignore[arg-type]


def test_closed_standard_output() -> None:
    for words in ("top", "ctl 1 stats", "run true"):
        done = subprocess.run(
            ["/bin/sh", "-c", f"exec {Path(sys.executable).parent}/hakmem {words} >&-"],
            capture_output=True,
            text=True,
            timeout=600,
        )
        expected = (0, "") if words == "run true" else (2, "hakmem: standard output is closed\n")
        assert (done.returncode, done.stderr) == expected


def hakmem_with(closed: str, *words: object) -> tuple[int, str]:
    """Exit status, and what stands on standard output."""
    call = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "hakmem", *map(str, words)]
    done = subprocess.run(call, stdout=subprocess.PIPE, text=True, timeout=600)
    return done.returncode, done.stdout


NO_HOME = """
import os, pwd, sys
def unknown(number):
    raise KeyError(number)
del os.environ["HOME"]
pwd.getpwuid = unknown
from hakmem.__main__ import main
sys.argv[0] = "hakmem"
main()
"""


@pytest.mark.forms
def test_a_user_without_a_home_keeps_what_was_measured(tmp_path: Path) -> None:
    """As in a container that is run by a number."""
    words = ["compare", "-n", "1", "--warmup", "0", "--html", "page", "--json", "record", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-c", NO_HOME, *words],
        cwd=tmp_path,
        env={**os.environ, "HOME": "/"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "record").read_text())["rounds"] == 1
    assert "</html>" in (tmp_path / "page").read_text()


def test_a_page_that_can_not_be_drawn_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "hakmem.report.html", None)  # its import fails,
    monkeypatch.delattr(report, "html", raising=False)  # also where another test has had it
    with pytest.raises(ImportError):
        finish(html_file=tmp_path / "page", json_file=tmp_path / "record", markdown_file=tmp_path / "text")
    assert json.loads((tmp_path / "record").read_text())["id"] == SAMPLE.id
    assert (tmp_path / "text").read_text().startswith("# ")
    assert "geometric mean" in capsys.readouterr().out


@pytest.mark.parametrize("folder", [".", "src", "own"])
def test_who_is_in_another_checkout_is_told_which_library_runs(folder: str, tmp_path: Path) -> None:
    """He may have built that one."""
    (tmp_path / "src").mkdir()
    (tmp_path / "lab").mkdir()
    (tmp_path / "src" / "hakmem.c").touch()
    root = native.checkout()
    there = root if folder == "own" else tmp_path / folder
    words = ["compare", "-n", "1", "--warmup", "0", "--", "true"]
    done = subprocess.run(
        [sys.executable, "-m", "hakmem", *words], cwd=there, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    said = f"hakmem: what runs is {native.library()}, from where this command was installed, not {tmp_path}\n"
    assert done.returncode == 0 and done.stderr.count(said) == (folder != "own")


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-"])
def test_closed_standard_error(closed: str, tmp_path: Path) -> None:
    """What would be said there is said nowhere."""
    status, out = hakmem_with(closed, "compare", "-n", "1", "--warmup", "0", "--with", "glibc", "--", "true")
    assert status == 0 and "wall time" in out and "hakmem: " not in out
    file = tmp_path / "sh.trace"
    assert hakmem_with(closed, "record", "-o", file, "--", "sh", "-c", ":") == (0, "")
    status, out = hakmem_with(closed, "replay", "-n", "1", "--warmup", "0", "--with", "glibc", file)
    assert status == 0 and "hakmem: " not in out
    assert hakmem_with(closed, "compare", "--", "no-such-command") == (2, "")


def test_what_runs_finds_closed_what_is_closed() -> None:
    test = "[ ! -e /proc/self/fd/1 ] && [ ! -e /proc/self/fd/2 ]"
    assert hakmem_with(">&- 2>&-", "run", "sh", "-c", test) == (0, "")
    assert hakmem_with(">&-", "run", "--help") == (0, "")


def test_table_goes_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    finish()
    assert "geometric mean" in capsys.readouterr().out


def test_json_on_standard_output_is_the_record_alone(capsys: pytest.CaptureFixture[str]) -> None:
    finish(json_file=Path("-"))
    assert json.loads(capsys.readouterr().out)["id"] == SAMPLE.id


def test_all_files_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "folder", lambda: tmp_path / "evidence")
    finish(json_file=tmp_path / "r.json", markdown_file=tmp_path / "r.md", html_file=tmp_path / "r.html", keep="suite")
    assert "| " in (tmp_path / "r.md").read_text() and "<svg" in (tmp_path / "r.html").read_text()
    (kept,) = (tmp_path / "evidence").iterdir()
    assert kept.name.startswith("2026-01-02-suite-") and ledger.load(kept).series == SAMPLE.series
    assert "record 2026-01-02-suite" in capsys.readouterr().out


def test_ledger_that_cannot_be_written_loses_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evidence").write_text("in the way")
    monkeypatch.setattr(ledger, "folder", lambda: tmp_path / "evidence")
    with pytest.raises(LabError):
        finish(keep="suite")
    assert "geometric mean" in capsys.readouterr().out


@pytest.mark.forms
def test_a_page_needs_no_home(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hakmem", "explain", "--html", str(tmp_path / "page.html"), "--", "true"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MPL"))}
    done = subprocess.run(
        command, env={**environment, "HOME": "/proc/none"}, capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "<svg" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize("full", [True, False])
def test_output_that_cannot_be_written(full: bool) -> None:
    words = [sys.executable, "-c", "from hakmem import cli; cli.main(['--help'])"]
    reader, writer = (-1, os.open("/dev/full", os.O_WRONLY)) if full else os.pipe()
    if not full:
        os.close(reader)
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    expected = "hakmem: can't write the output: No space left on device\n" if full else ""
    assert (done.returncode, done.stderr) == (1, expected)


def test_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="can't write .*: No such file or directory"):
        finish(html_file=tmp_path / "no" / "folder.html")


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_file_is_tried_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure", lambda *words, **options: pytest.fail("measured"))
    (tmp_path / "file").write_text("in the way")
    status, _, said = call(["bench", "--json", str(tmp_path / "file" / "r.json"), "hot"], capsys)
    assert status == 2 and said == f"hakmem: can't write {tmp_path}/file/r.json: Not a directory\n"
    assert (tmp_path / "file").read_text() == "in the way"


def test_what_no_command_expects_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: object) -> None:
        raise PermissionError(13, "Permission denied", "/some/\x1bfile")

    monkeypatch.setattr(native, "library", fail)
    assert call(["run", "true"], capsys) == (2, "", "hakmem: /some/?file: Permission denied\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_asks_a_measurement_to_end_gets_its_whole_rounds(number: int, tmp_path: Path) -> None:
    """As `timeout` and a terminal that is closed do. No files are left behind."""
    words = ["compare", "-n", "10000", "--warmup", "0", "--with", "glibc", "--", "true"]
    call = [sys.executable, "-m", "hakmem", *words]
    given = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=given) as child:
        assert child.stderr is not None
        while "round 2 of" not in child.stderr.readline():
            assert child.poll() is None
        child.send_signal(number)
        out, error = child.communicate(timeout=600)
    assert child.returncode == 130 and "peak RSS" in out and "Traceback" not in error, error
    assert list(tmp_path.iterdir()) == []


def test_a_place_for_the_record_is_looked_for_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "evidence"):
        monkeypatch.setattr(ledger, "folder", lambda folder=folder: folder)
        run = ["-n", "1", "--warmup", "0", "--with", "glibc", "--", "touch", f"{tmp_path}/ran"]
        status, out, err = call(["compare", "--keep", "x", *run], capsys)
        assert (status, out, err.count("\n")) == (2, "", 1) and f"can't write {folder}" in err, err
    assert not (tmp_path / "ran").exists()


def test_the_debian_package_has_the_same_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one at which Ctrl-C is one line also while modules are imported."""
    entered: list[bool] = []
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("hakmem.__main__.main", lambda: entered.append(True))
    runpy.run_path(str(Path(__file__).resolve().parents[2] / "packaging" / "debian" / "hakmem.py"))
    assert entered == [True]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(["--version"], capsys)
    assert (status, err) == (0, "")
    own, library = out.splitlines()
    commit = r"(, commit [0-9a-f]{12}(, changed since)?)?"
    assert re.fullmatch(rf"hakmem \d+\.\d+\.\d+{commit}", own), own
    assert library == f"libhakmem {native.version(native.library())}, {native.library()}"


def test_what_was_measured_is_shown_where_one_form_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk is full by then."""

    def full(descriptor: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    files = [tmp_path / name for name in ("a.json", "a.md")]
    with pytest.raises(LabError, match="^can't write .*/a.json: No space left on device$"):
        output.show(Report("a title", "a command", ()), files[1], None, plain=(files[0], "{}"))
    assert "a title" in capsys.readouterr().out and not any(map(Path.exists, files))


def test_nothing_stands_behind_what_breaks_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The disk that standard output goes to is full, and has room again."""
    write = sys.stdout.write

    def breaks_off(text: str) -> int:
        monkeypatch.setattr(sys.stdout, "write", write)
        write(text[:5])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sys.stdout, "write", breaks_off)
    with pytest.raises(OSError, match="No space left"):
        output.show(Report("a title", "a command", ()), None, None, plain=(Path("-"), '{"rounds": 1}'))
    assert capsys.readouterr().out == '{"rou'


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("hakmem com", "plain,compare"),
        ("hakmem ab --m", "plain,--matrix"),
        ("hakmem run -- ./p", "file,./p"),
        ("hakmem compare -n 5 -- python3 s", "file,s"),
        ("hakmem replay t", "file,t"),
        ("hakmem replay gi", "plain,git"),
        ("hakmem bench lar", "plain,larson 64"),
        ("hakmem bench --with hakmem,mi", "plain,hakmem,mimalloc2"),
        ("hakmem compare --with gl", "plain,glibc"),
        ("hakmem run --set THP", "plain,THP="),
        ("hakmem services --only Red", "plain,Redis"),
        ("hakmem demo --only sq", "plain,sqlite3"),
    ],
)
def test_completion(words: str, expected: str) -> None:
    asked = {"_HAKMEM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = subprocess.run(
        [Path(sys.executable).parent / "hakmem"], env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert expected in done.stdout.splitlines(), done


def test_processes_on_hakmem_are_completed() -> None:
    with subprocess.Popen([sys.executable, "-m", "hakmem", "run", "sleep", "100"]) as child:
        try:
            while not ctl.is_on_hakmem(child.pid) or Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n":
                time.sleep(0.02)
            for words in ("hakmem ctl ", "hakmem doctor --pid ", "hakmem top "):
                asked = {"_HAKMEM_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
                program = Path(sys.executable).parent / "hakmem"
                done = subprocess.run([program], env={**os.environ, **asked}, capture_output=True, text=True)
                lines = done.stdout.splitlines()
                assert f"plain,{child.pid}" in lines and f"plain,{os.getpid()}" not in lines
        finally:
            child.kill()


def test_zsh_serves_the_first_tab() -> None:
    """Which loads the package's file: what stands in it is done as a part of that."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed: Debian's package zsh")
    folder = Path(__file__).resolve().parents[2] / "packaging" / "completions"
    says = 'print "_hakmem_completion() { print served \\$1; }; compdef _hakmem_completion hakmem"'
    script = f"fpath=({folder}); compdef() {{ }}; hakmem() {{ {says} }}; autoload -Uz _hakmem; _hakmem once"
    done = subprocess.run(["zsh", "-fc", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("served once\n", "")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["compare"], "hakmem: no command: expected `hakmem compare"),
        (["compare", "--", "no-such-command"], "hakmem: no-such-command: command not found"),
        (["compare", "--with", "nosuch", "--", "true"], "hakmem: no allocator 'nosuch'; known are hakmem, glibc"),
        (["compare", "--with", "glibc=/bin/true", "--", "true"], "hakmem: glibc=/bin/true: glibc is the C"),
        (["compare", "--with", "x=/no/file", "--", "true"], "hakmem: x=/no/file: expected NAME=PATH"),
        (["compare", "--by", "speed", "--", "true"], "hakmem: --by speed: expected one of wall_s"),
        (["compare", "--by", "p99_s", "--", "true"], "hakmem: --by p99_s: expected one of wall_s"),
        (
            ["compare", "--json", "/tmp/x y", "--html", "/tmp/x y", "--", "true"],
            "hakmem: --html /tmp/x y: that file is ",
        ),
        (["compare", "--baseline", "x", "--with", "glibc", "--", "true"], "hakmem: --baseline x: not among glibc"),
        (["compare", "-n", "0", "--", "true"], "hakmem: Invalid value for '-n'"),
        (["compare", "--nosuch", "--", "true"], "hakmem: No such option"),
        (["compare", "--keep", "Bad Name", "--", "true"], "hakmem: --keep Bad Name: expected a name of small letters"),
        (["bench", "nosuch"], "hakmem: no case 'nosuch'"),
        (["bench", "--baseline", "x", "--sanity", "hot"], "hakmem: --baseline x: not among hakmem, glibc, ceiling"),
        (["replay", "--baseline", "x", "--sanity", "lua"], "hakmem: --baseline x: not among hakmem, glibc"),
        (["demo", "--only", "nosuch"], "hakmem: no program 'nosuch'"),
        (["nosuch"], "hakmem: no command 'nosuch'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is run: there is no line of a round."""
    status, out, err = call(words, capsys)
    assert status == 2 and out == "" and err.count("\n") == 1 and err.startswith(line), (status, out, err)


def test_command_that_fails_under_one_allocator_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The odd one is the C library with a setting on which the command fails."""
    odd = measure.Variant("odd", allocators.glibc(), {"MALLOC_TOP_PAD_": "1"})
    monkeypatch.setattr(measure, "variants", lambda found: [measure.Variant("glibc", allocators.glibc()), odd])
    status, out, err = call(["compare", "-n", "2", "--", "sh", "-c", "test -z $MALLOC_TOP_PAD_ || kill -9 $$"], capsys)
    assert status == 1
    assert "odd: sh was killed by signal 9" in out and "wall time" in out


def test_glibc_with_itself_has_names_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(["compare", "-n", "1", "--warmup", "0", "--with", "glibc,glibc", "--", "true"], capsys)
    assert status == 0 and "glibc #2" in out and "too few rounds: 1 of at least 6" in out
    assert "; one round; " in out and "1 rounds" not in out
