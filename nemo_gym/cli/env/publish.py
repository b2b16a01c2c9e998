"""Check that an environment or benchmark is ready for other users. Nothing is uploaded.

Runs the checks of `gym env validate NAME` and `gym env test NAME`, and also checks that the manifest and the READMEs
contain no placeholder, that the licence is known and that the name is unique. Exit status: 0 ready, 1 not ready, 2
unknown name.
"""

import argparse
from typing import Any

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.search_roots import component_search_roots


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.component("environment or benchmark with a manifest")
    flags.search_dir()
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.authoring.manifest import find_manifest
    from nemo_gym.authoring.manifest_checks import check_publishable
    from nemo_gym.cli.shared.verifiers import VerifierNotRun, run_cases
    from nemo_gym.launch.folder_tests import folder_tests_of
    from nemo_gym.launch.venv import VenvSettings

    name = options.take_name(args)
    config = options.resolve_config(args).config
    name = name or config.get("component_name") or config.get("onboarding_name")
    if not name:
        raise options.UsageError("NAME is missing", where=args.prog, fix=f"{args.prog} NAME")
    roots = component_search_roots()
    path, manifest = find_manifest(str(name), args.kind, roots)
    problems = [str(finding) for finding in check_publishable(path, manifest, roots)]
    cases: list[dict[str, Any]] = []
    if manifest.resources_server:
        server = folder_tests_of(f"resources_servers/{manifest.resources_server}", roots)
        try:
            cases = run_cases(manifest, server, VenvSettings.from_config(config), update_expected=False)
        except VerifierNotRun as error:
            problems.append(str(error))
        problems += [f"{server.label}: case '{case['name']}': {case['problem']}" for case in cases if case["problem"]]
    else:
        problems.append(f"{path.name}: names no resources_server, so there is no verifier to test")
    if args.json:
        facts = {"name": manifest.name, "kind": manifest.kind, "version": manifest.version}
        output.write_json({**facts, "ready": not problems, "problems": problems, "cases": cases})
        return int(bool(problems))
    for problem in problems:
        output.report_error(problem)
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        output.notify(f"{manifest.name} is not ready: {count}")
        return 1
    checks = f"manifest, rows, licence and {len(cases)} cases"
    output.write(f"✓ {manifest.name} {manifest.version} is ready: {checks} passed")
    return 0
