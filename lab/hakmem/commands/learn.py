"""hakmem learn: a policy file from a run."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import files


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-o", "policy_file", **files.FILE, help="[default: PROGRAM.policy]")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of hakmem, without HAKMEM_.")
@click.option("--any-program", is_flag=True, help="A policy for every program, not only for this one.")
@click.option("--statistics", "statistics_file", **files.FILE, help="Keep them: tune-log shows them.")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=click.UNPROCESSED)
def command(
    policy_file: Path | None,
    settings: tuple[str, ...],
    any_program: bool,
    statistics_file: Path | None,
    words: tuple[str, ...],
) -> int:
    """Runs a command on hakmem to its end, and writes down where the controller has left the knobs.

    HAKMEM_POLICY=FILE starts from there and leaves it at that. A policy is of one version of hakmem and, by its build
    id, of one program; it has the knobs that the controller has turned. Where Ctrl-C ends the command, what was learned
    until then is written.

    Exit status: the command's own, 128 + N when signal N killed it; 2, and no policy, when nothing was learned.
    """
    import sys

    from hakmem import control, learning, native
    from hakmem import settings as known_settings
    from hakmem.commands.run import callers_environment
    from hakmem.errors import LabError

    if policy_file:
        files.expect_name(str(policy_file), "-o")
    library = native.library()
    environment = {**callers_environment(), **known_settings.parse(settings, library)}
    path = policy_file or Path(f"{Path(words[0]).name}.policy")
    files.check(path)
    done = learning.learn(words, library, environment)
    if statistics_file:
        files.write(statistics_file, done.text)
    made = done.statistics["control"]
    tried = f"{made['kept']} changes kept, {made['rolled_back']} rolled back"
    if not control.learned(done.statistics):
        raise LabError(f"nothing was learned, no policy written: {words[0]} {done.command.how}, {tried}")
    files.write(path, control.policy(done.statistics, any_program=any_program))
    print(f"hakmem: {path}: {tried}", file=sys.stderr)
    return done.command.exit_status
