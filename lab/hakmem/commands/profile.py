"""hakmem profile: who allocates, in a run of a command or in profiles that were written before."""

from __future__ import annotations

import glob
import secrets
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hakmem import arguments, files
from hakmem.finite import INTERVAL

if TYPE_CHECKING:
    from hakmem.process import Attended
    from hakmem.profile import Frame, Profile

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SHOWN = 15


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "prefix", metavar="PREFIX", help="Begins the names of the files; of a command's, 'profile' unless told."
)
@click.option("--interval", **INTERVAL, help="Bytes from sample to sample.")
@click.option(
    "--read", "raw", type=FILE, multiple=True, help="Reads what HAKMEM_HEAP_PROFILE wrote, in place of a command."
)
@click.option("--diff", nargs=2, type=FILE, metavar="BEFORE AFTER", help="Shows what AFTER has more than BEFORE.")
@click.option("--speedscope", is_flag=True, help="Also writes PREFIX.PID.speedscope.json.")
@click.option("--dhat", is_flag=True, help="Also writes PREFIX.PID.dhat.json, for valgrind's dh_view.html.")
@click.option("--json", "as_json", is_flag=True, help="With --read or --diff: prints JSON in place of the table.")
@click.argument("words", nargs=-1, metavar="-- COMMAND...", type=arguments.WORDS)
def command(
    prefix: str | None,
    interval: int,
    raw: tuple[Path, ...],
    diff: tuple[Path, Path] | None,
    speedscope: bool,
    dhat: bool,
    as_json: bool,
    words: tuple[str, ...],
) -> int:
    """Runs a command with the heap profile on, and writes, for each of its processes that came to its end,
    PREFIX.PID.pb.gz for pprof, PREFIX.PID.html with a flame graph, and PREFIX.PID.prof as hakmem wrote it.

    The table is of the process that was started, whatever programs it has become by exec: a shell script that ends in
    exec doesn't matter. Others have a line each, and those without a sample are counted and have no files.

    With --read or --diff it runs nothing, and prints the table to standard output; files it writes only with -o. Ctrl-C
    is for the command to decide on; where it ends by it, the profile until then is written.

    Allocations, what is live, and the peak are counted, in blocks; bytes follow from the mean size of samples. What
    functions have is an estimate from samples. Standard errors stand behind, in percent, from half a percent on.

    Exit status: the command's own, 128 + N when signal N killed it; 2 when there is no profile.
    """
    from hakmem import extras

    extras.expect("profile", "hakmem profile")
    from hakmem import profile
    from hakmem.errors import LabError

    if sum(map(bool, (raw, diff, words))) != 1:
        raise LabError("expected one of: a command, --read FILE, --diff BEFORE AFTER")
    if prefix is not None:
        files.expect_name(prefix, "-o")
    exports = [name for name, is_wanted in (("speedscope", speedscope), ("dhat", dhat)) if is_wanted]
    if as_json and words:
        raise LabError("--json is for --read and --diff: the command's own output would be among it")
    if exports and not words and prefix is None:
        raise LabError(f"--{exports[0]}: say -o PREFIX, by which the file's name is to begin")
    if diff:
        _check_all([prefix], exports)
        _show([profile.difference(profile.read(diff[0]), profile.read(diff[1]))], [prefix], exports, as_json)
        return 0
    if raw:
        several = prefix is not None and len(raw) > 1
        prefixes = [f"{prefix}.{path.stem}" if several else prefix for path in raw]
        _check_all(prefixes, exports)
        _show([profile.read(path) for path in raw], prefixes, exports, as_json)
        return 0
    prefix = prefix or "profile"
    _check(f"{prefix}.0", exports, prefix)
    command, written = _run(words, Path(prefix).absolute(), interval)
    _write_all(_read_all(written), command.pid, exports)
    return command.exit_status


def _files(prefix: str) -> tuple[Path, Path]:
    """For pprof, and the page."""
    return Path(f"{prefix}.pb.gz"), Path(f"{prefix}.html")


def _export(prefix: str, name: str) -> Path:
    return Path(f"{prefix}.{name}.json")


def _check_all(prefixes: Sequence[str | None], exports: Sequence[str]) -> None:
    from hakmem.errors import LabError

    named = [one for one in prefixes if one is not None]
    for one in named:
        _check(one, exports)
        if named.count(one) > 1:
            raise LabError(f"--read: several would become {one}.html; read one at a time, each with its own -o")


def _show(profiles: Sequence[Profile], prefixes: Sequence[str | None], exports: Sequence[str], as_json: bool) -> None:
    """Prints what was read, and puts the files that were asked for."""
    import json
    import sys

    from hakmem import foreign
    from hakmem.profile import plain

    for one, prefix in zip(profiles, prefixes, strict=True):
        if prefix is not None:
            _put(one, prefix, exports)
        if not as_json:
            print(foreign.lines(text(one)))
        if prefix is not None:
            print(_said_of_files(prefix), file=sys.stderr)
    if as_json:
        all_plain = [plain(one) for one in profiles]
        print(json.dumps(all_plain[0] if len(all_plain) == 1 else all_plain, indent=1))


def _said_of_files(prefix: str) -> str:
    graph, page = _files(prefix)
    return f"hakmem: {graph} (go tool pprof -http=: {graph}), {page}"


def _check(prefix: str, exports: Sequence[str], given: str = "") -> None:
    for file in (*_files(prefix), *(_export(prefix, name) for name in exports)):
        files.check(file, given)


def _run(words: tuple[str, ...], prefix: Path, interval: int) -> tuple[Attended, list[Path]]:
    import sys

    from hakmem import native, process, takeover
    from hakmem.commands.run import callers_environment
    from hakmem.errors import InterruptedEarly, LabError

    library = native.library()
    if "%p" in str(prefix):
        raise LabError(f"-o {prefix}: %p stands for a process id there, which the names get anyhow; leave it out")
    # Runs before and beside this one have processes of the same number, as in each container of an image.
    ending = f".{secrets.token_hex(4)}.prof"
    settings = {"HAKMEM_HEAP_PROFILE": f"1:{prefix}.%p{ending}", "HAKMEM_HEAP_PROFILE_INTERVAL": str(interval)}
    file, ready = takeover.prepare_child(words, library, {**callers_environment(), **settings})
    command = process.attend(words, ready, file)
    written = sorted(prefix.parent.glob(f"{glob.escape(prefix.name)}.*{ending}"))
    if not written and command.came:
        early = InterruptedEarly(f"interrupted: {words[0]} {command.how} before it could write a profile")
        if command.status < 0:
            early.exit_status = command.exit_status
        raise early
    if not written:
        late = f"a process that it left behind writes {prefix}.PID{ending} when it ends"
        perhaps = f", perhaps by _exit, or without rights to write here; {late}"
        why = " before it could" if command.status < 0 else perhaps
        raise LabError(f"no process wrote a profile: {words[0]} {command.how}{why}")
    if command.came:
        print(f"hakmem: interrupted: the profile is of what {words[0]} did until its end", file=sys.stderr)
    return command, written


def _read_all(written: Sequence[Path]) -> dict[Path, Profile]:
    """Those that are whole. A process may have been killed while it wrote, or write still; LabError if all have."""
    import sys

    from hakmem import profile
    from hakmem.errors import LabError

    profiles: dict[Path, Profile] = {}
    damaged: list[LabError] = []
    for path in written:
        try:
            profiles[path] = profile.read(path)
        except LabError as error:
            damaged.append(error)
    if not profiles:
        raise damaged[0]
    for one in damaged:
        print(f"hakmem: {one}", file=sys.stderr)
    return profiles


def _write_all(profiles: dict[Path, Profile], started: int, wanted: Sequence[str]) -> None:
    """The process that was started comes last; the one that allocated most where that one has written none."""
    import sys

    from hakmem import foreign
    from hakmem.report.flame import signed

    ordered = sorted(profiles, key=lambda path: (profiles[path].process == started, profiles[path].counted.total.bytes))
    *others, main = ordered
    if profiles[main].process != started:
        print(
            f"hakmem: process {started}, the one that was started, wrote none, perhaps because it ended by _exit;"
            f" the table is of process {profiles[main].process}",
            file=sys.stderr,
        )
    spoken = [path for path in others if profiles[path].total.samples]
    silent = [path for path in others if path not in spoken]
    for path in silent:
        path.unlink()
    named = [_named(profiles[path], path) for path in (*spoken, main)]  # before a page can't be written
    for one, prefix in named[:-1]:
        _put(one, prefix, wanted)
        said = foreign.line(f"process {one.process}, {one.program}: {signed(one.counted.total.bytes)} in all")
        print(f"hakmem: {said}: {_files(prefix)[1]}", file=sys.stderr)
    if silent:
        print(f"hakmem: {len(silent)} more had no sample, and have no files", file=sys.stderr)
    _write(*named[-1], wanted)


def _named(profile: Profile, path: Path) -> tuple[Profile, str]:
    """With the name that its file has from now on, in place of a former run's; and what its files' names begin with.
    What is damaged or has no sample takes nobody's place."""
    kept = path.replace(path.with_suffix("").with_suffix(".prof"))
    return replace(profile, name=kept.name), str(kept.with_suffix(""))


def _write(profile: Profile, prefix: str, wanted: Sequence[str]) -> None:
    """Puts its files, and shows it."""
    import sys

    from hakmem import foreign

    _put(profile, prefix, wanted)
    print(foreign.lines(text(profile)), file=sys.stderr)
    print(_said_of_files(prefix), file=sys.stderr)


def _put(profile: Profile, prefix: str, wanted: Sequence[str]) -> None:
    from hakmem import exports, pprof
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


def text(profile: Profile) -> str:
    from hakmem.profile import by_function, with_samples
    from hakmem.report.flame import estimate, said, said_of_temporaries, signed, when
    from hakmem.words import amount, table

    counted, total = profile.counted, profile.total
    lines = [
        f"{profile.name}, {profile.program}: live {said(counted.live)},"
        f" at the peak {said(profile.peak)}{when(profile)}, in all {said(counted.total)}",
        f"temporary, by estimate: {said_of_temporaries(total)};"
        f" {total.samples:,} samples, one in {amount(profile.interval_bytes, 'B')}",
    ]
    if profile.began_before:
        lines.append(f"{said(profile.began)} were live when the profile began, and have no function here")
    if not total.samples and not profile.is_difference:
        lines.append("no allocation was sampled: a smaller --interval sees more")
    if profile.lost_samples:
        lost = f"{profile.lost_samples:,} samples were lost"
        lines.append(f"{lost}, what functions have is too small: a larger --interval is needed")
    lines += [*profile.remarks, *profile.nameless]
    kept, noise = with_samples(by_function(profile))
    rows = [
        [
            _short(frame) if frame else "(no stack)",
            estimate(found.live_bytes, found.live_error),
            f"{found.live_count:,.0f}",
            estimate(found.total_bytes, found.total_error),
            frame.module if frame else "",
        ]
        for frame, found in kept[:SHOWN]
        if round(found.live_bytes) or round(found.total_bytes)  # not so where two profiles don't differ
    ]
    lines.append(table(["function", "live", "blocks, about", "in all", "file"], rows))
    if noise.samples and not profile.is_difference:
        lines.append(f"and functions with too few samples to tell: {signed(noise.total_bytes)} in all, together")
    return "\n".join(lines)


def _short(frame: Frame) -> str:
    place = frame.label.removeprefix(frame.name)
    room = max(60 - len(place), 20)
    return (frame.name if len(frame.name) <= room else f"{frame.name[: room - 1]}\N{HORIZONTAL ELLIPSIS}") + place
