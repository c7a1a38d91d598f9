"""Draws docs/regret.svg: what the bandit of the controller loses in simulated programs.

unit_control.simulator --curves | .venv/bin/python scripts/regret.py > docs/regret.svg
"""

from __future__ import annotations

import sys
from collections import defaultdict

from hakmem.report.chart import Axis, Panel, picture

TITLE = "Regret of the bandit in simulated programs"
TEXT = (
    "One plot for each simulated program: the sum of what the tries so far have cost beyond the best arm, on average. "
    "Less is better; the bandit loses less than choosing by chance in each."
)


def axis(title: str, most: float) -> Axis:
    step = next(step for power in range(6) for step in (10**power, 2 * 10**power, 5 * 10**power) if most / step <= 5)
    return Axis(title, 0, most, range(0, int(most) + 1, step))


def main() -> None:
    curves: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in sys.stdin:
        tries, name, own, chance = row.strip().split(",")
        curves[name].append((float(tries), float(own), float(chance)))
    panels = []
    for name, rows in curves.items():
        most = max(max(own, chance) for _, own, chance in rows)
        panel = Panel(name, axis("tries", rows[-1][0]), axis("regret (rewards lost)", most), 190, 150)
        for column, series in ((1, "first"), (2, "second")):
            panel.line([(0, 0), *((row[0], row[column]) for row in rows)], series)
        panels.append(panel)
    print(picture(TITLE, TEXT, panels, [("first", "bandit", False), ("second", "choosing by chance", False)]), end="")


main()
