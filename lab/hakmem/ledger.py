"""The ledger of evidence: one JSON file per record, written once, never changed.

A record holds raw values and all that a reader needs to repeat them. What was measured (Series) and what somebody
expects (Expected) are different types with different fields; neither can be read as the other.

A record is signed by its content: it holds the SHA-256 of everything else in it, and its id ends with the beginning of
that. So a record that was edited is none, and two records never share an id. Records of before are unsigned; SHA256SUMS
beside them has the digests of their files.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hakmem import native, process
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.machine import Machine
from hakmem.measure import METRICS, Case, Measurement, Variant

UNSIGNED = "hakmem-record/1"
SIGNED = "hakmem-record/2"
SUMS = "SHA256SUMS"  # of unsigned records, in the form that sha256sum checks
SHOWN_DIGITS = 8  # of the digest, in the id
CHANGED = "its library was changed while it was measured"
UNBUILT = "the library in build/release is older than its sources, so it is not of this commit: ./dev build"
ID = r"^\d{4}-\d{2}-\d{2}-[a-z0-9]+(-[a-z0-9]+)*$"
BEFORE_A_PATH = r"(^|file://|[^\w./~-](?:-\w+)?|^-\w+)"  # in a word: nothing, an option's letters, or what no path has
Finite = Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]


class _Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """What is read is checked; what is made here, when it is read again."""


class VariantFacts(_Model, frozen=True):
    allocator: str
    library: str | None  # file that was preloaded; None: the C library's own malloc
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")] | None
    settings: dict[str, str]


class Series(_Model, frozen=True, kw_only=True):
    """Raw values of one metric, one per round, in the order of rounds."""

    kind: Literal["measured"] = "measured"
    case: str
    variant: str
    metric: str
    unit: str
    values: Annotated[list[Finite], Meta(min_length=1)]


class Expected(_Model, frozen=True, kw_only=True):
    """A value that nobody measured here: a goal, an estimate, a figure of somebody else's."""

    kind: Literal["expected"] = "expected"
    what: str
    amount: Finite
    unit: str
    source: str


class FailedRun(_Model, frozen=True):
    case: str
    variant: str
    round: int
    reason: str


class Record(_Model, frozen=True, kw_only=True):
    format: Literal["hakmem-record/1", "hakmem-record/2"] = "hakmem-record/2"
    id: Annotated[str, Meta(pattern=ID)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")] | None = None  # of the rest; None: not signed
    kind: str
    date: Annotated[datetime.datetime, Meta(tz=True)]
    command: str  # as it was typed
    commit: Annotated[str, Meta(pattern=r"^[0-9a-f]{40}$")] | None
    clean: bool | None  # whether the tree was the commit's; None without a repository
    settings: dict[str, str]  # the caller's, of hakmem and of its peers
    machine: Machine
    load_at_end: tuple[float, float, float]
    others_busy: float | None = None  # how many processors other programs had meanwhile; None: unknown
    machines: dict[str, Machine] = {}  # by name, where several ran the rounds; `machine` is the first of them
    blocks: list[str] = []  # the machine of each round; empty: there was one
    size: Literal["full", "sanity"]  # full: a case has >= 1 s or >= 10 M operations in every run
    short_cases: list[str] = []  # those of which a run was not of full size
    rounds: Annotated[int, Meta(ge=1)]
    warmup: Annotated[int, Meta(ge=0)]
    interrupted: bool  # it has fewer rounds or cases than were asked for
    cases: dict[str, list[str]]  # command of each case
    variants: dict[str, VariantFacts]
    series: list[Series]
    expected: list[Expected] = []
    failures: list[FailedRun] = []
    notes: list[str] = []

    def __post_init__(self) -> None:
        if self.blocks and (len(self.blocks) != self.rounds or not {*self.blocks} <= self.machines.keys()):
            raise ValueError(f"{len(self.blocks)} machines of {self.rounds} rounds, or one that is not told")
        seen: set[tuple[str, str, str]] = set()
        for one in self.series:
            if (one.case, one.variant, one.metric) in seen:
                raise ValueError(f"two series of {one.case}, {one.variant}, {one.metric}")
            seen.add((one.case, one.variant, one.metric))
            if one.case not in self.cases or one.variant not in self.variants:
                raise ValueError(f"series of an unknown case or variant: {one.case}, {one.variant}")
            if len(one.values) != self.rounds:
                raise ValueError(
                    f"{one.case}, {one.variant}, {one.metric}: {len(one.values)} values in {self.rounds} rounds"
                )

    def values(self, case: str, variant: str, metric: str) -> list[float]:
        """Empty when there is no such series: the variant failed that case."""
        return self.by_name.get((case, variant, metric), [])

    @cached_property
    def by_name(self) -> dict[tuple[str, str, str], list[float]]:
        """Values by case, variant and metric."""
        return {(one.case, one.variant, one.metric): one.values for one in self.series}

    def metrics(self) -> list[str]:
        return self._metrics

    @cached_property
    def _metrics(self) -> list[str]:
        return list(dict.fromkeys(one.metric for one in self.series))


# ---- Writing ---------------------------------------------------------------------------------------------------------


def from_measurement(
    measurement: Measurement, kind: str, *, slug: str | None = None, warmup: int = 1, start: Machine
) -> Record:
    """A record of what was measured just now. `start` are this machine's facts before the first run. Where others ran
    the rounds, it has theirs."""
    machines = measurement.machines
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    commit, clean = measurement.tree
    facts = {variant.name: facts_of(variant) for variant in measurement.variants}
    changed = [name for name, sha256 in measurement.hashes.items() if sha256 != facts[name].sha256]
    before = {name: msgspec.structs.replace(facts[name], sha256=measurement.hashes[name]) for name in changed}
    short = measurement.short_cases()
    unbuilt = [] if measurement.is_built else [UNBUILT]
    return Record(
        id=f"{now:%Y-%m-%d}-{slug or kind}",
        kind=kind,
        date=now,
        command=shlex.join(["hakmem", *(_relative(word) for word in sys.argv[1:])]),
        commit=commit,
        clean=clean and not changed and measurement.is_built,
        settings=process.caller_settings(),
        machine=next(iter(machines.values()), start),
        load_at_end=measurement.load_at_end,
        others_busy=measurement.others_busy,
        machines=machines,
        blocks=measurement.blocks if machines else [],
        size="sanity" if len(short) == len(measurement.cases) else "full",
        short_cases=short,
        rounds=measurement.rounds,
        warmup=warmup,
        interrupted=measurement.rounds < measurement.asked or measurement.interrupted,
        cases={case.name: words_of(case) for case in measurement.cases},
        variants={**facts, **before},
        series=list(_series(measurement)),
        failures=[FailedRun(**vars(failure)) for failure in measurement.failures],
        notes=[*measurement.notes, *(f"{name}: {CHANGED}" for name in changed), *unbuilt],
    )


def words_of(case: Case) -> list[str]:
    """What it runs, as a record has it."""
    return [_relative(word) for word in case.command]


def _sha256(allocator: Allocator) -> str | None:
    """None also where the library is gone."""
    try:
        return allocator.sha256()
    except OSError:
        return None


def facts_of(variant: Variant) -> VariantFacts:
    allocator = variant.allocator
    return VariantFacts(
        allocator=allocator.name,
        library=_relative(str(allocator.library)) if allocator.library else None,
        sha256=_sha256(allocator),
        settings={**allocator.settings, **variant.settings},
    )


def _series(measurement: Measurement) -> Iterator[Series]:
    for case, by_variant in measurement.samples.items():
        for variant, samples in by_variant.items():
            names = dict.fromkeys(name for sample in samples for name in sample.values)
            for name in names:
                unit = METRICS[name].unit if name in METRICS else samples[0].units.get(name, "")
                values = [float(f"{sample.values[name]:.9g}") for sample in samples if name in sample.values]
                if len(values) == measurement.rounds:
                    yield Series(case=case, variant=variant, metric=name, unit=unit, values=values)


def _relative(word: str) -> str:
    """Without the paths of one machine: files of the tree as seen from its root, others of the home folder from
    there."""
    for folder, name in ((native.checkout(), ""), (Path.home(), "~/")):
        if folder not in (None, Path("/")):
            word = re.sub(rf"{BEFORE_A_PATH}{re.escape(str(folder))}/", rf"\g<1>{name}", word)
    return word


def folder() -> Path:
    """evidence/ of the checkout, or of the working folder when installed."""
    return (native.checkout() or Path.cwd()) / "evidence"


def keep(record: Record, into: Path | None = None) -> Path:
    """Signs the record and writes it into the ledger. Never overwrites, and leaves no part of a record behind."""
    ledger = into or folder()
    signed = sign(record)
    path = ledger / f"{signed.id}.json"
    try:
        ledger.mkdir(parents=True, exist_ok=True)
        written = _write_anew(path, dump(signed))
    except OSError as error:
        raise LabError(f"can't keep the record {signed.id} in {ledger}: {error.strerror}") from None
    if not written:
        raise LabError(f"{path} is there already")
    return path


def sign(record: Record) -> Record:
    """The record with its digest, and with the beginning of that behind its id."""
    named = msgspec.structs.replace(record, format=SIGNED, digest=None)
    found = _digest(json.loads(dump(named)), named.id)
    return msgspec.structs.replace(named, id=f"{named.id}-{found[:SHOWN_DIGITS]}", digest=found)


def _digest(plain: dict[str, object], name: str) -> str:
    """Of what a file holds: JSON without spaces, its keys sorted, without the digest and with the id's first part."""
    content = {**plain, "id": name}
    content.pop("digest", None)
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _write_anew(path: Path, text: str) -> bool:
    """False when there is such a file already."""
    try:
        file = open(path, "x")
    except FileExistsError:
        return False
    try:
        with file:
            file.write(text)
    except BaseException:
        path.unlink()
        raise
    return True


def dump(record: Record) -> str:
    """JSON with one line per series, so that a record can be read and compared line by line."""
    plain = msgspec.to_builtins(record)
    if record.digest is None:
        plain.pop("digest")
    series = [json.dumps(one, allow_nan=False) for one in plain.pop("series")]
    head = json.dumps(plain, indent=1, allow_nan=False)
    return head[: -len("\n}")] + ',\n "series": [\n  ' + ",\n  ".join(series) + "\n ]\n}\n"


# ---- Reading
# -----------------------------------------------------------------------------------------------------------


def load(name: str | Path, ledger: Path | None = None) -> Record:
    """A record by id or by path. LabError says what is wrong with the file in one line."""
    path = Path(name)
    if re.match(ID, str(name)):
        path = (ledger or folder()) / f"{name}.json"
    try:
        plain = json.loads(path.read_text())
    except FileNotFoundError:
        raise LabError(f"no record {name}: there is no file {path}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LabError(f"{path}: not a record: {error}") from None
    found = plain.get("format") if isinstance(plain, dict) else None
    if found not in (UNSIGNED, SIGNED):
        raise LabError(f"{path}: a record of format {found!r}; this version reads {UNSIGNED!r} and {SIGNED!r}")
    try:
        record = msgspec.convert(plain, Record)
    except msgspec.ValidationError as error:
        raise LabError(f"{path}: damaged record: {error}") from None
    if record.id != path.stem:
        raise LabError(f"{path}: the record in it is called {record.id}")
    if record.digest is not None or found == SIGNED:
        _check(plain, record, path)
    return record


def _check(plain: dict[str, object], record: Record, path: Path) -> None:
    name, _, shown = record.id.rpartition("-")
    try:
        expected = _digest(plain, name)
    except ValueError as error:  # what is no number
        raise LabError(f"{path}: damaged record: {error}") from None
    if record.digest != expected or shown != expected[:SHOWN_DIGITS]:
        raise LabError(f"{path}: edited: what it holds does not give its digest")


def unsigned_sums(ledger: Path) -> dict[str, str]:
    """The digests of the files of unsigned records, by id."""
    try:
        lines = (ledger / SUMS).read_text().splitlines()
    except FileNotFoundError:
        return {}
    found: dict[str, str] = {}
    for number, line in enumerate(lines, start=1):
        one = re.fullmatch(r"([0-9a-f]{64})  (\S+)\.json", line)
        if one is None:
            raise LabError(f"{ledger / SUMS}:{number}: expected a digest and the name of a record, got {line!r}")
        found[one[2]] = one[1]
    return found


def load_all(ledger: Path | None = None) -> tuple[dict[str, Record], list[str]]:
    """All records by id, and one line for each file that isn't one."""
    records: dict[str, Record] = {}
    damaged: list[str] = []
    for path in sorted((ledger or folder()).glob("*.json")):
        try:
            records[path.stem] = load(path)
        except LabError as error:
            damaged.append(str(error))
    return records, damaged
