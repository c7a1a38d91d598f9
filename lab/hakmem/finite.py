"""Options of commands that are numbers."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable
from typing import Any

import click

MOST_WHOLE = 10**9
MOST_SECONDS = 10**9  # Python's timers take some more, nanoseconds in 63 bits
FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def byte_range(lowest: str, highest: str) -> Callable[[click.Context, click.Parameter, str], int]:
    """For an option that is a number of bytes, such as 64K: checks and converts it."""

    def convert(context: click.Context, option: click.Parameter, value: str) -> int:
        found, least, most = map(_bytes_of, (value, lowest, highest))
        if found is None or least is None or most is None or not least <= found <= most:
            bounds = f"from {lowest} to {highest}"
            raise click.BadParameter(f"{value!r}: expected a number of bytes, with K, M or G, {bounds}")
        return found

    return convert


def _bytes_of(text: str) -> int | None:
    found = re.fullmatch(r"([0-9]{1,20})([KMG]?)", text)
    return int(found[1]) * FACTORS[found[2]] if found else None


# A sampler's option: bytes from sample to sample.
INTERVAL: dict[str, Any] = {
    "callback": byte_range("1", "1024G"),
    "metavar": "SIZE",
    "default": "512K",
    "show_default": True,
}


class WholeRange(click.IntRange):
    """A whole number within bounds; what is larger than MOST_WHOLE is a slip."""

    def __init__(self, min: int, max: int = MOST_WHOLE) -> None:
        super().__init__(min, max)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        with contextlib.suppress(click.BadParameter):
            return int(super().convert(value, param, ctx))
        self.fail(f"{value!r}: expected a whole number from {self.min} to {self.max}", param, ctx)


class FiniteRange(click.FloatRange):
    """A number within bounds, of seconds where no other upper one is named; not "nan", which is within all of them."""

    def __init__(self, min: float, max: float = MOST_SECONDS, min_open: bool = False) -> None:
        super().__init__(min, max, min_open=min_open)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        with contextlib.suppress(click.BadParameter):
            number = float(super().convert(value, param, ctx))
            if math.isfinite(number):
                return number
        least = f"above {self.min:g}" if self.min_open else f"from {self.min:g}"
        self.fail(f"{value!r}: expected a number {least} to {self.max:.10g}", param, ctx)
