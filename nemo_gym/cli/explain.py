"""Explain an error, a failure kind or an exit status.

Without a code, list all codes.
"""

import argparse
import re
from importlib.resources import files

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output

SENTENCE_END = re.compile(r"(?<=[.:])\s+(?=[A-Z`])")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "code that was printed with the error, such as config-path-not-found"
    parser.add_argument("code", nargs="?", metavar="CODE", help=text)
    options.FlagGroup(parser).json()


def run(args: argparse.Namespace) -> int:
    explanations = load_explanations()
    if args.code is None:
        summaries = {code: _first_sentence(text) for code, text in explanations.items()}
        output.write_json(summaries) if args.json else output.write_table(list(summaries.items()))
        return 0
    code = args.code.strip()
    code = f"exit-status-{code}" if code.isdigit() else code
    if code not in explanations:
        hint = output.did_you_mean(code, explanations, " `gym explain` lists all codes.")
        output.report_error(f"unknown code `{code}`.{hint}")
        return 2
    facts = {"code": code, "explanation": explanations[code]}
    output.write_result(facts, lambda: output.write("\n\n".join(facts.values())), as_json=args.json)
    return 0


def _first_sentence(text: str) -> str:
    return SENTENCE_END.split(" ".join(text.split()), maxsplit=1)[0]


def load_explanations() -> dict[str, str]:
    """Return the explanation of each code from explanations.md, in which every heading is a code."""
    parts = HEADING.split(files("nemo_gym.cli").joinpath("explanations.md").read_text(encoding="utf-8"))
    return {code.strip(): text.strip() for code, text in zip(parts[1::2], parts[2::2], strict=True)}
