"""Heap profiles in the formats of other viewers: speedscope (speedscope.app) and DHAT (valgrind's dh_view.html).

pprof's is in pprof.py. Figures are estimates here as there, rounded to whole numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hakmem.profile import Figures, Frame, Profile

SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"
VIEWS: tuple[tuple[str, str, Callable[[Figures], float]], ...] = (
    ("live bytes", "bytes", lambda found: found.live_bytes),
    ("all bytes", "bytes", lambda found: found.total_bytes),
    ("bytes at the peak", "bytes", lambda found: found.peak_bytes),
    ("temporary bytes", "bytes", lambda found: found.temporary_bytes),
    ("live blocks", "none", lambda found: found.live_count),
    ("all blocks", "none", lambda found: found.total_count),
    ("temporary blocks", "none", lambda found: found.temporary_count),
)


class _Numbers:
    """Of frames, in the order in which they come."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str, int], int] = {}

    def frame(self, frame: Frame) -> int:
        return self.of.setdefault((frame.name, frame.module, frame.line or 0), len(self.of))


def speedscope(profile: Profile) -> str:
    """A view for each of VIEWS. Of a difference it has what grew: its weights can't be negative."""
    numbers = _Numbers()
    views: list[dict[str, Any]] = []
    for title, unit, figure in VIEWS:
        found = [(site.frames, round(figure(site.figures))) for site in profile.sites]
        found = [(frames, weight) for frames, weight in found if weight > 0]
        samples = [[numbers.frame(frame) for frame in reversed(frames)] for frames, _ in found]
        weights = [weight for _, weight in found]
        views.append({"type": "sampled", "name": title, "unit": unit, "startValue": 0, "endValue": sum(weights),
                      "samples": samples, "weights": weights})  # fmt: skip
    frames = [{"name": name, "file": module, **({"line": line} if line else {})} for name, module, line in numbers.of]
    plain = {"$schema": SPEEDSCOPE, "exporter": "hakmem", "name": profile.program, "activeProfileIndex": 0,
             "shared": {"frames": frames}, "profiles": views}  # fmt: skip
    return json.dumps(plain) + "\n"


def dhat(profile: Profile) -> str:
    """The profile knows of no site when it had most itself: its maximum is that at the peak of all, or at the end."""
    numbers = _Numbers()
    points = []
    for site in profile.sites:
        found = site.figures
        live = (round(max(found.live_bytes, 0)), round(max(found.live_count, 0)))
        peak = (round(max(found.peak_bytes, 0)), round(max(found.peak_count, 0)))
        most = max(live, peak)
        points.append({
            "tb": round(found.total_bytes), "tbk": round(found.total_count), "tl": round(found.freed_ms),
            "mb": most[0], "mbk": most[1], "gb": peak[0], "gbk": peak[1], "eb": live[0], "ebk": live[1],
            "fs": [1 + numbers.frame(frame) for frame in site.frames],
        })  # fmt: skip
    end = round(profile.elapsed_s * 1000)
    plain = {
        "dhatFileVersion": 2,
        "mode": "heap",
        "verb": "Allocated",
        "bklt": True,
        "bkacc": False,
        "tu": "ms",
        "Mtu": "s",
        "tuth": 10,
        "cmd": profile.program,
        "pid": profile.process,
        "te": end,
        "tg": round(profile.peak_s * 1000),
        "pps": points,
        "ftbl": [
            "[root]",
            *(f"{name} ({module}:{line})" if line else f"{name} (in {module})" for name, module, line in numbers.of),
        ],
    }
    return json.dumps(plain) + "\n"
