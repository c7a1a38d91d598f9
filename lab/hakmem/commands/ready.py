"""hakmem ready: the production-readiness table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from hakmem import files


@click.command()
@files.json_option("the table")
@click.option("--quick", is_flag=True, help="without the rows that take more than a minute")
def command(json_file: Path | None, quick: bool) -> int:
    """Asks what has to hold before hakmem is used for something that matters; each row is a check that runs now.

    Exit status: 0 when every answer is yes, 1 when one is no, or can't be had.
    """
    from hakmem import readiness

    rows = [row for row in readiness.table() if not quick or row.limit_s <= 60]
    width = max(len(row.question) for row in rows)
    is_told = not files.takes_output(json_file)
    answers: list[readiness.Answer] = []
    for answer in readiness.answers(rows):
        answers.append(answer)
        if is_told:
            print(f"{'yes' if answer.passed else 'NO':4}{answer.question:{width}}  {answer.detail}", flush=True)
    files.write_json(json_file, [dataclasses.asdict(answer) for answer in answers])
    if is_told:
        failed = sum(not answer.passed for answer in answers)
        print(f"\n{'ready' if not failed else 'not ready'}: {len(answers) - failed} yes, {failed} no")
    return 0 if all(answer.passed for answer in answers) else 1
