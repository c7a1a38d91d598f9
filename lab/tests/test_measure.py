from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hakmem import ledger, measure
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.measure import Done, Failure, OnRun, Outcome, SameOutput, Sample, Step, Turn, Variant
from sample_record import MACHINE

Behaviour = Callable[[str, int], Sample]  # of a variant's name and the number of its run, from 0


class Scripted:
    """A case whose runs are scripted; `order` tells who ran when."""

    command: Sequence[str] = ("scripted",)

    def __init__(self, behaviour: Behaviour, name: str = "case", same_output: SameOutput = "on a machine") -> None:
        self.behaviour, self.name, self.same_output = behaviour, name, same_output
        self.order: list[str] = []

    def supports(self, variant: Variant) -> bool:
        return variant.name != "unsupported"

    def run(self, variant: Variant) -> Sample:
        number = self.order.count(variant.name)
        self.order.append(variant.name)
        return self.behaviour(variant.name, number)


def numbered(name: str, number: int) -> Sample:
    return Sample({"wall_s": float(number)}, "same", True)


def variants(*names: str) -> list[Variant]:
    return [Variant(name, Allocator(name, None)) for name in names]


@pytest.mark.parametrize("count", range(1, 13))
def test_each_comes_after_each_other_equally_often(count: int) -> None:
    turns = 2 * count
    orders = [measure.order_of(turn, count) for turn in range(turns)]
    pairs = Counter(pair for order in orders for pair in pairwise(order))
    places = Counter(placed for order in orders for placed in enumerate(order))
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert pairs == {(a, b): 2 for a in range(count) for b in range(count) if a != b}
    assert places == {(place, number): 2 for place in range(count) for number in range(count)}


def test_what_others_had_is_known_of_this_machine_alone() -> None:
    """As `compare` asks, which names the place."""
    for place in (None, measure.Here()):
        others = measure.measure([Scripted(numbered)], variants("a", "b"), 2, place=place).others_busy
        assert others is not None and others >= 0


def test_rounds_interleave_and_the_order_turns() -> None:
    case = Scripted(numbered)
    done = measure.measure([case], variants("a", "b", "c"), 3, warmup=1)
    assert case.order == ["a", "b", "c", "a", "c", "b", "c", "a", "b", "c", "b", "a"]
    assert done.values("case", "a", "wall_s") == [1.0, 2.0, 3.0]  # run 0 was the warm-up
    assert (done.rounds, done.interrupted, done.failures, done.notes) == (3, False, [], [])


def test_the_order_turns_from_case_to_case_too() -> None:
    first, second = Scripted(numbered, "first"), Scripted(numbered, "second")
    measure.measure([first, second], variants("a", "b"), 2, warmup=0)
    assert (first.order, second.order) == (["a", "b", "b", "a"], ["b", "a", "a", "b"])


def test_each_run_is_announced_before_it_is_made() -> None:
    steps: list[Step] = []
    case = Scripted(numbered)
    measure.measure([case], variants("a", "b"), 1, warmup=1, on_step=steps.append)
    assert [(step.number, step.count, step.round, step.variant) for step in steps] == [
        (1, 4, 0, "a"),
        (2, 4, 0, "b"),
        (3, 4, 1, "b"),
        (4, 4, 1, "a"),
    ]


def interrupting(at_run: int) -> Behaviour:
    runs: list[str] = []

    def behaviour(name: str, number: int) -> Sample:
        runs.append(name)
        if len(runs) == at_run:
            raise KeyboardInterrupt
        return numbered(name, number)

    return behaviour


def test_ctrl_c_in_the_middle_of_a_round_keeps_whole_rounds() -> None:
    done = measure.measure([Scripted(interrupting(8))], variants("a", "b"), 10, warmup=1)
    assert (done.rounds, done.interrupted) == (2, True)
    assert done.values("case", "a", "wall_s") == done.values("case", "b", "wall_s") == [1.0, 2.0]


def test_ctrl_c_before_a_whole_round_keeps_nothing() -> None:
    with pytest.raises(LabError, match="interrupted before the first whole round") as raised:
        measure.measure([Scripted(interrupting(4))], variants("a", "b"), 10, warmup=1)
    assert raised.value.exit_status == 130


def test_a_full_disk_keeps_whole_rounds() -> None:
    def behaviour(name: str, run: int) -> Sample:
        if run == full_at:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return numbered(name, run)

    full_at = 3
    done = measure.measure([Scripted(behaviour)], variants("a", "b"), 10, warmup=1)
    assert (done.rounds, done.interrupted) == (2, True)
    assert done.notes == ["2 of 10 rounds: No space left on device"] and done.failures == []
    with pytest.raises(OSError, match="No space left"):  # who can't do with fewer rounds says so, too
        done.expect_whole()
    full_at = 1
    with pytest.raises(OSError, match="No space left"):
        measure.measure([Scripted(behaviour)], variants("a", "b"), 10, warmup=1)


@pytest.mark.parametrize("broken_at", [3.0, 3.5])
def test_what_breaks_amid_a_round_is_no_failure_of_the_one_that_came_next(broken_at: float) -> None:
    """Its whole rounds from before are kept, as those of the others are. Runs 0 are the warm-up."""

    def behaviour(name: str, run: int) -> Sample:
        if run + (0.5 if len(order) % 2 else 0) >= broken_at:
            raise LabError("prog: command not found")
        order.append(name)
        return numbered(name, run)

    order: list[str] = []
    done = measure.measure([Scripted(behaviour)], variants("a", "b"), 10, warmup=1)
    assert [len(samples) for samples in done.samples["case"].values()] == [2, 2] and done.rounds == 2
    assert "2 of 10 rounds: nothing of the next one has succeeded" in done.notes


class Machines:
    """One round after the other, on machines in turn."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        while turns := [(name, turn) for name in self.names if (turn := next_turn(name)) is not None]:
            yield from (Done(name, turn, self.outcome(name, turn)) for name, turn in turns)

    def outcome(self, name: str, turn: Turn) -> Outcome:
        samples = [(case.name, one.name, numbered(one.name, 1)) for case in turn.cases for one in turn.variants]
        failures = [Failure(case, one, turn.round, "prog: command not found") for case, one, _ in samples]
        return Outcome([], failures, (0, 0, 0)) if name.startswith("bare") else Outcome(samples, [], (0, 0, 0))


@pytest.mark.parametrize("warmup", [0, 1])
@pytest.mark.parametrize("names", [("bare", "good"), ("good", "bare"), ("bare", "good", "bare too")])
def test_a_machine_on_which_nothing_succeeds_is_left_out(names: tuple[str, ...], warmup: int) -> None:
    """It lacks the program, say: what the others measure stands."""
    done = measure.measure([Scripted(numbered)], variants("a", "b"), 6, warmup=warmup, place=Machines(*names))
    assert (done.rounds, done.failures, {*done.blocks}) == (6, [], {"good"})
    assert len(done.values("case", "a", "wall_s")) == 6
    left = [f"{name} was left out: prog: command not found" for name in names if name.startswith("bare")]
    assert done.notes == left
    with pytest.raises(LabError, match="^case under a, b: prog: command not found$"):
        measure.measure([Scripted(numbered)], variants("a", "b"), 6, warmup=warmup, place=Machines("bare"))


class Different(Machines):
    """What a program prints goes by the version that the machine has; on the last machine an allocator breaks it."""

    def __init__(self, *names: str, versions: Mapping[str, str] | None = None) -> None:
        super().__init__(*names)
        self.versions = versions or {name: name for name in names}

    def outcome(self, name: str, turn: Turn) -> Outcome:
        found = super().outcome(name, turn)
        broken = (self.names[-1], "b")
        return replace(
            found,
            samples=[
                (case, one, replace(sample, digest="wrong" if (name, one) == broken else self.versions[name]))
                for case, one, sample in found.samples
            ],
        )


@pytest.mark.parametrize("names", [("old", "new", "good"), ("good",)])
@pytest.mark.parametrize("trusted", ["a", "glibc"])
def test_outputs_are_compared_within_each_machine(names: tuple[str, ...], trusted: str) -> None:
    """Its compiler is of another version, say, or it lacks what a command reads: then it did other work."""
    told = ["case: not every machine printed the same"] if len(names) > 1 else []
    among = variants(trusted, "b", "c")
    done = measure.measure([Scripted(numbered)], among[::2], 6, warmup=0, place=Different(*names))
    assert done.failures == [] and len(done.values("case", trusted, "wall_s")) == 6 and done.notes == told
    done = measure.measure([Scripted(numbered)], among, 6, warmup=0, place=Different(*names))
    (failure,) = done.failures
    assert failure.variant == "b" and failure.reason.endswith(f"wrong, expected {names[-1]}")
    assert (f"its output on {names[-1]} is not" in failure.reason) == (len(names) > 1)
    assert done.values("case", "b", "wall_s") == [] and len(done.values("case", "c", "wall_s")) == 6
    printing = Scripted(numbered, same_output="nowhere")
    assert measure.measure([printing], among[::2], 6, warmup=0, place=Different(*names)).notes == told
    done = measure.measure([printing], among, 6, warmup=0, place=Different(*names))
    said = f"case: each run under {trusted}, c printed the same, each under b something else"
    assert (done.failures, done.notes) == ([], [said, *told])


def test_work_that_is_the_same_everywhere_is_compared_across_machines() -> None:
    """One has an older build of a benchmark, say."""
    names = ("m1", "m2", "old")
    place = Different(*names, versions={"m1": "1", "m2": "1", "old": "2"})
    with pytest.raises(LabError, match="^case under glibc, c: its output on old is not .*: 2, expected 1$"):
        measure.measure(
            [Scripted(numbered, same_output="everywhere")], variants("glibc", "c"), 6, warmup=0, place=place
        )


def test_of_two_the_one_is_wrong_that_differs_from_what_other_machines_say() -> None:
    names = ("m1", "m2", "m3", "m4")
    place = Different(*names, versions=dict.fromkeys(names, "right"))
    for order in (("a", "b"), ("b", "a")):
        done = measure.measure([Scripted(numbered)], variants(*order), 8, warmup=0, place=place)
        (failure,) = done.failures
        assert failure.variant == "b" and failure.reason.endswith(
            "output on m4 is not that of other runs: wrong, expected right"
        )


def test_who_is_wrong_on_several_machines_has_failed_once() -> None:
    class Wrong(Different):
        def outcome(self, name: str, turn: Turn) -> Outcome:
            found = super().outcome(name, turn)
            samples = [(case, one, replace(of, digest=f"{of.digest} {one == 'b'}")) for case, one, of in found.samples]
            return replace(found, samples=samples)

    place = Wrong("m1", "m2", versions={"m1": "1", "m2": "2"})
    done = measure.measure([Scripted(numbered)], variants("glibc", "b"), 4, warmup=0, place=place)
    assert [failure.variant for failure in done.failures] == ["b"]


def test_who_is_wrong_does_not_go_by_chance() -> None:
    """Where nothing tells it is the later one."""
    for number in range(16):
        case = Scripted(printing(a=[f"{number} a"] * 2, b=[f"{number} b"] * 2))
        done = measure.measure([case], variants("a", "b"), 2, warmup=0)
        assert [failure.variant for failure in done.failures] == ["b"]


def test_what_varies_anyway_says_nothing_of_machines() -> None:
    """The time of day, say."""

    class Timed(Machines):
        def outcome(self, name: str, turn: Turn) -> Outcome:
            found = super().outcome(name, turn)
            return replace(
                found,
                samples=[(case, one, replace(sample, digest=f"{next(clock)}")) for case, one, sample in found.samples],
            )

    clock = itertools.count()
    printing = Scripted(numbered, same_output="nowhere")
    done = measure.measure([printing], variants("a", "b"), 6, warmup=0, place=Timed("m1", "m2"))
    assert done.notes == ["case: not every run printed the same"]


class Breaking(Machines):
    """From a round on nothing succeeds on those that are called bare: the program's folder is gone, say."""

    def outcome(self, name: str, turn: Turn) -> Outcome:
        return super().outcome(name if turn.number >= 2 else "good", turn)


def test_a_machine_that_breaks_later_is_left_out_and_its_whole_rounds_are_kept() -> None:
    done = measure.measure([Scripted(numbered)], variants("a", "b"), 8, warmup=0, place=Breaking("bare", "good"))
    assert (done.rounds, done.failures, Counter(done.blocks)) == (8, [], {"bare": 2, "good": 6})
    assert len(done.values("case", "a", "wall_s")) == len(done.values("case", "b", "wall_s")) == 8
    assert (done.notes, done.interrupted) == (["bare was left out: prog: command not found"], False)


def test_without_a_machine_that_works_whole_rounds_are_kept() -> None:
    """As interrupted ones: who ends the machines could have looked at what there was."""
    done = measure.measure([Scripted(numbered)], variants("a", "b"), 8, warmup=0, place=Breaking("bare"))
    assert (done.rounds, done.interrupted, len(done.values("case", "b", "wall_s"))) == (2, True, 2)
    assert {failure.variant for failure in done.failures} == {"a", "b"}
    assert done.notes[-1] == "2 of 8 rounds: no machine was left"


def test_when_nothing_succeeds_any_more_whole_rounds_are_kept() -> None:
    """What the program reads was removed, say: it is no fault of an allocator."""

    def behaviour(name: str, number: int) -> Sample:
        if number >= 3:
            raise LabError("no such file")
        return numbered(name, number)

    case = Scripted(behaviour)
    done = measure.measure([case], variants("a", "b"), 10, warmup=0)
    assert (done.rounds, done.interrupted) == (3, False)
    assert done.values("case", "a", "wall_s") == done.values("case", "b", "wall_s") == [0.0, 1.0, 2.0]
    assert {(failure.variant, failure.round, failure.reason) for failure in done.failures} == {
        ("a", 4, "no such file"),
        ("b", 4, "no such file"),
    }
    assert done.notes == ["3 of 10 rounds: nothing of the next one has succeeded"]
    assert case.order.count("a") == 4  # nothing is asked again


@pytest.mark.parametrize("ends", [KeyboardInterrupt(), OSError(errno.ENOSPC, "full"), LabError("no such file"), None])
def test_a_record_says_whether_it_has_fewer_rounds_than_were_asked_for(ends: BaseException | None) -> None:
    """Whatever the reason: none of them may be chosen by how the figures look."""

    def behaviour(name: str, number: int) -> Sample:
        if number >= 3 and ends is not None:
            raise ends
        return numbered(name, number)

    done = measure.measure([Scripted(behaviour)], variants("a", "b"), 5, warmup=0)
    made = ledger.from_measurement(done, "bench", start=MACHINE)
    assert (made.rounds, made.interrupted) == ((5, False) if ends is None else (3, True))


class Overlapping(Machines):
    """B begins a round without what failed on A, which then turns out to be A's fault."""

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        def begun(name: str) -> Turn:
            turn = next_turn(name)
            assert turn is not None
            return turn

        def whole(name: str, turn: Turn) -> Done:
            left = [one for one in turn.variants if ("case", one.name) not in turn.left_out]
            return Done(name, turn, self.outcome(name, replace(turn, variants=left)))

        yield whole("A", begun("A"))
        turn = begun("A")
        broken = Failure("case", "b", turn.round, "prog: command not found")
        found = self.outcome("A", replace(turn, variants=turn.variants[:1]))
        yield Done("A", turn, replace(found, failures=[broken]))
        late, last = begun("B"), begun("A")
        assert late.left_out == {("case", "b")}
        yield Done("A", last, self.outcome("bare", last))
        yield whole("B", late)
        while (more := next_turn("B")) is not None:
            yield whole("B", more)


def test_a_round_that_lacks_what_was_taken_back_is_run_again() -> None:
    done = measure.measure([Scripted(numbered)], variants("a", "b"), 5, warmup=0, place=Overlapping("A", "B"))
    assert (done.rounds, done.failures, done.blocks) == (5, [], ["A", "B", "B", "B", "B"])
    assert len(done.samples["case"]["a"]) == len(done.samples["case"]["b"]) == 5


def failing(variant: str, at_run: int) -> Behaviour:
    def behaviour(name: str, number: int) -> Sample:
        if name == variant and number >= at_run:
            raise LabError(f"{name} was killed by signal 11")
        return numbered(name, number)

    return behaviour


def test_a_variant_that_fails_midway_has_no_figures_and_the_others_go_on() -> None:
    case = Scripted(failing("b", 2))
    done = measure.measure([case], variants("a", "b"), 4, warmup=0)
    assert done.rounds == 4
    assert done.values("case", "a", "wall_s") == [0.0, 1.0, 2.0, 3.0]
    assert done.values("case", "b", "wall_s") == []
    assert case.order.count("b") == 3  # it is not asked again
    assert [(one.case, one.variant, one.round, one.reason) for one in done.failures] == [
        ("case", "b", 3, "b was killed by signal 11")
    ]


def test_a_variant_that_fails_one_case_is_measured_in_the_others() -> None:
    bad, good = Scripted(failing("b", 0), "bad"), Scripted(numbered, "good")
    done = measure.measure([bad, good], variants("a", "b"), 2, warmup=0)
    assert done.values("bad", "b", "wall_s") == [] and done.values("good", "b", "wall_s") == [0.0, 1.0]


def test_when_nothing_succeeds_the_first_reason_is_told() -> None:
    with pytest.raises(LabError, match="case under a: a was killed by signal 11"):
        measure.measure([Scripted(failing("a", 0))], variants("a"), 3)


def test_what_fails_under_all_is_no_fault_of_the_first() -> None:
    def behaviour(name: str, number: int) -> Sample:
        raise LabError("grep ended with exit status 1" if name != "c" else "grep was killed by signal 11")

    with pytest.raises(LabError, match="^case under a, b: grep ended with exit status 1$"):
        measure.measure([Scripted(behaviour)], variants("a", "c", "b"), 3)


def test_a_variant_that_a_case_does_not_support_is_no_failure() -> None:
    done = measure.measure([Scripted(numbered)], variants("a", "unsupported"), 2)
    assert done.failures == [] and done.samples["case"]["unsupported"] == []


def printing(**digests: Sequence[str]) -> Behaviour:
    return lambda name, number: Sample({"wall_s": 1.0}, digests[name][number], True)


def test_a_checksum_that_differs_is_a_failure_and_has_no_figures() -> None:
    case = Scripted(printing(a=["1"] * 3, b=["1", "2", "1"], c=["1"] * 3))
    done = measure.measure([case], variants("a", "b", "c"), 3, warmup=0)
    assert [failure.variant for failure in done.failures] == ["b"]
    assert "2, expected 1" in done.failures[0].reason
    assert done.values("case", "b", "wall_s") == [] and len(done.values("case", "c", "wall_s")) == 3


def test_what_the_c_library_computed_is_right_even_against_a_majority() -> None:
    case = Scripted(printing(glibc=["1"] * 2, b=["2"] * 2, c=["2"] * 2))
    done = measure.measure([case], variants("glibc", "b", "c"), 2, warmup=0)
    assert {failure.variant for failure in done.failures} == {"b", "c"}


def test_what_runs_remark_is_noted_once() -> None:
    case = Scripted(lambda name, number: replace(numbered(name, number), remarks=("odd",) if number else ()))
    assert measure.measure([case], variants("a", "b"), 3, warmup=0).notes == ["case: odd"]


def test_output_that_may_differ_is_worth_a_note_only() -> None:
    case = Scripted(printing(a=["1", "2"], b=["3", "4"]), same_output="nowhere")
    done = measure.measure([case], variants("a", "b"), 2, warmup=0)
    assert done.failures == [] and done.notes == ["case: not every run printed the same"]
    assert len(done.values("case", "a", "wall_s")) == 2


@pytest.mark.parametrize(
    ("digests", "said"),
    [
        ({"a": "23", "glibc": "11"}, "not every run printed the same"),
        ({"a": "2", "glibc": "1"}, "not every run printed the same"),
        ({"a": "22", "glibc": "11"}, "each run under glibc printed the same, each under a something else"),
        (
            {"a": "22", "b": "11", "glibc": "11", "c": "33"},
            "each run under glibc, b printed the same, each under a something else, each under c something else",
        ),
    ],
)
def test_output_that_goes_by_the_variant_is_told_from_chance(digests: Mapping[str, str], said: str) -> None:
    case = Scripted(printing(**{name: list(some) for name, some in digests.items()}), same_output="nowhere")
    done = measure.measure([case], variants(*digests), len(digests["a"]), warmup=0)
    assert done.notes == [f"case: {said}"]


def test_full_size_is_said_of_all_runs_or_not_at_all() -> None:
    def behaviour(name: str, number: int) -> Sample:
        return Sample({"wall_s": 1.0}, "same", full_size=(name, number) != ("b", 1))

    assert measure.measure([Scripted(behaviour)], variants("a"), 2, warmup=0).short_cases() == []
    assert len(measure.measure([Scripted(behaviour)], variants("a", "b"), 2, warmup=0).short_cases()) == 1


def test_variants_have_names_that_differ() -> None:
    allocator = Allocator("glibc", None)
    assert [variant.name for variant in measure.variants([allocator, allocator])] == ["glibc", "glibc #2"]


def test_metrics_are_in_the_order_of_the_table_then_a_benchmarks_own() -> None:
    case = Scripted(lambda name, number: Sample({"zeal": 1, "peak_rss_bytes": 1, "wall_s": 1, "ardour": 1}, "", True))
    done = measure.measure([case], variants("a"), 1)
    assert done.metrics() == ["wall_s", "peak_rss_bytes", "ardour", "zeal"]
