"""The work of the services of `hakmem services`: conversations with a server, the same ones in each run.

Each is a generator: it works, yields what was answered, and ends the service once it is asked for more. Between the
two the service rests, with its connections open. OSError and LabError mean that the run has no figures.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hakmem import process, resting, servers
from hakmem.errors import LabError

Values = Mapping[str, str]
Talk = Callable[[Values], Iterator[bytes]]
START_S = 60.0  # until a database answers
LOOK_S = 0.5  # at whether a service is still there
END_S = 30.0  # until a service has ended, once it was asked to


def by_itself(values: Values) -> Iterator[bytes]:
    """A program that works without being asked, makes the file `resting`, and ends at SIGTERM."""
    session = int(values["session"])
    resting.await_rest(session, Path(values["cwd"], "resting"))
    yield b""
    _end(session, signal.SIGTERM)


def by_command(words: Sequence[str]) -> Talk:
    """A command of the user's does the work, and ends. It may begin before the service answers."""

    def talk(values: Values) -> Iterator[bytes]:
        session = int(values["session"])
        process.await_command(session)
        with tempfile.TemporaryFile() as answers:  # a pipe would wait for what the load leaves behind
            client = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=answers, start_new_session=True)
            try:
                while not _has_ended(client):
                    if not process.is_alive(session):
                        raise LabError("the service has ended before its load; it has to stay in the foreground")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(client.pid, signal.SIGKILL)
                client.wait()
            if client.returncode:
                raise LabError(f"the load {words[0]} {process.ending(client.returncode)}")
            answers.seek(0)
            yield answers.read(process.MOST_KEPT)
        _end(session, signal.SIGTERM)

    return talk


def _has_ended(client: subprocess.Popen[bytes]) -> bool:
    try:
        client.wait(LOOK_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end(session: int, number: int) -> None:
    pid = process.command_in(session)
    if pid is None:
        raise LabError("the service has ended while it rested")
    os.kill(pid, number)


# ---- Web services ----------------------------------------------------------------------------------------------------

CLIENTS = 8
WEB_BURSTS = 2


def documents(values: Values) -> Iterator[bytes]:
    """Clients that send documents at the same time, each over a connection of its own."""
    port = int(values["port"])
    clients = [http.client.HTTPConnection(servers.HOST, port, timeout=60) for _ in range(CLIENTS)]
    texts = servers.texts()

    def burst(number: int) -> list[bytes]:
        own = range(number, len(texts), CLIENTS)
        return [servers.post(clients[number], f"/{i}", texts[i]) for i in own]

    servers.connect(values["port"]).close()
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            answers = [b"".join(some) for _ in range(WEB_BURSTS) for some in pool.map(burst, range(CLIENTS))]
        yield b"".join(answers)
        clients[0].close()  # the service may have closed it, too
        servers.post(clients[0], "/end", b"")
    except http.client.HTTPException as error:
        raise LabError(f"no answer: {error!r}") from None
    finally:
        for client in clients:
            client.close()


# ---- Redis -----------------------------------------------------------------------------------------------------------

REDIS_KEYS = 150_000
REDIS_SIZES = ((100, 400), (400, 1600), (50, 900))  # bytes of a value, least and most, in each pass


def redis(values: Values) -> Iterator[bytes]:
    """All values change their size twice, in another order each time; then every third one goes."""
    draw = random.Random(1)
    with servers.connect(values["port"]) as client:
        for least, most in REDIS_SIZES:
            keys = list(range(REDIS_KEYS))
            draw.shuffle(keys)
            for first in range(0, REDIS_KEYS, 500):
                some = keys[first : first + 500]
                words = [("SET", f"key:{key:05}", "v" * draw.randint(least, most)) for key in some]
                _ask(client, words)
        for first in range(0, REDIS_KEYS, 1500):
            _ask(client, [("DEL", f"key:{key:05}") for key in range(first, first + 1500, 3)])
        yield _ask(client, [("STRLEN", f"key:{key:05}") for key in range(0, REDIS_KEYS, 97)])
        servers.end_redis(client)


def _ask(client: socket.socket, commands: Sequence[tuple[str, ...]]) -> bytes:
    sent = b"".join(servers.resp_command(*words) for words in commands)
    return servers.ask(client, sent + servers.resp_command("ECHO", "done"), servers.REDIS_DONE)


# ---- Databases -------------------------------------------------------------------------------------------------------


class Session:
    """A command-line client that stays connected, and is asked by what is typed into it."""

    def __init__(self, words: Sequence[str], said_last: str) -> None:
        self._last = said_last  # a statement that prints the line `done`
        self._name = words[0]
        self._client = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment()
        )

    def ask(self, statements: str) -> bytes:
        pipes = self._client.stdin, self._client.stdout
        assert pipes[0] is not None and pipes[1] is not None
        pipes[0].write(f"{statements}\n{self._last}\n".encode())
        pipes[0].flush()
        answer = []
        while (line := pipes[1].readline()) != b"done\n":
            if not line:
                raise LabError(f"{self._name} {process.ending(self._client.wait())}")
            answer.append(line)
        return b"".join(answer)

    def close(self) -> None:
        self._client.kill()
        self._client.communicate()


@contextlib.contextmanager
def _sessions(words: Sequence[str], said_last: str, count: int) -> Iterator[list[Session]]:
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(Session(words, said_last))
            stack.callback(made[-1].close)
        yield made


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "HOME": "/nonexistent"}


def _await(words: Sequence[str], session: int, what: str) -> None:
    deadline = time.monotonic() + START_S
    while subprocess.run(words, env=_environment(), capture_output=True).returncode:
        if not process.is_alive(session):
            raise LabError(f"{what} has ended before it answered")
        if time.monotonic() > deadline:
            raise LabError(f"{what} does not answer after {START_S:g} s")
        time.sleep(0.1)


def _in_turns(sessions: Sequence[Session], statements: Callable[[int], str], at_once: int) -> list[bytes]:
    """Each session is asked once, so many at the same time."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda number: sessions[number].ask(statements(number)), range(len(sessions))))


POSTGRES_SESSIONS = 12
POSTGRES_ROUNDS = 3
EVENTS = """create table events as select i, i % 997 as k, md5(i::text) as t, repeat('x', i % 90) as pad
from generate_series(1, 100000) i;
analyze events;"""


def postgres(values: Values) -> Iterator[bytes]:
    """Sessions of a pool, which prepare, sort and hash, and stay connected."""
    folder, session = Path(values["exe"]).parent, int(values["session"])
    where = ["-h", values["cwd"], "-p", values["port"], "-U", "postgres"]
    _await([str(folder / "pg_isready"), "-q", *where], session, "PostgreSQL")
    words = [str(folder / "psql"), *where, "-X", "-q", "-A", "-t", "postgres"]

    def statements(turn: int, number: int) -> str:
        return f"""prepare of_{number}_{turn} as select count(*) from events where k = $1;
execute of_{number}_{turn}({number});
select count(*) from (select * from events order by t, pad offset 5) s;
select count(*), max(n) from (select t, count(*) as n from events group by t) s;"""

    with _sessions(words, "select 'done';", POSTGRES_SESSIONS) as sessions:
        sessions[0].ask(EVENTS)
        answers = []
        for turn in range(POSTGRES_ROUNDS):
            answers += _in_turns(sessions, partial(statements, turn), 2)
        yield b"".join(answers)
    _end(session, signal.SIGINT)


MARIADB_SESSIONS = 8
MARIADB_ROUNDS = 8
TABLES = 40
ORDERS = "".join(
    f"""create table orders_{number} (id int primary key, k int, name varchar(40), note text, key (k)) engine=InnoDB;
insert into orders_{number} select seq, seq % 97, md5(seq + {number}), repeat('x', seq % 700) from seq_1_to_1500;
"""
    for number in range(TABLES)
)


def mariadb(values: Values) -> Iterator[bytes]:
    """Nightly dumps of all tables, while sessions of a pool sort, join and group; they stay connected."""
    session = int(values["session"])
    where = [f"--socket={values['cwd']}/db.sock", "--user=root"]
    client = _first("mariadb", "mysql")
    _await([_first("mariadb-admin", "mysqladmin"), "--no-defaults", *where, "ping"], session, "MariaDB")
    words = [client, "--no-defaults", *where, "--batch", "--skip-column-names", "--unbuffered", "shop"]
    subprocess.run([client, "--no-defaults", *where, "-e", "create database shop"], env=_environment(), check=True)
    dump = [_first("mariadb-dump", "mysqldump"), "--no-defaults", *where, "--skip-comments", "--skip-dump-date", "shop"]

    def statements(turn: int, number: int) -> str:
        a, b = (number * 5 + turn) % TABLES, (number * 7 + turn * 3) % TABLES
        return f"""select k, count(*), sum(length(note)), max(name) from orders_{a} group by k order by 4, 1;
select count(*), sum(length(concat(a.note, b.note))) from orders_{a} a join orders_{b} b on a.k = b.k;
select md5(group_concat(name order by note desc, name)) from orders_{b};"""

    with _sessions(words, "select 'done';", MARIADB_SESSIONS) as sessions:
        sessions[0].ask(ORDERS)
        answers = []
        for turn in range(MARIADB_ROUNDS):
            with subprocess.Popen(
                dump, env=_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            ) as dumped:
                answers += _in_turns(sessions, partial(statements, turn), 4)
                printed, _ = dumped.communicate()
                if dumped.returncode:
                    raise LabError(f"{dump[0]} failed: {dumped.returncode}")
                answers.append(printed)
        yield b"".join(answers)
    _end(session, signal.SIGTERM)


def _first(*names: str) -> str:
    """Of a package's commands, whose names have changed."""
    from hakmem import programs

    found = programs.find(names)
    if found is None:
        raise LabError(f"{names[0]} is not installed")
    return found
