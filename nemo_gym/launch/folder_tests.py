"""Run the tests of server folders, each in the virtual environment that its server would have."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from nemo_gym.config.search_roots import follow_rename
from nemo_gym.errors import ConfigError
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.launch.hosted_instances import declared_hosting
from nemo_gym.launch.requirements import has_test_tools, unmet_requirements
from nemo_gym.launch.venv import Venv, VenvSettings, folder_venv, venv_process_env

TestOutcome = Literal["passed", "failed", "missing", "unrecognised", "not installed"]

EXAMPLE_COUNT = 5
"""Number of rows that the example data of a resources server must have."""
STDERR = 2
JUNIT_ENV_VAR = "GYM_CI_JUNIT_DIR"
HTTPX_WARNING = "ignore:Using `httpx` with `starlette.testclient` is deprecated"
"""Existing folders use httpx; without this filter their tests fail where warnings are errors."""
LOOP_SCOPE_WARNING = 'ignore:The configuration option "asyncio_default_fixture_loop_scope" is unset'
"""pytest-asyncio warns if this setting is unset, and server folders have no configuration file of pytest to set it."""

ASYNC_TESTS = ("-o", "asyncio_mode=auto")
"""Existing folders have `async def` tests without a mark: the settings of the tree they come from run them all."""
PYTEST_SETTINGS = {
    "pytest.toml": "",
    "pytest.ini": "",
    ".pytest.ini": "",
    "pyproject.toml": "[tool.pytest",
    "tox.ini": "[pytest]",
    "setup.cfg": "[tool:pytest]",
}
"""The files in which pytest looks for settings, and the text that a file with settings contains."""


class NoSuchFolder(ConfigError, LookupError):
    """No search root contains a server folder with that name."""

    exit_status = 2


@dataclass(frozen=True)
class FolderTests:
    """The tests of one server folder."""

    kind: str
    name: str
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def tree(self) -> Path:
        """The search root that contains the folder; tests import modules from it."""
        return self.folder.parent.parent


@dataclass(frozen=True)
class FolderTestResult:
    """The outcome of the tests of one folder."""

    suite: FolderTests
    outcome: TestOutcome
    exit_status: int
    seconds: float
    data_problems: tuple[str, ...] | None = None
    """None if the data was not checked."""

    @property
    def has_passed(self) -> bool:
        return self.outcome == "passed" and not self.data_problems


def find_folder_tests(roots: Sequence[Path], *, documented: bool = True) -> list[FolderTests]:
    """Return the tests of every server folder with Python files, sorted; with `documented` only of those with a README.

    Of two folders with the same type and name, the one in the earlier root is used.
    """
    suites: dict[str, FolderTests] = {}
    for root in roots:
        for kind in SERVER_TYPES:
            for folder in sorted((root / kind).glob("*/")):
                suite = FolderTests(kind, folder.name, folder.resolve())
                if not folder.name.startswith((".", "_")) and any(folder.glob("*.py")):
                    suites.setdefault(suite.label, suite)
    if not documented:
        return [suite for _, suite in sorted(suites.items())]
    second_names = {label for label, suite in suites.items() if suite.name != suite.folder.name}
    return [s for label, s in sorted(suites.items()) if label not in second_names and (s.folder / "README.md").exists()]


def folder_tests_of(label: str, roots: Sequence[Path]) -> FolderTests:
    """Return the tests of the folder `<type>/<name>`, also under its old name if it was renamed.

    Raises:
        NoSuchFolder: no search root contains the folder; the error suggests the most similar name.
    """
    suites = {suite.label: suite for suite in find_folder_tests(roots, documented=False)}
    current_label = label if label in suites else str(follow_rename(label) or label)
    if current_label in suites:
        return suites[current_label]
    similar = get_close_matches(label, suites, n=1)
    raise NoSuchFolder(
        f"server folder {label} not found in {', '.join(str(root) for root in roots)}",
        where="entrypoint",
        fix=similar[0] if similar else "write it as <type>/<name>, e.g. resources_servers/arithmetic",
    )


def server_venv(suite: FolderTests, settings: VenvSettings, *, tests: bool) -> Venv | None:
    """Return the virtual environment of a folder's server or of its tests; None if this interpreter can run them."""
    app = suite.folder / "app.py"
    needs_venv = bool(unmet_requirements(suite.folder)) or (app.exists() and declared_hosting(app) == "venv")
    if not needs_venv and (has_test_tools() or not tests):
        return None
    return folder_venv(suite.label, suite.kind, suite.name, suite.folder, settings, tests=tests)


def run_folder_tests(
    suite: FolderTests, venv: Venv | None, *, validate_data: bool, to_stderr: bool = False
) -> FolderTestResult:
    """Run pytest in the folder; with `validate_data`, check its example data; with `to_stderr`, print to stderr."""
    start = time.monotonic()
    process = subprocess.run(
        pytest_command(suite, venv, os.environ),
        cwd=suite.folder,
        env=tests_process_env(suite, venv, os.environ),
        stdin=subprocess.DEVNULL,
        stdout=STDERR if to_stderr else None,
        check=False,
    )
    return FolderTestResult(
        suite,
        outcome_of_exit(process.returncode),
        process.returncode,
        time.monotonic() - start,
        tuple(data_problems(suite.folder)) if validate_data and needs_examples(suite) else None,
    )


def pytest_command(suite: FolderTests, venv: Venv | None, env: Mapping[str, str]) -> list[str]:
    """Return the command that runs the tests of a folder."""
    python = str(venv.python) if venv else sys.executable
    command = [python, "-m", "pytest", "-W", HTTPX_WARNING]
    if not has_pytest_settings(suite.folder):
        command += ASYNC_TESTS
    if env.get(JUNIT_ENV_VAR):
        reports = Path(env[JUNIT_ENV_VAR]).absolute()
        command.append(f"--junit-xml={reports / f'{suite.kind}__{suite.name}.xml'}")
    return command


def has_pytest_settings(folder: Path) -> bool:
    """Return True if the folder, or a folder that contains it, has a file with settings of pytest."""
    return any(
        (parent / name).is_file() and text in (parent / name).read_text(encoding="utf-8", errors="replace")
        for parent in (folder, *folder.parents)
        for name, text in PYTEST_SETTINGS.items()
    )


def tests_process_env(suite: FolderTests, venv: Venv | None, env: Mapping[str, str]) -> dict[str, str]:
    """Return `env` for the tests of a folder, which import modules from the folder and from its search root."""
    module_folders = [str(suite.tree), str(suite.folder), env.get("PYTHONPATH")]
    warning_filters = [env.get("PYTHONWARNINGS"), LOOP_SCOPE_WARNING]
    return {
        **(venv_process_env(venv, suite.tree, env) if venv else env),
        "PYTHONPATH": os.pathsep.join(filter(None, module_folders)),
        "PYTHONWARNINGS": ",".join(filter(None, warning_filters)),
    }


def outcome_of_exit(status: int) -> TestOutcome:
    """Return the test outcome that an exit status of pytest stands for."""
    # 2: errors during collection, 5: no tests collected.
    outcomes: dict[int, TestOutcome] = {0: "passed", 1: "failed", 2: "failed", 5: "missing"}
    return outcomes.get(status, "unrecognised")


def needs_examples(suite: FolderTests) -> bool:
    """Return True if the folder must have example data: it is a resources server's folder that can be run."""
    is_server = (suite.folder / "app.py").exists() or (suite.folder / "configs").exists()
    return suite.kind == "resources_servers" and is_server


def data_problems(folder: Path) -> list[str]:
    """Return the problems of a resources server's example data: five rows, their metrics and five rollouts."""
    data = folder / "data"
    conflicts = sorted(data.glob("*conflict*"))
    problems = [
        _rows_problem(data / "example.jsonl"),
        _metrics_problem(data / "example_metrics.json"),
        *(f"{path.name} exists: the new metrics conflict with the committed ones" for path in conflicts),
        _rows_problem(data / "example_rollouts.jsonl"),
    ]
    return [problem for problem in problems if problem]


def _rows_problem(path: Path) -> str | None:
    if not path.exists():
        return f"{path.name} is missing"
    with path.open("rb") as lines:
        rows = sum(1 for line in lines if line.strip())
    return f"{path.name} has {rows} rows, not {EXAMPLE_COUNT}" if rows != EXAMPLE_COUNT else None


def _metrics_problem(path: Path) -> str | None:
    if not path.exists():
        return f"{path.name} is missing"
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return f"{path.name} is not JSON"
    count = metrics.get("Number of examples") if isinstance(metrics, dict) else None
    return f"{path.name} counts {count} examples, not {EXAMPLE_COUNT}" if count != EXAMPLE_COUNT else None
