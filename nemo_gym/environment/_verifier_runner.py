"""Tries a server folder's `VERIFIER_FIXTURE` in the interpreter of that server.

python -m nemo_gym.environment._verifier_runner --request REQUEST.json --result RESULT.json

The request names the module (`resources_servers.sums.app`) and what the manifest says; the result has the cases, or
the problem in words. Exit status: 0 tried (whatever came out), 1 it could not be tried.
"""

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_gym.catalog.files import whole_file
from nemo_gym.environment.verifier_fixture import VerifierFixture, as_plain, exercise_verifier_fixture
from nemo_gym.errors import ConfigError

EXPORT = "VERIFIER_FIXTURE"


def fixture_of(module_name: str) -> VerifierFixture:
    """What a server's module exports.

    Raises:
        ConfigError: it cannot be imported, or exports none.
    """
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # somebody else's module: whatever it raises is the answer
        raise ConfigError(f"cannot be imported: {type(error).__name__}: {error}", where=module_name) from error
    fixture = getattr(module, EXPORT, None)
    if not isinstance(fixture, VerifierFixture):
        raise ConfigError(f"exports no {EXPORT}", where=module_name, fix="see `gym env init` for one to copy")
    return fixture


def tried(request: dict[str, Any]) -> dict[str, Any]:
    """The result for a request."""
    try:
        results = asyncio.run(
            exercise_verifier_fixture(
                fixture_of(request["module"]),
                seeded=request["seeded"],
                reward_range=request["reward_range"],
                best=request["best"],
                update_expected=request["update_expected"],
            )
        )
    except ConfigError as problem:
        return {"problem": str(problem)}
    return {"cases": as_plain(results)}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="_verifier_runner", description=__doc__)
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args(words)
    result = tried(json.loads(args.request.read_bytes()))
    with whole_file(args.result) as stream:
        stream.write(json.dumps(result).encode())
    return int("problem" in result)


if __name__ == "__main__":
    sys.exit(main())
