"""The content of a server's virtual environment, and which servers share it. Nothing is installed here."""

import json
import platform
import sys
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution
from pathlib import Path

import pytest

from nemo_gym.config.search_roots import WORKING_DIR
from nemo_gym.errors import ConfigError
from nemo_gym.launch import venv
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.launch.requirements import unmet_requirements
from nemo_gym.launch.venv import (
    Venv,
    VenvSettings,
    folder_venv,
    instance_venvs,
    nemo_gym_requirement,
    venv_process_env,
    venv_recipe,
)

OWN = "-e nemo-gym[dev] @ ../../"


@pytest.fixture
def settings(tmp_path: Path) -> VenvSettings:
    return VenvSettings(shared=tmp_path / "venvs")


def write_folder(root: Path, name: str, *lines: str) -> Path:
    path = root / "resources_servers" / name
    path.mkdir(parents=True)
    (path / "requirements.txt").write_text("\n".join(lines) + "\n")
    return path


def make_instance(path: Path, name: str) -> Instance:
    return Instance(name, "resources_servers", path.name, path, "app.py", "127.0.0.1", 1, "venv")


def test_equal_requirements_share_one_venv(tmp_path: Path, settings: VenvSettings) -> None:
    """A hundred servers that need the same two packages cost one venv."""
    instances = [make_instance(write_folder(tmp_path, name, OWN, "sympy==1.13"), name) for name in ("a", "b")]
    instances.append(make_instance(write_folder(tmp_path, "c", OWN, "sympy==1.14"), "c"))

    venvs = instance_venvs(instances, settings)

    assert venvs["a"] is venvs["b"]
    assert venvs["a"].servers == ("a", "b")
    assert venvs["c"].target != venvs["a"].target


def test_the_customary_first_line_means_this_installation(tmp_path: Path, settings: VenvSettings) -> None:
    """`../../` is right only in the tree it was written in, and a server needs no pytest."""
    path = write_folder(tmp_path, "a", OWN, "sympy")

    assert venv_recipe(path, settings).lines == (nemo_gym_requirement()[0], "sympy")
    assert venv_recipe(path, settings, tests=True).lines == (nemo_gym_requirement({"dev"})[0], "sympy")


@pytest.mark.parametrize(
    "line", ["nemo-gym[mcp]", "-e ../../[mcp]", "-e nemo-gym[dev,mcp] @ ../../", "nemo_gym[mcp]>=0.1"]
)
def test_other_extras_of_ours_are_kept(tmp_path: Path, settings: VenvSettings, line: str) -> None:
    """A server that requires an extra uses it."""
    assert venv_recipe(write_folder(tmp_path, "a", line), settings).lines == (nemo_gym_requirement({"mcp"})[0],)


def test_a_changed_requirement_is_another_venv(tmp_path: Path, settings: VenvSettings) -> None:
    """Reuse must never provide yesterday's requirements."""
    path = write_folder(tmp_path, "a", "-r more.txt")
    (path / "more.txt").write_text("sympy==1.13\n")
    keys = [venv_recipe(path, settings).key]

    (path / "more.txt").write_text("sympy==1.14\n")
    keys.append(venv_recipe(path, settings).key)
    (path / "overrides.txt").write_text("mpmath==1.3\n")
    keys.append(venv_recipe(path, settings).key)
    keys.append(venv_recipe(path, replace(settings, constraints=("ray==2.56",))).key)
    keys.append(venv_recipe(path, replace(settings, python="3.13", python_version="3.13.1")).key)
    keys.append(venv_recipe(path, settings, tests=True).key)

    assert len(set(keys)) == len(keys)
    assert venv_recipe(path, settings).key == keys[2]


def test_lines_that_name_files_belong_to_their_folder(tmp_path: Path, settings: VenvSettings) -> None:
    """`-e ./lib` in two folders is two different packages."""
    left, right = (write_folder(tmp_path, name, "-e ./lib") for name in ("left", "right"))

    assert venv_recipe(left, settings).key != venv_recipe(right, settings).key


@pytest.mark.parametrize(("specifier", "python"), [(">=3.8", sys.executable), ("<3", "<3")])
def test_a_project_may_require_another_python(
    tmp_path: Path, settings: VenvSettings, specifier: str, python: str
) -> None:
    """The common interpreter is used if the project allows it."""
    (tmp_path / "pyproject.toml").write_text(f'[project]\nrequires-python = "{specifier}"\ndependencies = ["sympy"]\n')

    recipe = venv_recipe(tmp_path, settings)

    assert recipe.python == python
    assert recipe.lines == (nemo_gym_requirement()[0], "sympy")


def test_a_project_with_code_is_installed_as_a_whole(tmp_path: Path, settings: VenvSettings) -> None:
    """Its `src/` is imported by its app."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[build-system]\nrequires = ["setuptools"]\n')

    assert venv_recipe(tmp_path, settings).lines == (nemo_gym_requirement()[0], f"-e {tmp_path}")


@pytest.mark.parametrize("text", ["[project\n", '[project]\nrequires-python = "new"\n'])
def test_a_broken_project_file_is_named(tmp_path: Path, settings: VenvSettings, text: str) -> None:
    """A typo in a TOML file must not be a traceback."""
    (tmp_path / "pyproject.toml").write_text(text)

    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        venv_recipe(tmp_path, settings)


def test_computed_defaults_count_as_unset(tmp_path: Path) -> None:
    """Only a chosen `uv_venv_dir` means one venv per server."""
    defaults = {
        "cache_dir": str(tmp_path),
        "uv_cache_dir": str(tmp_path / "uv"),
        "uv_venv_dir": str(WORKING_DIR),
        "python_version": platform.python_version(),
        "head_server_deps": ["ray[default]==2.56.0"],
    }
    chosen = {**defaults, "uv_cache_dir": "/fast/uv", "uv_venv_dir": "/fast/venvs", "ray_head_node_address": "x:1"}

    by_default, by_choice = VenvSettings.from_config(defaults), VenvSettings.from_config(chosen)

    assert (by_default.cache, by_default.per_server, by_default.shared) == (None, None, tmp_path / "venvs")
    assert (by_default.constraints, by_default.required) == (("ray==2.56.0",), ())
    assert (by_choice.cache, by_choice.per_server) == (Path("/fast/uv"), Path("/fast/venvs"))
    assert (by_choice.constraints, by_choice.required) == ((), ("ray[default]==2.56.0",))


def test_a_chosen_folder_holds_one_venv_per_server(tmp_path: Path, settings: VenvSettings) -> None:
    """Container images have venvs at the paths that the contract names."""
    path = write_folder(tmp_path, "sums", "sympy")
    chosen = replace(settings, per_server=tmp_path / "baked")

    venv = folder_venv("s", "resources_servers", "sums", path, chosen)

    assert venv.target == tmp_path / "baked" / "resources_servers" / "sums" / ".venv"


def test_an_existing_venv_is_used_if_configured(tmp_path: Path, settings: VenvSettings) -> None:
    """`skip_venv_if_present` is for users who prepare venvs themselves."""
    path = write_folder(tmp_path, "sums", "sympy")
    for name in ("python", "activate"):
        file = path / ".venv" / "bin" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    existing = folder_venv("s", "resources_servers", "sums", path, replace(settings, skip_if_present=True))
    default = folder_venv("s", "resources_servers", "sums", path, settings)

    assert existing.target == path / ".venv"
    assert default.target.parent == settings.shared


def test_processes_in_a_venv_find_its_tools_and_their_tree(tmp_path: Path, settings: VenvSettings) -> None:
    """A server that runs a required tool must get the version of its venv."""
    made = Venv(venv_recipe(tmp_path, settings), tmp_path / "v", tmp_path, ("s",))

    seen = venv_process_env(made, tmp_path / "tree", {"PATH": "/bin", "PYTHONHOME": "/odd", "HOME": "/h"})

    assert seen == {
        "HOME": "/h",
        "PATH": f"{tmp_path}/v/bin:/bin",
        "PYTHONPATH": f"{tmp_path}/tree",
        "VIRTUAL_ENV": f"{tmp_path}/v",
    }


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        ({"url": "file:///co", "dir_info": {"editable": True}}, "-e /co[mcp]"),
        ({"url": "file:///w/nemo_gym-9-py3-none-any.whl"}, "nemo-gym[mcp] @ file:///w/nemo_gym-9-py3-none-any.whl"),
        (None, "nemo-gym[mcp]==9"),
    ],
)
def test_this_installation_is_named_by_its_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, line: str
) -> None:
    """A server must run the code that started it, not a package of the same name in a registry."""
    folder = tmp_path / "nemo_gym-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: nemo-gym\nVersion: 9\n")
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(Distribution, "from_name", lambda _: PathDistribution(folder))
    monkeypatch.setattr(venv, "PARENT_DIR", tmp_path)

    assert nemo_gym_requirement({"mcp"})[0] == line


def test_a_changed_checkout_is_another_venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dependency added to our own project file must reach the servers."""

    def missing(_: str) -> Distribution:
        raise PackageNotFoundError

    monkeypatch.setattr(Distribution, "from_name", missing)
    monkeypatch.setattr(venv, "PARENT_DIR", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    before = nemo_gym_requirement()
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['x']\n")
    after = nemo_gym_requirement()

    assert before[0] == after[0] == f"-e {tmp_path}"
    assert before[1] != after[1]


@pytest.mark.parametrize(
    ("line", "met"),
    [
        ("nemo-gym[dev]", True),
        ("nemo-gym[no-such-extra]", True),
        ("nemo-gym[ray]", False),
        ("uvicorn", True),
        ("uvicorn[standard]", False),
        ("--extra-index-url https://example.invalid/simple", True),
        ("-e ../../", True),
        ("-e ../../other", False),
        ("nemo-gym-other", False),
    ],
)
def test_an_extra_is_met_only_if_its_packages_are_installed(tmp_path: Path, line: str, met: bool) -> None:
    """Hosting a server whose extra is missing would fail at its first use."""
    (tmp_path / "requirements.txt").write_text(f"{line}\n")

    assert (unmet_requirements(tmp_path) == []) is met
