"""hakmem sweep: the best fixed setting, and what is to be gained."""

from __future__ import annotations

import click

from hakmem import output
from hakmem.finite import FiniteRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--side", "sides", multiple=True, metavar="NAME=SIDE", help="take part in the second stage: learned=POLICY=FILE"
)
@click.option("--knob", "wanted", multiple=True, metavar="NAME", help="sweep this knob, not all")
@click.option("--random", "random_count", type=click.IntRange(min=0), default=20, show_default=True, help="settings")
@click.option("--seed", type=int, default=1, show_default=True, help="of the random settings")
@click.option(
    "--screen", type=click.IntRange(min=1), default=1, show_default=True, help="runs of each setting at first"
)
@click.option(
    "-n", "--rounds", type=click.IntRange(min=1), default=10, show_default=True, help="runs of each that is left"
)
@click.option("--seconds", type=FiniteRange(0.1), default=0.5, show_default=True, help="a visit to a behaviour lasts")
@output.options
@click.argument(
    "what", nargs=-1, required=True, metavar="-- COMMAND... | bench NAME | behaviour NAME", type=click.UNPROCESSED
)
def command(
    sides: tuple[str, ...],
    wanted: tuple[str, ...],
    random_count: int,
    seed: int,
    screen: int,
    rounds: int,
    seconds: float,
    what: tuple[str, ...],
    **files: str | None,
) -> int:
    """Runs one case at very many settings of the knobs, with the controller off, and the best against the default.

    First every knob alone at several values, its bounds included, and random settings of all; then the default, the
    fastest, and the leanest that are no slower, in turns, and with them each --side (adaptive=ACE_ENABLED=1). A
    record is kept of the second stage; what the first one showed stands in its notes.

    Exit status: 0 when all was compared, 1 when a side failed, 130 when interrupted.
    """
    from hakmem import ab, ledger, machine, measure, native, progress, settings, sweep
    from hakmem.errors import LabError

    chosen = sweep.cases(what[1:] if what[:1] == ("--",) else what, seconds)
    if len(chosen) != 1:
        raise LabError("expected one case: the best setting of another is another")
    knobs = settings.knobs(native.library())
    for name in wanted:
        if name not in {knob.name for knob in knobs}:
            raise LabError(f"no knob {name!r}; there are {', '.join(knob.name for knob in knobs)}")
    knobs = [knob for knob in knobs if not wanted or knob.name in wanted]
    named = [side.partition("=") for side in sides]
    if any(not side for _, _, side in named):
        raise LabError("expected --side NAME=SIDE, such as adaptive=ACE_ENABLED=1")
    others = [ab.side(name, side) for name, _, side in named]
    default = sweep.fixed(sweep.DEFAULT, {})
    tried = [*sweep.single(knobs), *sweep.combined(knobs, random_count, seed)]
    start = machine.facts()
    with progress.shown() as on_step:
        case = chosen[0]
        first = measure.measure([sweep.shortened(case)], [default, *tried], screen, warmup=0, on_step=on_step)
    ranked = sweep.ranking(first, case.name)
    left = set(sweep.finalists(ranked))
    finalists = [variant for variant in tried if variant.name in left]
    with progress.shown() as on_step:
        done = measure.measure([case], [default, *finalists, *others], rounds, on_step=on_step)
    done.notes += sweep.screened(ranked)
    record = ledger.from_measurement(done, "sweep", start=start)
    output.finish(record, lambda kept: sweep.report(record, kept), **files)  # type: ignore[arg-type]
    return 130 if first.interrupted or done.interrupted else 1 if done.failures else 0
