"""Run the tests of server folders in their virtual environments, or the test cases of an environment's verifier.

NAME is an environment or benchmark with a manifest: the test cases of its verifier are run. One folder is selected by
--resources-server NAME or +entrypoint=<type>/<name>; otherwise every folder with a README.md is tested and its example
data is checked (for one folder: +should_validate_data=true). Resources servers with an audit.py are also audited (see
gym env audit). Exit status: that of pytest for one folder; 1 if a case or a folder failed, has no tests, has incomplete
data or audit findings; 2 unknown name.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.search_roots import component_search_roots
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.cli.shared.verifiers import Audit
    from nemo_gym.launch.folder_tests import FolderTestResult, FolderTests
    from nemo_gym.launch.venv import VenvSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.component("environment or benchmark whose verifier is tested")
    flags.switch("--update-expected", "write the actual rewards into the cases")
    flags.switch("--no-audit", "do not audit")
    flags.server_folder()
    flags.switch("--json", "print the result as JSON, and output of pytest to stderr")


def run(args: argparse.Namespace) -> int:
    from nemo_gym.launch.folder_tests import find_folder_tests, folder_tests_of
    from nemo_gym.launch.venv import VenvSettings

    name = options.take_name(args)
    config = options.resolve_config(args).config
    roots, settings = component_search_roots(), VenvSettings.from_config(config)
    label = config.get("entrypoint")
    if name:
        if label:
            raise options.UsageError("NAME and a server folder cannot be combined", where=args.prog)
        return _test_verifier(name, args, settings)
    if args.kind or args.update_expected:
        raise options.UsageError("--kind and --update-expected need a NAME", where=args.prog)
    suites = [folder_tests_of(label, roots)] if label else choose_shard(find_folder_tests(roots), config)
    if not suites:
        raise ConfigError("no server folder with a README.md was found", where=", ".join(map(str, roots)))
    results, audits = _run_suites(suites, settings, config, args, validate_data=not label)
    _print_test_results(results, audits, as_json=args.json)
    audits_clean = all(audit.is_clean for audit in audits.values())
    if label:
        return results[0].exit_status or int(bool(results[0].data_problems) or not audits_clean)
    all_passed = audits_clean and all(result.has_passed for result in results)
    if config.get("fail_on_total_and_test_mismatch"):  # folders without a README count as failures
        all_passed &= len(choose_shard(find_folder_tests(roots, documented=False), config)) == len(suites)
    return int(not all_passed)


def _test_verifier(name: str, args: argparse.Namespace, settings: VenvSettings) -> int:
    """Run the cases of an environment's verifier and its audit, print the results, and return the exit status."""
    from nemo_gym.authoring.manifest import find_manifest
    from nemo_gym.cli.shared import verifiers
    from nemo_gym.config.environment_sources import refuse_source_names
    from nemo_gym.launch.folder_tests import folder_tests_of

    refuse_source_names([name])
    roots = component_search_roots()
    path, manifest = find_manifest(name, args.kind, roots)
    if not manifest.resources_server:
        raise ConfigError("names no resources_server, so there is no verifier to test", where=str(path))
    server = folder_tests_of(f"resources_servers/{manifest.resources_server}", roots)
    cases = verifiers.run_cases(manifest, server, settings, update_expected=args.update_expected)
    is_audited = verifiers.has_audit(server) and not args.no_audit
    audit = verifiers.run_audits([server], settings)[server.name] if is_audited else None
    expected_count = sum(case["problem"] is None for case in cases)
    passed = expected_count == len(cases) and (audit is None or audit.is_clean)
    if args.json:
        facts = {"name": manifest.name, "kind": manifest.kind, "resources_server": server.name, "passed": passed}
        output.write_json({**facts, "cases": cases, "audit": audit and audit.as_dict()})
    else:
        rows = [("CASE", "KIND", "EXPECTED", "FOUND", "")]
        rows += [(c["name"], c["kind"], str(c["expected"]), str(c["found"]), c["problem"] or "ok") for c in cases]
        output.write_table(rows)
        output.write(f"{expected_count} of {len(cases)} as expected")
        if audit is not None:
            output.write(f"audit: {verifiers.summarize_audit(audit)}")
            verifiers.print_findings(audit)
    return int(not passed)


def choose_shard(suites: Sequence[FolderTests], config: Mapping[str, Any]) -> list[FolderTests]:
    """Return the part of the suites to test: every `num_shards`-th one, from number `shard_index` on."""
    shards, index = int(config.get("num_shards") or 1), int(config.get("shard_index") or 0)
    if not 0 <= index < shards:
        raise ConfigError(f"{index} is not one of {shards} shards", where="shard_index", fix=f"0 to {shards - 1}")
    return list(suites[index::shards])


def _run_suites(
    suites: Sequence[FolderTests],
    settings: VenvSettings,
    config: Mapping[str, Any],
    args: argparse.Namespace,
    *,
    validate_data: bool,
) -> tuple[list[FolderTestResult], dict[str, Audit]]:
    """Run the tests and audits of server folders; one whose virtual environment cannot be built is not tested.

    Returns the test results, and the audits by label of the folder.
    """
    from nemo_gym.cli.shared.verifiers import build_server_venvs, has_audit, run_audit
    from nemo_gym.launch.folder_tests import FolderTestResult, run_folder_tests
    from nemo_gym.launch.venv import link_venv
    from nemo_gym.launch.venv_build import InstallFailed

    validate_data = validate_data or bool(config.get("should_validate_data"))
    venvs = build_server_venvs(suites, settings, tests=True)
    results: list[FolderTestResult] = []
    audits: dict[str, Audit] = {}
    for suite in suites:
        venv = venvs[suite.label]
        if isinstance(venv, InstallFailed):
            output.report_error(str(venv))
            results.append(FolderTestResult(suite, "not installed", venv.status, 0.0))
            continue
        link_venv(suite.folder, venv.target if venv else Path(sys.prefix), replace=True)
        output.notify(f"testing {suite.label}")
        results.append(run_folder_tests(suite, venv, validate_data=validate_data, to_stderr=args.json))
        if has_audit(suite) and not args.no_audit:
            audits[suite.label] = run_audit(suite, venv)
        own_folder = settings.per_server or settings.shared  # a virtual environment elsewhere was made by hand
        if venv and config.get("delete_venvs_after_each_test") and venv.target.is_relative_to(own_folder):
            shutil.rmtree(venv.target, ignore_errors=True)
    return results, audits


def _print_test_results(results: Sequence[FolderTestResult], audits: Mapping[str, Audit], *, as_json: bool) -> None:
    """Print the test results as a table, then the findings of each audit."""
    from nemo_gym.cli.shared.verifiers import print_findings, summarize_audit

    facts = []
    rows = [("FOLDER", "TESTS", "SECONDS", "DATA", "AUDIT")]
    for result in results:
        label, audit = result.suite.label, audits.get(result.suite.label)
        data = "-" if result.data_problems is None else "; ".join(result.data_problems) or "ok"
        rows.append((label, result.outcome, f"{result.seconds:.1f}", data, summarize_audit(audit)))
        facts.append(
            {
                "name": label,
                "result": result.outcome,
                "status": result.exit_status,
                "seconds": round(result.seconds, 3),
                "data_problems": result.data_problems,
                "audit": audit and audit.as_dict(),
            }
        )
    if as_json:
        output.write_json(facts)
        return
    output.write_table(rows)
    for audit in audits.values():
        print_findings(audit)
    unclean = {label for label, audit in audits.items() if not audit.is_clean}
    passed = sum(result.has_passed and result.suite.label not in unclean for result in results)
    output.write(f"{passed} of {len(results)} passed")
