"""What a service holds while it has nothing to do: bursts of requests, then rest, on several allocators side by side.

The services work one after the other, so that none takes the processor from another. Then those of a few rounds rest
at the same time, and their memory is read in the same moment.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hakmem import measure, process, servers
from hakmem.errors import LabError
from hakmem.measure import Done, Measurement, OnRun, Outcome, Step, Turn, Variant
from hakmem.programs import PYTHON, Program, ProgramCase

NAME = "service"
REQUESTS = 300  # of each burst of inputs/bursts.py
REST_S = 10.0
MOST_ROUNDS = 6  # whose services are there at the same time: as many as the demo has unless told
LOOK_S = 0.01  # at whether a service rests
BEGIN_S = 120.0  # that it may take until it rests


class SideBySide:
    """A place of measure(): starts the runs of some rounds, each when the one before it rests, and lets them go on when
    all have rested for so long. Then come the next rounds."""

    def __init__(self, rest_s: float) -> None:
        self._rest_s = rest_s
        self._cancelled = False

    def hold(self, values: Mapping[str, str]) -> servers.Told:
        """Of one service: waits until it rests, then until the rest is over. Tells its memory, and ends it."""
        session, deadline = int(values["session"]), time.monotonic() + BEGIN_S
        while not Path(values["cwd"], "resting").exists():
            if self._cancelled or not process.is_alive(session) or time.monotonic() > deadline:
                raise LabError("the service has ended, or was ended, before it rested")
            time.sleep(LOOK_S)
        self._resting.release()
        self._over.wait()
        pid = process.command_in(session)
        if pid is None or self._cancelled:
            raise LabError("the service has ended, or was ended, while it rested")
        held = process.proportional_bytes([pid])
        os.kill(pid, signal.SIGTERM)
        return servers.Told(b"", {"idle_bytes": held})

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        while turns := list(itertools.islice(iter(lambda: next_turn(measure.HERE), None), MOST_ROUNDS)):
            self._resting, self._over = threading.Semaphore(0), threading.Event()
            with ThreadPoolExecutor(sum(len(turn.variants) for turn in turns)) as pool:
                try:
                    outcomes = [self._begin(turn, pool, on_run) for turn in turns]
                    self._over.wait(self._rest_s)
                except BaseException:
                    self._cancelled = True
                    raise
                finally:
                    self._over.set()
                for turn, outcome in zip(turns, outcomes, strict=True):
                    yield Done(measure.HERE, turn, outcome())

    def _begin(self, turn: Turn, pool: ThreadPoolExecutor, on_run: OnRun) -> Callable[[], Outcome]:
        """When it returns, all services of the round rest or have failed."""
        (case,) = turn.cases
        begun = []
        for number, place in enumerate(measure.order_of(turn.number, len(turn.variants))):
            variant = turn.variants[place]
            if (case.name, variant.name) in turn.left_out:
                continue
            on_run(turn, number + 1, case.name, variant.name)
            run = pool.submit(case.run, variant)
            run.add_done_callback(lambda _: self._resting.release())  # of one that never rests
            begun.append((variant.name, run))
            self._resting.acquire()

        def outcome() -> Outcome:
            found = Outcome([], [], os.getloadavg())
            for name, run in begun:
                try:
                    found.samples.append((case.name, name, run.result()))
                except LabError as error:
                    found.failures.append(measure.Failure(case.name, name, turn.round, str(error)))
            return found

        return outcome


def measured(
    variants: Sequence[Variant],
    rounds: int,
    *,
    on_step: Callable[[Step], None] = lambda step: None,
    requests: int = REQUESTS,
    rest_s: float = REST_S,
) -> Measurement:
    """`rounds` services of each variant."""
    place = SideBySide(rest_s)
    # By env: programs run with PYTHONMALLOC=malloc here, and services don't.
    command = ("env", "-u", "PYTHONMALLOC", "{exe}", "{inputs}/bursts.py", str(requests), "{cwd}/resting")
    program = Program(NAME, "python3", ((PYTHON,),), command, drive=place.hold)
    case = ProgramCase(program, [PYTHON])
    return measure.measure([case], variants, rounds, warmup=0, on_step=on_step, place=place)
