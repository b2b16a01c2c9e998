"""What `gym env publish` does: every check there is, in one report."""

import argparse
from collections.abc import Sequence
from typing import Any

from nemo_gym import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.env_fixture import NotTried, tried, workload
from nemo_gym.cli.env_target import target_config
from nemo_gym.cli.inputs import named
from nemo_gym.cli.options import UsageError
from nemo_gym.environment.manifest import EnvironmentManifest, find_manifest
from nemo_gym.environment.publish import check_publishable
from nemo_gym.launch.venv import VenvSettings

COMMAND = "gym env publish"


def publish(args: argparse.Namespace, rest: Sequence[str]) -> int:
    name, words = named(args.name, rest)
    args.resources_server = None  # this command is about a NAME alone
    config = target_config(args, words)
    name = name or config.get("component_name") or config.get("onboarding_name")
    if not name:
        raise UsageError("of what?", where=COMMAND, fix=f"{COMMAND} NAME")
    roots = component_search_roots()
    path, manifest = find_manifest(str(name), args.kind, roots)
    problems = [str(finding) for finding in check_publishable(path, manifest, roots)]
    cases: list[dict[str, Any]] = []
    if manifest.resources_server:
        cases, more = _tried(manifest, VenvSettings.from_config(config))
        problems += more
    else:
        problems.append(f"{path.name}: names no resources_server, so there is no verifier to try")
    if args.json:
        told = {"name": manifest.name, "kind": manifest.kind, "version": manifest.version}
        output.json({**told, "ready": not problems, "problems": problems, "cases": cases})
        return int(bool(problems))
    for problem in problems:
        output.error(problem)
    if problems:
        output.talk(f"{manifest.name} is not ready: {len(problems)} {'problem' if len(problems) == 1 else 'problems'}")
        return 1
    output.data(
        f"✓ {manifest.name} {manifest.version} is ready: manifest, rows, licence and {len(cases)} cases are good"
    )
    return 0


def _tried(manifest: EnvironmentManifest, settings: VenvSettings) -> tuple[list[dict[str, Any]], list[str]]:
    """The cases of the verifier's fixture, and what is wrong with them."""
    asked = workload(manifest.name, manifest.kind, component_search_roots())
    try:
        cases = tried(asked, settings, update_expected=False)
    except NotTried as problem:
        return [], [str(problem)]
    bad = [f"{asked.suite.label}: case '{case['name']}': {case['problem']}" for case in cases if case["problem"]]
    return cases, bad
