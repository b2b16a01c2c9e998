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
from nemo_gym.keys import RESOURCES
from nemo_gym.launch.folder_tests import STDERR, FolderTests, server_venv, tests_process_env
from nemo_gym.launch.venv import Venv, VenvSettings
from nemo_gym.launch.venv_build import InstallFailed, try_build_venvs

RUNNER = "nemo_gym.authoring.verifier_process"
MAX_SECONDS = 1800.0
"""Time limit of one audit, or of the test cases of one verifier."""
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


def build_server_venvs(
    servers: Sequence[FolderTests], settings: VenvSettings, *, tests: bool
) -> dict[str, Venv | InstallFailed | None]:
    """Build the missing virtual environments of server folders, or with `tests` of their tests; print the progress.

    Returns by label of the folder: the virtual environment, the error that prevented it, or None if none is needed.
    """
    venvs = {server.label: server_venv(server, settings, tests=tests) for server in servers}
    needed = [venv for venv in venvs.values() if venv is not None]
    failures = asyncio.run(try_build_venvs(needed, settings, ServerLogPrinter(verbose=True)))
    return {label: (failures.get(venv.target) or venv) if venv else None for label, venv in venvs.items()}


def run_cases(
    manifest: EnvironmentManifest, server: FolderTests, settings: VenvSettings, *, update_expected: bool
) -> list[dict[str, Any]]:
    """Run the test cases of a verifier in the virtual environment of its server and return their results."""
    venv = build_server_venvs([server], settings, tests=False)[server.label]
    if isinstance(venv, InstallFailed):
        raise venv
    options = {
        "seeded": manifest.determinism == "seeded",
        "reward_range": manifest.reward.range,
        "best": manifest.reward.best,
        "update_expected": update_expected,
    }
    cases: list[dict[str, Any]] = _run_request(server, venv, {"cases": options})["cases"]
    return cases


def has_audit(server: FolderTests) -> bool:
    return server.kind == RESOURCES and (server.folder / "audit.py").exists()


def run_audits(
    servers: Sequence[FolderTests], settings: VenvSettings, *, rows: int | None = None, seed: int = 1
) -> dict[str, Audit]:
    """Audit server folders, at most one per CPU core at a time; return the audits by server name."""
    venvs = build_server_venvs(servers, settings, tests=False)

    def audit(server: FolderTests) -> Audit:
        return run_audit(server, venvs[server.label], rows, seed)

    with ThreadPoolExecutor(max(1, min(len(servers), os.cpu_count() or 1))) as pool:
        return dict(zip((server.name for server in servers), pool.map(audit, servers), strict=True))


def run_audit(server: FolderTests, venv: Venv | InstallFailed | None, rows: int | None = None, seed: int = 1) -> Audit:
    """Audit one server folder in its virtual environment; None stands for this interpreter."""
    if isinstance(venv, InstallFailed):
        return VerifierNotRun(str(venv), where=server.label)
    output.notify(f"auditing {server.label}")
    try:
        return result_from_dict(_run_request(server, venv, {"audit": {"rows": rows, "seed": seed}}))
    except VerifierNotRun as problem:
        return problem


def _run_request(server: FolderTests, venv: Venv | None, request: dict[str, Any]) -> dict[str, Any]:
    """Run a request of RUNNER in the virtual environment of a server; the request and the result are JSON files.

    Raises:
        VerifierNotRun: the process took too long, ended without a result or reported a problem.
    """
    with tempfile.TemporaryDirectory() as folder:
        request_file, result_file = Path(folder) / "request.json", Path(folder) / "result.json"
        request_file.write_text(json.dumps({"folder": str(server.folder), **request}))
        python = str(venv.python) if venv else sys.executable
        try:
            process = subprocess.run(
                [python, "-P", "-m", RUNNER, "--request", str(request_file), "--result", str(result_file)],
                cwd=server.folder,
                env=tests_process_env(server, venv, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=STDERR,  # our stdout is for results
                timeout=MAX_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise VerifierNotRun(f"took longer than {MAX_SECONDS:g} s", where=server.label) from None
        if not result_file.exists():
            raise VerifierNotRun(f"{RUNNER} ended with status {process.returncode}", where=server.label)
        result: dict[str, Any] = json.loads(result_file.read_bytes())
    if "problem" in result:
        raise VerifierNotRun(result["problem"], where=server.label)
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
        first, count = group[0], str(len(group))
        row = "-" if first.row is None else str(first.row)
        rows.append((audit.name, first.check, first.case, count, row, first.expected, first.actual, first.reply))
    output.write("")
    output.write_table(rows)
    if len(groups) > MAX_FINDINGS:
        output.write(f"and {len(groups) - MAX_FINDINGS} more; --json prints all of them")
    if any(finding.check in ("cheat", "malformed row") for finding in audit.findings):
        output.notify("If the reward of a case is right, list the case with a reason in EXCUSED of audit.py.")
