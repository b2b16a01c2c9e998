"""Run a server folder's verifier fixture or audit in the interpreter of that server.

    python -m nemo_gym.authoring.runner --request REQUEST.json --result RESULT.json

With `module`, the request runs that module's fixture; with `folder`, it audits that folder. The result has the cases,
the audit, or `problem`. Exit status: 0 if the request was carried out, 1 if not.
"""

import argparse
import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nemo_gym.authoring.audit import import_folder_module, run_audit
from nemo_gym.authoring.verifier_fixture import VerifierFixture, exercise_verifier_fixture
from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.errors import ConfigError, GymError

EXPORT = "VERIFIER_FIXTURE"


def load_fixture(module_name: str) -> VerifierFixture:
    """Import a server's module and return the fixture it exports.

    Raises:
        ConfigError: the module cannot be imported, or exports no fixture.
    """
    fixture = getattr(import_folder_module(module_name), EXPORT, None)
    if not isinstance(fixture, VerifierFixture):
        raise ConfigError(f"exports no {EXPORT}", where=module_name, fix="copy the one that `gym env init` writes")
    return fixture


@contextmanager
def quiet_logging() -> Iterator[None]:
    """Show only critical log records of the package while the block runs."""
    logger = logging.getLogger("nemo_gym")
    previous_level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(previous_level)


async def run_request(request: dict[str, Any]) -> dict[str, Any]:
    """Run the audit or the fixture that a request names and return its result."""
    if "folder" in request:
        with quiet_logging():  # an audit makes rows and judges fail on purpose
            return (await run_audit(Path(request["folder"]), rows=request["rows"], seed=request["seed"])).as_dict()
    options = {key: request[key] for key in ("seeded", "reward_range", "best", "update_expected")}
    results = await exercise_verifier_fixture(load_fixture(request["module"]), **options)
    return {"cases": [result.as_dict() for result in results]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the request file, write the result file and return the exit status."""
    parser = argparse.ArgumentParser(prog="runner", description=__doc__)
    parser.add_argument("--request", type=Path, required=True, help="JSON file with the request")
    parser.add_argument("--result", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args(argv)
    try:
        result = asyncio.run(run_request(json.loads(args.request.read_bytes())))
    except GymError as problem:
        result = {"problem": str(problem)}
    except Exception as error:  # code of the server folder: report any exception
        last = traceback.extract_tb(error.__traceback__)[-1]
        result = {"problem": f"{last.filename}:{last.lineno}: {type(error).__name__}: {error}"}
    with whole_file(args.result) as stream:
        stream.write(json.dumps(result).encode())
    return int("problem" in result)


if __name__ == "__main__":
    sys.exit(main())
