"""Lays out the pages of the documentation for mkdocs, and what they link to, as they lie in the tree.

    site.py ROOT TARGET

Writes TARGET/pages, and TARGET/mkdocs.yml with the navigation complete: `docs/decisions/*` there stands for all pages
of that folder, `others/*` for all that no other entry names. A link to a folder becomes one to a list of its files.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pathspec

LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LIST_AFTER_PARAGRAPH = re.compile(r"^((?![-*+] |[|#>\s]|\d+\. ).*)\n(?=[-*+] |1\. )", re.MULTILINE)


def pages(root: Path) -> list[Path]:
    ignored = pathspec.PathSpec.from_lines("gitwildmatch", (root / ".gitignore").read_text().splitlines())
    found = [path.relative_to(root) for path in root.rglob("*.md")]
    return sorted(path for path in found if not path.parts[0].startswith(".") and not ignored.match_file(path))


def targets(root: Path, page: Path) -> Iterator[Path]:
    """Files of the tree that a page links to."""
    for match in LINK.finditer(FENCE.sub("", (root / page).read_text(encoding="utf-8"))):
        target = (root / page.parent / match[2]).resolve()
        if target.is_relative_to(root) and target.exists():
            yield target.relative_to(root)


def with_lists_apart(text: str) -> str:
    """With an empty line between a paragraph and its list, which the site's Markdown wants and forges don't."""
    parts, end = [], 0
    for fence in FENCE.finditer(text):
        parts += [LIST_AFTER_PARAGRAPH.sub(r"\1\n\n", text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LIST_AFTER_PARAGRAPH.sub(r"\1\n\n", text[end:])])


def listing(root: Path, folder: Path) -> str:
    names = sorted(path.name for path in (root / folder).iterdir() if path.suffix == ".md")
    lines = [f"- [{title(root / folder / name)}]({name})" for name in names]
    return f"# {folder.name.capitalize()}\n\n" + "\n".join(lines) + "\n"


def title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()


def lay_out(root: Path, target: Path) -> list[Path]:
    """Copies all, and names the pages there are."""
    found = pages(root)
    folders: set[Path] = set()
    for page in found:
        linked = set(targets(root, page))
        folders |= {path for path in linked if (root / path).is_dir()}
        for path in {page, *(path for path in linked if (root / path).is_file())}:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / path, target / path)
    for folder in folders:
        (target / folder / "index.md").parent.mkdir(parents=True, exist_ok=True)
        (target / folder / "index.md").write_text(listing(root, folder), encoding="utf-8")
    for page in found:
        text = (target / page).read_text(encoding="utf-8")

        def pointed(match: re.Match[str], page: Path = page) -> str:
            to = (root / page.parent / match[2]).resolve()
            return f"{match[1]}{match[2].rstrip('/')}/index.md)" if to.is_dir() else match[0]

        (target / page).write_text(with_lists_apart(LINK.sub(pointed, text)), encoding="utf-8")
    return [*found, *(folder / "index.md" for folder in sorted(folders))]


def navigation(text: str, found: list[Path]) -> str:
    """The lines of mkdocs.yml with what its stars stand for."""
    named = {Path(name) for name in re.findall(r"[\w./-]+\.md", text)}

    def expanded(match: re.Match[str]) -> str:
        margin, name, folder = match[1], match[2], Path(match[3])
        if folder.name == "others":
            stars = {Path(star) for star in re.findall(r"([\w./-]+)/\*", text)}
            own = [path for path in found if path not in named and path.parent not in stars]
        else:
            own = [path for path in found if path.parent == folder]
        rows = "".join(f"\n{margin}    - {path.as_posix()}" for path in sorted(own, key=lambda p: (p.name != "index.md", p)))
        return f"{margin}- {name}:{rows}"

    return re.sub(r"^( *)- ([^:\n]+): ([\w./-]+)/\*$", expanded, text, flags=re.MULTILINE)


def main() -> None:
    root, target = (Path(word).resolve() for word in sys.argv[1:])
    found = lay_out(root, target / "pages")
    settings = (root / "packaging" / "mkdocs.yml").read_text(encoding="utf-8")
    (target / "mkdocs.yml").write_text(navigation(settings, found), encoding="utf-8")


main()
