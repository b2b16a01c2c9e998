"""Audits a server folder in the interpreter of that server.

python -m nemo_gym.environment._audit_runner --request REQUEST.json --result RESULT.json

The request has the folder, how many rows and the seed; the result has what was found, or the problem in words. Exit
status: 0 audited (whatever came out), 1 it could not be.
"""

import argparse
import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nemo_gym.catalog.files import whole_file
from nemo_gym.environment.audit import audited
from nemo_gym.errors import GymError


def found(request: dict[str, Any]) -> dict[str, Any]:
    """The result for a request."""
    try:
        return asyncio.run(audited(Path(request["folder"]), rows=request["rows"], seed=request["seed"])).as_plain()
    except GymError as problem:
        return {"problem": str(problem)}
    except Exception as error:  # a folder's own code: whatever it raises is the answer
        last = traceback.extract_tb(error.__traceback__)[-1]
        return {"problem": f"{last.filename}:{last.lineno}: {type(error).__name__}: {error}"}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="_audit_runner", description=__doc__)
    parser.add_argument("--request", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args(words)
    logging.getLogger("nemo_gym").setLevel(logging.CRITICAL)  # rows are refused and judges fail on purpose here
    result = found(json.loads(args.request.read_bytes()))
    with whole_file(args.result) as stream:
        stream.write(json.dumps(result).encode())
    return int("problem" in result)


if __name__ == "__main__":
    sys.exit(main())
