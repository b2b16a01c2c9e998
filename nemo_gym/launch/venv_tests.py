"""The tests that server folders bring along, each run in the environment its server would have."""

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

from nemo_gym.catalog.roots import renamed
from nemo_gym.errors import ConfigError
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.launch.instances import declared_hosting
from nemo_gym.launch.requirements import has_test_tools, unsatisfied
from nemo_gym.launch.venv import Environment, VenvSettings, environment_for, inside

Result = Literal["passed", "failed", "missing", "unrecognised", "not installed"]

EXAMPLES = 5
STDERR = 2
JUNIT_ENV_VAR = "GYM_CI_JUNIT_DIR"
# Starlette's test client warns about httpx, which existing folders need; where warnings are errors that would fail all.
UNSET_SCOPE = 'The configuration option "asyncio_default_fixture_loop_scope" is unset'
"""A warning of a test plugin about a setting that a server folder has no place for."""
QUIET = "ignore:Using `httpx` with `starlette.testclient` is deprecated"


class NoSuchFolder(ConfigError, LookupError):
    """No root has a server folder of that name."""

    exit_status = 2


@dataclass(frozen=True)
class Suite:
    """The tests of one server folder."""

    kind: str
    name: str
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.kind}/{self.name}"

    @property
    def tree(self) -> Path:
        """The root that the folder belongs to, from which tests import."""
        return self.folder.parent.parent


@dataclass(frozen=True)
class Verdict:
    """How one suite went."""

    suite: Suite
    result: Result
    status: int
    seconds: float
    data_problems: tuple[str, ...] | None = None
    """None when the data was not looked at."""

    @property
    def is_good(self) -> bool:
        return self.result == "passed" and not self.data_problems


def all_suites(roots: Sequence[Path], *, documented: bool = True) -> list[Suite]:
    """Every server folder of every kind, sorted; with `documented` only those with a README. The first root wins."""
    found: dict[str, Suite] = {}
    for root in roots:
        for kind in SERVER_TYPES:
            for folder in sorted((root / kind).glob("*/")):
                suite = Suite(kind, folder.name, folder.resolve())
                if not folder.name.startswith((".", "_")) and any(folder.glob("*.py")):
                    found.setdefault(suite.label, suite)
    return [suite for _, suite in sorted(found.items()) if not documented or (suite.folder / "README.md").exists()]


def named_suite(label: str, roots: Sequence[Path]) -> Suite:
    """The suite called `<type>/<name>`.

    Raises:
        ConfigError: there is none; the nearest that exists is named.
    """
    known = {suite.label: suite for suite in all_suites(roots, documented=False)}
    now = label if label in known else str(renamed(label) or label)
    if now in known:
        return known[now]
    close = get_close_matches(label, known, n=1)
    raise NoSuchFolder(
        f"there is no server folder {label} in {', '.join(str(root) for root in roots)}",
        where="entrypoint",
        fix=close[0] if close else "write it as <type>/<name>, e.g. resources_servers/arithmetic",
    )


def server_environment(suite: Suite, settings: VenvSettings, *, tests: bool) -> Environment | None:
    """The environment of a folder's server, or of its tests; None when this interpreter will do."""
    app = suite.folder / "app.py"
    isolated = unsatisfied(suite.folder) or (app.exists() and declared_hosting(app) == "venv")
    if not isolated and (has_test_tools() or not tests):
        return None
    return environment_for(suite.label, suite.kind, suite.name, suite.folder, settings, tests=tests)


def run_suite(
    suite: Suite, environment: Environment | None, *, validate_data: bool, to_stderr: bool = False
) -> Verdict:
    """Run pytest in the folder and check its example data if asked."""
    began = time.monotonic()
    done = subprocess.run(
        pytest_command(suite, environment, os.environ),
        cwd=suite.folder,
        env=suite_environment(suite, environment, os.environ),
        stdin=subprocess.DEVNULL,
        stdout=STDERR if to_stderr else None,
        check=False,
    )
    return Verdict(
        suite,
        result_of(done.returncode),
        done.returncode,
        time.monotonic() - began,
        tuple(data_problems(suite.folder)) if validate_data and has_examples(suite) else None,
    )


def pytest_command(suite: Suite, environment: Environment | None, surroundings: Mapping[str, str]) -> list[str]:
    """How pytest is called for a suite."""
    python = str(environment.python) if environment else sys.executable
    command = [python, "-m", "pytest", "-W", QUIET]
    if surroundings.get(JUNIT_ENV_VAR):
        reports = Path(surroundings[JUNIT_ENV_VAR]).absolute()
        command.append(f"--junit-xml={reports / f'{suite.kind}__{suite.name}.xml'}")
    return command


def suite_environment(suite: Suite, environment: Environment | None, surroundings: Mapping[str, str]) -> dict[str, str]:
    """The process environment of a suite: its tree and its folder can be imported from."""
    modules = [str(suite.tree), str(suite.folder), surroundings.get("PYTHONPATH", "")]
    quiet = [part for part in (surroundings.get("PYTHONWARNINGS"), f"ignore:{UNSET_SCOPE}") if part]
    path = {
        "PYTHONPATH": os.pathsep.join(part for part in modules if part),
        "PYTHONWARNINGS": ",".join(quiet),
    }
    if environment is None:
        return {**surroundings, **path}
    return {**inside(environment, suite.tree, surroundings), **path}


def result_of(status: int) -> Result:
    """What an exit status of pytest means."""
    meanings: dict[int, Result] = {0: "passed", 1: "failed", 2: "failed", 5: "missing"}
    return meanings.get(status, "unrecognised")


def has_examples(suite: Suite) -> bool:
    """Whether example data is asked of a folder: of resources servers, not of what they are only derived from."""
    is_server = (suite.folder / "app.py").exists() or (suite.folder / "configs").exists()
    return suite.kind == "resources_servers" and is_server


def data_problems(folder: Path) -> list[str]:
    """What is wrong with a resources server's example data: five rows, their metrics, and rollouts of them."""
    data = folder / "data"
    found = [_rows_problem(data / "example.jsonl"), _metrics_problem(data / "example_metrics.json")]
    found += [f"{path.name} is left: metrics differ from what was there" for path in sorted(data.glob("*conflict*"))]
    found.append(_rows_problem(data / "example_rollouts.jsonl"))
    return [problem for problem in found if problem]


def _rows_problem(path: Path) -> str | None:
    if not path.exists():
        return f"{path.name} is missing"
    with path.open("rb") as lines:
        rows = sum(1 for line in lines if line.strip())
    return f"{path.name} has {rows} rows, not {EXAMPLES}" if rows != EXAMPLES else None


def _metrics_problem(path: Path) -> str | None:
    if not path.exists():
        return f"{path.name} is missing"
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return f"{path.name} is not JSON"
    count = metrics.get("Number of examples") if isinstance(metrics, dict) else None
    return f"{path.name} counts {count} examples, not {EXAMPLES}" if count != EXAMPLES else None
