"""Trying the verifier of an environment or benchmark where its server would run."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nemo_gym.cli import output
from nemo_gym.cli.auditing import NotAudited, audit_as_plain, audit_cell, show_problems
from nemo_gym.environment.audit_result import AuditResult
from nemo_gym.environment.manifest import EnvironmentManifest, Kind, find_manifest
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.launch.venv import VenvSettings
from nemo_gym.launch.venv_build import build_all
from nemo_gym.launch.venv_tests import Suite, named_suite, server_environment, suite_environment

RUNNER = "nemo_gym.environment._verifier_runner"
LONGEST = 1800.0


class NotTried(GymError):
    """The fixture could not be tried, so nothing is known about the verifier."""


@dataclass(frozen=True)
class Workload:
    """An environment or benchmark and the server that grades it."""

    path: Path
    manifest: EnvironmentManifest
    suite: Suite


def workload(name: str, kind: Kind | None, roots: Sequence[Path]) -> Workload:
    """The environment or benchmark called `name`.

    Raises:
        ConfigError: there is none with a manifest, or its manifest names no verifier.
    """
    path, manifest = find_manifest(name, kind, list(roots))
    if not manifest.resources_server:
        raise ConfigError("names no resources_server, so there is no verifier to try", where=str(path))
    return Workload(path, manifest, named_suite(f"resources_servers/{manifest.resources_server}", roots))


def tried(asked: Workload, settings: VenvSettings, *, update_expected: bool) -> list[dict[str, Any]]:
    """The results of every case, tried in the server's own environment.

    Raises:
        NotTried: why there are none.
    """
    environment = server_environment(asked.suite, settings, tests=False)
    if environment is not None:
        asyncio.run(build_all([environment], settings, lambda name, line: output.talk(f"({name}) {line}")))
    manifest = asked.manifest
    request = {
        "module": f"resources_servers.{asked.suite.name}.app",
        "seeded": manifest.determinism == "seeded",
        "reward_range": manifest.reward.range,
        "best": manifest.reward.best,
        "update_expected": update_expected,
    }
    with tempfile.TemporaryDirectory() as folder:
        told, answer = Path(folder) / "request.json", Path(folder) / "result.json"
        told.write_text(json.dumps(request))
        done = subprocess.run(
            [
                str(environment.python) if environment else sys.executable,
                *("-m", RUNNER, "--request", str(told), "--result", str(answer)),
            ],
            cwd=asked.suite.folder,
            env=suite_environment(asked.suite, environment, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=2,
            timeout=LONGEST,
            check=False,
        )
        if not answer.exists():
            raise NotTried(f"the fixture could not be tried (status {done.returncode})", where=asked.suite.label)
        result = json.loads(answer.read_bytes())
    if "problem" in result:
        raise NotTried(result["problem"], where=asked.suite.label)
    cases: list[dict[str, Any]] = result["cases"]
    return cases


def report(
    asked: Workload, cases: Sequence[dict[str, Any]], audited: AuditResult | NotAudited | None, *, as_json: bool
) -> int:
    """Show every case and the audit, if there is one; 0 when all are as expected, else 1."""
    good = sum(case["problem"] is None for case in cases)
    passed = good == len(cases) and (audited is None or (isinstance(audited, AuditResult) and audited.passed))
    if as_json:
        manifest = asked.manifest
        told = {"name": manifest.name, "kind": manifest.kind, "resources_server": asked.suite.name}
        output.json({**told, "passed": passed, "cases": list(cases), "audit": audit_as_plain(audited)})
    else:
        rows = [("CASE", "KIND", "EXPECTED", "FOUND", "")]
        rows += [(c["name"], c["kind"], str(c["expected"]), str(c["found"]), c["problem"] or "ok") for c in cases]
        output.table(rows)
        output.data(f"{good} of {len(cases)} as expected")
        if audited is not None:
            output.data(f"audit: {audit_cell(audited)}")
            show_problems(audited)
    return int(not passed)
