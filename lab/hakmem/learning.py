"""Runs a command on hakmem to learn from it: on the caller's terminal, with statistics at its end."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import control, process, takeover
from hakmem.errors import LabError


@dataclass(frozen=True)
class Learned:
    status: int  # of the command, or -signal
    text: str
    statistics: control.Statistics


def learn(words: Sequence[str], library: Path, environment: Mapping[str, str]) -> Learned:
    """The controller and its background thread are on, whatever the caller's environment says."""
    with tempfile.TemporaryDirectory(prefix="hakmem-learn-") as folder:
        settings = {
            "HAKMEM_STATS": f"json:{folder}/%p",
            "HAKMEM_ACE_ENABLED": "1",
            "HAKMEM_BACKGROUND": "1",
        }
        file, ready = takeover.prepare(words, library, {**environment, **settings}, children=True)
        del ready["ALLOCATOR_REQUIRED"]  # of this process, which doesn't become the command
        ready.pop("HAKMEM_POLICY", None)
        pid, status = process.attend(words, ready, file)
        written = Path(folder) / str(pid)
        if not written.is_file():
            raise LabError(f"{words[0]} ended with {status} and left no statistics: nothing was learned")
        return Learned(status, written.read_text(), control.read(written))
