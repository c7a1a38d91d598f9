"""Metrics of several processes as one answer to a scrape: what each says of itself (src/observe/metrics.c), with its
process id and its name as labels, each metric once.

What a process says is its own text, and may be anything: lines that are no metric of hakmem's are left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

OPEN = "application/openmetrics-text; version=1.0.0; charset=utf-8"
PLAIN = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus's own, older
MOST_SAMPLES = 10_000  # of a process

OWN_LABELS = ("pid", "program")

_ABOUT = re.compile(r"# (TYPE|HELP) (hakmem_\w+) ([ -\[\]-~]*)", re.ASCII)
_LABEL = rf'(?!(?:{"|".join(OWN_LABELS)})=)[a-z]\w*="[ !#-\[\]-~]*"'
_LABEL_NAME = re.compile(r'(\w+)="[^"]*"')
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?"
_SAMPLE = re.compile(rf"(hakmem_\w+)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? ({_NUMBER})", re.ASCII)
_KINDS = ("gauge", "counter", "info")
_ENDINGS = {"counter": "_total", "info": "_info", "gauge": ""}


@dataclass
class Metric:
    kind: str
    help: str = ""
    samples: list[tuple[str, str]] = field(default_factory=list)  # labels, and the value


def labels(pid: int, program: str) -> str:
    safe = "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '"\\' else "?" for letter in program
    )
    return f'pid="{pid}",program="{safe}"'


def merged(answers: Iterable[tuple[str, str]]) -> dict[str, Metric]:
    """By name. Of each process its labels, and what it says. Where processes have a metric of one name and two kinds,
    it is what most of them have, or of as many the first; the others are of another version, or not what they say they
    are."""
    told: dict[str, dict[str, list[Metric]]] = {}  # by name and by kind, one of each process
    for own, text in answers:
        for name, metric in _told(own, text.splitlines()[: 2 * MOST_SAMPLES]).items():
            told.setdefault(name, {}).setdefault(metric.kind, []).append(metric)
    return {name: _together(max(kinds.values(), key=len)) for name, kinds in told.items()}


def _together(of_processes: list[Metric]) -> Metric:
    first = of_processes[0]
    return Metric(first.kind, first.help, [sample for metric in of_processes for sample in metric.samples])


def _told(own: str, lines: Iterable[str]) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    name = ""  # of the metric that is being told
    for line in lines:
        about, sample = _ABOUT.fullmatch(line), _SAMPLE.fullmatch(line)
        if about and about[1] == "TYPE" and about[3] in _KINDS:
            name = about[2]
            metrics.setdefault(name, Metric(about[3]))
        elif about and about[1] == "HELP" and about[2] == name:
            metrics[name].help = about[3]
        elif sample and name and sample[1] == name + _ENDINGS[metrics[name].kind] and _is_sound(sample):
            metrics[name].samples.append((f"{own},{sample[2]}" if sample[2] else own, sample[3]))
    return metrics


def _is_sound(sample: re.Match[str]) -> bool:
    """A reader refuses the whole answer for a number beyond 64 bits, or for a label that is there twice."""
    names = _LABEL_NAME.findall(sample[2] or "")
    return math.isfinite(float(sample[3])) and len(names) == len(set(names))


def add(metrics: dict[str, Metric], name: str, help: str, samples: Iterable[tuple[str, int]]) -> None:
    """A gauge."""
    metrics[name] = Metric("gauge", help, [(own, str(value)) for own, value in samples])


def render(metrics: dict[str, Metric], is_open: bool) -> str:
    """In OpenMetrics, or in Prometheus's own format, which knows less kinds and wants full names."""
    lines = []
    for name, metric in metrics.items():
        full = name + _ENDINGS[metric.kind]
        told = name if is_open else full
        lines.append(f"# TYPE {told} {metric.kind if is_open or metric.kind != 'info' else 'gauge'}")
        if is_open and name.endswith("_bytes"):
            lines.append(f"# UNIT {told} bytes")
        lines.append(f"# HELP {told} {metric.help}")
        lines += [f"{full}{{{labels}}} {value}" for labels, value in metric.samples]
    return "\n".join([*lines, *(["# EOF"] if is_open else [])]) + "\n"
