"""What tests compile: a compiler that lacks something is a reason to skip a test, a source with a mistake is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from compiled import compile_c


def test_a_source_that_does_not_compile_fails(tmp_path: Path) -> None:
    for options in ((), ("-pthread",)):
        with pytest.raises((AssertionError, pytest.skip.Exception), match="nothing_of_this_name") as ended:
            compile_c(tmp_path / "program", "int main(void) { return nothing_of_this_name; }", *options)
        assert ended.type is AssertionError


def test_what_the_compiler_lacks_skips(tmp_path: Path) -> None:
    for options, compiler in ((("-no-such-option",), "cc"), ((), "no-such-compiler")):
        with pytest.raises(pytest.skip.Exception, match="no-such"):
            compile_c(tmp_path / "program", "int main(void) { return 0; }", *options, compiler=compiler)
