"""Heap profiles: what the library writes is read, named, summed, compared; pprof and a browser understand it."""

from __future__ import annotations

import dataclasses
import gzip
import html as escapes
import json
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from compiled import compile_c, interrupt
from hakmem import elf, exports, native, pprof, process, profile
from hakmem.commands import profile as profile_command
from hakmem.commands.profile import text
from hakmem.errors import InterruptedEarly, LabError
from hakmem.report import flame
from hakmem.symbols import Symbols

FIGURES = (
    "samples freed_samples weight freed_weight bytes freed_bytes block_bytes freed_block_bytes least_size largest_size"
    " freed_ms freed_below_10ms freed_below_100ms freed_below_1s freed_below_10s freed_below_100s freed_later"
)
# Of 100 and 80 bytes, in blocks of 112 and 80.
COUNTS = """unsampled_large_bytes 0
most_bytes 1520
noted_bytes 1520
large 0 0 0 0
page_bytes 4096
class 80 5 5 5 5120 400 0 0 5120 400 0 0
class 112 20 10 10 20480 2000 10240 1000 10240 1000 0 0
"""
TEXT = f"""hakmem heap profile 3
process 77
interval_bytes 524288
elapsed_ms 1500
lost_samples 0
{COUNTS}figures {FIGURES}
site 2 1 20480 10240 2000 1000 2240 1120 100 100 51200 10240 0 0 0 0 0 : 10101 10201 99
site 1 0 5120 0 400 0 480 0 80 80 0 0 0 0 0 0 0 : 20111 10101 10301
maps
00010000-00020000 r-xp 00000000 00:00 0  /none/program
00020000-00030000 r-xp 00001000 00:00 0  /none/libhakmem.so.1
00040000-00050000 rw-p 00000000 00:00 0
end
"""

# Two calls of the interpreter's loop, at 0x10101 and 0x10301, of which the inner one runs two functions.
WORDS = [
    1 << 63 | at_start << 62 | function << 24 | line for at_start, function, line in ((1, 7, 12), (0, 8, 3), (1, 8, 5))
]
PYTHON_TEXT = f"""hakmem heap profile 3
process 77
interval_bytes 524288
elapsed_ms 1500
lost_samples 0
{COUNTS}without_python 
figures {FIGURES}
site 1 0 5120 0 400 0 480 0 80 80 0 0 0 0 0 0 0 : 10201 10101 10201 10301 {" ".join(f"{word:x}" for word in WORDS)}
function 7 Büro.hält\t/srv/a\u2028b.py
function 8 <module>\t/srv/main.py
maps
00010000-00020000 r-xp 00000000 00:00 0  /none/program
end
"""

SOURCE = """
#include <stdlib.h>
__attribute__((noinline)) void *keeps(size_t n) { char *p = malloc(n); p[0] = 1; return p; }
__attribute__((noinline)) void *drops(size_t n) { char *p = malloc(n); p[0] = 1; return p; }
__attribute__((noinline)) void *zeroes(size_t n) { char *p = calloc(1, n); p[0] = 1; return p; }
__attribute__((noinline)) void work(int i) { keeps(1000); free(drops(1000)); if (i % 100 == 0) zeroes(50000); }
int main(void) { for (int i = 0; i < 40000; i++) work(i); return 3; }
"""
FRAMES = ("-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")


def test_numbers_of_a_spoiled_process_fit_the_format() -> None:
    row = pprof.Row((), (1e30, -1e30), 1e30)
    assert pprof.encode_rows([row], [("a", "bytes"), ("b", "bytes")], "a", 1 << 70, -1e30)


def test_it_is_read() -> None:
    found = profile.parse(TEXT, "some.prof")
    assert (found.process, found.interval_bytes, found.elapsed_s, found.lost_samples) == (77, 524288, 1.5, 0)
    first, second = found.sites
    assert [frame.name for frame in first.frames] == ["program+0x100", "program+0x200"]  # 0x99 is no code
    assert [frame.name for frame in second.frames] == ["program+0x100", "program+0x300"]  # without the library's own
    assert first.figures.live_bytes == 1000 and first.figures.live_count == 10 and first.figures.total_count == 20
    assert first.figures.mean_lifetime_s == pytest.approx(0.005)
    assert found.total.live_bytes == 1400 and found.total.samples == 3
    ((frame, sums),) = profile.by_function(found)
    assert frame is not None and frame.name == "program+0x100" and sums.live_bytes == 1400


def test_a_library_that_is_gone() -> None:
    """What called it is known; an address that is no code ends a stack only behind functions."""
    gone = TEXT.replace(": 10101 10201 99", ": 20105 88 77 10201 99 10301").replace(": 20111 10101 10301", ": 88 77")
    found = profile.parse(gone, "program.prof")
    named = {tuple(frame.name for frame in site.frames) for site in found.sites}
    assert named == {("(unloaded library)", "program+0x200"), ()}
    assert found.remarks[0].startswith("a library was unloaded")
    assert profile.parse(TEXT, "program.prof").remarks == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "something else\n",
        TEXT.replace("site 2", "site"),
        TEXT.replace("interval_", ""),
        TEXT.replace("profile 3", "profile 2"),
    ],
)
def test_what_is_no_profile_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(LabError):
        profile.read(tmp_path / "file")


@pytest.fixture
def of_python(monkeypatch: pytest.MonkeyPatch) -> profile.Profile:
    names = {0x10100: "_PyEval_EvalFrameDefault", 0x10300: "_PyEval_EvalFrameDefault.cold"}
    monkeypatch.setattr(Symbols, "name", lambda self, mapping, address: names.get(address, "call"))
    return profile.parse(PYTHON_TEXT, "some.prof")


def test_functions_of_python_stand_in_place_of_the_loop(of_python: profile.Profile) -> None:
    (site,) = of_python.sites
    labels = [frame.label for frame in site.frames]
    assert labels == ["call", "Büro.hält (a\u2028b.py:12)", "<module> (main.py:3)", "call", "<module> (main.py:5)"]
    ((owner, _),) = profile.by_function(of_python)
    assert owner is not None and (owner.label, owner.module) == (labels[1], "/srv/a\u2028b.py")
    assert "Büro.hält (a" in text(of_python) and "functions of Python" not in text(of_python)


def test_functions_of_python_come_last_where_the_loop_has_no_symbol() -> None:
    found = profile.parse(PYTHON_TEXT.replace("function 8", "other 8"), "some.prof")
    labels = [frame.label for frame in found.sites[0].frames]
    assert labels[:4] == ["program+0x200", "program+0x100", "program+0x200", "program+0x300"]
    assert labels[4:] == [
        "Büro.hält (a\u2028b.py:12)",
        "(unknown function of Python)",
        "(unknown function of Python)",
    ]


def test_without_names_the_loop_is_told() -> None:
    found = profile.parse(PYTHON_TEXT.replace("function ", "other "), "some.prof")
    assert [frame.name for frame in found.sites[0].frames][1:] == ["program+0x100", "program+0x200", "program+0x300"]


def test_exports_have_files_and_lines_of_python(of_python: profile.Profile) -> None:
    message = pprof.profile_class()()
    message.ParseFromString(gzip.decompress(pprof.encode(of_python)))
    strings, functions = message.string_table, {function.id: function for function in message.function}
    lines = [(functions[line.function_id], line.line) for location in message.location for line in location.line]
    assert ("<module>", "/srv/main.py", 5) in {(strings[f.name], strings[f.filename], line) for f, line in lines}
    frames = json.loads(exports.speedscope(of_python))["shared"]["frames"]
    assert {"name": "<module>", "file": "/srv/main.py", "line": 3} in frames
    assert "<module> (/srv/main.py:3)" in json.loads(exports.dhat(of_python))["ftbl"]
    assert "\\u003cmodule\\u003e (main.py:3)" in flame.render(of_python)


def test_why_there_are_no_functions_of_python() -> None:
    found = profile.parse(TEXT.replace("lost_samples 0", "lost_samples 0\nwithout_python Python is old"), "some.prof")
    assert "functions of Python have no names: Python is old\n" in text(found)
    assert "Python is old" in flame.render(found)
    assert "functions of Python have no names: Python is old\n" in text(profile.difference(found, found))


@pytest.mark.skipif(not (3, 11) <= sys.version_info < (3, 14), reason="functions of Python 3.11 to 3.13 are known")
def test_a_python_program_shows_who_holds_its_memory(tmp_path: Path) -> None:
    program = tmp_path / "holder.py"
    program.write_text("def hold(_):\n    kept.append(bytearray(9_000_000))\n\n\nkept = []\nsorted([1], key=hold)\n")
    done = hakmem("-o", "x", "--", sys.executable, program, cwd=tmp_path)
    assert done.returncode == 0 and "hold (holder.py:2)" in done.stderr, done.stderr
    (raw,) = tmp_path.glob("x.*.prof")
    (site,) = [site for site in profile.read(raw).sites if "hold" in [frame.name for frame in site.frames]]
    labels = [frame.label for frame in site.frames]
    at = labels.index("hold (holder.py:2)")
    outer = labels.index("<module> (holder.py:6)")
    assert at > 0 and outer > at + 1 and "Py_RunMain" in labels[outer + 1 :]
    assert profile.LOOP not in [frame.name for frame in site.frames]


def test_an_empty_table_says_why() -> None:
    head, _, maps = TEXT.partition("site ")
    found = profile.parse(head + maps[maps.index("maps\n") :], "some.prof")
    assert "no allocation was sampled: a smaller --interval sees more\n" in text(found)
    assert "no allocation" not in text(profile.parse(TEXT, "some.prof"))


def test_another_file_of_the_same_name_tells_no_functions(tmp_path: Path) -> None:
    """As after an upgrade, and on a machine that has another version."""
    named_too = (*FRAMES, "-Wl,--build-id")
    program, written = compile_c(tmp_path / "program", SOURCE, *named_too), tmp_path / "some.prof"
    environment = {"LD_PRELOAD": str(native.library()), "HAKMEM_HEAP_PROFILE": f"1:{written}"}
    assert subprocess.run([program], env=environment).returncode == 3
    named = profile.read(written)
    assert "keeps" in {frame.name for site in named.sites for frame in site.frames} and not named.strangers
    program.rename(tmp_path / "as it was")
    assert not profile.read(written).strangers  # there is none
    compile_c(tmp_path / "program", SOURCE.replace("int main", "void other(void) {}\nint main"), *named_too)
    found = profile.read(written)
    assert not {frame.name for site in found.sites for frame in site.frames} & {"keeps", "work", "other", "main"}
    assert found.strangers == ("program",)
    assert "functions have no names in program: " in text(found) and "no names in program: " in flame.render(found)
    message = pprof.profile_class()()
    message.ParseFromString(gzip.decompress(pprof.encode(found)))
    assert [message.string_table[number] for number in message.comment] == found.nameless
    mapped = written.read_text().replace(f"{program}\n", f"{program} (deleted)\n")  # as it was replaced before
    upgraded = profile.parse(mapped, written.name)
    assert upgraded.strangers == ("program",) and not {
        frame.name for site in upgraded.sites for frame in site.frames
    } & {"keeps", "work", "other", "main"}
    assert not any(site.figures.live_bytes for site in profile.difference(found, upgraded).sites)
    root = tmp_path / "root"
    place = root / program.relative_to("/")
    place.parent.mkdir(parents=True)
    (tmp_path / "as it was").rename(place)
    own = profile.parse(written.read_text(), written.name, str(root))
    assert own.sites == named.sites and not own.strangers
    program.unlink()
    place.rename(program)
    again = profile.parse(mapped, written.name)
    assert not again.strangers and "keeps" in {frame.name for site in again.sites for frame in site.frames}


def move_notes(library: Path) -> None:
    """To the end of the file, and of its memory: as patchelf does where it finds no room for a longer name."""
    whole = bytearray(library.read_bytes())
    (table,), (count,) = struct.unpack_from("<Q", whole, 32), struct.unpack_from("<H", whole, 56)
    places = range(table, table + 56 * count, 56)
    parts = {at: list(struct.unpack_from("<IIQQQQQQ", whole, at)) for at in places}
    address = -(-max(part[3] + part[6] for part in parts.values()) // 65536) * 65536
    place = address + -(-len(whole) // 65536) * 65536  # nothing of the file is mapped as far from its start
    notes = b""
    for part in parts.values():
        if part[0] == 4:  # PT_NOTE
            note = bytes(whole[part[2] : part[2] + part[5]])
            part[2:5] = place + len(notes), address + len(notes), address + len(notes)
            notes += note + bytes(-len(note) % 8)
    (spare,) = (at for at, part in parts.items() if part[0] == 0x6474E552)  # PT_GNU_RELRO: it does without
    parts[spare] = [1, 4, place, address, address, len(notes), len(notes), 65536]
    for at, part in parts.items():
        struct.pack_into("<IIQQQQQQ", whole, at, *part)
    library.write_bytes(bytes(whole).ljust(place, b"\0") + notes)


def test_functions_of_a_library_whose_notes_were_moved(tmp_path: Path) -> None:
    """As of modules that pip installs."""
    functions, main, rest = SOURCE.partition("int main")
    options = (*FRAMES, "-Wl,--build-id", "-Wl,-z,relro", "-shared", "-fPIC")
    library, written = compile_c(tmp_path / "module.so", functions, *options), tmp_path / "some.prof"
    move_notes(library)
    program = compile_c(tmp_path / "program", f"void work(int i);\n{main}{rest}", *FRAMES, str(library))
    environment = {"LD_PRELOAD": str(native.library()), "HAKMEM_HEAP_PROFILE": f"1:{written}"}
    assert subprocess.run([program], env=environment).returncode == 3
    found = profile.read(written)
    assert "keeps" in {frame.name for site in found.sites for frame in site.frames} and not found.strangers
    assert f" {elf.build_id(library)}\n" in written.read_text()


def test_a_difference_is_after_minus_before() -> None:
    before, after = profile.parse(TEXT, "a"), profile.parse(TEXT.replace("400 0 480", "900 0 980"), "b")
    found = profile.difference(before, after)
    assert found.total.live_bytes == 500 and found.is_difference
    assert sorted(site.figures.live_bytes for site in found.sites) == [0, 500]
    assert "500 B" in flame.render(found)
    assert len(text(found).splitlines()) == 4, "a line for what is as it was"


def test_what_no_sample_tells_may_all_be_off_to_one_side() -> None:
    unknown = [profile.Sizes(bytes_, 0.001).of_all(1000) for bytes_ in (16, 32, 48, 64)]
    in_all = sum(unknown, profile.Amount())
    assert [one.error for one in unknown] == [8000.0] * 4 and in_all.error == 32000
    assert in_all.bytes == 8000 + 24000 + 40000 + 56000
    known = profile.Sizes(64, 0.5, weight=profile.WEIGHT_ONE * 1000, bytes=64 * 500).of_all(1000)
    assert known.bound == 0 and (known + known).error == pytest.approx(known.error * 2**0.5)


def test_the_peak_is_told_with_what_it_may_have_missed() -> None:
    read = profile.parse(TEXT, "some.prof")
    assert read.peak.error > read.counted.peak.error
    assert profile.plain(read)["counted"]["at_the_peak"]["bytes_error"] == round(read.peak.error)  # type: ignore[index]
    assert flame.said(read.peak) in text(read)


def test_the_peak_of_a_difference_is_that_of_the_two_peaks() -> None:
    """The second heap rose by a fifth after its sizes were counted."""
    grown = TEXT.replace("large 0 0 0 0\n", "large 0 0 0 1048576\n")
    grown = grown.replace("class 80 ", "class 0 0 0 1 0 0 0 0 0 0 0 0\nclass 80 ")
    grown = grown.replace("most_bytes 1520\nnoted_bytes 1520", "most_bytes 1260000\nnoted_bytes 1050000")
    before, after = profile.parse(TEXT, "a"), profile.parse(grown, "b")
    found, smaller = profile.difference(before, after), profile.difference(after, before)
    assert found.peak.bytes == pytest.approx(after.peak.bytes - before.peak.bytes) and found.peak.bytes > 1 << 20
    assert smaller.peak.bytes == -found.peak.bytes and found.peak.count == 1
    assert found.peak.error == smaller.peak.error == pytest.approx(math.hypot(before.peak.error, after.peak.error))
    told = profile.plain(found)["counted"]["at_the_peak"]  # type: ignore[index]
    assert told == {"blocks": 1, "bytes": round(found.peak.bytes), "bytes_error": round(found.peak.error)}
    assert f"at the peak {flame.said(found.peak)}, in all" in text(found)


def test_the_error_of_a_difference_is_that_of_what_has_changed() -> None:
    """Two dumps of one process share the samples of the first."""
    first = profile.Figures(live_bytes=50e6, total_bytes=100e6, live_variance=25e12, total_variance=100e12)
    second = profile.Figures(live_bytes=60e6, total_bytes=120e6, live_variance=30e12, total_variance=121e12)
    found = second.minus(first, shares_samples=True)
    assert found.total_variance == pytest.approx(21e12)
    assert found.live_variance == pytest.approx(21e12 + (91e12 - 75e12))
    assert second.minus(first).total_variance == pytest.approx(221e12)
    nothing = second.minus(second, shares_samples=True)
    assert nothing.total_error == nothing.live_error == 0


def test_who_killed_a_command_without_a_profile_is_told(tmp_path: Path) -> None:
    done = hakmem("--", "sh", "-c", "kill -ABRT $$", cwd=tmp_path)
    said = "hakmem: no process wrote a profile: sh was killed by signal 6 before it could\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_pprof_has_the_same_sums() -> None:
    found = profile.parse(TEXT, "some.prof")
    message = pprof.profile_class()()
    message.ParseFromString(gzip.decompress(pprof.encode(found)))
    names = [message.string_table[kind.type] for kind in message.sample_type]
    assert names == ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"]
    assert [sum(sample.value[i] for sample in message.sample) for i in range(4)] == [25, 2400, 15, 1400]
    assert message.string_table[0] == "" and message.period == 524288
    known = {location.id for location in message.location}
    assert all(known.issuperset(sample.location_id) for sample in message.sample)


def test_a_page_tells_functions_and_needs_nothing_else() -> None:
    page = flame.render(profile.parse(TEXT, "<some>.prof"))
    assert "&lt;some&gt;.prof" in page and "<some>" not in page
    assert "program+0x100" in page and "1.37 KiB" in page
    assert "src=" not in page and "href=" not in page and "@import" not in page


def test_a_program_whose_truth_is_known(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", SOURCE, *FRAMES)
    prefix = str(tmp_path / "out")
    command = [sys.executable, "-m", "hakmem", "profile", "-o", prefix, "--interval", "4K", "--", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 3, done.stderr
    (raw,) = tmp_path.glob("out.*.prof")
    sums = {frame.name if frame else "": found for frame, found in profile.by_function(profile.read(raw))}
    truth = {"keeps": (4e7, 4e7), "drops": (0, 4e7), "zeroes": (2e7, 2e7)}
    for name, (live, total) in truth.items():  # some 9,000 samples each, but for the large ones: all are sampled
        assert sums[name].live_bytes == pytest.approx(live, rel=0.05)
        assert sums[name].total_bytes == pytest.approx(total, rel=0.05)
    assert sums["drops"].mean_lifetime_s is not None


@pytest.mark.parametrize("name", ["libhakmem.so", "allocator.so"])
def test_a_copy_that_is_preloaded_already_takes_nothing_from_it(name: str, tmp_path: Path) -> None:
    """As that of an image, in which everything runs on hakmem; also under a name of somebody's own."""
    copy = tmp_path / name
    shutil.copy(native.library(), copy)
    words = ("-o", "x", "--interval", "1K", "--", sys.executable, "-c", "pass")
    done = hakmem(*words, cwd=tmp_path, env={**os.environ, "LD_PRELOAD": str(copy)})
    (raw,) = tmp_path.glob("x.*.prof")
    assert done.returncode == 0 and profile.read(raw).total.samples > 0, done
    assert (f"hakmem: LD_PRELOAD={copy} is not passed on" in done.stderr) == (name == "libhakmem.so")


BURST = """
#include <stdlib.h>
static char *blocks[30000];
__attribute__((noinline)) char *early(size_t n) { char *p = malloc(n); p[0] = 1; return p; }
__attribute__((noinline)) char *burst(size_t n) { char *p = malloc(n); p[0] = 1; return p; }
__attribute__((noinline)) char *late(size_t n) { char *p = malloc(n); p[0] = 1; return p; }
int main(void) {
    for (int i = 0; i < 5000; i++) early(1000);
    for (int i = 0; i < 30000; i++) blocks[i] = burst(1000);
    for (int i = 0; i < 30000; i++) free(blocks[i]);
    for (int i = 0; i < 10000; i++) late(1000);
    return 0;
}
"""


def test_what_was_live_at_the_peak(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", BURST, *FRAMES)
    done = hakmem("-o", tmp_path / "out", "--interval", "1K", "--", program)
    assert done.returncode == 0 and " at the peak 3" in done.stderr, done.stderr
    (raw,) = tmp_path.glob("out.*.prof")
    found = profile.read(raw)
    sums = {frame.name if frame else "": one for frame, one in profile.by_function(found)}
    for name, peak, live in (("early", 5e6, 5e6), ("burst", 3e7, 0), ("late", 0, 1e7)):
        assert sums[name].peak_bytes == pytest.approx(peak, rel=0.06, abs=1e5)
        assert sums[name].live_bytes == pytest.approx(live, rel=0.05, abs=1e5)
    assert sums["burst"].peak_count == pytest.approx(30000, rel=0.06) and 0 <= found.peak_s <= found.elapsed_s


NAMED = """
#include <stdlib.h>
static char *kept[4000];
SITE char *new_node(size_t n) { return malloc(n); }
SITE char *new_(size_t n) { return malloc(n); }
SITE char *move_blocks(size_t n) { return malloc(n); }
int main(void) {
    for (int i = 0; i < 3000; i += 3) {
        kept[i] = new_node(5000);
        kept[i + 1] = new_(5000);
        kept[i + 2] = move_blocks(5000);
    }
    return kept[2999] == NULL;
}
"""


@pytest.mark.parametrize("is_linked", [False, True])
def test_functions_whose_names_are_like_hakmem_s(tmp_path: Path, is_linked: bool) -> None:
    parts = [str(native.library().with_name("hakmem.o")), "-pthread"] if is_linked else []
    source = NAMED.replace("SITE", "__attribute__((noinline))")
    program = compile_c(tmp_path / "program", source, *FRAMES, *parts)
    settings = {"HAKMEM_HEAP_PROFILE": f"1:{tmp_path / 'out.prof'}", "HAKMEM_HEAP_PROFILE_INTERVAL": "1K"}
    settings |= {} if is_linked else {"LD_PRELOAD": str(native.library())}
    subprocess.run([program], env=settings, check=True)
    found = {frame.name for frame, _ in profile.by_function(profile.read(tmp_path / "out.prof")) if frame}
    assert {"new_node", "new_", "move_blocks"} <= found <= {"new_node", "new_", "move_blocks", "main"}


PARSER = """
#include <stdlib.h>
static char *kept[20000];
__attribute__((noinline)) char *scratch(size_t n) { char *p = malloc(n); p[0] = 1; return p; }
__attribute__((noinline)) char *node(size_t n) { char *p = malloc(n); p[0] = 1; return p; }
int main(void) {
    for (int i = 0; i < 20000; i++) {
        char *buffer = scratch(1000);
        for (int j = 0; j < 3; j++) {
            if (j == 0) kept[i] = node(500);
            else free(node(500));
        }
        free(buffer);
    }
    for (int i = 0; i < 20000; i++) free(kept[i]);
    return 0;
}
"""


def test_temporaries(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", PARSER, *FRAMES)
    done = hakmem("-o", tmp_path / "out", "--interval", "1K", "--speedscope", "--", program)
    assert done.returncode == 0, done.stderr
    assert re.search(r"temporary, by estimate: 3[\d.]* [KMG]iB[^;]*; ", done.stderr), done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "temporary" in line)
    assert "blocks" not in line and "blocks, about" in done.stderr  # there is no error of theirs
    (raw,) = tmp_path.glob("out.*.prof")
    sums = {frame.name if frame else "": one for frame, one in profile.by_function(profile.read(raw))}
    for name, bytes_, count in (("scratch", 2e7, 2e4), ("node", 2e7, 4e4)):
        assert sums[name].temporary_bytes == pytest.approx(bytes_, rel=0.05)
        assert sums[name].temporary_count == pytest.approx(count, rel=0.05)
    (page,) = tmp_path.glob("out.*.html")
    assert "temporary bytes</option>" in page.read_text() and '<td data-label="temporary">67%</td>' in re.sub(
        "6[5-9]%", "67%", page.read_text()
    )
    (scope,) = tmp_path.glob("out.*.speedscope.json")
    views = {one["name"]: one["endValue"] for one in json.loads(scope.read_text())["profiles"]}
    assert views["temporary bytes"] == pytest.approx(4e7, rel=0.05)


def hakmem(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hakmem", "profile", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload, no-any-return]


SHIM = """#!/bin/bash
count() { for i in 1 2 3; do (:); done; }
x=$(count; echo 1)
exec "$@"
"""


def test_a_shim_is_not_taken_for_the_program(tmp_path: Path) -> None:
    """As those of pyenv and rbenv: shell scripts that start some processes, and become the program that was meant."""
    shim = tmp_path / "shim"
    shim.write_text(SHIM)
    shim.chmod(0o755)
    work = "import ctypes\nc = ctypes.CDLL(None)\nfor i in range(30000): c.malloc(ctypes.c_size_t(10000))"
    done = hakmem("-o", tmp_path / "out", "--interval", "16M", "--", shim, sys.executable, "-S", "-c", work)
    assert done.returncode == 0, done.stderr
    (raw,) = tmp_path.glob("out.*.prof")
    found = profile.read(raw)
    assert found.program.startswith("python") and found.total.live_bytes > 2e7
    others, _, table = done.stderr.partition(f"{raw.name}, {found.program}: live ")
    assert re.fullmatch(r"hakmem: \d+ more had no sample, and have no files\n", others), done.stderr
    assert str(raw.with_suffix(".html")) in table.splitlines()[-1]


def test_other_processes_have_a_line_each_and_the_one_that_was_started_the_table(tmp_path: Path) -> None:
    work = "import ctypes\nc = ctypes.CDLL(None)\nfor i in range(3000): c.malloc(ctypes.c_size_t(10000))"
    done = hakmem("-o", tmp_path / "out", "--", "bash", "-c", '"$0" "$@"; :', sys.executable, "-S", "-c", work)
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stderr.splitlines()
    assert re.fullmatch(r"hakmem: process (\d+), python\S*: \d\d\.\d+ MiB in all: .*/out\.\1\.html", first), done.stderr
    assert re.match(r"out\.\d+\.prof, bash: live ", second), done.stderr
    assert len(list(tmp_path.glob("out.*.html"))) == 2


FORKS_AND_LEAVES = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    static char *blocks[1000];
    if (fork() == 0) {
        for (int i = 0; i < 1000; i++) blocks[i] = malloc(10000);
        return 0;
    }
    wait(NULL);
    _exit(0);
}
"""


def test_a_table_of_another_process_says_so(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", FORKS_AND_LEAVES)
    done = hakmem("-o", tmp_path / "out", "--interval", "4K", "--", program)
    (raw,) = tmp_path.glob("out.*.prof")
    first, second, *_ = done.stderr.splitlines()
    assert re.fullmatch(r"hakmem: process \d+, the one that was started, wrote none, perhaps .*", first), done.stderr
    assert first.endswith(f"the table is of process {profile.read(raw).process}"), done.stderr
    assert second.startswith(f"{raw.name}, program: live ")


def write_as(number: int, text: str) -> tuple[str, ...]:
    """A command that writes a profile as a process of this number would."""
    place = f"os.environ['HAKMEM_HEAP_PROFILE'].removeprefix('1:').replace('%p', '{number}')"
    return (sys.executable, "-S", "-c", f"import os, sys; open({place}, 'w').write(sys.argv[1])", text)


def test_a_process_may_have_the_number_of_one_that_wrote_before(tmp_path: Path) -> None:
    """As in each container of an image."""
    (tmp_path / "out.77.prof").write_text("of a former run")
    done = hakmem("-o", "out", "--", *write_as(77, TEXT), cwd=tmp_path)
    assert done.returncode == 0 and "hakmem: process 77, program: 2.34 KiB in all" in done.stderr, done.stderr
    assert (tmp_path / "out.77.html").is_file() and (tmp_path / "out.77.prof").read_text() == TEXT


def test_a_process_without_a_sample_takes_no_former_profile_away(tmp_path: Path) -> None:
    (tmp_path / "out.77.prof").write_text(TEXT)
    empty = TEXT.partition("site ")[0] + TEXT[TEXT.index("maps\n") :]
    done = hakmem("-o", "out", "--", *write_as(77, empty), cwd=tmp_path)
    assert done.returncode == 0 and "hakmem: 1 more had no sample, and have no files" in done.stderr, done.stderr
    assert (tmp_path / "out.77.prof").read_text() == TEXT and len(list(tmp_path.glob("*.prof"))) == 2


def test_what_another_run_writes_is_left_alone(tmp_path: Path) -> None:
    empty = TEXT.partition("site ")[0] + TEXT[TEXT.index("maps\n") :]
    write = f"open('out.78.prof', 'w').write({empty!r})"
    done = hakmem("-o", "out", "--", sys.executable, "-S", "-c", write, cwd=tmp_path)
    assert done.returncode == 0 and "out.78" not in done.stderr, done.stderr
    assert (tmp_path / "out.78.prof").read_text() == empty and not (tmp_path / "out.78.html").exists()


def test_a_damaged_profile_of_one_process_does_not_cost_the_others_theirs(tmp_path: Path) -> None:
    (tmp_path / "out.77.prof").write_text(TEXT)
    done = hakmem("-o", "out", "--", *write_as(77, TEXT[:100]), cwd=tmp_path)
    first, *rest = done.stderr.splitlines()
    assert done.returncode == 0 and re.search(r"/out\.77\.\w{8}\.prof: a damaged heap profile, or of another", first)
    assert (tmp_path / "out.77.prof").read_text() == TEXT
    assert ": live " in rest[0] and len(list(tmp_path.glob("out.*.html"))) == 1, done.stderr


def test_profiles_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.prof").write_text(TEXT)
    done = hakmem("--read", "a/x.prof", "--read", "b/x.prof", "-o", "all", cwd=tmp_path)
    assert done.returncode == 2 and "several would become all.x.html" in done.stderr, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("name", ["a[1]", "p 100%", "*?"])
def test_names_of_files_are_no_patterns(tmp_path: Path, name: str) -> None:
    (tmp_path / "a1.7.prof").write_text("of another name")
    done = hakmem("-o", tmp_path / name, "--", "true")
    assert done.returncode == 0, done.stderr
    found = [path.name.removeprefix(name) for path in tmp_path.iterdir() if path.name != "a1.7.prof"]
    assert sorted(path.partition(".")[2].partition(".")[2] for path in found) == ["html", "pb.gz", "prof"]


def test_a_name_with_a_process_id_is_refused(tmp_path: Path) -> None:
    done = hakmem("-o", tmp_path / "p 100%p", "--", "touch", tmp_path / "ran")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "p 100%p: %p stands for a process id there" in done.stderr and not list(tmp_path.iterdir())


def test_files_that_cannot_be_written_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "ok.prof").write_text(TEXT)
    for words in (("--read", "ok.prof"), ("--read", "ok.prof", "--read", "ok.prof"), ("--diff", "ok.prof", "ok.prof")):
        done = hakmem(*words, "-o", "no/y", cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("hakmem: can't write no/y") and "No such file" in done.stderr


def test_what_was_given_is_named_where_nothing_can_be_written(tmp_path: Path) -> None:
    for words in ((), ("--dhat",)):
        done = hakmem("-o", "none/a", *words, "--", "touch", "ran", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (2, "hakmem: can't write none/a: No such file or directory\n")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    script = 'mkdir gone && cd gone && rmdir "$PWD" && exec "$@"'
    for words in (("-o", "x", "--", "touch", tmp_path / "ran"), ("--", "touch", tmp_path / "ran")):
        call = ["sh", "-c", script, "sh", sys.executable, "-m", "hakmem", "profile", *map(str, words)]
        done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        name = "x" if "x" in words else "profile"
        assert (done.returncode, done.stderr) == (2, f"hakmem: can't write {name}: No such file or directory\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("interval", ["0", "99999999999999999999G", "1025G", "1" * 5000, "-1", "1T", "K", ""])
def test_intervals_that_are_none(tmp_path: Path, interval: str) -> None:
    done = hakmem("--interval", interval, "--", "touch", "ran", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "expected a number of bytes, with K, M or G, from 1 to 1024G" in done.stderr
    assert not list(tmp_path.iterdir())


# Takes its time to end well after Ctrl-C.
SAVES = """
import signal, sys, time
kept = []
def save(*_):
    time.sleep(0.6)
    open(sys.argv[2], "w").write("saved")
    sys.exit(0)
signal.signal(signal.SIGINT, save)
kept = [bytes(1000) for _ in range(20000)]
open(sys.argv[1], "w").close()
while True: time.sleep(0.05)
"""


def test_ctrl_c_is_for_the_command(tmp_path: Path) -> None:
    ready, saved = tmp_path / "ready", tmp_path / "saved"
    program = (sys.executable, "-S", "-E", "-c", SAVES, str(ready), str(saved))
    command = [sys.executable, "-m", "hakmem", "profile", "-o", str(tmp_path / "out"), "--interval", "4K", "--"]
    with subprocess.Popen([*command, *program], stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        interrupt(child.pid, ready)
        _, error = child.communicate(timeout=600)
    assert child.returncode == 0 and saved.read_text() == "saved", error
    assert f"hakmem: interrupted: the profile is of what {sys.executable} did until its end\n" in error
    (raw,) = tmp_path.glob("out.*.prof")
    assert profile.read(raw).total.samples > 100
    assert raw.with_suffix(".html").is_file() and raw.with_suffix(".pb.gz").is_file()


def test_a_command_that_a_signal_kills_has_its_status(tmp_path: Path) -> None:
    """Also one that this command was sent, too: as Ctrl-\\ is."""
    words = [sys.executable, "-m", "hakmem", "profile", "-o", str(tmp_path / "out"), "--", "sh", "-c"]
    kills = "kill -QUIT $PPID $$; sleep 9"
    done = subprocess.run([*words, kills], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 128 + signal.SIGQUIT, done.stderr
    assert "was killed by signal 3 before it could write a profile" in done.stderr


def test_a_process_that_is_left_behind_is_thought_of(tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "hakmem",
        "profile",
        "-o",
        "out",
        "--",
        sys.executable,
        "-c",
        "import os; os._exit(0)",
    ]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert re.search(
        r"; a process that it left behind writes \S*out\.PID\.\w{8}\.prof when it ends$", done.stderr.strip()
    )


def test_a_file_that_is_cut_off_blames_no_library() -> None:
    whole = profile.parse(TEXT, "some.prof")
    gone = profile.Site((profile.Frame("", 0, profile.UNLOADED),), profile.Figures())
    unloaded = dataclasses.replace(whole, sites=(gone,))
    assert any("RTLD_NODELETE" in line for line in unloaded.remarks)
    cut = dataclasses.replace(unloaded, is_whole=False).remarks
    assert any("cut off" in line for line in cut) and not any("library" in line for line in cut)


GATHERS = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
    struct sigaction before;
    static char *blocks[1000];
    for (int i = 0; i < 1000; i++) memset(blocks[i] = malloc(10000), 1, 10000);
    if (sigaction(SIGINT, NULL, &before) || before.sa_handler != SIG_DFL || before.sa_flags) return 3;
    if (signal(SIGTERM, SIG_IGN) != SIG_DFL || signal(SIGTERM, SIG_DFL) != SIG_IGN) return 4;
    if (signal(SIGHUP, SIG_DFL) != SIG_DFL) return 5;
    fclose(fopen(words[1], "w"));
    for (;;) pause();
}
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_was_gathered_is_written_when_a_signal_ends_the_command(tmp_path: Path, number: signal.Signals) -> None:
    ready, program = tmp_path / "ready", compile_c(tmp_path / "program", GATHERS)
    words = [sys.executable, "-m", "hakmem", "profile", "-o", str(tmp_path / "out"), "--interval", "4K", "--"]
    call = [*words, str(program), str(ready)]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        if number == signal.SIGINT:
            interrupt(child.pid, ready)
        else:  # of this process alone, which passes it on
            while not ready.exists():
                assert child.poll() is None
                time.sleep(0.01)
            child.send_signal(number)
        _, error = child.communicate(timeout=600)
    assert child.returncode == 128 + number, error
    (raw,) = tmp_path.glob("out.*.prof")
    assert profile.read(raw).total.live_bytes > 8e6 and raw.with_suffix(".html").is_file()


@pytest.mark.long
def test_pprof_itself_reads_it(tmp_path: Path) -> None:
    if shutil.which("go") is None or subprocess.run(["go", "tool", "pprof", "-h"], capture_output=True).returncode != 0:
        pytest.skip("no `go tool pprof` here: Debian's package golang-go")
    graph = tmp_path / "some.pb.gz"
    graph.write_bytes(pprof.encode(profile.parse(TEXT, "some.prof")))
    for index, live in (("inuse_space", "1400B"), ("alloc_objects", "25")):
        words = ["go", "tool", "pprof", "-top", f"-sample_index={index}", str(graph)]
        top = subprocess.run(words, capture_output=True, text=True, timeout=600)
        assert top.returncode == 0, top.stderr
        assert f"{live} total" in top.stdout and "program+0x100" in top.stdout


@pytest.mark.long
def test_pprof_itself_tells_names_in_angle_brackets(of_python: profile.Profile, tmp_path: Path) -> None:
    """It takes <module> for a template's arguments where it believes a name to be one of C++, and says <unknown>."""
    if shutil.which("go") is None or subprocess.run(["go", "tool", "pprof", "-h"], capture_output=True).returncode != 0:
        pytest.skip("no `go tool pprof` here: Debian's package golang-go")
    graph = tmp_path / "some.pb.gz"
    graph.write_bytes(pprof.encode(of_python))
    words = ["go", "tool", "pprof", "-traces", "-sample_index=alloc_space", str(graph)]
    told = subprocess.run(words, capture_output=True, text=True, timeout=600).stdout
    assert told.count("<module>") == 2 and "<unknown>" not in told, told


def test_a_name_that_is_cut_shows_it() -> None:
    long = PYTHON_TEXT.replace("Büro.hält", "FileFinder._fill_cache").replace("b.py", "b" * 50)
    assert "FileFinder._fill_ca\N{HORIZONTAL ELLIPSIS} (" in text(profile.parse(long, "some.prof"))


def test_exports() -> None:
    found = profile.parse(TEXT, "some.prof")
    for_speedscope = json.loads(exports.speedscope(found))
    names = [frame["name"] for frame in for_speedscope["shared"]["frames"]]
    view = for_speedscope["profiles"][0]
    assert for_speedscope["name"] == "program" and view["name"] == "live bytes" and view["unit"] == "bytes"
    assert view["endValue"] == sum(view["weights"]) == 1400
    assert sorted([names[i] for i in stack] for stack in view["samples"]) == [
        ["program+0x200", "program+0x100"],
        ["program+0x300", "program+0x100"],
    ]
    for_dhat = json.loads(exports.dhat(found))
    assert for_dhat["dhatFileVersion"] == 2 and for_dhat["ftbl"][0] == "[root]" and for_dhat["te"] == 1500
    assert sum(point["tb"] for point in for_dhat["pps"]) == 2400 and sum(p["eb"] for p in for_dhat["pps"]) == 1400
    assert {for_dhat["ftbl"][point["fs"][0]] for point in for_dhat["pps"]} == {"program+0x100 (in program)"}


def test_exports_are_written_where_asked_for(tmp_path: Path) -> None:
    (tmp_path / "some.prof").write_text(TEXT)
    assert hakmem("--read", "some.prof", "-o", "x", "--speedscope", "--dhat", cwd=tmp_path).returncode == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        "some.prof", "x.html", "x.pb.gz", "x.speedscope.json", "x.dhat.json",
    }  # fmt: skip
    (tmp_path / "y.dhat.json").mkdir()
    done = hakmem("--read", "some.prof", "-o", "y", "--dhat", cwd=tmp_path)
    assert done.returncode == 2 and done.stderr == "hakmem: can't write y.dhat.json: Is a directory\n"


def test_the_page_has_the_program_s_name_and_opens_on_what_is_there() -> None:
    assert "<title>program: heap profile</title>" in flame.render(profile.parse(TEXT, "some.prof"))
    assert "let view = 0," in flame.render(profile.parse(TEXT, "some.prof"))
    everything_freed = TEXT.replace("site 2 1 20480 10240 2000 1000", "site 2 2 20480 20480 2000 2000").replace(
        "site 1 0 5120 0 400 0", "site 1 1 5120 5120 400 400"
    )
    assert "let view = 2," in flame.render(profile.parse(everything_freed, "some.prof"))


# In a frame as narrow as is asked for: a window can't be. Says how it looks, and what keys do.
FRAME = """<iframe src="page.html" style="width:{width}px;height:900px;border:0"></iframe>
<script>onmessage = event => {{ document.documentElement.dataset.answer = event.data; }};</script>"""
MEASURES = """<script>
const key = name => document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: name, bubbles: true}));
const focused = () => document.activeElement.textContent || document.activeElement.title.split("\\n")[0];
flame.firstChild.focus();
const pressed = ["ArrowDown", "ArrowRight", "ArrowDown", "ArrowUp", "Enter", "Escape"];
const keys = pressed.map(name => { key(name); return focused(); });
const shown = [...document.querySelectorAll(innerWidth > 640 ? "td,th" : "td,tbody th")];
const cut = shown.filter(e => e.getBoundingClientRect().right > innerWidth).length;
parent.postMessage(JSON.stringify({keys, cut, width: document.documentElement.scrollWidth,
  legend: document.getElementById("legend").textContent}), "*");
</script></body>"""


@pytest.mark.forms
@pytest.mark.parametrize("width", [400, 1000])
def test_the_page_has_room_in_a_narrow_window_and_keys(tmp_path: Path, width: int) -> None:
    (tmp_path / "page.html").write_text(flame.render(profile.parse(TEXT, "some.prof")).replace("</body>", MEASURES))
    (tmp_path / "outer.html").write_text(FRAME.format(width=width))
    dom = dump(tmp_path / "outer.html", "--virtual-time-budget=3000")
    answer = json.loads(escapes.unescape(re.search(r'data-answer="([^"]*)"', dom)[1]))  # type: ignore[index]
    assert answer["cut"] == 0 and answer["width"] <= width, answer
    assert answer["legend"] == "Colours are files: program"
    assert answer["keys"] == [
        "program+0x200",
        "program+0x300",
        "program+0x100",
        "program+0x300",
        "program+0x300",
        "all",
    ]


def dump(page: Path, *options: str) -> str:
    """What a browser makes of it."""
    chromium = shutil.which("chromium")
    if chromium is None or subprocess.run([chromium, "--version"], capture_output=True).returncode != 0:
        pytest.skip("no Chromium here: Debian's package chromium")
    command = [
        chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={page.parent / 'browser'}", "--window-size=1200,900", *options, "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout


@pytest.mark.forms
def test_the_flame_graph_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(flame.render(profile.parse(TEXT, "some.prof")))
    dom = dump(tmp_path / "page.html")
    graph = dom[dom.index('id="flame"') : dom.index('id="status"')]
    assert graph.count("<div") == 5  # all; two callers, and the function that both call
    assert ">program+0x200<" in graph and "1.37 KiB" in graph


@pytest.mark.forms
def test_the_page_writes_amounts_without_exponents(tmp_path: Path) -> None:
    grown = TEXT.replace(" 2000 1000 ", f" {1020 << 10} 0 ")
    (tmp_path / "page.html").write_text(flame.render(profile.parse(grown, "some.prof")))
    dom = dump(tmp_path / "page.html")
    assert "1,020 KiB" in dom[dom.index('id="flame"') : dom.index('id="status"')]


def test_a_command_that_is_asked_to_end_before_it_begins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    ended = process.Attended(1, -signal.SIGTERM, [signal.SIGTERM])
    monkeypatch.setattr(process, "attend", lambda *_: ended)
    with pytest.raises(InterruptedEarly, match=r"^interrupted: true was killed by signal 15 before it could write"):
        profile_command.command.main(["--", "true"], standalone_mode=False)


def test_profiles_have_their_names_where_a_page_can_t_be_written(tmp_path: Path) -> None:
    (tmp_path / "out.77.html").mkdir()
    done = hakmem("-o", "out", "--", *write_as(77, TEXT), cwd=tmp_path)
    assert done.returncode == 2 and "out.77.html: Is a directory" in done.stderr, done.stderr
    names = [path.name for path in tmp_path.glob("out.*.prof")]
    assert len(names) == 2 and all(re.fullmatch(r"out\.\d+\.prof", name) for name in names), names
