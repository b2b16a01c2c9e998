"""Golden vectors of the staging digests, for implementations in other places.

- `golden_vectors.json`: inputs and digests
"""

import json
from importlib.resources import files
from typing import Any

from nemo_gym.token_id_capture.staging import digests


def golden_vectors() -> dict[str, Any]:
    """Return the inputs and digests."""
    text = (files(__name__) / "golden_vectors.json").read_text(encoding="utf-8")
    vectors: dict[str, Any] = json.loads(text)
    return vectors


def assert_golden_vectors() -> None:
    """Check that this installation gives the digests of the vectors.

    Raises:
        AssertionError: a digest differs.
    """
    vectors = golden_vectors()
    for vector in vectors["extras"]:
        if digests.extras_digest(vector["extras"]) != vector["digest"]:
            raise AssertionError(f"the digest of the extras {vector['extras']} differs")
    for vector in vectors["calls"]:
        if digests.call_digest(**vector["fields"]) != vector["digest"]:
            raise AssertionError(f"the digest of the call {vector['fields']['model_call_id']} differs")
