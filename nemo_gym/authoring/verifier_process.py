"""Run a server folder's verifier fixture or audit in the interpreter of that server.

    python -m nemo_gym.authoring.verifier_process --request REQUEST.json --result RESULT.json

The request has the `folder` of the server and the options of `cases` or of `audit`. The result has the cases, the audit
or a `problem`. Exit status: 0 if the request was carried out, 1 if not.
"""

import argparse
import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nemo_gym.authoring.audit import import_folder_module, run_audit
from nemo_gym.authoring.verifier_cases import VerifierFixture, exercise_verifier_fixture
from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.errors import ConfigError, GymError

EXPORT = "VERIFIER_FIXTURE"


def load_fixture(folder: Path) -> VerifierFixture:
    """Import `app.py` of a server folder and return the fixture it exports.

    Raises:
        ConfigError: the module cannot be imported, or exports no fixture.
    """
    module = import_folder_module(folder, "app")
    fixture = getattr(module, EXPORT, None)
    if not isinstance(fixture, VerifierFixture):
        raise ConfigError(f"exports no {EXPORT}", where=module.__name__, fix="copy the one that `gym env init` writes")
    return fixture


async def run_request(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the audit or the fixture that a request names and return its result."""
    folder = Path(request["folder"])
    if "audit" in request:
        return (await run_audit(folder, **request["audit"])).as_dict()
    results = await exercise_verifier_fixture(load_fixture(folder), **request["cases"])
    return {"cases": [result.as_dict() for result in results]}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the request file, write the result file and return the exit status."""
    parser = argparse.ArgumentParser(prog="verifier_process", description=__doc__)
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
    logging.getLogger("nemo_gym").setLevel(logging.CRITICAL)  # cases and audits make rows and judges fail on purpose
    sys.exit(main())
