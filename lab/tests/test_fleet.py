"""`hakmem fleet analyse`: simulated fleets, and a real Prometheus that has the metrics of one."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import random
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compiled import compile_c, wait_for_control
from hakmem import cli, exposition, fleet, native
from hakmem.errors import LabError
from hakmem.fleet import Host
from hakmem.statistics import Decision

BETWEEN_HOSTS, OF_A_WINDOW = 0.10, 0.005  # noise: of hosts among each other, and of a host's mean from week to week


def simulated(seed: int, count: int = 200, share: float = 0.5, effect: float = 1.0, heavy: bool = False) -> list[Host]:
    source = random.Random(seed)
    treated = set(source.sample(range(count), round(count * share)))
    made = []
    for number in range(count):
        level = 1e9 * math.exp(source.gauss(0, BETWEEN_HOSTS))
        before, after = (level * math.exp(source.gauss(0, OF_A_WINDOW)) for _ in range(2))
        if heavy and source.random() < 0.03:  # a host that was used for something else meanwhile
            after *= source.choice((0.3, 3))
        made.append(Host(f"host{number}", number in treated, after * (effect if number in treated else 1), before))
    return made


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("effect", [0.995, 1.005])
def test_half_a_percent_is_found_among_hosts_that_differ_by_ten(effect: float, heavy: bool) -> None:
    wanted = Decision.GO if effect < 1 else Decision.NO_GO
    found = [fleet.analyse(simulated(seed, effect=effect, heavy=heavy), 0.002) for seed in range(40)]
    assert sum(one.decision is wanted for one in found) >= 39
    assert sum(one.ratio.holds(effect) for one in found) >= 35
    if not heavy:
        assert all(one.visible < 0.005 and one.explained and one.explained > 0.98 for one in found)


def test_without_what_was_before_it_is_not_found() -> None:
    hosts = [Host(one.name, one.is_treated, one.after, None) for one in simulated(1, effect=0.995)]
    found = fleet.analyse(hosts, 0.002)
    assert found.explained is None and found.decision is Decision.UNKNOWN and found.visible > 0.03


@pytest.mark.forms
@pytest.mark.parametrize(
    ("count", "share", "heavy", "sets"),
    [(200, 0.5, False, 600), (200, 0.05, False, 600), (60, 0.3, True, 600), (16, 0.5, False, 8000)],
)
def test_false_alarms_of_a_a_are_at_the_level(count: int, share: float, heavy: bool, sets: int) -> None:
    """And nearly as many as at the level: an interval that is too wide finds nothing."""
    found = [fleet.analyse(simulated(seed, count, share, heavy=heavy), 0.0) for seed in range(sets)]
    alarms = sum(one.decision in (Decision.GO, Decision.NO_GO) for one in found) / sets
    spread = math.sqrt(0.05 * 0.95 / sets)
    assert 0.05 - 3.5 * spread < alarms < 0.05 + 3.5 * spread


def test_what_would_have_been_seen_is_seen_in_four_of_five() -> None:
    visible = fleet.analyse(simulated(0, share=0.05), 0.0).visible
    seen = sum(
        fleet.analyse(simulated(seed, share=0.05, effect=1 - visible), 0.0).decision is Decision.GO
        for seed in range(300)
    )
    assert 0.68 < seen / 300 < 0.92


def test_nothing_is_neutral_where_there_are_hosts_enough() -> None:
    assert fleet.analyse(simulated(3), 0.005).decision is Decision.NEUTRAL


def test_more_may_be_better() -> None:
    assert fleet.analyse(simulated(1, effect=1.01), 0.002, less_is_better=False).decision is Decision.GO


def test_hosts_that_are_left_out_are_counted() -> None:
    hosts = simulated(1)
    new = [Host(f"new{number}", bool(number % 2), 1e9, None) for number in range(7)]
    windows = fleet.Windows(1.0, 2.0, 1.0, 1.0)
    for some, said in ((hosts, "in control; each host"), ([*hosts, *new], "7 left out, without a figure from before;")):
        assert said in fleet.lines(fleet.analyse(some, 0.002), "x", True, windows)[1]


def on_ports(hosts: list[Host], count: int) -> list[Host]:
    """Of each host so many processes, each with an endpoint of its own, which share the host's week."""
    source = random.Random(1)
    made = []
    for host in hosts:
        for port in range(count):
            level = math.exp(source.gauss(0, BETWEEN_HOSTS))
            before = None if host.before is None else host.before * level
            made.append(Host(f"{host.name}:{port}", host.is_treated, host.after * level, before))
    return made


def test_ports_of_a_host_do_not_count_as_hosts() -> None:
    """They were dealt together, and what happens to one happens to all: as hosts, they would show what is chance."""
    found = [fleet.analyse(fleet.dealt(on_ports(simulated(seed, 40), 10)), 0.0) for seed in range(200)]
    assert all(one.treated + one.control == 40 for one in found)
    assert sum(not one.ratio.holds(1) for one in found) / 200 < 0.05 + 3.5 * math.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize("counter", ["process_cpu_seconds_total", 'hakmem_purged_bytes_total{job="a"}'])
def test_what_only_grows_is_no_figure(counter: str) -> None:
    """It says how long a process has lived."""
    done = CliRunner().invoke(cli.cli, ["fleet", "analyse", "--prometheus", "http://localhost:1", "--by", counter, "x"])
    assert isinstance(done.exception, LabError)
    assert str(done.exception).endswith(f"it counts since each process began; expected rate({counter}[5m])")


def test_what_is_one_host() -> None:
    def names(*found: Host) -> list[str]:
        return [host.name for host in fleet.dealt(found)]

    one, other = Host("a:1", True, 1.0, 2.0), Host("a:2", True, 3.0, 4.0)
    assert fleet.dealt([one, other]) == [Host("a", True, 2.0, 3.0)]
    assert fleet.dealt([one, Host("a:2", True, 3.0, None)]) == [Host("a", True, 1.0, 2.0)]
    assert fleet.dealt([Host("a:1", True, 1.0, None), Host("a:2", True, 3.0, None)]) == [Host("a", True, 2.0, None)]
    assert names(one, other, Host("b:1", False, 1.0, 1.0)) == ["a", "b:1"]
    behind_one_address = [one, Host("a:2", False, 1.0, 1.0)]
    assert fleet.dealt(behind_one_address) == behind_one_address
    assert fleet.dealt([Host("b:1", True, 2.0, 2.0), *behind_one_address, Host("b:2", True, 2.0, 2.0)]) == [
        Host("b", True, 2.0, 2.0),
        *behind_one_address,
    ]
    assert names(Host("http://a:1/x", True, 1.0, 1.0), Host("http://a:2/x", True, 1.0, 1.0)) == ["http://a"]
    assert names(Host("[fe80::1]:1", True, 1.0, 1.0), Host("[fe80::1]:2", True, 1.0, 1.0)) == ["[fe80::1]"]
    assert names(Host("fe80::1", True, 1.0, 1.0), Host("fe80::2", True, 1.0, 1.0)) == ["fe80::1", "fe80::2"]


def test_what_can_t_be_compared() -> None:
    with pytest.raises(LabError, match="5 hosts in treatment: expected 8 at least"):
        fleet.analyse(simulated(1, count=100, share=0.05), 0.002)
    for off in (Host("off", True, 0.0, 1.0), Host("off", True, 1.0, 0.0), Host("off", True, 0.0, None)):
        without = [Host(one.name, one.is_treated, one.after, None if off.before is None else one.before)
                   for one in simulated(1)]  # fmt: skip
        with pytest.raises(LabError, match="off has a figure of 0: ratios need figures above 0"):
            fleet.analyse([*without, off], 0.002)
    hosts = [
        Host(one.name, one.is_treated, 10.0 ** (number % 600 - 300), None) for number, one in enumerate(simulated(1))
    ]
    with pytest.raises(LabError, match="too far apart"):
        fleet.analyse([*hosts, Host("large", True, 1e300, None)], 0.002)


def test_an_experiment_began_at_a_time() -> None:
    with pytest.raises(LabError, match="no host has said"):
        fleet.begun(lambda expression, at: [{"metric": {}, "value": math.nan}], "decay", 1.0)


@pytest.mark.parametrize(
    ("ago_s", "off_s"), [(120, 60), (1800, 60), (40000, 60), (5000000, 60), (8000000, 900), (1e8, 900)]
)
def test_a_beginning_is_found_to_the_minute(ago_s: float, off_s: int) -> None:
    """To the quarter of an hour where it is long ago."""
    end = 1.8e9

    def ask(expression: str, at: float) -> list[Mapping[str, Any]]:
        """As Prometheus: at multiples of the step."""
        found = re.search(r"\[(\d+)s:(\d+)s\]", expression)
        assert found is not None
        seconds, step = int(found[1]), int(found[2])
        first = max(at - seconds + 0.001, end - ago_s)
        told = math.ceil(first / step) * step
        return [{"metric": {}, "value": float(told)}] if told <= at else []

    assert 0 <= fleet.begun(ask, "decay", end) - (end - ago_s) < off_s


def test_durations_and_moments() -> None:
    assert (fleet.duration("90m"), fleet.duration("7d")) == (5400, 604800)
    assert fleet.moment("1970-01-02") == 86400
    assert abs(fleet.moment("2h") - time.time() + 7200) < 5
    for bad in ("", "d", "7", "-1d", "0d", "7y", "1.5d", "999999w", "9" * 5000 + "s"):
        with pytest.raises(LabError, match="expected a duration"):
            fleet.moment(bad)


# ---- A real server ---------------------------------------------------------------------------------------------------

STEP_S, WINDOW = 600, 100  # of samples, and how many are before and after


def metrics(hosts: list[Host], name: str, since: float, rolled_out: int = 1) -> str:
    """What the hosts have told: two processes each, and their arms since the experiment began; with several ROLLED_OUT,
    all but the first of so many hosts have the setting for the last tenth only, and are as before until then."""
    source = random.Random(7)
    resident, arms = [], []
    for place, host in enumerate(hosts):
        first = WINDOW * 9 // 10 if place % rolled_out else 0
        for number in range(-WINDOW, WINDOW):
            at = since + (number + 1) * STEP_S
            level = host.after if number >= first or host.before is None else host.before
            for pid in (1, 2):
                value = level * math.exp(source.gauss(0, 0.01))
                resident.append(f'{fleet.RESIDENT}{{instance="{host.name}",pid="{pid}"}} {value:.0f} {at:.0f}')
            if number >= first:
                arm = fleet.ARMS[not host.is_treated]
                labels = f'instance="{host.name}",pid="1",name="{name}",arm="{arm}"'
                arms.append(f"hakmem_experiment_info{{{labels}}} 1 {at:.0f}")
    about = f"# TYPE {fleet.RESIDENT} gauge\n", "# TYPE hakmem_experiment_info gauge\n"
    return "".join(
        [about[0], *(f"{line}\n" for line in resident), about[1], *(f"{line}\n" for line in arms), "# EOF\n"]
    )


def needs_prometheus() -> None:
    if shutil.which("prometheus") is None or shutil.which("promtool") is None:
        pytest.skip("prometheus is not installed")


@contextlib.contextmanager
def serving(folder: Path, text: str) -> Iterator[str]:
    """A Prometheus that has it."""
    (folder / "fleet.txt").write_text(text)
    data = folder / "data"
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "fleet.txt"), str(data)],
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    config = folder / "prometheus.yml"
    config.write_text("{}")
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        port = end.getsockname()[1]
    words = [f"--config.file={config}", f"--storage.tsdb.path={data}", "--storage.tsdb.retention.time=1000d"]
    command = ["prometheus", *words, f"--web.listen-address=127.0.0.1:{port}"]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as child:
        try:
            for _ in range(3000):
                with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                    break
                time.sleep(0.1)
            yield url
        finally:
            child.kill()


@pytest.fixture(scope="module")
def fleet_of_200(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Half of them with half a percent less, in an experiment that ends now; and one without an effect beside it."""
    needs_prometheus()
    since = time.time() - WINDOW * STEP_S - 60
    with serving(tmp_path_factory.mktemp("fleet"), metrics(simulated(5, effect=0.995), "decay", since)) as url:
        yield url


def analysed(*words: str) -> str:
    done = CliRunner().invoke(cli.cli, ["fleet", "analyse", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.forms
def test_a_fleet_in_prometheus(fleet_of_200: str, tmp_path: Path) -> None:
    kept = tmp_path / "found.json"
    said = analysed("--prometheus", fleet_of_200, "--before", "15h", "--json", str(kept), "decay")
    assert said.startswith(f"GO: {fleet.RESIDENT} in treatment is -0."), said
    assert "hosts: 100 in treatment, 100 in control; each host adjusted" in said
    found = json.loads(kept.read_text())
    assert found["decision"] == "GO" and found["ratio"]["low"] < 0.995 < found["ratio"]["high"]
    assert found["visible"] < 0.005
    more = analysed("--prometheus", fleet_of_200, "--before", "15h", "--more-is-better", "decay")
    assert more.startswith("NO-GO")
    unlike = analysed("--prometheus", fleet_of_200, "--before", "15h", "--by", f"{fleet.RESIDENT} * 0 + 5", "decay")
    assert unlike.startswith("NEUTRAL")


@pytest.mark.forms
def test_a_host_counts_while_it_takes_part(tmp_path: Path) -> None:
    """And not from when the first one did: nine of ten hosts get the setting in the last tenth of the time."""
    needs_prometheus()
    since = time.time() - WINDOW * STEP_S - 60
    with serving(tmp_path, metrics(simulated(5, 40, effect=0.9), "decay", since, rolled_out=10)) as url:
        analysed("--prometheus", url, "--before", "15h", "--json", str(tmp_path / "found.json"), "decay")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["decision"] == "GO" and 0.89 < found["ratio"]["estimate"] < 0.91


@pytest.mark.forms
def test_processes_that_end_soon_do_not_outweigh_one_that_lasts(tmp_path: Path) -> None:
    """Of each host: one process that lasts, of which the treatment's need less, and small ones, each for one sample."""
    needs_prometheus()
    since = time.time() - WINDOW * STEP_S - 60
    text = metrics(simulated(5, 40, effect=0.9), "decay", since)
    small = "".join(
        f'{fleet.RESIDENT}{{instance="host{host}",pid="{number + 1000}"}} 200000000 {since + number * STEP_S + 7:.0f}\n'
        for host in range(40)
        for number in range(1 - WINDOW, WINDOW)
    )
    head, about, rest = text.partition("# TYPE hakmem_experiment_info")
    with serving(tmp_path, head + small + about + rest) as url:
        analysed("--prometheus", url, "--before", "15h", "--json", str(tmp_path / "found.json"), "decay")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["decision"] == "GO" and 0.88 < found["ratio"]["estimate"] < 0.92


@pytest.mark.forms
def test_hosts_are_compared_with_what_they_were_before_anything_was_set(fleet_of_200: str) -> None:
    """And not with what they were right before --since: a share may have been raised then."""
    said = analysed("--prometheus", fleet_of_200, "--since", "8h", "--before", "6h", "decay")
    assert said.startswith(f"GO: {fleet.RESIDENT} in treatment is -0."), said
    since, end, begun = re.findall(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", said)
    assert begun < since < end and "; before: 6 h until " in said


@pytest.mark.forms
def test_hosts_of_which_there_is_no_figure_are_told(fleet_of_200: str) -> None:
    """An expression that leaves out hosts by their figures compares what is left of the arms."""
    done = CliRunner().invoke(
        cli.cli, ["fleet", "analyse", "--prometheus", fleet_of_200, "--by", f"{fleet.RESIDENT} > 1e9", "decay"]
    )
    said = re.search(r"left out: (\d+) hosts of the experiment", done.stderr)
    assert said is not None and 50 < int(said[1]) < 150, done.output


@pytest.mark.forms
def test_what_prometheus_does_not_have(fleet_of_200: str) -> None:
    def refused(*words: str) -> str:
        done = CliRunner().invoke(cli.cli, ["fleet", "analyse", *words])
        assert isinstance(done.exception, LabError), done.output
        return str(done.exception)

    assert "no host has said that it is in an experiment 'nosuch'" in refused("--prometheus", fleet_of_200, "nosuch")
    assert "refuses" in refused("--prometheus", fleet_of_200, "--by", "((", "decay")
    assert "0 hosts in treatment" in refused("--prometheus", fleet_of_200, "--by", "nosuch", "decay")
    assert "is no host" in refused("--prometheus", fleet_of_200, "--host", "name", "decay")
    assert "expected the name of a label" in refused("--prometheus", fleet_of_200, "--host", "a b", "decay")
    assert "does not answer" in refused("--prometheus", "http://127.0.0.1:1", "decay")
    for url in ("file:///etc/passwd", "http://", "http://[", "http://127.0.0.1:port", "http://127.0.0.1:9/a b"):
        assert "expected http" in refused("--prometheus", url, "decay")


def answer_one(server: socket.socket, said: bytes, heard: list[bytes]) -> None:
    """Takes one request, whole, and says `said` to it: who closes with something unread resets the connection."""
    connection, _ = server.accept()
    with connection:
        request = b""
        while True:
            request += connection.recv(65536)
            head, ended, body = request.partition(b"\r\n\r\n")
            length = re.search(rb"^content-length: *(\d+)", head, re.MULTILINE | re.IGNORECASE)
            if ended and len(body) >= int(length[1] if length else 0):
                break
        heard.append(request)
        connection.sendall(said)


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0 another protocol\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
        b'HTTP/1.1 200 OK\r\n\r\n{"data": {"result": [1]}}',
        b'HTTP/1.1 200 OK\r\n\r\n{"data": {"result": [{"metric": {}, "value": []}]}}',
    ],
)
def test_a_server_that_is_no_prometheus(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_one, args=(server, said, []))
        thread.start()
        with pytest.raises(LabError, match="does not answer as a Prometheus server"):
            fleet.prometheus(f"http://127.0.0.1:{server.getsockname()[1]}")("up", 0)
        thread.join()


def test_what_a_server_warns_of_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Of what it has, it may have answered a part."""
    said = b'{"status": "success", "warnings": ["a store\\nis gone"], "data": {"result": []}}'

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer_one, args=(server, b"HTTP/1.1 200 OK\r\n\r\n" + said, []))
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert fleet.prometheus(url)("up", 0) == []
        thread.join()
    assert capsys.readouterr().err == f"hakmem: {url} warns: a store is gone\n"


def test_a_password_in_the_address_is_told_to_the_server_and_to_nobody_else() -> None:
    heard: list[bytes] = []

    def answer() -> None:
        for _ in range(2):
            answer_one(server, b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", heard)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        host = f"127.0.0.1:{server.getsockname()[1]}"
        for user, told in (("me:p%40ss@", b"Basic " + base64.b64encode(b"me:p@ss")), ("", None)):
            with pytest.raises(LabError, match=f"^http://{host}/prom/ refuses up: Unauthorized$"):
                fleet.prometheus(f"http://{user}{host}/prom/")("up", 0)
            assert heard[-1].startswith(b"POST /prom/api/v1/query ") and b"@" not in heard[-1]
            assert re.findall(rb"Authorization: (.*)\r\n", heard[-1]) == ([told] if told else [])
        thread.join()
    for bad in (
        "http://me:pass@host:port",
        "http://me:a/pass@host",
        "ftp://me:pass@host",
        "http://me:pa ss@host",
        "http://me:pass@127.0.0.1:1",
    ):
        with pytest.raises(LabError) as raised:
            fleet.prometheus(bad)("up", 0)
        assert "pass" not in str(raised.value) and "pa ss" not in str(raised.value) and "//me" not in str(raised.value)


def test_who_a_server_redirects_to_is_not_told_the_password() -> None:
    heard: list[bytes] = []

    def answer() -> None:
        for place in ("/elsewhere", None):
            to = f"http://localhost:{server.getsockname()[1]}{place}" if place else ""
            head = f"302 Found\r\nLocation: {to}" if place else "404 Not Found"
            answer_one(server, f"HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n".encode(), heard)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(LabError, match="refuses up"):
            fleet.prometheus(f"http://me:pass@127.0.0.1:{server.getsockname()[1]}")("up", 0)
        thread.join()
    assert [b"Authorization" in one for one in heard] == [True, False]


# ---- The library -----------------------------------------------------------------------------------------------------

WAITS = "#include <unistd.h>\nint main(void) { pause(); }"


@pytest.mark.parametrize(("share", "arm", "decay"), [("100%", "treatment", "50"), ("0.01%", "control", "1000")])
def test_a_process_tells_its_arm(tmp_path: Path, share: str, arm: str, decay: str) -> None:
    """In its metrics, as `hakmem serve` hands them on, in its statistics, and in the list of its settings."""
    path = compile_c(tmp_path / "waits", WAITS)
    given = {"HAKMEM_EXPERIMENT": f"trial:{share}:decay_ms=50", "HAKMEM_CTL": "1", "HAKMEM_HELP": "1"}
    with subprocess.Popen(
        [path], env={"LD_PRELOAD": str(native.library()), **given}, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            wait_for_control(child.pid)
            from hakmem import ctl

            told = exposition.merged([('pid="1"', ctl.ask(child.pid, "metrics"))])
            assert told["hakmem_experiment"].samples == [(f'pid="1",name="trial",arm="{arm}"', "1")]
            assert json.loads(ctl.ask(child.pid, "stats json"))["experiment"] == {"name": "trial", "arm": arm}
            assert f"{arm}  arm of the host in the experiment trial" in ctl.ask(child.pid, "stats")
            assert f"decay_ms {decay}" in " ".join(ctl.ask(child.pid, "knobs").replace("=", " ").split())
        finally:
            child.kill()
        assert child.stderr is not None
        said = child.stderr.read()
    assert f"HAKMEM_EXPERIMENT            = trial:{share}:decay_ms=50 (default none)" in said
    assert f"hakmem: experiment trial: {socket.gethostname()} is in {arm}\n" in said
