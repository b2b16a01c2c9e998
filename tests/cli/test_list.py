"""Lists fit terminals of any width; programs get everything."""

import sys
from pathlib import Path

import pytest

from nemo_gym.cli.main import main


@pytest.fixture
def many_words(tmp_path: Path) -> list[str]:
    """Make a root with components whose descriptions are long."""
    for name in ("short", "a_name_that_is_long_enough_to_need_most_of_a_terminal"):
        folder = tmp_path / "environments" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(f"# {'Many words about it, and then some more. ' * 4}\n{{}}\n")
    return ["--search-dir", str(tmp_path)]


@pytest.mark.parametrize("columns", [30, 60, 80, 120, 200])
def test_a_list_is_as_wide_as_the_terminal_at_most(
    many_words: list[str], columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wrapped lines make a table unreadable."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert main(["list", "environments", *many_words]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "Name"
    assert lines[0].split()[-1].startswith("Desc")
    assert max(map(len, lines)) <= columns


def test_nothing_is_shortened_without_a_terminal(
    many_words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gym list environments | grep` must find what is there."""
    monkeypatch.setenv("COLUMNS", "40")

    assert main(["list", "environments", *many_words]) == 0

    shown = capsys.readouterr().out
    assert "…" not in shown
    assert "Kind" in shown.splitlines()[0]


def test_an_own_component_that_hides_another_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users must notice that they evaluate another environment than they think."""
    (tmp_path / "environments" / "arithmetic").mkdir(parents=True)
    (tmp_path / "environments" / "arithmetic" / "config.yaml").write_text("# Mine\n{}\n")

    assert main(["list", "environments", "arithmetic", "--search-dir", str(tmp_path)]) == 0

    assert "which hides" in capsys.readouterr().err


def test_the_facts_of_a_manifest_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    """One line of seven hundred characters is not read."""
    assert main(["list", "environments", "arithmetic"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["manifest", "authors", "NeMo", "Gym"] for line in lines)
    assert sum("Sums of one-digit numbers" in line for line in lines) == 1
    assert max(map(len, lines)) < 200


def test_a_search_folder_that_does_not_exist_is_an_error(tmp_path, capsys):
    """Otherwise the components of a mistyped folder seem not to exist, or shipped ones of the same name are used."""
    (tmp_path / "file").touch()

    for name, reason in (("gone", "folder not found"), ("file", "not a folder")):
        assert main(["list", "environments", "--search-dir", str(tmp_path / name)]) == 2
        assert f"Error: --search-dir: {reason}: {tmp_path / name}\n" in capsys.readouterr().err
