"""What the laboratory says when it can't do what it was asked to: one line, and an exit status."""

from __future__ import annotations


class LabError(Exception):
    """Bad input or a missing piece; the message is one complete line that names the input and what was expected."""

    exit_status = 2


class NegativeError(LabError):
    """The work was done, and its answer is no: a check that failed, a bar that was missed."""

    exit_status = 1


def is_interrupt(error: BaseException | None) -> bool:
    """Ctrl-C, also where an import has made an error of its own of it, as those of Python 3.11 do."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__
    return error is not None
