"""The exam of `hakmem predict`: what is predicted for programs from runs on glibc alone, beside what is then measured.

.venv/bin/python scripts/predict_exam.py take FOLDER {training,exam} [PROGRAM...]    measures, a file for each program
.venv/bin/python scripts/predict_exam.py mark FOLDER                                 prints the marks
.venv/bin/python scripts/predict_exam.py keep FOLDER NAME                            and keeps them as a record

docs/decisions/0175 has the rule. A prediction passes where the ratio that was measured lies in its interval.
"""

from __future__ import annotations

import json
import math
import pickle
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hakmem import allocators, ledger, machine, measure, predict, programs
from hakmem.errors import LabError
from hakmem.ledger import Expected, Record, Series
from hakmem.measure import CommandCase
from hakmem.statistics import Interval

PEERS = "hakmem,jemalloc,mimalloc,mimalloc2,snmalloc,tcmalloc,gperftools,rpmalloc"
ROUNDS = 5  # of what is measured
PREDICTED_FROM = 4  # rounds, and as many replays
MARKS_NOTE = (
    "The case marks is computed from the others, not measured: each of its series is one figure, once for each round."
)
# What they are of a Prediction, and the figure of rounds that counts.
METRICS = {"wall_s": ("time", min), "peak_rss_bytes": ("memory", statistics.median)}

PERL = """my %h;
for my $i (1 .. 600000) {
    my $k = "k" . ($i * 7919 % 200003);
    $h{$k} = [$i, "v$i"];
    delete $h{"k" . ($i * 31 % 200003)} if $i % 3 == 0;
}
my @k = sort keys %h;
print scalar(@k), "\\n";
"""
MAWK = """BEGIN {
    for (i = 1; i <= 500000; i++) {
        k = "k" (i * 7919 % 300007)
        a[k] = a[k] "x" i
        if (i % 5 == 0) delete a["k" (i * 31 % 300007)]
    }
    for (k in a) n += length(a[k])
    print n
}
"""
TCL = """set d [dict create]
for {set i 1} {$i <= 450000} {incr i} {
    dict lappend d "k[expr {$i * 7919 % 100003}]" "v$i"
    if {$i % 3 == 0} {dict unset d "k[expr {$i * 31 % 100003}]"}
}
set n 0
dict for {k v} $d {incr n [llength $v]}
puts $n
"""
SQL = """create table t(n integer primary key, name text, value real);
with recursive c(n) as (select 1 union all select n + 1 from c where n < 600000)
    insert into t select n, printf('name %d', n * 7919 % 600000), n * 0.5 from c;
create index i on t(name);
select count(*), sum(value) from t where name > 'name 5';
delete from t where n % 3 = 0;
select count(*), group_concat(name) from (select name from t order by name);
"""
JQ = "[.[] | {key: .name, value: (.list | map(. * 2))}] | from_entries | keys | length"
AS_MALLOC = ("env", "PYTHONMALLOC=malloc", "/usr/bin/python3")

# {inputs} are those of the laboratory, {work} is the folder.
SETS: dict[str, dict[str, Sequence[str]]] = {
    "training": {
        "lua": ("lua5.4", "{inputs}/objects.lua"),
        "python": (*AS_MALLOC, "{inputs}/objects.py"),
        "jq": ("jq", JQ, "{work}/objects.json"),
        "g++": ("g++", "-std=c++17", "-fsyntax-only", "{inputs}/headers.cpp"),
    },
    "exam": {
        "ruby": ("ruby", "{inputs}/objects.rb"),
        "node": ("node", "{inputs}/objects.js"),
        "perl": ("perl", "-e", PERL),
        "mawk": ("mawk", MAWK),
        "tclsh": ("tclsh", "{work}/dictionary.tcl"),
        "sqlite3": ("sqlite3", ":memory:", SQL),
        "python rows": ("/usr/bin/python3", "{inputs}/rows.py", "600000"),
        "git": ("git", "-C", "{work}/repository.git", "log", "-p", "-C", "--stat"),
    },
}


def prepare(work: Path) -> None:
    if (work / "repository.git").exists():
        return
    work.mkdir(parents=True, exist_ok=True)
    (work / "dictionary.tcl").write_text(TCL)
    objects = [{"name": f"name {i}", "list": [i * j % 1009 for j in range(i % 20)]} for i in range(60000)]
    (work / "objects.json").write_text(json.dumps(objects))
    clone = ["git", "clone", "-q", "--bare", str(predict.native.checkout()), str(work / "repository.git")]
    subprocess.run(clone, check=True)


# ---- Taking it -------------------------------------------------------------------------------------------------------


def take(work: Path, name: str, words: Sequence[str]) -> None:
    places = {"inputs": programs.INPUTS, "work": work}
    command = [word if "\n" in word or word == JQ else word.format(**places) for word in words]
    incumbent, *peers = allocators.resolve((f"glibc,{PEERS}",))
    start = machine.facts()
    found = predict.predict(command, incumbent, peers, rounds=PREDICTED_FROM, replay_rounds=PREDICTED_FROM)
    if not found.predictions:  # computed now, and so kept: before anything is measured
        raise LabError(f"{name}: nothing is predicted")
    own = measure.variants([incumbent, *peers])
    done = measure.measure([CommandCase(tuple(command))], own, ROUNDS, warmup=0)
    record = ledger.from_measurement(done, "predict-exam", warmup=0, start=start)
    (work / f"{name}.taken").write_bytes(pickle.dumps((record, found)))


# ---- Marking it ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark:
    """Of a program, a peer and a metric."""

    program: str
    peer: str
    metric: str
    predicted: Interval
    measured: float

    @property
    def off(self) -> float:
        return abs(math.log(self.predicted.estimate / self.measured))

    @property
    def off_if_no_change(self) -> float:
        return abs(math.log(self.measured))

    @property
    def width(self) -> float:
        """A share of the estimate."""
        return (self.predicted.high - self.predicted.low) / self.predicted.estimate


def read(file: Path) -> tuple[Record, list[Mark]]:
    record, answer = pickle.loads(file.read_bytes())
    (case,) = record.cases
    marks = []
    for one in answer.predictions:
        if one.name == predict.IDEAL or not record.values(case, one.name, "wall_s"):
            continue
        for metric, (word, figure) in METRICS.items():
            if getattr(one, word) is None:
                continue
            own, base = (figure(record.values(case, name, metric)) for name in (one.name, "glibc"))
            marks.append(Mark(file.stem, one.name, word, getattr(one, word), own / base))
    return record, marks


def shares(marks: Iterable[Mark], metric: str) -> dict[str, float]:
    """Of all that have this metric, in percent."""
    own = [mark for mark in marks if mark.metric == metric]
    inside = [mark.predicted.holds(mark.measured) for mark in own]
    names = dict.fromkeys(mark.program for mark in own)
    better = [
        statistics.fmean(mark.off for mark in own if mark.program == name)
        < statistics.fmean(mark.off_if_no_change for mark in own if mark.program == name)
        for name in names
    ]
    return {
        "inside": 100 * statistics.fmean(inside),
        "width": 100 * statistics.median(mark.width for mark in own),
        "off": 100 * statistics.fmean(mark.off for mark in own),
        "off_if_no_change": 100 * statistics.fmean(mark.off_if_no_change for mark in own),
        "programs_better": 100 * statistics.fmean(better),
    }


def show(marks: Sequence[Mark]) -> None:
    for mark in marks:
        said = "" if mark.predicted.holds(mark.measured) else "  OUTSIDE"
        low, high = mark.predicted.low, mark.predicted.high
        print(f"{mark.program:12} {mark.peer:11} {mark.metric:7} {mark.measured:.3f}  "
              f"{mark.predicted.estimate:.3f} ({low:.3f}-{high:.3f}){said}")  # fmt: skip
    for metric, _ in METRICS.values():
        print(metric, {key: round(value, 1) for key, value in shares(marks, metric).items()})


def keep(taken: Sequence[tuple[Record, list[Mark]]], name: str) -> Path:
    """What was measured, with what was predicted beside it, and the marks as a case of their own."""
    commits = {record.commit for record, _ in taken}
    if len(commits) > 1:
        raise LabError(f"taken at {len(commits)} commits: an exam is of one design")
    series: list[Series] = []
    expected: list[Expected] = []
    cases: dict[str, list[str]] = {}

    def add(case: str, variant: str, metric: str, unit: str, values: Sequence[float]) -> None:
        series.append(Series(case=case, variant=variant, metric=metric, unit=unit, values=list(values)))

    for record, marks in taken:
        (command,) = record.cases.values()
        program = marks[0].program
        cases[program] = command
        for one in record.series:
            add(program, one.variant, one.metric, one.unit, one.values)
        for mark in marks:
            for part in ("estimate", "low", "high"):
                what = f"{mark.metric} of {program} on {mark.peer}: {part}"
                amount = getattr(mark.predicted, part)
                expected.append(Expected(what=what, amount=amount, unit="x", source="hakmem predict"))
    cases["marks"] = []
    for word, _ in METRICS.values():
        for key, value in shares([mark for _, marks in taken for mark in marks], word).items():
            add("marks", "glibc", f"{word}_{key}", "%", [round(value, 1)] * ROUNDS)
    first, last = taken[0][0], taken[-1][0]
    short = [marks[0].program for record, marks in taken if record.short_cases]
    return ledger.keep(
        msgspec.structs.replace(
            last,
            id=f"{last.date:%Y-%m-%d}-{name}",
            machine=first.machine,
            cases=cases,
            series=series,
            expected=expected,
            clean=all(record.clean for record, _ in taken),
            size="sanity" if len(short) == len(taken) else "full",
            short_cases=short,
            notes=[*last.notes, MARKS_NOTE],
            command=f"scripts/predict_exam.py keep FOLDER {name}",
        )
    )


def main() -> None:
    what, folder, *rest = sys.argv[1:]
    work = Path(folder).absolute()
    if what == "take":
        prepare(work)
        chosen = SETS[rest[0]]
        for name in rest[1:] or chosen:
            print(name, flush=True)
            take(work, name, chosen[name])
        return
    taken = [read(file) for file in sorted(work.glob("*.taken"))]
    show([mark for _, marks in taken for mark in marks])
    if what == "keep":
        print(keep(taken, rest[0]))


if __name__ == "__main__":
    main()
