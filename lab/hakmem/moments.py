"""Real programs explained at work: whether the causes of their resident memory add up, at five moments of each run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import explain, native, process, programs, servers
from hakmem.allocators import hakmem
from hakmem.errors import LabError
from hakmem.explain import Explanation
from hakmem.measure import SameOutput, Sample, Variant

MOMENTS = 5
UNKNOWN = "most_unknown_percent"
IDLE_BURST = "idle burst"
# Seconds to the first moment, and from one to the next.
TIMES = {
    "python3": (0.4, 0.15),
    "node": (0.4, 0.15),
    "redis": (1.0, 0.5),
    "postgres": (1.2, 0.25),
    IDLE_BURST: (0.5, 1.5),
}


@dataclass(frozen=True)
class ExplainedCase:
    """A program that is explained while it works."""

    name: str
    same_output: SameOutput = "nowhere"

    @property
    def command(self) -> Sequence[str]:
        return _idle_burst() if self.name == IDLE_BURST else programs.by_name(self.name).command

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        found = explanations(self.name, variant)
        worst = max(one.error for one in found)
        values = {UNKNOWN: worst * 100, "resident_bytes": sum(one.resident for one in found) / len(found)}
        return Sample(values, "", full_size=True, units={UNKNOWN: "%", "resident_bytes": "B"})


def cases() -> list[ExplainedCase]:
    """Those whose programs are installed."""
    return [ExplainedCase(name) for name in TIMES if name == IDLE_BURST or programs.installed(programs.by_name(name))]


def variants() -> list[Variant]:
    return [Variant("hakmem", hakmem()), Variant("profiled", hakmem(), {"HAKMEM_HEAP_PROFILE": "1:/dev/null"})]


def explanations(name: str, variant: Variant) -> list[Explanation]:
    """Of one run. LabError when the program has ended too soon, however often it was looked at."""
    first_s, step_s = TIMES[name]
    for pause in (1.0, 0.5, 0.25, 0.125):  # a fast machine's programs may end before five moments
        with _started(name, variant) as pid:
            found = list(_at_moments(pid, first_s * pause, step_s * pause))
        if len(found) == MOMENTS:
            return found
    raise LabError(f"{name} ended before it was explained {MOMENTS} times")


def _at_moments(pid: int, first_s: float, step_s: float) -> Iterator[Explanation]:
    time.sleep(first_s)
    count = 0
    for _ in range(2 * MOMENTS):
        with contextlib.suppress(LabError):  # a child may have ended
            yield explain.of_process(_largest_of(pid))
            count += 1
        if count == MOMENTS:
            return
        time.sleep(step_s)


def _idle_burst() -> Sequence[str]:
    return [str(native.program("bench_idle_burst")), "2", str(256 << 20), "95", "10"]


@contextlib.contextmanager
def _started(name: str, variant: Variant) -> Iterator[int]:
    """The program at work, with somebody who talks to it if it is a server."""
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o755)
        cwd = Path(work, "run")
        cwd.mkdir()
        cwd.chmod(0o777)
        words, drive = (_idle_burst(), None) if name == IDLE_BURST else _prepared(programs.by_name(name), work, cwd)
        preload = {"LD_PRELOAD": ":".join(process.preload_words(variant.allocator))}
        child = subprocess.Popen(
            words,
            env={**programs.environment(cwd), **preload, **variant.settings},
            cwd=cwd,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        client = threading.Thread(target=drive, daemon=True) if drive else None
        if client:
            client.start()
        try:
            yield child.pid
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if client:
                client.join(30)


def _prepared(program: programs.Program, work: str, cwd: Path) -> tuple[list[str], Callable[[], None] | None]:
    """Its command, and the conversation with it."""
    paths = programs.installed(program)
    if paths is None:
        raise LabError(f"{program.name} is not installed: {program.package}")
    values = {"exe": paths[0], "inputs": str(programs.INPUTS), "python": programs.PYTHON, "work": work}
    values |= program.prepare(values) if program.prepare else {}
    values |= {"cwd": str(cwd), "port": servers.free_port()}
    if program.set_up:
        program.set_up(values)
    words, drive = programs.command_of(program, values), program.drive
    return words, None if drive is None else lambda: _talk(drive, values)


def _talk(drive: Callable[[Mapping[str, str]], servers.Told], values: Mapping[str, str]) -> None:
    with contextlib.suppress(OSError, LabError):
        drive(values)


def _largest_of(pid: int) -> int:
    """The process or one of its children, whichever has most memory of its own."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return pid

    def own(one: int) -> int:
        try:
            rollup = Path(f"/proc/{one}/smaps_rollup").read_text()
            return int(re.search(r"^Private_Dirty: +(\d+)", rollup, re.MULTILINE)[1])  # type: ignore[index]
        except (OSError, TypeError):
            return -1

    return max([pid, *map(int, children)], key=own)
