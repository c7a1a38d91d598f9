"""Rounds on a cluster: a scheduler and three workers as processes, as a user starts them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import dask
import distributed
import pytest
from click.testing import CliRunner
from hakmem import allocators, cli, cluster, comparison, ledger, measure, places, programs
from hakmem.errors import LabError
from hakmem.measure import Variant
from hakmem.report.model import Comparison

pytestmark = pytest.mark.forms

BIN = Path(sys.executable).parent
STARTS_S = 600


@dataclass(frozen=True)
class TypedCase(measure.CommandCase):
    """What another type of machine does: all of it takes four times as long. The seconds are made up, so that a busy
    machine doesn't move them. Workers import this module for it."""

    def run(self, variant: Variant) -> measure.Sample:
        sample = super().run(variant)
        seconds = (0.4 if "SLOW_MACHINE" in os.environ else 0.1) * (1.5 if variant.settings else 1)
        return replace(sample, values={**sample.values, "wall_s": seconds})


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Machines:
    address: str
    scheduler: subprocess.Popen[bytes]
    workers: dict[str, subprocess.Popen[bytes]]


@contextlib.contextmanager
def started(folder: Path, **environments: dict[str, str]) -> Iterator[Machines]:
    """A scheduler, and a worker of each name with these variables in its environment."""
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    common = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(Path(__file__).parent)}
    with contextlib.ExitStack() as running:

        def start(name: str, words: list[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
            log = running.enter_context(open(folder / f"{name}.log", "wb"))
            own = folder / name
            own.mkdir()
            child = subprocess.Popen(words, env={**common, **more}, stdout=log, stderr=log, cwd=own)
            running.callback(child.wait)
            running.callback(child.kill)
            return child

        dask = str(BIN / "dask")
        words = ["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
        scheduler = start("scheduler", [dask, *words], {})
        flags = ["--no-nanny", "--no-dashboard", "--nthreads", "1", "--resources", "machine=1"]
        workers = {
            name: start(name, [dask, "worker", address, "--name", name, *flags], more)
            for name, more in environments.items()
        }
        deadline = time.monotonic() + STARTS_S
        while True:
            with contextlib.suppress(LabError), cluster.connected(address) as place:
                if len(place.machines()) == len(workers):
                    break
            if time.monotonic() > deadline:
                pytest.fail("".join(path.read_text() for path in folder.glob("*.log")))
        yield Machines(address, scheduler, workers)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """One of them of another type."""
    with started(tmp_path_factory.mktemp("three"), fast={}, quick={}, slow={"SLOW_MACHINE": "slow"}) as machines:
        yield machines


def case() -> measure.CommandCase:
    return TypedCase(("true",), timeout_s=600)


def sides() -> list[Variant]:
    return [Variant("glibc", allocators.glibc()), Variant("later", allocators.glibc(), {"HAKMEM_PREFAULT": "later"})]


def test_a_library_that_a_machine_has_is_not_written_again(three: Machines) -> None:
    """A program of somebody else's round may be running on it."""

    def sent(name: str) -> list[int]:
        with cluster.connected(three.address) as place:
            place._client.register_plugin(cluster.Library("0" * 64, name, b"some"))
            return sorted(place._client.run(written, name=name).values())

    def written(dask_worker: distributed.Worker, name: str) -> int:
        return Path(dask_worker.local_directory, "hakmem-libraries", "0" * 64, name).stat().st_mtime_ns

    first = sent("libsome.so")
    assert len(first) == 3 and sent("libsome.so") == first
    assert len(sent("libsame.so")) == 3


def test_a_machine_of_another_type_does_not_move_the_ratio(three: Machines) -> None:
    with places.opened(three.address) as place:
        done = measure.measure([case()], sides(), 24, warmup=1, place=place)
    assert (done.rounds, len(done.blocks), {*done.blocks}) == (24, 24, {"fast", "quick", "slow"})
    record = ledger.from_measurement(done, "compare", start=next(iter(done.machines.values())))
    assert {*record.machines} == {"fast", "quick", "slow"} and record.blocks == done.blocks
    base = record.values(case().name, "glibc", "wall_s")
    assert max(base) > 3.5 * min(base)  # the types do differ
    shown = comparison.report(record, "compare").sections[0]
    assert isinstance(shown, Comparison)
    ratio = shown.cases[0].entry("later").ratio
    assert ratio is not None and ratio.low < 1.55 and ratio.high > 1.4 and ratio.high - ratio.low < 0.3, ratio


def test_each_machine_goes_through_the_orders_by_itself(three: Machines) -> None:
    turns: list[measure.Turn] = []
    with places.opened(three.address) as place:
        only = measure.CommandCase(("true",))
        measure.measure([only], sides(), 12, warmup=0, place=Spied(place, turns))
    by_machine: dict[str, list[int]] = {}
    for name, turn in zip(Spied.names, turns, strict=True):
        by_machine.setdefault(name, []).append(turn.number)
    assert all(numbers == list(range(len(numbers))) for numbers in by_machine.values())
    assert len(by_machine) == 3


class Spied:
    names: list[str] = []

    def __init__(self, place: measure.Place, turns: list[measure.Turn]) -> None:
        self.place, self.turns = place, turns
        Spied.names = []

    def run(self, next_turn, on_run):  # type: ignore[no-untyped-def]
        def spied(name: str) -> measure.Turn | None:
            turn: measure.Turn | None = next_turn(name)
            if turn is not None:
                Spied.names.append(name)
                self.turns.append(turn)
            return turn

        return self.place.run(spied, on_run)


def test_a_lost_worker_loses_a_round_and_nothing_else(tmp_path: Path) -> None:
    """It is killed amid a round, which another one runs."""
    words = ("sh", "-c", f"echo x >>{tmp_path}/runs; sleep 0.4")
    killed: list[str] = []
    with started(tmp_path, a={}, b={}, c={}) as machines, places.opened(machines.address) as place:

        def kill(step: measure.Step) -> None:
            if step.round == 5 and not killed:  # on_step comes before the worker has it: it ends amid an earlier round
                victim = next(name for name in machines.workers if name != step.variant)
                killed.append(victim)
                machines.workers[victim].send_signal(signal.SIGKILL)

        done = measure.measure([measure.CommandCase(words)], sides(), 12, warmup=0, on_step=kill, place=place)
    assert done.rounds == len(done.blocks) == 12
    assert done.failures == [] and killed
    assert done.notes[0] == f"a round was lost with the machine {killed[0]}"
    assert all(len(samples) == 12 for by_variant in done.samples.values() for samples in by_variant.values())
    left = {block for number, block in enumerate(done.blocks) if number >= 6}
    assert killed[0] not in left and len(left) == 2


def test_a_machine_that_can_not_run_a_round_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By no fault of what it runs: it has no place for files any more."""
    room = tmp_path / "room"
    room.mkdir()
    more = {"full": {"TMPDIR": str(room)}, "good": {}}
    only = measure.CommandCase(("true",))
    with started(tmp_path, **more) as machines, places.opened(machines.address) as place:
        shutil.rmtree(room)
        done = measure.measure([only], sides(), 8, warmup=1, place=place)
        assert (done.rounds, {*done.blocks}, done.failures) == (8, {"good"}, [])
        (line,) = [line for line in capfd.readouterr().err.splitlines() if "left out" in line]
        assert line.startswith("hakmem: full is left out, by FileNotFoundError: [Errno 2] No such file")
        machines.workers["good"].kill()
        machines.workers["good"].wait()
        with pytest.raises(LabError, match="^no machine has run a whole round; nothing to keep$"):
            measure.measure([only], sides(), 8, warmup=1, place=place)


def test_a_machine_without_the_library_that_was_sent_is_left_out(tmp_path: Path) -> None:
    """It had no room for it, or somebody has cleaned up."""

    def forget(dask_worker: distributed.Worker) -> None:
        dask_worker.local_directory = "/dev/null"

    with started(tmp_path, good={}, bare={}) as machines, cluster.connected(machines.address) as place:
        hakmem = [Variant("hakmem", allocators.hakmem()), Variant("glibc", allocators.glibc())]
        place._client.run(forget, workers=[address for address, name in place.machines().items() if name == "bare"])
        done = measure.measure([measure.CommandCase(("true",))], hakmem, 6, warmup=1, place=place)
    assert (done.rounds, {*done.blocks}, done.failures) == (6, {"good"}, [])


def test_a_machine_with_another_laboratory_is_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One that comes, or becomes so, when the others have been looked at already."""
    changes, preload = tmp_path / "changes", tmp_path / "preload.py"
    preload.write_text(
        f"import os, platform\nchanges = {str(changes)!r}\n"
        "platform.machine = lambda own=platform.machine: 'another' if os.path.exists(changes) else own()\n"
    )
    with started(tmp_path, own={}, another={"DASK_DISTRIBUTED__WORKER__PRELOAD": str([str(preload)])}) as machines:
        with places.opened(machines.address) as place:
            changes.touch()
            done = measure.measure([measure.CommandCase(("true",))], sides(), 4, warmup=0, place=place)
        assert {*done.blocks} == {"own"} and done.rounds == 4
        with pytest.raises(LabError, match="another has .* on another, and here is "), places.opened(machines.address):
            pass
    said = capfd.readouterr().err
    assert "another is left out, by LabError: it has " in said and " on another, and here is " in said


def test_all_machines_are_there_at_any_moment(three: Machines) -> None:
    with dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}):
        with cluster.connected(three.address) as place:
            assert all(len(place.machines()) == 3 for _ in range(1000))


def test_a_lost_scheduler_loses_no_round_that_was_whole(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with started(tmp_path, a={}, b={}) as machines, places.opened(machines.address) as place:

        def kill(step: measure.Step) -> None:
            if step.round == 7:
                machines.scheduler.kill()

        command = measure.CommandCase(("sleep", "0.2"))
        done = measure.measure([command], sides(), 100, warmup=0, on_step=kill, place=place)
    assert 4 <= done.rounds < 10 and len(done.blocks) == done.rounds and done.interrupted
    assert f"{done.rounds} of 100 rounds: no machine was left" in done.notes
    assert all(len(samples) == done.rounds for by_variant in done.samples.values() for samples in by_variant.values())
    said = capfd.readouterr().err
    assert "hakmem: the scheduler is gone; rounds that were whole are kept\n" in said and "Traceback" not in said


def test_the_allocator_is_sent_and_proved(three: Machines, tmp_path: Path) -> None:
    """A library that the workers don't have under this name, and the settings of whoever measures."""
    library = tmp_path / "lib moved.so"
    shutil.copy(allocators.hakmem().library or "", library)
    kept = tmp_path / "record.json"
    words = ["compare", "-n", "3", "--warmup", "0", "--on", three.address, "--with", f"mine={library},glibc"]
    ask = "import os; assert os.environ['MALLOC_ARENA_MAX'] == '3'; assert 'HAKMEM_STATS' not in os.environ"
    done = CliRunner(env={"MALLOC_ARENA_MAX": "3"}).invoke(
        cli.cli, [*words, "--json", str(kept), "--", sys.executable, "-c", ask]
    )
    assert done.exit_code == 0, done.output
    record = json.loads(kept.read_text())
    assert record["settings"]["MALLOC_ARENA_MAX"] == "3"
    assert len(record["blocks"]) == 3 and {*record["blocks"]} <= {*record["machines"]} <= {"fast", "quick", "slow"}
    assert re.search(r"wall time by machine", done.output), done.output


def test_a_benchmark_a_trace_and_a_program(three: Machines) -> None:
    words = ["bench", "--sanity", "-n", "2", "--on", three.address, "--with", "hakmem,glibc", "hot,replay lua,python3"]
    done = CliRunner().invoke(cli.cli, words)
    assert done.exit_code == 0, done.output
    assert "replay lua" in done.output and "python3" in done.output and "failed: " not in done.output


def test_what_a_machine_has_prepared_is_there_in_its_later_rounds(three: Machines) -> None:
    """More rounds than machines: one of them runs two."""
    short = replace(programs.by_name("git"), command=("{exe}", "-C", "{repository}", "rev-parse", "HEAD"), processes=1)
    ready, missing = programs.cases([short])
    if missing:
        pytest.skip("git is not installed")
    with places.opened(three.address) as place:
        done = measure.measure(ready, sides(), 4, warmup=0, place=place)
    assert (done.rounds, done.failures) == (4, [])


def test_machines_that_did_different_work_are_told(three: Machines) -> None:
    words = ["compare", "-n", "9", "--on", three.address, "--", "sh", "-c", "echo $SLOW_MACHINE"]
    done = CliRunner().invoke(cli.cli, words)
    assert done.exit_code == 0 and "not every machine printed the same" in done.output, done.output


def test_what_fails_there_is_told(three: Machines) -> None:
    words = ["compare", "-n", "2", "--on", three.address, "--", "sh", "-c", "exit 3"]
    done = CliRunner().invoke(cli.cli, words)
    assert done.exit_code != 0 and "ended with exit status 3" in f"{done.output}{done.exception}"


def test_who_is_no_scheduler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cluster, "ANSWER_S", 1.0)
    for address in (f"tcp://127.0.0.1:{free_port()}", "nonsense://x", "tcp://", "tls://127.0.0.1:1"):
        with pytest.raises(LabError, match=f"--on {address}"), places.opened(address):
            pass
        clients = [one for one in gc.get_objects() if isinstance(one, distributed.Client)]
        assert all(one.status == "closed" for one in clients)  # the garbage collector has none to close
    hosts = tmp_path / "hosts.txt"
    with pytest.raises(LabError, match="No such file"), places.opened(f"ssh:{hosts}"):
        pass
    for endless in ("/dev/zero", "/dev/urandom"):
        with pytest.raises(LabError, match=f"^{endless}: no "), places.opened(f"ssh:{endless}"):
            pass
    hosts.write_text(" # mine\n\nonly.one\n")
    with pytest.raises(LabError, match="expected a host a line"), places.opened(f"ssh:{hosts}"):
        pass


def test_workers_that_offer_no_machine(three: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "RESOURCE", "another")
    with pytest.raises(LabError, match="no worker there was started with --resources another=1"):
        with places.opened(three.address):
            pass
