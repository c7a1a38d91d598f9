"""hakmem sweep: the best fixed setting, and what is to be gained."""

from __future__ import annotations

import click

from hakmem import arguments, output, places
from hakmem.finite import FiniteRange, WholeRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--side", "sides", multiple=True, metavar="NAME=SIDE", help="take part in the second stage: learned=POLICY=FILE"
)
@click.option("--knob", "wanted", multiple=True, metavar="NAME", help="sweep this knob, not all")
@click.option("--trials", type=WholeRange(min=1), default=100, show_default=True, help="settings that are tried")
@click.option(
    "--seed",
    type=click.IntRange(0, 2**32 - 1),  # as NumPy has them
    default=1,
    show_default=True,
    help="of the settings that chance picks",
)
@click.option("-n", "--rounds", type=WholeRange(min=1), default=10, show_default=True, help="runs of each that is left")
@click.option("--seconds", type=FiniteRange(0.1), default=0.5, show_default=True, help="a visit to a behaviour lasts")
@places.option
@output.options
@click.argument(
    "what",
    nargs=-1,
    required=True,
    metavar="-- COMMAND... | bench NAME,... | behaviour NAME,...",
    type=arguments.WORDS,
)
def command(
    sides: tuple[str, ...],
    wanted: tuple[str, ...],
    trials: int,
    seed: int,
    rounds: int,
    seconds: float,
    on: str | None,
    what: tuple[str, ...],
    **files: str | None,
) -> int:
    """Searches the best setting of the knobs for a program, or for several together, with the controller off.

    First --trials settings have one run each beside the default: knobs alone at several values, their bounds included;
    all of them at random; then what a sampler (TPE) chooses by what it has seen. Then the default, the fastest, and the
    leanest that are no slower run in turns, and with them each --side (adaptive=ACE_ENABLED=1). A record is kept of
    the second stage; what the first one showed stands in its notes.

    It says what the trials have bought: how much of all settings they are, and what the best of so many is expected
    to be.

    Ctrl-C keeps whole rounds of the second stage; before that it shows the best of the first one.

    Exit status: 0 when all was compared, 1 when a side failed, 130 when interrupted.
    """
    from hakmem import ab, extras, ledger, machine, measure, native, progress, settings, sweep
    from hakmem.errors import LabError

    extras.expect("sweep", "hakmem sweep")
    sweep.expect_no_knobs()
    cases = sweep.cases(what[1:] if what[:1] == ("--",) else what, seconds)
    knobs = settings.knobs(native.library())
    known = [knob.name for knob in knobs if knob.name not in sweep.UNRELATED]
    for name in wanted:
        if name not in known:
            raise LabError(f"no knob {name!r} to sweep; there are {', '.join(known)}")
    knobs = [knob for knob in knobs if not wanted or knob.name in wanted]
    named = [side.partition("=") for side in sides]
    if any(not name or not side for name, _, side in named):
        raise LabError("expected --side NAME=SIDE, such as adaptive=ACE_ENABLED=1")
    names = [sweep.DEFAULT, *(name for name, _, _ in named)]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise LabError(f"--side {twice}: there is one of that name")
    others = [ab.side(name, side) for name, _, side in named]
    search = sweep.Search(knobs, trials, seed)
    start = machine.facts()
    try:
        with places.opened(on) as place:
            with progress.shown() as on_step:
                sweep.run(search, [sweep.shortened(case) for case in cases], place, trials, on_step)
            finalists = [search.variants[name] for name in sweep.finalists(search.rows)]
            with progress.shown() as on_step:
                sides_of = [sweep.fixed(sweep.DEFAULT, {}), *finalists, *others]
                done = measure.measure(cases, sides_of, rounds, on_step=on_step, place=place)
    except (KeyboardInterrupt, LabError, OSError):
        for line in sweep.unfinished(search):  # no record has them
            click.echo(f"hakmem: {line}", err=True)
        raise
    done.notes += [*sweep.budget(search), *sweep.screened(search.rows)]
    record = ledger.from_measurement(done, "sweep", start=start)
    output.finish(record, lambda kept: sweep.report(record, kept), **files)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0
