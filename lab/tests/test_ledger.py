from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hakmem import ledger, native
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.ledger import Expected, Record, Series
from hakmem.measure import CommandCase, Failure, Measurement, Sample, Variant
from sample_record import MACHINE, VALUES, keep_unsigned, record

ID = "2026-01-02-sample"

# ---- The file --------------------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    path = ledger.keep(record(), tmp_path)
    kept = ledger.load(path)
    assert ledger.load(path.stem, tmp_path) == kept
    assert msgspec.structs.replace(kept, id=ID, format=ledger.UNSIGNED, digest=None) == record()
    assert ledger.load(keep_unsigned(record(), tmp_path)) == record()


def test_the_ledger_is_append_only(tmp_path: Path) -> None:
    first = ledger.keep(record(), tmp_path)
    before = first.read_bytes()
    second = ledger.keep(record(command="another"), tmp_path)
    assert second != first and first.read_bytes() == before
    assert ledger.load(second).command == "another"
    with pytest.raises(LabError, match=f"{first.name} is there already"):
        ledger.keep(record(), tmp_path)
    assert first.read_bytes() == before


def test_an_id_ends_with_the_beginning_of_the_digest_of_the_content(tmp_path: Path) -> None:
    """As docs/claims.md tells a stranger to check it, with nothing of ours."""
    plain = json.loads(ledger.keep(record(), tmp_path).read_text())
    digest, name = plain.pop("digest"), plain["id"]
    plain["id"] = name.rpartition("-")[0]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == digest
    assert name == f"{ID}-{digest[:8]}"


def first_value(plain: Any) -> None:
    plain["series"][0]["values"][0] *= 1.01


def first_hash(plain: Any) -> None:
    plain["variants"]["hakmem"]["sha256"] = "f" * 64


@pytest.mark.parametrize(
    "edit",
    [
        first_value,
        first_hash,
        lambda plain: plain.update(commit="f" * 40),
        lambda plain: plain.update(clean=None),
        lambda plain: plain.update(command="hakmem bench hot"),
        lambda plain: plain["machine"].update(cpu="Another CPU"),
        lambda plain: plain.update(notes=["a note"]),
        lambda plain: plain.update(digest="f" * 64),
        lambda plain: plain.pop("digest"),
    ],
)
def test_a_record_that_was_edited_is_none(tmp_path: Path, edit: Callable[[Any], None]) -> None:
    path = ledger.keep(record(), tmp_path)
    plain = json.loads(path.read_text())
    edit(plain)
    path.write_text(json.dumps(plain))
    with pytest.raises(LabError, match="edited: what it holds does not give its digest"):
        ledger.load(path)


def test_a_record_under_another_id_is_none(tmp_path: Path) -> None:
    path = ledger.keep(record(), tmp_path)
    name = path.stem.replace("sample", "better")
    text = path.read_text().replace(path.stem, name)
    (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(LabError, match="edited"):
        ledger.load(name, tmp_path)


def test_an_id_with_other_digits_is_none(tmp_path: Path) -> None:
    path = ledger.keep(record(), tmp_path)
    name = f"{ID}-00000000"
    (tmp_path / f"{name}.json").write_text(path.read_text().replace(path.stem, name))
    with pytest.raises(LabError, match="edited"):
        ledger.load(name, tmp_path)


def test_how_a_file_is_laid_out_is_not_signed(tmp_path: Path) -> None:
    path = ledger.keep(record(), tmp_path)
    plain = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(plain.items())), indent=4))
    assert ledger.load(path).digest == plain["digest"]


def test_a_ledger_that_can_not_be_written_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LabError, match=f"can't keep the record {ID}-\\w+ in .*/file/evidence: Not a directory"):
        ledger.keep(record(), tmp_path / "file" / "evidence")

    def full_disk(record: object) -> str:
        return '{"\ud800": 0}'  # can't be encoded: fails half-way, as a full disk does

    monkeypatch.setattr(ledger, "dump", full_disk)
    with pytest.raises(UnicodeEncodeError):
        ledger.keep(record(), tmp_path)
    assert list(tmp_path.glob("*.json")) == []


def test_a_file_has_one_line_per_series(tmp_path: Path) -> None:
    lines = ledger.keep(record(), tmp_path).read_text().splitlines()
    assert sum('"kind": "measured"' in line for line in lines) == len(VALUES)


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_another_format_is_named(tmp_path: Path) -> None:
    path = keep_unsigned(record(), tmp_path)
    for found in (1, "hakmem-record/3", None):
        change(path, format=found)
        with pytest.raises(LabError, match=re.escape(f"{path}: a record of format {found!r}; this version reads")):
            ledger.load(path)
    path.write_text("[1, 2]")
    with pytest.raises(LabError, match="a record of format None"):
        ledger.load(path)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b'{"format": "hakmem-rec', b"[" * 100_000, b'{"rounds": ' + b"9" * 5000 + b"}"]
)
def test_a_file_that_is_no_json_is_no_record(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / f"{ID}.json"
    path.write_bytes(content)
    with pytest.raises(LabError, match=re.escape(f"{path}: not a record: ")) as raised:
        ledger.load(path)
    assert "\n" not in str(raised.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabError, match=f"no record {ID}: there is no file "):
        ledger.load(ID, tmp_path)
    with pytest.raises(LabError, match="not a record"):
        ledger.load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"rounds": 7}, "8 values in 7 rounds"),
        ({"rounds": 0}, "rounds"),
        ({"cases": {"hot": ["hot"]}}, "series of an unknown case or variant: mixed 400"),
        ({"variants": {}}, "series of an unknown case or variant"),
        ({"surprise": 1}, "surprise"),
        ({"commit": "93c7336"}, "commit"),
        ({"size": "huge"}, "size"),
        ({"date": "2026-01-02T03:04:05"}, "date"),
        ({"id": "Sample"}, "id"),
        ({"machine": {}}, "$.machine"),
    ],
)
def test_damage_is_named_in_one_line(tmp_path: Path, fields: dict[str, object], where: str) -> None:
    path = keep_unsigned(record(), tmp_path)
    change(path, **fields)
    with pytest.raises(LabError, match=re.escape(f"{path}: damaged record: ")) as raised:
        ledger.load(path)
    assert where in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", '"fast"', "null"])
def test_a_value_is_a_finite_number(tmp_path: Path, value: str) -> None:
    path = keep_unsigned(record(), tmp_path)
    path.write_text(path.read_text().replace("[108000000.0,", f"[{value},"))
    with pytest.raises(LabError, match=r"damaged record: .* at `\$\.series\[0\]\.values\[0\]`"):
        ledger.load(path)


@pytest.mark.parametrize("value", ["NaN", "1e999"])
def test_what_is_no_number_is_damage_of_a_signed_record(tmp_path: Path, value: str) -> None:
    path = ledger.keep(record(), tmp_path)
    path.write_text(path.read_text().replace("2600.0", value))
    with pytest.raises(LabError, match=re.escape(f"{path}: damaged record: ")):
        ledger.load(path)


def test_what_is_no_number_is_not_kept(tmp_path: Path) -> None:
    series = msgspec.structs.replace(record().series[0], values=[float("nan")] * 8)
    with pytest.raises(ValueError, match="JSON"):
        ledger.keep(record(series=[series]), tmp_path)


def test_a_renamed_file_is_found_out(tmp_path: Path) -> None:
    path = keep_unsigned(record(), tmp_path)
    other = path.rename(tmp_path / "2026-01-02-other.json")
    with pytest.raises(LabError, match=f"the record in it is called {ID}"):
        ledger.load(other)


def test_load_all_names_what_is_damaged_and_gives_the_others(tmp_path: Path) -> None:
    keep_unsigned(record(), tmp_path)
    (tmp_path / "2026-01-03-broken.json").write_text("{")
    records, damaged = ledger.load_all(tmp_path)
    assert list(records) == [ID]
    assert len(damaged) == 1 and "2026-01-03-broken.json: not a record" in damaged[0]


@pytest.mark.parametrize("line", ["=======", "<<<<<<< HEAD", f"{'0' * 64} {ID}.json", f"{'0' * 63}  {ID}.json"])
def test_a_line_of_the_sums_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    keep_unsigned(record(), tmp_path)
    (digest,) = ledger.unsigned_sums(tmp_path).values()
    assert digest == hashlib.sha256((tmp_path / f"{ID}.json").read_bytes()).hexdigest()
    sums = tmp_path / ledger.SUMS
    sums.write_text(f"{sums.read_text()}{line}\n")
    said = f"{sums}:2: expected a digest and the name of a record, got {line!r}"
    with pytest.raises(LabError, match=f"^{re.escape(said)}$"):
        ledger.unsigned_sums(tmp_path)


# ---- The model -------------------------------------------------------------------------------------------------------


def test_measured_and_expected_are_not_each_other() -> None:
    expected = Expected(what="throughput", amount=1.05, unit="x", source="issue 12")
    plain = msgspec.to_builtins(record())
    for wrong, kind in [
        (msgspec.to_builtins(expected), Series),
        (plain["series"][0], Expected),
        ({**plain, "series": [msgspec.to_builtins(expected)]}, Record),
    ]:
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, kind)
    assert record(expected=[expected]).expected == [expected]


def test_a_series_stands_in_a_record_once() -> None:
    series = record().series
    with pytest.raises(ValueError, match="two series of mixed 400, hakmem, operations_per_s"):
        record(series=[*series, series[0]])


def test_a_record_does_not_change() -> None:
    with pytest.raises(AttributeError):
        record().rounds = 9  # type: ignore[misc]


def test_values_of_what_was_not_measured_are_none() -> None:
    assert record().values("hot", "hakmem", "wall_s") == []
    assert record().values("hot", "hakmem", "operations_per_s") == [800e6] * 8
    assert record().metrics() == ["operations_per_s", "peak_rss_bytes"]


# ---- From a measurement ----------------------------------------------------------------------------------------------


def sample(seconds: float, **more: float) -> Sample:
    return Sample({"wall_s": seconds, **more}, "same", True, units={"holes": "count"})


def measurement(*samples: Sample, **fields: Any) -> Measurement:
    case, variant = CommandCase(("program", "argument")), Variant("a", Allocator("glibc", None), {"HAKMEM_X": "1"})
    done = Measurement([case], [variant], rounds=len(samples), **{"is_built": True, **fields})
    done.samples = {case.name: {"a": list(samples)}}
    return done


def test_a_record_of_a_measurement_has_its_raw_values_and_what_a_reader_needs() -> None:
    failure = Failure("program argument", "a", 2, "no")
    done = measurement(sample(1.25, holes=3), sample(1.5, holes=4), failures=[failure], notes=["a note"])
    made = ledger.from_measurement(done, "compare", warmup=2, start=MACHINE)
    assert made.values("program argument", "a", "wall_s") == [1.25, 1.5]
    assert [(one.metric, one.unit) for one in made.series] == [("wall_s", "s"), ("holes", "count")]
    assert made.id == f"{datetime.now(timezone.utc):%Y-%m-%d}-compare"
    assert (made.rounds, made.warmup, made.size, made.kind) == (2, 2, "full", "compare")
    assert made.variants["a"].settings == {"HAKMEM_X": "1"}
    assert made.cases == {"program argument": ["program", "argument"]}
    assert (made.failures[0].reason, made.notes) == ("no", ["a note"])
    assert made.machine == MACHINE


def test_a_figure_that_a_round_lacks_is_none() -> None:
    done = measurement(sample(1.25, mean_rss_bytes=3), sample(1.5), sample(1.5, mean_rss_bytes=4))
    assert done.values("program argument", "a", "mean_rss_bytes") == []
    assert ledger.from_measurement(done, "compare", start=MACHINE).metrics() == ["wall_s"]


def test_one_short_run_makes_it_of_sanity_size() -> None:
    short = Sample({"wall_s": 0.1}, "same", full_size=False)
    assert ledger.from_measurement(measurement(sample(2), short), "compare", start=MACHINE).size == "sanity"


def test_a_value_that_some_rounds_lack_is_no_series() -> None:
    made = ledger.from_measurement(measurement(sample(1, holes=3), sample(1)), "compare", start=MACHINE)
    assert made.metrics() == ["wall_s"]


def test_a_record_is_of_the_commit_and_the_library_of_its_beginning(tmp_path: Path) -> None:
    """Somebody commits, or builds, while it is measured."""
    library = tmp_path / "lib.so"
    library.write_bytes(b"old")
    old = hashlib.sha256(b"old").hexdigest()
    done = measurement(sample(1.0), tree=("1" * 40, True), hashes={"a": old})
    done.variants = [Variant("a", Allocator("mine", library))]
    found = ledger.from_measurement(done, "bench", start=MACHINE)
    assert (found.commit, found.clean, found.notes, found.variants["a"].sha256) == ("1" * 40, True, [], old)
    for change in (lambda: library.write_bytes(b"new"), library.unlink):
        change()
        found = ledger.from_measurement(done, "bench", start=MACHINE)
        assert (found.clean, found.notes, found.variants["a"].sha256) == (False, [f"a: {ledger.CHANGED}"], old)


def test_a_record_of_a_library_that_is_older_than_the_tree_is_of_no_commit() -> None:
    for is_built, clean, notes in ((True, True, []), (False, False, [ledger.UNBUILT])):
        done = measurement(sample(1.0), tree=("1" * 40, True), is_built=is_built)
        found = ledger.from_measurement(done, "bench", start=MACHINE)
        assert (found.clean, found.notes) == (clean, notes)


def test_the_callers_settings_are_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    monkeypatch.setenv("UNRELATED", "1")
    made = ledger.from_measurement(measurement(sample(1)), "compare", start=MACHINE)
    assert made.settings["MALLOC_ARENA_MAX"] == "1" and "UNRELATED" not in made.settings


def test_paths_of_one_machine_stay_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setattr("sys.argv", ["hakmem", "compare", f"{tmp_path}/script.py"])
    made = ledger.from_measurement(measurement(sample(1)), "compare", start=MACHINE)
    assert made.command == "hakmem compare '~/script.py'"


@pytest.mark.parametrize(
    ("home", "word", "kept"),
    [
        ("/h", "/h/a", "~/a"),
        ("/h", "--file=/h/a:/h/b", "--file=~/a:~/b"),
        ("/h", "-I/h/a", "-I~/a"),
        ("/h", "cat /h/a", "cat ~/a"),
        ("/h", "file:///h/a", "file://~/a"),
        ("/h", "/mnt/h/a", "/mnt/h/a"),
        ("/h", "./x-a/h/a", "./x-a/h/a"),
        ("/", "tcp://127.0.0.1:8786", "tcp://127.0.0.1:8786"),
        ("/", "/usr//bin/sort", "/usr//bin/sort"),
    ],
)
def test_a_command_stays_one_that_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, home: str, word: str, kept: str
) -> None:
    """A path that only looks like one of the home folder is another one."""
    monkeypatch.setattr(Path, "home", lambda: Path(home))
    monkeypatch.setattr(native, "checkout", lambda: None)
    assert ledger._relative(word) == kept
