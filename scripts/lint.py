"""Rules of this repository that no compiler knows. Run by ./dev lint and ./dev test.

    lint.py [ROOT]

Prints one line per finding, FILE:LINE: RULE: what is wrong; exits with 1 when there is one. Rules:

    layer        a file of src/ includes only its own layer and lower ones; src/hakmem.c includes bottom-up
    up           a file of src/ uses no hak_ name that only a higher layer defines, whoever declares it; no pointer to a
                 function that a higher layer could set
    circle       files of a layer do not call each other in a circle
    atomic       every atomic goes through base/atomic.h, names its order, and says what it pairs with unless relaxed
    name         no own name ends in _t or begins with an underscore: both are reserved
    system       memory system calls only in src/os/
    kernel       no header of the kernel's, linux/ or asm/: not every C library comes with them
    environment  one file reads the process's environment
    comment      a header begins with a comment; a hak_ name in a comment exists
    columns      no line of a .c or .h file in src/ or include/ is longer than 120 characters: the formatter leaves comments
    marker       no notes to oneself
    path         no path of one machine
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

LAYERS = ("base", "os", "slab", "region", "pool", "observe", "control", "front", "api")
SEES_ONLY = {"slab": {"base", "slab"}}  # a layer that is purer than its place in the order
FROM_OUTSIDE = {"src/base/atomic.h": {"model_atomic.h"}}  # headers that the tests provide

# Declared below, defined in this layer: what base promises and only the kernel can do.
PROVIDED_ABOVE = {"hak_misuse": "os", "hak_assertion_failed": "os", "hak_fence_threads": "os"}
# Kept pointers to functions: what is to be done when the kernel interrupts is said from above.
KEEPS_FUNCTIONS = {"src/os/signals.c"}
# Layers whose files call each other to and fro. They are to become fewer.
TANGLED = {"pool", "front"}
TEXT_SUFFIXES = {"", ".c", ".h", ".hpp", ".cpp", ".def", ".py", ".sh", ".md", ".txt", ".cmake", ".in", ".json"}
COLUMNS = 120
SKIPPED_FOLDERS = {".git", ".venv", "build", "__pycache__"}

# Character classes keep the patterns from finding themselves.
MARKER = re.compile(r"\b(?:TO[D]O|FIX[M]E|X{3})\b")
MACHINE_PATH = re.compile(r"(?<![\w.$}])/(?:wor[k]|roo[t])/|/tmp/peer[s]\b")

ATOMIC_CALL = re.compile(r"\b(hak_atomic_\w+)\s*\(")
RAW_ATOMIC = re.compile(r"\b(_Atomic|atomic_\w+|memory_order_\w+|__atomic_\w+|__sync_\w+)\b|<stdatomic\.h>")
ORDERS = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"}

RESERVED = r"(?:_\w+|\w+_t)"
DECLARATIONS = (
    re.compile(rf"\b(?:struct|union|enum)\s+({RESERVED})\s*\{{"),
    re.compile(rf"\btypedef\b[^;{{}}]*?\b({RESERVED})\s*(?:\[[^\]]*\]\s*)?;"),
    re.compile(rf"\}}\s*({RESERVED})\s*;"),
    re.compile(rf"\btypedef\b[^;{{}}]*\(\s*\*\s*({RESERVED})\s*\)"),
    re.compile(rf"^[ \t]*#[ \t]*define[ \t]+({RESERVED})\b", re.MULTILINE),
    re.compile(r"(?:\b\w+\s+|\w\s*\*+\s*)(_\w+)\s*(?=[;=,(){\[])"),
)
# What the C library, the C++ ABI and the compiler already named.
GIVEN_NAMES = re.compile(r"_GNU_SOURCE|_Z\w+|__libc_\w+|__posix_memalign|__alloc_token_\w+|__size_returning_new\w*|__environ|__builtin_\w+|_mm\w*_\w+"
                         r"|__(?:attribute|asm|extension|typeof|thread|alignof)(?:__)?"
                         r"|_(?:Static_assert|Alignas|Alignof|Thread_local|Noreturn|Generic|Bool|Pragma|exit)")

KERNEL_HEADER = re.compile(r"^[ \t]*#[ \t]*include[ \t]+<((?:linux|asm)/[^>]+)>", re.MULTILINE)
CALLS = "mmap(?:2|64)?|munmap|mremap|madvise|mprotect|mlock2?|munlock|mincore|s?brk"
SYSTEM_CALL = re.compile(rf"(?<!\.)(?<!->)\b({CALLS})\s*\(|\b(?:SYS|__NR)_({CALLS})\b")
ENVIRONMENT = re.compile(r"\b(getenv|secure_getenv|_*environ)\b")
HAK_NAME = re.compile(r"\bhak_[a-z0-9_]*[a-z0-9](?![\w*<])")
IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)

# At the top level of a file, where what stands in braces is blank: a function with a body, a variable, a macro.
DEFINITION = re.compile(r"\b(hak_\w+)\s*(?:\((?:[^(){};]|\([^(){};]*\))*\)[^;{}=]*\{"
                        r"|\)?(?:\[[^\]]*\])*\s*(?:=(?!=)|;))")
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(hak_\w+)", re.MULTILINE)
USE = re.compile(r"\bhak_\w+")
NO_DEFINITION = re.compile(r"\b(?:extern|typedef)\b|\b(?:struct|union|enum)\s*\Z")
KEPT_FUNCTION = re.compile(r"\(\s*\*\s*(\w+)\s*(?:\[[^\]]*\])?\)\s*\([^;{}]*?\)\s*(?:=[^;]*)?;")

TOKEN = re.compile(r"(?P<comment>/\*.*?(?:\*/|\Z)|//[^\n]*)"
                   r"|(?P<string>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')", re.DOTALL)


@dataclass(frozen=True, order=True)
class Finding:
    path: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.message}"


class Source:
    """A C file three ways, all with the same offsets: its text; code, where comments and the insides of strings are
    blank; comments, where all else is."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text
        code, comments = list(text), [c if c == "\n" else " " for c in text]
        for match in TOKEN.finditer(text):
            start, end = match.span()
            if match["comment"] is None:
                start, end = start + 1, end - 1
            else:
                comments[start:end] = text[start:end]
            code[start:end] = [c if c == "\n" else " " for c in text[start:end]]
        self.code, self.comments = "".join(code), "".join(comments)

    @property
    def layer(self) -> str:
        """The folder below src/; empty for src/hakmem.c and files outside src/."""
        parts = PurePosixPath(self.path).parts
        return parts[1] if parts[0] == "src" and len(parts) > 2 else ""

    def line(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    def has_comment(self, first: int, last: int) -> bool:
        return any(line.strip() for line in self.comments.splitlines()[max(first, 1) - 1 : last])


def text_files(root: Path) -> Iterator[str]:
    """Names, relative to root, of the text files that belong to the repository."""
    git = ["git", "-c", f"safe.directory={root}", "-C", root]  # it may be another user's
    listed = subprocess.run([*git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True, text=True) if (root / ".git").exists() else None
    if listed is not None and listed.returncode == 0:
        names = listed.stdout.split("\0")
    else:
        names = []
        for folder, children, files in os.walk(root):
            children[:] = [child for child in children if child not in SKIPPED_FOLDERS]
            names += [(Path(folder) / file).relative_to(root).as_posix() for file in files]
    yield from sorted(name for name in names if name and Path(name).suffix in TEXT_SUFFIXES and (root / name).is_file())


def check_text(path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        if match := MARKER.search(line):
            yield Finding(path, number, "marker", f"{match[0]}: do it, or file an issue")
        if match := MACHINE_PATH.search(line):
            yield Finding(path, number, "path", f"{match[0]} exists on one machine only")


def resolve_include(root: Path, source: Source, name: str) -> str | None:
    """The included file relative to root; None when it is none of src/ and include/."""
    for folder in (root / Path(source.path).parent, root / "src", root / "include"):
        target = Path(os.path.normpath(folder / name))
        if target.is_file() and target.is_relative_to(root):
            return target.relative_to(root).as_posix()
    return None


def check_layers(root: Path, source: Source) -> Iterator[Finding]:
    if source.layer and source.layer not in LAYERS:
        yield Finding(source.path, 1, "layer", f"{source.layer} is none of {', '.join(LAYERS)}")
        return
    highest = 0
    for match in INCLUDE.finditer(source.text):
        line, name = source.line(match.start()), match[1]
        if not source.code[match.start() : match.end()].strip() or name in FROM_OUTSIDE.get(source.path, ()):
            continue
        target = resolve_include(root, source, name)
        if target is None:
            yield Finding(source.path, line, "layer", f'"{name}" is in neither src/ nor include/')
            continue
        if not target.startswith("src/"):
            continue
        layer = Source(target, "").layer
        if layer not in LAYERS:
            yield Finding(source.path, line, "layer", f"{target} is in no layer")
        elif not source.layer:
            if LAYERS.index(layer) < highest:
                yield Finding(source.path, line, "layer", f"{target} after {LAYERS[highest]}: include bottom-up")
            highest = max(highest, LAYERS.index(layer))
        elif LAYERS.index(layer) > LAYERS.index(source.layer) or layer not in SEES_ONLY.get(source.layer, LAYERS):
            yield Finding(source.path, line, "layer", f"{source.layer} must not know {layer} ({target})")


def at_top_level(code: str) -> str:
    """The code with blanks for what stands in braces, but not for the braces."""
    depth, kept = 0, []
    for character in code:
        depth -= character == "}"
        kept.append(character if depth == 0 or character == "\n" else " ")
        depth += character == "{"
    return "".join(kept)


def statement_before(code: str, offset: int) -> str:
    """From the end of the statement before to the offset; a line of the preprocessor ends one, too."""
    start = max(code.rfind(end, 0, offset) for end in (";", "}", "{"))
    lines = code[start + 1 : offset].split("\n")
    last = max((i + 1 for i, line in enumerate(lines) if line.lstrip().startswith("#")), default=0)
    return "\n".join(lines[last:])


def defined_names(source: Source) -> Iterator[str]:
    code = at_top_level(source.code)
    for match in DEFINITION.finditer(code):
        if not NO_DEFINITION.search(statement_before(code, match.start())):
            yield match[1]
    yield from MACRO.findall(source.code)


def check_calls_up(sources: list[Source]) -> Iterator[Finding]:
    """What includes don't show: a declaration of one's own, or by a lower header, of what is defined above."""
    layers: dict[str, set[str]] = {}
    for source in sources:
        if source.layer in LAYERS:
            for name in defined_names(source):
                layers.setdefault(name, set()).add(source.layer)
    for source in sources:
        if source.layer not in LAYERS:
            continue
        own = LAYERS.index(source.layer)
        for match in USE.finditer(source.code):
            name, places = match[0], layers.get(match[0], set())
            if places and min(map(LAYERS.index, places)) > own and PROVIDED_ABOVE.get(name) not in places:
                message = f"{name} is defined in {', '.join(sorted(places))}: {source.layer} must not call up"
                yield Finding(source.path, source.line(match.start()), "up", message)
        for match in KEPT_FUNCTION.finditer(code := at_top_level(source.code)):
            before = statement_before(code, match.start())
            is_parameter = before.count("(") > before.count(")")
            is_kept = not is_parameter and "typedef" not in before and "const" not in match[0].split(")")[0]
            if is_kept and source.path not in KEEPS_FUNCTIONS:
                message = f"{match[1]} can be set from above: hand the function over where it is called"
                yield Finding(source.path, source.line(match.start(1)), "up", message)


def check_circles(sources: list[Source]) -> Iterator[Finding]:
    """The first call of each file that a circle goes through. A header that is no file's own only declares."""
    def module(source: Source) -> str:
        return source.path.removeprefix("src/").rpartition(".")[0]

    sources = [source for source in sources if source.layer in LAYERS and source.layer not in TANGLED]
    files = {module(source) for source in sources if source.path.endswith(".c")}
    homes: dict[str, set[str]] = {}
    for source in sources:
        for name in defined_names(source):
            homes.setdefault(name, set()).add(module(source))
    calls: dict[str, dict[str, Finding]] = {file: {} for file in files}
    for source in sources:
        own = module(source)
        for match in USE.finditer(source.code):
            for home in homes.get(match[0], set()):
                is_other = home in files and own in files and own not in homes[match[0]]
                if is_other and PurePosixPath(home).parent.name == source.layer:
                    message = f"{match[0]} is of {home}, which calls {own}, by others perhaps"
                    calls[own].setdefault(home, Finding(source.path, source.line(match.start()), "circle", message))

    def reaches(start: str, goal: str) -> bool:
        seen, ahead = {start}, [start]
        while ahead:
            found = set(calls[ahead.pop()]) - seen
            seen |= found
            ahead += found
        return goal in seen

    yield from (found for own in calls for home, found in calls[own].items() if reaches(home, own))


def call_arguments(code: str, opening: int) -> tuple[list[str], int]:
    """Top-level arguments of the call whose parenthesis is at `opening`, and the offset of the closing one."""
    depth, start, arguments = 0, opening + 1, []
    for offset in range(opening, len(code)):
        if code[offset] in "([{":
            depth += 1
        elif code[offset] in ")]}":
            depth -= 1
        if depth == 0 or (depth == 1 and code[offset] == ","):
            arguments.append(code[start:offset].strip())
            start = offset + 1
        if depth == 0:
            return arguments, offset
    return arguments, len(code)


def check_atomics(source: Source) -> Iterator[Finding]:
    if source.path == "src/base/atomic.h":
        return
    for match in RAW_ATOMIC.finditer(source.code):
        yield Finding(source.path, source.line(match.start()), "atomic", f"{match[0]}: use base/atomic.h")
    for match in ATOMIC_CALL.finditer(source.code):
        arguments, end = call_arguments(source.code, match.end() - 1)
        orders = arguments[-2:] if match[1] == "hak_atomic_cas" else arguments[-1:]
        first, last = source.line(match.start()), source.line(end)
        if not ORDERS.issuperset(orders):
            message = f"its order is not a literal word ({', '.join(orders)})"
        elif set(orders) != {"relaxed"} and not source.has_comment(first - 3, last):
            message = f"no comment says what {orders[0]} pairs with"
        else:
            continue
        yield Finding(source.path, first, "atomic", f"{match[1]}: {message}")


def check_names(source: Source) -> Iterator[Finding]:
    for pattern in DECLARATIONS:
        for match in pattern.finditer(source.code):
            start = source.code.rfind("\n", 0, match.start(1)) + 1
            before = source.code[start : match.start(1)].split()
            used = before and (before[-1] in ("return", "sizeof", "goto", "else") or before[0] in ("#if", "#elif"))
            if not used and not GIVEN_NAMES.fullmatch(match[1]):
                yield Finding(source.path, source.line(match.start(1)), "name", f"{match[1]} is a reserved name")


def check_system_calls(source: Source) -> Iterator[Finding]:
    for match in SYSTEM_CALL.finditer(source.code):
        if source.layer != "os":
            name = match[1] or match[2]
            yield Finding(source.path, source.line(match.start()), "system", f"{name} belongs in src/os/")


def check_kernel_headers(source: Source) -> Iterator[Finding]:
    for match in KERNEL_HEADER.finditer(source.text):
        yield Finding(source.path, source.line(match.start()), "kernel", f"{match[1]}: musl comes without it")


def check_columns(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.text.splitlines(), 1):
        if len(line) > COLUMNS and not source.path.endswith(".def"):
            yield Finding(source.path, number, "columns", f"{len(line)} characters, more than {COLUMNS}")


def check_environment(sources: list[Source]) -> Iterator[Finding]:
    """All readers are named when there is more than one: which of them is right is not known here."""
    readers = {source: match for source in sources if (match := ENVIRONMENT.search(source.code))}
    for source, match in readers.items():
        if len(readers) > 1:
            others = ", ".join(other.path for other in readers if other is not source)
            message = f"{match[1]} is also read by {others}"
            yield Finding(source.path, source.line(match.start()), "environment", message)


def check_comments(sources: list[Source]) -> Iterator[Finding]:
    known = {name for source in sources for name in IDENTIFIER.findall(source.code)}
    for source in sources:
        if source.path.endswith(".h") and not source.text.startswith("/*"):
            yield Finding(source.path, 1, "comment", "a header begins with a comment: what it is, what it owns")
        for match in HAK_NAME.finditer(source.comments):
            if match[0] not in known:
                yield Finding(source.path, source.line(match.start()), "comment", f"there is no {match[0]}")


def lint(root: Path) -> list[Finding]:
    sources: list[Source] = []
    findings: list[Finding] = []
    for name in text_files(root):
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        findings += check_text(name, text)
        if name.startswith(("src/", "include/")) and name.endswith((".c", ".h", ".def")):
            sources.append(Source(name, text))
    for source in sources:
        findings += check_columns(source)
        findings += check_kernel_headers(source)
        if source.path.startswith("src/"):
            for check in (check_atomics, check_names, check_system_calls):
                findings += check(source)
            findings += check_layers(root, source)
    findings += check_calls_up(sources)
    findings += check_circles(sources)
    findings += check_environment(sources)
    findings += check_comments(sources)
    return sorted(set(findings))


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    findings = lint(root)
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
