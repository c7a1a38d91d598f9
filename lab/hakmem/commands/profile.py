"""hakmem profile: who allocates, in a run of a command or in profiles that were written before."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hakmem import files
from hakmem.finite import INTERVAL

if TYPE_CHECKING:
    from hakmem.profile import Profile

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SHOWN = 15


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "prefix", metavar="PREFIX", default="profile", show_default=True, help="Begins the names of the files."
)
@click.option("--interval", **INTERVAL, help="Bytes from sample to sample.")
@click.option(
    "--read", "raw", type=FILE, multiple=True, help="Reads what HAKMEM_HEAP_PROFILE wrote, in place of a command."
)
@click.option("--diff", nargs=2, type=FILE, metavar="BEFORE AFTER", help="Shows what AFTER has more than BEFORE.")
@click.option("--speedscope", is_flag=True, help="Also writes PREFIX.PID.speedscope.json.")
@click.option("--dhat", is_flag=True, help="Also writes PREFIX.PID.dhat.json, for valgrind's dh_view.html.")
@click.argument("words", nargs=-1, metavar="-- COMMAND...", type=click.UNPROCESSED)
def command(
    prefix: str,
    interval: int,
    raw: tuple[Path, ...],
    diff: tuple[Path, Path] | None,
    speedscope: bool,
    dhat: bool,
    words: tuple[str, ...],
) -> int:
    """Runs a command with the heap profile on, and writes, for each of its processes that came to its end,
    PREFIX.PID.pb.gz for pprof, PREFIX.PID.html with a flame graph, and PREFIX.PID.prof as hakmem wrote it.

    With --read or --diff it runs nothing, and writes one file of each kind. Ctrl-C is for the command to decide on;
    where it ends by it, the profile until then is written.

    Exit status: the command's own, 128 + N when signal N killed it; 2 when there is no profile.
    """
    from hakmem import extras

    extras.expect("profile", "hakmem profile")
    from hakmem import profile
    from hakmem.errors import LabError

    if sum(map(bool, (raw, diff, words))) != 1:
        raise LabError("expected one of: a command, --read FILE, --diff BEFORE AFTER")
    files.expect_name(prefix, "-o")
    exports = [name for name, is_wanted in (("speedscope", speedscope), ("dhat", dhat)) if is_wanted]
    if diff:
        _check(prefix, exports)
        _write(profile.difference(profile.read(diff[0]), profile.read(diff[1])), prefix, exports)
        return 0
    if raw:
        prefixes = [prefix] if len(raw) == 1 else [f"{prefix}.{path.stem}" for path in raw]
        for one in prefixes:
            _check(one, exports)
        for path, one in zip(raw, prefixes, strict=True):
            _write(profile.read(path), one, exports)
        return 0
    _check(f"{prefix}.0", exports)
    status, written = _run(words, Path(prefix).absolute(), interval)
    for path in written:
        _write(profile.read(path), str(path.with_suffix("")), exports)
    return status


def _files(prefix: str) -> tuple[Path, Path]:
    """For pprof, and the page."""
    return Path(f"{prefix}.pb.gz"), Path(f"{prefix}.html")


def _export(prefix: str, name: str) -> Path:
    return Path(f"{prefix}.{name}.json")


def _check(prefix: str, exports: Sequence[str]) -> None:
    for file in (*_files(prefix), *(_export(prefix, name) for name in exports)):
        files.check(file)


def _run(words: tuple[str, ...], prefix: Path, interval: int) -> tuple[int, list[Path]]:
    import sys

    from hakmem import native, process, takeover
    from hakmem.commands.run import callers_environment
    from hakmem.errors import LabError

    library = native.library()
    if "%p" in str(prefix):
        raise LabError(f"-o {prefix}: %p stands for a process id there, which the names get anyhow; leave it out")
    known = _profiles(prefix)
    settings = {"HAKMEM_HEAP_PROFILE": f"1:{prefix}.%p.prof", "HAKMEM_HEAP_PROFILE_INTERVAL": str(interval)}
    file, ready = takeover.prepare_child(words, library, {**callers_environment(), **settings})
    command = process.attend(words, ready, file)
    written = sorted(_profiles(prefix) - known)
    if not written:
        raise LabError(
            f"no process wrote a profile: {words[0]} {command.how}, perhaps by _exit, or without rights to write here"
        )
    if command.came:
        print(f"hakmem: interrupted: the profile is of what {words[0]} did until its end", file=sys.stderr)
    return command.exit_status, written


def _profiles(prefix: Path) -> set[Path]:
    return set(prefix.parent.glob(f"{glob.escape(prefix.name)}.*.prof"))


def _write(profile: Profile, prefix: str, wanted: Sequence[str]) -> None:
    import sys

    from hakmem import exports, foreign, pprof
    from hakmem.errors import LabError
    from hakmem.report import flame

    graph, page = _files(prefix)
    try:
        files.put(graph, pprof.encode(profile))
    except OSError as error:
        raise LabError(f"can't write {graph}: {error.strerror}") from None
    files.write(page, flame.render(profile))
    for name in wanted:
        files.write(_export(prefix, name), getattr(exports, name)(profile))
    print(foreign.lines(text(profile)), file=sys.stderr)
    print(f"hakmem: {graph} (go tool pprof -http=: {graph}), {page}", file=sys.stderr)


def text(profile: Profile) -> str:
    from hakmem.profile import by_function
    from hakmem.report.flame import signed
    from hakmem.words import table

    total = profile.total
    lines = [
        f"{profile.name}: live {signed(total.live_bytes)} in {total.live_count:,.0f} blocks,"
        f" at the peak {signed(total.peak_bytes)}, in all {signed(total.total_bytes)} in {total.total_count:,.0f},"
        f" temporary {signed(total.temporary_bytes)} in {total.temporary_count:,.0f};"
        f" {total.samples:,} samples"
    ]
    if profile.lost_samples:
        lines.append(
            f"{profile.lost_samples:,} samples were lost, figures are too small: a larger --interval is needed"
        )
    rows = [
        [
            frame.name[:60] if frame else "(no stack)",
            signed(found.live_bytes),
            f"{found.live_count:,.0f}",
            signed(found.total_bytes),
            frame.module if frame else "",
        ]
        for frame, found in by_function(profile)[:SHOWN]
    ]
    return "\n".join([*lines, table(["function", "live", "blocks", "in all", "file"], rows)])
