"""A heap profile as one HTML file: a flame graph, and a table of the functions that allocate."""

from __future__ import annotations

from typing import Any

from hakmem.profile import LEAST_SAMPLES, Amount, Figures, Profile, by_function
from hakmem.report import page
from hakmem.words import amount, figures

MOST_ROWS = 200
VIEWS = (
    ("live_bytes", "live bytes"),
    ("live_count", "live blocks"),
    ("total_bytes", "all bytes"),
    ("total_count", "all blocks"),
    ("peak_bytes", "bytes at the peak"),
    ("peak_count", "blocks at the peak"),
    ("temporary_bytes", "temporary bytes"),
    ("temporary_count", "temporary blocks"),
)
COLUMNS = (
    "function",
    "file",
    "live",
    "live blocks, about",
    "in all",
    "blocks in all, about",
    "at the peak",
    "mean size",
    "sizes",
    "mean lifetime",
    "freed in < 1 s",
    "temporary",
)


def render(profile: Profile) -> str:
    rows = [
        _row(frame.label if frame else "(no stack)", frame.module if frame else "", found)
        for frame, found in by_function(profile)[:MOST_ROWS]
    ]
    return page.template("profile.html").render(
        profile=profile,
        facts=_facts(profile),
        tree=tree(profile),
        views=VIEWS,
        opens_on=_first_with_anything(profile),
        columns=COLUMNS,
        rows=rows,
    )


def _first_with_anything(profile: Profile) -> int:
    """The number of a view."""
    found = (i for i, (name, _) in enumerate(VIEWS) if any(round(getattr(s.figures, name)) for s in profile.sites))
    return next(found, 0)


def _facts(profile: Profile) -> list[tuple[str, str]]:
    counted, total = profile.counted, profile.total
    lost = profile.lost_samples
    return [
        ("live" if not profile.is_difference else "live, change", said(counted.live)),
        ("at the peak", f"{said(profile.peak)}{when(profile)}"),
        ("in all", said(counted.total)),
        *([("live before it began", said(profile.began))] if profile.began_before else []),
        ("temporary, by estimate", said_of_temporaries(total)),
        (
            "samples",
            f"{total.samples:,} ({total.live_samples:,} live), one every {amount(profile.interval_bytes, 'B')}",
        ),
        ("time", amount(profile.elapsed_s, "s") if profile.elapsed_s > 0 else "-"),
        *([("lost samples", f"{lost:,}: what functions have is too small")] if lost else []),
        *(("remark", line) for line in profile.remarks),
        *(("names", line) for line in profile.nameless),
    ]


def said(of: Amount) -> str:
    return f"{estimate(of.bytes, of.error)} in {of.count:,.0f} blocks"


def said_of_temporaries(total: Figures) -> str:
    if total.samples < LEAST_SAMPLES:
        return "too few samples to tell"
    return estimate(total.temporary_bytes, total.temporary_error)


def when(profile: Profile) -> str:
    return "" if profile.is_difference else f", after {figures(profile.peak_s)} s"


def signed(bytes_: float) -> str:
    return amount(bytes_, "B") if bytes_ >= 0 else f"-{amount(-bytes_, 'B')}"


def _row(name: str, module: str, found: Figures) -> tuple[str, ...]:
    freed = sum(found.lifetimes)
    lifetime = found.mean_lifetime_s
    return (
        name,
        module,
        estimate(found.live_bytes, found.live_error),
        f"{found.live_count:,.0f}",
        estimate(found.total_bytes, found.total_error),
        f"{found.total_count:,.0f}",
        estimate(found.peak_bytes, found.peak_error),
        amount(found.mean_size, "B") if found.mean_size > 0 else "-",
        _sizes(found),
        "-" if lifetime is None else f"{figures(lifetime)} s" if lifetime >= 0.01 else "< 0.01 s",
        f"{sum(found.lifetimes[:3]) / freed:.0%}" if freed > 0 else "-",
        f"{found.temporary_count / found.total_count:.0%}" if found.total_count > 0 else "-",
    )


def estimate(bytes_: float, error: float) -> str:
    """With its standard error, if it has one."""
    share = error / abs(bytes_) if round(bytes_) else 0
    return f"{signed(bytes_)} \N{PLUS-MINUS SIGN} {share:.0%}" if share >= 0.005 else signed(bytes_)


def _sizes(found: Figures) -> str:
    if not found.largest_size:
        return "-"
    least = "" if found.least_size == found.largest_size else f"{found.least_size:,}-"
    return f"{least}{found.largest_size:,} B"


def tree(profile: Profile) -> dict[str, Any]:
    """The stacks from their outermost functions inwards: name, file, sums as in VIEWS, children."""
    root: dict[str, Any] = {"n": "all", "m": "", "v": [0.0] * len(VIEWS), "c": {}}
    for site in profile.sites:
        values = [getattr(site.figures, name) for name, _ in VIEWS]
        node = root
        _add(node, values)
        for frame in reversed(site.frames):
            key = (frame.module, frame.label)
            node = node["c"].setdefault(key, {"n": frame.label, "m": frame.module, "v": [0.0] * len(VIEWS), "c": {}})
            _add(node, values)
    return _listed(root)


def _add(node: dict[str, Any], values: list[float]) -> None:
    node["v"] = [a + b for a, b in zip(node["v"], values, strict=True)]


def _listed(root: dict[str, Any]) -> dict[str, Any]:
    """Children as lists, figures as whole numbers. Without recursion: stacks may be deep."""
    order = [root]
    for node in order:
        node["v"] = [round(value) for value in node["v"]]
        node["c"] = sorted(node["c"].values(), key=lambda child: -abs(child["v"][0]))
        order += node["c"]
    return root
