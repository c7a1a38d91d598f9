"""The rule of a dossier: written down before the first run, applied by nobody's choice after the last.

It says which contestants, commands and rounds there will be, which figure is the time and which the memory, how large a
gain is worth a change and how large a loss forbids it, and how sure both have to be. The answer is then arithmetic:

- *don't switch* to a contestant that failed, that printed something else, that is shown to lose more than the rule
  allows in any command, or that is shown to gain less than the rule asks for in all of them;
- *switch* to one that is shown to lose no more than allowed in time and memory of every command, and to gain as much
  as asked for in one of these;
- *don't know* otherwise: the intervals are too wide, or the measurement was not the one that was planned.

Shown means: by the whole interval. All intervals of a dossier hold together with the rule's confidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from hakmem import comparison, files, statistics, words
from hakmem.errors import LabError
from hakmem.ledger import Record, VariantFacts
from hakmem.measure import METRICS
from hakmem.statistics import Interval

MEMORY = "peak_rss_bytes"
CHANGED = "the rule, or a library that it names, was changed while it was measured"
OTHER_OUTPUT = "its output is not that of"
PLAIN, PROSE, SUM = "rule.json", "rule.md", "rule.json.sha256"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    format: str = "hakmem-dossier-rule/1"
    date: str
    incumbent: str
    contestants: dict[str, VariantFacts]
    commands: list[str]
    client: str | None
    outputs: list[str]  # files whose contents must be the incumbent's
    idle_s: float
    rounds: int
    warmup: int
    time: str  # a metric's name
    memory: str = MEMORY
    gain: float  # share of the incumbent's time or memory that makes a change worth it
    loss: float  # share that no contestant may take more
    confidence: float = statistics.CONFIDENCE

    @property
    def candidates(self) -> list[str]:
        return [name for name in self.contestants if name != self.incumbent]

    @property
    def each(self) -> float:
        """The confidence of one interval."""
        count = 2 * len(self.commands) * len(self.candidates)
        return statistics.family_confidence(count, self.confidence)

    @property
    def least_rounds(self) -> int:
        """With fewer no interval has ends."""
        return statistics.minimum_rounds(self.each)


class Answer(Enum):
    SWITCH = "switch"
    STAY = "don't switch"
    UNKNOWN = "don't know"


@dataclass(frozen=True)
class Judgement:
    """Of one contestant."""

    name: str
    answer: Answer
    why: str
    time: Interval | None = None  # mean over the commands


# ---- Before the first run --------------------------------------------------------------------------------------------


def prose(rule: Rule) -> tuple[tuple[str, str], ...]:
    """The rule in words: of what, and what."""
    time, memory = METRICS[rule.time].title, METRICS[rule.memory].title
    switch = (
        Answer.SWITCH.value,
        (
            "the whole intervals show no forbidden loss anywhere, and one shows a gain that is worth it; of several "
            "such contestants, the one with the lowest time as geometric mean over the commands"
        ),
    )
    stay = (
        Answer.STAY.value,
        (
            "a contestant failed, printed something else, is shown to lose what is forbidden, or is shown to gain less "
            "than what is worth it everywhere; so if that is so of all"
        ),
    )
    return (
        ("contestants", f"{', '.join(rule.contestants)}; the incumbent is {rule.incumbent}"),
        ("rounds", f"{rule.rounds} interleaved ones, after {rule.warmup} uncounted"),
        ("time", f"the {time}, as a ratio to the incumbent's"),
        ("memory", f"the {memory}, as a ratio to the incumbent's"),
        ("a gain that is worth it", f"from {words.share(rule.gain)} on, in time or in memory of one command"),
        ("a loss that forbids it", f"more than {words.share(rule.loss)}, in time or in memory of any command"),
        ("intervals", f"all hold together with {rule.confidence:.0%}: each with {rule.each:.2%}"),
        switch,
        stay,
        (Answer.UNKNOWN.value, "anything else; also if fewer rounds were run than planned"),
    )


def write(rule: Rule, folder: Path) -> str:
    """Makes the folder, with the rule in it. Returns the rule's SHA-256."""
    text = json.dumps(msgspec.to_builtins(rule), indent=2) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest()
    commands = "\n".join(f"    {line}" for command in rule.commands for line in command.split("\n"))
    lines = "\n".join(f"- *{what}*: {said}" for what, said in prose(rule))
    try:
        folder.mkdir()
    except OSError as error:
        raise LabError(f"can't write {folder}: {error.strerror}") from None
    files.write(folder / PLAIN, text)
    files.write(folder / SUM, f"{digest}  {PLAIN}\n")
    head = f"# The rule of this dossier\n\nWritten on {rule.date}, before anything was run.\n\n{commands}\n"
    files.write(folder / PROSE, f"{head}\n{lines}\n\nSHA-256 of {PLAIN}: {digest}\n")
    return digest


def is_unchanged(folder: Path, digest: str) -> bool:
    try:
        return hashlib.sha256((folder / PLAIN).read_bytes()).hexdigest() == digest
    except OSError:
        return False


# ---- After the last --------------------------------------------------------------------------------------------------


def judge(rule: Rule, record: Record) -> list[Judgement]:
    """Of each candidate."""
    return [_judge(rule, record, name) for name in rule.candidates]


def _judge(rule: Rule, record: Record, name: str) -> Judgement:
    if CHANGED in record.notes:
        return Judgement(name, Answer.UNKNOWN, CHANGED)
    failed = {failure.variant: failure.reason for failure in reversed(record.failures)}
    if rule.incumbent in failed:
        return Judgement(name, Answer.UNKNOWN, f"the incumbent failed: {failed[rule.incumbent]}")
    if name in failed:
        return Judgement(name, Answer.STAY, failed[name])
    time = _mean_time(rule, record, name)
    if record.interrupted or record.rounds < rule.rounds:
        why = f"{record.rounds} of the planned {rule.rounds} rounds were run"
        return Judgement(name, Answer.UNKNOWN, why, time)
    found = list(_intervals(rule, record, name))
    missing = [what for what, interval in found if interval is None]
    if missing:
        return Judgement(name, Answer.UNKNOWN, f"no figure of {missing[0]}", time)
    known = [(what, interval) for what, interval in found if interval is not None]
    if not all(interval.is_bounded for _, interval in known):
        why = f"too few rounds: {record.rounds} of at least {rule.least_rounds}"
        return Judgement(name, Answer.UNKNOWN, why, time)
    return Judgement(name, *_weigh(rule, known), time)


def _weigh(rule: Rule, known: list[tuple[str, Interval]]) -> tuple[Answer, str]:
    gain, loss = words.share(rule.gain), words.share(rule.loss)
    worst = max(known, key=lambda one: one[1].low)
    if worst[1].low > 1 + rule.loss:
        return Answer.STAY, f"{worst[0]}: more than {loss} worse"
    best = min(known, key=lambda one: one[1].high)
    if best[1].high <= 1 - rule.gain:
        doubtful = max(known, key=lambda one: one[1].high)
        if doubtful[1].high <= 1 + rule.loss:
            return Answer.SWITCH, f"{best[0]}: better by {gain} or more; nothing is worse by {loss}"
        return Answer.UNKNOWN, f"{doubtful[0]}: perhaps more than {loss} worse"
    hopeful = min(known, key=lambda one: one[1].low)
    if hopeful[1].low > 1 - rule.gain:
        return Answer.STAY, f"nothing is better by {gain}"
    return Answer.UNKNOWN, f"{hopeful[0]}: perhaps better by {gain}, perhaps not"


def _intervals(rule: Rule, record: Record, name: str) -> Iterator[tuple[str, Interval | None]]:
    for case in record.cases:
        for metric in (rule.time, rule.memory):
            values, base = (record.values(case, variant, metric) for variant in (name, rule.incumbent))
            where = f" of {case}" if len(record.cases) > 1 else ""
            yield f"{METRICS[metric].title}{where}", comparison.compare(values, base, rule.each)


def _mean_time(rule: Rule, record: Record, name: str) -> Interval | None:
    pairs = {
        case: (record.values(case, name, rule.time), record.values(case, rule.incumbent, rule.time))
        for case in record.cases
    }
    if not all(values and base and min(*values, *base) > 0 for values, base in pairs.values()):
        return None
    return statistics.geometric_mean_ratio(pairs, confidence=rule.each)


def conclude(judgements: list[Judgement]) -> tuple[Answer, str]:
    """Of all candidates: the answer, and what it says."""
    good = [one for one in judgements if one.answer is Answer.SWITCH and one.time is not None]
    if good:
        best = min(good, key=lambda one: one.time.estimate if one.time else 0)
        return Answer.SWITCH, f"switch to {best.name}"
    if all(one.answer is Answer.STAY for one in judgements):
        return Answer.STAY, Answer.STAY.value
    return Answer.UNKNOWN, Answer.UNKNOWN.value
