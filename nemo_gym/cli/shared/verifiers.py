"""Audit verifiers and run their test cases in the virtual environments of their servers."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
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
from nemo_gym.launch.venv_build import InstallFailed, build_venvs, try_build_venvs

RUNNER = "nemo_gym.authoring.verifier_process"
SERVER_TYPE = "resources_servers"
MAX_SECONDS = 1800.0
MAX_FINDINGS = 40
"""Kinds of findings printed per server; --json prints all of them."""


class NotAudited(GymError):
    """The audit of a verifier could not run."""


class NotTried(GymError):
    """The test cases of a verifier could not run."""


Audits = dict[str, AuditResult | NotAudited]
"""Name of a server -> the result of its audit, or the error that prevented the audit."""


def build_environments(environments: Iterable[Venv | None], settings: VenvSettings) -> dict[Path, InstallFailed | None]:
    """Build missing virtual environments and print the installer's output; return the failure of each, by folder."""
    venvs = [environment for environment in environments if environment is not None]
    return asyncio.run(try_build_venvs(venvs, settings, ServerLogPrinter(verbose=True)))


def run_cases(
    manifest: EnvironmentManifest, suite: FolderTests, settings: VenvSettings, *, update_expected: bool
) -> list[dict[str, Any]]:
    """Run the test cases of a verifier in the virtual environment of its server and return their results."""
    environment = server_venv(suite, settings, tests=False)
    if environment is not None:
        asyncio.run(build_venvs([environment], settings, ServerLogPrinter(verbose=True)))
    options = {
        "seeded": manifest.determinism == "seeded",
        "reward_range": manifest.reward.range,
        "best": manifest.reward.best,
        "update_expected": update_expected,
    }
    cases: list[dict[str, Any]] = _run_request(suite, environment, {"cases": options}, NotTried)["cases"]
    return cases


def has_audit(suite: FolderTests) -> bool:
    return suite.kind == SERVER_TYPE and (suite.folder / "audit.py").exists()


def run_audits(
    suites: Sequence[FolderTests], settings: VenvSettings, *, rows: int | None = None, seed: int = 1
) -> Audits:
    """Audit server folders, at most one per CPU core at a time; return the results by server name."""
    environments = {suite.name: server_venv(suite, settings, tests=False) for suite in suites}
    failures = build_environments(environments.values(), settings)

    def audit(suite: FolderTests) -> AuditResult | NotAudited:
        environment = environments[suite.name]
        failure = failures.get(environment.target) if environment else None
        if failure is not None:
            return NotAudited(str(failure), where=suite.label)
        output.notify(f"auditing {suite.name}")
        return run_audit(suite, environment, rows, seed)

    with ThreadPoolExecutor(max(1, min(len(suites), os.cpu_count() or 1))) as pool:
        return dict(zip((suite.name for suite in suites), pool.map(audit, suites), strict=True))


def run_audit(
    suite: FolderTests, environment: Venv | None, rows: int | None = None, seed: int = 1
) -> AuditResult | NotAudited:
    """Audit one server folder in its virtual environment; None stands for this interpreter."""
    request = {"audit": {"rows": rows, "seed": seed}}
    try:
        return result_from_dict(_run_request(suite, environment, request, NotAudited))
    except NotAudited as problem:
        return problem


def _run_request(
    suite: FolderTests, environment: Venv | None, request: dict[str, Any], error: type[GymError]
) -> dict[str, Any]:
    """Run a request of RUNNER in the virtual environment of a server; the request and the result are JSON files.

    Raises:
        error: the process took too long, ended without a result or reported a problem.
    """
    with tempfile.TemporaryDirectory() as folder:
        request_file, result_file = Path(folder) / "request.json", Path(folder) / "result.json"
        request_file.write_text(json.dumps({"folder": str(suite.folder), **request}))
        python = str(environment.python) if environment else sys.executable
        try:
            process = subprocess.run(
                [python, "-m", RUNNER, "--request", str(request_file), "--result", str(result_file)],
                cwd=suite.folder,
                env=tests_process_env(suite, environment, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=2,
                timeout=MAX_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise error(f"took longer than {MAX_SECONDS:g} s", where=suite.label) from None
        if not result_file.exists():
            raise error(f"{RUNNER} ended with status {process.returncode}", where=suite.label)
        result: dict[str, Any] = json.loads(result_file.read_bytes())
    if "problem" in result:
        raise error(result["problem"], where=suite.label)
    return result


def is_clean(audit: AuditResult | NotAudited | None) -> bool:
    """Return True if an audit ran without findings."""
    return isinstance(audit, AuditResult) and audit.is_clean


def summarize_audit(audit: AuditResult | NotAudited | None) -> str:
    """Return `clean`, `not audited`, the number of findings, or `-` without an audit."""
    if audit is None:
        return "-"
    if isinstance(audit, NotAudited):
        return "not audited"
    return "clean" if audit.is_clean else f"{len(audit.findings)} findings"


def audit_as_dict(audit: AuditResult | NotAudited | None) -> dict[str, Any] | None:
    """Return an audit for `--json`."""
    if isinstance(audit, NotAudited):
        return {"passed": False, "error": str(audit)}
    return None if audit is None else audit.as_dict()


def print_findings(audit: AuditResult | NotAudited) -> None:
    """Print one line for each kind of finding, with the first row that has it."""
    if isinstance(audit, NotAudited):
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
