"""Fill a prompt template from every row of a file, and show the first rows.

If rows already have responses_create_params.input or lack a field of the template, all of them are reported, no file is
written, and the exit status is 1.
"""

import argparse
from pathlib import Path

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.keys import RESPONSES_CREATE_PARAMS_KEY_NAME

DEFAULT_PREVIEW = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.text("-i --input", "FILE", "JSONL file with rows without responses_create_params.input", "input_jsonl_fpath")
    flags.text("--prompt-config", "FILE", "prompt: YAML with 'user' and optionally 'system'")
    flags.text("-o --output", "FILE", "JSONL file for the finished rows", "output_jsonl_fpath")
    flags.integer("--preview", f"show the first N rows (default: {DEFAULT_PREVIEW})", default=DEFAULT_PREVIEW)
    flags.search_dir()
    flags.json()


def run(args: argparse.Namespace) -> int:
    from nemo_gym import _resolve_under_cwd_or_install
    from nemo_gym.catalog.row_problems import DataError, row_count_text
    from nemo_gym.cli.shared.concurrency import sigterm_as_interrupt
    from nemo_gym.data.prompt import MaterializePromptsConfig, render

    config = options.resolve_config(args, needs_model=False).config
    settings = options.load_options(MaterializePromptsConfig, config, args)
    path = _resolve_under_cwd_or_install(settings.input_jsonl_fpath)
    with sigterm_as_interrupt():
        rendered = render(path, settings.prompt_config, Path(settings.output_jsonl_fpath), preview=args.preview)
    problems = rendered.problems
    if problems and not args.json:
        lines = "\n".join(f"  {line}" for line in str(problems).splitlines())
        count = "1 row does" if problems.rows == 1 else f"{problems.rows} rows do"
        raise DataError(f"{count} not fit the prompt; nothing was written\n{lines}", where=str(path))
    if problems:
        facts = {"valid": False, "rows_refused": problems.rows, "path": str(path)}
        output.write_json({**facts, "problems": problems.report()})
        return 1
    facts = {"valid": True, "rows": rendered.rows, "output": str(rendered.path), "preview": rendered.preview}

    def print_text() -> None:
        for number, row in enumerate(rendered.preview, start=1):
            output.write(f"── row {number}")
            for message in row[RESPONSES_CREATE_PARAMS_KEY_NAME]["input"]:
                text = str(message["content"]).rstrip("\n").replace("\n", "\n  ")
                output.write(f"{message['role']}\n  {text}")
        if rendered.preview:
            output.write("")
        output.write(f"{rendered.path}  {row_count_text(rendered.rows)}")

    output.write_result(facts, print_text, as_json=args.json)
    return 0
