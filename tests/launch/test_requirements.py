"""A server folder runs in this interpreter exactly if its requirements are met here."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.launch.requirements import COMPAT_PACKAGES, required_packages, unmet_requirements


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
def test_installed_requirements_need_no_venv(tmp_path: Path, line: str) -> None:
    """Most folders require nothing special; building a venv for them would waste minutes."""
    (tmp_path / "requirements.txt").write_text(f"\n{line}\n")

    assert unmet_requirements(tmp_path) == []


def test_a_folder_gets_the_packages_that_it_takes_for_granted(tmp_path: Path) -> None:
    """The core of NeMo Gym brings them, so existing folders import them without requiring them."""
    (tmp_path / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\npsutil<6\n")
    (tmp_path / "app.py").write_text("import ray\nimport psutil\nfrom resources_servers.mine.helpers import add\n")
    (tmp_path / "helpers.py").write_text("from openai.types import responses\n\ndef f():\n    import requests\n")
    (tmp_path / "prepare.py").write_text("import datasets\n")

    packages = required_packages(tmp_path)

    assert packages == ["-e nemo-gym[dev] @ ../../", "psutil<6", "openai>=2.7", "ray[default]>=2.56"]
    (tmp_path / "requirements.txt").write_text("psutil<6\n")
    assert required_packages(tmp_path) == ["psutil<6"]


def test_the_extra_compat_has_all_of_them() -> None:
    """With the extra installed, no folder needs a virtual environment for such a package."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())

    assert project["project"]["optional-dependencies"]["compat"] == list(COMPAT_PACKAGES.values())


@pytest.mark.parametrize("line", ["pydantic<1", "no-such-package", "x @ https://example.invalid/x.whl", "-r more.txt"])
def test_unmet_requirements_are_named(tmp_path: Path, line: str) -> None:
    """A requirement that we cannot check needs a venv too."""
    (tmp_path / "requirements.txt").write_text(f"pydantic\n{line}\n")

    assert unmet_requirements(tmp_path) == [line]


def test_a_project_file_counts_with_its_python(tmp_path: Path) -> None:
    """A folder may require another Python, which no installed package can provide."""
    (tmp_path / "pyproject.toml").write_text('[project]\nrequires-python = "<3"\ndependencies = ["pydantic>=2"]\n')

    assert unmet_requirements(tmp_path) == ["python<3"]


def test_two_requirement_files_are_refused(tmp_path: Path) -> None:
    """With both files it is unclear which one counts."""
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "requirements.txt").write_text("pydantic\n")

    with pytest.raises(ConfigError, match="has both"):
        unmet_requirements(tmp_path)
