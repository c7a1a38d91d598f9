"""What reads as a figure of performance.

CLAIM is the core, and what counts everywhere, in comments and commit messages too: a rate, a cost in time, or a
comparison of speed or memory. In prose FIGURE counts as well, and AMOUNT in a sentence that is about performance.
Sizes, capacities and other constants of the design are none of these.
"""

from __future__ import annotations

import html
import re

_DIGITS = r"(?<![\w.,])[-+~]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?"
_TENS = r"twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_ONES = r"two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen"
_WORD = rf"\b(?:{_ONES}|{_TENS}|several|(?:a )?(?:dozen|hundred|thousand))(?: and a half)?"
_NUMBER = rf"(?:{_DIGITS}|{_WORD})"
_SCALE = r"(?:[kMG]|thousand|million|billion)?"
_BYTES = r"(?:[KMGT]i?B|kilobytes|megabytes|gigabytes)"
_COUNTED = rf"(?:ops?|operations|alloc(?:ation)?s|frees|mallocs|calls|req(?:uest)?s?|queries|transactions|{_BYTES})"
_MULTIPLE = r"(?:twice|thrice|half|one and a half times)"
_NTH = r"(?:third|quarter|fifth|sixth|seventh|eighth|ninth|tenth)s?"
_PART = rf"(?:(?:a|one|{_ONES})[\s-]{_NTH}|(?<![\w=./])\d/\d(?![\d/])|[⅓⅔¼¾½⅕])"
_CHANGED = r"(?:doubl|tripl|quadrupl|halv)(?:e[sd]?|ing)"
_SHARE = rf"(?:{_MULTIPLE}|{_CHANGED}|{_PART})"
_GOOD = r"(?:throughput|rate|speed|memory|peak|rss|footprint|latenc\w+|faults)"
_SPENT = r"(?:time|cost|instructions|operations)"
_OTHER = r"(?:glibc|jemalloc|mimalloc|tcmalloc|snmalloc|rpmalloc|hoard|musl|the c library|other allocators)"
_FASTER = r"(?:as\s(?:fast|slow|quick)|(?:fast|slow|quick)er)"
_MORE = r"(?:less|more|fewer|better|worse|lower|higher|leaner|smaller|larger)"
_OF = r"(?:\s(?:x|×|times|%|percent|per cent)|\s?[x×%]|[\s-]?fold)?"

_RATE = (
    rf"{_NUMBER}\s*{_SCALE}\s*{_COUNTED}?\s*(?:/\s?s(?:ec(?:ond)?)?\b|per second\b)"
    rf"|{_NUMBER}\s*{_SCALE}\s*{_COUNTED}\s+(?:a|each|every)\s+second\b"
    rf"|{_NUMBER}\s?{_SCALE}\s?(?:ops|rps|qps|tps)\b"
)
_COMPARISON = (
    rf"(?:{_NUMBER}{_OF}|\b{_MULTIPLE}|\b{_PART})[\s-]{_FASTER}\b"
    rf"|(?:\bby\s+)?(?:an?|{_WORD}|\d+)\s+orders?\s+of\s+magnitude\b"
    rf"|\b{_SHARE}\s+(?:of\s+)?(?:(?:the|its|their|\w+'s)\s+)?(?:[\w-]+\s+)?{_GOOD}\b"
    rf"|\b{_SHARE}\s+(?:of\s+)?(?:what\s+|that\s+of\s+)?{_OTHER}(?:'s)?\b"
    rf"|\bspeed-?up\sof\s{_NUMBER}"
    rf"|{_NUMBER}{_OF}\s(?:as\s(?:much|many)\s|{_MORE}\s)(?:[\w-]+\s)?{_GOOD}\b"
    rf"|\b{_MULTIPLE}\sas\s(?:much|many)\s(?:[\w-]+\s)?{_GOOD}\b"
    rf"|\b{_FASTER}\sby\s(?:(?:a\sfactor\sof\s)?{_NUMBER}|half\b|{_PART}\b)"
    rf"|\b(?:beats?|outperforms?)\s{_OTHER}\sby\s(?:{_NUMBER}|half\b|{_PART}\b)"
    rf"|\b{_MULTIPLE}\sas\smany\s(?:req(?:uest)?s|queries|transactions)\b"
    rf"|\b{_GOOD}\s(?:is\s|was\s|were\s)?{_CHANGED}\b"
    rf"|\b{_GOOD}\s(?:\w+\s){{0,2}}(?:to|by|up|down)\s(?:half|{_PART})\b"
    rf"|\b{_GOOD}\s(?:\w+\s){{0,3}}in\shalf\b(?!\sof)"
    rf"|{_NUMBER}\s?(?:x|×|times)\s(?:the\s(?:\w+\s)?{_GOOD}\b|(?:that\sof\s)?{_OTHER}\b)"
)
_COST = (
    r"\b(?:costs?|takes?|took|saves?|saved|gains?|gained|loses?|lost)\s(?:\w+\s){0,2}"
    rf"{_NUMBER}\s?(?:ns|us|µs|μs|nanoseconds?|microseconds?|%|percent)(?!\w)"
)
_TAKEN = rf"{_NUMBER}[\s-]?(?:ms|s|milliseconds?|seconds?|minutes?|hours?|{_BYTES})\b"
_FELL = (
    r"(?:drop(?:s|ped)?|f[ae]ll(?:s|en)?|goes|went|gone|shr[iau]nks?|s[iau]nks?|ris(?:es?|en)|rose|grows?|grew|grown"
    r"|c[ao]mes?|cut|brings?|brought|reduc\w+|(?:de|in)creas\w+|improv\w+|down|up)"
)
_CHANGE = (
    rf"\b{_FELL}\s(?:\w+\s){{0,3}}from\s(?:{_TAKEN}|{_NUMBER})\s(?:down\s|up\s)?to\s{_TAKEN}"
    rf"|{_TAKEN}(?:\s\w+){{0,3}},?\s(?:instead\sof|in\splace\sof|rather\sthan|where\s\w+\s(?:took|needed|used)"
    rf"|against|vs\.?|versus|compared\s(?:to|with))\s{_TAKEN}"
    rf"|{_TAKEN}\s?(?:→|->)\s?{_TAKEN}"
    rf"|\b{_GOOD}\s{_FELL}\s(?:(?:down|up)\s)?(?:from\s{_NUMBER}\s)?to\s{_NUMBER}"
)
CLAIM = re.compile(f"{_RATE}|{_COMPARISON}|{_COST}|{_CHANGE}", re.IGNORECASE)

FIGURE = re.compile(
    CLAIM.pattern + rf"|\b{_SHARE}\s+(?:of\s+)?(?:the|its|their|\w+'s)\s+(?:[\w-]+\s+)?{_SPENT}\b"
    rf"|{_DIGITS}\s?[x×](?!\w|\s*\d)|×\s?\d[\d.,]*"
    rf"|{_NUMBER}[\s-]?(?:times (?:as|less|more|fewer|better|worse|the)\b|fold\b)"
    rf"|{_NUMBER}[\s-]?(?:%|per\s?cent\b)"
    rf"|(?<![\w.,])0?\.\d+\sof\s(?:the|its|their|\w+'s)\s(?:[\w-]+\s)?(?:{_GOOD}|{_SPENT})\b"
    rf"|\b{_MORE}\sby\sa\sfactor\sof\s{_NUMBER}"
    rf"|\b(?:gain|loss|saving)s?\sof\s(?:half|{_PART})\b"
    rf"|{_NUMBER}\s?(?:ns|us|µs|μs|nanoseconds?|microseconds?)\b"
    rf"|{_DIGITS}\s?(?-i:M)\b"
    rf"|{_DIGITS}\s+(?:thousand\s+|million\s+)?(?:(?:page|minor|major) )*faults?\b"
    rf"|{_DIGITS}\s+(?:thousand\s+|million\s+)?(?:instructions|cycles)\b"
    rf"|{_DIGITS}\s*\(\s*{_DIGITS}\s*(?:-|–|to)\s*{_DIGITS}\s*\)",
    re.IGNORECASE,
)
# A constant of the design or a parameter, unless the sentence speaks of performance.
_NAMES = ("version", "python", "cmake", "clang", "gcc", "glibc", "ubuntu", "debian", "kernel", "gperftools")
_NO_VERSION = "".join(f"(?<!{name} )" for name in _NAMES)
AMOUNT = re.compile(
    rf"{_DIGITS}\s?(?:ms|s|milliseconds|seconds|min|minutes|hours)\b"
    rf"|{_DIGITS}\s?{_BYTES}\b"
    rf"|{_NO_VERSION}(?<![\w.,])\d+\.\d+(?!\w|\.\d)",
    re.IGNORECASE,
)
PERFORMANCE = re.compile(
    r"\b(?:throughput|fast(?:er|est)|slow(?:er|est|s)?|speed\w*|latenc\w+|wall|cpu time"
    r"|took|costs?|gain(?:s|ed)?|los(?:es|t)|saves?|saved|overhead|regress\w*|improve\w*"
    r"|medians?|means?|average|ratios?|rss|resident|footprint|peaks?|measured|benchmarks?|ops)\b",
    re.IGNORECASE,
)
_ALLOCATOR = re.compile(r"\b(?:hakmem|glibc|jemalloc|mimalloc|tcmalloc|snmalloc|rpmalloc|hoard)\b", re.IGNORECASE)
_TAKEN_BY_OTHERS = re.compile(rf"\b{_OTHER}\s(?:takes|needs|uses)\b", re.IGNORECASE)
ANY_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w|\.\d)")


# What Markdown and HTML have that a reader of the page doesn't see: emphasis, escapes, brackets of links, tags, quotes.
_MARKS = re.compile(
    r"(?<=\S)\*+|\*+(?=\S)|~~|(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)|\\(?=[^\w\s])|\]\((?:\s*|[^()\s]*)\)|[\[\]]"
    r"|</?[a-z][^<>\"']*>|^\s{0,3}(?:>[ \t]?)+|&(?:[a-z]+\d*|#\d+|#x[0-9a-f]+);",
    re.IGNORECASE | re.MULTILINE,
)


def as_read(text: str) -> tuple[str, list[int]]:
    """The text as a page shows it, and where in `text` each of its letters stands."""
    letters: list[str] = []
    places: list[int] = []
    start = 0
    for mark in _MARKS.finditer(text):
        shown = html.unescape(mark[0]) if mark[0].startswith("&") else ""
        letters += [text[start : mark.start()], shown]
        places += [*range(start, mark.start()), *[mark.start()] * len(shown)]
        start = mark.end()
    return "".join([*letters, text[start:]]), [*places, *range(start, len(text))]


def is_about_performance(text: str) -> bool:
    """It has a word of performance, or names two allocators, or says what another one takes, and so compares them."""
    names = {name.lower() for name in _ALLOCATOR.findall(text)}
    return bool(PERFORMANCE.search(text) or _TAKEN_BY_OTHERS.search(text)) or len(names) > 1
