"""Audit verifiers and run their test cases in the virtual environments of their servers."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nemo_gym.authoring.audit_result import AuditResult, Finding, result_from_dict
from nemo_gym.authoring.manifest import EnvironmentManifest
from nemo_gym.cli.terminal import output
from nemo_gym.cli.terminal.log import ServerLogPrinter
from nemo_gym.errors import GymError
from nemo_gym.launch.folder_tests import FolderTests, server_venv, tests_process_env
from nemo_gym.launch.venv import Venv, VenvSettings
from nemo_gym.launch.venv_build import InstallFailed, try_build_venvs

RUNNER = "nemo_gym.authoring.verifier_process"
SERVER_TYPE = "resources_servers"
MAX_SECONDS = 1800.0
MAX_FINDINGS = 40
"""Kinds of findings printed per server; --json prints all of them."""


class VerifierNotRun(GymError):
    """The audit or the test cases of a verifier could not run."""

    is_clean = False

    def as_dict(self) -> dict[str, Any]:
        """Return the error as `--json` prints it in place of an audit."""
        return {"passed": False, "error": str(self)}


Audit = AuditResult | VerifierNotRun
"""The result of an audit, or the error that prevented it."""


def build_environments(
    suites: Sequence[FolderTests], settings: VenvSettings, *, tests: bool
) -> dict[str, Venv | InstallFailed | None]:
    """Build the virtual environments of server folders, or with `tests` those of their tests, and print the progress.

    Returns for each label of a folder the environment, the error that prevented it, or None if the folder needs none.
    """
    venvs = {suite.label: server_venv(suite, settings, tests=tests) for suite in suites}
    missing = [venv for venv in venvs.values() if venv is not None]
    failures = asyncio.run(try_build_venvs(missing, settings, ServerLogPrinter(verbose=True)))
    return {label: (failures.get(venv.target) or venv) if venv else None for label, venv in venvs.items()}


def run_cases(
    manifest: EnvironmentManifest, suite: FolderTests, settings: VenvSettings, *, update_expected: bool
) -> list[dict[str, Any]]:
    """Run the test cases of a verifier in the virtual environment of its server and return their results."""
    environment = build_environments([suite], settings, tests=False)[suite.label]
    if isinstance(environment, InstallFailed):
        raise environment
    options = {
        "seeded": manifest.determinism == "seeded",
        "reward_range": manifest.reward.range,
        "best": manifest.reward.best,
        "update_expected": update_expected,
    }
    cases: list[dict[str, Any]] = _run_request(suite, environment, {"cases": options})["cases"]
    return cases


def has_audit(suite: FolderTests) -> bool:
    return suite.kind == SERVER_TYPE and (suite.folder / "audit.py").exists()


def run_audits(
    suites: Sequence[FolderTests], settings: VenvSettings, *, rows: int | None = None, seed: int = 1
) -> dict[str, Audit]:
    """Audit server folders, at most one per CPU core at a time; return the audits by server name."""
    environments = build_environments(suites, settings, tests=False)

    def audit(suite: FolderTests) -> Audit:
        return run_audit(suite, environments[suite.label], rows, seed)

    with ThreadPoolExecutor(max(1, min(len(suites), os.cpu_count() or 1))) as pool:
        return dict(zip((suite.name for suite in suites), pool.map(audit, suites), strict=True))


def run_audit(
    suite: FolderTests, environment: Venv | InstallFailed | None, rows: int | None = None, seed: int = 1
) -> Audit:
    """Audit one server folder in its virtual environment; None stands for this interpreter."""
    if isinstance(environment, InstallFailed):
        return VerifierNotRun(str(environment), where=suite.label)
    output.notify(f"auditing {suite.label}")
    try:
        return result_from_dict(_run_request(suite, environment, {"audit": {"rows": rows, "seed": seed}}))
    except VerifierNotRun as problem:
        return problem


def _run_request(suite: FolderTests, environment: Venv | None, request: dict[str, Any]) -> dict[str, Any]:
    """Run a request of RUNNER in the virtual environment of a server; the request and the result are JSON files.

    Raises:
        VerifierNotRun: the process took too long, ended without a result or reported a problem.
    """
    with tempfile.TemporaryDirectory() as folder:
        request_file, result_file = Path(folder) / "request.json", Path(folder) / "result.json"
        request_file.write_text(json.dumps({"folder": str(suite.folder), **request}))
        python = str(environment.python) if environment else sys.executable
        try:
            process = subprocess.run(
                [python, "-P", "-m", RUNNER, "--request", str(request_file), "--result", str(result_file)],
                cwd=suite.folder,
                env=tests_process_env(suite, environment, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=2,
                timeout=MAX_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise VerifierNotRun(f"took longer than {MAX_SECONDS:g} s", where=suite.label) from None
        if not result_file.exists():
            raise VerifierNotRun(f"{RUNNER} ended with status {process.returncode}", where=suite.label)
        result: dict[str, Any] = json.loads(result_file.read_bytes())
    if "problem" in result:
        raise VerifierNotRun(result["problem"], where=suite.label)
    return result


def summarize_audit(audit: Audit | None) -> str:
    """Return `clean`, `not audited`, the number of findings, or `-` without an audit."""
    if audit is None:
        return "-"
    if isinstance(audit, VerifierNotRun):
        return "not audited"
    return "clean" if audit.is_clean else f"{len(audit.findings)} findings"


def print_findings(audit: Audit) -> None:
    """Print one line for each kind of finding, with the first row that has it."""
    if isinstance(audit, VerifierNotRun):
        output.report_error(str(audit))
        return
    if audit.is_clean:
        return
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in audit.findings:
        groups.setdefault((finding.check, finding.case), []).append(finding)
    rows = [("SERVER", "CHECK", "CASE", "ROWS", "FIRST", "EXPECTED", "FOUND", "REPLY")]
    for group in list(groups.values())[:MAX_FINDINGS]:
        first = group[0]
        number = "-" if first.row is None else str(first.row)
        rows.append(
            (audit.name, first.check, first.case, str(len(group)), number, first.expected, first.actual, first.reply)
        )
    output.write("")
    output.write_table(rows)
    if len(groups) > MAX_FINDINGS:
        output.write(f"and {len(groups) - MAX_FINDINGS} more; --json prints all of them")
    if any(finding.check in ("cheat", "malformed row") for finding in audit.findings):
        output.notify("If the reward of a case is right, list the case with a reason in EXCUSED of audit.py.")
