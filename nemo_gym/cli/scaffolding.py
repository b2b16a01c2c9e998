"""What `gym env init` does: which files are asked for, and what to type next."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from nemo_gym.catalog.roots import PARENT_DIR, component_search_roots
from nemo_gym.cli import output
from nemo_gym.cli.options import UsageError
from nemo_gym.environment.manifest import PROFILES
from nemo_gym.scaffold.plan import Reused, scaffold_environment, scaffold_resources_server
from nemo_gym.scaffold.write import ScaffoldResult

ENTRYPOINT = "+entrypoint=resources_servers/"
EXTRAS = ("profile", "reuse_verifier", "reward_range", "higher_is_better")


def init(args: argparse.Namespace, rest: Sequence[str]) -> int:
    here = Path.cwd()
    checkout = PARENT_DIR if (PARENT_DIR / "pyproject.toml").exists() else None
    kind = "environment" if args.environment else "benchmark"
    if args.environment or args.benchmark:
        name = args.environment or args.benchmark
        made = scaffold_environment(
            here,
            name,
            checkout,
            kind=kind,
            profile=args.profile or PROFILES[0],
            reused=_reused(args),
            roots=component_search_roots(),
        )
        return _tell(made, name, kind)
    given = [f"--{extra.replace('_', '-')}" for extra in EXTRAS if getattr(args, extra) is not None]
    if given:
        raise UsageError(f"{', '.join(given)} only for --environment or --benchmark", where="gym env init")
    named = [word.removeprefix(ENTRYPOINT) for word in rest if word.startswith(ENTRYPOINT)]
    name = args.resources_server or (named[0] if named else None)
    if not name:
        fix = "--resources-server NAME, --environment NAME or --benchmark NAME"
        raise UsageError("of what?", where="gym env init", fix=fix)
    folder = here / "resources_servers" / name
    if folder.exists():
        output.talk(f"{folder} exists already; nothing was changed")
        return 0
    return _tell(scaffold_resources_server(folder, checkout), name, "resources-server")


def _reused(args: argparse.Namespace) -> Reused | None:
    if args.reuse_verifier is None:
        if args.reward_range is not None or args.higher_is_better is not None:
            raise UsageError(
                "the new verifier's rewards are known", where="--reward-range", fix="--reuse-verifier NAME"
            )
        return None
    if args.reward_range is None or args.higher_is_better is None:
        raise UsageError(
            "which rewards does it give?",
            where="--reuse-verifier",
            fix="add --reward-range LOW HIGH --higher-is-better",
        )
    low, high = args.reward_range
    if not low < high:
        raise UsageError(f"{low:g} is not below {high:g}", where="--reward-range", fix="--reward-range LOW HIGH")
    return Reused(args.reuse_verifier, (low, high), args.higher_is_better)


def _tell(made: ScaffoldResult, name: str, kind: str) -> int:
    here = Path.cwd()
    for path in made.created:
        output.data(str(path.relative_to(here)))
    if made.existing:
        output.talk(f"{len(made.existing)} files were there already as they would have been made")
    target = f"--resources-server {name}" if kind == "resources-server" else f"{name} --kind {kind}"
    prepare = f"prepare:  gym eval prepare --benchmark {name}\n" if kind == "benchmark" else ""
    output.talk(
        f"\ntest it:  gym env test {target}\n{prepare}run it:   gym eval run --{kind} {name} --model-type openai_model"
    )
    return 0
