"""What `gym env test` does: a folder's tests, or the cases of an environment's verifier."""

import argparse
import asyncio
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.cli import env_fixture, output
from nemo_gym.cli.auditing import (
    KIND,
    Audits,
    NotAudited,
    audit_as_plain,
    audit_cell,
    audit_of,
    audits,
    has_audit,
    show_problems,
)
from nemo_gym.cli.env_fixture import tried, workload
from nemo_gym.cli.env_target import target_config
from nemo_gym.cli.inputs import named
from nemo_gym.cli.options import UsageError
from nemo_gym.environment.audit_result import AuditResult
from nemo_gym.errors import ConfigError
from nemo_gym.launch.venv import Environment, VenvSettings
from nemo_gym.launch.venv_build import build_each
from nemo_gym.launch.venv_tests import Suite, Verdict, all_suites, named_suite, run_suite, server_environment


def try_out(args: argparse.Namespace, rest: Sequence[str]) -> int:
    name, words = named(args.name, rest)
    config = target_config(args, words)
    roots, settings = component_search_roots(), VenvSettings.from_config(config)
    label = config.get("entrypoint")
    if name:
        if label:
            raise UsageError("either a NAME or one server folder", where="gym env test")
        asked = workload(name, args.kind, roots)
        cases = tried(asked, settings, update_expected=args.update_expected)
        found = audits([asked.suite], settings) if has_audit(asked.suite) and not args.no_audit else {}
        return env_fixture.report(asked, cases, found.get(asked.suite.name), as_json=args.json)
    if args.kind or args.update_expected:
        raise UsageError("--kind and --update-expected are about a NAME", where="gym env test")
    suites = [named_suite(label, roots)] if label else shard(all_suites(roots), config)
    if not suites:
        raise ConfigError("no server folder with a README.md was found", where=", ".join(map(str, roots)))
    validate = not label or bool(config.get("should_validate_data"))
    audited: Audits = {}
    verdicts = _verdicts(
        suites, settings, validate, config, to_stderr=args.json, audited=None if args.no_audit else audited
    )
    report(verdicts, audited, as_json=args.json)
    is_clean = all(isinstance(found, AuditResult) and found.passed for found in audited.values())
    if label:
        return verdicts[0].status or int(bool(verdicts[0].data_problems) or not is_clean)
    good = is_clean and all(verdict.is_good for verdict in verdicts)
    return int(not good or _is_incomplete(suites, config))


def shard(suites: Sequence[Suite], config: Mapping[str, Any]) -> list[Suite]:
    """Every `num_shards`-th suite, beginning with number `shard_index`.

    Raises:
        ConfigError: there is no such shard.
    """
    shards, index = int(config.get("num_shards") or 1), int(config.get("shard_index") or 0)
    if not 0 <= index < shards:
        raise ConfigError(f"{index} is not one of {shards} shards", where="shard_index", fix=f"0 to {shards - 1}")
    return list(suites[index::shards])


def _verdicts(
    suites: Sequence[Suite],
    settings: VenvSettings,
    validate_data: bool,
    clean: Mapping[str, Any],
    *,
    to_stderr: bool,
    audited: Audits | None,
) -> list[Verdict]:
    """How each suite went; `audited` gets the audits of those that have one."""
    environments = {suite.label: server_environment(suite, settings, tests=True) for suite in suites}
    wanted = [one for one in environments.values() if one is not None]
    failures = asyncio.run(build_each(wanted, settings, lambda name, line: output.talk(f"({name}) {line}")))
    verdicts = []
    for suite in suites:
        environment = environments[suite.label]
        failure = failures.get(environment.target) if environment else None
        if failure is not None:
            output.error(str(failure))
            verdicts.append(Verdict(suite, "not installed", failure.status, 0.0))
            continue
        output.talk(f"testing {suite.label}")
        verdicts.append(run_suite(suite, environment, validate_data=validate_data, to_stderr=to_stderr))
        if audited is not None and has_audit(suite):
            output.talk(f"auditing {suite.label}")
            audited[suite.name] = audit_of(suite, environment)
        if environment is not None and clean.get("delete_venvs_after_each_test"):
            _remove(environment, settings)
    return verdicts


def _remove(environment: Environment, settings: VenvSettings) -> None:
    """Remove an environment we made; one that was made by hand stays."""
    if environment.target.is_relative_to(settings.per_server or settings.shared):
        shutil.rmtree(environment.target, ignore_errors=True)


def _is_incomplete(suites: Sequence[Suite], config: Mapping[str, Any]) -> bool:
    """Whether folders without a README count as a failure and there are some."""
    if not config.get("fail_on_total_and_test_mismatch"):
        return False
    return len(shard(all_suites(component_search_roots(), documented=False), config)) != len(suites)


def report(verdicts: Sequence[Verdict], audited: Audits, *, as_json: bool) -> None:
    """The results as a table, then every case of an audit that is off."""
    if as_json:
        output.json(
            [
                {
                    "name": verdict.suite.label,
                    "result": verdict.result,
                    "status": verdict.status,
                    "seconds": round(verdict.seconds, 3),
                    "data_problems": verdict.data_problems,
                    "audit": audit_as_plain(_audit(verdict, audited)),
                }
                for verdict in verdicts
            ]
        )
        return
    rows = [("FOLDER", "TESTS", "SECONDS", "DATA", "AUDIT")]
    cells = [audit_cell(_audit(verdict, audited)) for verdict in verdicts]
    for verdict, cell in zip(verdicts, cells, strict=True):
        rows.append((verdict.suite.label, verdict.result, f"{verdict.seconds:.1f}", _data_cell(verdict), cell))
    output.table(rows)
    for found in audited.values():
        show_problems(found)
    good = sum(verdict.is_good and cell in ("clean", "-") for verdict, cell in zip(verdicts, cells, strict=True))
    output.data(f"{good} of {len(verdicts)} good")


def _data_cell(verdict: Verdict) -> str:
    return "-" if verdict.data_problems is None else "; ".join(verdict.data_problems) or "ok"


def _audit(verdict: Verdict, audited: Audits) -> AuditResult | NotAudited | None:
    return audited.get(verdict.suite.name) if verdict.suite.kind == KIND else None
