"""What a page has its reader do, as a shell script: files to copy are written, and commands run, in the page's order.

    guide.py PAGE [HEADING]        HEADING: only what stands below it

A command is shown before it runs. The reader takes a moment after one that goes on in the background, and after one
that ends such a one. What still runs at the end is ended.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

MOMENT_S = 15
EXAMPLES = re.compile(r"^<!-- not measured.*?^<!-- end -->", re.DOTALL | re.MULTILINE)  # of outputs
FILE = re.compile(r'^```\w* title="(\S+)"\n(.*?)^```', re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^    (\S.*)", re.MULTILINE)


def section(text: str, heading: str) -> str:
    (body,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return str(body)


def script(text: str) -> str:
    lines = ["set -e", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    text = EXAMPLES.sub("", text)
    lines += [f"cat >{name} <<'END'\n{body}END" for name, body in FILE.findall(text)]
    for command in COMMAND.findall(FILE.sub("", text)):
        lines += [f"echo {shlex.quote(f'$ {command}')}", command]
        if command.endswith("&") or command.startswith("kill "):
            lines.append(f"sleep {MOMENT_S}")
    return "\n".join(lines) + "\n"


text = Path(sys.argv[1]).read_text(encoding="utf-8")
sys.stdout.write(script(section(text, sys.argv[2]) if len(sys.argv) > 2 else text))
