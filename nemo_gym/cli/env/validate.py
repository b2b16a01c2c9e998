"""Check a configuration, or the manifest of an environment, and report every problem.

NAME is an environment or benchmark with a manifest: the manifest must agree with config.yaml (--sync updates the
manifest), its script must define prepare(), and every row must be valid. Without NAME, the configuration of the flags
is checked. No server is started. Server folders of the installed package and of --search-dir are imported to check the
fields of their blocks; those of the working directory only with --import. NAME may also be that of another package's
environment, SOURCE:ID. Exit status: 0 valid, 1 not valid, 2 unknown
name.
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nemo_gym import component_search_roots
from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import NoServerInstancesError

if TYPE_CHECKING:
    from nemo_gym.config.resolve import ResolvedConfig
    from nemo_gym.config.schema_servers import ServerInstanceConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.component("environment or benchmark whose manifest is checked")
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="path of the manifest, instead of NAME")
    flags.switch("--sync", "copy the facts of config.yaml into the manifest")
    flags.switch("--import", "import server folders of the working directory to check their blocks")
    options.add_config_arguments(parser)
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.config.environment_sources import is_source_name

    name = options.take_name(args)
    if name and is_source_name(name) and not args.sync:  # it has a configuration and no manifest
        args.config, name = [*args.config, name], None
    if name or args.manifest:
        return _check_manifest(name, args)
    if args.sync or args.kind:
        raise options.UsageError("--sync and --kind need a NAME or --manifest", where=args.prog)
    return _check_config(args)


def _check_config(args: argparse.Namespace) -> int:
    """Check the configuration of the flags and print the result; return the exit status."""
    from nemo_gym.config.instances import check_server_types, is_placeholder
    from nemo_gym.launch.server_block_check import check_server_blocks

    resolved = options.resolve_config(args, needs_model=False)
    valid = [instance.name for instance in resolved.instances.valid]
    names = [name for name in valid if not is_placeholder(resolved.config[name])]
    if not names:
        check_server_types(resolved.config)
        _report_no_server(resolved.config.get("config_paths"), args.prog)
    unchecked: list[str] = []
    imports_all = getattr(args, "import")  # `args.import` is not valid Python
    warnings = check_server_blocks(resolved, component_search_roots(), unchecked=None if imports_all else unchecked)
    warnings += _datasets_without_origin(resolved.instances.valid)
    warnings += _unset_model_keys(resolved) if args.model_type else []
    for warning in warnings:
        output.warn(warning)
    if unchecked:
        output.notify(f"not imported, so their fields were not checked (--import does): {', '.join(unchecked)}")
    if args.json:
        facts = {"valid": True, "instances": names, "not_imported": unchecked}
        output.write_json({**facts, "warnings": [*resolved.warnings, *warnings]})
    else:
        count = "1 server instance" if len(names) == 1 else f"{len(names)} server instances"
        output.write(f"✓ Config is valid. {count}: {', '.join(names)}")
    return 0


def _unset_model_keys(resolved: "ResolvedConfig") -> list[str]:
    """Return a warning if servers use keys of the model that nothing sets; here placeholders stand for them."""
    from nemo_gym.config.interpolations import POLICY_KEYS
    from nemo_gym.config.provider_keys import KEY, URL, adopt_provider_key
    from nemo_gym.config.trees import iter_leaves

    sources = [source for source in resolved.locations.sources if source.kind != "initial"]
    values = {key: source.tree[key] for source in sources for key in POLICY_KEYS if source.tree.get(key) is not None}
    values |= {override.path[0]: override.value for override in resolved.locations.overrides}
    if adopt_provider_key({URL: values.get(URL)}, os.environ):
        values[KEY] = "of the environment"
    texts = [value for source in sources for _, value in iter_leaves(source.tree) if isinstance(value, str)]
    unset = [key for key in POLICY_KEYS if key not in values and any(f"${{{key}}}" in text for text in texts)]
    return [f"`gym eval run` needs {', '.join(unset)}, which the configuration does not set"] if unset else []


def _datasets_without_origin(instances: "Sequence[ServerInstanceConfig]") -> list[str]:
    """Return a warning for each train or validation dataset that cannot be downloaded on another machine."""
    from nemo_gym.config.environment_sources import is_source_name
    from nemo_gym.config.schema_datasets import DatasetConfig

    return [
        f"dataset '{dataset.name}' of '{instance.name}' has no gitlab_identifier, huggingface_identifier or source: "
        f"'{dataset.type}' data must be available to others"
        for instance in instances
        for dataset in instance.datasets or ()
        if isinstance(dataset, DatasetConfig) and dataset.type in ("train", "validation")
        if not (
            is_source_name(dataset.name)
            or dataset.source
            or dataset.gitlab_identifier
            or dataset.huggingface_identifier
        )
    ]


def _report_no_server(paths: Sequence[str] | None, program: str) -> NoReturn:
    """Raise the error for a configuration without a server: nothing was given, or the files define none."""
    fix = f"{program} --environment NAME, --config FILE, or NAME alone for its manifest"
    if not paths:
        raise options.UsageError("no configuration to check", where=program, fix=fix)
    fix = "a server is <name>: {resources_servers|responses_api_agents|responses_api_models: {<folder>: {…}}}"
    raise NoServerInstancesError("the configuration defines no server", where=", ".join(map(str, paths)), fix=fix)


def _check_manifest(name: str | None, args: argparse.Namespace) -> int:
    """Check the manifest of `name`, or of --manifest, against its config.yaml; return the exit status."""
    from nemo_gym.authoring.manifest import find_manifest, read_manifest
    from nemo_gym.authoring.manifest_checks import check_manifest, sync_manifest

    options.add_search_dirs(args)
    roots = component_search_roots()
    if args.manifest is None:
        assert name is not None
        path, manifest = find_manifest(name, args.kind, roots)
    else:
        path, manifest = args.manifest, read_manifest(args.manifest)
        if name not in (None, manifest.name):
            raise options.UsageError(f"{path} describes '{manifest.name}', not '{name}'", where="--manifest")
    if args.sync:
        manifest = sync_manifest(path, manifest, roots)
        output.notify(f"{path} agrees with config.yaml")
    findings = check_manifest(path, manifest, roots)
    if args.json:
        facts = {"valid": not findings, "name": manifest.name, "kind": manifest.kind}
        output.write_json({**facts, "problems": [str(finding) for finding in findings]})
        return int(bool(findings))
    for finding in findings:
        output.report_error(str(finding))
    if findings:
        can_sync = all(finding.mirrored for finding in findings)
        sync_hint = f"  try: gym env validate {manifest.name} --kind {manifest.kind} --sync"
        output.notify(sync_hint if can_sync else f"{len(findings)} problems")
        return 1
    output.write(f"✓ The {manifest.kind} {manifest.name} agrees with its manifest.")
    return 0
