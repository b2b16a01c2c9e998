"""Create a resources server, environment or benchmark with passing tests, as a template to change.

Files are written below the working directory: to resources_servers/NAME, or to environments/NAME (benchmarks/NAME) with
a manifest and the servers that the profile needs. No existing file is changed.

Profiles: custom-gym-verifier (the default) verifies episodes of our simple agent; custom-gym-agent-loop adds a custom
agent; external-agent-loop an agent that calls an external program; external-rollout-driver a function that collects.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.config.search_roots import PARENT_DIR, component_search_roots

if TYPE_CHECKING:
    from nemo_gym.authoring.manifest import Kind
    from nemo_gym.authoring.scaffold import ReusedVerifier

PROFILES = ("custom-gym-verifier", "custom-gym-agent-loop", "external-agent-loop", "external-rollout-driver")
ENTRYPOINT = "+entrypoint=resources_servers/"
ENVIRONMENT_FLAGS = ("profile", "reuse_verifier", "reward_range", "higher_is_better")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    component = options.FlagGroup(parser.add_mutually_exclusive_group())
    component.text("--resources-server", "NAME", "create a resources server")
    component.text("--environment", "NAME", "create an environment with its resources server")
    component.text("--benchmark", "NAME", "create a benchmark with its resources server")
    group = parser.add_argument_group("environments and benchmarks")
    environment = options.FlagGroup(group)
    environment.choice("--profile", PROFILES, "part to write yourself (default: custom-gym-verifier)")
    environment.text("--reuse-verifier", "NAME", "use this resources server instead of creating one")
    environment.add_argument(
        "--reward-range", nargs=2, type=float, metavar=("LOW", "HIGH"), help="rewards of the reused verifier"
    )
    direction = group.add_mutually_exclusive_group()
    for flag, rewards, is_higher in (("--higher-is-better", "high", True), ("--lower-is-better", "low", False)):
        text = f"{rewards} rewards of the reused verifier are good"
        direction.add_argument(flag, dest="higher_is_better", action="store_const", const=is_higher, help=text)


def run(args: argparse.Namespace) -> int:
    from nemo_gym.authoring.scaffold import scaffold_environment, scaffold_resources_server

    working_dir = Path.cwd()
    checkout = PARENT_DIR if (PARENT_DIR / "pyproject.toml").exists() else None
    if args.environment or args.benchmark:
        name: str = args.environment or args.benchmark
        manifest_kind: Kind = "environment" if args.environment else "benchmark"
        kind, profile, roots = str(manifest_kind), args.profile or PROFILES[0], component_search_roots()
        result = scaffold_environment(
            working_dir, name, checkout, kind=manifest_kind, profile=profile, reused=_reused_verifier(args), roots=roots
        )
    else:
        name, kind = _resources_server_name(args), "resources-server"
        folder = working_dir / "resources_servers" / name
        if folder.exists():
            output.notify(f"{folder} exists already; nothing was changed")
            return 0
        result = scaffold_resources_server(folder, checkout)
    for path in result.created:
        output.write(str(path.relative_to(working_dir)))
    if result.existing:
        output.notify(f"{len(result.existing)} files existed already with the same content")
    target = f"--resources-server {name}" if kind == "resources-server" else f"{name} --kind {kind}"
    output.notify(f"\ntest it:  gym env test {target}")
    if kind == "benchmark":
        output.notify(f"prepare:  gym eval prepare --benchmark {name}")
    model = "embedded_model" if find_spec("xllamacpp") else "openai_model"  # the first one needs no endpoint
    output.notify(f"run it:   gym eval run --{kind} {name} --model-type {model}")
    return 0


def _resources_server_name(args: argparse.Namespace) -> str:
    """Return the name of --resources-server or `+entrypoint=`; raise UsageError for flags of environments."""
    flags = [f"--{flag.replace('_', '-')}" for flag in ENVIRONMENT_FLAGS if getattr(args, flag) is not None]
    if flags:
        raise options.UsageError(f"{', '.join(flags)} only with --environment or --benchmark", where=args.prog)
    names = [word.removeprefix(ENTRYPOINT) for word in args.overrides if word.startswith(ENTRYPOINT)]
    name = args.resources_server or (names[0] if names else "")
    if not name:
        fix = "--resources-server NAME, --environment NAME or --benchmark NAME"
        raise options.UsageError("the name is missing", where=args.prog, fix=fix)
    return str(name)


def _reused_verifier(args: argparse.Namespace) -> ReusedVerifier | None:
    """Return the verifier of --reuse-verifier with its rewards; raise UsageError if the flags do not fit together."""
    from nemo_gym.authoring.scaffold import ReusedVerifier

    reward_flags = (args.reward_range, args.higher_is_better)
    if args.reuse_verifier is None:
        if reward_flags != (None, None):
            flags = "--reward-range, --higher-is-better, --lower-is-better"
            raise options.UsageError("these flags describe a reused verifier", where=flags, fix="--reuse-verifier NAME")
        return None
    if None in reward_flags:
        fix = "add --reward-range LOW HIGH --higher-is-better"
        raise options.UsageError("the rewards of this verifier must be described", where="--reuse-verifier", fix=fix)
    low, high = args.reward_range
    if not low < high:
        raise options.UsageError(f"{low:g} is not below {high:g}", where="--reward-range", fix="name the lower first")
    return ReusedVerifier(args.reuse_verifier, (low, high), args.higher_is_better)
