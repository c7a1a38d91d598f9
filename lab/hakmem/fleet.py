"""What an experiment on part of a fleet (HAKMEM_EXPERIMENT) has done, from what a Prometheus server has of its hosts.

A host is what was dealt into an arm, so it is what counts: all its processes and samples make one figure before the
experiment began and one after. Hosts differ far more from each other than a setting moves them, and stay as they are
from week to week. So each host is compared with what its own figure before lets one expect (CUPED; the slope is that
within the arms, so the effect does not bend it). What is left is compared between the arms by ranks: the
shift of the treatment is the median of all differences of two hosts, one of each arm (Hodges and Lehmann), its interval
what the rank-sum test leaves. docs/decisions/0151 has what else was tried.
"""

from __future__ import annotations

import base64
import datetime
import http.client
import json
import math
import re
import statistics as medians
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hakmem import statistics
from hakmem.errors import LabError
from hakmem.statistics import Decision, Interval

ARMS = ("treatment", "control")
RESIDENT = "hakmem_process_resident_bytes"
FEWEST_HOSTS = 8  # of an arm
FEWEST_KNOWN = 0.5  # of the hosts must have a figure from before, else none is used
POWER = 0.8
EFFICIENCY = 0.6  # of the slope: least squares know it as well from so many of the hosts
STEPS = 200  # of a window: in so many places an expression is looked at
ANSWER_S = 120
FARTHEST = 300.0  # logarithms of the figures of two hosts may be apart: what is computed of them are numbers
LONGEST_S = 100 * 365 * 86400  # of a duration
LOOKED_BACK_S = 90 * 86400, 3650 * 86400  # for the beginning: farther where it is not within the first
AT_PORT = re.compile(r"((?:\w+://)?(?:[^:/]+|\[.+\])):\d+(?:/.*)?$")
Z = medians.NormalDist().inv_cdf


@dataclass(frozen=True)
class Host:
    name: str
    is_treated: bool
    after: float
    before: float | None


@dataclass(frozen=True)
class Analysis:
    treated: int  # hosts
    control: int
    ratio: Interval  # treatment / control
    decision: Decision
    visible: float  # the smallest effect that would have been seen, as a part of 1, with the chance of POWER
    explained: float | None  # the share of the variance between hosts that was there before; None: not adjusted
    left_out: int = 0  # hosts without a figure from before, where the others have one


# ---- Statistics ------------------------------------------------------------------------------------------------------


def analyse(hosts: Sequence[Host], threshold: float, less_is_better: bool = True) -> Analysis:
    """LabError where the hosts are too few, or a figure has no logarithm."""
    known = [host for host in hosts if host.before is not None]
    is_adjusted = len(known) >= FEWEST_KNOWN * len(hosts)
    used = known if is_adjusted else list(hosts)
    arms = [[host for host in used if host.is_treated is wanted] for wanted in (True, False)]
    for name, own in zip(ARMS, arms, strict=True):
        if len(own) < FEWEST_HOSTS:
            raise LabError(f"{len(own)} hosts in {name}: expected {FEWEST_HOSTS} at least")
    for host in used:
        least = host.after if host.before is None else min(host.after, host.before)
        if least <= 0:
            raise LabError(f"{host.name} has a figure of {least:g}: ratios need figures above 0")
    after = [[math.log(host.after) for host in own] for own in arms]
    explained, wider = None, 1.0
    if is_adjusted:
        before = [[math.log(host.before) for host in own if host.before is not None] for own in arms]
        slope, wider = _slope(before, after), _wider(before)
        adjusted = [[y - slope * x for y, x in zip(ys, xs, strict=True)] for ys, xs in zip(after, before, strict=True)]
        spread = _spread(after)
        explained = max(0.0, 1 - (_spread(adjusted) / spread) ** 2) if spread > 0 else 0.0
        after = adjusted
    if (max(map(max, after)) - min(map(min, after))) * wider > FARTHEST:
        raise LabError("the figures of the hosts are too far apart to be compared")
    middle = medians.fmean(after[0] + after[1])  # so that no exponent overflows
    candidate, baseline = ([math.exp(y - middle) for y in ys] for ys in after)
    of_ranks = statistics.ratio(candidate, baseline, paired=False)
    low, high = (of_ranks.estimate * (end / of_ranks.estimate) ** wider for end in (of_ranks.low, of_ranks.high))
    ratio = Interval(of_ranks.estimate, low, high)
    half = math.log(ratio.high / ratio.low) / 2
    reach = (Z((1 + statistics.CONFIDENCE) / 2) + Z(POWER)) / Z((1 + statistics.CONFIDENCE) / 2)
    judged = ratio if less_is_better else Interval(1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low)
    decision = statistics.decision(judged, threshold)
    visible, left_out = math.expm1(half * reach), len(hosts) - len(used)
    return Analysis(len(arms[0]), len(arms[1]), ratio, decision, visible, explained, left_out)


def _slope(before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]) -> float:
    """Within the arms, of what was after on what was before: the median of the slopes of pairs of hosts, each paired
    with the one that is half of the arm above it (Theil). Hosts that were used for something else meanwhile don't bend
    it."""
    slopes: list[float] = []
    for xs, ys in zip(before, after, strict=True):
        points = sorted(zip(xs, ys, strict=True))
        pairs = zip(points, points[len(points) // 2 :], strict=False)
        slopes += [(y - own_y) / (x - own_x) for (own_x, own_y), (x, y) in pairs if x > own_x]
    return medians.median(slopes) if slopes else 0.0


def _wider(before: Sequence[Sequence[float]]) -> float:
    """By how much an interval is wider as the slope isn't known but found: of few hosts, chance deals the arms apart
    in what they were before, and takes the slope's error into the difference (as in the analysis of covariance)."""
    means = [medians.fmean(xs) for xs in before]
    within = math.fsum((x - mean) ** 2 for xs, mean in zip(before, means, strict=True) for x in xs)
    of_mean = EFFICIENCY * sum(1 / len(xs) for xs in before)
    return math.sqrt(1 + (means[0] - means[1]) ** 2 / within / of_mean) if within else 1.0


def _spread(arms: Sequence[Sequence[float]]) -> float:
    """The median distance from the arm's median."""
    return medians.median(abs(y - medians.median(ys)) for ys in arms for y in ys)


# ---- Prometheus ------------------------------------------------------------------------------------------------------


NO_ANSWER = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
)  # JSON that is none, or says something else
Ask = Callable[[str, float], list[Mapping[str, Any]]]  # an expression at a time: its series


def prometheus(url: str) -> Ask:
    """Asks a server's HTTP interface. A name with a password in the address is what the server is told, and nobody
    else."""
    shown = re.sub(r"//.*@", "//", url)
    try:
        parts = urllib.parse.urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets, or a port that is no number
        is_usable = False
    if not is_usable or not url.isprintable() or " " in url:
        raise LabError(f"--prometheus {shown}: expected http://HOST:PORT")
    login = None
    if parts.username is not None:
        pair = ":".join(urllib.parse.unquote(part or "") for part in (parts.username, parts.password))
        login = f"Basic {base64.b64encode(pair.encode()).decode()}"
    server = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def ask(expression: str, at: float) -> list[Mapping[str, Any]]:
        words = urllib.parse.urlencode({"query": expression, "time": f"{at:.3f}"}).encode()
        question = urllib.request.Request(f"{server.rstrip('/')}/api/v1/query", words)
        if login is not None:
            question.add_unredirected_header("Authorization", login)
        try:
            with urllib.request.urlopen(question, timeout=ANSWER_S) as answer:
                found = json.load(answer)
            for warning in found.get("warnings") or ():
                print(f"hakmem: {shown} warns: {' '.join(str(warning).split())}", file=sys.stderr)
            return [{"metric": dict(row["metric"]), "value": float(row["value"][1])} for row in found["data"]["result"]]
        except urllib.error.HTTPError as error:
            raise LabError(f"{shown} refuses {expression}: {_why(error)}") from None
        except (OSError, http.client.HTTPException, *NO_ANSWER) as error:
            raise LabError(f"{shown} does not answer as a Prometheus server: {error}") from None

    return ask


def _why(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"])
    except (OSError, http.client.HTTPException, *NO_ANSWER):
        return str(error.reason)


@dataclass(frozen=True)
class Windows:
    since: float  # from when on arms are compared
    end: float
    begun: float  # until then no host had the setting
    before_s: float  # that is looked at before that

    @property
    def after_s(self) -> float:
        return self.end - self.since


def begun(ask: Ask, name: str, end: float) -> float:
    """When a host first said that it takes part: by wide steps, then by narrow ones in the step before that, which is
    the last one where it began only now."""
    found = None
    for look_back_s in LOOKED_BACK_S:
        step = max(1, look_back_s // STEPS // 10)
        known = _first(ask, name, end, look_back_s, step)
        found = _first(ask, name, known or end, step, max(1, step // STEPS)) or known
        if known is None or known - (end - look_back_s) > 2 * step:
            break
    if found is None:
        raise LabError(f"no host has said that it is in an experiment {name!r}: hakmem_experiment_info has its names")
    return found


def _first(ask: Ask, name: str, end: float, seconds: int, step: int) -> float | None:
    rows = ask(f"min(min_over_time(timestamp({_info(name)})[{seconds}s:{step}s]))", end)
    return float(rows[0]["value"]) if rows and math.isfinite(rows[0]["value"]) else None


def _info(name: str) -> str:
    return f"hakmem_experiment_info{{name={json.dumps(name)}}}"


def hosts(ask: Ask, name: str, expression: str, label: str, windows: Windows) -> tuple[list[Host], int]:
    """Those that have an arm and a figure, and how many have an arm alone. LabError for one that was in both arms. The
    mean over time is one of means over processes, so that many short ones don't outweigh one that lasts; a host that
    gets the setting late, or loses it before the end, counts while it has it."""

    def figures(of: str, end: float, seconds: float) -> dict[str, float]:
        step = max(1, int(seconds / STEPS))
        rows = ask(f"avg_over_time((avg by ({label}) ({of}))[{int(seconds)}s:{step}s])", end)
        found = {row["metric"].get(label, ""): row["value"] for row in rows}
        return {host: value for host, value in found.items() if math.isfinite(value)}

    arms: dict[str, str] = {}
    seconds = int(windows.after_s) + 1
    for row in ask(f"max by ({label}, arm) (max_over_time({_info(name)}[{seconds}s]))", windows.end):
        host, arm = row["metric"].get(label, ""), row["metric"].get("arm", "")
        if arms.setdefault(host, arm) != arm:
            changed = "or the share was raised: then --since is when"
            raise LabError(f"{label} {host!r} was in both arms: it is no host, or has been renamed, {changed}")
    taking_part = f"({expression}) and on ({label}) {_info(name)}"
    after = figures(taking_part, windows.end, windows.after_s)
    before = figures(expression, windows.begun, windows.before_s)
    known = [(host, arm) for host, arm in sorted(arms.items()) if host in after]
    found = [Host(host, arm == ARMS[0], after[host], before.get(host)) for host, arm in known]
    return dealt(found), len(arms) - len(known)


def dealt(found: Sequence[Host]) -> list[Host]:
    """As they were dealt into the arms: ports of one address are one host, or each would count for what all of them
    have in common. An address that is in both arms has several hosts behind it, which stay apart."""
    by_address: dict[str, list[Host]] = {}
    for host in found:
        at_port = AT_PORT.match(host.name)
        by_address.setdefault(at_port[1] if at_port else host.name, []).append(host)
    hosts: list[Host] = []
    for address, own in by_address.items():
        is_one = len(own) > 1 and len({host.is_treated for host in own}) == 1
        hosts += [_together(address, own)] if is_one else own
    return hosts


def _together(name: str, own: Sequence[Host]) -> Host:
    """The mean of those that have a figure from before, or of all if none has one."""
    known = [host for host in own if host.before is not None] or own
    before = [host.before for host in known if host.before is not None]
    after = medians.fmean(host.after for host in known)
    return Host(name, own[0].is_treated, after, medians.fmean(before) if before else None)


# ---- What is said ----------------------------------------------------------------------------------------------------


def lines(found: Analysis, expression: str, less_is_better: bool, windows: Windows) -> list[str]:
    low, high = (f"{end - 1:+.2%}" for end in (found.ratio.low, found.ratio.high))
    better = "less" if less_is_better else "more"
    adjusted = "no figures from before: hosts are compared as they are"
    if found.explained is not None:
        adjusted = (
            f"each host adjusted by what it was before, which explains {found.explained:.0%} of their differences"
        )
    left_out = f"; {found.left_out} left out, without a figure from before" if found.left_out else ""
    return [
        f"{found.decision.value}: {expression} in treatment is {found.ratio.estimate - 1:+.2%} of control "
        f"({low} to {high}, 95 %); {better} is better",
        f"hosts: {found.treated} in treatment, {found.control} in control{left_out}; {adjusted}",
        f"the smallest effect that would have been seen (in four of five such experiments): {found.visible:.2%}",
        f"since {_date(windows.since)} until {_date(windows.end)}; before: {_duration(windows.before_s)} until "
        f"{_date(windows.begun)}",
    ]


def _date(at: float) -> str:
    return f"{datetime.datetime.fromtimestamp(at, datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def _duration(seconds: float) -> str:
    unit = max((unit for unit in UNITS if seconds >= UNITS[unit]), key=lambda unit: UNITS[unit], default="s")
    return f"{seconds / UNITS[unit]:.3g} {unit}"


def duration(word: str) -> float:
    """Seconds, from words like 90m and 7d."""
    number, unit = word[:-1], word[-1:]
    is_one = unit in UNITS and number.isascii() and number.isdigit() and len(number) < 12
    seconds = int(number) * UNITS[unit] if is_one else 0
    if not 0 < seconds <= LONGEST_S:
        raise LabError(f"{word!r}: expected a duration, such as 90m or 7d")
    return float(seconds)


def moment(word: str) -> float:
    """A date with a time, or a duration before now."""
    try:
        at = datetime.datetime.fromisoformat(word)
    except ValueError:
        return time.time() - duration(word)
    return (at if at.tzinfo else at.replace(tzinfo=datetime.timezone.utc)).timestamp()
