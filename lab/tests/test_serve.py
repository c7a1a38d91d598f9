"""`hakmem serve`: what stock tools pull from it, and that it answers nobody else."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from compiled import compile_c, wait_for_control
from hakmem import cli, ctl, explain, exposition, native, pprof, serve
from hakmem.errors import LabError
from hakmem.top import Watcher
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain_metrics

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-that-is-long-enough"
FRAMES = ("-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-Wl,--build-id")
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) void *keeps(size_t n) { char *p = malloc(n); memset(p, 1, n); return p; }
__attribute__((noinline)) void *drops(size_t n) { char *p = malloc(n); memset(p, 1, n); return p; }
static void *dropped[100000];
int main(void) {
    for (int i = 0; i < 100000; i++) {
        dropped[i] = drops(256);
        if (i % 40 == 0) keeps(256);
    }
    for (int i = 0; i < 100000; i++) free(dropped[i]);
    puts("ready");
    fflush(stdout);
    pause();
}
"""


@contextlib.contextmanager
def program(folder: Path, name: str = "pinned", **settings: str) -> Iterator[int]:
    path = compile_c(folder / name, SOURCE, *FRAMES)
    environment = {"LD_PRELOAD": str(native.library()), "HAKMEM_CTL": "1", **settings}
    with subprocess.Popen([path], env=environment, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout and child.stdout.readline() == "ready\n"
            wait_for_control(child.pid)
            yield child.pid
        finally:
            child.kill()


@contextlib.contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """Yields what it says where it is."""
    token = folder / "token"
    token.write_text(f"{TOKEN}\n")
    words = options or ("--addr", "127.0.0.1:0", "--token-file", str(token))
    command = [sys.executable, "-m", "hakmem", "serve", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stderr
            line = child.stderr.readline()
            assert line.startswith("hakmem: serving at "), line
            yield line.removeprefix("hakmem: serving at ").strip()
        finally:
            child.kill()


def pull(
    url: str, authorization: str | None = f"Bearer {TOKEN}", accept: str = "*/*", method: str = "GET"
) -> tuple[int, str, bytes]:
    where = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=600)
    headers = {"Accept": accept, **({"Authorization": authorization} if authorization else {})}
    connection.request(method, where.path + (f"?{where.query}" if where.query else ""), headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"], answer.read()


def test_who_does_not_know_the_token_learns_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as url:
        for wrong in (None, "Bearer", "Bearer wrong", f"Bearer {TOKEN}x", "Basic !", f"Digest {TOKEN}"):
            for path in ("/", "/metrics", "/debug/pprof/heap", "/nothing"):
                status, _, body = pull(url + path, wrong)
                assert (status, body) == (401, b"a token is needed\n")
        basic = "Basic " + b64encode(f"anybody:{TOKEN}".encode()).decode()
        assert pull(f"{url}/metrics", basic)[0] == 200
        assert pull(f"{url}/nothing")[0] == 404
        assert pull(f"{url}/metrics", method="POST")[0] == 405
        assert pull(f"{url}/debug/pprof/heap?pid=1")[0] == 503
        assert pull(f"{url}/metrics", method="HEAD")[::2] == (200, b"")


def test_tokens_are_bytes(tmp_path: Path) -> None:
    """What comes before the token is known may be anything: it is a refusal, not an error of the server's."""
    word = "a-t\u00f6ken-that-is-long-enough"
    (tmp_path / "own").write_text(f"{word}\n", encoding="utf-8")
    with serving(tmp_path, "--addr", "127.0.0.1:0", "--token-file", str(tmp_path / "own")) as url:
        no_text = "Basic " + b64encode(b"\xff:\xfe").decode()
        for wrong in ("Basic \u00ff\u00fe", "Bearer \u00ff\u00fe", no_text, "\u00ff"):
            assert pull(f"{url}/metrics", wrong)[::2] == (401, b"a token is needed\n")
        for right in (f"Bearer {word}".encode().decode("latin-1"), "Basic " + b64encode(f"x:{word}".encode()).decode()):
            assert pull(f"{url}/metrics", right)[0] == 200


@pytest.mark.forms
def test_who_sends_nothing_keeps_nobody_out(tmp_path: Path) -> None:
    with serving(tmp_path) as url, contextlib.ExitStack() as idle:
        where = urllib.parse.urlsplit(url)
        for _ in range(600):
            idle.enter_context(socket.create_connection((where.hostname, where.port), timeout=600))
        start = time.monotonic()
        assert pull(f"{url}/metrics")[0] == 200
        assert time.monotonic() - start < 300


def test_a_server_keeps_its_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(tmp_path, "--socket", str(path)):
        command = [sys.executable, "-m", "hakmem", "serve", "--socket", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert (done.returncode, done.stderr) == (2, f"hakmem: {path}: another server answers there\n")
    with serving(tmp_path, "--socket", str(path)):  # that one was killed, and has left its socket
        pass
    path.unlink()
    path.write_text("mine")
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (2, f"hakmem: can't write {path}: expected a socket there, or nothing\n")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_server_does_not_make_it_fail(number: signal.Signals, tmp_path: Path) -> None:
    """Which systemd would say of another status."""
    command = [sys.executable, "-m", "hakmem", "serve", "--socket", str(tmp_path / "socket")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr and child.stderr.readline().startswith("hakmem: serving at ")
        child.send_signal(number)
        assert (child.wait(600), child.stderr.read()) == (0, "")


def test_who_ends_a_server_before_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("waitress.server.UnixWSGIServer.run", interrupted)
    monkeypatch.setattr(os, "umask", lambda _: 0)  # this process's own stays
    assert CliRunner().invoke(cli.cli, ["serve", "--socket", str(tmp_path / "socket")]).exit_code == 0


def test_a_socket_is_the_callers_alone(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with serving(tmp_path, "--socket", str(path)) as said:
        assert said == str(path)
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) & 0o077 == 0
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(str(path))
            end.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert end.makefile("rb").read().startswith(b"HTTP/1.0 200 OK\r\n")


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--addr", "0.0.0.0:1"),
        ("--addr", "127.0.0.1"),
        ("--addr", "127.0.0.1:1", "--socket", "x"),
        ("--addr", "127.0.0.1:99999"),
        ("--addr", "localhost:1"),  # may be two addresses
        ("--socket", "-"),
    ],
)
def test_other_places_are_refused(words: tuple[str, ...]) -> None:
    call = [sys.executable, "-m", "hakmem", "serve", *words]
    done = subprocess.run(call, capture_output=True, text=True, timeout=600)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("hakmem: ")


def test_metrics_of_all_processes(tmp_path: Path) -> None:
    with program(tmp_path) as one, program(tmp_path, 'o"th\\er') as other, serving(tmp_path) as url:
        status, kind, body = pull(f"{url}/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert status == 200 and kind == exposition.OPEN
        found = {family.name: family for family in open_metrics(body.decode())}
        live = {sample.labels["pid"]: sample.value for sample in found["hakmem_live_bytes"].samples}
        assert {str(one), str(other)} <= set(live) and live[str(one)] >= 2500 * 256
        assert {"pinned", "o?th?er"} <= {one.labels["program"] for one in found["hakmem_process_answers"].samples}
        assert found["hakmem_refills"].type == "counter" and found["hakmem_build"].type == "info"
        status, kind, body = pull(f"{url}/metrics")
        assert kind == exposition.PLAIN
        names = {family.name for family in plain_metrics(body.decode())}
        assert {"hakmem_live_bytes", "hakmem_build_info", "hakmem_process_resident_bytes"} <= names
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True)
            assert done.returncode == 0, done.stderr.decode()


def test_what_is_no_metric_is_left_out() -> None:
    told = (
        '# TYPE hakmem_a gauge\n# HELP hakmem_a it\nhakmem_a 1\nhakmem_b 2\nhakmem_a{x="1"} 2\nhakmem_a{x="\\""} 3\n'
        "hakmem_a 4 5\nother 6\n# TYPE hakmem_c summary\nhakmem_c 7\n# TYPE hakmem_d counter\nhakmem_d_total 8\n# EOF\n"
    )
    shown = exposition.render(exposition.merged([('pid="7"', told), ('pid="8"', "hakmem_a 1\n\0")]), True)
    assert shown.splitlines() == [
        "# TYPE hakmem_a gauge",
        "# HELP hakmem_a it",
        'hakmem_a{pid="7"} 1',
        'hakmem_a{pid="7",x="1"} 2',
        "# TYPE hakmem_d counter",
        "# HELP hakmem_d ",
        'hakmem_d_total{pid="7"} 8',
        "# EOF",
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)])
def test_who_calls_a_metric_by_another_kind_takes_it_from_no_others_that_are_more(order: tuple[int, ...]) -> None:
    """As a process of another version may, or one that isn't hakmem's."""
    told = [
        ('pid="7"', "# TYPE hakmem_a counter\n# HELP hakmem_a odd\nhakmem_a_total 1\n"),
        ('pid="8"', "# TYPE hakmem_a gauge\n# HELP hakmem_a it\nhakmem_a 2\n"),
        ('pid="9"', "# TYPE hakmem_a gauge\n# HELP hakmem_a it\nhakmem_a 3\n"),
    ]
    shown = exposition.render(exposition.merged(told[number] for number in order), True)
    assert shown.splitlines() == [
        "# TYPE hakmem_a gauge",
        "# HELP hakmem_a it",
        'hakmem_a{pid="8"} 2',
        'hakmem_a{pid="9"} 3',
        "# EOF",
    ]


def test_of_two_kinds_that_as_many_call_a_metric_the_first_is_shown() -> None:
    told = [("gauge", "hakmem_a 1"), ("counter", "hakmem_a_total 1")]
    for first, second in (told, told[::-1]):
        answers = [(f'pid="{kind}"', f"# TYPE hakmem_a {kind}\n{sample}\n") for kind, sample in (first, second)]
        metrics = exposition.merged(answers)
        assert {name: metric.kind for name, metric in metrics.items()} == {"hakmem_a": first[0]}
        assert metrics["hakmem_a"].samples == [(f'pid="{first[0]}"', "1")]


@pytest.mark.parametrize(
    "line",
    [
        "# TYPE hakmem_\u00e9 gauge\n# HELP hakmem_\u00e9 it",
        "hakmem_a 1.2.3",
        "hakmem_a ...",
        "hakmem_a 1e999",
        f"hakmem_a {'9' * 400}",
        'hakmem_a{pid="1"} 1',
        'hakmem_a{x="1",program="mine"} 1',
        'hakmem_a{x="1",x="2"} 1',
        'hakmem_a{1x="1"} 1',
        'hakmem_a{\u00e9="1"} 1',
    ],
)
def test_a_line_for_which_readers_refuse_all_is_left_out(line: str) -> None:
    good = '# TYPE hakmem_a gauge\n# HELP hakmem_a it\nhakmem_a{x="1",process="2"} 1.5\n'
    expected = exposition.render(exposition.merged([('pid="7"', good)]), False)
    assert 'hakmem_a{pid="7",x="1",process="2"} 1.5\n' in expected
    assert exposition.render(exposition.merged([('pid="7"', f"{good}{line}\n")]), False) == expected


def samples_of(body: bytes) -> tuple[list[str], list[tuple[list[str], list[int], set[str]]]]:
    """The types, and of each sample its functions, its values and its labels."""
    message = pprof.profile_class()()
    message.ParseFromString(gzip.decompress(body))
    strings = message.string_table
    names = {function.id: strings[function.name] for function in message.function}
    places = {place.id: [names[line.function_id] for line in place.line] for place in message.location}
    return [strings[kind.type] for kind in message.sample_type], [
        (
            [name for place in sample.location_id for name in places[place]],
            list(sample.value),
            {strings[label.str] for label in sample.label},
        )
        for sample in message.sample
    ]


def test_profiles_of_those_that_are_sampled(tmp_path: Path) -> None:
    sampled = {"HAKMEM_PINS": "1", "HAKMEM_HEAP_PROFILE_INTERVAL": "64K"}
    with program(tmp_path, "plain") as plain, program(tmp_path, **sampled) as pid, serving(tmp_path) as url:
        for path, kind in (("heap", "alloc_objects"), ("pins", "pinned_space")):
            status, _, body = pull(f"{url}/debug/pprof/{path}?pid={pid}")
            assert status == 200, body
            types, samples = samples_of(body)
            assert types[0] == kind
            mine = [sample for sample in samples if sample[0][:1] == ["keeps"]]
            assert mine and all(labels >= {str(pid), "pinned"} for *_, labels in mine)
            assert pull(f"{url}/debug/pprof/{path}?pid={plain}")[0] == 503
            assert pull(f"{url}/debug/pprof/{path}")[0] == 200
        assert sum(values[0] for names, values, _ in samples if names[:1] == ["keeps"]) > 0


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> serve.Application:
    """That knows this process alone."""
    monkeypatch.setattr(Watcher, "pids", lambda _: [os.getpid()])
    return serve.Application(None)


def ask(application: serve.Application, path: str) -> tuple[str, bytes]:
    statuses: list[str] = []
    body = application({"REQUEST_METHOD": "GET", "PATH_INFO": path}, lambda status, _: statuses.append(status))
    return statuses[0], b"".join(body)


def ask_beside(application: serve.Application, path: str, answers: list[tuple[str, bytes]]) -> threading.Thread:
    """In a thread of its own."""
    thread = threading.Thread(target=lambda: answers.append(ask(application, path)), daemon=True)
    thread.start()
    return thread


def test_a_look_at_pages_holds_up_nobody(application: serve.Application, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor do those who want another look meanwhile, however many they are."""
    answers: list[tuple[str, bytes]] = []

    def look(*_: object, **__: object) -> None:
        for path in ("/metrics", "/debug/pprof/pins"):
            ask_beside(application, path, answers).join(20)
        raise LabError("is not sampled")

    monkeypatch.setattr(explain, "look", look)
    for _ in range(2):
        answers.clear()
        assert ask(application, "/debug/pprof/pins")[1].startswith(b"no such process is sampled")
        assert [status for status, _ in answers] == ["200 OK", "503 Service Unavailable"]
        assert answers[1][1] == b"somebody is being answered that already\n"


def test_a_process_is_asked_one_question_at_a_time(
    application: serve.Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers one at a time: of two, each would wait for the other's answer, and not for long."""
    questions: list[str] = []
    beside: list[threading.Thread] = []

    def answer(_: int, question: str, *__: object) -> str:
        questions.append(question)
        if question != "metrics":
            beside.append(ask_beside(application, "/metrics", []))
            beside[0].join(0.1)
        questions.append(question)
        raise LabError("is not sampled")

    monkeypatch.setattr(ctl, "ask", answer)
    ask(application, "/debug/pprof/heap")
    beside[0].join(20)
    assert questions == ["profile dump", "profile dump", "metrics", "metrics"]


def test_why_functions_have_no_names_is_told(tmp_path: Path) -> None:
    """As after an upgrade."""
    sampled = {"HAKMEM_PINS": "1", "HAKMEM_HEAP_PROFILE_INTERVAL": "64K"}
    with program(tmp_path, **sampled) as pid, serving(tmp_path) as url:
        compile_c(tmp_path / "new", f"{SOURCE}void other(void) {{}}", *FRAMES).replace(tmp_path / "pinned")
        for path in ("heap", "pins"):
            status, _, body = pull(f"{url}/debug/pprof/{path}?pid={pid}")
            assert status == 200, body
            message = pprof.profile_class()()
            message.ParseFromString(gzip.decompress(body))
            (line,) = (message.string_table[number] for number in message.comment)
            assert line.startswith(f"process {pid}: functions have no names in pinned: ")


@pytest.mark.long
def test_pprof_of_go_reads_them(tmp_path: Path) -> None:
    if (
        shutil.which("go") is None
        or subprocess.run(["go", "tool", "pprof", "-h"], capture_output=True).returncode == 127
    ):
        pytest.skip("go is not installed (Debian's package golang-go)")
    sampled = {"HAKMEM_PINS": "1", "HAKMEM_HEAP_PROFILE_INTERVAL": "64K"}
    with program(tmp_path, **sampled) as pid, serving(tmp_path) as url:
        source = url.replace("http://", f"http://hakmem:{TOKEN}@")
        environment = {**os.environ, "PPROF_TMPDIR": str(tmp_path), "GOTOOLCHAIN": "local"}
        for path in (f"pins?pid={pid}", f"heap?pid={pid}"):
            done = subprocess.run(
                ["go", "tool", "pprof", "-top", "-symbolize=none", f"{source}/debug/pprof/{path}"],
                env=environment,
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert done.returncode == 0, done.stderr
            assert " keeps" in done.stdout, done.stdout


def free_port() -> int:
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return int(end.getsockname()[1])


@pytest.mark.forms
def test_prometheus_scrapes_it(tmp_path: Path) -> None:
    if shutil.which("prometheus") is None:
        pytest.skip("prometheus is not installed")
    with program(tmp_path) as pid, serving(tmp_path) as url:
        config = tmp_path / "prometheus.yml"
        config.write_text(
            json.dumps(
                {
                    "scrape_configs": [
                        {
                            "job_name": "hakmem",
                            "scrape_interval": "1s",
                            "authorization": {"credentials_file": str(tmp_path / "token")},
                            "static_configs": [{"targets": [url.removeprefix("http://")]}],
                        }
                    ]
                }
            )
        )
        port = free_port()
        words = [f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
        command = ["prometheus", *words, f"--web.listen-address=127.0.0.1:{port}"]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
            try:
                assert wait_for(port, f'hakmem_live_bytes{{pid="{pid}"}}') >= 2500 * 256
                assert wait_for(port, "up") == 1
                for query in queries_of_the_dashboard():
                    answer = ask_prometheus(port, query)
                    assert answer["status"] == "success", (query, answer)
            finally:
                child.kill()


def ask_prometheus(port: int, query: str) -> dict[str, object]:
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=600) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def wait_for(port: int, query: str) -> float:
    for _ in range(3000):
        with contextlib.suppress(OSError):
            answer = ask_prometheus(port, query)
            if rows := answer["data"]["result"]:  # type: ignore[index]
                return float(rows[0]["value"][1])
        time.sleep(0.2)
    raise AssertionError(f"no value of {query}")


# ---- The dashboard ---------------------------------------------------------------------------------------------------

DASHBOARD = ROOT / "packaging" / "grafana-dashboard.json"


def queries_of_the_dashboard() -> list[str]:
    board = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    assert len(queries) >= 6
    return [
        query.replace("$program", ".*").replace("$pid", ".*").replace("$__rate_interval", "1m") for query in queries
    ]


def test_the_dashboard_asks_for_what_there_is(tmp_path: Path) -> None:
    with program(tmp_path) as pid, serving(tmp_path) as url:
        body = pull(f"{url}/metrics?pid={pid}")[2].decode()
    there_are = {sample.name for family in plain_metrics(body) for sample in family.samples}
    asked_for = {name for query in queries_of_the_dashboard() for name in re.findall(r"hakmem_\w+", query)}
    assert asked_for and asked_for <= there_are
    board = json.loads(DASHBOARD.read_text())
    for variable in board["templating"]["list"]:
        assert set(re.findall(r"hakmem_\w+", json.dumps(variable))) <= there_are
