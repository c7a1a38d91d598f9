"""Draws docs/regret.svg: what the bandit of the controller loses in simulated programs.

unit_control.simulator --curves | regret.py > docs/regret.svg
"""

from __future__ import annotations

import sys
from collections import defaultdict

WIDTH, HEIGHT, LEFT, TOP, GAP = 190, 130, 34, 24, 22
HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"
aria-labelledby="title text">
<title id="title">Regret of the bandit in four simulated programs</title>
<desc id="text">For each, the mean regret over 1000 tries: of the bandit (solid), of choosing by chance (dashed).</desc>
<style>
text {{ font: 10px sans-serif; fill: #666 }} path {{ fill: none; stroke-width: 1.6; stroke: #2a6fbb }}
.chance {{ stroke: #999; stroke-dasharray: 4 3 }} .axis {{ stroke: #bbb; stroke-width: 1 }}
</style>"""


def line(points: list[tuple[float, float]], kind: str) -> str:
    return f'<path class="{kind}" d="M{" L".join(f"{x:.1f} {y:.1f}" for x, y in points)}"/>'


def main() -> None:
    curves: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in sys.stdin:
        tries, name, own, chance = row.strip().split(",")
        curves[name].append((float(tries), float(own), float(chance)))
    width, height = LEFT + len(curves) * (WIDTH + GAP), TOP + HEIGHT + 30
    print(HEAD.format(width=width, height=height))
    for number, (name, rows) in enumerate(curves.items()):
        left, bottom = LEFT + number * (WIDTH + GAP), TOP + HEIGHT
        last, most = rows[-1][0], max(max(own, chance) for _, own, chance in rows)
        print(f'<text x="{left}" y="{TOP - 10}">{name}</text>')
        print(line([(left, TOP), (left, bottom), (left + WIDTH, bottom)], "axis"))
        print(f'<text x="{left - 4}" y="{TOP + 8}" text-anchor="end">{most:.0f}</text>')
        print(f'<text x="{left + WIDTH}" y="{bottom + 14}" text-anchor="end">{last:.0f} tries</text>')
        for column, kind in ((1, "own"), (2, "chance")):
            points = [(left + WIDTH * row[0] / last, bottom - HEIGHT * row[column] / most) for row in rows]
            print(line([(left, bottom), *points], kind))
    print("</svg>")


main()
