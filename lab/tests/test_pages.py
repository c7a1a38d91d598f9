"""What the pages of this repository tell a reader to follow, open, type or set is there."""

from __future__ import annotations

import http.server
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import dev
import pytest
from hakmem import claims, cli, native, settings

ROOT = native.checkout() or Path()
PAGES = [one for one in claims.documents(ROOT) if not one.path.startswith("docs/decisions/")]
GUIDES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "questions").glob("*.md")),
]
FENCE = re.compile(r'^```(\w*)(?: title="(\S+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)
EXTERNAL = re.compile(r"[a-z]+:")
TYPED = re.compile(r"(?:^|[;&|`$]\s*|\. )(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(hakmem|\./dev) ([^`#|;&>]*)")


def anchor(heading: str) -> str:
    """As forges make it."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
    return re.sub(r"[^\w\- ]", "", words).strip().lower().replace(" ", "-")


def anchors(path: Path) -> set[str]:
    return {anchor(words) for words in re.findall(r"^#+ (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)}


def test_every_link_leads_somewhere() -> None:
    broken = []
    for document in claims.documents(ROOT):
        for match in claims.LINK.finditer(document.without_code):
            path, _, name = match[1].partition("#")
            if EXTERNAL.match(match[1]):
                continue
            target = (ROOT / document.path).parent / path if path else ROOT / document.path
            if not target.exists() or (name and target.suffix == ".md" and name not in anchors(target)):
                broken.append(f"{document.path}:{document.line(match.start())}: {match[1]}")
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs") for path in GUIDES[1:] if path.name != "README.md"]
    assert [str(page) for page in pages if f"]({page})" not in index] == []


def test_every_page_has_its_place_on_the_site() -> None:
    """What no entry names is for developers there."""
    site = (ROOT / "packaging" / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT) for path in GUIDES if path.parent.name != "questions"]
    assert [str(page) for page in pages if f"- {page}\n" not in site and page.name != "README.md"] == []


def test_what_a_shell_would_take_for_a_pattern_is_quoted() -> None:
    """zsh runs nothing where no file is of that name."""
    bare = re.compile(r"""(?<![\w'"])https?://[^\s'"]*[?*&[]""")
    lines = [(path, line) for path in GUIDES for line in path.read_text(encoding="utf-8").splitlines()]
    assert [f"{path.name}: {line}" for path, line in lines if line.startswith("    ") and bare.search(line)] == []


def typed() -> Iterator[tuple[str, list[str]]]:
    """Commands of hakmem and ./dev in the pages' code: where, and their words."""
    for path in GUIDES:
        text = path.read_text(encoding="utf-8")
        code = [line for line in text.splitlines() if line.startswith("    ")]
        code += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
        for line in code:
            for match in TYPED.finditer(line.strip()):
                try:
                    words = shlex.split(match[2])
                except ValueError:
                    continue  # a quotation mark of the sentence's
                yield f"{path.relative_to(ROOT)}: {match[0].strip()}", [match[1], *words]


def problem(words: list[str]) -> str | None:
    if words[0] == "./dev":
        return None if words[1] in dev.COMMANDS else f"./dev knows no {words[1]}"
    if words[1].startswith("-"):
        return None
    command = cli.cli.get_command(click.Context(cli.cli), words[1])
    if command is None:
        return f"there is no hakmem {words[1]}"
    rest = words[2:]
    if isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command = command.get_command(click.Context(command), rest.pop(0))
        if command is None:
            return f"hakmem {words[1]} has no {words[2]}"
    options = {name for parameter in command.params for name in [*parameter.opts, *parameter.secondary_opts]}
    for word in rest:
        if word == "--":
            break
        if re.match(r"--?[a-z]", word) and word.partition("=")[0] not in {*options, "-h", "--help"}:
            return f"hakmem {words[1]} has no {word}"
    return None


def test_every_command_that_is_shown_exists_with_its_options() -> None:
    found = [(where, words) for where, words in typed() if len(words) > 1 and re.match(r"[a-z-]", words[1])]
    assert len(found) > 60
    assert [f"{where}: {why}" for where, words in found if (why := problem(words))] == []


def test_a_command_that_does_not_exist_would_be_found() -> None:
    assert problem(["hakmem", "nosuch"]) and problem(["./dev", "nosuch"])
    assert problem(["hakmem", "compare", "--nosuch", "--", "--also"]) == "hakmem compare has no --nosuch"
    assert problem(["hakmem", "compare", "-n", "3", "--", "program", "--its-own"]) is None


def test_every_setting_and_knob_that_is_named_exists() -> None:
    library = native.library()
    names = {f"HAKMEM_{name}" for name in settings.known(library)}
    former = re.findall(r'HAK_FORMER\("(\w+)"', (ROOT / "src/base/former.def").read_text(encoding="utf-8"))
    knobs = {one.name for one in settings.knobs(library)}
    wrong = []
    for path in GUIDES:
        text = path.read_text(encoding="utf-8")
        wrong += [
            f"{path.name}: {name}"
            for name in re.findall(r"\bHAKMEM_[A-Z_]+", text)
            if name not in names | {"HAKMEM_"} and not (path.name == "settings.md" and name in former)
        ]
        for pairs in re.findall(r"KNOBS=([a-z_]+=[^ `,]+)", text):
            wrong += [f"{path.name}: {one}" for one in pairs.split(":") if one.partition("=")[0] not in knobs]
    assert wrong == []


@pytest.mark.parametrize("name", ["service.py", "holder.py", "load.py", "rows.py", "client.py"])
def test_the_programs_of_the_guides_are_programs(name: str) -> None:
    texts = [path.read_text(encoding="utf-8") for path in GUIDES]
    (body,) = [body for text in texts for _, own, body in FENCE.findall(text) if own == name]
    compile(body, name, "exec")


@pytest.mark.long
def test_the_comparison_of_a_service_works_as_the_guide_tells_it(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "measure-a-service.md").read_text(encoding="utf-8")
    for _, name, body in FENCE.findall(text):
        (tmp_path / name).write_text(body.replace("range(600)", "range(5)"))
    assert "hakmem compare -- python3 load.py" in text
    command = [sys.executable, "-m", "hakmem", "compare", "-n", "2", "--warmup", "0", "--", sys.executable, "load.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "peak RSS: less is better" in done.stdout, done.stderr


class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()


def test_the_load_of_the_guide_ends_where_another_program_has_its_port(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "measure-a-service.md").read_text(encoding="utf-8")
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        for _, name, body in FENCE.findall(text):
            (tmp_path / name).write_text(body.replace("8123", str(other.server_port)))
        done = subprocess.run([sys.executable, "load.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
        other.shutdown()
    assert done.returncode == 1 and done.stderr.endswith("the port is another program's\n")


@pytest.mark.forms
def test_the_example_of_pins_is_one(tmp_path: Path) -> None:
    """As it stands there, with three times as long until it is looked at, for busy machines: most is known."""
    text = (ROOT / "docs" / "pins.md").read_text(encoding="utf-8")
    assert "--after 2 " in text and "sleep(5)" in text
    text = text.replace("--after 2 ", "--after 6 ").replace("sleep(5)", "sleep(15)")
    for _, name, body in FENCE.findall(text):
        (tmp_path / name).write_text(body)
    (line,) = re.findall(r"^    \$ hakmem (pins .* rows\.py)$", text, re.MULTILINE)
    words = [sys.executable if word == "python3" else word for word in shlex.split(line)]
    command = [sys.executable, "-m", "hakmem", words[0], "--json", "-", *words[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["pinned"] > found["held"] / 2 > 4 << 20
    assert found["unknown_pinned"] < found["pinned"] / 2


@pytest.mark.parametrize(
    ("page", "said", "source", "code"),
    [
        (
            "README.md",
            "proved: 4 of 4 programs ran on hakmem, with the outputs",
            "commands/demo.py",
            "proved: {passed} of",
        ),
        (
            "docs/measure-a-service.md",
            "`nothing stands against hakmem`",
            "commands/doctor.py",
            "nothing stands against",
        ),
        (
            "docs/measure-a-service.md",
            "peak RSS: less is better; medians of 10 rounds",
            "report/markdown.py",
            "medians of",
        ),
    ],
)
def test_what_a_page_shows_of_an_output_is_what_the_command_says(page: str, said: str, source: str, code: str) -> None:
    assert said in (ROOT / page).read_text(encoding="utf-8")
    assert code in (ROOT / "lab" / "hakmem" / source).read_text(encoding="utf-8")


SHOWN = [
    ("python3", ["-c", "print('libhakmem' in open('/proc/self/maps').read())"], "True"),
    ("node", ["-p", 'require("fs").readFileSync("/proc/self/maps", "utf8").includes("libhakmem")'], "true"),
    ("ruby", ["-e", 'p File.read("/proc/self/maps").include?("libhakmem")'], "true"),
]


@pytest.mark.forms
@pytest.mark.parametrize(("program", "words", "answer"), SHOWN)
def test_what_shows_that_a_language_is_on_hakmem_does(program: str, words: list[str], answer: str) -> None:
    page = (ROOT / "docs" / "languages.md").read_text(encoding="utf-8")
    assert words[1] in page
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    environment = {**os.environ, "LD_PRELOAD": str(native.library())}
    done = subprocess.run([program, *words], env=environment, capture_output=True, text=True, timeout=600)
    assert done.stdout.strip() == answer


PICTURES = {  # their axes' titles with units, and their legends
    "regret.svg": ("tries", "regret (rewards lost)", "bandit", "choosing by chance"),
    "scale.svg": ("cores", "throughput, one core = 1", "if nothing were shared"),
    "time-and-memory.svg": (
        "time per operation, glibc = 1; less is better",
        "peak memory, glibc = 1; less is better",
        "hakmem",
        "95 % interval",
    ),
    "services-at-rest.svg": ("memory after 20 s of rest, glibc = 1; less is better", "MariaDB", "hakmem", "others"),
}
TEXT, MARK = 4.5, 3.0  # least contrasts that WCAG asks for


def luminance(colour: str) -> float:
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.svg")), ids=lambda path: path.name)
def test_a_picture_names_its_axes_and_can_be_read_in_light_and_dark(path: Path) -> None:
    drawn = path.read_text(encoding="utf-8")
    texts = set(re.findall(r"<text[^>]*>([^<]*)", drawn))
    assert set(PICTURES[path.name]) <= texts
    schemes = [dict(re.findall(r"--(\w+):(#\w{6})", rules)) for rules in re.findall(r"svg\{(--[^}]*)\}", drawn)]
    assert len(schemes) == 2 and "@media(prefers-color-scheme:dark)" in drawn
    for colours in schemes:
        surface = colours["surface"]
        assert min(contrast(colours[name], surface) for name in ("ink", "muted")) >= TEXT
        assert min(contrast(colours[name], surface) for name in ("first", "second", "third")) >= MARK
