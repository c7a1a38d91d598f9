"""Conversations with the servers among the real programs: each loads one, checks its answers, and asks it to end.

It raises OSError or LabError when the server does not answer, and the run is then no figure.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import random
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from hakmem.errors import LabError

HOST = "127.0.0.1"
START_S = 30  # until a server listens
LOAD_S = 120  # for a load program


@dataclass(frozen=True)
class Told:
    """What a conversation returns: answers, which must be the same under every allocator, and figures of its own, with
    names of measure.METRICS or with units of their own."""

    answers: bytes
    values: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    operations: int = 0  # of a service: how many it has done


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return str(probe.getsockname()[1])


def connect(port: str) -> socket.socket:
    """A connection to a server that is starting."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return socket.create_connection((HOST, int(port)), timeout=60)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise LabError(f"no server listens on port {port} after {START_S} s") from None
            time.sleep(0.01)


def ask(client: socket.socket, request: bytes, end: bytes) -> bytes:
    client.sendall(request)
    answer = bytearray()
    while not answer.endswith(end):
        part = client.recv(1 << 20)
        if not part:
            raise ConnectionError("the server closed the connection")
        answer += part
    return bytes(answer)


def _pid(file: Path) -> int:
    """Of a server, from the file of which it is the first line: one without an end may be half a number."""
    found = re.match(r"(\d+)\n", file.read_text())
    if found is None:
        raise LabError(f"{file.name} doesn't tell the server's process")
    return int(found[1])


def _load(words: list[str], environment: Mapping[str, str] | None = None) -> str:
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LOAD_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{words[0]} did not end within {LOAD_S} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise LabError(f"{words[0]} failed: {said[-1] if said else done.returncode}")
    return done.stdout


def resp_command(*words: str | bytes) -> bytes:
    parts = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def _redis_commands() -> Iterator[bytes]:
    """A fixed conversation over every type of value whose answers have one order."""
    for i in range(20000):
        key, text = f"key:{i * 7919 % 15013}", "v" * (i * 31 % 700)
        commands: tuple[tuple[str, ...], ...] = (
            ("SET", key, text),
            ("APPEND", key, str(i)),
            ("RPUSH", f"list:{i % 50}", text[:90]),
            ("HSET", f"hash:{i % 999}", str(i), text[:40]),
            ("HGET", f"hash:{i % 500}", str(i - 999)),
            ("ZADD", f"rank:{i % 9}", str(i * 13 % 997), str(i)),
            ("ZRANGE", f"rank:{i % 9}", "0", "2"),
            ("LPOP", f"list:{i % 70}"),
            ("GET", f"key:{i}"),
            ("UNLINK", f"key:{i * 3 % 15013}"),
        )
        for words in commands:
            yield resp_command(*words)


REDIS_DONE = b"$4\r\ndone\r\n"  # the answer to ECHO done


def end_redis(client: socket.socket) -> None:
    client.sendall(b"SHUTDOWN NOSAVE\r\n")
    with contextlib.suppress(ConnectionResetError):
        client.recv(1)


def redis(values: Mapping[str, str]) -> Told:
    load = [
        "redis-benchmark",
        "-h",
        HOST,
        "-p",
        values["port"],
        "-q",
        "-n",
        "60000",
        "-P",
        "16",
        "-r",
        "50000",
        "-d",
        "100",
    ]
    with connect(values["port"]) as client:
        _load([*load, "-t", "set,get,lpush,rpop,sadd,hset,zpopmin"])
        ask(client, b"FLUSHALL\r\nECHO done\r\n", REDIS_DONE)
        answers = ask(client, b"".join(_redis_commands()) + b"ECHO done\r\n", REDIS_DONE)
        end_redis(client)
    return Told(answers)


SNAPSHOT_KEYS = 500_000
SNAPSHOT_UPDATES = 50_000
SNAPSHOT_BYTES = 500  # of a value
SNAPSHOT_STATE = ("rdb_bgsave_in_progress", "rdb_last_bgsave_status", "rdb_last_cow_size")


def _set(key: int, text: str) -> bytes:
    return resp_command("SET", f"key:{key:06}", text)


def _batches(sets: Iterator[bytes]) -> Iterator[bytes]:
    while batch := b"".join(itertools.islice(sets, 1000)):
        yield batch + b"ECHO done\r\n"


@lru_cache(maxsize=1)
def _snapshot_updates() -> list[bytes]:
    """Four of five among a fifth of the keys. Made once: the client's work is not what is measured."""
    draw = random.Random(1)
    fifth = SNAPSHOT_KEYS // 5

    def sets() -> Iterator[bytes]:
        for i in range(SNAPSHOT_UPDATES):
            key = draw.randrange(fifth) * 5 if draw.random() < 0.8 else draw.randrange(SNAPSHOT_KEYS)
            yield _set(key, f"{i:x}".rjust(SNAPSHOT_BYTES, "u"))

    return list(_batches(sets()))


def redis_snapshot(values: Mapping[str, str]) -> Told:
    """Replaces values while a child writes all of them to a file, slowly enough that it takes longer than the updates.
    `copied` is what Redis itself says at the end of the child's copies."""
    updates = _snapshot_updates()
    with connect(values["port"]) as client:
        for batch in _batches(_set(key, f"{key:x}".rjust(SNAPSHOT_BYTES, "v")) for key in range(SNAPSHOT_KEYS)):
            ask(client, batch, REDIS_DONE)
        ask(client, b"BGSAVE\r\nECHO done\r\n", REDIS_DONE)
        start = time.monotonic()
        for batch in updates:
            ask(client, batch, REDIS_DONE)
        took = time.monotonic() - start
        if _persistence(client)["rdb_bgsave_in_progress"] != "1":
            raise LabError("the snapshot ended before the updates")
        state = await_snapshot(client)
        if state["rdb_last_bgsave_status"] != "ok":
            raise LabError("redis could not write its snapshot")
        some = b"".join(resp_command("GET", f"key:{key:06}") for key in range(0, SNAPSHOT_KEYS, 997))
        answers = ask(client, some + b"ECHO done\r\n", REDIS_DONE)
        end_redis(client)
    figures = {"copied": float(state["rdb_last_cow_size"]), "operations_per_s": SNAPSHOT_UPDATES / took}
    return Told(answers, figures, {"copied": "B"})


def await_snapshot(client: socket.socket) -> dict[str, str]:
    """What Redis says of its snapshots once none is being written."""
    deadline = time.monotonic() + LOAD_S
    while (state := _persistence(client))["rdb_bgsave_in_progress"] == "1":
        if time.monotonic() > deadline:
            raise LabError(f"the snapshot did not end within {LOAD_S} s")
        time.sleep(0.05)
    return state


def _persistence(client: socket.socket) -> dict[str, str]:
    answer = ask(client, b"INFO persistence\r\nECHO done\r\n", REDIS_DONE).decode(errors="replace")
    told = dict(line.split(":", 1) for line in answer.splitlines() if ":" in line)
    if not {*SNAPSHOT_STATE} <= told.keys():
        raise LabError(f"redis doesn't tell of its snapshot: {answer.splitlines()[0]}")
    return told


# ---- Services, for as long as they are told --------------------------------------------------------------------------

DOCUMENTS = 2000  # of a round; each is replaced once in it
LEAST_BYTES, MOST_BYTES = 4096, 8 << 20
TAIL = 1.1  # heavy, as that of files in the web: one in 200 is above 512 KiB
CONNECTIONS = 4


@lru_cache(maxsize=1)
def texts() -> list[bytes]:
    """What is sent to services, in a fixed order, without runs of large ones."""
    line = b"".join(b"line %d\n" % i for i in range(MOST_BYTES // 7))
    ranks = ((i * 7919 % DOCUMENTS + 0.5) / DOCUMENTS for i in range(DOCUMENTS))
    return [line[: min(MOST_BYTES, int(LEAST_BYTES / rank ** (1 / TAIL)))] for rank in ranks]


def _serve(one_round: Callable[[], Iterator[bytes]], seconds: float) -> Told:
    """Rounds of the same requests, for so many seconds from the second one on: the first one fills the caches. What is
    answered otherwise than in the second one is an error."""
    for _ in one_round():
        pass
    start = time.monotonic()
    expected = list(one_round())
    operations = len(expected)
    while (took := time.monotonic() - start) < seconds:
        for answer, usual in zip(one_round(), expected, strict=True):
            if answer != usual:
                raise LabError("a request was answered otherwise than before")
        operations += len(expected)
    return Told(b"".join(expected), {"operations_per_s": operations / took}, operations=operations)


def post(client: http.client.HTTPConnection, path: str, text: bytes) -> bytes:
    client.request("POST", path, text)
    with client.getresponse() as response:
        return response.read()


def documents(values: Mapping[str, str]) -> Told:
    """Sends documents to a service over several connections in turns."""
    clients = [http.client.HTTPConnection(HOST, int(values["port"]), timeout=60) for _ in range(CONNECTIONS)]

    def one_round() -> Iterator[bytes]:
        for i, text in enumerate(texts()):
            yield post(clients[i % CONNECTIONS], f"/{i}", text)

    connect(values["port"]).close()
    try:
        told = _serve(one_round, float(values["seconds"]))
        post(clients[0], "/end", b"")
    except http.client.HTTPException as error:
        raise LabError(f"no answer: {error!r}") from None
    finally:
        for client in clients:
            client.close()
    return told


def redis_documents(values: Mapping[str, str]) -> Told:
    """Replaces values, extends them, reads of others and deletes some. An operation is all that for one value."""
    with connect(values["port"]) as client:

        def one_round() -> Iterator[bytes]:
            for i, text in enumerate(texts()):
                name, other = f"text:{i}", f"text:{(i * 31 + 7) % DOCUMENTS}"
                commands = (
                    resp_command("SET", name, text)
                    + resp_command("APPEND", name, b"end")
                    + resp_command("STRLEN", other)
                )
                commands += resp_command("UNLINK", other) if i % 16 == 0 else resp_command("GETRANGE", other, "0", "99")
                yield ask(client, commands + b"ECHO done\r\n", REDIS_DONE)

        told = _serve(one_round, float(values["seconds"]))
        end_redis(client)
    return told


def memcached(values: Mapping[str, str]) -> Told:
    """Items of 20 B to 16 KiB, replaced, appended to, counted and deleted; more of them than its memory holds."""
    answers = bytearray()
    with connect(values["port"]) as client:
        for batch in range(90):
            request = bytearray()
            for i in range(batch * 1000, batch * 1000 + 1000):
                data = b"v" * (20 + i * 7919 % 16000 if i % 16 == 0 else 20 + i * 31 % 900)
                request += b"set key:%d 0 0 %d noreply\r\n%s\r\n" % (i % 20011, len(data), data)
                request += b"append key:%d 0 0 4 noreply\r\ntail\r\n" % (i % 20011)
                if i % 5 == 0:
                    request += b"delete key:%d noreply\r\n" % (i * 3 % 20011)
            request += b"get key:%d\r\nmn\r\n" % (batch * 331 % 20011)
            answers += ask(client, bytes(request), b"MN\r\n")
        client.sendall(b"shutdown\r\n")
        with contextlib.suppress(ConnectionResetError):
            client.recv(1)
    return Told(bytes(answers))


def nginx(values: Mapping[str, str]) -> Told:
    """Pipelined requests on kept connections, small and large files, and one connection per request."""
    small = b"GET /small HTTP/1.1\r\nHost: test\r\n\r\n"
    large = b"GET /large HTTP/1.1\r\nHost: test\r\n\r\n"
    last = b"GET /small HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    bodies = 0

    def request(text: bytes) -> bytes:
        with connect(values["port"]) as client:
            client.sendall(text)
            client.shutdown(socket.SHUT_WR)
            answer = bytearray()
            while part := client.recv(1 << 20):
                answer += part
        return bytes(answer)

    statuses: list[bytes] = []
    for _ in range(500):
        answer = request(small * 100 + large + last)
        statuses += re.findall(rb"HTTP/1\.1 (\d+)", answer)
        bodies += len(answer)
    for _ in range(5000):
        statuses += re.findall(rb"HTTP/1\.1 (\d+)", request(last))
    os.kill(_pid(Path(values["cwd"], "nginx.pid")), signal.SIGQUIT)
    return Told(b"%d answers, %s" % (len(statuses), b" ".join(sorted(set(statuses)))))


def postgres(values: Mapping[str, str]) -> Told:
    """pgbench's own tables and transactions, then sorts, joins and aggregates whose answers have one order."""
    connect(values["port"]).close()
    client = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PGHOST": HOST,
        "PGPORT": values["port"],
        "PGUSER": "postgres",
    }
    client |= {"PGDATABASE": "postgres", "LC_ALL": "C"}
    folder = Path(values["exe"]).parent
    for _ in range(200):  # it listens before it answers
        if subprocess.run([folder / "pg_isready", "-q"], env=client).returncode == 0:
            break
        time.sleep(0.05)
    _load([str(folder / "pgbench"), "-i", "-q", "-s", "2"], client)
    _load([str(folder / "pgbench"), "-n", "-c", "4", "-j", "1", "-t", "400", "--random-seed=1"], client)
    answer = _load([str(folder / "psql"), "-X", "-A", "-t", "-c", QUERIES], client)
    os.kill(_pid(Path(values["data"], "postmaster.pid")), signal.SIGINT)
    return Told(answer.encode())


QUERIES = """
select count(*), sum(n), max(t) from (select n, md5(n::text) as t from generate_series(1, 200000) n order by t) s;
select k, count(*), sum(length(t))
    from (select n % 97 as k, repeat('x', n % 500) as t from generate_series(1, 100000) n) s
    group by k order by k;
select count(*) from generate_series(1, 200000) a join generate_series(1, 200000) b on a = b;
select length(string_agg(n::text, ',' order by n desc)), count(jsonb_build_object('n', n))
    from generate_series(1, 100000) n;
"""
