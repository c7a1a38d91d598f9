"""frames.py ROUNDS RESTING: a notebook: tables are merged, grouped and pivoted, then somebody thinks.

Each round makes a table of a million rows anew and drops it. Needs pandas (Debian's python3-pandas). It prints sums,
makes the empty file RESTING, and rests until SIGTERM ends it.
"""

import pathlib
import signal
import sys

import numpy
import pandas

ROWS, KEYS = 1_000_000, 10_000

signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it is waited for at the end
draw = numpy.random.default_rng(1)
for turn in range(int(sys.argv[1])):
    events = pandas.DataFrame(
        {"k": draw.integers(0, KEYS, ROWS), "v": draw.random(ROWS), "s": draw.integers(0, 50, ROWS)}
    )
    prices = pandas.DataFrame({"k": numpy.arange(KEYS), "w": draw.random(KEYS)})
    merged = events.merge(prices, on="k")
    grouped = merged.groupby(["k", "s"]).agg({"v": "mean", "w": "sum"})
    pivoted = merged.pivot_table(index="s", values="v", aggfunc="mean")
    print(turn, len(grouped), f"{grouped.w.sum():.6f} {pivoted.v.sum():.6f}", flush=True)
    del events, prices, merged, grouped, pivoted
pathlib.Path(sys.argv[2]).touch()
signal.sigwait({signal.SIGTERM})
