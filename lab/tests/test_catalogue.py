"""Cases by name, whatever kind they are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hakmem import catalogue, programs, suite
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.measure import Variant


def test_choice_mixes_benchmarks_and_programs_and_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find", lambda group: None if "lua5.4" in group else "/bin/true")
    cases, missing = catalogue.choose(["hot", "replay lua", "lua", "git"])
    assert [case.name for case in cases] == ["hot", "replay lua", "git"]
    assert missing == ["lua, Debian's package lua5.4 is not installed"]
    with pytest.raises(LabError, match="nothing to run: lua"):
        catalogue.choose(["lua"])


def test_groups_and_names_that_do_not_exist() -> None:
    cases, _ = catalogue.choose(["traces"])
    assert len(cases) >= 5 and all(case.name.startswith("replay ") for case in cases)
    usual = {case.name for case in catalogue.choose(size="sanity")[0]}
    assert not usual & {"soak half an hour", "redis snapshot"}
    with pytest.raises(LabError, match="no case 'nosuch'; there are mixed 400, .*and the groups single, threads"):
        catalogue.choose(["nosuch"])


def test_every_name_is_unique_and_listed() -> None:
    names = catalogue.names()
    assert len(names) == len(set(names)) and not set(names) & {*suite.GROUPS, catalogue.TRACES, programs.GROUP}
    assert [row[0] for row in catalogue.listing()] == names


def test_ceiling_runs_benchmarks_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ceiling = Variant("ceiling", Allocator("ceiling", Path("/lib/liballoc.so")))
    assert suite.BenchCase("hot", ("x",)).supports(ceiling)
    assert not programs.ProgramCase(programs.by_name("git"), ["git"]).supports(ceiling)
