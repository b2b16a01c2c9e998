"""What `gym env audit` does: audits server folders where their servers would run, and shows what is off."""

import argparse
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

from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.env_target import target_config
from nemo_gym.cli.inputs import named
from nemo_gym.cli.options import UsageError
from nemo_gym.environment.audit_result import AuditResult, Offence, from_plain, update_readme
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.launch.venv import Environment, VenvSettings
from nemo_gym.launch.venv_build import build_each
from nemo_gym.launch.venv_tests import (
    Suite,
    all_suites,
    named_suite,
    server_environment,
    suite_environment,
)

RUNNER = "nemo_gym.environment._audit_runner"
KIND = "resources_servers"
LONGEST = 1800.0
MOST_SHOWN = 40
"""Kinds of offending cases shown of one server; --json has all of them."""


class NotAudited(GymError):
    """The audit could not be made, so nothing is known about the verifier."""


Audits = dict[str, AuditResult | NotAudited]
"""Name of a server -> what its audit found, or why there is none."""


def audit(args: argparse.Namespace, rest: Sequence[str]) -> int:
    split = [named(word, ()) for word in args.name]
    words = [override for _, overrides in split for override in overrides]
    asked = argparse.Namespace(resources_server=None, search_dir=args.search_dir)
    settings = VenvSettings.from_config(target_config(asked, [*words, *rest]))
    suites = _suites([name for name, _ in split if name], every=args.all)
    if args.rows is not None and args.rows < 0:
        raise UsageError(f"{args.rows} rows are not a number of rows", where="--rows", fix="0 or more")
    results = audits(suites, settings, rows=args.rows, seed=args.seed)
    if args.update_readme:
        for suite in suites:
            found = results[suite.name]
            if isinstance(found, AuditResult) and update_readme(suite.folder / "README.md", found):
                output.talk(f"{suite.label}/README.md is up to date now")
    report(results, as_json=args.json)
    return int(not all(isinstance(found, AuditResult) and found.passed for found in results.values()))


def _suites(names: Sequence[str], *, every: bool) -> list[Suite]:
    roots = component_search_roots()
    if every == bool(names):
        raise UsageError("name the servers to audit, or --all", where="gym env audit", fix="gym env audit mcqa")
    if not every:
        return [named_suite(f"{KIND}/{name.removeprefix(f'{KIND}/').strip('/')}", roots) for name in names]
    found = [suite for suite in all_suites(roots, documented=False) if suite.kind == KIND and has_audit(suite)]
    if not found:
        raise ConfigError("no resources server has an audit.py", where=", ".join(map(str, roots)))
    return found


def has_audit(suite: Suite) -> bool:
    return suite.kind == KIND and (suite.folder / "audit.py").exists()


def audits(suites: Sequence[Suite], settings: VenvSettings, *, rows: int | None = None, seed: int = 1) -> Audits:
    """The result for each folder by its name, as many at a time as there are cores."""
    environments = {suite.name: server_environment(suite, settings, tests=False) for suite in suites}
    wanted = [one for one in environments.values() if one is not None]
    failures = asyncio.run(build_each(wanted, settings, lambda name, line: output.talk(f"({name}) {line}")))

    def one(suite: Suite) -> AuditResult | NotAudited:
        environment = environments[suite.name]
        failure = failures.get(environment.target) if environment else None
        if failure is not None:
            return NotAudited(str(failure), where=suite.label)
        output.talk(f"auditing {suite.name}")
        return audit_of(suite, environment, rows, seed)

    with ThreadPoolExecutor(max(1, min(len(suites), os.cpu_count() or 1))) as pool:
        return dict(zip((suite.name for suite in suites), pool.map(one, suites), strict=True))


def audit_of(
    suite: Suite, environment: Environment | None, rows: int | None = None, seed: int = 1
) -> AuditResult | NotAudited:
    """The audit of one folder in its environment."""
    try:
        return _audited(suite, environment, rows, seed)
    except NotAudited as problem:
        return problem


def _audited(suite: Suite, environment: Environment | None, rows: int | None, seed: int) -> AuditResult:
    with tempfile.TemporaryDirectory() as place:
        told, answer = Path(place) / "request.json", Path(place) / "result.json"
        told.write_text(json.dumps({"folder": str(suite.folder), "rows": rows, "seed": seed}))
        try:
            done = subprocess.run(
                [
                    str(environment.python) if environment else sys.executable,
                    *("-m", RUNNER, "--request", str(told), "--result", str(answer)),
                ],
                cwd=suite.folder,
                env=suite_environment(suite, environment, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=2,
                timeout=LONGEST,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotAudited(f"took longer than {LONGEST:g} s", where=suite.label, fix="fewer --rows") from None
        if not answer.exists():
            raise NotAudited(f"the audit ended with status {done.returncode}", where=suite.label)
        result = json.loads(answer.read_bytes())
    if "problem" in result:
        raise NotAudited(result["problem"], where=suite.label)
    return from_plain(result)


def report(results: Audits, *, as_json: bool) -> None:
    """One line for each server, then every case that is off."""
    if as_json:
        plain = [{"name": name, **(audit_as_plain(found) or {})} for name, found in results.items()]
        output.json({"passed": all(one["passed"] for one in plain), "servers": plain})
        return
    head = (
        "SERVER",
        "ROWS",
        "CASES",
        "FALSE +",
        "FALSE -",
        "CHEATS PAID",
        "FLIPS",
        "MALFORMED",
        "JUDGE",
        "ERRORS",
        "P50 MS",
        "",
    )
    output.table([head, *(_line(name, found) for name, found in results.items())])
    for found in results.values():
        show_problems(found)
    good = sum(isinstance(found, AuditResult) and found.passed for found in results.values())
    output.data(f"{good} of {len(results)} clean")


def _line(name: str, found: AuditResult | NotAudited) -> tuple[str, ...]:
    if not isinstance(found, AuditResult):
        return (name, *["-"] * 10, "not audited")
    plain = found.as_plain()
    columns = ("rows", "cases", "false_positives", "false_negatives", "cheats_paid", "flips", "malformed_rows_accepted")
    judge = plain["judge_failures_scored"] if "judge" in found.checks else "-"
    state = "clean" if found.passed else "off"
    shown = [*(plain[column] for column in columns), judge, plain["without_verdict"], f"{plain['verify_p50_ms']:.2f}"]
    return (name, *map(str, shown), state)


def audit_cell(found: AuditResult | NotAudited | None) -> str:
    """An audit in two words."""
    if found is None:
        return "-"
    if isinstance(found, NotAudited):
        return "not audited"
    return "clean" if found.passed else f"{len(found.offences)} off"


def audit_as_plain(found: AuditResult | NotAudited | None) -> dict[str, Any] | None:
    """An audit as it is printed with --json."""
    if isinstance(found, NotAudited):
        return {"passed": False, "error": str(found)}
    return None if found is None else found.as_plain()


def show_problems(found: AuditResult | NotAudited) -> None:
    """One line for each case that is off, with the first row that it is off for."""
    if isinstance(found, NotAudited):
        output.error(str(found))
        return
    if found.passed:
        return
    alike: dict[tuple[str, str], list[Offence]] = {}
    for offence in found.offences:
        alike.setdefault((offence.check, offence.case), []).append(offence)
    rows = [("SERVER", "CHECK", "CASE", "ROWS", "FIRST", "EXPECTED", "FOUND", "REPLY")]
    for same in list(alike.values())[:MOST_SHOWN]:
        one = same[0]
        first = "-" if one.row is None else str(one.row)
        rows.append((found.name, one.check, one.case, str(len(same)), first, one.expected, one.found, one.reply))
    output.data("")
    output.table(rows)
    if len(alike) > MOST_SHOWN:
        output.data(f"and {len(alike) - MOST_SHOWN} more; --json has all of them")
    if any(one.check in ("cheat", "malformed row") for one in found.offences):
        output.talk("A case that deserves what it got can be excused, with the reason, in EXCUSED of audit.py.")
