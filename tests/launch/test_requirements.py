"""A server folder is hosted here exactly when this interpreter has what it asks for."""

from importlib.metadata import version
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.requirements import declared, unsatisfied


@pytest.mark.parametrize(
    "line",
    [
        "-e nemo-gym[dev] @ ../../",
        "nemo-gym[dev]",
        f"pydantic=={version('pydantic')}",
        "pydantic>=2",
        "no-such-package; python_version < '3'",
        "# a remark",
        "pydantic  # with a remark",
    ],
)
def test_what_is_installed_needs_no_environment_of_its_own(tmp_path: Path, line: str) -> None:
    """Most folders ask for nothing special; making them wait for an environment would be waste."""
    (tmp_path / "requirements.txt").write_text(f"\n{line}\n")

    assert unsatisfied(tmp_path) == []


@pytest.mark.parametrize("line", ["pydantic<1", "no-such-package", "x @ https://example.invalid/x.whl", "-r more.txt"])
def test_what_is_not_installed_is_named(tmp_path: Path, line: str) -> None:
    """Whatever we cannot vouch for gets an environment of its own."""
    (tmp_path / "requirements.txt").write_text(f"pydantic\n{line}\n")

    assert unsatisfied(tmp_path) == [line]


def test_a_project_file_counts_with_its_python(tmp_path: Path) -> None:
    """A folder may ask for another Python, which no installed package can satisfy."""
    (tmp_path / "pyproject.toml").write_text('[project]\nrequires-python = "<3"\ndependencies = ["pydantic>=2"]\n')

    assert unsatisfied(tmp_path) == ["python<3"]


def test_two_lists_are_refused(tmp_path: Path) -> None:
    """With both files nobody could say which one was meant."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "requirements.txt").write_text("pydantic\n")

    with pytest.raises(ConfigError, match="has both"):
        declared(tmp_path)
