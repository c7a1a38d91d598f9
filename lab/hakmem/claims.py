"""The claims audit: no figure of performance in the documentation that no record backs.

Reads every Markdown file of the repository. What looks like a figure of performance has to stand between markers, and
what stands between the markers of a measured figure is exactly what its record says. docs/claims.md tells writers how.
A finding is one line: FILE:LINE: what is wrong.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hakmem import figures, ledger, pictures, uncited
from hakmem.errors import LabError
from hakmem.ledger import Record

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FEWEST_ROUNDS = 3
SKIPPED_FOLDERS = {"build", "node_modules"}  # and all whose name begins with a dot

# ---- What is a figure of performance ---------------------------------------------------------------------------------

_NUMBER = r"(?<![\w.,])[-+~]?\d[\d,]*(?:\.\d+)?"
_WORD_NUMBER = r"\b(?:two|three|four|five|six|seven|eight|nine|ten|a hundred|a thousand)"
_SCALE = r"(?:[kMG]|thousand|million|billion)?"
_COUNTED = r"(?:ops?|operations|allocations|frees|mallocs|calls|requests|queries|transactions)"
_SHARE = r"(?:twice|thrice|doubled?|tripled?|half|halved|(?:a|one|two|three) (?:third|quarter|fifth|tenth)s?)"
_GOOD = r"(?:throughput|rate|speed|time|memory|peak|rss|footprint|latenc\w+|cost|faults|instructions|operations)"

# Always one, whatever stands around it.
FIGURE = re.compile(
    rf"{_NUMBER}\s*{_SCALE}\s*{_COUNTED}?\s*(?:/\s?s\b|/sec\b|per second\b)"  # 22.6 M ops/s
    rf"|{_NUMBER}\s*{_SCALE}\s*{_COUNTED}\s+(?:a|each|every)\s+second\b"  # 25.1 million operations a second
    rf"|\b{_SHARE}\s+(?:of\s+)?(?:the|its|their|\w+'s)\s+(?:[\w-]+\s+)?{_GOOD}\b"  # twice the throughput
    rf"|{_NUMBER}\s?[kMG]?(?:ops|rps|qps|tps)\b"
    rf"|{_NUMBER}\s?[x×](?!\w|\s*\d)|×\s?\d[\d.,]*"  # 1.5 x
    rf"|(?:{_NUMBER}|{_WORD_NUMBER}|\btwice|\bhalf)[\s-]*(?:times\s)?(?:as\s)?(?:fast|slow|quick)(?:er)?\b"
    rf"|(?:{_NUMBER}|{_WORD_NUMBER})[\s-]?(?:times (?:as|less|more|fewer|better|worse|the)\b|fold\b)"
    rf"|{_NUMBER}\s?(?:%|percent\b)"
    rf"|{_NUMBER}\s?(?:ns|us|µs|μs)\b"
    rf"|{_NUMBER}\s?(?-i:M)\b"
    rf"|{_NUMBER}\s+(?:(?:page|minor|major) )*faults?\b"
    rf"|{_NUMBER}\s+(?:instructions|cycles)\b"
    rf"|{_NUMBER}\s*\(\s*{_NUMBER}\s*(?:-|–|to)\s*{_NUMBER}\s*\)",  # 1.05 (1.01-1.09)
    re.IGNORECASE,
)
# A constant of the design or a parameter, unless the sentence speaks of performance.
_NAMES = ("version", "python", "cmake", "clang", "gcc", "glibc", "ubuntu", "debian", "kernel", "gperftools")
_NO_VERSION = "".join(f"(?<!{name} )" for name in _NAMES)
AMOUNT = re.compile(
    rf"{_NUMBER}\s?(?:ms|s|seconds|min|minutes)\b"
    rf"|{_NUMBER}\s?[KMGT]i?B\b"
    rf"|{_NO_VERSION}(?<![\w.,])\d+\.\d+(?!\w|\.\d)",
    re.IGNORECASE,
)
PERFORMANCE = re.compile(
    r"\b(?:throughput|fast(?:er|est)|slow(?:er|est|s)?|speed\w*|latenc\w+|wall|cpu time"
    r"|took|costs?|gain(?:s|ed)?|los(?:es|t)|saves?|saved|overhead|regress\w*|improve\w*"
    r"|medians?|means?|average|ratios?|rss|resident|footprint|peaks?|measured|benchmarks?|ops)\b",
    re.IGNORECASE,
)
ANY_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w|\.\d)")

# ---- Markers ---------------------------------------------------------------------------------------------------------

TABLES = ("table", "picture", "uncited")  # these stand in a block of their own
KINDS = (*TABLES, "figure", "expected", "not measured")
MARKER = re.compile(rf"<!--\s*({'|'.join(KINDS)}):(.*?)-->(.*?)<!--\s*end\s*-->", re.DOTALL)
OPENING = re.compile(rf"<!--\s*({'|'.join(KINDS)}|end)\b.*?-->", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"^(?P<fence> {0,3}(?:```+|~~~+)).*?(?:^(?P=fence)|\Z)|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SENTENCE_END = re.compile(r"[.!?][*_)\"']*\s+")


@dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True)
class Marker:
    kind: str
    words: str  # what stands in the opening comment
    body: str
    start: int
    body_start: int
    end: int


@dataclass(frozen=True)
class Piece:
    """A cell of a table, or the sentences of a paragraph. `context`: what else says what its numbers are."""

    start: int
    text: str
    context: str = ""


def _blank(text: str, spans: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> str:
    """The same text and offsets, with spaces in these spans."""
    characters = list(text)
    for start, end in spans:
        characters[start:end] = [character if character == "\n" else " " for character in characters[start:end]]
    return "".join(characters)


class Document:
    """One Markdown file: its markers, and its own text around them."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    @cached_property
    def without_code(self) -> str:
        """In code a marker is an example of one."""
        return _blank(self.text, [match.span() for match in CODE.finditer(self.text)])

    @cached_property
    def markers(self) -> list[Marker]:
        def body(match: re.Match[str]) -> str:  # from the text itself: a fence in it is blank here
            return self.text[match.start(3) : match.end(3)]

        return [
            Marker(match[1], match[2].strip(), body(match), match.start(), match.start(3), match.end())
            for match in MARKER.finditer(self.without_code)
        ]

    def loose_markers(self) -> list[re.Match[str]]:
        """Openings without an end, ends without an opening, and openings inside others."""
        whole = {offset for marker in self.markers for offset in (marker.start, self._end_of(marker))}
        return [match for match in OPENING.finditer(self.without_code) if match.start() not in whole]

    def _end_of(self, marker: Marker) -> int:
        return self.text.rindex("<!--", 0, marker.end)

    @cached_property
    def prose(self) -> str:
        """What is not between markers, in comments, or the target of a link."""
        spans = [(marker.start, marker.end) for marker in self.markers]
        spans += [match.span() for match in COMMENT.finditer(self.without_code)]
        spans += [match.span(1) for match in LINK.finditer(self.text)]
        return _blank(self.text, spans)

    def begins_a_line(self, offset: int) -> bool:
        return not self.text[self.text.rfind("\n", 0, offset) + 1 : offset].strip()

    def paragraph(self, offset: int) -> str:
        start = max(self.text.rfind("\n\n", 0, offset), 0)
        end = self.text.find("\n\n", offset)
        return self.text[start : end if end >= 0 else len(self.text)]

    def tables(self) -> Iterator[list[list[Piece]]]:
        """Tables that are typed by hand: rows of cells."""
        rows: list[list[Piece]] = []
        offset = 0
        for line in [*self.without_code.splitlines(keepends=True), ""]:
            inside = any(marker.body_start <= offset < marker.end and marker.kind == "table" for marker in self.markers)
            if line.lstrip().startswith("|") and not inside:
                rows.append(self._cells(offset, offset + len(line)))
            elif rows:
                yield rows
                rows = []
            offset += len(line)

    def _cells(self, start: int, end: int) -> list[Piece]:
        cells: list[Piece] = []
        for match in re.finditer(r"(?<=\|)[^|]*(?=\|)", self.without_code[start:end]):
            at = start + match.start()
            cells.append(Piece(at, self.prose[at : start + match.end()]))
        return cells

    def pieces(self) -> Iterator[Piece]:
        covered: list[tuple[int, int]] = []
        for rows in self.tables():
            header, *body = rows
            for row in body:
                title = row[0].text if row else ""
                for number, cell in enumerate(row):
                    head = header[number].text if number < len(header) else ""
                    yield Piece(cell.start, cell.text, f"{head} {title}" if number else "")
            cells = [cell for row in rows for cell in row]
            covered += [(cell.start, cell.start + len(cell.text)) for cell in cells]
        rest = _blank(self.prose, covered)
        for paragraph in re.finditer(r"[^\n](?:[^\n]|\n(?!\s*(?:\n|[-*+] |\d+\. |#|```)))*", rest):
            start = paragraph.start()
            for sentence in _sentences(paragraph[0]):
                yield Piece(start, sentence)
                start += len(sentence)


def _sentences(text: str) -> Iterator[str]:
    start = 0
    for end in [*(match.end() for match in SENTENCE_END.finditer(text)), len(text)]:
        yield text[start:end]
        start = end


# ---- The audit -------------------------------------------------------------------------------------------------------


def documents(root: Path) -> list[Document]:
    found: list[Document] = []
    for folder, children, files in os.walk(root):
        children[:] = sorted(name for name in children if name not in SKIPPED_FOLDERS and not name.startswith("."))
        for name in sorted(files):
            if name.endswith(".md"):
                path = Path(folder) / name
                found.append(Document(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")))
    return found


class Definitions:
    """What the tables and pictures of each page consist of: docs/tables/PAGE.toml, with a table of TOML for each."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "docs" / "tables"

    def of(self, document: Document) -> dict[str, object]:
        path = self.folder / f"{Path(document.path).stem}.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except tomllib.TOMLDecodeError as error:
            raise LabError(f"{path.relative_to(self.root)} is no TOML: {error}") from None

    def find(self, document: Document, name: str) -> object:
        found = self.of(document)
        if name not in found:
            path = self.folder.relative_to(self.root) / f"{Path(document.path).stem}.toml"
            raise LabError(f"{path} has no [{name}]")
        return found[name]

    def unused(self, documents: list[Document]) -> Iterator[Finding]:
        used = {
            (Path(one.path).stem, marker.words)
            for one in documents
            for marker in one.markers
            if marker.kind in ("table", "picture")
        }
        for path in sorted(self.folder.glob("*.toml")):
            try:
                names = tomllib.loads(path.read_text(encoding="utf-8"))
            except tomllib.TOMLDecodeError:
                continue  # the page that asks for it says so
            for name in names:
                if (path.stem, name) not in used:
                    yield Finding(path.relative_to(self.root).as_posix(), 1, f"no page has [{name}]")


class Ledger:
    """The records that documents may cite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: dict[str, Record] = {}  # tables ask for the same record in every cell

    def find(self, name: str) -> Record:
        if name not in self._found:
            self._found[name] = self._load(name)
        return self._found[name]

    def _load(self, name: str) -> Record:
        if not re.match(ledger.ID, name):
            raise LabError(f"{name!r} is no record's id")
        try:
            record = ledger.load(name, self.folder)
        except LabError as error:
            raise LabError(str(error).replace(f"{self.folder.parent}/", "")) from None
        if record.size != "full":
            raise LabError(f"the record {name} is of {record.size} size: it proves that something ran, nothing else")
        if record.rounds < FEWEST_ROUNDS:
            raise LabError(f"the record {name} has {record.rounds} runs of each; a figure needs {FEWEST_ROUNDS}")
        return record

    def uncited(self, documents: list[Document]) -> list[Record]:
        """Those of which no document has the name, but where all of these are listed."""
        named = "".join(
            _blank(one.text, [(marker.start, marker.end) for marker in one.markers if marker.kind == "uncited"])
            for one in documents
        )
        words = set(re.findall(r"\d{4}-\d\d-\d\d-[a-z0-9-]+", named))
        return [record for name, record in ledger.load_all(self.folder)[0].items() if name not in words]

    def damaged(self) -> Iterator[Finding]:
        for path in sorted(self.folder.glob("*.json")):
            try:
                ledger.load(path)
            except LabError as error:
                yield Finding(f"{self.folder.name}/{path.name}", 1, str(error).removeprefix(f"{path}: "))


def audit(root: Path, evidence: Path | None = None) -> list[Finding]:
    """All that is wrong in the documents below root and in the ledger."""
    records = Ledger(evidence or root / "evidence")
    findings = list(records.damaged())
    every = documents(root)
    for document in every:
        findings += check(document, root, records, every)
    return sorted({*findings, *Definitions(root).unused(every)})


def write(root: Path, evidence: Path | None = None) -> list[str]:
    """Puts what the records say between the markers; names the files that changed. What can't be computed stays."""
    records = Ledger(evidence or root / "evidence")
    changed: list[str] = []
    every = documents(root)
    for document in every:
        text = document.text
        for marker in reversed(document.markers):
            try:
                body = generated(document, marker, root, records, every)
            except LabError:
                continue
            if marker.kind == "picture":
                changed += _draw(document, marker, root, records)
            if body is not None:
                text = text[: marker.body_start] + body + text[marker.body_start + len(marker.body) :]
        if text != document.text:
            (root / document.path).write_text(text, encoding="utf-8")
            changed.append(document.path)
    return changed


def generated(document: Document, marker: Marker, root: Path, records: Ledger, every: list[Document]) -> str | None:
    """What has to stand between the markers; None where that is the writer's own."""
    name, _, rest = marker.words.partition(" ")

    def link(record: str) -> str:
        return os.path.relpath(records.folder / f"{record}.json", (root / document.path).parent)

    if marker.kind == "table":
        table = figures.parse_table(Definitions(root).find(document, marker.words))
        return f"\n{figures.markdown(table, records.find, link)}\n"
    if marker.kind == "picture":
        definition = pictures.parse(Definitions(root).find(document, marker.words))
        file = os.path.relpath(_picture(root, marker), (root / document.path).parent)
        return f"\n{pictures.markdown(definition, records.find, file, link)}\n"
    if marker.kind == "figure":
        return figures.text(figures.parse(rest, name), records.find)
    if marker.kind == "uncited":
        return f"\n{uncited.listing(records.uncited(every), link)}\n"
    return None


def _picture(root: Path, marker: Marker) -> Path:
    return root / "docs" / f"{marker.words}.svg"


def _drawn(document: Document, marker: Marker, root: Path, records: Ledger) -> str:
    return pictures.svg(pictures.parse(Definitions(root).find(document, marker.words)), records.find)


def _draw(document: Document, marker: Marker, root: Path, records: Ledger) -> Iterator[str]:
    """Writes the picture's file, and names it if that changed it."""
    path, drawn = _picture(root, marker), _drawn(document, marker, root, records)
    if not path.is_file() or path.read_text(encoding="utf-8") != drawn:
        path.write_text(drawn, encoding="utf-8")
        yield path.relative_to(root).as_posix()


def check(document: Document, root: Path, records: Ledger, every: list[Document]) -> Iterator[Finding]:
    def finding(offset: int, message: str) -> Finding:
        return Finding(document.path, document.line(offset), message)

    for match in document.loose_markers():
        yield finding(match.start(), f"a marker without its other half: {match[0].splitlines()[0]}")
    for marker in document.markers:
        try:
            message = _check_marker(document, marker, root, records, every)
        except LabError as error:
            message = str(error)
        if message:
            yield finding(marker.start, message)
    lists = [(marker.start, marker.end) for marker in document.markers if marker.kind == "uncited"]
    for match in LINK.finditer(_blank(document.without_code, lists)):
        target = (root / document.path).parent / match[1].partition("#")[0]
        if os.path.normpath(target.parent) == os.path.normpath(records.folder) and target.suffix == ".json":
            try:
                records.find(target.stem)
            except LabError as error:
                yield finding(match.start(), str(error))
    yield from (finding(offset, message) for offset, message in _mixed_columns(document))
    for piece in document.pieces():
        for match in _figures_in(piece):
            yield finding(piece.start + match.start(), f"a figure that no record backs: {_one_line(match[0])}")


def _check_marker(document: Document, marker: Marker, root: Path, records: Ledger, every: list[Document]) -> str | None:
    if marker.kind not in TABLES and "\n" not in marker.body and document.begins_a_line(marker.start):
        return "a line that begins with a marker ends the paragraph: put a word before it"
    if marker.kind == "expected":
        return None if marker.words else "an expected value without a source: <!-- expected: SOURCE -->"
    if marker.kind == "not measured":
        return None if marker.words else "not measured, but what is it? <!-- not measured: WHAT -->"
    body = generated(document, marker, root, records, every)
    if body != marker.body:
        thing = "picture" if marker.kind == "picture" else "table"
        what = f"this {thing} is" if marker.kind in TABLES else f"{_one_line(marker.body)!r} is"
        says = "" if marker.kind in TABLES else f", which says {body}"
        return f"{what} not what the record gives{says} (hakmem claims --write)"
    if marker.kind == "picture":
        path = _picture(root, marker)
        if not path.is_file() or path.read_text(encoding="utf-8") != _drawn(document, marker, root, records):
            return f"{path.relative_to(root)} is not what the record gives (hakmem claims --write)"
    name = marker.words.split()[0]
    link = re.compile(rf"\]\([^)]*{re.escape(name)}\.json\)")
    if marker.kind == "figure" and not link.search(document.paragraph(marker.start)):
        return f"no link to the record {name} in this paragraph"
    return None


def _mixed_columns(document: Document) -> Iterator[tuple[int, str]]:
    """A column of a table typed by hand holds measured figures or expected values."""
    for rows in document.tables():
        for column in zip(*rows, strict=False):
            kinds = {
                marker.kind
                for cell in column
                for marker in document.markers
                if cell.start <= marker.start < cell.start + len(cell.text)
            }
            if {"figure", "expected"} <= kinds:
                yield column[0].start, "an expected value in a column of measured figures"


def _figures_in(piece: Piece) -> Iterator[re.Match[str]]:
    if piece.context and (PERFORMANCE.search(piece.context) or FIGURE.search(piece.context)):
        pattern: Callable[[str], Iterator[re.Match[str]]] = ANY_NUMBER.finditer
        yield from list(pattern(piece.text))[:1]
        return
    taken = [match for match in FIGURE.finditer(piece.text)]
    if PERFORMANCE.search(f"{piece.context} {piece.text}"):
        taken += [
            match
            for match in AMOUNT.finditer(piece.text)
            if not any(one.start() < match.end() and match.start() < one.end() for one in taken)
        ]
    yield from sorted(taken, key=lambda match: match.start())


def _one_line(text: str) -> str:
    return " ".join(text.split())
