"""hakmem predict: what a command would take under other allocators, before it has run on any of them."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import arguments, files
from hakmem.errors import LabError
from hakmem.finite import FiniteRange, WholeRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "-n", "--rounds", type=WholeRange(min=1), default=6, show_default=True, help="runs of COMMAND, of each kind"
)
@click.option(
    "--replays", type=WholeRange(min=1), default=3, show_default=True, help="of its calls under each allocator"
)
@arguments.allocators_option(f"{arguments.NAMES}  [default: all that are installed]")
@click.option("--baseline", metavar="NAME", default="glibc", show_default=True, help="what COMMAND runs on now")
@click.option("--timeout", type=FiniteRange(min=0, min_open=True), metavar="SECONDS", help="for one run")
@files.json_option("the prediction")
@click.argument("words", nargs=-1, type=arguments.WORDS, metavar="-- COMMAND [ARGUMENT]...")
def command(
    rounds: int,
    replays: int,
    names: tuple[str, ...],
    baseline: str,
    timeout: float | None,
    json_file: Path | None,
    words: tuple[str, ...],
) -> None:
    """Predicts what COMMAND would take under other allocators, in time and peak memory, with intervals. COMMAND runs on
    the one that it is on now, and on no other, with empty standard input.

    It counts and times COMMAND's calls of malloc by size, makes them longer by a known time to learn how much of that
    reaches the wall clock, and replays the calls under each allocator. Also told is what an ideal allocator would
    leave: calls that take no time, and blocks that lie packed.

    `hakmem compare` measures what is predicted here.
    """
    import json

    from hakmem import allocators, native, output, predict, progress

    if not words:
        raise LabError("no command: expected `hakmem predict [OPTIONS] -- COMMAND [ARGUMENT]...`")
    native.expect_programs()
    incumbent, *more = allocators.resolve((baseline,))
    if more:
        raise LabError(f"--baseline {baseline}: expected the name of one allocator")
    peers = [one for one in allocators.resolve(names or ("all",)) if one != incumbent]
    with progress.shown() as on_step:
        found = predict.predict(
            words,
            incumbent,
            peers,
            rounds=rounds,
            replay_rounds=replays,
            timeout_s=timeout,
            on_step=on_step,
            tell=progress.tell,
        )
    plain = json.dumps(found.plain(), indent=1, allow_nan=False) + "\n"
    output.show(found.report(), None, None, plain=(json_file, plain))
