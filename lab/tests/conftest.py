"""What holds for all tests."""

from __future__ import annotations

import atexit
import os
import signal
from pathlib import Path

import pytest
from development import steps

# Whoever starts the tests in the background of a shell has Ctrl-C ignored, by nohup the end of a terminal, and every
# process below inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


# A hook of git's that runs the tests has variables that name its repository: tests make some of their own.
steps.leave_out(os.environ)
steps.leave_out(os.environ, steps.SETTINGS)

# Nor do they sign what they commit, or run somebody's hooks.
os.environ |= {"GIT_CONFIG_GLOBAL": str(Path(__file__).with_name("gitconfig")), "GIT_CONFIG_NOSYSTEM": "1"}


def pytest_sessionfinish(session: pytest.Session) -> None:
    """pytest-xdist ends its workers without what Python does at its end, and folders for temporary files would stay."""
    if hasattr(session.config, "workerinput"):
        atexit._run_exitfuncs()
