"""What goes into a server's environment, and who shares it. Nothing is installed here."""

import json
import platform
import sys
from dataclasses import replace
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution
from pathlib import Path

import pytest

from nemo_gym.catalog.roots import WORKING_DIR
from nemo_gym.errors import ConfigError
from nemo_gym.launch import venv
from nemo_gym.launch.instances import Instance
from nemo_gym.launch.requirements import unsatisfied
from nemo_gym.launch.venv import (
    Environment,
    VenvSettings,
    environment_for,
    environments_for,
    inside,
    own_requirement,
    recipe_for,
)

OWN = "-e nemo-gym[dev] @ ../../"


@pytest.fixture
def settings(tmp_path: Path) -> VenvSettings:
    return VenvSettings(shared=tmp_path / "venvs")


def folder(root: Path, name: str, *lines: str) -> Path:
    made = root / "resources_servers" / name
    made.mkdir(parents=True)
    (made / "requirements.txt").write_text("\n".join(lines) + "\n")
    return made


def instance(made: Path, name: str) -> Instance:
    return Instance(name, "resources_servers", made.name, made, "app.py", "127.0.0.1", 1, "venv")


def test_equal_requirements_share_one_environment(tmp_path: Path, settings: VenvSettings) -> None:
    """A hundred servers that need the same two packages cost one environment."""
    found = [instance(folder(tmp_path, name, OWN, "sympy==1.13"), name) for name in ("a", "b")]
    found.append(instance(folder(tmp_path, "c", OWN, "sympy==1.14"), "c"))

    environments = environments_for(found, settings)

    assert environments["a"] is environments["b"]
    assert environments["a"].servers == ("a", "b")
    assert environments["c"].target != environments["a"].target


def test_the_customary_first_line_means_this_very_installation(tmp_path: Path, settings: VenvSettings) -> None:
    """`../../` is right only in the tree it was written in, and a server in service needs no pytest."""
    made = folder(tmp_path, "a", OWN, "sympy")

    assert recipe_for(made, settings).lines == (own_requirement()[0], "sympy")
    assert recipe_for(made, settings, tests=True).lines == (own_requirement({"dev"})[0], "sympy")


@pytest.mark.parametrize(
    "line", ["nemo-gym[mcp]", "-e ../../[mcp]", "-e nemo-gym[dev,mcp] @ ../../", "nemo_gym[mcp]>=0.1"]
)
def test_other_extras_of_ours_are_kept(tmp_path: Path, settings: VenvSettings, line: str) -> None:
    """Who asks for an extra uses it."""
    assert recipe_for(folder(tmp_path, "a", line), settings).lines == (own_requirement({"mcp"})[0],)


def test_a_changed_requirement_is_another_environment(tmp_path: Path, settings: VenvSettings) -> None:
    """Reuse must never hand out what was asked for yesterday."""
    made = folder(tmp_path, "a", "-r more.txt")
    (made / "more.txt").write_text("sympy==1.13\n")
    keys = [recipe_for(made, settings).key]

    (made / "more.txt").write_text("sympy==1.14\n")
    keys.append(recipe_for(made, settings).key)
    (made / "overrides.txt").write_text("mpmath==1.3\n")
    keys.append(recipe_for(made, settings).key)
    keys.append(recipe_for(made, replace(settings, constraints=("ray==2.56",))).key)
    keys.append(recipe_for(made, replace(settings, python="3.13", python_version="3.13.1")).key)
    keys.append(recipe_for(made, settings, tests=True).key)

    assert len(set(keys)) == len(keys)
    assert recipe_for(made, settings).key == keys[2]


def test_lines_about_files_belong_to_their_folder(tmp_path: Path, settings: VenvSettings) -> None:
    """`-e ./lib` in two folders is two different packages."""
    left, right = (folder(tmp_path, name, "-e ./lib") for name in ("left", "right"))

    assert recipe_for(left, settings).key != recipe_for(right, settings).key


@pytest.mark.parametrize(("wish", "python"), [(">=3.8", sys.executable), ("<3", "<3")])
def test_a_project_may_ask_for_another_python(tmp_path: Path, settings: VenvSettings, wish: str, python: str) -> None:
    """The interpreter of the others is used when it will do."""
    (tmp_path / "pyproject.toml").write_text(f'[project]\nrequires-python = "{wish}"\ndependencies = ["sympy"]\n')

    recipe = recipe_for(tmp_path, settings)

    assert recipe.python == python
    assert recipe.lines == (own_requirement()[0], "sympy")


def test_a_project_with_code_of_its_own_is_installed_as_one(tmp_path: Path, settings: VenvSettings) -> None:
    """Its `src/` is imported by its app."""
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n[build-system]\nrequires = ["setuptools"]\n')

    assert recipe_for(tmp_path, settings).lines == (own_requirement()[0], f"-e {tmp_path}")


@pytest.mark.parametrize("text", ["[project\n", '[project]\nrequires-python = "new"\n'])
def test_a_broken_project_file_is_named(tmp_path: Path, settings: VenvSettings, text: str) -> None:
    """A typo in a TOML file is the author's to fix, not a traceback."""
    (tmp_path / "pyproject.toml").write_text(text)

    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        recipe_for(tmp_path, settings)


def test_defaults_that_the_configuration_filled_in_are_not_choices(tmp_path: Path) -> None:
    """Only a `uv_venv_dir` somebody chose spreads environments over one folder per server."""
    filled = {
        "cache_dir": str(tmp_path),
        "uv_cache_dir": str(tmp_path / "uv"),
        "uv_venv_dir": str(WORKING_DIR),
        "python_version": platform.python_version(),
        "head_server_deps": ["ray[default]==2.56.0"],
    }
    chosen = {**filled, "uv_cache_dir": "/fast/uv", "uv_venv_dir": "/fast/venvs", "ray_head_node_address": "x:1"}

    by_default, by_choice = VenvSettings.from_config(filled), VenvSettings.from_config(chosen)

    assert (by_default.cache, by_default.per_server, by_default.shared) == (None, None, tmp_path / "venvs")
    assert (by_default.constraints, by_default.required) == (("ray==2.56.0",), ())
    assert (by_choice.cache, by_choice.per_server) == (Path("/fast/uv"), Path("/fast/venvs"))
    assert (by_choice.constraints, by_choice.required) == ((), ("ray[default]==2.56.0",))


def test_a_chosen_folder_holds_one_environment_per_server(tmp_path: Path, settings: VenvSettings) -> None:
    """Images are baked with environments at the places the contract names."""
    made = folder(tmp_path, "sums", "sympy")
    chosen = replace(settings, per_server=tmp_path / "baked")

    environment = environment_for("s", "resources_servers", "sums", made, chosen)

    assert environment.target == tmp_path / "baked" / "resources_servers" / "sums" / ".venv"


def test_an_environment_made_by_hand_is_used_when_asked(tmp_path: Path, settings: VenvSettings) -> None:
    """`skip_venv_if_present` is for people who know better."""
    made = folder(tmp_path, "sums", "sympy")
    for name in ("python", "activate"):
        path = made / ".venv" / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    asked = environment_for("s", "resources_servers", "sums", made, replace(settings, skip_if_present=True))
    unasked = environment_for("s", "resources_servers", "sums", made, settings)

    assert asked.target == made / ".venv"
    assert unasked.target.parent == settings.shared


def test_programs_inside_find_their_own_tools_and_tree(tmp_path: Path, settings: VenvSettings) -> None:
    """A server that runs a tool it required must get that one."""
    environment = Environment(recipe_for(tmp_path, settings), tmp_path / "v", tmp_path, ("s",))

    seen = inside(environment, tmp_path / "tree", {"PATH": "/bin", "PYTHONHOME": "/odd", "HOME": "/h"})

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
def test_this_installation_is_named_by_where_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: dict[str, object] | None, line: str
) -> None:
    """A server must run the very code that started it, not what a registry calls by the same name."""
    folder = tmp_path / "nemo_gym-9.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: nemo-gym\nVersion: 9\n")
    if origin is not None:
        (folder / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.setattr(Distribution, "from_name", lambda _: PathDistribution(folder))
    monkeypatch.setattr(venv, "PARENT_DIR", tmp_path)

    assert own_requirement({"mcp"})[0] == line


def test_a_changed_checkout_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dependency added to our own project file must reach the servers."""

    def missing(_: str) -> Distribution:
        raise PackageNotFoundError

    monkeypatch.setattr(Distribution, "from_name", missing)
    monkeypatch.setattr(venv, "PARENT_DIR", tmp_path)
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    before = own_requirement()
    (tmp_path / "pyproject.toml").write_text("[project]\ndependencies = ['x']\n")
    after = own_requirement()

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
def test_an_extra_counts_only_when_what_it_adds_is_here(tmp_path: Path, line: str, met: bool) -> None:
    """Hosting a server whose extra is missing would fail at its first use."""
    (tmp_path / "requirements.txt").write_text(f"{line}\n")

    assert (unsatisfied(tmp_path) == []) is met
