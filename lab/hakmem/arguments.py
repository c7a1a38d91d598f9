"""Arguments of commands that are words: a command with its own arguments, or names of traces."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


class _Words(click.types.UnprocessedParamType):
    """Taken as they are given. A shell completes them by files."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


WORDS = _Words()
