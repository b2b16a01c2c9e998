"""What keeps an environment from being shown to others."""

import shutil
from pathlib import Path

import pytest

from nemo_gym.environment.check import Finding
from nemo_gym.environment.manifest import read_manifest
from nemo_gym.environment.publish import check_publishable
from nemo_gym.scaffold.plan import scaffold_environment

FILLED_IN = {
    "Say here in one sentence what is asked of the model and how the reply is graded.": "Repeat one word.",
    "whom to ask": "Ada Lovelace",
    "licensing: unknown": "licensing: Apache-2.0",
}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """The manifest of a new environment, everything filled in."""
    scaffold_environment(tmp_path, "words", None, kind="environment", roots=[tmp_path])
    path = tmp_path / "environments" / "words" / "manifest.yaml"
    replaced(path, FILLED_IN)
    replaced(tmp_path / "resources_servers" / "words" / "README.md", {"Say here what": "This is what"})
    return path


def replaced(path: Path, words: dict[str, str]) -> None:
    text = path.read_text()
    for old, new in words.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


def findings(path: Path, *roots: Path) -> list[Finding]:
    return check_publishable(path, read_manifest(path), roots or [path.parents[2]])


def test_what_is_filled_in_and_found_is_ready(manifest: Path) -> None:
    assert findings(manifest) == []


@pytest.mark.parametrize(("generated", "filled_in"), FILLED_IN.items())
def test_what_the_scaffold_asks_for_has_to_be_said(manifest: Path, generated: str, filled_in: str) -> None:
    """A listing full of "say here" helps nobody choose."""
    replaced(manifest, {filled_in: generated})

    assert [finding.where for finding in findings(manifest)] == ["manifest.yaml"]


def test_a_placeholder_in_a_readme_is_named_by_line(manifest: Path) -> None:
    (manifest.parent / "README.md").write_text("# Words\n\nTODO: say more\n")

    assert [str(finding) for finding in findings(manifest)] == [
        "environments/words/README.md:3: still says 'TODO'",
    ]


def test_a_missing_readme_is_a_finding(manifest: Path) -> None:
    (manifest.parent / "README.md").unlink()

    assert [finding.problem for finding in findings(manifest)] == ["does not exist"]


def test_a_second_one_of_the_same_name_is_a_finding(manifest: Path, tmp_path: Path) -> None:
    """Two of one name, and it depends on the working directory which one a paper reports."""
    other = tmp_path / "elsewhere"
    shutil.copytree(manifest.parent, other / "environments" / "words")

    (found,) = findings(manifest, tmp_path, other)

    assert str(other) in found.problem


def test_an_environment_that_no_root_has_is_a_finding(manifest: Path, tmp_path: Path) -> None:
    moved = tmp_path / "drafts" / "words"
    shutil.copytree(manifest.parent, moved)
    shutil.rmtree(manifest.parent)

    assert any("nobody finds it" in finding.problem for finding in findings(moved / "manifest.yaml", tmp_path))
