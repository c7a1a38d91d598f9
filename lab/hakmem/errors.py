"""What the laboratory says when it can't do what it was asked to: one line, and an exit status."""

from __future__ import annotations


class LabError(Exception):
    """Bad input or a missing piece; the message is one complete line that names the input and what was expected."""

    exit_status = 2


class InterruptedEarly(LabError):
    """Ctrl-C came before there was anything to keep."""

    exit_status = 130


class NegativeError(LabError):
    """The work was done, and its answer is no: a check that failed, a bar that was missed."""

    exit_status = 1
