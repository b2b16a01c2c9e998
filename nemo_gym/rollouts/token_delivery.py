"""Deliver captured tokens into the results of a collection; delete their records when the results are on disk."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import uuid4

from nemo_gym.errors import GymError
from nemo_gym.keys import AGENT_REF_KEY_NAME, ROLLOUT_ID_KEY_NAME
from nemo_gym.rollout_correlation import maybe_rollout_id_from_run_body
from nemo_gym.rollouts.collect import Send
from nemo_gym.rollouts.lock import RunLock
from nemo_gym.rollouts.outcome import CancelledRollout, Job, Outcome
from nemo_gym.token_id_capture.config import (
    TokenIdCaptureConfig,
    check_token_capture,
    token_id_capture_enabled_for_agent,
)
from nemo_gym.token_id_capture.delivery import (
    FinalizedCapture,
    finalize_rollout_token_capture,
    retire_rollout_token_capture,
)
from nemo_gym.token_id_capture.process_stores import token_source
from nemo_gym.token_id_capture.protocols import TokenSource
from nemo_gym.token_id_capture.store import TokenCaptureStore
from nemo_gym.wire.stored_rollout import Row

logger = logging.getLogger("nemo_gym.rollouts")

LOCK_NAME = "collector.lock"


class TooManyMasked(GymError, RuntimeError):
    """More rollouts than allowed have tokens that cannot be proven."""


@dataclass
class TokenDelivery:
    """The token capture of one collection or session.

    Every run counts its rollouts from `0-0`, so that two runs in one folder would mix their tokens. A run that uses
    `wrap` therefore holds the lock of the folder: `async with`, or `lock` and `unlock`.
    """

    source: TokenSource
    settings: TokenIdCaptureConfig
    servers: Mapping[str, Any]
    finalized: int = 0
    masked: int = 0
    last_reason: str = ""
    _pending: dict[str, FinalizedCapture] = field(default_factory=dict)
    """Captures in results that are not stored yet."""
    _stored: list[FinalizedCapture] = field(default_factory=list)
    """Captures in stored results that may not be on the disk yet; the sync thread takes them."""
    _syncing: list[FinalizedCapture] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _remains: set[str] = field(default_factory=set)
    """Rollouts that may have records: those of earlier runs in the same folder, and those in flight."""
    _participation: dict[str, bool] = field(default_factory=dict)
    _loop: asyncio.AbstractEventLoop | None = None
    _retiring: set["asyncio.Task[None]"] = field(default_factory=set)
    _folder_lock: RunLock | None = None

    @classmethod
    def from_config(cls, servers: Mapping[str, Any]) -> "TokenDelivery | None":
        """Return the delivery that the configuration of the servers asks for; None without token capture.

        Raises:
            TokenCaptureConfigError: capture is enabled, but it cannot capture or deliver anything.
        """
        settings = check_token_capture(servers)
        source = token_source(servers) if settings.enabled else None
        if source is None:
            return None
        return cls(source, settings, servers)

    @classmethod
    def check(cls, servers: Mapping[str, Any]) -> None:
        """Raise an error if token capture is on and could not deliver, or another run uses its folder."""
        delivery = cls.from_config(servers)
        if delivery is not None:
            delivery.lock()
            delivery.unlock()

    def lock(self) -> None:
        """Take the folder of the records for this run, and note what earlier runs left in it.

        Raises:
            OutputInUse: another run uses the folder.
        """
        if isinstance(self.source, TokenCaptureStore):
            lock = RunLock(self.source.root / LOCK_NAME, "folder of token records (token_id_capture.dir)")
            lock.acquire()
            self._folder_lock = lock
            self._remains = self.source.rollout_ids()

    def unlock(self) -> None:
        """Release the folder; do nothing if it is not locked."""
        if self._folder_lock is not None:
            self._folder_lock.release()

    async def __aenter__(self) -> Self:
        self.lock()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                await self.close()
        finally:
            self.unlock()

    def takes_part(self, row: Row) -> bool:
        """Return whether the agent of a row takes part in the capture."""
        agent = row.get(AGENT_REF_KEY_NAME)
        if not isinstance(agent, Mapping):
            return False
        name = str(agent.get("name"))
        if name not in self._participation:
            self._participation[name] = token_id_capture_enabled_for_agent(self.servers, name)
        return self._participation[name]

    async def run_row(self, row: Row, run: Callable[[Row], Awaitable[Any]]) -> Any:
        """Run a row of a trainer and deliver into its result. It gets a new id: a trainer may send a row again."""
        if not self.takes_part(row):
            return await run(row)
        if row.get(ROLLOUT_ID_KEY_NAME) is None:
            row = {**row, ROLLOUT_ID_KEY_NAME: f"r-{uuid4().hex}"}
        rollout_id = maybe_rollout_id_from_run_body(row) or ""
        with self._clearing_on_failure(rollout_id):
            result = await run(row)
        if isinstance(result, dict):
            await self.deliver_now(result, rollout_id)
        return result

    def wrap(self, send: Send, *, stored: bool = True) -> Send:
        """Wrap `send` so that its results contain their captured tokens.

        The records are deleted when the result is on the disk or, if results are not `stored`, at once.
        """

        async def send_and_deliver(job: Job) -> Any:
            if not self.takes_part(job.row):
                return await send(job)
            rollout_id = maybe_rollout_id_from_run_body(job.row) or str(job.key)
            if rollout_id in self._remains:
                self._clear(rollout_id)
            self._remains.add(rollout_id)
            with self._clearing_on_failure(rollout_id):
                result = await send(job)
            if isinstance(result, dict) and stored:
                self._pending[str(job.key)] = await self.finalize(result, rollout_id)
            elif isinstance(result, dict):
                await self.deliver_now(result, rollout_id)
            return result

        return send_and_deliver

    async def finalize(self, result: Row, rollout_id: str) -> FinalizedCapture:
        """Put the tokens of a rollout into its result, or mark it."""
        capture = await finalize_rollout_token_capture(result, self.source, rollout_id=rollout_id)
        self.finalized += 1
        if capture.masked:
            self.masked += 1
            self.last_reason = str(result.get("_ng_token_capture", {}).get("mask_reason", ""))
            logger.warning("rollout %s is masked: %s", rollout_id, self.last_reason)
        return capture

    async def deliver_now(self, result: Row, rollout_id: str) -> None:
        """Deliver into a result that is handed to the caller at once, and delete the records."""
        capture = await self.finalize(result, rollout_id)
        await self._retire([capture])
        self.check_fraction()

    def check_fraction(self) -> None:
        """Raise an error if too many rollouts are masked.

        Raises:
            TooManyMasked: the fraction is above `max_mask_fraction`.
        """
        limit = self.settings.max_mask_fraction
        if limit is None or self.finalized < self.settings.mask_fraction_min_samples:
            return
        if self.masked / self.finalized > limit:
            raise TooManyMasked(
                f"{self.masked} of {self.finalized} rollouts are masked, more than max_mask_fraction {limit:g}; "
                f"the last one: {self.last_reason}",
                where="token_id_capture",
                fix="fix the reason above, or raise token_id_capture.max_mask_fraction",
            )

    def __call__(self, outcome: Outcome) -> None:
        """Note that the result of an attempt is stored, and check the fraction of masked rollouts."""
        self._loop = self._loop or asyncio.get_running_loop()
        capture = self._pending.pop(str(outcome.job.key), None)
        if capture is not None and isinstance(outcome, CancelledRollout):
            self._clear(capture.rollout_id)  # a cancelled rollout is not stored
        elif capture is not None:
            with self._lock:
                self._stored.append(capture)
        self.check_fraction()

    def before_sync(self) -> None:
        with self._lock:
            self._syncing += self._stored
            self._stored = []

    def after_sync(self) -> None:
        """Delete the records of the results that the sync brought to the disk."""
        with self._lock:
            captures, self._syncing = self._syncing, []
        if captures and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin_retiring, captures)

    async def close(self) -> None:
        """Delete the records of all stored results; call it after the store is closed."""
        await asyncio.gather(*self._retiring)
        self.before_sync()
        await self._retire(self._syncing)
        self._syncing = []

    def _begin_retiring(self, captures: list[FinalizedCapture]) -> None:
        task = asyncio.get_running_loop().create_task(self._retire(captures))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retire(self, captures: list[FinalizedCapture]) -> None:
        for capture in captures:
            try:
                if await retire_rollout_token_capture(capture, self.source):
                    self._remains.discard(capture.rollout_id)
            except Exception as error:  # of any source; the result is stored, only its records remain
                logger.warning("the token records of rollout %s were not deleted: %r", capture.rollout_id, error)

    @contextmanager
    def _clearing_on_failure(self, rollout_id: str) -> Iterator[None]:
        """Delete the records of a rollout that ends without a result, and let its error pass."""
        try:
            yield
        except BaseException:
            try:
                self._clear(rollout_id)
            except Exception as error:  # of any source; the error of the rollout counts
                logger.warning("the token records of rollout %s were not deleted: %r", rollout_id, error)
            raise

    def _clear(self, rollout_id: str) -> None:
        """Delete the remains of an interrupted attempt, if the source can."""
        clear = getattr(self.source, "clear", None)
        if clear is not None:
            clear([rollout_id])
