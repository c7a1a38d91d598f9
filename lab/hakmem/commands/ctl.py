"""hakmem ctl: asks and steers a running process."""

from __future__ import annotations

import click

from hakmem import arguments
from hakmem.finite import FiniteRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--timeout", "timeout_s", type=FiniteRange(min=0.01), help="Seconds to wait: 10, but not for a sleeper.")
@click.argument("pid", type=arguments.PID, metavar="PID")
@click.argument("words", nargs=-1, metavar="[REQUEST...]")
def command(timeout_s: float | None, pid: int, words: tuple[str, ...]) -> None:
    """Asks the process PID, which runs on hakmem, or tells it something, while it goes on.

    \b
    stats [text|json]   statistics of this moment
    metrics             the same as OpenMetrics text
    explain             where its resident memory is, as hakmem explain
    pins                whose blocks hold its pages, as hakmem pins
    pins on|off         the sampler for that: begin (with BYTES from run to run), stop
    purge               give all free memory back to the kernel
    knobs               numbers that can be set, with their bounds
    set KNOB=VALUE      set one
    try KNOB=VALUE      have the controller try a value, and keep it if it is better
    control             the state of the controller, and its last changes
    profile on|off      the heap profile: begin (with BYTES from sample to sample), stop
    profile dump        show it; `hakmem profile --read` makes a page of it
    help                what this process's hakmem knows; also without a request

    The process must be yours, or you root. It answers by a thread of its own, which it has when it has several
    threads and uses much memory, or was started with HAKMEM_CTL=1. Any other is made to start one: it does when it
    next asks for memory that its cache doesn't have, and ends it after a minute without a request.
    """
    import sys

    from hakmem import ctl, foreign

    if words == ("explain",):
        from hakmem import explain
        from hakmem.report import text

        text.write(explain.report(explain.of_process(pid), f"hakmem explain {pid}"), sys.stdout)
        return
    if words == ("pins",):
        from hakmem import explain, extras

        extras.expect("profile", "hakmem pins")
        from hakmem import pins
        from hakmem.report import text

        text.write(pins.report(pins.pins(explain.look(pid, "--pins")), f"hakmem pins {pid}"), sys.stdout)
        return
    if any(word.startswith("-") for word in words):
        raise click.UsageError("options stand before PID; `hakmem explain PID` and `hakmem pins PID` have more of them")
    if any(not word.isprintable() for word in words):
        raise click.UsageError("a request is made of plain words")
    from hakmem.top import resident_of
    from hakmem.words import amount

    before = resident_of(pid) if words == ("purge",) else None
    answer = ctl.ask(pid, " ".join(words) or "help", timeout_s, lambda text: click.echo(text, err=True))
    if before is not None and (after := resident_of(pid)) is not None:
        # The process itself counts pages, also those that have no memory any more.
        fell = f"resident memory: {amount(before, 'B')} before, {amount(after, 'B')} now"
        answer = f"{amount(max(before - after, 0), 'B')} given back; {fell}\n"
    if words == ("profile", "dump"):  # complete before any of it is shown, which takes as long as its reader
        answer = ctl.with_memory_map(answer, pid)
    sys.stdout.write(foreign.lines(answer))
