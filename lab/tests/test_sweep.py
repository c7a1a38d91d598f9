from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem import behaviours, cli, native, settings, sweep
from hakmem.behaviours import BehaviourCase
from hakmem.errors import LabError
from hakmem.measure import Measurement, Sample, Variant
from hakmem.settings import Knob
from hakmem.suite import BenchCase

HELP = """\
hakmem: settings (value, default, meaning)
  HAKMEM_ACE_ENABLED   = 1 (default 1): 0: no controller
  HAKMEM_KNOBS         = none (default none): NAME=NUMBER[:NAME=NUMBER...]
hakmem: knobs (value, default, bounds, meaning)
  decay_ms            = 1000 (default 1000, 10 to 3600000): how long
  huge_page_mode      = 1 (default 1, 0 to 2): 0 none
"""
KNOBS = [Knob("decay_ms", 1000, 10, 3600000, "how long"), Knob("huge_page_mode", 1, 0, 2, "0 none")]


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "libhakmem.so"
    path.write_bytes(b"a library")
    monkeypatch.setattr(native, "library", lambda: path)
    monkeypatch.setattr(settings, "_said", lambda library, settings: HELP)
    return path


def test_knobs_are_those_the_library_lists(library: Path) -> None:
    assert settings.knobs(library) == KNOBS


def test_arms_are_steps_and_bounds_but_not_the_default() -> None:
    assert sweep.arms(KNOBS[0]) == [10, 250, 4000, 16000, 3600000]
    assert sweep.arms(KNOBS[1]) == [0, 2]
    assert sweep.arms(Knob("limit", 100, 50, 200)) == [50, 200]  # steps beyond the bounds are none


def test_single_settings_have_no_controller() -> None:
    made = {variant.name: variant.settings for variant in sweep.single(KNOBS)}
    assert len(made) == 7
    assert made["decay_ms=10"] == {"HAKMEM_ACE_ENABLED": "0", "HAKMEM_KNOBS": "decay_ms=10"}


def test_random_settings_follow_from_the_seed() -> None:
    first, again, other = (sweep.combined(KNOBS, 8, seed) for seed in (1, 1, 2))
    assert [variant.settings for variant in first] == [variant.settings for variant in again]
    assert [variant.settings for variant in first] != [variant.settings for variant in other]
    assert "decay_ms=" in first[0].settings["HAKMEM_KNOBS"] and "huge_page_mode=" in first[0].settings["HAKMEM_KNOBS"]


def row(name: str, time: float, memory: float) -> tuple[str, float, float]:
    return name, time, memory


def test_finalists_save_time_or_memory() -> None:
    ranked = [
        row("random 1", 0.5, 2),
        row("random 2", 0.6, 2),
        row("a=1", 0.8, 1),
        row("b=1", 0.9, 1.1),
        row("c=1", 0.95, 1),
        row("d=1", 0.96, 1.2),
        row(sweep.DEFAULT, 1, 1),
        row("e=1", 1.01, 0.8),
        row("f=1", 1.5, 0.1),  # too slow
    ]
    assert sweep.finalists(ranked) == ["a=1", "b=1", "c=1", "random 1", "e=1"]
    assert sweep.finalists([row(sweep.DEFAULT, 1, 1), row("a=1", 1.2, 1)]) == []


def test_ranking_is_to_the_default() -> None:
    variants = [sweep.fixed(sweep.DEFAULT, {}), sweep.fixed("a=1", {"a": 1}), sweep.fixed("broken", {"b": 1})]
    done = Measurement([], variants, rounds=2)
    done.samples = {
        "hot": {
            "default": [Sample({"cost_ns": 10, "mean_rss_bytes": 100}, "", True)] * 2,
            "a=1": [Sample({"cost_ns": 8, "mean_rss_bytes": 150}, "", True)] * 2,
            "broken": [],
        }
    }
    found = {name: (round(time, 9), round(memory, 9)) for name, time, memory in sweep.ranking(done, "hot")}
    assert found == {"a=1": (0.8, 1.5), "default": (1, 1)}


# ---- Behaviours ------------------------------------------------------------------------------------------------------


def test_a_behaviour_is_the_last_visit_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"cost_idle_1": 9.0, "cost_idle_2": 5.0, "rss_idle_1": 1.0, "rss_idle_2": 2.0, "cpu_s": 3.0}
    monkeypatch.setattr(BenchCase, "run", lambda self, variant: Sample(values, "0x1", True))
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    [case] = sweep.cases(["behaviour", "idle"])
    assert case.command == ("/bench/bench_switching", "0.5", "2", "1", "idle")
    assert case.run(sweep.fixed("default", {})).values == {"cost_ns": 5.0, "mean_rss_bytes": 2.0}
    assert sweep.cases(["behaviour", "hot,idle"], 2)[1].command[1] == "2"
    assert sweep.shortened(case).command[1] == "0.125"


def test_no_such_behaviour() -> None:
    with pytest.raises(LabError, match="no behaviour 'busy'; there are hot, bulk"):
        sweep.cases(["behaviour", "busy"])


# ---- The command -----------------------------------------------------------------------------------------------------


def test_sweep_finds_the_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """decay_ms=4000 takes half of the time; the controller, which takes part, does nothing."""

    def run(self: BehaviourCase, variant: Variant) -> Sample:
        given: Mapping[str, str] = variant.settings
        is_best = given.get("HAKMEM_KNOBS") == "decay_ms=4000"
        return Sample({"cost_ns": 5.0 if is_best else 10.0, "mean_rss_bytes": 100.0}, "0x1", True)

    monkeypatch.setattr(BehaviourCase, "run", run)
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    words = ["sweep", "--random", "0", "--side", "adaptive=ACE_ENABLED=1", "--json", str(tmp_path / "record.json")]
    done = CliRunner().invoke(cli.cli, [*words, "--", "behaviour", "hot"])
    assert done.exit_code == 0, done.output
    assert "hot: the fastest fixed setting is decay_ms=4000, 0.5" in done.output
    text = (tmp_path / "record.json").read_text()
    assert '"kind": "sweep"' in text and "screened: decay_ms=4000: time 0.500" in text
    assert text.count('"variant": "adaptive"') == 2
    assert set(behaviours.NAMES) == {"hot", "bulk", "handover", "buffers", "growing", "idle"}
