"""Runs a command on hakmem to learn from it: on the caller's terminal, with statistics at its end."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import control, process, takeover
from hakmem.errors import LabError


@dataclass(frozen=True)
class Learned:
    command: process.Attended
    text: str
    statistics: control.Statistics


def statistics_settings(folder: str) -> dict[str, str]:
    """Each process writes its own; the signal is sent by ending.so."""
    return {"HAKMEM_STATS": f"json:{folder}/%p", "HAKMEM_STATS_SIGNAL": str(signal.SIGRTMAX)}


def learn(words: Sequence[str], library: Path, environment: Mapping[str, str]) -> Learned:
    """The controller and its background thread are on, whatever the caller's environment says."""
    with tempfile.TemporaryDirectory(prefix="hakmem-learn-") as folder:
        settings = {**statistics_settings(folder), "HAKMEM_ACE_ENABLED": "1", "HAKMEM_BACKGROUND": "1"}
        file, ready = takeover.prepare_child(words, library, {**environment, **settings})
        ready.pop("HAKMEM_POLICY", None)
        command = process.attend(words, ready, file)
        written = Path(folder) / str(command.pid)
        if not written.is_file():
            raise LabError(f"{words[0]} {command.how} and left no statistics: nothing was learned")
        return Learned(command, written.read_text(), control.read(written))
