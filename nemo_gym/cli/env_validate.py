"""Check a configuration, or an environment's manifest against it, and name everything that is wrong.

NAME is an environment or benchmark with a manifest: what it says is compared with its config.yaml (--sync writes it),
its script must define prepare(), every row must be one. Without NAME the configuration that the flags name is checked.
Nothing is started. Exit status: 0 valid, 1 not, 2 when there is nothing of that name.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from omegaconf import OmegaConf

from nemo_gym import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.inputs import add_config_arguments, config_overrides, named
from nemo_gym.cli.options import UsageError
from nemo_gym.config.resolve import Request, resolve
from nemo_gym.environment.check import Finding, check_manifest, synchronised
from nemo_gym.environment.manifest import FOLDERS, EnvironmentManifest, find_manifest, read_manifest
from nemo_gym.global_config import GlobalConfigDictParserConfig, surroundings
from nemo_gym.launch.check import check_server_blocks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="an environment or benchmark: check its manifest")
    parser.add_argument("--kind", choices=tuple(FOLDERS), help="which of two that share the name")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="the manifest itself, wherever it is")
    parser.add_argument("--sync", action="store_true", help="write what config.yaml says into the manifest")
    add_config_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    name, words = named(args.name, rest)
    overrides = config_overrides(args, words)
    if name or args.manifest:
        return _check_manifest(name, args)
    if args.sync or args.kind:
        raise UsageError("--sync and --kind are about a NAME or --manifest", where="gym env validate")
    stand_in = OmegaConf.to_container(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    assert isinstance(stand_in, dict)
    resolved = resolve(Request(overrides=overrides, initial=stand_in, offline=True), surroundings())
    warnings = [*resolved.warnings, *check_server_blocks(resolved, component_search_roots())]
    for warning in warnings:
        output.talk(f"Warning: {warning}")
    names = [instance.name for instance in resolved.instances.valid]
    if args.json:
        output.json({"valid": True, "instances": names, "warnings": warnings})
    else:
        output.data(f"✓ Config is valid. {len(names)} server instances: {', '.join(names)}")
    return 0


def _check_manifest(name: str | None, args: argparse.Namespace) -> int:
    roots = component_search_roots()
    path, manifest = _found(name, args, roots)
    if args.sync:
        manifest = synchronised(path, manifest, roots)
        output.talk(f"{path} says what config.yaml says")
    findings = check_manifest(path, manifest, roots)
    if args.json:
        output.json(
            {
                "valid": not findings,
                "name": manifest.name,
                "kind": manifest.kind,
                "problems": [str(f) for f in findings],
            }
        )
        return int(bool(findings))
    for finding in findings:
        output.error(str(finding))
    if findings:
        output.talk(_advice(findings, manifest))
        return 1
    output.data(f"✓ The {manifest.kind} {manifest.name} is as its manifest says.")
    return 0


def _found(name: str | None, args: argparse.Namespace, roots: list[Path]) -> tuple[Path, EnvironmentManifest]:
    if args.manifest is None:
        assert name is not None
        return find_manifest(name, args.kind, roots)
    manifest = read_manifest(args.manifest)
    if name not in (None, manifest.name):
        raise UsageError(f"{args.manifest} is about '{manifest.name}', not '{name}'", where="--manifest")
    return args.manifest, manifest


def _advice(findings: Sequence[Finding], manifest: EnvironmentManifest) -> str:
    if all(finding.mirrored for finding in findings):
        return f"  try: gym env validate {manifest.name} --kind {manifest.kind} --sync"
    return f"{len(findings)} problems"
