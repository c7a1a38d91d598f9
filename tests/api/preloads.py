"""Whether a library is hakmem, and can be preloaded: a test that preloads another one would be one of the C library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ASKS = "import ctypes; ctypes.CDLL(None).hak_owns"


def expect_hakmem(library: Path) -> None:
    environment = os.environ | {"LD_PRELOAD": str(library)}
    subprocess.run([sys.executable, "-S", "-E", "-c", ASKS], env=environment, check=True)
