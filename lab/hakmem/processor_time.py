"""How many processors other programs have had while something was measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessorTime:
    """Seconds, so far: of all processors, and of this process with those of its children that have ended."""

    busy_s: float
    own_s: float
    at_s: float

    def others_since(self, start: ProcessorTime) -> float:
        """How many processors others had since then, on average."""
        others_s = self.busy_s - start.busy_s - (self.own_s - start.own_s)
        return max(others_s, 0) / max(self.at_s - start.at_s, 1e-3)


def processor_time() -> ProcessorTime | None:
    """None where the kernel doesn't tell."""
    try:
        first = Path("/proc/stat").read_text().splitlines()[0]
    except OSError:
        return None
    user, nice, system, _, _, interrupts, softly, stolen = map(int, first.split()[1:9])
    own = os.times()
    own_s = own.user + own.system + own.children_user + own.children_system
    busy = user + nice + system + interrupts + softly + stolen
    return ProcessorTime(busy / os.sysconf("SC_CLK_TCK"), own_s, own.elapsed)
