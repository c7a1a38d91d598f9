"""hakmem learn: a policy file from a run, or from several."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hakmem import arguments, files, output
from hakmem.finite import WholeRange

if TYPE_CHECKING:
    from hakmem import control

FEWEST_RUNS, USUAL_RUNS = 130, 200  # with fewer, not every value is tried


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-o", "policy_file", **files.FILE, help="[default: PROGRAM.policy]")
@click.option("--install", is_flag=True, help="Write it where HAKMEM_POLICY=auto finds it, in place of -o.")
@click.option(
    "--runs",
    type=WholeRange(min=FEWEST_RUNS),
    metavar="N",
    help=f"Try knobs between N runs of the command, at least {FEWEST_RUNS}; {USUAL_RUNS} tell more.",
)
@click.option(
    "--keep", metavar="NAME", callback=output.record_name, help="With --runs: keep the record of what decided."
)
@arguments.settings_option
@click.option("--any-program", is_flag=True, help="A policy for every program, not only for this one.")
@click.option("--statistics", "statistics_file", **files.FILE, help="Keep them: tune-log shows them.")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=arguments.WORDS)
def command(
    policy_file: Path | None,
    install: bool,
    runs: int | None,
    keep: str | None,
    settings: tuple[str, ...],
    any_program: bool,
    statistics_file: Path | None,
    words: tuple[str, ...],
) -> int:
    """Runs a command on hakmem to its end, and writes down where the controller has left the knobs.

    HAKMEM_POLICY=FILE starts from there and leaves it at that. A policy is of one version of hakmem and, by its build
    id, of one program; it has the knobs that the controller has turned. Where Ctrl-C ends the command, what was learned
    until then is written; not so with --runs.

    Without --runs the command has hakmem's thread (HAKMEM_BACKGROUND=1), and with it the controller counts processor
    time, as the kernel does; in a program that nothing is set for it has the clock, and an estimate of the kernel's
    time.

    --runs is for programs of seconds, or with one thread. The command does the same work in each run, and reads no
    input. Knobs that are set (HAKMEM_KNOBS) are so in all runs, and are not tried.

    With --runs a setting is written only if it is shown to save CPU time or peak RSS, and to lose no more than 1 % of
    the other.

    --install writes to ~/.config/hakmem/policies (XDG_CONFIG_HOME), under the program's build id. It takes no script:
    the policy would be that of all scripts of its interpreter.

    Exit status: the command's own, 128 + N when signal N killed it; 2, and no policy, when nothing was learned.
    """
    import sys

    from hakmem import control, native, takeover
    from hakmem import settings as known_settings
    from hakmem.commands.run import callers_environment
    from hakmem.errors import LabError

    if policy_file:
        files.expect_name(str(policy_file), "-o")
    if install and (policy_file or any_program):
        raise LabError("--install names the file, by the program: expected neither -o nor --any-program")
    if runs and statistics_file:
        raise LabError("--statistics are of one run: expected no --runs")
    if keep and not runs:
        raise LabError("--keep: a record is of several runs: expected --runs")
    library = native.library()
    given = known_settings.parse(settings, library)
    if install:
        takeover.expect_no_script(words[0], callers_environment())
        folder = control.policies(callers_environment())
    else:
        path = policy_file or Path(f"{Path(words[0]).name}.policy")
        files.check(path)
    if runs:
        status, said, statistics, text = _from_runs(words, runs, given, library, any_program, keep)
    else:
        status, said, statistics, text = _from_one(
            words, {**callers_environment(), **given}, library, any_program, statistics_file
        )
    if install:
        path = folder / control.program_of(statistics)
    files.write(path, text)
    print(f"hakmem: {path}: {said}", file=sys.stderr)
    return status


def _from_one(
    words: tuple[str, ...],
    environment: dict[str, str],
    library: Path,
    any_program: bool,
    statistics_file: Path | None,
) -> tuple[int, str, control.Statistics, str]:
    from hakmem import control, learning
    from hakmem.errors import LabError

    done = learning.learn(words, library, environment)
    if statistics_file:
        files.write(statistics_file, done.text)
    made = done.statistics["control"]
    tried = f"{made['kept']} changes kept, {made['rolled_back']} rolled back"
    if not control.learned(done.statistics):
        raise LabError(f"nothing was learned, no policy written: {words[0]} {done.command.how}, {tried}")
    text = control.policy(done.statistics, any_program=any_program)
    return done.command.exit_status, tried, done.statistics, text


def _from_runs(
    words: tuple[str, ...], runs: int, given: dict[str, str], library: Path, any_program: bool, keep: str | None
) -> tuple[int, str, control.Statistics, str]:
    import sys

    from hakmem import between_runs, ledger, machine, output, process, progress
    from hakmem import settings as known_settings
    from hakmem.errors import LabError

    process.expect_command(words)
    start = machine.facts()
    with progress.shown() as on_step:
        done = between_runs.learn(
            words, known_settings.knobs(library), runs, given, any_program=any_program, on_step=on_step
        )
    for one in done.candidates:
        print(f"hakmem: {one.says()}{'' if one.is_worth_it else ': not shown to be worth it'}", file=sys.stderr)
    if done.candidates:
        print(f"hakmem: {done.holding}", file=sys.stderr)
    for failed in done.measurement.failures if done.measurement else []:
        print(f"hakmem: round {failed.round} failed on {failed.variant}: {failed.reason}", file=sys.stderr)
    if keep and done.measurement:
        output.keep_as(keep, ledger.from_measurement(done.measurement, "learn", start=start))
    if done.best is None:
        raise LabError(
            f"nothing was learned, no policy written: of {len(done.candidates)} candidates none is shown to save time "
            "or memory at no loss of the other"
        )
    return 0, done.best.says(), done.statistics, done.policy(any_program=any_program)
