"""Export rollouts in an interchange format: ATIF v1.7 trajectories, which Harbor and other tools read.

The new folder has one JSON file per rollout and manifest.jsonl, with which gym eval reverify --input-format atif
verifies them again. All problems are listed, then nothing is written. Exit status: 0 written, 1 a rollout cannot be
expressed, 2 wrong usage.

  gym eval export --format atif --rollouts results/latest/rollouts.jsonl --output trajectories
"""

import argparse

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.choice("--format", ("atif",), "format of the trajectories (default: atif)")
    flags.text("-r --rollouts", "FILE", "rollouts to export", "rollouts_jsonl_fpath")
    flags.text("-o --output", "DIR", "new folder for trajectories and manifest", "output_dirpath")
    flags.text("--session-id", "ID", "id of the run in every trajectory")
    flags.text("--agent-version", "VERSION", "version of the agent in every trajectory")
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym.data.atif_export import ExportAtifConfig, export_trajectories

    config = options.resolve_config(args, needs_model=False).config
    settings = options.load_options(ExportAtifConfig, config, args)
    count = export_trajectories(settings)
    facts = {"format": "atif", "output": settings.output_dirpath, "trajectories": count}

    def print_text() -> None:
        output.write(f"✓ {count:,} trajector{'ies' if count != 1 else 'y'} → {settings.output_dirpath}")

    output.write_result(facts, print_text, as_json=args.json)
    return 0
