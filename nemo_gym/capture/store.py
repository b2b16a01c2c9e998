"""Captured model calls on disk, one append-only JSONL file per rollout, and the capture settings of the configuration.

Writes are synced to disk and locked, so that crashes and concurrent writers lose no stored call.
"""

import fcntl
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic_core import from_json

from nemo_gym.capture.record import CapturedExchange, ModelCallRecord
from nemo_gym.errors import ConfigError
from nemo_gym.journal import last_line_begin, sync_folder
from nemo_gym.keys import NG_MODEL_CALL_CAPTURE_KEY
from nemo_gym.wire.call_reply import encode_json

OBSERVABILITY_ENABLED_KEY = "observability_enabled"
MODEL_CALL_CAPTURE_DIR_KEY = "model_call_capture_dir"
TOKEN_ID_CAPTURE_KEY = "token_id_capture"

ROLLOUT_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

LOCK_TIMEOUT_S = 30.0
"""A writer holds the lock for one append only, so a longer wait means that another process hangs."""

_LOCK_POLL_S = 0.005

_SUMMED = ("tokens_in", "tokens_out", "tokens_reasoning", "tokens_total", "cached_tokens")


@dataclass
class RolloutCapture:
    """The stored calls of one rollout, and its gaps: a code and a detail for each missing or unreadable call."""

    records: list[ModelCallRecord] = field(default_factory=list)
    gaps: list[dict[str, Any]] = field(default_factory=list)


class CaptureStore:
    """Reads and writes the capture files in `directory`. Methods block on disk I/O; call them from a thread."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def path_for(self, rollout_id: str) -> Path:
        return self.directory / f"{safe_file_name(rollout_id)}.capture.jsonl"

    def incomplete_path_for(self, rollout_id: str) -> Path:
        """Return the path of the marker file, which exists only if a call of the rollout is missing."""
        return self.directory / f"{safe_file_name(rollout_id)}.capture.incomplete"

    def append(self, rollout_id: str, record: CapturedExchange) -> None:
        """Append a call to the capture file of a rollout and sync it to disk.

        A torn last line, left by a crash, is removed first, and the rollout is marked incomplete.

        Raises:
            OSError: the write failed; TimeoutError if another process holds the lock for too long.
        """
        line = encode_json(record.model_dump(mode="json", exclude_none=True)) + b"\n"
        path = self.path_for(rollout_id)
        self.directory.mkdir(parents=True, exist_ok=True)
        is_new = not path.exists()
        with path.open("ab+") as file, file_lock(file.fileno()):
            size = os.fstat(file.fileno()).st_size
            complete_size = last_line_begin(file.fileno(), size)
            if complete_size < size:
                os.ftruncate(file.fileno(), complete_size)
                self.mark_incomplete(rollout_id, "a line was torn by a crash and has been cut off")
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        if is_new:
            sync_folder(self.directory)

    def record(self, rollout_id: str, exchange: CapturedExchange | Mapping[str, Any]) -> None:
        """Append a call, as an object or as the fields of one; a call without an id gets one."""
        if isinstance(exchange, Mapping):
            exchange = CapturedExchange.model_validate({"model_call_id": f"mc_{uuid4().hex}", **exchange})
        self.append(rollout_id, exchange)

    def mark_incomplete(self, rollout_id: str, reason: str) -> None:
        """Add a reason to the marker file of a rollout with a missing call."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self.incomplete_path_for(rollout_id).open("a", encoding="utf-8") as marker:
            marker.write(reason.replace("\n", " ") + "\n")
            marker.flush()
            os.fsync(marker.fileno())
        sync_folder(self.directory)

    def read(self, rollout_id: str) -> RolloutCapture:
        """Read the capture of a rollout. Unreadable lines and the reasons in the marker file become gaps."""
        capture = RolloutCapture()
        marker = self.incomplete_path_for(rollout_id)
        if marker.exists():
            reasons = [line for line in marker.read_text(encoding="utf-8").split("\n") if line]
            capture.gaps += [_gap("capture_incomplete", reason) for reason in reasons or ["a call could not be stored"]]
        path = self.path_for(rollout_id)
        if not path.exists():
            return capture
        *lines, unterminated = path.read_bytes().split(b"\n")
        if unterminated:
            capture.gaps.append(_gap("capture_torn_line", f"{path.name} ends in the middle of a line"))
        for number, line in enumerate(lines, start=1):
            try:
                exchange = CapturedExchange.model_validate(from_json(line))
                capture.records.append(ModelCallRecord.of(exchange, len(capture.records)))
            except ValueError:  # includes pydantic.ValidationError
                capture.gaps.append(_gap("capture_parse_error", f"{path.name}:{number} is not a model call"))
        return capture


def captures_model_calls(config: object) -> bool:
    """Return True if the configuration enables model call capture; False for a mock of a configuration."""
    return isinstance(config, Mapping) and config.get(OBSERVABILITY_ENABLED_KEY) is True


def captures_token_ids(config: object, *, for_this_agent: bool) -> bool:
    """Return True if token id capture is enabled, and either `for_this_agent` is set or it is for all agents."""
    block: Any = config.get(TOKEN_ID_CAPTURE_KEY) if isinstance(config, Mapping) else None
    if not isinstance(block, Mapping) or block.get("enabled") is not True:
        return False
    return for_this_agent or block.get("all_agents") is True


def capture_store(config: object) -> CaptureStore | None:
    """Return the store of captured model calls; None if model calls are not captured.

    Raises:
        ConfigError: `model_call_capture_dir` is missing or not an absolute path.
    """
    if not isinstance(config, Mapping) or not captures_model_calls(config):  # the first test is for the type checker
        return None
    directory = config.get(MODEL_CALL_CAPTURE_DIR_KEY)
    if not isinstance(directory, str | Path) or not Path(directory).is_absolute():
        raise ConfigError(
            f"{OBSERVABILITY_ENABLED_KEY} is on, so {MODEL_CALL_CAPTURE_DIR_KEY} must be an absolute path, "
            f"not {directory!r}",
            fix=f"+{MODEL_CALL_CAPTURE_DIR_KEY}=/somewhere/captures",
        )
    return CaptureStore(directory)


def read_model_call_records(store: CaptureStore, rollout_id: str) -> list[ModelCallRecord]:
    """Return the captured calls of one rollout, in the order in which they ended."""
    return store.read(rollout_id).records


def aggregate_model_call_metrics(store: CaptureStore, rollout_id: str) -> dict[str, Any]:
    """Return totals over the captured calls of one rollout. A count that no call reports is None."""
    return _metrics(read_model_call_records(store, rollout_id))


def merge_model_call_capture_into_record(
    record: dict[str, Any], store: CaptureStore, rollout_id: str
) -> dict[str, Any]:
    """Set `ng_model_call_capture` in the record of a rollout, which is changed in place and returned."""
    stored = store.read(rollout_id)
    capture: dict[str, Any] = {
        "rollout_id": rollout_id,
        "metrics": _metrics(stored.records),
        "calls": [call.model_dump(exclude_none=True) for call in stored.records],
    }
    if stored.gaps:
        capture["gaps"] = stored.gaps
    record[NG_MODEL_CALL_CAPTURE_KEY] = capture
    return record


def clear_model_call_captures_for_rollouts(store: CaptureStore, rollout_ids: Iterable[str]) -> None:
    """Delete the captures of these rollouts, so that new attempts start without any."""
    for rollout_id in rollout_ids:
        store.path_for(rollout_id).unlink(missing_ok=True)
        store.incomplete_path_for(rollout_id).unlink(missing_ok=True)


def _metrics(records: list[ModelCallRecord]) -> dict[str, Any]:
    """Return the totals of tokens, latency and calls; a token count that no call reports is None."""
    totals: dict[str, Any] = {}
    for name in _SUMMED:
        counts = [count for record in records if (count := getattr(record, name)) is not None]
        totals[name] = sum(counts) if counts else None
    totals["latency_total_ms"] = sum(record.latency_ms or 0.0 for record in records)
    totals["num_calls"] = len(records)
    return totals


def _gap(code: str, detail: str) -> dict[str, Any]:
    return {"code": code, "detail": detail}


@lru_cache(maxsize=4096)
def safe_file_name(rollout_id: str) -> str:
    """Return the rollout id; raise ValueError if it is not safe as a file name."""
    if not ROLLOUT_ID_PATTERN.fullmatch(rollout_id):
        raise ValueError(f"not a rollout id: {rollout_id!r} (letters, digits, '.', '_', '-'; first a letter or digit)")
    return rollout_id


@contextmanager
def file_lock(descriptor: int) -> Iterator[None]:
    """Hold the advisory lock of a file. The lock is polled, because a blocking `flock` has no timeout."""
    lock_deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > lock_deadline:
                raise TimeoutError(f"another process kept the capture file locked for {LOCK_TIMEOUT_S:.0f} s") from None
            time.sleep(_LOCK_POLL_S)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
