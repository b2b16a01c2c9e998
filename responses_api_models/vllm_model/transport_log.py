"""A log file with every request to the endpoints and its reply, for debugging."""

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from nemo_gym.errors import ConfigError
from nemo_gym.wire.call_reply import encode_json

TRANSPORT_LOG_ENV_VAR = "NEMO_GYM_VLLM_TRANSPORT_LOG"


class TransportLog:
    """Appends one JSON line per call in one write, so that processes can share the file. API keys are not logged.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.open("ab").close()
        except OSError as error:
            raise ConfigError(
                f"cannot write {file}: {error.strerror}",
                where=TRANSPORT_LOG_ENV_VAR,
                fix="name a file that can be written",
            ) from error

    @classmethod
    def from_environment(cls) -> Self | None:
        """Open the log that `NEMO_GYM_VLLM_TRANSPORT_LOG` names; None if it is not set."""
        name = os.environ.get(TRANSPORT_LOG_ENV_VAR)
        return cls(Path(name)) if name else None

    def write(self, *, server: str, endpoint: str, call: str, request: Any, seconds: float, **outcome: Any) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(),
            "server": server,
            "endpoint": endpoint,
            "call": call,
            "seconds": round(seconds, 3),
            "request": request,
            **outcome,
        }
        with self._file.open("ab", buffering=0) as file:
            file.write(encode_json(line) + b"\n")
