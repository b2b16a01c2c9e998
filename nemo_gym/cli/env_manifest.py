"""What `gym env validate NAME` does: an environment's manifest against its configuration."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from nemo_gym import component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.options import UsageError
from nemo_gym.environment.check import Finding, check_manifest, synchronised
from nemo_gym.environment.manifest import EnvironmentManifest, find_manifest, read_manifest


def check_named(name: str | None, args: argparse.Namespace) -> int:
    """Check the manifest of `name`, or the one that `--manifest` names, and return the exit status."""
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
