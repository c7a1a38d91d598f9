"""What makes two runs of a deterministic program the same, instruction by instruction and page by page.

The kernel draws addresses: it is told not to. Huge pages come when there are some: there are none. hakmem draws the
place of its heap, looks at the clock before it gives memory back, and has threads: a seed, the longest time and
settings end that. Interpreters draw the seeds of their hash tables, where the caller has not said which.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping

from hakmem.errors import LabError

ADDR_NO_RANDOMIZE = 0x0040000  # linux/personality.h
UNCHANGED = 0xFFFFFFFF
PR_SET_THP_DISABLE = 41  # linux/prctl.h

# Clocks in hakmem wait for decay_ms, or for a thread that is not there: none ends within the longest there is, an hour.
KNOBS = {"decay_ms": "3600000"}
SETTINGS = {
    "BACKGROUND": "0",
    "CTL": "0",
    "ACE_ENABLED": "0",
    "THP": "off",
    "SEED": "1",
    "GUARD": "0",
    "PINS": "0",
    "HEAP_PROFILE": "0",
    "EXPERIMENT": "none",  # it would set knobs after these
}
# By which interpreters seed their hash tables. They are set where the caller has not set them.
SEEDS = {"PYTHONHASHSEED": "0", "PERL_HASH_SEED": "0", "PERL_PERTURB_KEYS": "0"}


def settings(given: Iterable[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """NAME=VALUE words that say these beside what was given, by hand or as HAKMEM_KNOBS. LabError where what was given
    by hand says otherwise."""
    words = []
    knobs = {knob: number for knob, number in _knobs(environment.get("HAKMEM_KNOBS", "")).items() if knob not in KNOBS}
    for word in given:
        name, _, value = word.partition("=")
        if value != SETTINGS.get(name, value):
            raise LabError(f"{word}: --repeatable needs {name}={SETTINGS[name]}")
        if name == "KNOBS":
            if value not in {"", "none"} and not all("=" in one for one in value.split(":")):
                raise LabError(f"{word}: expected none, or NAME=NUMBER[:NAME=NUMBER...] of knobs")
            knobs = _knobs(value)
        else:
            words.append(word)
    for knob, number in KNOBS.items():
        if knobs.setdefault(knob, number) != number:
            raise LabError(f"{knob}={knobs[knob]}: --repeatable needs {knob}={number}")
    pairs = [f"{name}={value}" for name, value in SETTINGS.items()]
    return (*words, *pairs, "KNOBS=" + ":".join(f"{knob}={number}" for knob, number in knobs.items()))


def _knobs(value: str) -> dict[str, str]:
    return dict(one.split("=", 1) for one in value.split(":") if "=" in one)


def fix_layout() -> None:
    """Of what this process becomes by exec, and of all that it starts. LabError when the kernel doesn't let it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.personality.argtypes = [ctypes.c_ulong]
    libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    before = libc.personality(UNCHANGED)
    if before == -1 or libc.personality(before | ADDR_NO_RANDOMIZE) == -1:
        why = os.strerror(ctypes.get_errno())
        raise LabError(f"--repeatable: the kernel keeps choosing addresses: {why}; is a container's filter against it?")
    if libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == -1:
        raise LabError(f"--repeatable: huge pages can't be switched off: {os.strerror(ctypes.get_errno())}")
