"""Recording: runs a command with lab/native/record.c before its allocator, and turns what that wrote into traces."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import files, native, process, takeover, trace
from hakmem.errors import LabError
from hakmem.trace import Trace


@dataclass(frozen=True)
class Recording:
    exit_status: int  # of the command, as a shell would say
    traces: dict[Path, Trace]


def record(words: Sequence[str], output: Path, limit_bytes: int, *, children: bool) -> Recording:
    """Runs the command to its end on the caller's terminal. Its trace is `output`, its children's lie beside it."""
    recorder = process.preloadable(native.helper("record.so"))
    environment = takeover.with_preload(os.environ, [recorder])
    why = takeover.examine(takeover.follow(words, environment), [recorder])
    if why:
        raise LabError(f"{words[0]} can't be recorded: {why}")
    if output.exists():
        raise LabError(f"{output} is there already: name another file with -o")
    try:
        folder = Path(tempfile.mkdtemp(prefix=f"{output.name}.", suffix=".recording", dir=output.absolute().parent))
    except OSError as error:
        raise LabError(f"can't write {output}: {error.strerror}") from None
    environment["HAK_RECORD"] = f"{0 if children else os.getpid()}:{limit_bytes}:{folder}"
    try:
        command = process.attend(words, environment, takeover.find(words[0], environment))
        folder = folder.rename(folder.with_suffix(".recorded"))  # what outlives the command begins no more files
        has_begun = any(folder.iterdir())
        traces = dict(collect(folder, command.pid, output, children))
    except OSError as error:
        raise LabError(f"{error.filename or words[0]}: {error.strerror}; what was recorded is in {folder}") from None
    shutil.rmtree(folder, ignore_errors=True)
    if not traces:
        why = "asked its allocator for nothing" if has_begun else "could not be recorded"
        raise LabError(f"{words[0]} {command.how} and {why}: no trace")
    return Recording(command.exit_status, traces)


def collect(folder: Path, root: int, output: Path, children: bool) -> list[tuple[Path, Trace]]:
    """Writes the traces. The last program that the command's own process became is the one that was meant; the others
    are kept when children are."""

    def order(file: Path) -> tuple[bool, list[int]]:
        pid, number = (int(part) for part in file.name.split("."))
        return pid == root, [pid, number]

    kept: list[tuple[Path, Trace]] = []
    for file in sorted(folder.iterdir(), key=order, reverse=True):
        data = trace.complete(file)
        if data is None or (kept and not children):
            continue
        name, dot, suffix = output.name.partition(".")
        is_taken = kept or output.exists()  # somebody has made it meanwhile
        path = output.with_name(f"{name}.{file.name}{dot}{suffix}") if is_taken else output
        if path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        found = trace.parse(data, str(path))
        files.put(path, trace.compress(trace.pack(found)) if path.suffix == trace.PACKED else data)
        kept.append((path, found))
    return kept
