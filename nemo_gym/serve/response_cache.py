"""Response cache: answers of models on disk, so that a repeated request costs nothing. Off by default (`--cache`).

The key is a hash of the request with its sampling parameters and seed, of the configuration of the model server, and of
the repeat of the rollout: repeats of a task must not get the same answer. Only successful answers are stored.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.config.keys import value_of
from nemo_gym.config.secrets import mask_secrets
from nemo_gym.serve.correlation import current_rollout_id
from nemo_gym.transport.call_timing import current_rollout

CACHE_KEY = "response_cache"
FOLDER = "responses"
_MACHINE_FIELDS = frozenset({"host", "port", "num_workers", "hosting", "entrypoint", "max_concurrent_requests", "name"})
"""Fields of a model server that do not affect its answers."""
_UNFINISHED = frozenset({"failed", "cancelled", "queued", "in_progress"})
"""The status of a response that is no answer, although it came with the HTTP status 200."""
_ROLLOUT_ID = re.compile(r"\d+-(?P<repeat>\d+)(?:-a\d+)?", re.ASCII)
"""A rollout id of the collector: task, repeat and, after the first one, attempt."""

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class ResponseCache:
    """The stored answers of one model server."""

    def __init__(self, folder: Path, server: Mapping[str, Any]) -> None:
        """Use `folder`; `server` is the configuration of the model server."""
        self._folder = folder
        fields = {name: value for name, value in mask_secrets(dict(server)).items() if name not in _MACHINE_FIELDS}
        self._server = json.dumps(fields, sort_keys=True, default=str)

    @classmethod
    def from_config(cls, config: Mapping[str, Any] | None, server: BaseModel) -> "ResponseCache | None":
        """Return the cache of a configuration; None if it is off."""
        if not config or not config.get(CACHE_KEY):
            return None
        return cls(Path(value_of(config, "cache_dir")) / FOLDER, server.model_dump(mode="json"))

    async def answer(self, body: BaseModel, answer_class: type[AnswerT], call: Callable[[], Awaitable[Any]]) -> Any:
        """Return the stored answer to a request; else call the model and store its answer if it is an `answer_class`.

        A response that failed is not stored. A damaged file counts as missing, and an answer that cannot be written is
        returned all the same.
        """
        path = self._path_of(body, answer_class.__name__)
        with suppress(OSError, ValidationError):
            return answer_class.model_validate_json(await asyncio.to_thread(path.read_bytes))
        answer = await call()
        if isinstance(answer, answer_class) and getattr(answer, "status", None) not in _UNFINISHED:
            with suppress(OSError):
                await asyncio.to_thread(_write, path, answer.model_dump_json(exclude_unset=True).encode())
        return answer

    def _path_of(self, body: BaseModel, kind: str) -> Path:
        request = orjson.dumps(body.model_dump(mode="json", exclude_unset=True), option=orjson.OPT_SORT_KEYS)
        digest = hashlib.blake2b(digest_size=20)
        for part in (kind, self._server, _repeat()):
            digest.update(part.encode() + b"\0")
        digest.update(request)
        name = digest.hexdigest()
        return self._folder / name[:2] / f"{name}.json"


def _repeat() -> str:
    """Return the repeat of the rollout that sent the request.

    A program outside of our servers sends no header; its base URL contains the rollout id, and an id that is not of the
    collector stands for itself.
    """
    rollout, rollout_id = current_rollout(), current_rollout_id()
    if rollout is not None:
        return str(rollout[1])
    match = _ROLLOUT_ID.fullmatch(rollout_id) if rollout_id else None
    return match["repeat"] if match else str(rollout_id)


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as file:
        file.write(content)
