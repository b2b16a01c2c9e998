"""What `gym dataset render` does."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_gym import _resolve_under_cwd_or_install
from nemo_gym.cli import output
from nemo_gym.cli.dataset_bar import tidy_when_terminated
from nemo_gym.cli.dataset_render import PREVIEWED
from nemo_gym.cli.inputs import MODEL_KEYS, SELECTORS, config_overrides
from nemo_gym.cli.options import options, resolved_without_model
from nemo_gym.data.problems import DataError, counted
from nemo_gym.data.render import Rendered, render
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME as PARAMS
from nemo_gym.prompt import MaterializePromptsConfig


def render_rows(args: argparse.Namespace, rest: Sequence[str]) -> int:
    unset = dict.fromkeys([*SELECTORS, *MODEL_KEYS])
    inputs = argparse.Namespace(**{**unset, "config": [], "verbose": False, "search_dir": args.search_dir})
    config = resolved_without_model(config_overrides(inputs, rest)).config
    given = {
        "input_jsonl_fpath": ("--input", args.input),
        "prompt_config": ("--prompt-config", args.prompt_config),
        "output_jsonl_fpath": ("--output", args.output),
    }
    wanted = options(MaterializePromptsConfig, config, given, command="gym dataset render")
    path = _resolve_under_cwd_or_install(wanted.input_jsonl_fpath)
    preview = PREVIEWED if args.preview is None else args.preview
    with tidy_when_terminated():
        found = render(path, wanted.prompt_config, Path(wanted.output_jsonl_fpath), preview=preview)
    if args.json:
        output.json(_result(found, path))
    elif found.problems:
        told = "\n".join(f"  {line}" for line in str(found.problems).splitlines())
        count = "1 row does" if found.problems.rows == 1 else f"{found.problems.rows} rows do"
        raise DataError(f"{count} not fit the prompt; nothing was written\n{told}", where=str(path))
    else:
        _show(found)
    return 1 if found.problems else 0


def _result(found: Rendered, path: Path) -> dict[str, Any]:
    if found.problems:
        return {"valid": False, "rows_refused": found.problems.rows, "path": str(path), **_problems(found)}
    return {"valid": True, "rows": found.rows, "output": str(found.path), "preview": found.preview}


def _problems(found: Rendered) -> dict[str, Any]:
    return {"problems": found.problems.report()}


def _show(found: Rendered) -> None:
    for number, row in enumerate(found.preview, start=1):
        output.data(f"── row {number}")
        for message in row[PARAMS]["input"]:
            text = str(message["content"]).rstrip("\n").replace("\n", "\n  ")
            output.data(f"{message['role']}\n  {text}")
    if found.preview:
        output.data("")
    output.data(f"{found.path}  {counted(found.rows)}")
