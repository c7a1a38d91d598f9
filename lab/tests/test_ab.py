from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem import ab, cli, comparison, measure, native, settings
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.measure import CommandCase, Sample, Variant
from hakmem.statistics import Decision
from hakmem.suite import BenchCase
from sample_record import Values, record


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library that has three settings, without asking a real one."""
    path = tmp_path / "libhakmem.so"
    path.write_bytes(b"a library")
    monkeypatch.setattr(native, "library", lambda: path)
    monkeypatch.setattr(settings, "known", lambda library: ["PREFAULT", "STATS", "OTHER"])
    monkeypatch.setattr(settings, "_said", lambda library, settings: "")
    return path


# ---- Sides and matrices ----------------------------------------------------------------------------------------------


def test_a_side_is_settings_with_or_without_the_prefix(library: Path) -> None:
    side = ab.side("b", "PREFAULT=1,HAKMEM_STATS=json:FILE")
    assert (side.name, side.allocator.library) == ("b", library)
    assert side.settings == {"HAKMEM_PREFAULT": "1", "HAKMEM_STATS": "json:FILE"}
    assert ab.side("a", "-").settings == {}


def test_a_value_may_have_commas() -> None:
    assert ab.side("a", "STATS=text:a,b,PREFAULT=1").settings == {"HAKMEM_STATS": "text:a,b", "HAKMEM_PREFAULT": "1"}


def test_a_side_may_be_another_build_with_settings_of_its_own(tmp_path: Path) -> None:
    other = tmp_path / "other.so"
    other.write_bytes(b"another")
    side = ab.side("b", f"library={other},OTHER=1")
    assert (side.allocator.name, side.allocator.library, side.settings) == ("hakmem", other, {"HAKMEM_OTHER": "1"})


def test_a_build_that_ignores_a_setting_of_the_caller_s_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other side would have it, and the report would say that all runs have."""
    older = tmp_path / "older.so"
    older.write_bytes(b"older")
    ignored = "hakmem: unknown setting HAKMEM_STATS ignored\n"
    monkeypatch.setattr(settings, "_said", lambda library, given: ignored if library == older and given else "")
    assert ab.side("b", f"library={older}").allocator.library == older
    monkeypatch.setenv("HAKMEM_STATS", "text:FILE")
    ab.side("a", "-")
    monkeypatch.chdir(tmp_path)
    for name in (older, older.name):
        with pytest.raises(LabError, match="unknown setting HAKMEM_STATS"):
            ab.side("b", f"library={name}")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("PREFAULT", "'PREFAULT': expected `-`, or NAME=VALUE and library=PATH with commas between"),
        ("", "'': expected `-`"),
        ("UNKNOWN=1", "no setting 'UNKNOWN'; known are PREFAULT, STATS, OTHER"),
        ("library=/nowhere.so", "library=/nowhere.so: there is no such file"),
    ],
)
def test_a_side_that_says_nothing_is_refused(word: str, expected: str) -> None:
    with pytest.raises(LabError) as raised:
        ab.side("a", word)
    assert str(raised.value).startswith(expected)


def test_a_matrix_is_every_combination_the_last_switch_changing_first() -> None:
    variants, names = ab.matrix(["PREFAULT=0,1", "HAKMEM_OTHER=0,1"])
    assert names == ["PREFAULT", "OTHER"]
    assert [variant.name for variant in variants] == [
        "PREFAULT=0 OTHER=0",
        "PREFAULT=0 OTHER=1",
        "PREFAULT=1 OTHER=0",
        "PREFAULT=1 OTHER=1",
    ]
    assert variants[2].settings == {"HAKMEM_PREFAULT": "1", "HAKMEM_OTHER": "0"}


@pytest.mark.parametrize("words", [["PREFAULT"], ["PREFAULT=1"], ["PREFAULT=1,1"], ["PREFAULT=1,2,3"]])
def test_a_switch_has_two_values(words: list[str]) -> None:
    with pytest.raises(LabError, match="expected a switch with its two values"):
        ab.matrix(words)


def test_a_switch_stands_in_a_matrix_once() -> None:
    with pytest.raises(LabError, match="a switch stands twice"):
        ab.matrix(["PREFAULT=0,1", "HAKMEM_PREFAULT=0,2"])


def test_what_is_run_is_a_benchmark_by_name_or_a_command() -> None:
    (named,) = ab.cases(("mixed", "400"), sanity=False)
    assert isinstance(named, BenchCase) and named.name == "mixed 400"
    assert ab.cases(("bench", "mixed 400"), sanity=False) == [named]
    assert ab.cases(("mixed", "400"), sanity=True) != [named]
    several = ab.cases(("bench", "mixed", "400,replay", "git"), sanity=False)
    assert [case.name for case in several] == ["mixed 400", "replay git"]
    with pytest.raises(LabError, match="no case 'nosuch'"):
        ab.cases(("bench", "nosuch"), sanity=False)
    assert len(ab.cases(("threads",), sanity=True)) > 1
    (command,) = ab.cases(("python3", "-c", "pass"), sanity=False)
    assert command == CommandCase(("python3", "-c", "pass"))
    with pytest.raises(LabError, match="options stand before it"):
        ab.cases(("-n", "7"), sanity=False)


# ---- Decisions -------------------------------------------------------------------------------------------------------

NOISE = [1.000, 1.002, 0.999, 1.001, 0.998, 1.003, 1.000, 0.997, 1.001, 1.002]


def of(time: float, memory: float, *, rounds: int = 10, faults: float = 100.0) -> Record:
    """B is so many times A, with a little noise."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for name, factors in {"a": (1.0, 1.0), "b": (time, memory)}.items():
        noise = NOISE[:rounds] if name == "a" else list(reversed(NOISE[:rounds]))
        values["case", name, "wall_s"] = [2.0 * factors[0] * one for one in noise]
        values["case", name, "peak_rss_bytes"] = [float(1 << 20) * factors[1] * one for one in noise]
        values["case", name, "minor_faults"] = [faults] * rounds
    return record(values, kind="ab")


def decisions(made: Record, threshold: float = 0.01) -> dict[str, Decision | None]:
    return {one.metric.name: one.decision for one in ab.decide(made, threshold)}


@pytest.mark.parametrize(
    ("time", "memory", "expected"),
    [
        (0.95, 1.0, (Decision.GO, Decision.NEUTRAL)),
        (1.05, 1.0, (Decision.NO_GO, Decision.NEUTRAL)),
        (1.0, 1.0, (Decision.NEUTRAL, Decision.NEUTRAL)),
        (0.993, 1.0, (Decision.NEUTRAL, Decision.NEUTRAL)),
        (0.95, 1.05, (Decision.GO, Decision.NO_GO)),
    ],
)
def test_time_and_memory_are_decided_apart(time: float, memory: float, expected: tuple[Decision, Decision]) -> None:
    found = decisions(of(time, memory))
    assert (found["wall_s"], found["peak_rss_bytes"], found["minor_faults"]) == (*expected, None)


def test_the_threshold_moves_the_decision() -> None:
    assert decisions(of(0.97, 1.0), threshold=0.05)["wall_s"] is Decision.NEUTRAL
    assert decisions(of(0.995, 1.0), threshold=0.001)["wall_s"] is Decision.GO


def test_fewer_than_ten_rounds_decide_nothing() -> None:
    found = decisions(of(0.5, 0.5, rounds=9))
    assert found["wall_s"] is found["peak_rss_bytes"] is Decision.UNDECIDED
    said = ab.report(of(0.5, 0.5, rounds=9), 0.01)
    assert "case, wall time: too few rounds: 9 of at least 10" in said.summary


def test_noise_above_the_threshold_is_no_answer() -> None:
    made = of(1.0, 1.0)
    assert decisions(made, threshold=0.0001)["wall_s"] is Decision.UNKNOWN
    assert decisions(made, threshold=0.01)["wall_s"] is Decision.NEUTRAL


def test_more_throughput_is_better() -> None:
    values: Values = {
        ("hot", "a", "operations_per_s"): [100e6 * one for one in NOISE],
        ("hot", "b", "operations_per_s"): [110e6 * one for one in NOISE],
        ("hot", "a", "wall_s"): [1.0] * 10,
        ("hot", "b", "wall_s"): [1.0] * 10,
    }
    (found,) = [one for one in ab.decide(record(values), 0.01) if one.decision]
    assert found.metric.title == "time per operation" and found.decision is Decision.GO
    assert found.ratio is not None and found.ratio.estimate == pytest.approx(1 / 1.1), "below 1: b takes less"


def test_zeros_have_no_ratio_and_no_decision() -> None:
    found = {one.metric.name: one for one in ab.decide(of(1.0, 1.0, faults=0.0), 0.01)}
    assert found["minor_faults"].ratio is None


def test_effects_of_switches_that_do_not_add_up() -> None:
    """Each alone gains, together they gain no more than one of them."""
    times = {"X=0 Y=0": 1.0, "X=0 Y=1": 0.9, "X=1 Y=0": 0.8, "X=1 Y=1": 0.8}
    values: Values = {("case", name, "wall_s"): [time * one for one in NOISE] for name, time in times.items()}
    effects = ab.effects(record(values), "case", measure.METRICS["wall_s"], ["X", "Y"])
    found = {one.factors: one.interval.estimate for one in effects}
    assert found["X",] == pytest.approx((0.8 / 1.0 * 0.8 / 0.9) ** 0.5, rel=1e-3)
    assert found["Y",] == pytest.approx((0.9 / 1.0 * 0.8 / 0.8) ** 0.5, rel=1e-3)
    assert found["X", "Y"] == pytest.approx((0.8 / 0.8) / (0.9 / 1.0), rel=1e-3)


def test_a_combination_without_values_has_no_effects() -> None:
    values: Values = {("case", "X=0", "wall_s"): NOISE, ("other", "X=1", "wall_s"): NOISE}
    assert ab.effects(record(values), "case", measure.METRICS["wall_s"], ["X"]) == []


# ---- The command -----------------------------------------------------------------------------------------------------


class Run:
    """What the command was asked to run, instead of running it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.commands: list[tuple[str, ...]] = []

        def run(case: CommandCase, variant: Variant) -> Sample:
            self.commands.append(case.command)
            slower = 1.1 if variant.settings.get("HAKMEM_OTHER") == "1" else 1.0
            noise = NOISE[len(self.commands) % len(NOISE)]
            return Sample({"wall_s": 2.0 * slower * noise, "peak_rss_bytes": 1e6}, "same", True)

        monkeypatch.setattr(CommandCase, "run", run)


def invoke(*words: str) -> str:
    done = CliRunner().invoke(cli.cli, ["ab", *words], catch_exceptions=False)
    return done.output


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_the_command_prints_decisions_statistics_and_raw_values(ran: Run) -> None:
    said = invoke("--a", "-", "--b", "OTHER=1", "--", "true", "-x")
    assert ran.commands == [("true", "-x")] * 22
    assert "true -x, wall time: NO-GO" in said and "true -x, peak RSS: NEUTRAL" in said
    for word in ("mean", "median", "standard deviation", "2.20s", "b: ", "HAKMEM_OTHER=1"):
        assert word in said


def test_of_several_cases_it_is_said_that_one_may_be_by_chance() -> None:
    for cases in (1, 2):
        values = {(f"case {number}", side, "wall_s"): [1.0] * 10 for number in range(cases) for side in "ab"}
        notes = ab.report(record(values), 0.01).notes
        assert any(comparison.BY_CHANCE in note for note in notes) == (cases > 1)


def test_a_matrix_takes_its_switches_as_one_option_each_or_in_a_row(ran: Run) -> None:
    for words in (
        ["--matrix", "PREFAULT=0,1", "--matrix", "OTHER=0,1"],
        ["--matrix", "PREFAULT=0,1", "OTHER=0,1", "--"],
    ):
        said = invoke(*words, "true")
        assert "effects on wall time" in said and "PREFAULT x OTHER" in said
    assert ran.commands == [("true",)] * 4 * 11 * 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--", "true"], "expected --a SIDE and --b SIDE, or --matrix"),
        (["--a", "-", "--matrix", "OTHER=0,1", "--", "true"], "expected --a SIDE and --b SIDE, or --matrix"),
        (["--a", "-", "--b", "-", "--", "true"], "A and B are the same"),
        (["--b", "WRONG=1", "--", "true"], "no setting 'WRONG'"),
    ],
)
def test_what_can_not_be_decided_is_refused(ran: Run, words: list[str], expected: str) -> None:
    with pytest.raises(LabError, match=expected):
        invoke(*words)
    assert ran.commands == []


def test_what_the_environment_sets_is_set_on_the_side_with_nothing_set(
    ran: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HAKMEM_PREFAULT", "1")
    with pytest.raises(LabError, match="A and B are the same"):
        invoke("--a", "-", "--b", "PREFAULT=1", "--", "true")
    assert ran.commands == []
    said = "Set for all runs by the environment: HAKMEM_PREFAULT=1 (b has another)"
    assert said in invoke("--b", "PREFAULT=0", "--", "true")
