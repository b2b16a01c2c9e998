"""Checks for sinks, sources and lineage stores that others write."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from nemo_gym.token_id_capture.fingerprint import FINGERPRINT_VERSION, assistant_fingerprint, conversation_digest
from nemo_gym.token_id_capture.lineage import LineageResolver, ParentResolutionStatus
from nemo_gym.token_id_capture.protocols import TokenSink, TokenSource
from nemo_gym.token_id_capture.records import TokenEntry, token_digest

Factory = Callable[[], Any]

REQUEST: list[dict[str, Any]] = [{"role": "user", "content": "conformance"}]
REPLY: dict[str, Any] = {"role": "assistant", "content": "reply"}


class ConformanceError(AssertionError):
    """A store broke a rule of its protocol."""

    def __init__(self, check_name: str, detail: str) -> None:
        super().__init__(f"{check_name}: {detail}")
        self.check_name = check_name
        self.detail = detail


async def run_conformance(
    sink_factory: Factory,
    source_factory: Factory,
    lineage_factory: Factory | None = None,
    *,
    rollout_id: str = "conformance-rollout",
) -> list[str]:
    """Run all checks with fresh clients over one backend, and return the names of those that passed.

    The factories may be coroutine functions. Rollout ids that begin with `rollout_id` are used and removed.

    Raises:
        ConformanceError: a check failed.
    """
    clients = _Clients(sink_factory, source_factory, lineage_factory, rollout_id)
    names: list[str] = []
    checks: list[Callable[[_Clients], Awaitable[None]]] = [
        put_then_freeze_visibility,
        idempotent_reput,
        conflicting_reput,
        mark_incomplete_durability,
        freeze_idempotency,
        post_freeze_write_safety,
        conditional_retirement,
    ]
    if lineage_factory is not None:
        checks += [lineage_visibility, fresh_client_lineage_visibility]
    try:
        if callable(getattr(await clients.sink(), "begin_call", None)):
            checks.append(begin_call_custody)
        for check in checks:
            clients.number += 1
            await check(clients)
            names.append(check.__name__)
    finally:
        await clients.close()
    return names


class _Clients:
    """Builds fresh clients, and closes all of them at the end."""

    def __init__(self, sink: Factory, source: Factory, lineage: Factory | None, rollout_id: str) -> None:
        self._factories = {"sink": sink, "source": source, "lineage": lineage}
        self._opened: list[Any] = []
        self._base = rollout_id
        self.number = 0

    @property
    def rollout_id(self) -> str:
        """A rollout of the current check."""
        return f"{self._base}-{self.number}"

    async def sink(self) -> TokenSink:
        return await self._build("sink")  # type: ignore[no-any-return]

    async def source(self) -> TokenSource:
        return await self._build("source")  # type: ignore[no-any-return]

    async def lineage(self) -> LineageResolver:
        return await self._build("lineage")  # type: ignore[no-any-return]

    async def _build(self, name: str) -> Any:
        factory = self._factories[name]
        assert factory is not None
        client = factory()
        if inspect.isawaitable(client):
            client = await client
        self._opened.append(client)
        return client

    async def close(self) -> None:
        for client in self._opened:
            await client.close()

    def entry(self, call: str, tokens: list[int] | None = None) -> TokenEntry:
        generation = tokens or [4, 5]
        return TokenEntry(
            rollout_id=self.rollout_id,
            model_call_id=call,
            prompt_token_ids=[1, 2, 3],
            generation_token_ids=generation,
            generation_log_probs=[-0.5] * len(generation),
            output_items=[REPLY],
            created_at=1.0,
            cum_len=3 + len(generation),
            digest=token_digest([1, 2, 3, *generation]),
            parent_resolution="root",
            continuation_fingerprint=assistant_fingerprint([*REQUEST, REPLY]),
            continuation_context_len=len(REQUEST),
            continuation_context_digest=conversation_digest(REQUEST),
            fingerprint_version=FINGERPRINT_VERSION,
        )


def _require(condition: bool, check: str, detail: str) -> None:
    if not condition:
        raise ConformanceError(check, detail)


async def put_then_freeze_visibility(clients: _Clients) -> None:
    """A stored record is in the snapshot of a fresh source."""
    entry = clients.entry("call-1")
    await (await clients.sink()).put(entry)
    snapshot = await (await clients.source()).freeze(clients.rollout_id)
    _require(list(snapshot.entries) == [entry], "put_then_freeze_visibility", "the snapshot lacks the stored record")
    _require(not snapshot.incomplete, "put_then_freeze_visibility", "a complete rollout is marked incomplete")


async def idempotent_reput(clients: _Clients) -> None:
    """The same record again is no second record."""
    for _ in range(2):
        await (await clients.sink()).put(clients.entry("call-1"))
    snapshot = await (await clients.source()).freeze(clients.rollout_id)
    _require(len(snapshot.entries) == 1, "idempotent_reput", f"{len(snapshot.entries)} records after two equal puts")


async def conflicting_reput(clients: _Clients) -> None:
    """Another record with a used call id is refused."""
    sink = await clients.sink()
    await sink.put(clients.entry("call-1"))
    try:
        await sink.put(clients.entry("call-1", [6]))
    except Exception:  # of any sink
        return
    raise ConformanceError("conflicting_reput", "a second record with the same call id was accepted")


async def mark_incomplete_durability(clients: _Clients) -> None:
    """A fresh source sees the mark, also one that was set after the freeze, with another version."""
    source = await clients.source()
    await (await clients.sink()).put(clients.entry("call-1"))
    before = await source.freeze(clients.rollout_id)
    await (await clients.sink()).mark_incomplete(clients.rollout_id, "call-2")
    after = await (await clients.source()).freeze(clients.rollout_id)
    _require(after.incomplete, "mark_incomplete_durability", "the mark is not in the snapshot")
    _require(after.version != before.version, "mark_incomplete_durability", "the mark did not change the version")


async def freeze_idempotency(clients: _Clients) -> None:
    """Two snapshots of an unchanged rollout are the same."""
    await (await clients.sink()).put(clients.entry("call-1"))
    first = await (await clients.source()).freeze(clients.rollout_id)
    second = await (await clients.source()).freeze(clients.rollout_id)
    is_same = (first.snapshot_id, first.version) == (second.snapshot_id, second.version)
    _require(is_same, "freeze_idempotency", "the second snapshot has another id or version")


async def post_freeze_write_safety(clients: _Clients) -> None:
    """A write after the freeze fails, or changes the version."""
    source = await clients.source()
    await (await clients.sink()).put(clients.entry("call-1"))
    first = await source.freeze(clients.rollout_id)
    try:
        await (await clients.sink()).put(clients.entry("call-2"))
    except Exception:  # of any sink
        return
    second = await source.freeze(clients.rollout_id)
    _require(second.version != first.version, "post_freeze_write_safety", "a late write did not change the version")


async def conditional_retirement(clients: _Clients) -> None:
    """A changed rollout is not dropped; an unchanged one is, and leaves nothing."""
    source, sink = await clients.source(), await clients.sink()
    await sink.put(clients.entry("call-1"))
    stale = await source.freeze(clients.rollout_id)
    await sink.mark_incomplete(clients.rollout_id)
    is_dropped = await source.drop(clients.rollout_id, snapshot_id=stale.snapshot_id, version=stale.version)
    _require(not is_dropped, "conditional_retirement", "a rollout that had changed was dropped")
    fresh = await source.freeze(clients.rollout_id)
    is_dropped = await source.drop(clients.rollout_id, snapshot_id=fresh.snapshot_id, version=fresh.version)
    left = await (await clients.source()).freeze(clients.rollout_id)
    _require(is_dropped and not left.entries, "conditional_retirement", "an unchanged rollout was not dropped")


async def lineage_visibility(clients: _Clients) -> None:
    """A resolver finds a stored call as the parent of its continuation."""
    lineage = await clients.lineage()
    await _check_resolution(clients, lineage, "lineage_visibility")


async def fresh_client_lineage_visibility(clients: _Clients) -> None:
    """So does a resolver that was built after the call was stored."""
    await _check_resolution(clients, None, "fresh_client_lineage_visibility")


async def _check_resolution(clients: _Clients, lineage: LineageResolver | None, check: str) -> None:
    entry = clients.entry("call-1")
    await (await clients.sink()).put(entry)
    lineage = lineage or await clients.lineage()
    resolution = await lineage.resolve(clients.rollout_id, [*REQUEST, REPLY, {"role": "user", "content": "next"}])
    _require(resolution.status is ParentResolutionStatus.RESOLVED, check, f"the continuation is {resolution.status}")
    tokens = list(resolution.match.cumulative_token_ids) if resolution.match is not None else []
    _require(tokens == [1, 2, 3, 4, 5], check, f"the tokens of the parent are {tokens}")


async def begin_call_custody(clients: _Clients) -> None:
    """A call that began and has no record makes its rollout incomplete."""
    sink: Any = await clients.sink()
    await sink.begin_call(clients.rollout_id, "call-1")
    open_call = await (await clients.source()).freeze(clients.rollout_id)
    _require(open_call.incomplete, "begin_call_custody", "a call without a record is not noticed")
    await sink.put(clients.entry("call-1"))
    ended = await (await clients.source()).freeze(clients.rollout_id)
    _require(not ended.incomplete, "begin_call_custody", "a call with its record is still incomplete")
