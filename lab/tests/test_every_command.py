"""What a user does wrong, or what goes wrong under a command: a line that names it and an exit status, for every
command. The commands are taken from the command line itself, and so are their options that name files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hakmem import cli, native

# Arguments with which a command has something to do: as little as can be. {pid} is a process on hakmem.
CALLS = {
    "run": "-- true",
    "settings": "",
    "doctor": "",
    "compare": "-n 1 --warmup 0 --with glibc -- true",
    "predict": "-n 1 --replays 1 --with glibc -- true",
    "bench": "--sanity -n 1 --with glibc hot",
    "demo": "--check --only python3",
    "services": "--rest 0 --with glibc --load true -- sleep 100",
    "ab": "-n 1 --a - --b PREFAULT=1 -- true",
    "baseline": "--sanity",
    "bisect": "--good HEAD~1 -- true",
    "hot": "-- true",
    "explain": "-- true",
    "moments": "-n 1",
    "ctl": "{pid} stats",
    "top": "--interval 0.1",
    "learn": "-- true",
    "sweep": "--trials 4 --knob decay_ms -n 1 -- true",
    "adapt switching": "--seconds 0.01 --visits 1 -n 1",
    "adapt excursion": "--try decay_ms=4000 -n 1 -- true",
    "adapt policy": "--seconds 0.01 --visits 3 -n 1 idle",
    "adapt elo": "--seconds 0.01 -n 1 python3",
    "tune-log": "{statistics}",
    "profile": "-- true",
    "record": "-- true",
    "replay": "-n 1 --with glibc --sanity {trace}",
    "placement": "{trace}",
    "peers list": "",
    "peers install": "glibc",
    "claims": "",
    "health": "--profile default",
    "ready": "--quick",
    "pins": "-- true",
    "serve": "",
    "fleet analyse": "--prometheus http://127.0.0.1:1 x",
}
# Commands that do something else with an option: in the tests that need no more than words.
MODES = {
    "run --repeatable": "-- true",
    "run --secure": "-- true",
    "compare --dossier=new": "-n 1 --warmup 0 --with hakmem,hakmem -- true",
}
NO_RESULT = {"run", "ctl", "learn", "profile", "record", "peers install", "serve"}  # on standard output as a table

LONGEST_S = 1.0  # then Ctrl-C
REFUSES_S = 300.0  # a refusal comes at once, but for a busy machine
HAKMEM = [sys.executable, "-m", "hakmem"]
NOBODY = 65534


def leaves(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, f"{before}{name} ")
        else:
            yield before + name, command


COMMANDS = dict(leaves(cli.cli))


def files_of(name: str, is_written: bool) -> list[str]:
    """Options that name a file that is written, or read."""
    return [
        option.opts[0]
        for option in COMMANDS[name].params
        if isinstance(option, click.Option) and isinstance(option.type, click.Path) and option.type.exists != is_written
    ]


@pytest.fixture(scope="module")
def words_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[str]]]:
    """By command, with files and a process that are good."""
    folder = tmp_path_factory.mktemp("good")
    statistics, trace = folder / "statistics.json", folder / "some.trace"
    settings = {"LD_PRELOAD": str(native.library()), "HAKMEM_STATS": f"json:{statistics}"}
    subprocess.run(["true"], env={**os.environ, **settings}, check=True)
    subprocess.run([*HAKMEM, "record", "-o", trace, "--", "sh", "-c", ":"], check=True, capture_output=True)
    given = {"LD_PRELOAD": str(native.library()), "HAKMEM_CTL": "1"}
    with subprocess.Popen(["sleep", "1000"], env={**os.environ, **given}) as child:
        places = {"pid": child.pid, "statistics": statistics, "trace": trace}
        yield {name: [*name.split(), *call.format(**places).split()] for name, call in (CALLS | MODES).items()}
        child.kill()


class Ended:
    def __init__(self, status: int, error: str, interrupted: bool) -> None:
        self.status, self.error, self.interrupted = status, error, interrupted

    def __repr__(self) -> str:
        return f"{self.status}, {self.error!r}, interrupted: {self.interrupted}"

    def expect_no_traceback(self) -> None:
        """And that what went wrong has the last line, or its end, where Ctrl-C came while a line was written."""
        assert "Traceback" not in self.error and "Exception ignored" not in self.error, self
        assert "an error of its own" not in self.error, self
        assert self.status in (0, 1, 2, 77, 130), self
        last = "".join(self.error.splitlines()[-1:])
        is_half = self.status == 130 and last.endswith("hakmem: interrupted")
        assert self.status in (0, 1, 77) or last.startswith("hakmem: ") or is_half, self

    def expect_refusal(self, *names: str) -> None:
        """In one line that has one of these, and before anything was done."""
        assert self.status == 2 and not self.interrupted and self.error.count("\n") == 1, self
        assert self.error.startswith("hakmem: ") and any(name in self.error for name in names), self


def ends(words: list[str], folder: Path, shell: str = 'exec "$@"', after_s: float = LONGEST_S, **options: Any) -> Ended:
    """In a folder, by way of a shell that prepares something; with Ctrl-C when it goes on for long."""
    call = ["sh", "-c", shell, "sh", *HAKMEM, *words]
    given = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "errors": "replace", **options}
    with subprocess.Popen(call, cwd=folder, stderr=subprocess.PIPE, start_new_session=True, **given) as child:
        interrupted = False
        try:
            error = child.communicate(timeout=after_s)[1]
        except subprocess.TimeoutExpired:
            interrupted = True
            os.killpg(child.pid, signal.SIGINT)
            try:
                error = child.communicate(timeout=600)[1]
            finally:
                child.kill()
    return Ended(child.returncode, error, interrupted)


every_command = pytest.mark.parametrize("name", COMMANDS)
every_call = pytest.mark.parametrize("name", [*COMMANDS, *MODES])


def test_no_command_is_forgotten() -> None:
    assert COMMANDS.keys() == CALLS.keys()


@every_command
def test_its_result_can_be_had_as_json(name: str) -> None:
    assert ("--json" in files_of(name, is_written=True)) == (name not in NO_RESULT)


SPEAKING = [name for name, call in CALLS.items() if call.endswith("-- true") and name not in NO_RESULT | {"bisect"}]


@pytest.mark.forms
@pytest.mark.parametrize("name", [*SPEAKING, "explain --after 0", "pins --after 0"])
def test_json_on_standard_output_is_alone_there(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    """Whatever the command that is run says."""
    command, *after = name.split(maxsplit=1) if "--" in name else (name,)
    *words, _ = words_of[command]
    own = len(command.split())
    call = [*words[:own], "--json", "-", *" ".join(after).split(), *words[own:], "sh", "-c", "echo hello; sleep 0.2"]
    done = subprocess.run([*HAKMEM, *call], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode in (0, 1), done.stderr
    assert isinstance(json.loads(done.stdout), (dict, list))


@every_command
def test_a_place_is_for_one_result(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    first, *rest = words_of[name][: name.count(" ") + 1], words_of[name][name.count(" ") + 1 :]
    written = [option for option in files_of(name, is_written=True) if option in ("--json", "--markdown")]
    if len(written) == 2:
        for place, said in (("-", "standard output"), ("x", "that file")):
            call = [*first, *(word for option in written for word in (option, place)), *rest[0]]
            ends(call, tmp_path, after_s=REFUSES_S).expect_refusal(f"{said} is another option's already")


@every_call
def test_standard_output_is_closed(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    if name.split()[0] != "run":
        ends(words_of[name], tmp_path, shell='exec "$@" >&-', after_s=REFUSES_S).expect_refusal(
            "standard output is closed"
        )


@pytest.mark.forms
@every_call
def test_the_device_is_full(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    done = ends(words_of[name], tmp_path, shell='exec "$@" >/dev/full')
    done.expect_no_traceback()


@pytest.mark.forms
@every_call
def test_nobody_reads(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as out:
        ends(words_of[name], tmp_path, stdout=out).expect_no_traceback()


@pytest.mark.forms
@every_call
def test_the_working_directory_is_gone(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    ends(words_of[name], tmp_path / "gone", shell='rmdir "$PWD"; exec "$@"').expect_no_traceback()


@pytest.mark.forms
@every_call
def test_there_is_no_place_for_temporary_files(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    given = {**os.environ, "TMPDIR": "/proc"}
    ends(words_of[name], tmp_path, env=given).expect_no_traceback()


@pytest.mark.forms
@pytest.mark.parametrize("after_s", [0.1, 0.4])
@every_call
def test_ctrl_c(name: str, after_s: float, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    done = ends(words_of[name], tmp_path, after_s=after_s)
    if done.status == -signal.SIGINT:  # while Python begins, or reads `signal`, or of what `run` became
        assert done.error.count("/hakmem/") == ("\n    import signal\n" in done.error), done
    else:
        done.expect_no_traceback()


def test_ctrl_c_within_an_import_comes_after_it(tmp_path: Path) -> None:
    """Where Python would lose it: in a weak reference's callback, of a module that is read."""
    (tmp_path / "slow.py").write_text(
        """
import os, signal, weakref
class Thing: pass
thing = Thing()
reference = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
del thing
done = "read"
"""
    )
    program = """
import signal
from hakmem import __main__
signal.signal(signal.SIGINT, __main__.interrupt)
try:
    import slow
    print(slow.done, flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("read\ninterrupted\n", "")


def test_a_signal_that_comes_while_the_commands_begin_is_told() -> None:
    program = """
import os, signal
from hakmem import __main__
def early(number, handler, install=signal.signal):
    before = install(number, handler)
    if handler is __main__.interrupt: os.kill(os.getpid(), number)
    return before
signal.signal = early
__main__.main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "hakmem: interrupted\n")


def test_a_command_that_is_interrupted_ends_with_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: click.Command("run", callback=interrupted))
    with pytest.raises(SystemExit) as ended:
        cli.main(["run"])
    assert (ended.value.code, capsys.readouterr().err) == (130, "hakmem: interrupted\n")


@pytest.mark.parametrize("returned", [None, 0, 1, 3])
def test_what_a_command_returns_is_its_exit_status(returned: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the process, and where a test calls it."""
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: click.Command("run", callback=lambda: returned))
    assert CliRunner().invoke(cli.cli, ["run"]).exit_code == (returned or 0)
    with pytest.raises(SystemExit) as ended:
        cli.main(["run"])
    assert ended.value.code == (returned or 0)


@pytest.mark.forms
@every_command
def test_what_it_is_to_write_can_t_be_written(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    first, *rest = words_of[name][: name.count(" ") + 1], words_of[name][name.count(" ") + 1 :]
    (tmp_path / "folder").mkdir()
    for option in files_of(name, is_written=True):
        for bad in ("no/file", "folder", "/proc/self/none"):
            done = ends([*first, option, bad, *rest[0]], tmp_path, after_s=REFUSES_S)
            done.expect_refusal(f"can't write {bad}", f"{bad}' is a directory")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@contextlib.contextmanager
def strangers() -> Iterator[int]:
    """A process on hakmem of another user's."""
    given = {**os.environ, "LD_PRELOAD": str(native.library()), "HAKMEM_CTL": "1"}
    with subprocess.Popen(["sleep", "1000"], env=given, user=NOBODY, group=NOBODY, extra_groups=[]) as child:
        try:
            yield child.pid
        finally:
            child.kill()


@pytest.mark.forms
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="takes another user's files")
@every_command
def test_who_has_no_rights(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    """In a folder that can neither be read nor written, and of processes of somebody else."""
    closed = tmp_path / "closed"
    closed.mkdir(0o711)
    os.chown(closed, NOBODY, NOBODY)
    powerless = 'exec setpriv --bounding-set=-all --inh-caps=-all "$@"'
    words, own = words_of[name], words_of[name][: name.count(" ") + 1]
    ends(words, closed, shell=powerless).expect_no_traceback()
    for option in files_of(name, is_written=True):
        done = ends([*own, option, "file", *words[len(own) :]], closed, shell=powerless, after_s=REFUSES_S)
        done.expect_refusal("can't write file: Permission denied")
    if name in ("ctl", "explain", "top"):
        with strangers() as pid:
            ends([*own, str(pid)], closed, shell=powerless, after_s=REFUSES_S).expect_refusal(
                "belongs to nobody", "another user's"
            )


ENDLESS = "/dev/zero"
BAD_FILES = ("none", "folder", "garbage", "empty", "unreadable\udcff", "deep", ENDLESS)


@pytest.mark.forms
@every_command
def test_what_it_is_to_read_is_nothing_of_the_kind(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").touch()
    (tmp_path / "deep").write_text('{"a":' * 100_000)
    for garbage in ("garbage", "unreadable\udcff"):
        (tmp_path / garbage).write_bytes(os.urandom(10000))
        (tmp_path / garbage).chmod(0o755)
    words = words_of[name]
    first = words[: name.count(" ") + 1]
    calls = [[*first, *option] for option in ([one] for one in files_of(name, is_written=False))]
    if "--" in words:
        calls.append(words[: words.index("--") + 1])
    elif CALLS[name].endswith("}"):
        calls.append(words[:-1])
    for call in calls:
        for bad in BAD_FILES:
            many = 2 if call[-1] == "--diff" else 1
            path = os.path.join(".", bad) if call[-1] == "--" else bad
            is_refused = bad in (*BAD_FILES[:2], ENDLESS)
            done = ends([*call, *[path] * many], tmp_path, after_s=REFUSES_S if is_refused else LONGEST_S)
            if bad in BAD_FILES[:2]:
                done.expect_refusal(bad)
            else:  # a shell would take it for a script
                done.expect_no_traceback()
                assert done.status != 0 and not (done.interrupted and bad == ENDLESS), done


@pytest.mark.forms
@every_call
def test_garbage_on_its_command_line(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    first = name.split()
    for garbage in (["--\udcff\x1b[2J"], ["--nosuch=\udcff"], ["\udcff" * 3], ["-1"], ["9" * 5000], ["\x1b[2J"], [""]):
        done = ends([*first, *garbage], tmp_path, after_s=LONGEST_S)
        done.expect_no_traceback()
        assert "\x1b" not in done.error


@every_command
def test_an_option_that_it_does_not_have(name: str, words_of: dict[str, list[str]], tmp_path: Path) -> None:
    """Not taken for the command to run."""
    own = name.count(" ") + 1
    words = words_of[name]
    ends([*words[:own], "--nosuch", *words[own:]], tmp_path, after_s=REFUSES_S).expect_refusal("No such option")


@pytest.mark.parametrize("name", ["explain", "pins", "ctl"])
def test_an_option_behind_a_process(name: str, tmp_path: Path) -> None:
    """Not taken for an argument of a command 1."""
    ends([name, "1", "--json", "x"], tmp_path, after_s=REFUSES_S).expect_refusal("options stand before PID")


@pytest.mark.parametrize(
    "words", [["nosuch"], ["--nosuch"], ["\udcff"], [""], ["adapt", "nosuch"], ["peers", "nosuch"]]
)
def test_garbage_in_place_of_a_command(words: list[str], tmp_path: Path) -> None:
    ends(words, tmp_path, after_s=REFUSES_S).expect_refusal("nosuch", "no command")
