"""The claims audit: no figure of performance in the documentation that no record backs.

Reads every Markdown file of the repository. What looks like a figure of performance has to stand between markers, and
what stands between the markers of a measured figure is exactly what its record says. Comments of sources, other text
and messages of commits have no figures of performance; a message may, if it names a record. Records are as they were
kept, by their digests and by git's history. docs/claims.md tells writers how. A finding is one line: FILE:LINE: what is
wrong.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from hakmem import contest, figures, files, ledger, pictures, remarks, uncited
from hakmem.errors import LabError
from hakmem.history import EXCEPTIONS, History
from hakmem.ledger import Record
from hakmem.performance import AMOUNT, ANY_NUMBER, CLAIM, FIGURE, PERFORMANCE, as_read, is_about_performance

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FEWEST_ROUNDS = 3
WIDEST = 80  # letters of a phrase that is no measured figure
AROUND = 120  # letters beside such a phrase, with which it may be one
# What a reader can look up: an issue, a decision, an address, a publication with its year, a file of the repository.
NO_SOURCE = "an expected value without a source that can be looked up: "
SOURCE = re.compile(r"\b(?:issue|decision) \d+\b|https?://\S+\.\S+|, (?:19|20)\d\d\b")
SKIPPED_FOLDERS = {"node_modules"}  # and build/, and all whose name begins with a dot, but for these
PUBLISHED_FOLDERS = {".ci", ".github"}

# ---- Markers ---------------------------------------------------------------------------------------------------------

TABLES = ("table", "picture", "uncited", "contest")  # these stand in a block of their own
KINDS = (*TABLES, "figure", "expected", "not measured")
MARKER = re.compile(rf"<!--\s*({'|'.join(KINDS)}):(.*?)-->(.*?)<!--\s*end\s*-->", re.DOTALL)
OPENING = re.compile(rf"<!--\s*({'|'.join(KINDS)}|end)\b.*?-->", re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"^(?P<fence> {0,3}(?:```+|~~~+)).*?(?:^(?P=fence)|\Z)|`[^`\n]*`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"\d{4}-\d\d-\d\d-[a-z0-9-]*[a-z0-9]")  # a record, in text
BELOW_A_HEAD = re.compile(r"[\s>]*\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?)?\s*")  # of a table
SENTENCE_END = re.compile(r"(?<!\bvs)[.!?][*_)\"']*\s+")


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

    @cached_property
    def seen(self) -> str:
        """Without comments, and without the list of records that nobody cites."""
        spans = [(marker.start, marker.end) for marker in self.markers if marker.kind == "uncited"]
        spans += [match.span() for match in COMMENT.finditer(self.without_code)]
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
        lines = [*self.without_code.splitlines(keepends=True), ""]
        for line, below in zip(lines, [*lines[1:], ""], strict=True):
            inside = any(marker.body_start <= offset < marker.end and marker.kind == "table" for marker in self.markers)
            is_row = line.lstrip("> \t").startswith("|") or ("|" in line and (rows or BELOW_A_HEAD.fullmatch(below)))
            if is_row and not inside:
                rows.append(self._cells(offset, offset + len(line)))
            elif rows:
                yield rows
                rows = []
            offset += len(line)

    def _cells(self, start: int, end: int) -> list[Piece]:
        cells: list[Piece] = []
        row = re.fullmatch(r"[\s>]*\|?(.*?)\|?\s*", self.without_code[start:end], re.DOTALL)
        assert row is not None
        at = start + row.start(1)
        for cell in row[1].split("|"):
            cells.append(Piece(at, self.prose[at : at + len(cell)]))
            at += len(cell) + 1
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


def _files(root: Path) -> Iterator[Path]:
    for folder, children, names in os.walk(root):
        children[:] = sorted(
            name
            for name in children
            if name in PUBLISHED_FOLDERS or (name not in SKIPPED_FOLDERS and not name.startswith("."))
        )
        if Path(folder) == root:
            children[:] = [name for name in children if name != "build"]
        yield from (Path(folder) / name for name in sorted(names))


def documents(root: Path) -> list[Document]:
    """LabError for one that is no text. What an editor leaves beside one, a link to nowhere, is none."""
    return [
        Document(path.relative_to(root).as_posix(), _text(path, root))
        for path in _files(root)
        if path.suffix == ".md" and path.is_file()
    ]


def _text(path: Path, root: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise LabError(f"{path.relative_to(root)}: no text in UTF-8") from None


class Definitions:
    """What the tables and pictures of each page consist of: docs/tables/PAGE.toml, with a table of TOML for each."""

    def __init__(self, root: Path) -> None:
        self.root, self.folder = root, root / "docs" / "tables"

    def of(self, document: Document) -> dict[str, object]:
        path = self.folder / f"{Path(document.path).stem}.toml"
        try:
            return tomllib.loads(_text(path, self.root)) if path.is_file() else {}
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
                names = tomllib.loads(_text(path, self.root))
            except (tomllib.TOMLDecodeError, LabError):
                continue  # the page that asks for it says so
            for name in names:
                if (path.stem, name) not in used:
                    yield Finding(path.relative_to(self.root).as_posix(), 1, f"no page has [{name}]")


class Ledger:
    """The records that documents may cite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._sums = ledger.unsigned_sums(folder)
        self._found: dict[str, Record] = {}  # tables ask for the same record in every cell

    def find(self, name: str) -> Record:
        if name not in self._found:
            self._found[name] = self._load(name)
        return self._found[name]

    def has(self, name: str) -> bool:
        try:
            return self.find(name) is not None
        except LabError:
            return False

    def _load(self, name: str) -> Record:
        if not re.match(ledger.ID, name):
            raise LabError(f"{name!r} is no record's id")
        try:
            record = self._signed(name)
        except LabError as error:
            raise LabError(str(error).replace(f"{self.folder.parent}/", "")) from None
        if not record.clean:
            raise LabError(f"the record {name} is of a tree with changes: nobody can measure that again")
        if record.size != "full":
            raise LabError(f"the record {name} is of {record.size} size: it proves that something ran, nothing else")
        if record.interrupted:
            why = "who may stop at will stops when it looks good"
            raise LabError(f"the record {name} has fewer rounds than were asked for: {why}")
        if record.rounds < FEWEST_ROUNDS:
            raise LabError(f"the record {name} has {record.rounds} runs of each; a figure needs {FEWEST_ROUNDS}")
        return record

    def _signed(self, name: str) -> Record:
        """One that is as it was kept."""
        record = ledger.load(name, self.folder)
        if record.digest is None:
            path = self.folder / f"{name}.json"
            if name not in self._sums:
                raise LabError(f"{path}: not signed, and not in {ledger.SUMS}")
            if hashlib.sha256(path.read_bytes()).hexdigest() != self._sums[name]:
                raise LabError(f"{path}: edited: {ledger.SUMS} has another digest of it")
        return record

    def newest(self, kind: str) -> Record | None:
        """The last of its kind that may be cited."""
        found = (one for one in ledger.load_all(self.folder)[0].values() if one.kind == kind and self.has(one.id))
        return max(found, key=lambda one: one.date, default=None)

    def uncited(self, documents: list[Document]) -> list[Record]:
        """Those of which no document has the name where a reader sees it, but where all of these are listed."""
        named = "".join(one.seen for one in documents)
        words = set(NAMED.findall(named))
        return [record for name, record in ledger.load_all(self.folder)[0].items() if name not in words]

    def damaged(self) -> Iterator[Finding]:
        for path in sorted(self.folder.glob("*/**/*.json")):
            where = f"{self.folder.name}/{path.relative_to(self.folder)}"
            yield Finding(where, 1, f"no command reads it there: a record lies in {self.folder.name}/ itself")
        for path in sorted(self.folder.glob("*.json")):
            try:
                self._signed(path.stem) if re.match(ledger.ID, path.stem) else ledger.load(path)
            except LabError as error:
                yield Finding(f"{self.folder.name}/{path.name}", 1, str(error).removeprefix(f"{path}: "))
        for number, name in enumerate(self._sums, start=1):
            if not (self.folder / f"{name}.json").is_file():
                yield Finding(f"{self.folder.name}/{ledger.SUMS}", number, f"there is no record {name}")


def audit(root: Path, evidence: Path | None = None) -> list[Finding]:
    """All that is wrong in the documents below root and in the ledger."""
    records = Ledger(evidence or root / "evidence")
    findings = list(records.damaged())
    every = documents(root)
    for document in every:
        findings += check(document, root, records, every)
    findings += _in_other_files(root)
    history = history_of(root, evidence)
    if not history.missing():
        try:
            findings += _of_history(history, records)
        except LabError as error:
            findings.append(Finding(f"{records.folder.name}/{EXCEPTIONS}", 1, str(error)))
    return sorted({*findings, *Definitions(root).unused(every)})


def history_of(root: Path, evidence: Path | None = None) -> History:
    return History(root, evidence or root / "evidence")


def _in_other_files(root: Path) -> Iterator[Finding]:
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else ""
        except UnicodeDecodeError:
            continue  # no text
        for line, said in remarks.claims(name, text):
            yield Finding(name, line, f"a figure of performance where no record can back it: {said}")


def _of_history(history: History, records: Ledger) -> Iterator[Finding]:
    commits = {name: record.commit for name, record in ledger.load_all(records.folder)[0].items()}
    for path, wrong in (*history.changes(), *history.strangers(commits)):
        yield Finding(path, 1, wrong)
    for message in history.messages():
        if any(records.has(name) for name in NAMED.findall(message.text)):
            continue
        text, places = as_read(message.text)
        for match in CLAIM.finditer(text):
            line = message.text.count("\n", 0, places[match.start()]) + 1
            said = f"a figure, and the message names no record: {_one_line(match[0])}"
            yield Finding(f"commit {message.commit[:9]}", line, said)


def write(root: Path, evidence: Path | None = None) -> list[str]:
    """Puts what the records say between the markers; names the files that changed. What can't be computed stays.
    What is written may cite a record, which changes the list of those that nobody cites: so once more."""
    records = Ledger(evidence or root / "evidence")
    changed = _write_once(root, records)
    return list(dict.fromkeys(changed + _write_once(root, records))) if changed else []


def _write_once(root: Path, records: Ledger) -> list[str]:
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
            files.put(root / document.path, text.encode())
            changed.append(document.path)
    return changed


def generated(document: Document, marker: Marker, root: Path, records: Ledger, every: list[Document]) -> str | None:
    """What has to stand between the markers; None where that is the writer's own."""
    name, _, rest = marker.words.partition(" ")

    def link(record: str) -> str:
        return os.path.relpath(records.folder / f"{record}.json", (root / document.path).parent)

    if marker.kind == "table":
        table = figures.parse_table(Definitions(root).find(document, marker.words))
        for source in table.sources:
            if not is_source(source, root):
                raise LabError(f"{NO_SOURCE}{source}")
        return f"\n{figures.markdown(table, records.find, link)}\n"
    if marker.kind == "picture":
        definition = pictures.parse(Definitions(root).find(document, marker.words))
        file = os.path.relpath(_picture(root, marker), (root / document.path).parent)
        return f"\n{pictures.markdown(definition, records.find, file, link)}\n"
    if marker.kind == "figure":
        return figures.text(figures.parse(rest, name), records.find)
    if marker.kind == "contest":
        newest = records.newest(contest.KIND)
        return f"\n{contest.markdown(newest, link) if newest else contest.NOBODY}\n"
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
        files.put(path, drawn.encode())
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
        for offset, said in _figures_in(piece):
            yield finding(piece.start + offset, f"a figure that no record backs: {said}")


def _check_marker(document: Document, marker: Marker, root: Path, records: Ledger, every: list[Document]) -> str | None:
    if marker.kind not in TABLES and "\n" not in marker.body and document.begins_a_line(marker.start):
        return "a line that begins with a marker ends the paragraph: put a word before it"
    if marker.kind in ("expected", "not measured"):
        return _check_unmeasured(document, marker, root)
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


def _check_unmeasured(document: Document, marker: Marker, root: Path) -> str | None:
    """Such a marker is as wide as what it is for: a phrase, a table or a block of code. A comparison or a rate is
    measured or expected, whatever it stands in, but for code, which may show a program's output."""
    if marker.kind == "expected" and not is_source(marker.words, root):
        return f"{NO_SOURCE}{marker.words or '<!-- expected: SOURCE -->'}"
    if not marker.words:
        return "not measured, but what is it? <!-- not measured: WHAT -->"
    body = marker.body.strip()
    if document.begins_a_line(marker.start):
        lines = [line for line in marker.body.splitlines() if line]
        if CODE.sub("", body).strip() == "" or all(line.startswith("    ") for line in lines):
            return None
        if not all(line.startswith("|") for line in lines):
            return f"a marker around more than a table or a block of code: {_one_line(body)[:40]}..."
        found = CLAIM.search(as_read(body)[0])
    elif len(_one_line(body)) > WIDEST or SENTENCE_END.search(body):
        return f"a marker wider than a phrase: {_one_line(body)[:40]}..."
    else:
        found = _claimed_with(document, marker)
    is_measured = found is not None and marker.kind == "not measured"
    return f"a rate or a comparison is measured, or expected: {_one_line(found[0])}" if found and is_measured else None


def is_source(words: str, root: Path) -> bool:
    """Whether they name something that a reader can look up."""
    named = ((root / word).resolve() for word in words.split())
    return bool(SOURCE.search(words)) or any(one.is_file() and one.is_relative_to(root.resolve()) for one in named)


def _claimed_with(document: Document, marker: Marker) -> re.Match[str] | None:
    """A rate or a comparison that a phrase makes with the words beside it."""
    before = document.text[max(0, marker.start - AROUND) : marker.start].rpartition("\n\n")[2]
    after = document.text[marker.end : marker.end + AROUND].partition("\n\n")[0]
    before, body, after = (as_read(text)[0] for text in (before, marker.body, after))
    start, end = len(before), len(before) + len(body)
    found = CLAIM.finditer(before + body + after)
    return next((one for one in found if one.start() < end and one.end() > start), None)


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


def _figures_in(piece: Piece) -> Iterator[tuple[int, str]]:
    """Where they stand in the piece, and what they say."""
    text, places = as_read(piece.text)
    context = as_read(piece.context)[0]
    if context and (PERFORMANCE.search(context) or FIGURE.search(context)):
        taken = list(ANY_NUMBER.finditer(text))[:1]
    else:
        taken = list(FIGURE.finditer(text))
        if is_about_performance(f"{context} {text}"):
            taken += [
                match
                for match in AMOUNT.finditer(text)
                if not any(one.start() < match.end() and match.start() < one.end() for one in taken)
            ]
    for match in sorted(taken, key=lambda match: match.start()):
        yield places[match.start()], _one_line(match[0])


def _one_line(text: str) -> str:
    return " ".join(text.split())
