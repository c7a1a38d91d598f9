"""hakmem bisect: which commit made this slower?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from hakmem import ab, arguments, comparison, files, native, progress, words
from hakmem.bisect import EACH, Bisection, Line, Report, builds, commits
from hakmem.errors import InterruptedEarly, LabError
from hakmem.finite import FiniteRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--good", required=True, metavar="COMMIT", help="A commit that was fast.")
@click.option("--bad", default="HEAD", show_default=True, metavar="COMMIT", help="A later one that is slow.")
@click.option("--metric", help="What to compare: peak_rss_bytes, minor_faults, ... instead of the time.")
@click.option("--threshold", default=2.0, show_default=True, metavar="PERCENT", type=FiniteRange(0, 1000),
              help="By how much the bad commit has to be worse at least.")  # fmt: skip
@files.json_option("What was found")
@click.argument("what", nargs=-1, required=True, metavar="-- COMMAND... | BENCHMARK", type=arguments.WORDS)
def command(
    good: str, bad: str, metric: str | None, threshold: float, json_file: Path | None, what: tuple[str, ...]
) -> None:
    """Finds the first bad commit between two: builds each in a worktree of its own, runs the benchmark or the command
    on its library and on the good one's in turns, and takes more runs where the noise hides the answer.

    A commit that doesn't build, or that the figures can't tell, is skipped. Exit status 1 when the bad commit is not
    worse than the good one. An interrupted search tells what it has found, and how to go on.
    """
    repository = native.checkout()
    if repository is None:
        raise LabError("bisect builds commits: it needs a checkout of hakmem, and this is an installed package")
    cases = ab.cases(what, sanity=False)
    if len(cases) != 1:
        raise LabError(f"one benchmark at a time; these are {', '.join(case.name for case in cases)}")
    start, after = commits(repository, good, bad)
    is_told = not files.takes_output(json_file)
    if is_told:
        print(
            f"{len(after)} commit{'s' * (len(after) != 1)} after the good one, {start[:10]}; {cases[0].name}",
            flush=True,
        )
    with builds(repository) as made, progress.shown() as on_step:
        bisection = Bisection(
            made, cases[0], metric=metric, on_step=on_step, on_line=lambda line: _tell(line) if is_told else None
        )
        try:
            report = bisection.run(start, after, threshold / 100)
        except (KeyboardInterrupt, InterruptedEarly):
            if found := bisection.so_far(after):
                _give(found, json_file)
            raise
    _give(report, json_file)


def _give(report: Report, json_file: Path | None) -> None:
    files.write_json(json_file, _plain(report))
    if not files.takes_output(json_file):
        _print(report)


def _tell(line: Line) -> None:
    print(f"{line.title}: {line.answer.value} {line.reason}".rstrip(), flush=True)


def _print(report: Report) -> None:
    print(f"\nby {report.metric}; bad: worse than the good commit by more than {report.limit - 1:.1%}")
    print(f"{comparison.holding(EACH)}\n")
    table = []
    for line in report.lines:
        worse_by = words.ratio(line.worse_by) if line.worse_by else line.reason
        table.append([line.title, worse_by, str(line.pairs), line.answer.value])
    print(words.table(["commit", "worse than the good one by", "pairs", ""], table))
    if report.first_bad is None:
        first, last = report.suspects[0][:10], report.suspects[-1][:10]
        print(f"\nfirst bad commit: one of {len(report.suspects)}: `--good {first}~ --bad {last}` goes on")
        return
    print(f"\nfirst bad commit: {report.first_bad}")
    if len(report.suspects) > 1:
        print(f"commits right before it were skipped: it is one of {', '.join(report.suspects)}")


def _plain(report: Report) -> dict[str, Any]:
    plain = dataclasses.asdict(report)
    for line in plain["lines"]:
        line["answer"] = line["answer"].value
    return plain
