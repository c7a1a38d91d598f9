"""What the library says of its settings, and the page that repeats it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from hakmem import cli, native, settings


def test_every_setting_says_which_values_it_takes() -> None:
    found = {one.name: one for one in settings.listed(native.library())}
    assert found["THP"].values == "off, auto or on" and found["THP"].default == "auto"
    assert found["POLICY"].values == "none, auto, or the name of a file"
    assert set(found) == set(settings.known(native.library()))
    assert all(one.values and one.meaning and one.default for one in found.values())


def test_knobs_have_bounds_and_meanings() -> None:
    found = settings.knobs(native.library())
    assert found and all(one.lowest <= one.default <= one.highest and one.meaning for one in found)


def test_the_page_of_settings_is_what_the_library_says() -> None:
    root = native.checkout()
    assert root is not None
    page = (root / "docs" / "settings.md").read_text()
    for table in settings.markdown(native.library()).strip().split("\n\n"):
        assert f"\n\n{table}\n\n" in page, "hakmem settings --markdown has what is to stand there"


def test_the_page_of_settings_says_what_became_of_former_ones() -> None:
    root = native.checkout()
    assert root is not None
    table = (root / "docs" / "settings.md").read_text().partition("## Settings of former versions")[2]
    rows = dict(re.findall(r"^\| `(HAKMEM_\w+)` \| (.*) \|$", table, re.MULTILINE))
    given = {**os.environ, **dict.fromkeys(rows, "0"), "LD_PRELOAD": str(native.library())}
    said = subprocess.run(["true"], env=given, capture_output=True, text=True).stderr
    assert said == ""
    said = subprocess.run(["true"], env={**given, "HAKMEM_HELP": "1"}, capture_output=True, text=True).stderr
    assert re.findall(r"^hakmem: (\w+) is of a former version; its work is done by (.*)$", said, re.MULTILINE) == [
        *rows.items()
    ]


@pytest.mark.parametrize("words", [[], ["--markdown"]])
def test_the_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["settings", *words])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and "HAKMEM_THP" in said and "decay_ms" in said


def test_what_it_does_not_know() -> None:
    done = subprocess.run([sys.executable, "-m", "hakmem", "settings", "--nosuch"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "hakmem: No such option '--nosuch'.\n"
