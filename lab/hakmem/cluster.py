"""Rounds on the machines of a Dask cluster, whole ones, one at a time on each.

A machine is a worker that offers the resource `machine`; its name is the worker's. Each round asks for one of that
resource, so that whoever else measures on the cluster waits, and for the very worker, so that each machine goes through
the orders of the variants by itself. A worker that is gone has lost the round that it ran, and nothing else. Workers
have the laboratory; the allocators' libraries are sent to them, so that all measure the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import distributed

from hakmem import machine, process
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.measure import Done, OnRun, Outcome, Turn, run_turn

RESOURCE = "machine"
ANSWER_S = 10.0  # of a scheduler
LOOK_S = 1.0  # from one look at who is still there to the next
ALONE_S = 30.0  # without a machine: one that is started again has come back by then
CONNECTION_LOST = (OSError, distributed.TimeoutError, CancelledError, distributed.client.ClosedClientError)
MOST_LETTERS = 1 << 20  # of a list of hosts
FOLDER = "hakmem-libraries"  # below a worker's own


class Library(distributed.WorkerPlugin):
    """Gives the bytes of an allocator to all workers, those that come later, too. Each writes them once: a program of
    somebody else may be running on them."""

    idempotent = True

    def __init__(self, sha256: str, name: str, data: bytes) -> None:
        self.name = f"hakmem-{sha256}-{name}"
        self._where, self._data = (sha256, name), data

    def setup(self, worker: distributed.Worker) -> None:
        """A worker that has no room for it says so when it is to run a round."""
        path = _library(worker, *self._where)
        unfinished = path.with_name(f"{path.name}.unfinished")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(self._data)
            unfinished.rename(path)


def _library(worker: distributed.Worker, sha256: str, name: str) -> Path:
    return Path(worker.local_directory, FOLDER, sha256, name)


# ---- On a worker -----------------------------------------------------------------------------------------------------


def _told() -> tuple[str, str]:
    """What must be the same on all machines."""
    return metadata.version("hakmem"), platform.machine()


def _differ(there: tuple[str, str], here: tuple[str, str]) -> str:
    return "has {}, and here is {}".format(*(" on ".join(one) for one in (there, here)))


def _run(turn: Turn, hashes: Mapping[Allocator, str], settings: Mapping[str, str], needed: tuple[str, str]) -> Outcome:
    """With the libraries that were sent, and the settings of whoever sent them in place of the worker's. The worker
    may have come after the others were looked at."""
    if _told() != needed:
        raise LabError(f"it {_differ(_told(), needed)}")
    worker = distributed.get_worker()

    def sent(allocator: Allocator) -> Allocator:
        if allocator.library is None:
            return allocator
        library = _library(worker, hashes[allocator], allocator.library.name)
        if not library.is_file():
            raise FileNotFoundError(errno.ENOENT, "the library that was sent is not there", str(library))
        return replace(allocator, library=library)

    variants = [replace(variant, allocator=sent(variant.allocator)) for variant in turn.variants]
    before = process.caller_settings()
    try:
        _exchange(before, settings)
        facts = machine.facts()
        return replace(run_turn(replace(turn, variants=variants)), machine=facts)
    finally:
        _exchange(settings, before)


def _exchange(old: Mapping[str, str], new: Mapping[str, str]) -> None:
    for name in old:
        os.environ.pop(name, None)
    os.environ.update(new)


# ---- Of whoever measures ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Running:
    name: str
    turn: Turn
    future: distributed.Future[Outcome]


class Cluster:
    """The machines of a scheduler, as a place."""

    def __init__(self, client: distributed.Client) -> None:
        self._client = client
        self._hashes: dict[Allocator, str] = {}
        self._unable: set[str] = set()  # addresses of workers that could not run a round

    def machines(self) -> dict[str, str]:
        """Names by address. A worker without a name is called by its address. The scheduler is asked for all of them:
        what the client knows by itself has the first few in some versions, and at moments none."""
        scheduler = self._client.scheduler
        if scheduler is None or self._client.status != "running":
            raise ConnectionError("the connection to the scheduler is lost")
        workers = self._client.sync(scheduler.identity, n_workers=-1)["workers"]
        return {
            address: str(facts["name"]) for address, facts in workers.items() if facts["resources"].get(RESOURCE, 0) > 0
        }

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        running: dict[str, _Running] = {}  # by address
        alone_since: float | None = None
        try:
            while True:
                machines = self.machines()
                for address in [one for one, own in running.items() if one not in machines or own.future.done()]:
                    yield self._come_back(running.pop(address), address, address in machines)
                for address, name in machines.items():
                    is_free = address not in running and address not in self._unable
                    if is_free and (turn := next_turn(name)) is not None:
                        on_run(turn, 1, turn.cases[0].name, name)
                        running[address] = _Running(name, turn, self._begin(turn, address))
                alone_since = None if machines else alone_since or time.monotonic()
                if not running and (machines or time.monotonic() > (alone_since or 0) + ALONE_S):
                    return
                self._wait([own.future for own in running.values()])
        except CONNECTION_LOST:
            print("hakmem: the scheduler is gone; rounds that were whole are kept", file=sys.stderr)
        finally:
            with contextlib.suppress(*CONNECTION_LOST):
                self._client.cancel([own.future for own in running.values()], force=True)

    def _begin(self, turn: Turn, address: str) -> distributed.Future[Outcome]:
        for allocator in {variant.allocator for variant in turn.variants} - self._hashes.keys():
            if allocator.library is not None:
                sha256 = self._hashes[allocator] = allocator.sha256() or ""
                self._client.register_plugin(Library(sha256, allocator.library.name, allocator.library.read_bytes()))
        hashes = {key: value for key, value in self._hashes.items()}
        settings = process.caller_settings()
        where: dict[str, Any] = {"workers": [address], "allow_other_workers": False, "resources": {RESOURCE: 1}}
        return self._client.submit(_run, turn, hashes, settings, _told(), pure=False, retries=0, **where)

    def _wait(self, futures: list[distributed.Future[Outcome]]) -> None:
        if not futures:
            time.sleep(LOOK_S)
            return
        with contextlib.suppress(distributed.TimeoutError):
            distributed.wait(futures, timeout=LOOK_S, return_when="FIRST_COMPLETED")

    def _come_back(self, own: _Running, address: str, is_there: bool) -> Done:
        """A machine that can't run a round, as its disk is full, is not asked again."""
        why = "was lost with"
        if is_there and own.future.status == "finished":
            try:
                return Done(own.name, own.turn, own.future.result(timeout=ANSWER_S))
            except (distributed.TimeoutError, OSError):  # it was lost with what it had
                pass
        elif is_there and own.future.status == "error":
            error = own.future.exception()
            if not isinstance(error, distributed.KilledWorker):
                self._unable.add(address)
                why = f"is left out, by {type(error).__name__}: {' '.join(str(error).split())}, from"
        own.future.cancel(force=True)
        print(f"hakmem: {own.name} {why} a round, which another machine runs again", file=sys.stderr)
        return Done(own.name, own.turn, None)


class _Client(distributed.Client):
    """Closed at once where it finds no scheduler. What is left open the garbage collector closes, at any moment: also
    in the midst of what Dask does under the lock that closing takes."""

    def __init__(self, address: str) -> None:
        try:
            super().__init__(address, timeout=ANSWER_S)  # type: ignore[no-untyped-call]
        except BaseException:
            self.__del__()  # type: ignore[no-untyped-call]
            raise


@contextlib.contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """LabError unless a scheduler answers, and has machines that are as this one is."""
    logging.getLogger("distributed.client").setLevel(
        logging.CRITICAL
    )  # a line of ours says what it tells by tracebacks
    try:
        client = _Client(address)
    except TypeError:  # Dask's settings have no certificates for tls://
        raise LabError(f"--on {address}: Dask's settings name no certificates (distributed.comm.tls)") from None
    except (OSError, ValueError, distributed.TimeoutError) as error:
        raise LabError(f"--on {address}: no scheduler of Dask answers there: {type(error).__name__}") from None
    with client:
        cluster = Cluster(client)
        machines = cluster.machines()
        if not machines:
            raise LabError(f"--on {address}: no worker there was started with --resources {RESOURCE}=1")
        try:
            told = client.run(_told, workers=list(machines))
        except Exception as error:  # whatever a worker without the laboratory says
            raise LabError(f"--on {address}: its workers don't have this laboratory: {error}") from None
        for worker, own in told.items():
            if own != _told():
                raise LabError(f"--on {address}: {machines[worker]} {_differ(own, _told())}")
        yield cluster


@contextlib.contextmanager
def over_ssh(file: str) -> Iterator[str]:
    """Starts a scheduler on the first host of the file and a worker on each of the others, and ends them."""
    try:
        with open(file, encoding="utf-8") as source:
            text = source.read(MOST_LETTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{file}: {getattr(error, 'strerror', None) or 'no text'}") from None
    if len(text) > MOST_LETTERS or not text.replace("\n", " ").replace("\t", " ").isprintable():
        raise LabError(f"{file}: no list of hosts")
    lines = (line.strip() for line in text.splitlines())
    hosts = [line for line in lines if line and not line.startswith("#")]
    if len(hosts) < 2:
        raise LabError(f"{file}: expected a host a line: that of the scheduler, then one or more that measure")
    workers = {"nthreads": 1, "resources": {RESOURCE: 1}}
    try:
        started = distributed.SSHCluster(hosts, worker_options=workers, remote_python=sys.executable)
    except Exception as error:  # of asyncssh, of Dask, of the system
        raise LabError(f"{file}: can't start workers by ssh: {type(error).__name__}: {error}") from None
    with started:
        yield str(started.scheduler_address)
