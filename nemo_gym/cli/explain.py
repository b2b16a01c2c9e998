"""Say more about an error, a failure kind or an exit status.

Without a code: list them all.
"""

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from importlib.resources import files

from nemo_gym.cli import output

SENTENCE = re.compile(r"(?<=[.:])\s+(?=[A-Z`])")
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "code", nargs="?", metavar="CODE", help="as printed with the error, such as config-path-not-found"
    )
    parser.add_argument("--json", action="store_true", help="print the explanation as JSON")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:  # noqa: ARG001 - takes no overrides
    known = explanations()
    if args.code is None:
        summaries = {code: first_sentence(text) for code, text in known.items()}
        output.json(summaries) if args.json else output.table(list(summaries.items()))
        return 0
    code = args.code.strip()
    if code not in known:
        close = get_close_matches(code, known, n=1)
        hint = f" Did you mean `{close[0]}`?" if close else " `gym explain` lists them all."
        output.error(f"there is no code `{code}`.{hint}")
        return 2
    output.json({"code": code, "explanation": known[code]}) if args.json else output.data(f"{code}\n\n{known[code]}")
    return 0


def first_sentence(text: str) -> str:
    """The first sentence, however its lines are broken."""
    return SENTENCE.split(" ".join(text.split()), maxsplit=1)[0]


def explanations() -> dict[str, str]:
    """Code -> what it means and what to do, in the order they are written down."""
    pieces = HEADING.split(files("nemo_gym.cli").joinpath("explanations.md").read_text(encoding="utf-8"))
    return {code.strip(): text.strip() for code, text in zip(pieces[1::2], pieces[2::2], strict=True)}
