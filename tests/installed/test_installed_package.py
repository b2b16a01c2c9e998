"""The package as users install it: the built wheel or sdist, in an empty folder, with every supported Python.

Needs the package registry; `python3 dev.py test-installed` runs it.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import pytest

from nemo_gym.launch.venv_build import find_interpreter

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
COMPONENTS = ("benchmarks", "environments", "resources_servers", "responses_api_agents", "responses_api_models")
pytestmark = [
    pytest.mark.network,
    pytest.mark.timeout(600),
    pytest.mark.skipif("GYM_TEST_INSTALLED" not in os.environ, reason="takes minutes: python3 dev.py test-installed"),
]


@dataclass(frozen=True)
class Installation:
    """An environment with the package, and an empty folder to work in."""

    bin: Path
    folder: Path
    env: dict[str, str]

    def run(self, *words: str, status: int = 0, python: bool = False) -> str:
        """Run `gym`, or with `python` the interpreter; return what it printed."""
        program = self.bin / ("python" if python else "gym")
        result = subprocess.run(
            [program, *words], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert result.returncode == status, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout + result.stderr


def tracked_files() -> list[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [name for name in listed if name and (ROOT / name).is_file()]


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Build wheel and sdist from a copy of the tracked files; the checkout stays clean."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked_files():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    subprocess.run([UV, "build", "-q", "--out-dir", source / "dist"], cwd=source, check=True)
    return next(source.glob("dist/*.whl")), next(source.glob("dist/*.tar.gz"))


@pytest.fixture(scope="session")
def user_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The variables of a user without a checkout, with a separate cache folder for weights and tools."""
    home = tmp_path_factory.mktemp("user")
    names = ("VIRTUAL_ENV", "PYTHONPATH", "NEMO_GYM_EXTRA_ROOTS", "OPENAI_API_KEY")
    env = {name: value for name, value in os.environ.items() if name not in names}
    cache = env.get("UV_CACHE_DIR") or subprocess.run([UV, "cache", "dir"], capture_output=True, text=True).stdout
    tools = {"UV_TOOL_DIR": str(home / "tools"), "UV_TOOL_BIN_DIR": str(home / "bin")}
    return {**env, **tools, "XDG_CACHE_HOME": str(home / "cache"), "UV_CACHE_DIR": cache.strip()}


def install(requirement: str, version: str, folder: Path, env: dict[str, str], *options: str) -> Installation:
    python = find_interpreter(version)
    if python == version:
        pytest.skip(f"Python {version} is not on this machine")
    subprocess.run([UV, "venv", "-q", "--python", python, folder / "venv"], check=True)
    command = [UV, "pip", "install", "-q", "--python", folder / "venv/bin/python", *options, requirement]
    subprocess.run(command, env=env, check=True)
    (folder / "empty").mkdir()
    return Installation(folder / "venv/bin", folder / "empty", env)


@pytest.fixture(scope="session", params=["3.11", "3.12", "3.13"])
def installation(request, distributions, user_env, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel with the extra `embedded`, with one Python."""
    requirement = f"nemo-gym[embedded] @ {distributions[0].as_uri()}"
    return install(requirement, request.param, tmp_path_factory.mktemp("installed"), user_env)


def test_every_file_of_a_component_is_in_both_distributions(distributions):
    """A component without its data or requirements is listed and then fails."""
    wheel, sdist = distributions
    shipped = {name for name in tracked_files() if name.startswith(COMPONENTS) and ".gitignore" not in name}

    with zipfile.ZipFile(wheel) as archive:
        assert shipped - set(archive.namelist()) == set()
    with tarfile.open(sdist) as archive:
        assert shipped - {name.partition("/")[2] for name in archive.getnames()} == set()


def test_components_are_listed_and_evaluated_in_an_empty_folder(installation):
    """The first thing a new user does after `pip install`."""
    for kind, name in {
        "environments": "arithmetic",
        "models": "embedded_model",
        "agents": "simple_agent",
        "benchmarks": "arithmetic_suite",
        "resources-servers": "mcqa",
    }.items():
        assert name in [row["name"] for row in json.loads(installation.run("list", kind, "--json"))]

    words = ("--environment", "arithmetic", "--model-type", "embedded_model", "--limit", "2", "--output", "r.jsonl")
    installation.run("eval", "run", *words)

    assert len((installation.folder / "r.jsonl").read_text().splitlines()) == 2
    assert installation.run("-m", "nemo_gym", "--version", python=True) == installation.run("--version")


def test_a_new_environment_works_with_the_commands_that_were_printed(installation):
    """`gym env init` ends with the commands to test and to run what it wrote."""
    printed = installation.run("env", "init", "--environment", "mine")
    commands = [line.partition("gym ")[2].split() for line in printed.splitlines() if "gym " in line]

    assert [command[:2] for command in commands] == [["env", "test"], ["eval", "run"]]
    for command in commands:
        installation.run(*command)


def test_a_benchmark_is_prepared_in_the_working_directory(installation):
    """The folder of the installed package may be read-only, and belongs to every project that uses it."""
    installation.run("eval", "prepare", "--benchmark", "arithmetic_suite")

    rows = installation.folder / "benchmarks/arithmetic_suite/data/arithmetic_suite.jsonl"
    assert rows.is_file()
    assert "1 scored" in installation.run(
        "eval", "run", "--benchmark", "arithmetic_suite", "--model-type", "embedded_model", "--limit", "1",
        "--output", "b.jsonl",
    )  # fmt: skip


def test_a_tree_written_for_nemo_gym_replaces_shipped_folders_by_name(installation):
    """The tree has no `__init__.py`, and its `mcqa` is another server than ours."""
    app = installation.folder / "tree/resources_servers/mcqa/app.py"
    app.parent.mkdir(parents=True)
    app.write_text("WHOSE = 'the tree'\n")
    script = (
        "import nemo_gym, resources_servers.mcqa.app as own, resources_servers.arithmetic.app as ours;"
        "print(own.WHOSE, ours.__file__)"
    )

    env = {**installation.env, "PYTHONPATH": ""}
    printed = Installation(installation.bin, installation.folder / "tree", env).run("-c", script, python=True)

    assert printed.startswith("the tree ") and "site-packages" in printed


VERSIONS, WAYS = ("3.11", "3.12", "3.13"), ("wheel", "editable", "editable, compat mode")
COMBINATIONS = (
    product(WAYS, VERSIONS) if os.environ.get("GYM_TEST_INSTALLED") == "all" else zip(WAYS, VERSIONS, strict=True)
)
"""Each of the nine takes about a minute, so by default every version and every way is tried once."""


@pytest.mark.parametrize(("way", "version"), list(COMBINATIONS))
def test_folders_written_for_nemo_gym_pass_their_tests(way, version, distributions, user_env, tmp_path):
    """Users run them from the root of their tree and from the folder, whose requirements name a checkout of ours."""
    wheel, source = distributions[0], distributions[0].parent.parent
    requirement = f"nemo-gym[dev] @ {(wheel if way == 'wheel' else source).as_uri()}"
    options = ["--config-settings", "editable_mode=compat"] if way.endswith("compat mode") else []
    options += [] if way == "wheel" else ["-e"]
    installation = install(requirement, version, tmp_path, user_env, *options)
    tree = Path(shutil.copytree(ROOT / "tests/compat/newer_tree", tmp_path / "tree"))
    (tree / "conftest.py").write_text(
        "import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent))\n"
    )
    for folder in sorted(path.parent for path in tree.glob("*/*/app.py")):
        env = {**user_env, "PYTHONPATH": os.pathsep.join(map(str, [tree, folder]))}
        for place, path in ((tree, str(folder.relative_to(tree))), (folder, "tests")):
            options = ["-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
            Installation(installation.bin, place, env).run("-m", "pytest", *options, path, python=True)


@pytest.mark.parametrize("way", ["uvx", "uv tool install", "sdist"])
def test_other_ways_to_install_give_the_components_too(way, distributions, user_env, tmp_path):
    """`uvx` and `uv tool install` are how people try a command; the sdist is what distributions build from."""
    wheel, sdist = distributions
    python = ["--python", sys.executable]
    if way == "sdist":
        listed = install(str(sdist), "3.11", tmp_path, user_env).run("list", "models")
    else:
        command = [UV, "tool", "run", *python, "--from", wheel, "gym", "list", "models"]
        if way == "uv tool install":
            subprocess.run([UV, "tool", "install", "-q", *python, wheel], env=user_env, check=True)
            command = [Path(user_env["UV_TOOL_BIN_DIR"], "gym"), "list", "models"]
        run = subprocess.run(command, cwd=tmp_path, env=user_env, capture_output=True, text=True, check=True)
        listed = run.stdout

    assert "openai_model" in listed and "scripted_model" in listed


def test_uv_sync_installs_what_development_and_the_dataset_commands_need(distributions, user_env):
    """`uv sync --extra dev --group docs` is how contributors to NeMo Gym set up a checkout."""
    source = distributions[0].parent.parent
    command = [UV, "sync", "--dry-run", "--python", sys.executable, "--extra", "dev", "--group", "docs"]

    plan = subprocess.run(command, cwd=source, env=user_env, capture_output=True, text=True, check=True).stderr

    for package in ("mlflow-skinny", "huggingface-hub", "splintr-rs", "pre-commit", "pytest", "mkdocs-material"):
        assert f" + {package}==" in plan
