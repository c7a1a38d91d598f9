"""What a record says: the right ratios, verdicts and means, from known values."""

from __future__ import annotations

import msgspec
import pytest
from hakmem import comparison, statistics
from hakmem.errors import LabError
from hakmem.report.model import Comparison, Table
from hakmem.statistics import Verdict
from sample_record import MACHINE, record

WALL = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99]


def compared(report: comparison.Report, number: int = 0) -> Comparison:
    section = report.sections[number]
    assert isinstance(section, Comparison)
    return section


def command_record(own: list[float], **changes: object) -> comparison.Record:
    values = {
        ("sort", "glibc", "wall_s"): WALL,
        ("sort", "hakmem", "wall_s"): own,
        ("sort", "glibc", "peak_rss_bytes"): [2e6] * 8,
        ("sort", "hakmem", "peak_rss_bytes"): [1e6 + i for i in range(8)],
        ("sort", "glibc", "major_faults"): [0.0] * 8,
        ("sort", "hakmem", "major_faults"): [0.0] * 8,
    }
    return record(values, **changes)


def test_primary_metric_is_answered_in_a_sentence() -> None:
    report = comparison.report(command_record([0.8 * value for value in WALL]), "sort")
    assert report.summary == (
        "hakmem against glibc, wall time: better, ratio 0.800 (0.800-0.800)",
        "hakmem, other figures: peak RSS better, 0.500 (0.500-0.500)",
    )
    assert compared(report).baseline == "glibc"
    entry = compared(report).cases[0].entry("hakmem")
    assert entry.verdict is Verdict.FASTER and entry.values == tuple(0.8 * value for value in WALL)


def test_same_values_are_no_difference() -> None:
    report = comparison.report(command_record(list(WALL)), "sort")
    assert "no difference" in report.summary[0]


def test_an_interval_that_is_too_wide_is_no_answer() -> None:
    report = comparison.report(command_record(list(reversed(WALL))), "sort")
    assert report.summary[0] == "hakmem against glibc, wall time: don't know, ratio 1.000 (0.980-1.020)"


def test_the_first_lines_name_what_is_worse_too() -> None:
    by_memory = comparison.report(command_record([1.5 * value for value in WALL]), "sort", primary="peak_rss_bytes")
    assert by_memory.summary[1] == "hakmem, other figures: wall time worse, 1.500 (1.500-1.500)"


def test_a_busy_machine_is_told_first() -> None:
    loads = {load: msgspec.structs.replace(MACHINE, load=(load, 1.0, 1.0)) for load in (0.7 * MACHINE.cores, 21.0)}
    said = {load: comparison.report(command_record(WALL, machine=one), "x").summary for load, one in loads.items()}
    assert said[21.0][-1].startswith(f"Other programs were busy: load 21.0 on {MACHINE.cores} core")
    assert not any("busy" in line for line in said[0.7 * MACHINE.cores])


def test_others_that_began_later_are_told() -> None:
    calm = msgspec.structs.replace(MACHINE, load=(0.0, 0.0, 0.0), cores=2)
    records = {busy: command_record(WALL, machine=calm, others_busy=busy) for busy in (None, 0.4, 1.3)}
    said = {busy: comparison.report(record, "x").summary for busy, record in records.items()}
    assert said[1.3][-1].startswith("Other programs were busy: they had 1.3 of 2 cores, or what the command had left ")
    assert not any("busy" in line for busy in (None, 0.4) for line in said[busy])
    after_a_run = msgspec.structs.replace(calm, load=(3.8, 1.0, 0.0))  # of the caller's own, that has ended
    own = comparison.report(command_record(WALL, machine=after_a_run, others_busy=0.3), "x").summary
    assert not any("busy" in line for line in own)


def test_secondary_metrics_have_wider_intervals() -> None:
    own = [0.99, 1.01, 1.0, 1.01, 0.99, 1.02, 0.99, 1.0]
    record = command_record(own)
    primary = comparison.report(record, "sort", primary="wall_s", metrics=("peak_rss_bytes", "wall_s"))
    other = comparison.report(
        record, "sort", primary="peak_rss_bytes", metrics=("peak_rss_bytes", "wall_s", "major_faults")
    )
    alone = compared(primary, 0).cases[0].entry("hakmem").ratio
    among = compared(other, 1).cases[0].entry("hakmem").ratio
    assert alone is not None and among is not None
    assert among.low <= alone.low and among.high >= alone.high and among != alone


def test_several_verdicts_on_the_primary_metric_may_be_by_chance() -> None:
    said = "Each interval holds with 95%. So of many verdicts one may be by chance."
    one = command_record(WALL)
    values = {(series.case, series.variant, series.metric): series.values for series in one.series}
    several = record({**values, ("sort", "other", "wall_s"): WALL})
    assert compared(comparison.report(one, "sort")).notes == ()
    assert compared(comparison.report(several, "sort")).notes == (said,)


NOISY = [0.91, 1.05, 1.0, 1.02, 0.97, 1.04, 0.93, 0.99]


@pytest.mark.parametrize(
    ("rounds", "confidence", "said"),
    [
        (8, 0.975, "Each interval holds with 97.5%. The verdict is that on the geometric mean."),
        (6, 0.95, f"{comparison.BY_CHANCE} The verdict is that on the geometric mean."),
    ],
)
def test_a_mean_holds_with_what_is_said_of_it(rounds: int, confidence: float, said: str) -> None:
    values = {
        (case, name, metric): [factor * one for one in noise[:rounds]]
        for case, factor in (("one", 1.0), ("other", 3.0))
        for name, noise in (("glibc", WALL), ("hakmem", NOISY), ("third", NOISY[::-1]))
        for metric in ("cpu_s", "peak_rss_bytes")
    }
    report = comparison.suite_report(record(values), "suite")
    pairs = {case: (values[case, "hakmem", "cpu_s"], values[case, "glibc", "cpu_s"]) for case in ("one", "other")}
    for shown in (compared(report, 0), compared(report, 1)):
        assert shown.mean is not None and shown.notes == (said,)
        assert shown.mean.entry("hakmem").ratio == statistics.geometric_mean_ratio(pairs, confidence=confidence)


@pytest.mark.parametrize(
    ("rounds", "said"),
    [(8, "Each interval holds with 98.3%."), (6, comparison.BY_CHANCE)],
)
def test_the_other_metrics_are_widened_for_their_means_too(rounds: int, said: str) -> None:
    values = {
        (case, name, metric): noise[:rounds]
        for case in ("one", "other")
        for name, noise in (("glibc", WALL), ("hakmem", NOISY))
        for metric in ("wall_s", "peak_rss_bytes")
    }
    report = comparison.report(record(values), "both")
    assert compared(report, 0).notes == (comparison.BY_CHANCE,)
    assert compared(report, 1).notes == (said,)


def test_a_suite_is_told_by_machine_as_it_is_told_over_all() -> None:
    """A benchmark that goes on for a time takes as much processor time, whatever it does in it."""
    values = {
        ("larson", name, metric): [amount] * 12
        for name, rate in (("glibc", 1e6), ("hakmem", 2e6))
        for metric, amount in (("cpu_s", 1.0), ("operations_per_s", rate))
    }
    machines = {"first": MACHINE, "second": MACHINE}
    report = comparison.suite_report(record(values, machines=machines, blocks=[*machines] * 6), "suite")
    (table,) = (one for one in report.sections if isinstance(one, Table))
    assert table.title == "time by machine"
    assert table.notes == (f"Ratios to glibc, of each machine's rounds alone. {comparison.BY_CHANCE}",)
    assert [row[-1] for row in table.rows] == ["0.500 (0.500-0.500)"] * 2


def test_zeros_have_no_ratio_and_no_verdict() -> None:
    report = comparison.report(command_record(WALL), "sort", metrics=("major_faults",))
    entry = compared(report, 1).cases[0].entry("hakmem")
    assert entry.values and entry.ratio is None and entry.verdict is None


def test_baseline_can_be_chosen_and_must_exist() -> None:
    report = comparison.report(command_record(WALL), "sort", baseline="hakmem")
    assert compared(report).baseline == "hakmem"
    with pytest.raises(LabError, match="no 'jemalloc' to compare with; there are glibc, hakmem"):
        comparison.report(command_record(WALL), "sort", baseline="jemalloc")
    with pytest.raises(LabError, match="no figure 'latency' to compare by; there are wall_s"):
        comparison.report(command_record(WALL), "sort", primary="latency")


def test_suite_turns_throughput_into_time_and_means_it() -> None:
    report = comparison.suite_report(record(), "suite", baseline="glibc")
    time, memory = compared(report, 0), compared(report, 1)
    assert time.title.startswith("time") and memory.title == "peak RSS"
    assert time.cases[0].entry("glibc").values[0] == pytest.approx(1 / 98e6)
    assert time.mean is not None and memory.mean is not None
    mean = time.mean.entry("hakmem").ratio
    assert mean is not None and mean.estimate == pytest.approx((1 / 2 / 1.1) ** 0.5, rel=0.01)
    assert report.summary[0].startswith("hakmem against glibc, geometric mean of time: better")
    assert report.summary[1].startswith("hakmem against glibc, geometric mean of peak RSS: worse")


def test_variant_that_failed_a_case_is_left_out_of_its_mean_and_told() -> None:
    values = {key: some for key, some in comparison_values().items() if key[:2] != ("hot", "hakmem")}
    report = comparison.suite_report(record(values), "suite", baseline="glibc")
    assert compared(report).notes[-1] == "hakmem: mean over 1 of 2 cases"
    assert compared(report).cases[1].entry("hakmem").values == ()


def comparison_values() -> dict[tuple[str, str, str], list[float]]:
    from sample_record import VALUES

    return {key: list(some) for key, some in VALUES.items()}


def test_records_of_sanity_size_or_with_fewer_rounds_than_were_asked_for_say_so() -> None:
    report = comparison.report(command_record(WALL, size="sanity", interrupted=True), "sort")
    assert "Fewer rounds than were asked for: whole ones only." in report.notes
    assert any("Short runs" in note for note in report.notes)


def test_what_the_environment_has_set_for_all_runs_is_told() -> None:
    """The C library of a container that sets MALLOC_ARENA_MAX is not as it is elsewhere."""
    said = "Set for all runs by the environment: MALLOC_ARENA_MAX=2 PYTHONMALLOC=malloc"
    settings = {"MALLOC_ARENA_MAX": "2", "PYTHONMALLOC": "malloc"}
    assert said in comparison.report(command_record(WALL, settings=settings), "sort").notes
    assert not any("environment" in note for note in comparison.report(command_record(WALL), "sort").notes)


@pytest.mark.parametrize(
    ("environment", "of_hakmem", "said"),
    [
        ({"HAKMEM_KNOBS": "decay_ms=50"}, {"HAKMEM_KNOBS": "held_slabs=4"}, "decay_ms=50 (hakmem has another)"),
        ({"HAKMEM_KNOBS": "decay_ms=50"}, {"HAKMEM_KNOBS": "decay_ms=50"}, "decay_ms=50"),
        ({"HAKMEM_KNOBS": "decay_ms=50"}, {"HAKMEM_GOAL": "speed"}, "decay_ms=50"),
        ({"GLIBC_TUNABLES": "a=1"}, {"GLIBC_TUNABLES": "b=1"}, "a=1 (hakmem adds to it)"),
    ],
)
def test_what_a_variant_sets_for_itself_is_not_said_to_be_set_for_all(
    environment: dict[str, str], of_hakmem: dict[str, str], said: str
) -> None:
    sorted_by = command_record(WALL, settings=environment)
    own = msgspec.structs.replace(sorted_by.variants["hakmem"], settings=of_hakmem)
    changed = msgspec.structs.replace(sorted_by, variants={**sorted_by.variants, "hakmem": own})
    (name,) = environment
    assert f"Set for all runs by the environment: {name}={said}" in comparison.report(changed, "sort").notes
