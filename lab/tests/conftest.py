"""What holds for all tests."""

from __future__ import annotations

import signal

# Whoever starts the tests in the background of a shell has Ctrl-C ignored, by nohup the end of a terminal, and every
# process below inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
