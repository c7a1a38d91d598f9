#!/usr/bin/python3
"""The command hakmem, whose modules are no other program's."""

import sys

sys.path.insert(0, "/usr/lib/hakmem")

from hakmem.__main__ import main  # noqa: E402

main()
