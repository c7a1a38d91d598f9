"""A record to test with: made up, small, and whole."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hakmem import ledger, machine
from hakmem.ledger import Record, Series, VariantFacts
from hakmem.measure import METRICS

MACHINE = machine.Machine(
    cpu="Some CPU",
    architecture="x86_64",
    cores=2,
    cpu_mhz=2600.0,
    governor=None,
    memory_bytes=1 << 34,
    page_bytes=4096,
    kernel="6.1",
    libc="glibc 2.36",
    transparent_hugepage="madvise",
    load=(0.5, 0.4, 0.3),
)
Values = Mapping[tuple[str, str, str], Sequence[float]]  # by case, variant, metric

VALUES: Values = {
    ("mixed 400", "hakmem", "operations_per_s"): [108e6, 110e6, 112e6, 109e6, 111e6, 110e6, 110.5e6, 109.5e6],
    ("mixed 400", "glibc", "operations_per_s"): [98e6, 100e6, 102e6, 99e6, 101e6, 100e6, 100.5e6, 99.5e6],
    ("mixed 400", "hakmem", "peak_rss_bytes"): [float(2 << 20)] * 8,
    ("mixed 400", "glibc", "peak_rss_bytes"): [float(1 << 20)] * 8,
    ("hot", "hakmem", "operations_per_s"): [800e6] * 8,
    ("hot", "glibc", "operations_per_s"): [400e6] * 8,
    ("hot", "hakmem", "peak_rss_bytes"): [float(1 << 20)] * 8,
    ("hot", "glibc", "peak_rss_bytes"): [float(1 << 20)] * 8,
}


def record(values: Values = VALUES, **changes: Any) -> Record:
    """`changes` replace fields."""
    cases = {case: ["program", case] for case, _, _ in values}
    variants = {name: VariantFacts(allocator=name, library=None, sha256=None, settings={}) for _, name, _ in values}
    facts: dict[str, Any] = {
        "format": ledger.UNSIGNED,
        "id": "2026-01-02-sample",
        "kind": "bench",
        "date": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        "command": "hakmem bench",
        "commit": "0" * 40,
        "clean": True,
        "settings": {},
        "machine": MACHINE,
        "load_at_end": (0.1, 0.1, 0.1),
        "size": "full",
        "rounds": len(next(iter(values.values()))),
        "warmup": 1,
        "interrupted": False,
        "cases": cases,
        "variants": variants,
        "series": [
            Series(case=case, variant=name, metric=metric, unit=METRICS[metric].unit, values=list(some))
            for (case, name, metric), some in values.items()
        ],
    }
    return Record(**{**facts, **changes})


def keep_unsigned(of: Record, folder: Path) -> Path:
    """As records were kept before they were signed: under the id that is asked for, which tests can know."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{of.id}.json"
    path.write_text(ledger.dump(of))
    with open(folder / ledger.SUMS, "a") as sums:
        sums.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    return path
