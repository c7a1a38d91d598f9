"""The settings of the library, as the library itself lists them (HAKMEM_HELP=1)."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hakmem import native
from hakmem.errors import LabError
from hakmem.process import linked

PREFIX = "HAKMEM_"
_LISTED = re.compile(rf"^ *{PREFIX}(?P<name>\w+) *= .*?\(default (?P<default>[^)]*)\): (?P<meaning>.*)$", re.MULTILINE)
_KNOB = re.compile(
    r"^ *(?P<name>\w+) *= \d+ \(default (?P<default>\d+), (?P<lowest>\d+) to (?P<highest>\d+)\): (?P<meaning>.*)$",
    re.MULTILINE,
)
_EXPECTED = re.compile(rf"^hakmem: setting {PREFIX}(\w+)=.* ignored: expected (.*)$", re.MULTILINE)
FILES = {  # any word is one's name
    "METRICS_FILE": "none, or the name of a file",
    "POLICY": "none, auto, or the name of a file",
}
_IGNORED = re.compile(r"^hakmem: ((?:unknown )?setting .*) ignored\b(.*)$", re.MULTILINE)
OF_ANOTHER = ": made for another program"  # than the one that is asked, which is not the one that is to run


def _said(library: Path, settings: Mapping[str, str]) -> str:
    """What the library prints when a program starts: launch without arguments, which only says how it is used."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environment = {**others, f"{PREFIX}HELP": "1", **settings, "LD_PRELOAD": str(linked(library))}
    done = subprocess.run([native.helper("launch")], env=environment, capture_output=True, text=True, errors="replace")
    return done.stderr


@dataclass(frozen=True)
class Setting:
    name: str  # without HAKMEM_
    default: str
    meaning: str
    values: str  # which it takes


def _rows(library: Path) -> list[dict[str, str]]:
    """LabError when the library doesn't load."""
    said = _said(library, {})
    rows = [found.groupdict() for found in _LISTED.finditer(said)]
    if not rows:
        raise LabError(f"{library} does not list its settings: {said.strip().splitlines()[0] if said else 'no output'}")
    return rows


def listed(library: Path) -> list[Setting]:
    """What values they take, the library says of a wrong one."""
    rows = _rows(library)
    wrong = {PREFIX + row["name"]: "=" for row in rows if row["name"] not in FILES}
    values = FILES | dict(_EXPECTED.findall(_said(library, wrong)))
    return [Setting(**row, values=values[row["name"]]) for row in rows]


def known(library: Path) -> list[str]:
    """Names without HAKMEM_."""
    return [row["name"] for row in _rows(library)]


@dataclass(frozen=True)
class Knob:
    name: str
    default: int
    lowest: int
    highest: int
    meaning: str = ""


def knobs(library: Path) -> list[Knob]:
    rows = (found.groupdict() for found in _KNOB.finditer(_said(library, {})))
    return [
        Knob(row["name"], int(row["default"]), int(row["lowest"]), int(row["highest"]), row["meaning"]) for row in rows
    ]


def markdown(library: Path) -> str:
    """Two tables: the settings, and the knobs."""
    rows = ["| setting | default | values | what it does |", "|---|---|---|---|"]
    rows += [f"| `{PREFIX}{one.name}` | `{one.default}` | `{one.values}` | {one.meaning} |" for one in listed(library)]
    rows += ["", "| knob | default | bounds | what it is |", "|---|---|---|---|"]
    rows += [
        f"| `{one.name}` | {one.default} | {one.lowest} to {one.highest} | {one.meaning} |" for one in knobs(library)
    ]
    return "\n".join(rows) + "\n"


def parse(words: Iterable[str], library: Path) -> dict[str, str]:
    """Environment variables from words like PREFAULT=1. The library must know the name and take the value."""
    pairs = [word.partition("=") for word in words]
    if not pairs:
        return {}
    names = known(library)
    for name, equals, value in pairs:
        if not equals or not name:
            raise LabError(f"{name + equals + value}: expected NAME=VALUE; names are {', '.join(names)}")
        if name not in names:
            raise LabError(f"no setting {name!r}; known are {', '.join(names)}")
    settings = {PREFIX + name: value for name, _, value in pairs}
    _expect_taken(settings, library)
    return settings


def expect_callers(library: Path) -> None:
    """LabError for a setting in the caller's environment that the library ignores, before something else is measured
    than was meant."""
    own = {name: value for name, value in os.environ.items() if name.startswith(PREFIX)}
    if own:
        _expect_taken(own, library)


def _expect_taken(settings: Mapping[str, str], library: Path) -> None:
    for what in ignored(settings, library):
        raise LabError(what)


def ignored(environment: Mapping[str, str], library: Path, *, of_another: bool = False) -> list[str]:
    """What the library would say of settings that it ignores, a line each. No file is written that a setting names; one
    of another process's settings, whose folder and rights may be others, isn't read either."""
    left_out = [PREFIX + "METRICS_FILE", *([PREFIX + "POLICY"] if of_another else [])]
    settings = {name: value for name, value in environment.items() if name.startswith(PREFIX) and name not in left_out}
    said = _IGNORED.finditer(_said(library, settings)) if settings else ()
    return [what + why for what, why in (found.groups() for found in said) if why != OF_ANOTHER]
