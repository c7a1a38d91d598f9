"""What the controller of a process did, out of its statistics: a report, and a policy file that repeats the result."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hakmem import files
from hakmem.errors import LabError
from hakmem.report.model import Course, Line, Report, Table

Statistics = Mapping[str, Any]

COSTS = {"cost_ppm": "cost by the goal", "miss_ppm": "slow paths", "kernel_ppm": "kernel", "kept_ppm": "memory kept"}
SWITCHES = ("time", "phase", "why", "knob", "from", "to", "gain", "odds")


class Members(dict[str, Any]):
    """An object of a file of statistics. LabError for a member that it doesn't have."""

    def __init__(self, file: Path, members: Mapping[str, Any]) -> None:
        super().__init__(members)
        self._file = file

    def __missing__(self, name: str) -> Any:
        raise LabError(f"{self._file} was written by another version of hakmem: it has no `{name}`")


def read(file: Path) -> Statistics:
    """Statistics as HAKMEM_STATS=json writes them."""
    try:
        found = json.loads(files.content(file, b"{") or b"", object_hook=lambda members: Members(file, members))
    except OSError as error:
        raise LabError(f"can't read {file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise LabError(f"{file}: no statistics of hakmem (HAKMEM_STATS=json:FILE writes them)") from None
    if not isinstance(found, dict) or not isinstance(found.get("control"), dict):
        raise LabError(f"{file}: no statistics of hakmem that tell of its controller")
    return found


# ---- The policy file -------------------------------------------------------------------------------------------------


def fingerprint(text: str) -> int:
    """FNV-1a, as control/policy.c has it."""
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


@dataclass(frozen=True)
class Learned:
    """What the controller has turned, and left there. What was on trial when the program ended was not kept."""

    knobs: Mapping[str, int]
    slots: Mapping[int, int]  # of bins of blocks of so many bytes

    def __bool__(self) -> bool:
        return bool(self.knobs or self.slots)


def learned(statistics: Statistics) -> Learned:
    control = statistics["control"]
    chosen = {(row["knob"], row["block_bytes"]): row["chosen"] for row in control["tried"]}
    knobs = {name: chosen.get((name, 0), control["knobs"][name]) for name in control["at_start"]}
    slots = {row["block_bytes"]: row["slots"] for row in control["class_slots"]}
    slots |= {block_bytes: value for (name, block_bytes), value in chosen.items() if name == "class_slots"}
    return Learned(
        {name: value for name, value in knobs.items() if value != control["at_start"][name]},
        {block_bytes: count for block_bytes, count in sorted(slots.items()) if count},
    )


def program_of(statistics: Statistics, *, any_program: bool = False) -> str:
    """As a policy says it. LabError when the program can't be told from others."""
    program: str = "any" if any_program else statistics["control"]["program"]
    if not program:
        raise LabError(
            "the program has no build id to know it by (ld --build-id); --any-program makes a policy for all"
        )
    return program


def policy(statistics: Statistics, *, any_program: bool = False) -> str:
    """The text that HAKMEM_POLICY takes: what was learned, and the evidence for it."""
    control, found = statistics["control"], learned(statistics)
    program = program_of(statistics, any_program=any_program)
    evidence = [_sentence(event) for event in control["events"] if event["why"] in ("keep", "roll back")]
    return policy_text(statistics["hakmem"], program, found, evidence)


def policy_text(version: str, program: str, found: Learned, evidence: Iterable[str]) -> str:
    """`version` is hakmem's; `program` a build id, or any."""
    lines = ["hakmem policy 1", f"version {version}", f"program {program}"]
    lines += [f"knob {name} {value}" for name, value in found.knobs.items()]
    lines += [f"class {block_bytes} {count}" for block_bytes, count in found.slots.items()]
    lines += [f"evidence {sentence}" for sentence in evidence]
    text = "\n".join(lines) + "\n"
    return f"{text}end {fingerprint(text):016x}\n"


def policies(environment: Mapping[str, str]) -> Path:
    """The folder where HAKMEM_POLICY=auto looks first; it is made. LabError where no file can be written there."""
    configuration, home = environment.get("XDG_CONFIG_HOME", ""), environment.get("HOME", "")
    if not configuration.startswith("/"):
        if not home.startswith("/"):
            raise LabError("--install: neither XDG_CONFIG_HOME nor HOME names a folder")
        configuration = f"{home}/.config"
    folder = Path(configuration) / "hakmem" / "policies"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabError(f"can't make {folder}: {error.strerror}") from None
    files.check(folder / "policy")
    return folder


def _knob(event: Mapping[str, Any]) -> str:
    return f"{event['knob']} of {event['block_bytes']} B" if event["block_bytes"] else str(event["knob"])


def _sentence(event: Mapping[str, Any]) -> str:
    gain, odds = event["gain_permille"] / 10, event["odds"]
    change = f"{_knob(event)} {event['from']} {event['to']}"
    return f"{event['ms'] / 1000:.0f} s {event['why']} {change} gain {gain} % odds {odds}"


# ---- The report ------------------------------------------------------------------------------------------------------


def report(statistics: Statistics, command: str, date: str) -> Report:
    control = statistics["control"]
    summary = (
        f"The controller's state is {control['state']}, its goal {control['goal']}, its profile {control['profile']}.",
        f"It has switched {control['switches']} times: {control['kept']} changes were kept, "
        f"{control['rolled_back']} rolled back.",
        f"It knows {control['phases']} phases of the program.",
    )
    sections = (
        _costs(control["course"]),
        _knobs(control["events"]),
        Table("Switches", SWITCHES, tuple(_row(event) for event in control["events"]), words=4),
        _prospects(control["prospects"]),
        _strategies(control["strategies"]),
    )
    title = f"What hakmem {statistics['hakmem']} learned in process {statistics['pid']}"
    return Report(title, command, sections, summary, date=date)


def _costs(course: list[dict[str, Any]]) -> Course:
    times = tuple(point["ms"] / 1000 for point in course)
    lines = tuple(Line(name, times, tuple(point[key] / 1e4 for point in course)) for key, name in COSTS.items())
    note = "Shares of the processor's time, and of memory; what the goal makes of them is the first line."
    return Course("Costs", "%", lines, notes=(note,))


def _knobs(events: list[dict[str, Any]]) -> Course:
    """Each knob as a multiple of what it was at its first switch."""
    values: dict[str, list[tuple[float, float]]] = {}
    for event in events:
        name, time = _knob(event), event["ms"] / 1000
        steps = values.setdefault(name, [(time, event["from"])])
        steps += [(time, steps[-1][1]), (time, event["to"])]
    lines = tuple(
        Line(name, tuple(time for time, _ in steps), tuple(value / (steps[0][1] or 1) for _, value in steps))
        for name, steps in values.items()
    )
    return Course("Knobs", "x", lines, notes=("Multiples of where the knob stood before the first switch shown.",))


def _row(event: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"{event['ms'] / 1000:.1f} s",
        str(event["phase"]),
        str(event["why"]),
        _knob(event),
        str(event["from"]),
        str(event["to"]),
        f"{event['gain_permille'] / 10:.1f} %",
        str(event["odds"]) if event["why"] in ("canary", "keep", "roll back") else "",
    )


def _prospects(prospects: list[dict[str, Any]]) -> Table:
    rows = tuple((_knob(row), f"{row['gain_ppm'] / 1e4:.1f} %", str(row["outcome"])) for row in prospects)
    return Table("What values promise, and what came of it", ("knob", "expected gain", "outcome"), rows, words=1)


def _strategies(strategies: list[dict[str, Any]]) -> Table:
    ranked = sorted(strategies, key=lambda row: (row["knob"], -row["points"]))
    rows = tuple((row["knob"], str(row["value"]), str(row["points"]), str(row["matches"])) for row in ranked)
    return Table("Values of knobs, by rating", ("knob", "value", "points", "matches"), rows)
