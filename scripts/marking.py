"""What marking costs: memory that waits until no pointer is left (docs/decisions/0138), in three designs.

.venv/bin/python scripts/marking.py ROUNDS NAME [CASE...]

Runs the laboratory's programs, or traces, on hakmem and on libhakmem-marking.so, the experiment of
bench/marking/quarantine.c, and keeps a record NAME. Without CASE, all programs that are installed. A trace
(`replay gcc`) runs in the first design only: its blocks hold no pointers.

Of a run under a design the record has what marking itself took, by its own clocks, beside the usual figures. Of each
round of the measurement it has what follows from that for hakmem's run: `with_marking_s` is the processor time of the
run on hakmem, and that of marking; `with_stops_s` its wall time, and the time that the program was stopped.
`with_marking_of_all_s` says it of a quarantine that large objects fill, too. The same names with _8, _15 and _25 are
computed: a round takes as long as it took, and one begins as soon as so many percent of the heap wait. A thread beside
the program begins them later when it isn't done with the one before.
"""

from __future__ import annotations

import re
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from hakmem import ledger, machine, measure, programs, progress, replays
from hakmem.allocators import Allocator, hakmem
from hakmem.measure import Case, Sample, Variant

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "bench" / "marking" / "quarantine.c"
LIBRARY = ROOT / "build" / "release" / "bench" / "libhakmem-marking.so"
DEFAULT = "hakmem"
DESIGNS = {"no marking": 0, "stopped": 1, "second look": 2, "stacks only": 3}
SHARE, SHARES = 8, (8, 15, 25)  # of the heap, in percent: what is tried, what is computed
FLOOR_KIB = 1024
MAY_TAKE = 0.03  # of the program's time: the bar
# Programs that take less than a second run several times, one after the other: a run of the case.
TIMES = {"python3": 2, "sqlite3": 2, "redis": 2, "node": 3, "ruby": 2}
ADDED = ("wall_s", "cpu_s", "user_s", "system_s", "minor_faults", "major_faults")  # the others are the largest


def figures_of(file: Path) -> dict[str, float]:
    names = re.findall(r"^    X\((\w+)\)", SOURCE.read_text(), re.MULTILINE)
    return dict(zip(names, map(float, struct.unpack(f"{len(names)}Q", file.read_bytes())), strict=True))


def units_of(values: Mapping[str, float]) -> dict[str, str]:
    ends = {"_bytes": "B", "_per_s": "B", "_s": "s"}
    return {name: next((unit for end, unit in ends.items() if name.endswith(end)), "") for name in values}


def with_units(sample: Sample, values: Mapping[str, float]) -> Sample:
    return replace(sample, values={**sample.values, **values}, units={**sample.units, **units_of(values)})


@dataclass
class MarkedCase:
    """A case that says what its marking took."""

    case: Case

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def command(self) -> Sequence[str]:
        return self.case.command

    @property
    def same_output(self) -> bool:
        return self.case.same_output

    def supports(self, variant: Variant) -> bool:
        is_of_all = not isinstance(self.case, replays.ReplayCase) or variant.name in (DEFAULT, "stopped")
        return is_of_all and self.case.supports(variant)

    def run(self, variant: Variant) -> Sample:
        if variant.name == DEFAULT:
            return self.run_all(variant)
        with tempfile.TemporaryDirectory(prefix="hakmem-marking-") as folder:
            Path(folder).chmod(0o777)  # a server may go on as somebody else
            file = Path(folder, "figures")
            setting = f"{DESIGNS[variant.name]}:{SHARE}:{FLOOR_KIB}:{file}"
            sample = self.run_all(replace(variant, settings={"MARKING": setting}))
            return with_units(sample, told(figures_of(file)))

    def run_all(self, variant: Variant) -> Sample:
        samples = [self.case.run(variant) for _ in range(TIMES.get(self.name, 1))]
        first, *more = samples
        names = [name for name in first.values if all(name in sample.values for sample in more)]
        values = {name: [sample.values[name] for sample in samples] for name in names}
        merged = {name: sum(some) if name in ADDED else max(some) for name, some in values.items()}
        digest = " ".join(dict.fromkeys(sample.digest for sample in samples))
        return replace(first, values=merged, digest=digest, full_size=first.full_size or merged["wall_s"] >= 1)


def told(raw: Mapping[str, float]) -> dict[str, float]:
    """Of a run, by names of the record."""
    rounds = max(raw["rounds"], 1)
    values = {
        "small_freed_bytes": raw["freed_bytes"],
        "large_freed_bytes": raw["freed_large"],
        "rounds": raw["rounds"],
        "heap_bytes": raw["footprint_bytes"] / rounds,
        "live_bytes": raw["heap_bytes"] / rounds,
        "globals_bytes": raw["global_bytes"] / rounds,
        "again_bytes": raw["again_bytes"] / rounds,
        "waiting_bytes": raw["held_bytes"] / rounds,
        "still_pointed_to_bytes": raw["kept_bytes"] / rounds,
        "marking_s": raw["marking_ns"] / 1e9,
        "watching_s": raw["protecting_ns"] / 1e9,
        "stopped_s": raw["stopped_ns"] / 1e9,
        "round_s": raw["marking_ns"] / 1e9 / rounds,
        "stop_s": raw["stopped_ns"] / 1e9 / rounds,
    }
    if raw["reading_ns"]:
        values["read_per_s"] = raw["heap_bytes"] / raw["reading_ns"] * 1e9
    return values


def rounds_at(values: Mapping[str, float], share: int) -> float:
    """How many there are when each begins as soon as so much of the heap waits."""
    return values["small_freed_bytes"] / max(values["heap_bytes"] * share / 100, FLOOR_KIB * 1024)


def computed(base: Sample, sample: Sample) -> dict[str, float]:
    """What marking would add to a run of the default build."""
    cpu_s, wall_s, own = base.values["cpu_s"], base.values["wall_s"], sample.values
    all_to_small = 1 + own["large_freed_bytes"] / max(own["small_freed_bytes"], 1)
    marking_s, stopped_s = own["marking_s"], own["stopped_s"]
    values = {
        "with_marking_s": cpu_s + marking_s,
        "with_marking_of_all_s": cpu_s + marking_s * all_to_small,
        "with_stops_s": wall_s + stopped_s,
        "small_freed_per_s": own["small_freed_bytes"] / wall_s,
        "large_freed_per_s": own["large_freed_bytes"] / wall_s,
    }
    if own["round_s"] > 0:  # what has to wait, so that marking takes no more than it may
        most_rounds = MAY_TAKE * cpu_s / own["round_s"]
        values["would_wait_bytes"] = own["small_freed_bytes"] / max(most_rounds, 1)
    for share in SHARES:
        values[f"with_marking_{share}_s"] = cpu_s + own["round_s"] * rounds_at(own, share)
        values[f"with_stops_{share}_s"] = wall_s + own["stop_s"] * rounds_at(own, share)
    return values


def compute(done: measure.Measurement) -> None:
    """Adds it, round by round; the default build has its own times under these names."""
    for by_variant in done.samples.values():
        bases = by_variant[DEFAULT]
        for name in DESIGNS:
            samples = by_variant[name]
            if len(samples) == len(bases):
                by_variant[name] = [with_units(s, computed(b, s)) for b, s in zip(bases, samples, strict=True)]
        names = ["with_marking_s", "with_marking_of_all_s", *(f"with_marking_{share}_s" for share in SHARES)]
        stops = ["with_stops_s", *(f"with_stops_{share}_s" for share in SHARES)]
        by_variant[DEFAULT] = [
            with_units(
                base,
                {name: base.values["cpu_s"] for name in names} | {name: base.values["wall_s"] for name in stops},
            )
            for base in bases
        ]


def chosen(names: Sequence[str]) -> list[Case]:
    traces = [name.removeprefix("replay ") for name in names if name.startswith("replay ")]
    rows = [row for row in programs.PROGRAMS if (row.name in names if names else row.group == programs.GROUP)]
    found: list[Case] = list(programs.cases(rows)[0])
    found += [replace(case, name=f"replay {case.name}") for case in replays.cases(traces)]
    return found


def main() -> None:
    rounds, name, *names = sys.argv[1:]
    marking = Allocator("marking", LIBRARY)
    variants = [Variant(DEFAULT, hakmem()), *(Variant(name, marking) for name in DESIGNS)]
    start = machine.facts()
    with progress.shown() as on_step:
        done = measure.measure(
            [MarkedCase(case) for case in chosen(names)], variants, int(rounds), warmup=0, on_step=on_step
        )
    compute(done)
    record = ledger.from_measurement(done, "marking", slug=name, warmup=0, start=start)
    record = msgspec.structs.replace(record, command=" ".join(["scripts/marking.py", *sys.argv[1:]]))
    if record.clean:
        print(ledger.keep(record))
    else:
        Path(f"/tmp/{name}.json").write_text(ledger.dump(record))
    for failure in done.failures:
        print(failure)


if __name__ == "__main__":
    main()
