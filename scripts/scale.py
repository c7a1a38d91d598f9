"""Draws docs/scale.svg, and writes the tables of docs/scale.md: what tests/scale counts, simulated for many cores.

    .venv/bin/python scripts/scale.py build/release/tests/scale/scale

The simulation is a closed network of queues with one customer for each core (exact mean value analysis). An operation
takes ACCESS_NS for each of the library's accesses, and TRANSFER_NS more for each line that has to come from another
core. Each of the hottest lines is a queue: it goes to one core after the other. All other lines are only a delay.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from hakmem.report.chart import Axis, Panel, picture

DOCS = Path(__file__).resolve().parents[1] / "docs"
WORKLOADS = ["private", "small", "handing", "runs", "births"]
INTERLEAVINGS = ["operations", "steps"]
CORES = [1, 2, 4, 8, 16, 32, 64]
IN_TABLES = [1, 8, 64, 512]
ACCESS_NS, TRANSFER_NS = 1.0, 100.0
TITLE = "Throughput on 1 to 64 cores by a simulation, in multiples of one core's"
TEXT = "One plot for each workload, with threads that interleave by operations, by steps, and if nothing were shared."


@dataclass(frozen=True)
class Counts:
    """Of one operation."""

    accesses: float
    atomic_writes: float
    failed_swaps: float
    transfers: float
    program_transfers: float
    system_calls: float
    hottest: tuple[float, ...]

    def per_s(self, cores: int) -> float:
        queues_ns = [count * TRANSFER_NS for count in self.hottest]
        alone_ns = self.accesses * ACCESS_NS + (self.transfers - sum(self.hottest)) * TRANSFER_NS
        waiting = [0.0] * len(queues_ns)
        rate = 0.0
        for customers in range(1, cores + 1):
            answers_ns = [ns * (1 + length) for ns, length in zip(queues_ns, waiting)]
            rate = customers / (alone_ns + sum(answers_ns))
            waiting = [rate * ns for ns in answers_ns]
        return rate * 1e9


def count(program: str, workload: str, threads: int, interleaving: str) -> Counts:
    words = [program, workload, str(threads), interleaving]
    answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    first, *rest = (float(value) / 1000 for value in answer.strip().split(",")[4:])
    return Counts(first, *rest[:5], hottest=tuple(rest[5:]))


def shown(number: float) -> str:
    return "0" if number == 0 else "< 0.001" if number < 0.001 else f"{number:.3f}" if number < 1 else f"{number:.1f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def replace(text: str, name: str, made: str) -> str:
    pattern = rf"(<!-- not measured: {name}[^>]*-->)\n.*?(<!-- end -->)"
    text, changed = re.subn(pattern, lambda match: f"{match[1]}\n{made}\n{match[2]}", text, flags=re.DOTALL)
    assert changed == 1, name
    return text


def draw(gains: dict[tuple[str, str], list[float]]) -> str:
    x = Axis("cores", 0, CORES[-1], [1, 16, 32, 48, 64])
    y = Axis("throughput, one core = 1", 0, CORES[-1], [1, 16, 32, 48, 64])
    panels = []
    for workload in WORKLOADS:
        panel = Panel(workload, x, y, 150, 150)
        panel.line([(0, 0), (CORES[-1], CORES[-1])], "third")
        for kind, series in zip(INTERLEAVINGS, ["first", "second"]):
            panel.line(zip(CORES, gains[workload, kind]), series)
        panels.append(panel)
    legend = [
        ("first", "interleaved by operations", False),
        ("second", "interleaved by steps", False),
        ("third", "if nothing were shared", False),
    ]
    return picture(TITLE, TEXT, panels, legend)


def main() -> None:
    program = sys.argv[1]
    found = {
        (workload, kind, threads): count(program, workload, threads, kind)
        for workload in WORKLOADS
        for kind in INTERLEAVINGS
        for threads in sorted({*CORES, *IN_TABLES})
        if threads <= CORES[-1] or kind == "operations"
    }
    gains = {
        (workload, kind): [
            found[workload, kind, cores].per_s(cores) / found[workload, kind, 1].per_s(1) for cores in CORES
        ]
        for workload in WORKLOADS
        for kind in INTERLEAVINGS
    }
    text = (DOCS / "scale.md").read_text(encoding="utf-8")
    for name, values in {
        "transfers of lines": lambda counts: counts.transfers,
        "the hottest line": lambda counts: counts.hottest[0],
        "system calls": lambda counts: counts.system_calls,
    }.items():
        rows = [[w, *(shown(values(found[w, "operations", n])) for n in IN_TABLES)] for w in WORKLOADS]
        text = replace(text, name, table(["threads", *map(str, IN_TABLES)], rows))
    swaps = [[w, *(shown(found[w, "steps", n].failed_swaps) for n in IN_TABLES[:-1])] for w in WORKLOADS]
    text = replace(text, "failed swaps", table(["threads", *map(str, IN_TABLES[:-1])], swaps))
    simulated = [
        [w, *(f"{gains[w, kind][at]:.2g}" for kind in INTERLEAVINGS for at in (3, 4, 6))] for w in WORKLOADS
    ]
    head = [f"{CORES[at]}, by {kind}" for kind in INTERLEAVINGS for at in (3, 4, 6)]
    text = replace(text, "a simulation", table(["cores", *head], simulated))
    (DOCS / "scale.md").write_text(text, encoding="utf-8")
    (DOCS / "scale.svg").write_text(draw(gains), encoding="utf-8")


main()
