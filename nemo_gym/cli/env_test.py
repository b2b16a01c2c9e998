"""Run the tests of server folders where their servers would run, or try the verifier of an environment.

NAME is an environment or benchmark with a manifest: the cases of its verifier's fixture are tried. One folder's tests
are named by --resources-server NAME or +entrypoint=<type>/<name>; without any name, every folder with a README.md is
tested and its example data checked (one folder: +should_validate_data=true). Exit status: pytest's own for one folder;
1 when a case or a folder failed, had no tests, or has incomplete data; 2 when there is nothing of that name.
"""

import argparse
import asyncio
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.catalog.roots import component_search_roots
from nemo_gym.cli import env_fixture, output
from nemo_gym.cli.env_fixture import tried, workload
from nemo_gym.cli.env_target import add_target_arguments, target_config
from nemo_gym.cli.inputs import named
from nemo_gym.cli.options import UsageError
from nemo_gym.environment.manifest import FOLDERS
from nemo_gym.errors import ConfigError
from nemo_gym.launch.venv import Environment, VenvSettings
from nemo_gym.launch.venv_build import build_each
from nemo_gym.launch.venv_tests import Suite, Verdict, all_suites, named_suite, run_suite, server_environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an environment or benchmark: try its verifier")
    parser.add_argument("--kind", choices=tuple(FOLDERS), help="which of two that share the name")
    parser.add_argument("--update-expected", action="store_true", help="write the rewards found into the cases")
    add_target_arguments(parser)
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON; what pytest prints goes to stderr"
    )


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    name, words = named(args.name, rest)
    config = target_config(args, words)
    roots, settings = component_search_roots(), VenvSettings.from_config(config)
    label = config.get("entrypoint")
    if name:
        if label:
            raise UsageError("either a NAME or one server folder", where="gym env test")
        asked = workload(name, args.kind, roots)
        return env_fixture.report(
            asked, tried(asked, settings, update_expected=args.update_expected), as_json=args.json
        )
    if args.kind or args.update_expected:
        raise UsageError("--kind and --update-expected are about a NAME", where="gym env test")
    suites = [named_suite(label, roots)] if label else shard(all_suites(roots), config)
    if not suites:
        raise ConfigError("no server folder with a README.md was found", where=", ".join(map(str, roots)))
    validate = not label or bool(config.get("should_validate_data"))
    verdicts = _verdicts(suites, settings, validate_data=validate, clean=config, to_stderr=args.json)
    report(verdicts, as_json=args.json)
    if label:
        return verdicts[0].status or int(bool(verdicts[0].data_problems))
    return int(not all(verdict.is_good for verdict in verdicts) or _is_incomplete(suites, config))


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
    *,
    validate_data: bool,
    clean: Mapping[str, Any],
    to_stderr: bool,
) -> list[Verdict]:
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


def report(verdicts: Sequence[Verdict], *, as_json: bool) -> None:
    """The results as a table, worst news last."""
    if as_json:
        output.json(
            [
                {
                    "name": verdict.suite.label,
                    "result": verdict.result,
                    "status": verdict.status,
                    "seconds": round(verdict.seconds, 3),
                    "data_problems": verdict.data_problems,
                }
                for verdict in verdicts
            ]
        )
        return
    rows = [("FOLDER", "TESTS", "SECONDS", "DATA")]
    rows += [(v.suite.label, v.result, f"{v.seconds:.1f}", _data_cell(v)) for v in verdicts]
    output.table(rows)
    good = sum(verdict.is_good for verdict in verdicts)
    output.data(f"{good} of {len(verdicts)} good")


def _data_cell(verdict: Verdict) -> str:
    return "-" if verdict.data_problems is None else "; ".join(verdict.data_problems) or "ok"
