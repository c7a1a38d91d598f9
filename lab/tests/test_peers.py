"""Peers: pins, refusal of what isn't what was pinned, and nothing half-made ever taken for a peer.

Registries are folders (file://) and little programs on a PATH of the test's own; what is built is a malloc of a few
lines.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hakmem import cli, native
from hakmem.errors import LabError
from hakmem.peers import catalogue, installing, store, takeover
from hakmem.peers.catalogue import PEERS, Peer
from hakmem.peers.recipes import Compile, Take
from hakmem.peers.sources import Crate, DistributionPackage, digest, upstream
from hakmem.peers.store import State
from hakmem.peers.workshop import TOOLS, Workshop, require

# A malloc that is the C library's under another name; it says that it is mimalloc 3.3.2.
MALLOC = """
#include <stddef.h>
#include <string.h>
void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t), *__libc_memalign(size_t, size_t);
void __libc_free(void *);
void *malloc(size_t n) { return __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return __libc_calloc(n, size); }
void *realloc(void *p, size_t n) { return __libc_realloc(p, n); }
void free(void *p) { __libc_free(p); }
void *aligned_alloc(size_t alignment, size_t n) { return __libc_memalign(alignment, n); }
int posix_memalign(void **p, size_t alignment, size_t n) { return (*p = __libc_memalign(alignment, n)) ? 0 : 12; }
size_t usable(size_t head) { return (head & ~7ul) - (head & 2 ? 16 : 8); }
size_t malloc_usable_size(void *p) { return p ? usable(((size_t *)p)[-1]) : 0; }
int mi_version(void) { return 30302; }
"""
RECIPE = Compile(files=("malloc.c",), flags="-O1", c_flags="-std=gnu11")


def archive(files: dict[str, str], folder: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(text.encode())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return buffer.getvalue()


def put_on(site: Path, crate: Crate, data: bytes) -> str:
    """Lays an archive where the registry at the address returned would have it."""
    path = site / crate.name / crate.version / "download"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return site.as_uri()


def crate_of(data: bytes) -> Crate:
    return Crate("tiny", "1.0.2+abc", hashlib.sha256(data).hexdigest())


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def silent(what: str, done: int = 0, total: int = 0) -> None:
    pass


@pytest.fixture(scope="session")
def without_cargo(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The folders of programs. One that has cargo has a folder of links to all others in its place."""
    folders = os.environ["PATH"].split(":")
    for i, folder in enumerate(folders):
        if os.path.exists(f"{folder}/cargo"):
            links = tmp_path_factory.mktemp("programs")
            for name in set(os.listdir(folder)) - {"cargo"}:
                (links / name).symlink_to(f"{folder}/{name}")
            folders[i] = str(links)
    return folders


@pytest.fixture
def root(tmp_path: Path, without_cargo: list[str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing installed, no cargo, and nothing in its cache."""
    monkeypatch.setattr(store, "root", lambda: tmp_path / "peers")
    monkeypatch.setenv("CARGO_HOME", str(tmp_path / "cargo"))
    monkeypatch.setenv("PATH", ":".join([str(tmp_path / "bin"), *without_cargo]))
    return tmp_path / "peers"


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    (tmp_path / "workshop").mkdir()
    return Workshop(tmp_path / "workshop", tmp_path / "log", 2, silent)


@pytest.fixture
def tiny(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Peer]:
    """A peer that can be installed, and the only one there is."""
    data = archive({"malloc.c": MALLOC}, "tiny-1.0.2+abc")
    crate = crate_of(data)
    (root / "sources").mkdir(parents=True)
    (root / "sources" / crate.file).write_bytes(data)
    peer = Peer("tiny", "3.3.2", crate, RECIPE, "mi_version")
    know(monkeypatch, peer)
    yield peer


def know(monkeypatch: pytest.MonkeyPatch, *peers: Peer) -> None:
    known = {peer.name: peer for peer in peers}
    monkeypatch.setattr(store, "PEERS", known)
    monkeypatch.setattr(installing, "PEERS", known)
    monkeypatch.setattr("hakmem.commands.peers.PEERS", known)


def install(*peers: Peer) -> list[installing.Outcome]:
    return list(installing.install(peers, 2, lambda peer: silent))


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        cli.main(["peers", *words])
    return int(ended.value.code or 0)


# ---- The catalogue ----


def test_the_peers_are_those_of_the_documents() -> None:
    assert set(PEERS) == {
        *("mimalloc", "mimalloc2", "snmalloc", "jemalloc", "tcmalloc"),
        *("gperftools", "rpmalloc", "hoard", "scudo", "hardened_malloc", "jemalloc-apt", "mimalloc-apt"),
    }


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_every_peer_is_pinned_and_can_be_recognised(peer: Peer) -> None:
    assert re.fullmatch(r"\d+\.\d+[\w.+-]*", peer.version)
    assert peer.marker and set(peer.recipe.tools) <= set(TOOLS)
    if isinstance(peer.source, Crate):
        assert re.fullmatch(r"[0-9a-f]{64}", peer.source.sha256)
        assert re.fullmatch(r"\d+\.\d+\.\d+(\+[\w.-]+)?", peer.source.version)
        assert peer.recipe.words
    else:
        assert peer.source.names and isinstance(peer.recipe, Take)


def test_one_crate_has_one_pin() -> None:
    pins = {
        (peer.source.name, peer.source.file, peer.source.sha256)
        for peer in PEERS.values()
        if isinstance(peer.source, Crate)
    }
    assert len(pins) == len({name for name, _, _ in pins})


def test_no_peer_is_tuned_to_this_machine() -> None:
    assert not [peer.name for peer in PEERS.values() if re.search(r"-m(arch|cpu|tune)=", " ".join(peer.recipe.words))]


# ---- Sources ----


def test_a_crate_is_downloaded_once_and_kept(root: Path, tmp_path: Path, workshop: Workshop) -> None:
    data = archive({"file": "text"}, "tiny-1.0.2+abc")
    crate = crate_of(data)
    address = put_on(tmp_path / "site", crate, data)
    kept = crate.fetch(root / "sources", workshop, address)
    assert kept.read_bytes() == data
    assert crate.fetch(root / "sources", workshop, "file:///nowhere") == kept


def test_a_crate_is_unpacked(root: Path, tmp_path: Path, workshop: Workshop) -> None:
    data = archive({"folder/file": "text"}, "tiny-1.0.2+abc")
    crate = crate_of(data)
    delivery = crate.deliver(root / "sources", workshop, put_on(tmp_path / "site", crate, data))
    assert (delivery.folder / "folder" / "file").read_text() == "text"
    assert (delivery.source, delivery.sha256) == ("crate tiny 1.0.2", crate.sha256)


def test_a_damaged_download_is_refused_and_not_kept(root: Path, tmp_path: Path, workshop: Workshop) -> None:
    data = archive({"file": "text"}, "tiny-1.0.2+abc")
    crate = crate_of(data)
    address = put_on(tmp_path / "site", crate, data[:-1])
    with pytest.raises(LabError, match=rf"tiny-1\.0\.2\+abc\.crate has SHA-256 .*, expected {crate.sha256}: refused"):
        crate.fetch(root / "sources", workshop, address)
    assert not list((root / "sources").iterdir())


def test_a_damaged_archive_on_the_shelf_is_fetched_again(root: Path, tmp_path: Path, workshop: Workshop) -> None:
    data = archive({"file": "text"}, "tiny-1.0.2+abc")
    crate = crate_of(data)
    (root / "sources").mkdir(parents=True)
    (root / "sources" / crate.file).write_bytes(b"damaged")
    kept = crate.fetch(root / "sources", workshop, put_on(tmp_path / "site", crate, data))
    assert kept.read_bytes() == data


def test_what_is_not_there_is_one_line_with_the_address(root: Path, workshop: Workshop) -> None:
    with pytest.raises(LabError, match=r"^can't download file:///nowhere/tiny/1\.0\.2%2Babc/download: .+$"):
        crate_of(b"").fetch(root / "sources", workshop, "file:///nowhere")


def test_cargo_fetches_where_there_is_cargo(root: Path, tmp_path: Path, workshop: Workshop) -> None:
    data = archive({"file": "text"}, "tiny-1.0.2+abc")
    crate = crate_of(data)
    (tmp_path / "archive").write_bytes(data)
    script = f"""
[ "$1" = fetch ] && grep -qx 'tiny = "=1.0.2"' "$3" && mkdir -p "$CARGO_HOME/registry/cache/site" &&
    cp {tmp_path}/archive "$CARGO_HOME/registry/cache/site/{crate.file}" """
    program(tmp_path / "bin", "cargo", script)
    assert crate.fetch(root / "sources", workshop, "file:///nowhere").read_bytes() == data


def test_a_cargo_that_fails_is_not_the_end(root: Path, tmp_path: Path, workshop: Workshop) -> None:
    data = archive({"file": "text"}, "tiny-1.0.2+abc")
    crate = crate_of(data)
    program(tmp_path / "bin", "cargo", "echo no network >&2; exit 101")
    assert crate.fetch(root / "sources", workshop, put_on(tmp_path / "site", crate, data)).read_bytes() == data
    assert "no network" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("1:19.1.7-3~deb12u1", "19.1.7"),
        ("2.10-1", "2.10"),
        ("2.0.9+ds-2", "2.0.9"),
        ("1.2-3-4", "1.2-3"),
        ("7", "7"),
    ],
)
def test_upstream_version(version: str, expected: str) -> None:
    assert upstream(version) == expected


APT_HAS_NEW_NAME = '[ "$1 $2" = "download newname" ] || exit 100; echo deb > newname_2.5-1_any.deb'
DPKG = '[ "$1" = --field ] && echo 1:2.5-1 || { mkdir -p "$3/usr"; echo library > "$3/usr/libtiny.so.4.5"; }'


def test_a_package_is_unpacked_under_the_first_name_there_is(root: Path, tmp_path: Path, workshop: Workshop) -> None:
    program(tmp_path / "bin", "apt-get", APT_HAS_NEW_NAME)
    program(tmp_path / "bin", "dpkg-deb", DPKG)
    delivery = DistributionPackage(("oldname", "newname", "other")).deliver(root, workshop)
    assert (delivery.version, delivery.source) == ("2.5", "package newname 1:2.5-1")
    assert delivery.sha256 == hashlib.sha256(b"deb\n").hexdigest()
    assert Take("libtiny.so.4.*").build(delivery.folder, workshop).read_text() == "library\n"
    with pytest.raises(LabError, match=r"^the package has 0 files like libother\.so, expected one$"):
        Take("libother.so").build(delivery.folder, workshop)


def test_root_updates_the_lists_of_apt(
    root: Path, tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    updated = tmp_path / "updated"
    program(
        tmp_path / "bin",
        "apt-get",
        f'[ "$1" = update ] && exec touch {updated}\n[ -e {updated} ] || exit 100\n{APT_HAS_NEW_NAME}',
    )
    program(tmp_path / "bin", "dpkg-deb", DPKG)
    assert DistributionPackage(("newname",)).deliver(root, workshop).version == "2.5"


def test_others_are_told_what_to_type(
    root: Path, tmp_path: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    program(tmp_path / "bin", "apt-get", "exit 100")
    program(tmp_path / "bin", "sudo", "exit 1")
    with pytest.raises(LabError, match=r"^apt-get can't download newname; type: sudo apt-get update$"):
        DistributionPackage(("newname",)).deliver(root, workshop)


def test_no_apt_is_one_line(root: Path, workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LabError, match=r"^libtiny is a package of Debian and Ubuntu, and there is no apt-get here$"):
        DistributionPackage(("libtiny",)).deliver(root, workshop)


# ---- Building ----


def test_missing_tools_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("CXX", "clang++-99 -v")
    with pytest.raises(LabError, match=r"^cc and clang\+\+-99 and cmake not found; .*install -y gcc g\+\+ cmake$"):
        require(("c", "c++", "cmake"))


def test_flags_of_the_caller_stay_out(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-O0")
    monkeypatch.setenv("CC", "kept")
    assert workshop.run("sh", "-c", 'echo "$CC$CFLAGS"') == "kept\n"


def test_a_command_that_fails_says_why(workshop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(LabError, match=r"^sh ended with 3: x\.c:1: error: no such thing$"):
        workshop.run("sh", "-c", "echo noise >&2; echo 'x.c:1: error: no such thing' >&2; exit 3")
    assert "noise" in (tmp_path / "log").read_text()


def test_a_peer_is_fetched_built_proved_and_kept(tiny: Peer, root: Path) -> None:
    (outcome,) = install(tiny)
    assert outcome.error is None and not outcome.was_there
    library = root / "tiny" / "libtiny.so"
    assert store.installed() == {"tiny": library}
    stamp = json.loads((root / "tiny" / "stamp.json").read_text())
    assert isinstance(tiny.source, Crate)
    assert stamp["version"] == "3.3.2" and stamp["source_sha256"] == tiny.source.sha256
    assert stamp["library_sha256"] == digest(library)
    assert stamp["flags"] == ["-O1", "-std=gnu11"] and stamp["compiler"]
    assert "malloc.c" in (root / "logs" / "tiny.log").read_text()
    assert not list((root / ".building").iterdir())
    (again,) = install(tiny)
    assert again.was_there


def test_sources_that_do_not_compile_are_no_peer(tiny: Peer, root: Path) -> None:
    broken = Peer("tiny", "3.3.2", tiny.source, Compile(files=("malloc.c",), flags="-include nothing.h"), "mi_version")
    (outcome,) = install(broken)
    assert outcome.error and "nothing.h" in outcome.error
    assert store.state(broken) is State.MISSING
    assert "nothing.h" in (root / "logs" / "tiny.log").read_text()


def test_one_that_fails_does_not_stop_the_others(tiny: Peer, tmp_path: Path) -> None:
    program(tmp_path / "bin", "apt-get", "exit 100")
    lost = Peer("lost", "1.0", DistributionPackage(("lost",)), Take("lost.so"), "lost")
    wrong = Peer("wrong", "9.9", tiny.source, RECIPE, "mi_version")
    of_lost, of_wrong, of_good = install(lost, wrong, tiny)
    assert of_lost.error
    assert of_wrong.error == "library.so says it is version 3.3.2, expected 9.9"
    assert of_good.error is None and list(store.installed()) == ["tiny"]


class Interrupted(Compile):
    """Is stopped when the library is there already."""

    def build(self, folder: Path, workshop: Workshop) -> Path:
        super().build(folder, workshop)
        raise KeyboardInterrupt


def test_an_interrupted_build_is_not_taken(tiny: Peer, root: Path) -> None:
    stopped = Peer("tiny", "3.3.2", tiny.source, Interrupted(RECIPE.files, RECIPE.flags, RECIPE.c_flags), "mi_version")
    with pytest.raises(KeyboardInterrupt):
        install(stopped)
    assert store.state(tiny) is State.MISSING and store.installed() == {}
    assert not (root / "tiny").exists()


def test_what_a_killed_build_left_is_not_taken_and_in_nobodys_way(tiny: Peer, root: Path) -> None:
    left = root / ".building" / "tiny" / "finished"
    left.mkdir(parents=True)
    (left / "stamp.json").write_text("{}")
    assert store.installed() == {}
    (outcome,) = install(tiny)
    assert outcome.error is None


def test_a_folder_without_a_stamp_is_damaged(tiny: Peer, root: Path) -> None:
    (root / "tiny").mkdir(parents=True)
    (root / "tiny" / "libtiny.so").write_bytes(b"half a library")
    assert store.state(tiny) is State.DAMAGED and store.installed() == {}
    (outcome,) = install(tiny)
    assert outcome.error is None and store.state(tiny) is State.INSTALLED


def test_a_library_that_changed_is_damaged(tiny: Peer, root: Path) -> None:
    install(tiny)
    with (root / "tiny" / "libtiny.so").open("ab") as library:
        library.write(b"!")
    assert store.state(tiny) is State.DAMAGED and store.installed() == {}


def test_another_recipe_or_version_is_outdated_and_replaced(tiny: Peer) -> None:
    install(tiny)
    other = Peer("tiny", "3.3.2", tiny.source, Compile(RECIPE.files, "-O2", RECIPE.c_flags), "mi_version")
    assert store.state(other) is State.OUTDATED
    assert store.state(Peer("tiny", "3.4", tiny.source, RECIPE, "mi_version")) is State.OUTDATED
    assert store.state(Peer("tiny", "3.3.2", crate_of(b"other"), RECIPE, "mi_version")) is State.OUTDATED
    (outcome,) = install(other)
    assert not outcome.was_there and outcome.error is None
    assert store.state(other) is State.INSTALLED


def test_a_place_that_cant_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "checkout", lambda: None)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LabError, match="can't write .*/file/hakmem/peers: Not a directory; XDG_CACHE_HOME="):
        with store.locked():
            pass


def test_who_waits_for_another_installation_says_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def second() -> None:
        with store.locked():
            pass

    with store.locked():
        other = threading.Thread(target=second, daemon=True)
        other.start()
        other.join(0.01)
        said = ""
        while other.is_alive() and not said:
            said = capsys.readouterr().err
        assert other.is_alive() and said == f"hakmem: another installation into {root} is waited for\n"
    other.join()


def test_what_interrupts_the_last_step_leaves_the_old_one_or_the_new_one(
    tiny: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(self: Path, target: Path) -> None:
        os.rename(self, target)
        os.kill(os.getpid(), signal.SIGINT)

    install(tiny)
    stamp = store.stamp(tiny.name)
    assert stamp is not None
    monkeypatch.setattr(Path, "rename", rename)
    (tmp_path / "made").mkdir()
    (tmp_path / "built.so").write_bytes(store.library(tiny.name).read_bytes())
    with pytest.raises(KeyboardInterrupt):
        store.keep(tmp_path / "made", tmp_path / "built.so", stamp)
    assert store.state(tiny) is State.INSTALLED


def test_an_installed_package_keeps_peers_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "checkout", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.root() == tmp_path / "hakmem" / "peers"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert store.root() == Path.home() / ".cache" / "hakmem" / "peers"
    monkeypatch.setattr(native, "checkout", lambda: tmp_path)
    assert store.root() == tmp_path / ".peers"


# ---- Takeover ----


def shared_object(folder: Path, source: str) -> Path:
    (folder / "source.c").write_text(source)
    library = folder / "library.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(folder / "source.c")], check=True)
    return library


def test_takeover_is_refused_to_a_library_without_malloc(tmp_path: Path) -> None:
    library = shared_object(tmp_path, "int mi_version(void) { return 30302; }")
    with pytest.raises(LabError, match=r"^malloc is not that of library\.so but of /.*libc.*$"):
        takeover.prove(library, "mi_version", "3.3.2")


def test_takeover_is_refused_to_a_library_with_half_a_family(tmp_path: Path) -> None:
    library = shared_object(tmp_path, re.sub(r"size_t malloc_usable_size.*", "", MALLOC))
    with pytest.raises(LabError, match=r"^malloc_usable_size is not that of library\.so but of /.*$"):
        takeover.prove(library, "mi_version", "3.3.2")


def test_takeover_is_refused_to_what_cannot_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_text("not a library")
    with pytest.raises(LabError, match=r"^malloc is not that of library\.so but of /.* \(.*cannot be preloaded.*\)$"):
        takeover.prove(library, "mi_version", "3.3.2")


def test_takeover_is_refused_to_another_allocator(tmp_path: Path) -> None:
    library = shared_object(tmp_path, MALLOC)
    with pytest.raises(LabError, match=r"^mallctl is not that of library\.so but of nothing$"):
        takeover.prove(library, "mallctl", "5.3.1")


def test_takeover_is_refused_to_another_version(tmp_path: Path) -> None:
    library = shared_object(tmp_path, MALLOC)
    takeover.prove(library, "mi_version", "3.3")
    with pytest.raises(LabError, match=r"^library\.so says it is version 3\.3\.2, expected 3\.3\.1$"):
        takeover.prove(library, "mi_version", "3.3.1")


def test_takeover_is_proved_with_the_settings_that_the_peer_asks_for(tmp_path: Path) -> None:
    broken = "char *getenv(const char *);\n" + MALLOC.replace(
        "return __libc_calloc(n, size);", 'return getenv("TINY") || n != 10 ? __libc_calloc(n, size) : (void *)0;'
    )
    library = shared_object(tmp_path, broken)
    with pytest.raises(
        LabError, match=r"^a program under library\.so ended with exit status 1: its malloc family gives wrong answers$"
    ):
        takeover.prove(library, "mi_version", "3.3.2")
    takeover.prove(library, "mi_version", "3.3.2", {"TINY": "1"})


def test_takeover_is_refused_to_a_malloc_that_crashes(tmp_path: Path) -> None:
    library = shared_object(
        tmp_path,
        MALLOC.replace("return __libc_calloc(n, size);", "return n == 10 ? (void *)8 : __libc_calloc(n, size);"),
    )
    with pytest.raises(LabError, match=r"^a program under library\.so was killed by signal 11$"):
        takeover.prove(library, "mi_version", "3.3.2")


# ---- The command ----


def test_list_names_all_with_their_state(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["glibc", *catalogue.PEERS]
    assert all("not installed" in line for line in lines[1:])


def test_without_a_word_it_lists(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert capsys.readouterr().out.startswith("glibc")


def test_install_says_what_it_did(tiny: Peer, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("install", "tiny", "-j", "1") == 0
    assert re.fullmatch(
        rf"tiny 3\.3\.2: installed and proved in \d+ s: {root}/tiny/libtiny\.so\n", capsys.readouterr().out
    )
    assert call("list") == 0
    assert re.search(
        rf"^tiny +3\.3\.2 +crate tiny 1\.0\.2 +installed +{root}/tiny/libtiny\.so$", capsys.readouterr().out, re.M
    )


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_build_shows_how_far_it_is(
    is_terminal: bool, tiny: Peer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each step; on a terminal one that moves, with the files that are done."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    shown: list[str] = []
    monkeypatch.setattr("rich.status.Status.update", lambda self, status: shown.append(status))
    assert call("install", "tiny", "-j", "1") == 0
    said = capsys.readouterr().err
    steps = ["fetching", "building", "proving"]
    if is_terminal:
        assert [f"tiny: {step}" for step in steps if f"tiny: {step}" in shown] == [f"tiny: {step}" for step in steps]
        assert "tiny: building, 1 of 1 files" in shown
    else:
        assert said == "".join(f"hakmem: tiny: {step}\n" for step in steps) and not shown


def test_compare_takes_what_the_distribution_has_built(
    tiny: Peer, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is fetched where it isn't yet; what can't be had is left out in a line; the first time it is offered."""
    know(monkeypatch, tiny, Peer("bad", "9.9", tiny.source, RECIPE, "mi_version"))
    monkeypatch.setattr("hakmem.peers.PEERS", {"tiny": tiny})
    monkeypatch.setattr(catalogue, "PACKAGED", ("tiny", "bad"))
    monkeypatch.setattr("shutil.which", lambda name, *_, **__: f"/usr/bin/{name}")

    def compare(*words: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            cli.main(["compare", "-n", "1", "--warmup", "0", *words, "--", "true"])
        assert ended.value.code == 0
        return capsys.readouterr()

    offer = "hakmem: --with hakmem,glibc,packaged takes in the distribution's jemalloc, mimalloc, tcmalloc"
    assert offer in compare()[1].splitlines()
    out, said = compare("--with", "glibc,packaged")
    assert re.search(r"^tiny ", out, re.MULTILINE) and "hakmem: left out: bad: " in said
    assert offer not in compare()[1].splitlines()  # there is a peer


def test_install_that_fails_ends_with_1_and_names_the_log(
    tiny: Peer, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    know(monkeypatch, Peer("bad", "9.9", tiny.source, RECIPE, "mi_version"), tiny)
    assert call("install") == 1
    bad, good = capsys.readouterr().out.splitlines()
    assert bad.startswith("bad: FAILED after ") and bad.endswith(f"(log: {root}/logs/bad.log)")
    assert good.startswith("tiny 3.3.2: installed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("install", "nobody"), f"hakmem: no peer 'nobody'; there are {', '.join(PEERS)}\n"),
        (
            ("install", "-j", "0"),
            "hakmem: Invalid value for '-j' / '--jobs': '0': expected a whole number from 1 to 1000000000\n",
        ),
        (("remove",), "hakmem: No such command 'remove'.\n"),
    ],
)
def test_bad_words_are_one_line(
    words: tuple[str, ...], said: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*words) == 2
    assert capsys.readouterr().err == said


@pytest.mark.long
def test_the_smallest_peer_is_built_from_its_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "root", lambda: tmp_path)
    (outcome,) = install(PEERS["rpmalloc"])
    assert outcome.error is None
    library = store.installed()["rpmalloc"]
    maps = subprocess.run(
        [sys.executable, "-c", "print(open('/proc/self/maps').read())"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    ).stdout
    assert str(library) in maps


def test_settings_that_a_peer_needs_reach_its_runs_and_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown on the C library under another name."""
    from hakmem import allocators, process

    allocator = allocators.Allocator("glibc", None, {"MALLOC_TOP_PAD_": "4096"})
    assert process.run(["sh", "-c", "echo $MALLOC_TOP_PAD_"], allocator).stdout == b"4096\n"
    assert allocators._peer("tcmalloc", Path("/lib/x.so")).settings == PEERS["tcmalloc"].settings != {}
