"""Results of tests as CTest and pytest write them in JUnit's format."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SILENT = "it does not say why"
LEFT_OUT = re.compile(r"^\[  SKIPPED \] (\w+)$", re.MULTILINE)


@dataclass(frozen=True)
class Case:
    name: str
    seconds: float
    outcome: str  # passed, failed or skipped
    said: str = ""  # why it was skipped
    left_out: tuple[str, ...] = ()  # what it has skipped of itself, as cmocka says


def read(path: Path) -> list[Case]:
    """An empty list where there is no such file, or only a part of one."""
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return []
    return [_case(element) for element in root.iter("testcase")]


def _case(element: ElementTree.Element) -> Case:
    module, name = element.get("classname", ""), element.get("name", "")
    skipped = element.find("skipped")
    # pytest tells why in the element itself; CTest says what made it skip, and the test told why in its output. CTest
    # has `skipped` for tests, too, whose program or fixture is not there.
    reason = "" if skipped is None else skipped.get("message", "")
    status = element.get("status")
    never_ran = status == "notrun" and not reason.startswith("SKIP_")
    failed = never_ran or element.find("failure") is not None or element.find("error") is not None
    is_skipped = skipped is not None or status == "disabled"
    outcome = "failed" if failed else "skipped" if is_skipped else "passed"
    if reason.startswith("SKIP_"):
        lines = [line.strip() for line in element.findtext("system-out", "").splitlines() if line.strip(" -")]
        reason = lines[-1].removeprefix("skipped: ") if lines else SILENT
    is_pytest = module != name
    left_out = dict.fromkeys(LEFT_OUT.findall(element.findtext("system-out", "")))
    title = f"{module}::{name}" if is_pytest else name
    return Case(title, float(element.get("time") or 0), outcome, reason, tuple(left_out))


def by_group(cases: Iterable[Case]) -> dict[str, tuple[int, float]]:
    """Tests and seconds of each group: the first word of a test's name, or a module of pytest's."""
    groups: dict[str, tuple[int, float]] = {}
    for case in cases:
        group = re.split(r"[._]", case.name)[0] if "::" not in case.name else case.name.partition("::")[0]
        count, seconds = groups.get(group, (0, 0.0))
        groups[group] = count + 1, seconds + case.seconds
    return groups
