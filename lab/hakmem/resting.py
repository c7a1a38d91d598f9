"""What a service holds while it has nothing to do: it works, then rests, on several allocators side by side.

The services work one after the other, so that none takes the processor from another. Those that have worked rest while
the next ones work.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from hakmem import measure, process, servers
from hakmem.errors import LabError
from hakmem.measure import Done, Failure, Measurement, OnRun, Outcome, Sample, Step, Turn, TurnInterrupted, Variant
from hakmem.programs import PYTHON, Program, ProgramCase

NAME = "service"
REQUESTS = 300  # of each burst of inputs/bursts.py
REST_S = 10.0
MOST_ROUNDS = 6  # whose services are there at the same time: as many as the demo has unless told
LOOK_S = 0.01  # at whether a service rests
BEGIN_S = 120.0  # that it may take until it rests

Begun = list[tuple[str, str, "Future[Sample]"]]  # case, variant, and what becomes of its run


def await_rest(session: int, resting: Path, is_cancelled: Callable[[], bool] = lambda: False) -> None:
    """Until a service has made the file that says that it rests. LabError when it has ended before."""
    deadline = time.monotonic() + BEGIN_S
    while not resting.exists():
        if is_cancelled() or not process.is_alive(session):
            raise LabError("the service has ended, or was ended, before it rested")
        if time.monotonic() > deadline:
            raise LabError(f"the service works for more than {BEGIN_S:g} s")
        time.sleep(LOOK_S)


class OneAtWork:
    """A place of measure(): one service works at a time. Once it has said that it rests (by `rests`, in the thread of
    its run), the next one works."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._cancelled = threading.Event()
        self._sessions: set[int] = set()

    def rests(self) -> None:
        self._own.rests.set()

    def rest(self, seconds: float) -> None:
        """LabError when the measurement is interrupted meanwhile."""
        if self._cancelled.wait(seconds):
            raise LabError("the service was ended while it rested")

    @contextlib.contextmanager
    def endable(self, session: int) -> Iterator[None]:
        """Meanwhile who interrupts the measurement ends the service, too."""
        self._sessions.add(session)
        try:
            yield
        finally:
            self._sessions.discard(session)

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        while (turn := next_turn(measure.HERE)) is not None:
            begun: Begun = []
            with ThreadPoolExecutor(len(turn.cases) * len(turn.variants)) as pool:
                try:
                    self.begin(turn, pool, on_run, begun)
                    outcome = self.outcome(turn, begun)
                except KeyboardInterrupt:
                    self.cancel()
                    raise TurnInterrupted(turn, self._of_whole_cases(turn, begun)) from None
                except BaseException:
                    self.cancel()
                    raise
            yield Done(measure.HERE, turn, outcome)

    def begin(self, turn: Turn, pool: ThreadPoolExecutor, on_run: OnRun, begun: Begun) -> None:
        """When it returns, all services of the round rest or have ended. They are added to `begun`."""
        number = 0
        for index, case in enumerate(turn.cases):
            for place in measure.order_of(turn.number + index, len(turn.variants)):
                variant = turn.variants[place]
                number += 1
                if (case.name, variant.name) in turn.left_out or not case.supports(variant):
                    continue
                on_run(turn, number, case.name, variant.name)
                rests = threading.Event()
                begun.append((case.name, variant.name, pool.submit(self._run, case, variant, rests)))
                rests.wait()

    def _run(self, case: measure.Case, variant: Variant, rests: threading.Event) -> Sample:
        self._own.rests = rests
        try:
            return case.run(variant)
        finally:
            rests.set()

    def outcome(self, turn: Turn, begun: Begun) -> Outcome:
        found = Outcome([], [], os.getloadavg())
        for case, variant, run in begun:
            try:
                found.samples.append((case, variant, run.result()))
            except process.PolicyError:
                raise
            except LabError as error:
                found.failures.append(Failure(case, variant, turn.round, str(error)))
        return found

    def _of_whole_cases(self, turn: Turn, begun: Begun) -> Outcome:
        """Those of which all services had ended by themselves."""
        ended = [one for one in begun if one[2].done()]
        wanted = {case.name: sum(case.supports(variant) for variant in turn.variants) for case in turn.cases}
        counts = {name: sum(case == name for case, _, _ in ended) for name in wanted}
        left_out = {name: sum(case == name for case, _ in turn.left_out) for name in wanted}
        return self.outcome(turn, [one for one in ended if counts[one[0]] + left_out[one[0]] == wanted[one[0]]])

    def cancel(self) -> None:
        self._cancelled.set()
        for session in tuple(self._sessions):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(session, signal.SIGKILL)


class SideBySide(OneAtWork):
    """The services of a few rounds rest until all of them have rested for so long, and are read in the same moment.
    Then come the next rounds."""

    def __init__(self, rest_s: float) -> None:
        super().__init__()
        self._rest_s = rest_s

    def hold(self, values: Mapping[str, str]) -> servers.Told:
        """Of one service: waits until it rests, then until the rest is over. Tells its memory, and ends it."""
        session = int(values["session"])
        await_rest(session, Path(values["cwd"], "resting"), self._cancelled.is_set)
        self.rests()
        self._over.wait()
        pid = process.command_in(session)
        if pid is None or self._cancelled.is_set():
            raise LabError("the service has ended, or was ended, while it rested")
        held = process.proportional_bytes([pid])
        os.kill(pid, signal.SIGTERM)
        return servers.Told(b"", {"idle_bytes": held})

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        while turns := list(itertools.islice(iter(lambda: next_turn(measure.HERE), None), MOST_ROUNDS)):
            self._over = threading.Event()
            rounds: list[tuple[Turn, Begun]] = [(turn, []) for turn in turns]
            with ThreadPoolExecutor(sum(len(turn.cases) * len(turn.variants) for turn in turns)) as pool:
                try:
                    for turn, begun in rounds:
                        self.begin(turn, pool, on_run, begun)
                    self._over.wait(self._rest_s)
                except BaseException:
                    self.cancel()
                    raise
                finally:
                    self._over.set()
                for turn, begun in rounds:
                    yield Done(measure.HERE, turn, self.outcome(turn, begun))


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
