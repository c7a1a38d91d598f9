"""What git's history says: of records, which stay as they were committed, and in messages of commits.

evidence/exceptions.toml has what can't be mended any more: a record that a commit changed or removed, a record of a
commit that is gone, a message with a figure. Each names its commit, so that the next one is found.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import msgspec

from hakmem import ledger
from hakmem.errors import LabError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXCEPTIONS = "exceptions.toml"
MOST_MESSAGES = 300
RELEASES = "v[0-9]*"  # as git finds their tags; others are somebody's bookmarks


class Exempt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a commit did to a record, or the commit that a record is of; of its message if there is none."""

    commit: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}$")]
    why: Annotated[str, msgspec.Meta(min_length=1)]
    record: str | None = None


class _Exceptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    exception: list[Exempt] = []


@dataclass(frozen=True)
class Message:
    commit: str
    text: str


class History:
    """Of the repository whose root this is."""

    def __init__(self, root: Path, evidence: Path) -> None:
        self.root, self.evidence = root, evidence

    def missing(self) -> str | None:
        """Why there is no history to look at; None if there is."""
        if not (self.root / ".git").exists():
            return "this is no clone"
        try:
            return "this clone is shallow" if self._git("rev-parse", "--is-shallow-repository") == "true\n" else None
        except LabError as error:
            return str(error)

    def _git(self, *words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(self.root), *words]
        try:
            done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace")
        except FileNotFoundError:
            raise LabError("git is not installed") from None
        if done.returncode != 0:
            raise LabError(f"git {words[0]}: {' '.join(done.stderr.split())}")
        return done.stdout

    @cached_property
    def exceptions(self) -> list[Exempt]:
        path = self.evidence / EXCEPTIONS
        if not path.is_file():
            return []
        try:
            return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _Exceptions).exception
        except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise LabError(str(error)) from None

    # ---- Records -----------------------------------------------------------------------------------------------------

    def changes(self) -> Iterator[tuple[str, str]]:
        """File and what is wrong: records that are not, or were not always, what was committed first."""
        exempt = {(one.record, one.commit) for one in self.exceptions if one.record}
        folder = self.evidence.relative_to(self.root).as_posix()
        contents: dict[str, set[str]] = {}
        removed: dict[str, str] = {}
        for commit, name, content in self._writings(folder):
            if content is None:
                removed.setdefault(name, commit)
                continue
            known = contents.setdefault(name, set())
            if known and content not in known and (name, commit) not in exempt:
                yield f"{folder}/{name}.json", f"commit {commit[:9]} changed it; a record stays as it was committed"
            known.add(content)
        for name, commit in removed.items():
            if not (self.evidence / f"{name}.json").exists() and (name, commit) not in exempt:
                yield f"{folder}/{name}.json", f"commit {commit[:9]} removed it; a record stays, whatever it shows"
        for line in self._git("diff", "--name-only", "--diff-filter=MD", "HEAD", "--", folder).splitlines():
            if line.endswith(".json"):
                yield line, "it is not what was committed; a record stays as it was"

    def _writings(self, folder: str) -> Iterator[tuple[str, str, str | None]]:
        """Commit, record and what it then was, None: gone. The oldest first."""
        told = self._git(
            *("log", "-m", "--topo-order", "--reverse", "--raw", "--no-abbrev", "--no-renames", "--format=%H"),
            *("--", f"{folder}/*.json"),
        )
        commit = ""
        for line in told.splitlines():
            if line.startswith(":"):
                facts, path = line.split("\t")
                content = facts.split()[3]
                yield commit, Path(path).stem, None if set(content) == {"0"} else content
            elif line:
                commit = line

    def strangers(self, commits: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
        """File and what is wrong: records of a commit (`commits`: by record) that a clone of this history lacks."""
        exempt = {(one.record, one.commit) for one in self.exceptions}
        known = set(self._git("rev-list", "HEAD").split())
        for name, commit in commits.items():
            if commit is not None and commit not in known and (name, commit) not in exempt:
                path = (self.evidence / f"{name}.json").relative_to(self.root).as_posix()
                yield (
                    path,
                    f"it is of commit {commit[:9]}, which is not in this history: nobody can measure that again",
                )

    # ---- Messages ----------------------------------------------------------------------------------------------------

    def messages(self) -> Iterator[Message]:
        """Of commits since the last release, at most the newest of them. Those that don't come after the rule, which is
        as old as the list of digests, knew nothing of it."""
        sums = (self.evidence / ledger.SUMS).as_posix()
        rule = self._git("log", "--format=%H", "--diff-filter=A", "--", sums).split()[-1:]
        if not rule:
            return
        of_ours = ("--merged", "HEAD", "--contains", *rule, "--sort=-creatordate")
        releases = self._git("tag", "--list", *of_ours, RELEASES).split()
        told = self._git("log", "-z", "--format=%H%n%B", f"{[*releases, *rule][0]}..HEAD")
        bound = set(self._git("rev-list", "--ancestry-path", f"{rule[0]}..HEAD").split())
        exempt = {one.commit for one in self.exceptions if not one.record}
        messages = (Message(*part.split("\n", 1)) for part in told.split("\0") if part)
        ours = (one for one in messages if one.commit in bound and one.commit not in exempt)
        yield from itertools.islice(ours, MOST_MESSAGES)
