"""hakmem doctor: what would stop or hurt hakmem here."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import arguments, files

MARKS = {"ok": "ok     ", "note": "note   ", "problem": "PROBLEM"}


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--pid", type=arguments.PID, help="Look at a running process.")
@files.json_option("The findings")
@click.argument("words", nargs=-1, metavar="[-- COMMAND...]", type=arguments.WORDS)
def command(pid: int | None, json_file: Path | None, words: tuple[str, ...]) -> int:
    """Says what would stop or hurt hakmem on this machine, for a command, or in a running process.

    COMMAND is not run: its files are read, and the system's dynamic linker lists what it would load. Exit status 0 when
    hakmem would work, 1 when not.
    """
    import dataclasses
    import os

    from hakmem import doctor, foreign, native
    from hakmem.host import Host

    if words and pid is not None:
        raise click.UsageError("expected --pid or a command, not both")
    findings = doctor.examine(Host(), native.library(), words, pid, dict(os.environ))
    problems = sum(finding.level == "problem" for finding in findings)
    plain = {"works": problems == 0, "findings": [dataclasses.asdict(finding) for finding in findings]}
    files.write_json(json_file, plain)
    if files.takes_output(json_file):
        return 1 if problems else 0
    width = max(len(finding.topic) for finding in findings)
    for finding in findings:
        print(f"{MARKS[finding.level]} {finding.topic:{width}}  {foreign.line(finding.fact)}")
        if finding.advice:
            print(f"{'':{len(MARKS['ok']) + width + 3}}{finding.advice}")
    subject = f"process {pid}" if pid is not None else words[0] if words else "this machine"
    runs = any(one.topic == "malloc" and one.fact.startswith(doctor.HAKMEMS) for one in findings)
    subject += " runs on hakmem" if runs else ""
    stands = "problem stands" if problems == 1 else "problems stand"
    print(f"\n{subject}: " + (f"{problems} {stands} against hakmem" if problems else "nothing stands against hakmem"))
    return 1 if problems else 0
