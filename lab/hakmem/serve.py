"""Answers to stock tools that pull: Prometheus, Parca, Pyroscope, Alloy, `go tool pprof`. A WSGI application that asks
the caller's processes on hakmem when it is asked itself, and keeps nothing.

    /metrics            statistics of all processes
    /debug/pprof/heap   their heap profiles; with ?pid=N that of one
    /debug/pprof/pins   whose blocks hold their pages; the same, for one who asks at a time
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from hakmem import ctl, explain, exposition, pins, pprof, profile
from hakmem.errors import LabError
from hakmem.top import Watcher, name_of, resident_of

ANSWER_S = 2.0  # of a process
LOOK_S = 30.0  # at the pages of a process
LEAST_TOKEN = 16  # letters

# Of waitress. Any user of the machine may open connections and send nothing: those make room soon.
SERVER = {"threads": 4, "ident": "hakmem", "connection_limit": 500, "channel_timeout": 5, "cleanup_interval": 2}

Environment: TypeAlias = dict[str, Any]
Looked: TypeAlias = tuple[list[pprof.Row], int, float, list[str]]  # with interval, time and what has no names
StartResponse: TypeAlias = Callable[[str, list[tuple[str, str]]], object]


@dataclass(frozen=True)
class Answer:
    status: str
    kind: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def _said(status: str, text: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", f"{text}\n".encode(), headers)


def token_of(file: Path | None) -> tuple[str, bool]:
    """The first line of the file, or one made now; and whether it was."""
    if file is None:
        return secrets.token_urlsafe(24), True
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"{file}: {getattr(error, 'strerror', None) or 'no text'}") from None
    token = lines[0].strip() if lines else ""
    if len(token) < LEAST_TOKEN:
        raise LabError(f"{file}: expected a token of {LEAST_TOKEN} letters at least in its first line")
    return token, False


def expect_unserved(path: Path) -> None:
    """LabError where something else is, or where a server answers on this unix socket: it would lose its place to
    another one."""
    if os.path.lexists(path) and not path.is_socket():
        raise LabError(f"can't write {path}: expected a socket there, or nothing")
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.connect(str(path))
        except OSError:  # nobody is there, or who wants to serve there finds out why that can't be
            return
    raise LabError(f"{path}: another server answers there")


class Application:
    """Without a token it answers everybody who reaches it: the owner of a socket that nobody else may open."""

    def __init__(self, token: str | None) -> None:
        self._token = token
        self._watcher = Watcher()
        self._pages = {"/": self._index, "/metrics": self._metrics}
        self._pages |= {"/debug/pprof/heap": self._heap, "/debug/pprof/pins": self._pins}
        self._turn = threading.Lock()  # one question at a time is enough for processes that are to do something else
        self._looks = threading.Lock()  # at pages, which ask no process, and take their time

    def __call__(self, environment: Environment, start: StartResponse) -> Iterable[bytes]:
        answer = self._answer(environment)
        headers = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body))), *answer.headers]
        start(answer.status, [*headers, ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")])
        return [] if environment["REQUEST_METHOD"] == "HEAD" else [answer.body]

    def _answer(self, environment: Environment) -> Answer:
        if self._token is not None and not _knows(self._token, environment.get("HTTP_AUTHORIZATION", "")):
            return _said("401 Unauthorized", "a token is needed", ("WWW-Authenticate", 'Basic realm="hakmem"'))
        page = self._pages.get(environment.get("PATH_INFO", ""))
        if page is None:
            return _said("404 Not Found", f"there are {', '.join(self._pages)}")
        if environment["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return _said("405 Method Not Allowed", "GET, please", ("Allow", "GET, HEAD"))
        is_look = page == self._pins
        turn = self._looks if is_look else self._turn
        if not turn.acquire(blocking=not is_look):  # who waited for a look would keep a thread from those who ask
            return _said("503 Service Unavailable", "somebody is being answered that already")
        try:
            return page(environment)
        except LabError as error:
            return _said("503 Service Unavailable", str(error))
        finally:
            turn.release()

    def _processes(self, environment: Environment) -> Iterator[int]:
        """All, or the one that was asked for."""
        wanted = parse_qs(environment.get("QUERY_STRING", "")).get("pid")
        found = sorted(self._watcher.pids())
        if wanted is None:
            yield from found
        elif wanted[-1].isdecimal() and len(wanted[-1]) < 10 and int(wanted[-1]) in found:
            yield int(wanted[-1])
        else:
            raise LabError("there is no such process of yours on hakmem")

    def _index(self, environment: Environment) -> Answer:
        lines = [f"{pid} {name_of(pid)}" for pid in self._processes(environment)]
        return _said("200 OK", "\n".join(["processes on hakmem:", *lines, "", *self._pages]))

    def _metrics(self, environment: Environment) -> Answer:
        answers: dict[str, str | None] = {}
        resident = []
        for pid in self._processes(environment):
            own = exposition.labels(pid, name_of(pid))
            pages = resident_of(pid)
            try:
                answers[own] = ctl.ask(pid, "metrics", ANSWER_S)
            except LabError:
                answers[own] = None
            if pages is not None:
                resident.append((own, pages))
        metrics = exposition.merged((own, text) for own, text in answers.items() if text is not None)
        exposition.add(metrics, "hakmem_process_resident_bytes", "resident memory, as the kernel counts it", resident)
        answering = ((own, int(text is not None)) for own, text in answers.items())
        exposition.add(metrics, "hakmem_process_answers", "1 if the process told its statistics", answering)
        is_open = "application/openmetrics-text" in environment.get("HTTP_ACCEPT", "")
        kind = exposition.OPEN if is_open else exposition.PLAIN
        return Answer("200 OK", kind, exposition.render(metrics, is_open).encode())

    def _heap(self, environment: Environment) -> Answer:
        def look(pid: int) -> Looked:
            text = ctl.with_memory_map(ctl.ask(pid, "profile dump", ANSWER_S), pid)
            found = profile.parse(text, str(pid), f"/proc/{pid}/root")
            return pprof.rows_of(found), found.interval_bytes, found.elapsed_s, found.nameless

        return self._profile(environment, look, pprof.SAMPLE_TYPES, "inuse_space", "profile on")

    def _pins(self, environment: Environment) -> Answer:
        def look(pid: int) -> Looked:
            found = pins.pins(explain.look(pid, "--pins", timeout_s=LOOK_S))
            if not found.stacks:
                raise LabError("is not sampled")
            return pins.rows_of(found), found.interval_bytes, found.elapsed_s, found.nameless

        return self._profile(environment, look, pins.PPROF_TYPES, "pinned_space", "pins on")

    def _profile(
        self,
        environment: Environment,
        look: Callable[[int], Looked],
        types: Iterable[tuple[str, str]],
        default: str,
        request: str,
    ) -> Answer:
        """Of all processes that have one, with labels that tell them apart."""
        rows: list[pprof.Row] = []
        remarks: list[str] = []
        interval, elapsed_s = 0, 0.0
        for pid in self._processes(environment):
            try:
                found, interval, seconds, nameless = look(pid)
            except (LabError, ValueError, KeyError, IndexError):  # not sampled, ended, or answers with something else
                continue
            labels = (("pid", str(pid)), ("program", name_of(pid)))
            rows += [replace(row, labels=labels) for row in found]
            remarks += [f"process {pid}: {line}" for line in nameless]
            elapsed_s = max(elapsed_s, seconds)
        if not rows:
            raise LabError(f"no such process is sampled; `hakmem ctl PID {request}` begins")
        body = pprof.encode_rows(rows, types, default, interval, elapsed_s, remarks)
        return Answer("200 OK", "application/octet-stream", body)


def _knows(token: str, authorization: str) -> bool:
    """As `Bearer TOKEN`, or as the password of whatever user, which is what a URL may hold. A header is bytes, which
    WSGI shows as Latin-1."""
    scheme, _, given = authorization.encode("latin-1").partition(b" ")
    if scheme.lower() == b"basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(given.strip(), token.encode())
