"""`hakmem learn --runs`: which settings are tried, which of them are kept, and that a program finds what was kept."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from compiled import compile_c
from hakmem import between_runs, cli, control, ledger, native, settings, sweep
from hakmem.between_runs import Alone, Candidate
from hakmem.commands import run
from hakmem.commands.learn import FEWEST_RUNS
from hakmem.errors import LabError
from hakmem.measure import CommandCase, Sample, Variant
from hakmem.settings import Knob
from hakmem.statistics import Interval

KNOBS = [
    Knob("decay_ms", 1000, 10, 3600000),
    Knob("held_slabs", 16, 1, 4096),
    Knob("guard_share", 0, 0, 1000000000),
    Knob("metrics_ms", 10000, 100, 3600000),
]
ALONE = len(sweep.arms(KNOBS[0])) + len(sweep.arms(KNOBS[1]))


# ---- What is tried ---------------------------------------------------------------------------------------------------


def told(costs: Mapping[str, tuple[float, float]], trials: int) -> tuple[Alone, list[str]]:
    """What was asked for, where settings cost as much as the default but for some."""
    search, names = Alone(KNOBS, trials, 1), []
    while (variant := search.ask()) is not None:
        names.append(variant.name)
        search.tell(variant.name, costs.get(variant.name, (1.0, 1.0)))
    return search, names


def test_each_value_is_tried_alone_and_the_fastest_again() -> None:
    _, names = told({"held_slabs=64": (0.8, 1.0)}, ALONE + 6)
    assert len(set(names[:ALONE])) == ALONE and all(re.match(r"(decay_ms|held_slabs)=\d+$", name) for name in names)
    assert names[ALONE] == "held_slabs=64" and names.count("held_slabs=64") == 3
    assert len(names) == ALONE + 6
    assert len(told({}, 5)[1]) == 5


def test_the_fewest_runs_try_each_value_of_each_knob() -> None:
    knobs = [knob for knob in settings.knobs(native.library()) if knob.name not in between_runs.NOT_LEARNED]
    assert between_runs.trials_of(FEWEST_RUNS) >= len(sweep.single(knobs)) > ALONE


def test_candidates_are_the_fastest_the_leanest_and_some_together() -> None:
    costs = {"held_slabs=64": (0.8, 1.2), "held_slabs=256": (0.9, 1.0), "decay_ms=10": (0.95, 0.7)}
    search, _ = told({**costs, "decay_ms=250": (1.1, 0.1)}, ALONE)
    assert search.candidates() == [{"held_slabs": 64}, {"decay_ms": 10}, {"held_slabs": 64, "decay_ms": 10}]
    assert told({}, ALONE)[0].candidates() == []
    assert told({"decay_ms=10": (0.9, 0.9)}, ALONE)[0].candidates() == [{"decay_ms": 10}]


def test_what_failed_is_not_tried_again() -> None:
    search = Alone(KNOBS, ALONE + 1, 1)
    for _ in range(ALONE):
        variant = search.ask()
        assert variant is not None
        search.tell(variant.name, None)
    assert search.ask() is None and search.candidates() == []


# ---- What is kept ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time", "memory", "is_worth_it"),
    [
        (Interval(0.9, 0.88, 0.92), Interval(1.0, 1.0, 1.0), True),
        (Interval(1.0, 0.99, 1.005), Interval(0.9, 0.9, 0.9), True),
        (Interval(0.9, 0.88, 0.92), Interval(1.015, 1.012, 1.02), False),
        (Interval(1.0, 0.9, 1.1), Interval(0.9, 0.9, 0.9), False),
        (Interval(0.995, 0.991, 0.999), Interval(1.0, 1.0, 1.0), False),
        (Interval(0.9, 0.8, 1.005), Interval(1.0, 1.0, 1.0), False),
        (Interval(0.9, 0.0, float("inf")), Interval(0.9, 0.9, 0.9), False),
    ],
)
def test_a_gain_is_shown_and_the_other_figure_loses_nothing(
    time: Interval, memory: Interval, is_worth_it: bool
) -> None:
    ratios = {"cpu_s": time, "peak_rss_bytes": memory, "mean_rss_bytes": Interval(2, 2, 2)}
    assert Candidate("decay_ms=10", {"decay_ms": 10}, ratios).is_worth_it is is_worth_it


def costs(monkeypatch: pytest.MonkeyPatch, gain: tuple[float, float], given: str = "") -> list[str]:
    """Runs that cost about 1, and with 64 held slabs, by setting or policy, `gain` times that. Gives the goal that is
    set, or the knobs, if some are given."""
    seen: list[str] = []
    noise = itertools.cycle([1.0, 1.001, 0.999, 1.002, 0.998, 1.0005])

    def run(self: CommandCase, variant: Variant) -> Sample:
        policy = variant.settings["HAKMEM_POLICY"]
        text = "" if policy == "none" else Path(policy).read_text()
        assert not text or variant.settings.get("HAKMEM_KNOBS", given) == given
        seen.append(variant.settings.get("HAKMEM_KNOBS" if given else "HAKMEM_GOAL", ""))
        is_better = "knob held_slabs 64\n" in text or "held_slabs=64" in variant.settings.get("HAKMEM_KNOBS", "")
        time, memory = gain if is_better else (1.0, 1.0)
        of_time = time * next(noise)
        values = {"cpu_s": of_time, "wall_s": of_time, "peak_rss_bytes": memory * 1e6, "mean_rss_bytes": memory * 1e6}
        return Sample(values, "", True)

    monkeypatch.setattr(CommandCase, "run", run)
    facts = {"hakmem": "0.1.0", "control": {"program": "01ff"}}
    monkeypatch.setattr(between_runs, "_facts", lambda case: facts)
    return seen


def learn(*options: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.cli, ["learn", "--runs", str(FEWEST_RUNS), *options, "--", "true"])
    return done.exit_code, f"{done.output}{done.exception or ''}"


def test_what_is_shown_to_save_time_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = costs(monkeypatch, (0.8, 1.0))
    file = tmp_path / "true.policy"
    status, said = learn("-o", str(file), "--set", "GOAL=speed")
    assert status == 0, said
    assert seen and set(seen) == {"speed"}
    text = file.read_text()
    assert text.startswith(
        "hakmem policy 1\nversion 0.1.0\nprogram 01ff\nknob held_slabs 64\nevidence 15 runs in turns "
    )
    assert (
        "held_slabs=64: CPU time 0.8" in text
        and f"\nend {control.fingerprint(text.partition('end ')[0]):016x}\n" in text
    )
    holding = r"Each interval holds with 9\d\.\d%\.\n"
    assert re.search(rf"\nevidence {holding}end ", text) and re.search(f"^hakmem: {holding}", said, re.MULTILINE), said


@pytest.mark.parametrize("is_set", [False, True])
def test_the_user_s_knobs_are_in_all_runs_and_not_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_set: bool
) -> None:
    given = "decay_ms=500:guard_share=0"
    seen = costs(monkeypatch, (0.8, 1.0), given)
    monkeypatch.setenv("HAKMEM_KNOBS", "decay_ms=70" if is_set else given)
    status, said = learn("-o", str(tmp_path / "policy"), *(["--set", f"KNOBS={given}"] if is_set else []))
    assert status == 0, said
    own = [knobs.removeprefix(given) for knobs in seen if knobs.startswith(given)]
    assert len(own) == len(seen) and not any("decay_ms" in one for one in own)
    assert own.count("") > 9 and any(one.startswith(":") for one in own)
    assert "knob held_slabs 64\n" in (tmp_path / "policy").read_text()


def test_no_knobs_of_the_user_s_are_no_part_of_what_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The library ignores `none:held_slabs=64`."""
    costs(monkeypatch, (0.8, 1.0))
    monkeypatch.setenv("HAKMEM_KNOBS", "none")
    tried: list[str] = []
    counted = CommandCase.run

    def run(self: CommandCase, variant: Variant) -> Sample:
        tried.append(variant.settings.get("HAKMEM_KNOBS", ""))
        return counted(self, variant)

    monkeypatch.setattr(CommandCase, "run", run)
    status, said = learn("-o", str(tmp_path / "policy"))
    assert status == 0, said
    assert tried and not any("none" in knobs for knobs in tried)


@pytest.mark.parametrize("most", [80, 81, 87, 200])
def test_no_more_runs_than_asked_for(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    seen = costs(monkeypatch, (0.8, 1.0))
    three = [{"held_slabs": 64}, {"decay_ms": 10}, {"held_slabs": 64, "decay_ms": 10}]
    monkeypatch.setattr(Alone, "candidates", lambda self: three)
    done = between_runs.learn(["true"], KNOBS, most, {}, any_program=False)
    assert most - 6 < len(seen) + 1 <= most and done.measurement is not None  # one for the facts


def test_the_runs_that_decide_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    costs(monkeypatch, (0.8, 1.1))
    monkeypatch.setattr(ledger, "folder", lambda: tmp_path)
    said = learn("--keep", "of-true", "-o", str(tmp_path / "true.policy"))[1]
    [file] = tmp_path.iterdir()
    record = ledger.load(file)
    assert f"hakmem: kept as {file}" in said and record.kind == "learn" and "of-true" in record.id
    assert set(record.metrics()) == {"wall_s", "cpu_s", "peak_rss_bytes", "mean_rss_bytes"}
    assert {"default", "held_slabs=64"} <= set(record.variants) and record.rounds == 15
    assert any(note.startswith("screened: held_slabs=64: time 0.8") for note in record.notes)


def test_what_failed_in_the_runs_that_decide_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = costs(monkeypatch, (0.8, 1.0))
    run = CommandCase.run

    def breaking(self: CommandCase, variant: Variant) -> Sample:
        if len(seen) >= 100:
            raise LabError("no such file")
        return run(self, variant)

    monkeypatch.setattr(CommandCase, "run", breaking)
    said = learn("-o", str(tmp_path / "true.policy"))[1]
    assert "failed on default: no such file" in said, said


@pytest.mark.parametrize("gain", [(1.0, 1.0), (0.8, 1.1)])
def test_what_saves_nothing_or_costs_memory_is_not_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, gain: tuple[float, float]
) -> None:
    costs(monkeypatch, gain)
    file = tmp_path / "true.policy"
    _, said = learn("-o", str(file))
    assert not file.exists() and "nothing was learned, no policy written: of " in said


def test_what_can_not_be_asked_for_together() -> None:
    assert "names the file" in learn("--install", "-o", "file")[1]
    assert "names the file" in learn("--install", "--any-program")[1]
    assert "of one run" in learn("--statistics", "file")[1]
    assert "expected --runs" in str(CliRunner().invoke(cli.cli, ["learn", "--keep", "x", "--", "true"]).exception)
    assert "nosuch: command not found" in str(
        CliRunner().invoke(cli.cli, ["learn", "--runs", str(FEWEST_RUNS), "--", "nosuch"]).exception
    )


# ---- Where it is found -----------------------------------------------------------------------------------------------


def test_facts_are_those_of_the_program_that_runs() -> None:
    found = between_runs._facts(between_runs.GivenCase(("true",), given=(("HAKMEM_GOAL", "speed"),)))
    assert found["control"]["goal"] == "speed" and re.match(r"[0-9a-f]{8,}$", found["control"]["program"])
    with pytest.raises(LabError, match="false ended with exit status 1"):
        between_runs._facts(between_runs.GivenCase(("false",)))


def test_facts_of_a_program_that_ends_at_once(tmp_path: Path) -> None:
    program = tmp_path / "program"
    compile_c(program, "#include <unistd.h>\nint main(void) { _exit(0); }", "-Wl,--build-id")
    found = between_runs._facts(between_runs.GivenCase((str(program),)))
    assert re.match(r"[0-9a-f]{8,}$", found["control"]["program"])


def test_the_place_is_the_user_s() -> None:
    for variables in ({}, {"HOME": ""}, {"XDG_CONFIG_HOME": "relative"}):
        with pytest.raises(LabError, match="names a folder"):
            control.policies(variables)


@pytest.mark.parametrize("options", [(), ("--runs", str(FEWEST_RUNS))])
def test_what_can_not_be_installed_is_not_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, options: tuple[str, ...]
) -> None:
    def said(program: Path, folder: str) -> str:
        monkeypatch.setattr(run, "callers_environment", lambda: {**os.environ, "XDG_CONFIG_HOME": folder})
        done = CliRunner().invoke(cli.cli, ["learn", "--install", *options, "--", str(program)])
        return str(done.exception)

    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    script.chmod(0o755)
    assert "script is a script: the policy would be that of all programs of /bin/sh" in said(script, str(tmp_path))
    assert "can't make /proc/hakmem/policies" in said(Path("/bin/true"), "/proc")
    full = tmp_path / "full" / "hakmem" / "policies"
    full.mkdir(parents=True)
    (full / "policy").mkdir()
    assert "can't write" in said(Path("/bin/true"), str(tmp_path / "full"))
    assert not (tmp_path / "ran").exists()


def started(program: Path, **variables: str) -> tuple[str, int, str]:
    """State of its controller, held_slabs, and what it said."""
    written = program.with_suffix(".json")
    others = {name: value for name, value in os.environ.items() if name not in ("XDG_CONFIG_HOME", "HOME")}
    settings = {"LD_PRELOAD": str(native.library()), "HAKMEM_STATS": f"json:{written}", **variables}
    done = subprocess.run([program], env={**others, **settings}, stderr=subprocess.PIPE, text=True, check=True)
    found = json.loads(written.read_text())["control"]
    return found["state"], found["knobs"]["held_slabs"], done.stderr


def test_a_program_finds_what_was_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program"
    compile_c(program, "#include <errno.h>\nint main(void) { return errno; }", "-Wl,--build-id")
    facts = between_runs._facts(between_runs.GivenCase((str(program),)))
    home = tmp_path / "home"
    folder = control.policies({"HOME": str(home)})
    assert folder == home / ".config" / "hakmem" / "policies" and folder.is_dir()
    assert control.policies({"HOME": "/x", "XDG_CONFIG_HOME": str(home / ".config")}) == folder
    path = folder / facts["control"]["program"]
    learned = control.Learned({"held_slabs": 64}, {})
    path.write_text(control.policy_text(facts["hakmem"], facts["control"]["program"], learned, []))

    assert started(program, HAKMEM_POLICY="auto", HOME=str(home)) == ("pinned", 64, "")
    assert started(program, HAKMEM_POLICY="auto", XDG_CONFIG_HOME=str(home / ".config"))[:2] == ("pinned", 64)
    state, slabs, said = started(program, HOME=str(home))
    assert state != "pinned" and (slabs, said) == (16, "")  # nobody has asked for it
    assert started(program, HAKMEM_POLICY="auto", HOME=str(tmp_path))[1:] == (16, "")
    os.mkfifo(tmp_path / "pipe")
    said = f"hakmem: setting HAKMEM_POLICY={tmp_path}/pipe ignored: not a regular file\n"
    assert started(program, HAKMEM_POLICY=str(tmp_path / "pipe"))[1:] == (16, said)
    path.write_text(path.read_text().replace("held_slabs 64", "held_slabs 65"))
    state, slabs, said = started(program, HAKMEM_POLICY="auto", HOME=str(home))
    assert (slabs, said) == (16, f"hakmem: policy {path} ignored: damaged\n")


def test_a_program_without_build_id_is_told_of_it(tmp_path: Path) -> None:
    program = tmp_path / "program"
    compile_c(program, "int main(void) { return 0; }", "-Wl,--build-id=none")
    assert started(program, HAKMEM_POLICY="auto", HOME=str(tmp_path))[1:] == (16, "")
    said = started(program, HAKMEM_POLICY="auto", HOME=str(tmp_path), HAKMEM_HELP="1")[2]
    assert "hakmem: HAKMEM_POLICY=auto: the program has no build id\n" in said
