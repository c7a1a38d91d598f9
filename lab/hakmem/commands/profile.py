"""hakmem profile: who allocates, in a run of a command or in profiles that were written before."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hakmem.commands.record import FACTORS

if TYPE_CHECKING:
    from hakmem.profile import Profile

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SHOWN = 15


def to_bytes(ctx: click.Context, param: click.Parameter, value: str) -> int:
    number = value.rstrip("".join(FACTORS))
    factor = FACTORS.get(value[len(number) :])
    if not number.isdecimal() or factor is None or int(number) == 0:
        raise click.BadParameter(f"{value!r}: expected a number of bytes, with K, M or G")
    return int(number) * factor


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "output", metavar="PREFIX", default="profile", show_default=True, help="Begins the names of the files."
)
@click.option("--interval", callback=to_bytes, default="512K", show_default=True, help="Bytes from sample to sample.")
@click.option("--read", "raw", type=FILE, multiple=True, help="Reads what HAKMEM_PROF wrote, in place of a command.")
@click.option("--diff", nargs=2, type=FILE, metavar="BEFORE AFTER", help="Shows what AFTER has more than BEFORE.")
@click.argument("words", nargs=-1, metavar="-- COMMAND...", type=click.UNPROCESSED)
def command(
    output: str, interval: int, raw: tuple[Path, ...], diff: tuple[Path, Path] | None, words: tuple[str, ...]
) -> int:
    """Runs a command with the heap profile on, and writes, for each of its processes that came to its end,
    PREFIX.PID.pb.gz for pprof, PREFIX.PID.html with a flame graph, and PREFIX.PID.prof as hakmem wrote it.

    With --read or --diff it runs nothing, and writes one file of each kind.

    Exit status: the command's own, 128 + N when signal N killed it; 2 when there is no profile.
    """
    from hakmem import profile
    from hakmem.errors import LabError

    if sum(map(bool, (raw, diff, words))) != 1:
        raise LabError("expected one of: a command, --read FILE, --diff BEFORE AFTER")
    if diff:
        _write(profile.difference(profile.read(diff[0]), profile.read(diff[1])), output)
        return 0
    if raw:
        for path in raw:
            _write(profile.read(path), output if len(raw) == 1 else f"{output}.{path.stem}")
        return 0
    status, written = _run(words, output, interval)
    for path in written:
        _write(profile.read(path), str(path.with_suffix("")))
    return status


def _run(words: tuple[str, ...], output: str, interval: int) -> tuple[int, list[Path]]:
    import subprocess

    from hakmem import native, takeover
    from hakmem.commands.run import callers_environment
    from hakmem.errors import LabError

    library = native.library()
    pattern = Path(output).absolute()
    known = set(pattern.parent.glob(f"{pattern.name}.*.prof"))
    settings = {"HAKMEM_PROF": f"1:{pattern}.%p.prof", "HAKMEM_PROF_INTERVAL": str(interval)}
    file, ready = takeover.prepare(words, library, {**callers_environment(), **settings}, children=True)
    try:
        done = subprocess.run(words, executable=file, env=ready)
    except OSError as error:
        raise LabError(f"{words[0]}: {error.strerror}") from None
    written = sorted(set(pattern.parent.glob(f"{pattern.name}.*.prof")) - known)
    if not written:
        raise LabError(
            "no process wrote a profile: killed by a signal, ended by _exit, or without rights to write here"
        )
    return done.returncode if done.returncode >= 0 else 128 - done.returncode, written


def _write(profile: Profile, prefix: str) -> None:
    import sys

    from hakmem import pprof
    from hakmem.report import flame

    graph, page = Path(f"{prefix}.pb.gz"), Path(f"{prefix}.html")
    pprof.write(profile, graph)
    page.write_text(flame.render(profile))
    print(text(profile), file=sys.stderr)
    print(f"hakmem: {graph} (go tool pprof -http=: {graph}), {page}", file=sys.stderr)


def text(profile: Profile) -> str:
    from hakmem.profile import by_function
    from hakmem.report.flame import signed
    from hakmem.words import table

    total = profile.total
    lines = [
        f"{profile.name}: live {signed(total.live_bytes)} in {total.live_count:,.0f} blocks,"
        f" in all {signed(total.total_bytes)} in {total.total_count:,.0f}; {total.samples:,} samples"
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
