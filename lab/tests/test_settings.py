"""What the library says of its settings, and the page that repeats it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hakmem import allocators, cli, control, native, settings
from hakmem.errors import LabError


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
    values = dict.fromkeys(rows, "0") | {"HAKMEM_PROF_INTERVAL": "1"}
    given = {**os.environ, **values, "LD_PRELOAD": str(native.library())}
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


def test_a_wrong_value_of_help_is_refused_as_of_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.parse(["HELP=0"], native.library()) == {"HAKMEM_HELP": "0"}
    with pytest.raises(LabError, match="HAKMEM_HELP=2: expected 0 or 1"):
        settings.parse(["HELP=2"], native.library())
    monkeypatch.setenv("HAKMEM_HELP", "2")
    with pytest.raises(LabError, match="HAKMEM_HELP=2: expected 0 or 1"):
        settings.expect_callers(native.library())


def test_a_policy_may_be_for_the_program_that_is_to_run(tmp_path: Path) -> None:
    """Which is not the one that the library is asked in."""
    library, policy = native.library(), tmp_path / "some.policy"
    text = control.policy_text(native.version(library), "ab" * 20, control.Learned({"decay_ms": 2000}, {}), [])
    policy.write_text(text)
    assert settings.parse([f"POLICY={policy}"], library) == {"HAKMEM_POLICY": str(policy)}
    policy.write_text(text.replace("policy 1", "policy 9"))
    with pytest.raises(LabError, match="^setting HAKMEM_POLICY=.*some.policy: "):
        settings.parse([f"POLICY={policy}"], library)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("HAKMEM_PROFILE", "^setting HAKMEM_PROFILE=leen: expected balanced, speed, "),
        ("HAKMEM_PROFIL", r"^unknown setting HAKMEM_PROFIL=leen \(HAKMEM_HELP=1 lists all\)$"),
    ],
)
def test_what_is_ignored_of_the_callers_settings_is_not_measured(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "leen")
    with pytest.raises(LabError, match=said):
        allocators.hakmem()
    monkeypatch.delenv(name)
    monkeypatch.setenv("HAKMEM_PROFILE", "lean")
    assert allocators.hakmem().library == native.library()


def test_what_it_does_not_know() -> None:
    done = subprocess.run([sys.executable, "-m", "hakmem", "settings", "--nosuch"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr == "hakmem: No such option '--nosuch'.\n"
