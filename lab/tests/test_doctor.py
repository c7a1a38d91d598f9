"""The doctor's findings on machines that are folders, and a few on this one."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiled import EXPORTED, HIDDEN, NOTED, PRINTS, compile_c
from hakmem import ctl, doctor, native, settings, takeover
from hakmem.doctor import Finding
from hakmem.errors import LabError
from hakmem.host import AT_PAGESZ, AT_SECURE, Host

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max data size             {data}            unlimited            bytes
Max address space         {address_space}            unlimited            bytes
"""
GOOD = {
    "proc/sys/kernel/osrelease": "6.1.0\n",
    "proc/sys/vm/max_map_count": "65530\n",
    "proc/sys/vm/overcommit_memory": "0\n",
    "proc/sys/vm/overcommit_ratio": "50\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "proc/self/limits": LIMITS.format(data="unlimited", address_space="unlimited"),
    "proc/self/status": "Name:\tx\nSeccomp:\t0\n",
    "proc/self/cgroup": "0::/\n",
    "proc/self/mountinfo": "",
    "proc/self/environ": "A=b\0",
    "proc/self/maps": "",
}


def auxv(**values: int) -> bytes:
    vector = {AT_PAGESZ: values.get("page", 4096), AT_SECURE: values.get("secure", 0), 0: 0}
    return b"".join(struct.pack("NN", *pair) for pair in vector.items())


def fake(root: Path, glibc: tuple[int, int] | None = (2, 36), vector: bytes | None = None, **files: str | None) -> Host:
    """A good machine with some files changed, or gone (None). Names of files have `__` for `/`."""
    changed = {name.replace("__", "/"): text for name, text in files.items()}
    for name, text in {**GOOD, **changed}.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    (root / "proc/self/auxv").write_bytes(auxv() if vector is None else vector)
    return Host(root, glibc)


def one(findings: Iterator[Finding], topic: str) -> Finding:
    found = [finding for finding in findings if finding.topic == topic]
    assert len(found) == 1, f"{topic}: {found}"
    return found[0]


def test_nothing_stands_against_a_good_machine(tmp_path: Path) -> None:
    host = fake(tmp_path)
    findings = [*doctor.of_machine(host), *doctor.of_surroundings(host.process())]
    assert {finding.level for finding in findings} == {"ok"}
    assert not any(finding.advice for finding in findings)


def test_an_empty_machine_is_no_reason_to_stumble(tmp_path: Path) -> None:
    host = Host(tmp_path, None)
    findings = [*doctor.of_machine(host), *doctor.of_surroundings(host.process())]
    assert "problem" not in {finding.level for finding in findings}


@pytest.mark.parametrize(
    "changes, topic, level, fact",
    [
        ({"vector": auxv(page=16384)}, "page size", "ok", "16 KiB"),
        ({"vector": auxv(page=1 << 18)}, "page size", "problem", "262144 bytes"),
        ({"vector": b""}, "page size", "note", "unknown"),
        ({"vector": b"odd"}, "page size", "note", "unknown"),
        ({"sys__kernel__mm__transparent_hugepage__enabled": "[always] madvise never"}, "huge pages", "ok", "always"),
        ({"sys__kernel__mm__transparent_hugepage__enabled": None}, "huge pages", "ok", "none"),
        ({"proc__sys__vm__max_map_count": "1000"}, "mappings", "note", "1000, fewer than usual"),
        ({"proc__sys__vm__max_map_count": None}, "mappings", "note", "unknown"),
        ({"proc__sys__vm__overcommit_memory": "2"}, "overcommit", "note", "ratio 50 %"),
        ({"proc__sys__vm__overcommit_memory": "1"}, "overcommit", "ok", "always"),
        ({"etc__ld.so.preload": "/lib/other.so\n"}, "ld.so.preload", "note", "names /lib/other.so"),
    ],
)
def test_of_the_machine(tmp_path: Path, changes: dict[str, object], topic: str, level: str, fact: str) -> None:
    finding = one(doctor.of_machine(fake(tmp_path, **changes)), topic)  # type: ignore[arg-type]
    assert (finding.level, fact in finding.fact) == (level, True), finding
    assert bool(finding.advice) == (level != "ok")


def limits(data: str = "unlimited", address_space: str = "unlimited") -> dict[str, str]:
    return {"proc__self__limits": LIMITS.format(data=data, address_space=address_space)}


@pytest.mark.parametrize(
    "changes, topic, level, fact",
    [
        (limits(address_space=str(8 << 20)), "address space", "problem", "8 MiB"),
        (limits(address_space=str(4 << 30)), "address space", "note", "4 GiB"),
        (limits(address_space=str(1 << 40)), "address space", "note", "1024 GiB"),
        (limits(), "address space", "ok", "unlimited"),
        (limits(data=str(1 << 30)), "data", "note", "1 GiB"),
        (limits(data=str(1 << 20)), "data", "problem", "1 MiB"),
        ({"proc__self__status": "Seccomp:\t2\n"}, "seccomp", "note", "a filter"),
        ({"proc__self__status": "Seccomp:\t1\n"}, "seccomp", "problem", "strict"),
        ({"proc__self__environ": "A=b\0LD_PRELOAD=/libhakmem.so:/x.so\0"}, "LD_PRELOAD", "note", "already: /x.so"),
    ],
)
def test_of_the_surroundings(tmp_path: Path, changes: dict[str, str], topic: str, level: str, fact: str) -> None:
    finding = one(doctor.of_surroundings(fake(tmp_path, **changes).process()), topic)  # type: ignore[arg-type]
    assert (finding.level, fact in finding.fact) == (level, True), finding


def test_a_filter_is_told_of_the_calls_that_hakmem_makes(tmp_path: Path) -> None:
    guest = (Path(__file__).parents[2] / "docs/guest.md").read_text()
    (calls,) = re.findall(
        r"^\*In the program's own threads, after `main`\*, it makes these calls: (.*?)\.", guest, re.MULTILINE
    )
    assert tuple(re.findall(r"`(\w+)`", calls)) == doctor.CALLS_AFTER_MAIN
    (finding,) = (one for one in doctor.of_surroundings(filtered(tmp_path).process()) if one.topic == "seccomp")
    assert all(call in finding.advice for call in doctor.CALLS_AFTER_MAIN)


def filtered(root: Path) -> Host:
    return fake(root, proc__self__status="Seccomp:\t2\n")


# What hakmem does without: nobody is to be sent after it.
UNUSED = ("membarrier", "rseq", "pressure", "sched_yield", "prctl", "mincore")


def test_nothing_is_asked_for_that_hakmem_does_not_use(tmp_path: Path) -> None:
    host = filtered(tmp_path)
    findings = [*doctor.of_machine(host), *doctor.of_surroundings(host.process())]
    said = " ".join(f"{finding.topic} {finding.fact} {finding.advice}" for finding in findings)
    assert not [word for word in UNUSED if word in said.lower()]


# ---- Control groups --------------------------------------------------------------------------------------------------

V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
)
UNLIMITED_V1 = "9223372036854771712\n"


def memory_finding(root: Path, mounts: str, groups: str, files: dict[str, str]) -> Finding:
    host = fake(root, proc__self__mountinfo=mounts, proc__self__cgroup=groups)
    for name, text in files.items():
        path = host.process().path("sys/fs/cgroup") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return one(doctor.of_surroundings(host.process()), "memory limit")


def test_control_groups_2(tmp_path: Path) -> None:
    files = {"a/b/memory.max": "1073741824\n", "a/b/memory.current": "107374182\n"}
    finding = memory_finding(tmp_path, V2, "0::/a/b\n", files)
    assert (finding.level, finding.fact) == ("ok", "1 GiB, 10% of it in use (/sys/fs/cgroup/a/b)")


def test_a_group_around_may_be_tighter(tmp_path: Path) -> None:
    files = {
        "a/b/memory.max": "max\n",
        "a/b/memory.current": "5\n",
        "a/memory.max": "104857600\n",
        "a/memory.current": "99857600\n",
    }
    finding = memory_finding(tmp_path, V2, "0::/a/b\n", files)
    assert (finding.level, finding.fact) == ("note", "100 MiB, 95% of it in use (/sys/fs/cgroup/a)")
    assert "raise it" in finding.advice


def test_no_limit(tmp_path: Path) -> None:
    assert memory_finding(tmp_path, V2, "0::/a\n", {"a/memory.max": "max\n"}).fact == "none"


def test_control_groups_1(tmp_path: Path) -> None:
    files = {
        "memory/c/memory.limit_in_bytes": "536870912\n",
        "memory/c/memory.usage_in_bytes": "268435456\n",
        "memory/memory.limit_in_bytes": UNLIMITED_V1,
        "cpu/d/memory.limit_in_bytes": "1\n",
    }
    finding = memory_finding(tmp_path, V1, "4:memory:/c\n1:cpu:/d\n0::/\n", files)
    assert finding.fact == "512 MiB, 50% of it in use (/sys/fs/cgroup/memory/c)"


def test_unlimited_in_control_groups_1(tmp_path: Path) -> None:
    files = {"memory/c/memory.limit_in_bytes": UNLIMITED_V1}
    assert memory_finding(tmp_path, V1, "4:memory:/c\n", files).fact == "none"


def test_a_container_that_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": "1048576\n", "memory/memory.usage_in_bytes": "0\n"}
    finding = memory_finding(tmp_path, V1, "4:memory:/docker/1234\n", files)
    assert finding.fact == "1 MiB, 0% of it in use (/sys/fs/cgroup/memory)"


def test_a_mount_that_begins_at_the_group(tmp_path: Path) -> None:
    mounts = V2.replace("0:26 / ", "0:26 /docker/1 ")
    files = {"x/memory.max": "1048576\n", "x/memory.current": "0\n"}
    assert "/sys/fs/cgroup/x" in memory_finding(tmp_path, mounts, "0::/docker/1/x\n", files).fact


# ---- The library, a command ------------------------------------------------------------------------------------------


def test_the_library_loads_here() -> None:
    findings = list(doctor.of_library(native.library(), Host()))
    assert [finding.level for finding in findings] == ["ok", "ok"]


def test_a_library_where_no_preload_reaches_it(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    shutil.copy(native.library(), folder / "libhakmem.so")
    found = list(doctor.of_library(folder / "libhakmem.so", Host()))
    assert [one.topic for one in found if one.level == "problem"] == ["library"]


def test_a_c_library_that_is_too_old_or_another_one(tmp_path: Path) -> None:
    old, other = (fake(tmp_path, glibc=glibc) for glibc in ((2, 17), None))
    assert one(doctor.of_library(native.library(), old), "C library").level == "problem"
    assert one(doctor.of_library(native.library(), other), "C library").level == "problem"


def test_a_library_that_does_not_load(tmp_path: Path) -> None:
    library = compile_c(tmp_path / "lib.so", "int nothing(void) { return 0; }\n", "-shared", "-fPIC")
    finding = one(doctor.of_library(library, Host()), "library")
    assert finding.level == "problem" and "does not list its settings" in finding.fact


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def levels(*words: str) -> dict[str, str]:
        found = doctor.of_command(words, native.library(), dict(os.environ))
        return {finding.topic: finding.level for finding in found}

    own = compile_c(tmp_path / "own", PRINTS + EXPORTED)
    private = compile_c(tmp_path / "private", PRINTS + "void *je_malloc(size_t n) { return malloc(n); }\n")
    assert levels("/bin/cat") == {"command": "ok"}
    assert levels("env", str(own)) == {"command": "problem"}
    assert levels(str(private)) == {"command": "ok", "own allocator": "note"}
    with pytest.raises(LabError, match="command not found"):
        levels("no-such-command")
    sudo = compile_c(tmp_path / "sudo", PRINTS)
    assert levels(str(sudo)) == {"command": "ok", "what it starts": "note"}
    monkeypatch.setattr(takeover, "gains_rights", lambda file: "setuid")
    crate = compile_c(tmp_path / "crate", PRINTS + NOTED)
    wants = {
        sudo: ("problem", takeover.BEHIND),
        private: ("problem", doctor.BUILD_OTHERWISE),
        crate: ("ok", ""),  # it has hakmem
    }
    for program, told in wants.items():
        (finding,) = doctor.of_command([str(program)], native.library(), dict(os.environ))
        assert (finding.level, finding.advice) == told


def test_a_copy_that_is_preloaded_is_told() -> None:
    given = {**os.environ, "LD_PRELOAD": "/opt/libhakmem.so.1:/opt/other.so"}
    found = list(doctor.of_command(["/bin/cat"], native.library(), given))
    assert one(iter(found), "LD_PRELOAD").fact == "hakmem is preloaded already: /opt/libhakmem.so.1"
    assert one(iter(found), "command").level == "ok"


@pytest.mark.parametrize(("value", "has_pools"), [(None, True), ("pymalloc", True), ("malloc", False)])
def test_python_without_its_pools(value: str | None, has_pools: bool, tmp_path: Path) -> None:
    python = compile_c(tmp_path / "python", PRINTS + "void *PyObject_Malloc(size_t n) { return malloc(n); }\n")
    environment = {**os.environ, **({"PYTHONMALLOC": value} if value else {})}
    found = doctor.of_command([str(python)], native.library(), environment)
    assert ("own allocator" in {finding.topic for finding in found}) == has_pools


# ---- A running process -----------------------------------------------------------------------------------------------


def running(root: Path, program: Path, mapped: dict[str, Path], environ: str = "", secure: int = 0) -> Host:
    """A machine with a process 7 that runs a program and maps files."""
    host = fake(root)
    folder = root / "proc/7"
    lines = ["00400000-00401000 r-xp 00000000 00:00 0 /bin/program", "7f000000-7f001000 rw-p 00000000 00:00 0"]
    for name, file in {"/bin/program": program, **mapped}.items():
        (folder / "root" / name.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / "root" / name.lstrip("/"))
        lines.append(f"7f000000-7f001000 r-xp 00000000 00:00 0    {name}")
    (folder / "exe").symlink_to("/bin/program")
    (folder / "auxv").write_bytes(auxv(secure=secure))
    (folder / "maps").write_text("\n".join(lines) + "\n")
    (folder / "environ").write_text(environ)
    for name in ("limits", "status", "cgroup", "mountinfo"):
        (folder / name).write_text(GOOD[f"proc/self/{name}"])
    return host


def malloc_finding(host: Host) -> Finding:
    return one(doctor.of_running(host.process(7), native.library()), "malloc")


@pytest.fixture
def libraries(tmp_path: Path) -> dict[str, Path]:
    plain = compile_c(tmp_path / "plain.so", "int nothing(void) { return 0; }\n", "-shared", "-fPIC")
    other = compile_c(tmp_path / "other.so", EXPORTED, "-shared", "-fPIC")
    return {"plain": plain, "other": other, "hakmem": native.library()}


def test_malloc_of_a_process_is_the_first_preloaded(tmp_path: Path, libraries: dict[str, Path]) -> None:
    program = compile_c(tmp_path / "program", PRINTS)
    mapped = {
        "/lib/libother.so": libraries["other"],
        "/lib/libc.so.6": libraries["other"],
        "/opt/libhakmem.so.1": libraries["hakmem"],
        "/lib/libplain.so": libraries["plain"],
    }
    preload = "LD_PRELOAD=/lib/libplain.so:/opt/libhakmem.so.1:/lib/libother.so\0"
    host = running(tmp_path / "preloaded", program, mapped, preload)
    assert malloc_finding(host) == Finding("malloc", "ok", "hakmem's (/opt/libhakmem.so.1)")
    del mapped["/opt/libhakmem.so.1"]
    assert malloc_finding(running(tmp_path / "other", program, mapped)).fact == "that of /lib/libother.so"
    del mapped["/lib/libother.so"]
    finding = malloc_finding(running(tmp_path / "none", program, mapped))
    assert (finding.level, finding.fact) == ("problem", "that of /lib/libc.so.6")


@pytest.mark.parametrize("own", [EXPORTED, HIDDEN])
def test_a_process_with_a_malloc_of_its_own(tmp_path: Path, libraries: dict[str, Path], own: str) -> None:
    program = compile_c(tmp_path / "program", PRINTS + own)
    host = running(
        tmp_path / "root", program, {"/opt/libhakmem.so.1": libraries["hakmem"]}, "LD_PRELOAD=libhakmem.so.1\0"
    )
    finding = one(doctor.of_running(host.process(7), native.library()), "program")
    assert (finding.level, "/bin/program has a malloc of its own" in finding.fact) == ("problem", True)


def test_a_process_of_another_c_library_than_the_commands(tmp_path: Path) -> None:
    """It has the library that is made for that one."""
    program = compile_c(tmp_path / "program", PRINTS, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
    library = compile_c(tmp_path / "library.so", EXPORTED + NOTED, "-shared", "-fPIC", "-nostdlib")
    host = running(tmp_path / "root", program, {"/lib/libhakmem.so": library}, "LD_PRELOAD=/lib/libhakmem.so\0")
    assert {finding.level for finding in doctor.of_running(host.process(7), native.library())} == {"ok"}
    assert malloc_finding(host) == Finding("malloc", "ok", "hakmem's (/lib/libhakmem.so)")


def test_a_process_of_another_c_library_whose_hakmem_was_replaced_since(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", PRINTS, "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1")
    host = running(tmp_path / "root", program, {}, "LD_PRELOAD=/lib/libhakmem.so\0")
    with open(tmp_path / "root/proc/7/maps", "a") as maps:
        maps.write("7f000000-7f001000 r-xp 00000000 00:00 0    /lib/libhakmem.so (deleted)\n")
    assert {finding.level for finding in doctor.of_running(host.process(7), native.library())} == {"ok"}
    assert malloc_finding(host) == Finding("malloc", "ok", "hakmem's (/lib/libhakmem.so (deleted))")


def test_a_module_that_has_hakmem_for_itself(tmp_path: Path, libraries: dict[str, Path]) -> None:
    """As one in Rust, whose allocator nobody else calls."""
    program = compile_c(tmp_path / "program", PRINTS)
    module = compile_c(tmp_path / "module.so", NOTED, "-shared", "-fPIC")
    host = running(tmp_path / "root", program, {"/opt/module.so": module, "/lib/libc.so.6": libraries["other"]})
    finding = malloc_finding(host)
    assert (finding.level, finding.fact) == ("problem", "that of /lib/libc.so.6")


def test_the_memory_limit_of_a_container_that_is_looked_at_from_its_host(tmp_path: Path) -> None:
    host = running(tmp_path, Path("/bin/cat").resolve(), {})
    (tmp_path / "proc/7/cgroup").write_text("0::/docker/1\n")
    (tmp_path / "proc/7/mountinfo").write_text(V2.replace("0:26 / ", "0:26 /docker/1 "))
    for place, limit in ((tmp_path / "sys/fs/cgroup", 1 << 10), (host.process(7).path("sys/fs/cgroup"), 1 << 20)):
        place.mkdir(parents=True)
        (place / "memory.max").write_text(f"{limit}\n")
        (place / "memory.current").write_text("0\n")
    finding = one(doctor.of_surroundings(host.process(7)), "memory limit")
    assert finding.fact == "1 MiB, 0% of it in use (/sys/fs/cgroup)"


def test_a_process_with_more_rights(tmp_path: Path) -> None:
    host = running(tmp_path / "root", Path("/bin/cat").resolve(), {}, secure=1)
    assert one(doctor.of_running(host.process(7), native.library()), "rights").level == "problem"


def test_a_process_with_more_rights_that_is_linked_with_hakmem(tmp_path: Path) -> None:
    """It needs no LD_PRELOAD."""
    host = running(tmp_path / "root", compile_c(tmp_path / "program", PRINTS + EXPORTED + NOTED), {}, secure=1)
    assert {finding.level for finding in doctor.of_running(host.process(7), native.library())} == {"ok"}


@pytest.mark.parametrize(("own", "options"), [(EXPORTED, ()), (HIDDEN, ("-static",))])
def test_what_tells_a_linked_program_is_read_once(
    own: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as large as a static program is."""
    host = running(tmp_path / "root", compile_c(tmp_path / "program", PRINTS + own + NOTED, *options), {})
    asked: list[str] = []
    monkeypatch.setattr(ctl, "has_note", lambda path: asked.append(path) or True)
    assert malloc_finding(host) == Finding("malloc", "ok", "hakmem's (/bin/program)")
    assert asked == [str(host.process(7).path("/bin/program"))]


def test_a_process_with_too_many_mappings(tmp_path: Path) -> None:
    host = running(tmp_path / "root", Path("/bin/cat").resolve(), {})
    assert one(doctor.of_running(host.process(7), native.library()), "its mappings").level == "ok"
    (tmp_path / "root/proc/sys/vm/max_map_count").write_text("3")
    assert one(doctor.of_running(host.process(7), native.library()), "its mappings").level == "problem"


def test_a_process_that_is_not_there_or_not_to_be_looked_at(tmp_path: Path) -> None:
    host = running(tmp_path, Path("/bin/cat").resolve(), {})
    with pytest.raises(LabError, match="there is no process 8"):
        host.process(8)
    (tmp_path / "proc/7/auxv").write_bytes(b"")
    with pytest.raises(LabError, match="process 7 can't be looked at"):
        host.process(7)


# ---- As a user types it ----------------------------------------------------------------------------------------------


def hakmem(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hakmem", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_a_process_that_runs_on_hakmem() -> None:
    words = [
        sys.executable,
        "-m",
        "hakmem",
        "run",
        "--set",
        "KNOBS=decay_ms=700",
        "sh",
        "-c",
        "echo started; read line",
    ]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin and child.stdout
        assert child.stdout.readline() == "started\n"
        done = hakmem("doctor", "--pid", str(child.pid), "--json", "-")
        said = hakmem("doctor", "--pid", str(child.pid)).stdout
        child.stdin.write("\n")
    found = json.loads(done.stdout)
    assert (done.returncode, found["works"]) == (0, True), done
    malloc = [Finding(**finding) for finding in found["findings"] if finding["topic"] == "malloc"]
    assert malloc == [Finding("malloc", "ok", f"hakmem's ({native.library()})")]
    facts = {finding["topic"]: finding["fact"] for finding in found["findings"]}
    assert facts["version"] == native.version(native.library())
    assert facts["its settings"] == "HAKMEM_KNOBS=decay_ms=700"
    assert said.endswith(f"process {child.pid} runs on hakmem: nothing stands against hakmem\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="reads what a process has mapped")
@pytest.mark.parametrize("name", ["other.so", "libhakmem.so"])
def test_a_library_that_was_replaced_since_it_was_mapped(tmp_path: Path, name: str) -> None:
    """As in an upgrade: what the process has is not what the path leads to."""
    copy, other = tmp_path / name, tmp_path / "next"
    for path in (copy, other):
        shutil.copy(native.library(), path)
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "LD_PRELOAD": str(copy)}) as child:
        while str(copy) not in Path(f"/proc/{child.pid}/maps").read_text():
            time.sleep(0.01)
        before = hakmem("doctor", "--pid", str(child.pid))
        other.rename(copy)
        after = hakmem("doctor", "--pid", str(child.pid))
        child.kill()
    assert (before.returncode, after.returncode) == (0, 0), after
    assert after.stdout.replace(" (deleted)", "") == before.stdout
    assert re.search(rf"^ok +version +{re.escape(native.version(native.library()))}$", after.stdout, re.MULTILINE)


def test_a_setting_that_is_ignored_is_told() -> None:
    """As the process itself has said when it began, perhaps into a log."""
    environment = {"LD_PRELOAD": str(native.library()), "HAKMEM_THP": "On", "HAKMEM_DECAY_MS": "3"}
    with subprocess.Popen(["sleep", "600"], env={**os.environ, **environment}, stderr=subprocess.DEVNULL) as child:
        said = hakmem("doctor", "--pid", str(child.pid)).stdout
        child.kill()
    assert re.search(r"^note +setting +ignored: unknown setting HAKMEM_DECAY_MS=3 ", said, re.MULTILINE), said
    assert re.search(r"^note +setting +ignored: setting HAKMEM_THP=On: expected off, auto ", said, re.MULTILINE), said
    of_command = list(doctor.of_command(["sleep", "1"], native.library(), {**os.environ, "HAKMEM_THP": "On"}))
    assert "HAKMEM_THP=On" in one(iter(of_command), "setting").fact
    by_env = list(doctor.of_command(["env", "HAKMEM_THP=Off", "sleep", "1"], native.library(), dict(os.environ)))
    assert "HAKMEM_THP=Off" in one(iter(by_env), "setting").fact
    unset = doctor.of_command(
        ["env", "-u", "HAKMEM_THP", "sleep", "1"], native.library(), {"HAKMEM_THP": "On", **os.environ}
    )
    assert not [finding for finding in unset if finding.topic == "setting"]
    kept = doctor.of_command(["env", "HAKMEM_DEEPBIND=1", "sleep", "1"], native.library(), dict(os.environ))
    assert one(kept, "plug-ins").level == "note"


def test_files_that_settings_name_stay_as_they_are(tmp_path: Path) -> None:
    """They are another process's, and may be files that it has no right to."""
    names = {name: tmp_path / name for name in ("stats", "profile", "metrics")}
    for file in names.values():
        file.write_text("precious")
    wanted = {"STATS": f"text:{names['stats']}", "HEAP_PROFILE": f"1:{names['profile']}", "CTL": "1"}
    own = {f"HAKMEM_{name}": value for name, value in wanted.items()} | {"HAKMEM_METRICS_FILE": str(names["metrics"])}
    given = {**os.environ, **own}
    assert settings.ignored(given, native.library()) == settings.ignored(given, native.library(), of_another=True) == []
    assert settings.ignored({"HAKMEM_POLICY": "/no/such"}, native.library(), of_another=True) == []
    list(doctor.of_command(["sleep", "1"], native.library(), given))
    assert {file.read_text() for file in tmp_path.iterdir()} == {"precious"}
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(names)


def test_a_process_that_has_ended_is_told() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    said = hakmem("doctor", "--pid", str(child.pid))
    child.wait()
    assert said.stderr == f"hakmem: process {child.pid} has ended, and waits for its parent\n", said


def test_a_script_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter would say so as soon as it begins."""
    monkeypatch.chdir(tmp_path)
    missing = hakmem("doctor", "--", doctor_python(), "service.py", "8080")
    assert (
        missing.returncode == 1 and "PROBLEM script" in missing.stdout and "service.py: no such file" in missing.stdout
    )
    (tmp_path / "service.py").touch()
    for words in (["service.py", "8080"], ["-c", "pass"], ["-m", "http.server"], []):
        assert hakmem("doctor", "--", doctor_python(), *words).returncode == 0


def doctor_python() -> str:
    return "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable


@pytest.mark.parametrize("options", [(), ("-static", "-s")])
def test_a_process_that_is_linked_with_hakmem(options: tuple[str, ...], tmp_path: Path) -> None:
    root = native.checkout()
    if root is None:
        pytest.skip("the object is not part of the package")
    waits = PRINTS.replace("return 3", "fflush(stdout); return getchar() < 0")
    program = compile_c(tmp_path / "program", waits, *options, str(root / "build/release/hakmem.o"), "-pthread")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "main\n"
        done = hakmem("doctor", "--pid", str(child.pid))
        child.communicate("\n")
    assert done.returncode == 0, done
    assert f"hakmem's ({program})\n" in done.stdout and "PROBLEM" not in done.stdout
    assert "another build than this command's" in done.stdout


@pytest.mark.parametrize(
    ("options", "works"),
    [
        (("hakmem.o",), True),
        (("hakmem.o", "-Wl,--exclude-libs,ALL"), True),
        (("libhakmem.a", "-Wl,--undefined=malloc"), True),
        (("libhakmem.a", "-Wl,--undefined=malloc", "-static", "-Wl,--exclude-libs,ALL"), True),
        (("libhakmem.a", "-Wl,--undefined=malloc", "-Wl,--exclude-libs,ALL"), False),
    ],
)
def test_a_file_that_is_linked_with_hakmem(options: tuple[str, ...], works: bool, tmp_path: Path) -> None:
    """Libraries have the C library's malloc where it is hidden, and not where it isn't."""
    root = native.checkout()
    if root is None:
        pytest.skip("the object is not part of the package")
    main = '#include <stdio.h>\nint main(void) { puts("main"); fflush(stdout); return getchar() < 0; }'
    linked = [str(root / "build/release" / option) if option[0] != "-" else option for option in options]
    program = compile_c(tmp_path / "program", main, *linked, "-pthread")
    done = hakmem("doctor", "--", str(program))
    assert (done.returncode == 0) == works, done
    assert ("run it as it is" if works else "hides its malloc") in done.stdout
    assert ("link hakmem.o in place of libhakmem.a" in done.stdout) == (not works)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and child.stdout.readline() == "main\n"
        running = hakmem("doctor", "--pid", str(child.pid))
        child.communicate("\n")
    assert (running.returncode == 0) == works, running
    assert ("hides its malloc" in running.stdout) == (not works)


def test_a_process_that_does_not() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        done = hakmem("doctor", "--pid", str(child.pid))
        child.communicate()
    assert done.returncode == 1
    assert done.stdout.endswith(f"\nprocess {child.pid}: 1 problem stands against hakmem\n")


def test_the_verdict_is_the_exit_status(tmp_path: Path) -> None:
    good = hakmem("doctor", "--", "/bin/cat")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.endswith("\n/bin/cat: nothing stands against hakmem\n")
    program = compile_c(tmp_path / "program", PRINTS, "-static")
    bad = hakmem("doctor", str(program))
    assert (bad.returncode, bad.stderr) == (1, "")
    assert bad.stdout.endswith(f"\n{program}: 1 problem stands against hakmem\n")
    plain = json.loads(hakmem("doctor", "--json", "-", str(program)).stdout)
    assert plain["works"] is False
    assert set(plain["findings"][0]) == {field.name for field in dataclasses.fields(Finding)}


AUDITOR = """
#include <fcntl.h>
unsigned la_version(unsigned version) { open("RAN", O_CREAT | O_WRONLY, 0600); return version; }
"""


@pytest.mark.parametrize("kind", ["linker", "auditor", "environment"])
def test_nothing_is_run_that_a_program_brings(kind: str, tmp_path: Path) -> None:
    """Who asks about it may not want to run it."""
    ran, brought, program = tmp_path / "ran", tmp_path / "brought", tmp_path / "program"
    if kind == "linker":
        brought.write_text(f"#!/bin/sh\ntouch {ran}\n")
        brought.chmod(0o755)
        why = f", {brought}, is not the system's: not asked"
        compile_c(program, PRINTS, f"-Wl,--dynamic-linker={brought}")
    else:
        why = "would run libraries that are named to it (DT_AUDIT, LD_AUDIT): not asked"
        compile_c(brought, AUDITOR.replace("RAN", str(ran)), "-shared", "-fPIC")
    if kind == "auditor":
        compile_c(program, PRINTS, f"-Wl,--audit={brought}")
    elif kind == "environment":
        program.write_text(f"#!/usr/bin/env -S LD_AUDIT={brought} /bin/cat\n")
        program.chmod(0o755)
    done = hakmem("doctor", "--", str(program))
    assert (done.returncode, ran.exists()) == (0, False), done
    assert why in done.stdout and "takes hakmem" not in done.stdout


def test_bad_input_is_one_line() -> None:
    for words in (["--pid", "0"], ["--pid", "x"], ["--pid", "1", "ls"], ["no-such-command"], ["--pid", str(1 << 30)]):
        done = hakmem("doctor", *words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("hakmem: ") and done.stderr.count("\n") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="unmounts a file system")
def test_a_machine_without_proc() -> None:
    words = ["unshare", "--mount", "sh", "-c", 'umount -l /proc || exit 77; exec "$@"', "sh", sys.executable, "-m"]
    done = subprocess.run([*words, "hakmem", "doctor", "--", "ls"], capture_output=True, text=True)
    if done.returncode in (1, 77):
        pytest.skip(f"/proc can't be unmounted: {done.stderr}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "mount /proc" in done.stdout and re.search(r"^ok +command +.*ls takes hakmem$", done.stdout, re.MULTILINE)
