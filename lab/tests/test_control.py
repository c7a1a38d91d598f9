"""What the controller did, as statistics tell it; policy files, and that the library takes them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from compiled import compile_c
from hakmem import control, ctl, native
from hakmem.errors import LabError
from hakmem.report import html, markdown

HAKMEM = [sys.executable, "-m", "hakmem"]

# Two threads that allocate, so that there is a background thread, for some seconds.
BUSY = """
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
static void *work(void *unused) {
    char **blocks = malloc(40000 * sizeof *blocks);
    time_t end = time(NULL) + 6;
    while (time(NULL) < end) {
        for (int i = 0; i < 40000; i++) blocks[i] = malloc(2000);
        for (int i = 0; i < 40000; i++) free(blocks[i]);
    }
    return unused;
}
int main(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL) != 0) return 1;
    work(NULL);
    return pthread_join(thread, NULL);
}
"""


def event(**changes: Any) -> dict[str, Any]:
    made = {
        "ms": 1500,
        "phase": 0,
        "why": "keep",
        "knob": "decay_ms",
        "block_bytes": 0,
        "from": 1000,
        "to": 4000,
        "gain_permille": 210,
        "odds": 25,
    }
    return {**made, **changes}


def sample() -> dict[str, Any]:
    point = {"phase": 0, "state": "learn", "cost_ppm": 100000, "miss_ppm": 50000, "kernel_ppm": 20000, "kept_ppm": 1}
    return {
        "hakmem": "0.1.0",
        "pid": 1,
        "control": {
            "state": "frozen",
            "goal": "balanced",
            "profile": "balanced",
            "phase": 0,
            "phases": 1,
            "kept": 1,
            "rolled_back": 1,
            "settled_ms": 0,
            "program": "01ff",
            "knobs": {"decay_ms": 4000, "held_slabs": 16, "huge_page_mode": 1},
            "at_start": {"decay_ms": 1000, "held_slabs": 16},
            "class_slots": [{"block_bytes": 2048, "slots": 64}],
            "tried": [],
            "prospects": [
                {"knob": "held_slabs", "block_bytes": 0, "gain_ppm": 31000, "outcome": "untried", "decided_ms": 0}
            ],
            "strategies": [
                {"knob": "run_limit_bytes", "value": 1 << 19, "points": 1500, "matches": 3},
                {"knob": "run_limit_bytes", "value": 1 << 25, "points": 1600, "matches": 3},
            ],
            "switches": 3,
            "events": [
                event(why="explore", ms=1000),
                event(),
                event(why="roll back", knob="class_slots", block_bytes=2048, **{"from": 16, "to": 16}),
            ],
            "course": [{"ms": 1000 * i, **point} for i in range(1, 5)],
        },
    }


def test_a_policy_says_what_was_learned() -> None:
    assert control.policy(sample()) == (
        "hakmem policy 1\nversion 0.1.0\nprogram 01ff\nknob decay_ms 4000\nclass 2048 64\n"
        "evidence 2 s keep decay_ms 1000 4000 gain 21.0 % odds 25\n"
        "evidence 2 s roll back class_slots of 2048 B 16 16 gain 21.0 % odds 25\n"
        f"end {control.fingerprint(control.policy(sample()).partition('end ')[0]):016x}\n"
    )
    assert "program any\n" in control.policy(sample(), any_program=True)


@pytest.mark.parametrize(
    ("tried", "line"),
    [
        ({"knob": "decay_ms", "block_bytes": 0, "chosen": 250}, "knob decay_ms 250\nclass 2048 64\n"),
        ({"knob": "decay_ms", "block_bytes": 0, "chosen": 1000}, "program 01ff\nclass 2048 64\n"),
        ({"knob": "class_slots", "block_bytes": 2048, "chosen": 16}, "knob decay_ms 4000\nclass 2048 16\n"),
        ({"knob": "class_slots", "block_bytes": 2048, "chosen": 0}, "knob decay_ms 4000\nevidence"),
        ({"knob": "class_slots", "block_bytes": 64, "chosen": 99}, "class 64 99\nclass 2048 64\n"),
    ],
)
def test_a_policy_has_nothing_that_is_on_trial(tried: dict[str, Any], line: str) -> None:
    statistics = sample()
    statistics["control"]["tried"] = [tried]
    assert line in control.policy(statistics)


def test_what_nobody_learned_is_nothing() -> None:
    statistics = sample()
    assert control.learned(statistics)
    statistics["control"].update(knobs=statistics["control"]["at_start"], class_slots=[])
    assert not control.learned(statistics)


def test_the_fingerprint_is_fnv_1a() -> None:
    assert control.fingerprint("") == 0xCBF29CE484222325
    assert control.fingerprint("a") == 0xAF63DC4C8601EC8C


def test_a_program_without_build_id() -> None:
    statistics = sample()
    statistics["control"]["program"] = ""
    with pytest.raises(LabError, match="no build id"):
        control.policy(statistics)


def test_the_report_has_switches_and_plots() -> None:
    shown = control.report(sample(), "hakmem tune-log x", "today")
    text = markdown.render(shown)
    assert "class_slots of 2048 B" in text and "roll back" in text and str(1 << 25) in text
    assert "| held_slabs | 3.1 % | untried |" in text
    assert html.render(shown).count('class="plot"') == 2


def test_nothing_has_happened_yet() -> None:
    statistics = sample()
    statistics["control"].update(events=[], course=[], switches=0)
    assert "<svg" not in html.render(control.report(statistics, "", ""))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"control": 1}', "no JSON"])
def test_what_is_no_statistics(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    with pytest.raises(LabError, match="no statistics of hakmem"):
        control.read(file)


@pytest.mark.parametrize(
    ("rows", "missing"), [({}, "state"), ({"strategies": [{"knob": "decay_ms", "bytes": 1, "points": 1}]}, "value")]
)
def test_statistics_of_another_version(tmp_path: Path, rows: dict[str, Any], missing: str) -> None:
    file = tmp_path / "statistics"
    file.write_text(json.dumps({**sample(), "control": {**sample()["control"], **rows} if rows else {}}))
    with pytest.raises(LabError, match=f"statistics was written by another version of hakmem: it has no `{missing}`"):
        control.report(control.read(file), "hakmem tune-log", "")


def start(policy: Path | str, tmp_path: Path) -> tuple[dict[str, Any], str]:
    """Statistics of a program that started from the policy, and what it said."""
    written = tmp_path / "statistics"
    settings = {"LD_PRELOAD": str(native.library()), "HAKMEM_POLICY": str(policy), "HAKMEM_STATS": f"json:{written}"}
    done = subprocess.run(
        [tmp_path / "busy"], env={**os.environ, **settings}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0
    return json.loads(written.read_text()), done.stderr


def learn(program: Path, folder: Path, *options: str) -> tuple[int, str, Path, Path]:
    """Exit status, what was said, the policy, the statistics."""
    policy, written = folder / "of.policy", folder / "learned.json"
    words = ["learn", "-o", str(policy), "--statistics", str(written), *options, "--", str(program)]
    done = subprocess.run([*HAKMEM, *words], capture_output=True, text=True, timeout=600)
    return done.returncode, done.stderr, policy, written


@pytest.mark.forms
def test_learn_writes_what_was_learned_or_nothing(tmp_path: Path) -> None:
    compile_c(tmp_path / "busy", BUSY, "-pthread", "-Wl,--build-id")
    status, said, policy, written = learn(tmp_path / "busy", tmp_path, "--set", "ACE_FAST_MS=334")
    statistics = control.read(written)
    assert statistics["control"]["course"], "the background thread has measured"
    if control.learned(statistics):
        assert status == 0 and policy.read_text() == control.policy(statistics)
    else:
        assert status == 2 and not policy.exists() and "hakmem: nothing was learned, no policy written: " in said
    page = tmp_path / "page.html"
    subprocess.run([*HAKMEM, "tune-log", "--html", str(page), str(written)], check=True, timeout=600)
    assert "What hakmem" in page.read_text()


def test_a_program_too_short_to_learn_from(tmp_path: Path) -> None:
    status, said, policy, written = learn(Path("/bin/true"), tmp_path)
    assert status == 2 and not policy.exists() and written.exists()
    assert said == (
        "hakmem: nothing was learned, no policy written: /bin/true ended with exit status 0, "
        "0 changes kept, 0 rolled back\n"
    )


def has_measured(parent: int) -> bool:
    """Whether the background thread has, in the program that the command has started."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(LabError):
            if json.loads(ctl.ask(int(child), "stats json"))["control"]["course"]:
                return True
    return False


@pytest.mark.forms
def test_ctrl_c_ends_the_command_and_what_was_learned_until_then_is_written(tmp_path: Path) -> None:
    compile_c(tmp_path / "busy", BUSY.replace("+ 6", "+ 600"), "-pthread", "-Wl,--build-id")
    policy, written = tmp_path / "of.policy", tmp_path / "learned.json"
    words = ["learn", "-o", str(policy), "--statistics", str(written), "--set", "ACE_FAST_MS=100", "--"]
    command = [*HAKMEM, *words, str(tmp_path / "busy")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        while not has_measured(child.pid):
            assert child.poll() is None
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGINT)
        _, said = child.communicate(timeout=600)
    statistics = control.read(written)
    assert statistics["control"]["course"], "the background thread has measured"
    if control.learned(statistics):
        assert child.returncode == 128 + signal.SIGINT and policy.read_text() == control.policy(statistics)
    else:
        assert child.returncode == 2 and not policy.exists() and "no policy written: " in said
        assert "was killed by signal 2" in said and "Traceback" not in said


def test_start_from_a_policy(tmp_path: Path) -> None:
    compile_c(tmp_path / "busy", BUSY.replace("+ 6", ""), "-pthread", "-Wl,--build-id")
    _, _, _, written = learn(tmp_path / "busy", tmp_path)
    statistics = json.loads(written.read_text())
    statistics["control"]["knobs"]["decay_ms"] = 4000
    statistics["control"]["class_slots"] = [{"block_bytes": 2048, "slots": 64}]
    policy = tmp_path / "busy.policy"
    policy.write_text(control.policy(statistics))
    started, said = start(policy, tmp_path)
    assert said == ""
    found = started["control"]
    assert found["state"] == "pinned" and found["switches"] == 0
    assert found["knobs"] == {**found["knobs"], **found["at_start"], "decay_ms": 4000}
    assert found["class_slots"] == [{"block_bytes": 2048, "slots": 64}]

    text = policy.read_text()
    for damaged, problem in (
        (text.replace("knob decay_ms ", "knob decay_ms 1"), "damaged"),
        (text[:-20], "damaged"),
        (text.replace("program ", "program 00"), "made for another program"),
        ("text", "not a policy"),
        ("", "empty"),
    ):
        policy.write_text(damaged)
        started, said = start(policy, tmp_path)
        assert said == f"hakmem: setting HAKMEM_POLICY={policy} ignored: {problem}\n"
        assert started["control"]["state"] != "pinned"
    assert "can't be read" in start(tmp_path / "absent", tmp_path)[1]
