"""`session`: the servers of an environment and a client for trainers.

```python
async with training.session({"config_paths": [...]}, policy=Policy.vllm(url, "my-model")) as gym:
    async for group in gym.groups(rows, group_size=16, need=12):
        train_on(group.usable, group.advantages)
        async with gym.weights(version):
            push_weights()
```
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aiohttp import ClientError
from omegaconf import OmegaConf

from nemo_gym import component_search_roots
from nemo_gym.config.instances import instances_of
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.global_config import HEAD_SERVER_KEY_NAME, GlobalConfigDictParserConfig
from nemo_gym.keys import AGENT_REF_KEY_NAME, AGENTS, ATTEMPT_INDEX_KEY_NAME, ROLLOUT_ID_KEY_NAME
from nemo_gym.launch.background_run import log_line
from nemo_gym.launch.model_endpoints import wait_for_endpoints
from nemo_gym.launch.run import Run, runnable_config
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.rollouts.collect import DEFAULT_CONCURRENCY, RolloutRetryPolicy, attempt
from nemo_gym.rollouts.crash_recovery import ServerMonitor
from nemo_gym.rollouts.limit_options import LimitOptions
from nemo_gym.rollouts.outcome import (
    CancelledRollout,
    FailedRollout,
    Failure,
    Job,
    LimitedRollout,
    Outcome,
    Phase,
    ScoredRollout,
    outcome_record,
)
from nemo_gym.rollouts.rollout_sender import rollout_sender
from nemo_gym.rollouts.token_delivery import TokenDelivery
from nemo_gym.serve.correlation import rollout_path_prefix
from nemo_gym.serve.run_registry import registering
from nemo_gym.server_utils import ServerClient, get_response_json, raise_for_status
from nemo_gym.training.admission import STALE, Admission
from nemo_gym.training.groups import GroupStream
from nemo_gym.training.policy import Policy
from nemo_gym.training.samples import rollout_of
from nemo_gym.training.stream import Launch, RolloutStream, Rows
from nemo_gym.training.types import OutcomeName, Rollout, TokenAccount
from nemo_gym.transport import call_timing, deadlines, http_sessions
from nemo_gym.wire.base import has_token_fields
from nemo_gym.wire.stored_rollout import RolloutKey, Row, StoredRollout

if TYPE_CHECKING:
    from nemo_gym.training.sync import SyncGym

logger = logging.getLogger(__name__)

CANCEL_SECONDS = 1.0
"""Time within which a cancelled rollout must return its prefix; then its connection is closed."""
ABANDON_SECONDS = 0.01
"""Additional time for each rollout that is cancelled with a stream."""
UNANSWERED = "in calls that were cancelled or failed"
NOT_DELIVERED_YET = "not delivered yet, or in calls that were cancelled or failed"
BAD_ROW = "bad_row"
BY_TRAINER = "by the trainer"

_OUTCOME_NAMES: dict[type, OutcomeName] = {
    ScoredRollout: "scored",
    FailedRollout: "failed",
    LimitedRollout: "limit",
    CancelledRollout: "cancelled",
}


ConfigSource = Mapping[str, Any] | Sequence[str | Path]
WeightMode = Literal["pause", "in_flight"]


class Gym:
    """The running servers of a session. Create it with `session`; use it on one event loop."""

    def __init__(
        self,
        client: ServerClient,
        *,
        policy: Policy | None = None,
        version: int = 0,
        agent: str | None = None,
        limits: LimitOptions | None = None,
        batch_size: int | None = None,
        max_staleness: int | None = None,
        max_attempts: int = 1,
        monitor: ServerMonitor | None = None,
        tokens_before: int | None = None,
    ) -> None:
        self.client = client
        self.policy = policy
        self.admission = Admission(version, batch_size)
        self.left_out: Counter[str] = Counter()
        """Generated tokens of streams that were closed early, by the reason why they were not delivered."""
        self._delivered, self._tokens_before = 0, tokens_before
        servers, limits = client.global_config_dict, limits or LimitOptions()
        self._agents = [instance.name for instance in instances_of(servers, AGENTS)]
        self._agent = agent or (self._agents[0] if len(self._agents) == 1 else None)
        self._max_staleness = max_staleness
        self._rules = RolloutCollectionHelper(monitor=monitor).attempt_rules(limits, servers)
        self._retries = RolloutRetryPolicy(max_attempts=max_attempts)
        self._number = 1 + secrets.randbelow(2**50)  # sessions at the same servers may use the same rollout ids
        self._token_delivery = TokenDelivery.from_config(servers)
        self._send = rollout_sender(client, limits, servers, self._token_delivery, keep_replies=self._number)
        self._tasks = 0
        self._streams: set[RolloutStream] = set()
        self._group_streams: set[GroupStream] = set()
        if self._token_delivery is not None:
            self._token_delivery.lock()

    @property
    def head(self) -> BaseServerConfig:
        """The address of the head server."""
        return self.client.head_server_config

    @property
    def version(self) -> int:
        """The current weight version."""
        return self.admission.version

    @property
    def capacity(self) -> int | None:
        """The number of rollouts that may be started now; None without `batch_size` or `max_staleness`."""
        return self.admission.capacity(self._max_staleness)

    @property
    def sync(self) -> "SyncGym":
        """This session for other threads, whose calls block; read it on the event loop of the session."""
        from nemo_gym.training.sync import SyncGym  # imports this module

        return SyncGym(self, asyncio.get_running_loop())

    @property
    def in_flight(self) -> list[str]:
        """The ids of the rollouts in flight."""
        return [launch.rollout_id for stream in self._streams for launch in stream.in_flight.values()]

    def stream(
        self, rows: Rows, *, group_size: int = 1, at_once: int | None = None, max_staleness: int | None = None
    ) -> RolloutStream:
        """Return the rollouts of `rows`, `group_size` for each row, as they end.

        A row that fails gives a rollout with the outcome `failed`. At most `at_once` (1,024) rollouts are in flight.
        """
        at_once = at_once if at_once is not None else DEFAULT_CONCURRENCY
        _check_counts(group_size=group_size, at_once=at_once)
        return self._add_stream(rows, group_size, at_once, 2 * at_once, max_staleness)

    def groups(
        self,
        rows: Rows,
        group_size: int,
        *,
        need: int | None = None,
        at_once: int | None = None,
        max_staleness: int | None = None,
    ) -> GroupStream:
        """Return the groups of `rows`, `group_size` rollouts for each row, as they are complete.

        With `need`, a group ends when it has that many usable rollouts, and the others are cancelled.

        Raises:
            ValueError: a count is less than 1, or `need` is more than can be started, so no group would be complete.
        """
        at_once = at_once if at_once is not None else DEFAULT_CONCURRENCY
        need = need if need is not None else group_size
        _check_counts(group_size=group_size, at_once=at_once, need=need)
        if need > group_size:
            raise ValueError(f"need is {need}, more than group_size {group_size}; start more rollouts or need fewer")
        limit = self.admission.limit(max_staleness if max_staleness is not None else self._max_staleness)
        if limit is not None and need > limit:
            problem = f"need is {need}, but batch_size and max_staleness permit only {limit} rollouts before an update"
            raise ValueError(f"{problem}; need fewer, or raise one of them")
        room = at_once * (group_size + 1)  # each rollout in flight may be the last of its group
        groups = GroupStream(
            lambda wants, on_skip: self._add_stream(
                rows, group_size, at_once, room, max_staleness, unit=need, wants=wants, on_skip=on_skip
            ),
            self._cancel_launch,
            self._group_streams.discard,
            group_size=group_size,
            need=need,
        )
        self._group_streams.add(groups)
        return groups

    def _add_stream(
        self, rows: Rows, group_size: int, at_once: int, room: int, max_staleness: int | None, **hooks: Any
    ) -> RolloutStream:
        bound = max_staleness if max_staleness is not None else self._max_staleness
        options = {"group_size": group_size, "at_once": at_once, "room": room, "max_staleness": bound}
        stream = RolloutStream(self, rows, **options, **hooks)  # type: ignore[arg-type]
        self._streams.add(stream)
        return stream

    async def cancel(self, rollout_id: str, *, keep_prefix: bool = True) -> bool:
        """Cancel a rollout at its agent, tools and engine; return False if it is not in flight.

        The stream returns it as a `cancelled` rollout, with `keep_prefix` with the samples of what was generated. If
        the agent does not return the prefix within a second, the connection is closed and the rollout has no samples.
        """
        rollout = call_timing.parse_rollout(rollout_id.partition("-a")[0])
        for stream in self._streams:
            launch = stream.in_flight.get(rollout) if rollout is not None else None
            if launch is not None:
                await self._cancel_launch(launch, BY_TRAINER, keep_prefix=keep_prefix)
                return True
        return False

    @asynccontextmanager
    async def weights(self, version: int, *, mode: WeightMode = "pause") -> AsyncIterator[None]:
        """Update the weights in the block: `version` becomes current when the block ends.

        With `pause` no rollout is started and the engine is paused during the block; with `in_flight` it goes on, and a
        call that spans the update has both versions. Afterwards, rollouts that have become too stale are cancelled. If
        the block raises, the version stays.
        """
        if version <= self.version:
            raise ValueError(f"weight version {version} is not newer than {self.version}")
        if mode not in ("pause", "in_flight"):
            raise ValueError(f"mode must be pause or in_flight, not {mode!r}")
        is_paused = mode == "pause"
        if is_paused:
            self.admission.pause()
        try:
            try:
                if is_paused and self.policy is not None:
                    await self.policy.pause()
                yield
                if self.policy is not None:
                    await self.policy.set_version(version)
                self.admission.set_version(version)
            finally:
                if is_paused and self.policy is not None:
                    await self.policy.resume()
        finally:
            if is_paused:
                self.admission.resume()
        launches = [launch for stream in self._streams for launch in stream.in_flight.values()]
        stale = [launch for launch in launches if self.admission.is_stale(launch.version, launch.max_staleness)]
        await asyncio.gather(*(self._cancel_launch(launch, STALE) for launch in stale))

    async def close(self) -> None:
        """Close every stream; called at the end of the session."""
        try:
            for groups in list(self._group_streams):
                await groups.aclose()
            for stream in list(self._streams):
                await stream.aclose()
        finally:
            if self._token_delivery is not None:
                self._token_delivery.unlock()

    def next_task(self) -> int:
        """Return the number of the next row: unique in the session, and the same in every session over these rows."""
        self._tasks += 1
        return self._tasks - 1

    def prepare(self, row: Any, task: int, repeat: int, max_staleness: int | None) -> Launch:
        """Build the rollout of a row; a row that cannot be sent has a `problem`."""
        key = RolloutKey(task, repeat)
        fields = dict(row) if isinstance(row, Mapping) else {}
        for name in (ATTEMPT_INDEX_KEY_NAME, ROLLOUT_ID_KEY_NAME):
            fields.pop(name, None)
        if not fields.get(AGENT_REF_KEY_NAME) and self._agent is not None:
            fields[AGENT_REF_KEY_NAME] = {"type": AGENTS, "name": self._agent}
        agent = StoredRollout(fields).agent
        problem = None
        if not isinstance(row, Mapping):
            problem = f"a row must be an object, not {type(row).__name__}"
        elif agent not in self._agents:
            names = ", ".join(self._agents) or "none"
            problem = f"agent_ref names {'no agent' if agent is None else repr(agent)}; agents of this session: {names}"
        return Launch(Job(key, {**fields, **key.fields()}), str(task), self.version, max_staleness, problem)

    async def run(self, launch: Launch) -> Rollout:
        """Run one rollout to its end; release its admission if it cannot be used."""
        outcome = await self._attempt(launch)
        rollout = self._as_rollout(launch, outcome)
        if not rollout.trainable:
            self.admission.release()
        return rollout

    def cancelled_rollout(self, launch: Launch) -> Rollout:
        """Return a rollout that was cancelled before it began."""
        return self._as_rollout(launch, CancelledRollout(launch.job))

    async def _attempt(self, launch: Launch) -> Outcome:
        """Send a rollout, and again as the retry policy permits."""
        if launch.problem is not None:
            failure = Failure(BAD_ROW, Phase.DISPATCH, launch.problem, "session", retryable=False)
            return FailedRollout(launch.job, failure)
        attempts = 0
        try:
            while True:
                outcome = await attempt(launch.job, self._send, self._rules)
                attempts += 1
                pause = self._retries.pause_after(outcome, attempts) if isinstance(outcome, FailedRollout) else None
                if pause is None or launch.cancel_reason is not None:
                    return outcome
                await asyncio.sleep(pause)
                launch.job = launch.job.with_attempt(attempts)
        except asyncio.CancelledError:
            if launch.cancel_reason is None:
                raise
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            return CancelledRollout(launch.job)

    def _as_rollout(self, launch: Launch, outcome: Outcome) -> Rollout:
        """Return an outcome as a rollout, stamped with the versions of the weights and the reason of a cancellation."""
        record = outcome_record(outcome)
        _stamp_versions(record, launch.version, self.version)
        rollout = rollout_of(record, group=launch.group, outcome=_OUTCOME_NAMES[type(outcome)])
        if rollout.outcome == "cancelled" and launch.cancel_reason is not None:
            note = "" if rollout.samples else "; nothing generated was returned"
            return replace(rollout, why_not=f"cancelled: {launch.cancel_reason}{note}")
        return rollout

    async def _cancel_launch(
        self, launch: Launch, reason: str, *, keep_prefix: bool = True, seconds: float = CANCEL_SECONDS
    ) -> None:
        """Cancel a rollout; return when it has ended. Its prefix must arrive within `seconds`."""
        work = launch.work
        if work is None or work.done():
            return
        launch.cancel_reason = launch.cancel_reason or reason
        if keep_prefix:
            try:
                async with asyncio.timeout(seconds):
                    if await self._ask_to_cancel(launch, seconds):
                        await asyncio.wait({work})
            except (TimeoutError, ClientError, GymError) as error:
                cause = str(error) or f"not within {seconds:g} s"
                logger.warning("rollout %s did not return its prefix (%s)", launch.rollout_id, cause)
        if not work.done():
            work.cancel()  # closes the connection, which cancels the work at the servers
            await asyncio.wait({work})

    async def _ask_to_cancel(self, launch: Launch, seconds: float) -> bool:
        """Ask the agent to cancel a rollout; return whether it was running there."""
        path = f"{rollout_path_prefix(launch.rollout_id)}/cancel?caller={self._number}"
        with deadlines.time_limit(seconds):
            reply = await self.client.post(server_name=launch.job.agent, url_path=path)
            await raise_for_status(reply)
            answer = await get_response_json(reply)
        return isinstance(answer, Mapping) and bool(answer.get("cancelled"))

    async def abandon(self, launches: Iterable[Launch], reason: str) -> None:
        """Cancel rollouts of a stream that is closed; many at once may take longer than one."""
        running = list(launches)
        seconds = CANCEL_SECONDS + ABANDON_SECONDS * len(running)
        await asyncio.gather(*(self._cancel_launch(launch, reason, seconds=seconds) for launch in running))

    def count_delivered(self, rollout: Rollout) -> None:
        """Count the tokens of a rollout that the trainer gets."""
        self._delivered += _generated_tokens(rollout)

    def count_undelivered(self, rollout: Rollout, reason: str) -> None:
        """Count the tokens of a rollout that is not delivered."""
        self.left_out[reason] += _generated_tokens(rollout)

    async def token_account(self) -> TokenAccount:
        """Return what became of the tokens that the engine has generated in this session.

        No answer reports the tokens of a call that was cancelled or failed, so they are known only from the engine's
        counter, and only while no other client uses the engine.
        """
        left_out = Counter(self.left_out)
        after = await self.policy.tokens_generated() if self.policy is not None else None
        if after is None or self._tokens_before is None:
            return TokenAccount(None, self._delivered, left_out)
        generated = after - self._tokens_before
        left_out[NOT_DELIVERED_YET if self._streams else UNANSWERED] += max(
            0, generated - self._delivered - left_out.total()
        )
        return TokenAccount(generated, self._delivered, +left_out)

    def forget_stream(self, stream: RolloutStream) -> None:
        self._streams.discard(stream)


def _generated_tokens(rollout: Rollout) -> int:
    trainable = sum(sample.trainable_tokens for sample in rollout.samples)
    return trainable + sum(rollout.left_out.values())  # which has the constrained tokens


def _check_counts(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, not {value}")


def _stamp_versions(record: Row, start: int, end: int) -> None:
    """Write the weight version into the model calls of a record whose engine did not report it.

    The call was made between the start and the end of the rollout, so it has that range of versions.
    """
    for item in StoredRollout(record).output:
        if isinstance(item, dict) and has_token_fields(item) and item.get("weight_version") is None:
            item["weight_version"] = start if start == end else [start, end]


@asynccontextmanager
async def session(
    config: ConfigSource | None = None,
    *,
    policy: Policy | None = None,
    head: str | BaseServerConfig | None = None,
    agent: str | None = None,
    limits: LimitOptions | None = None,
    batch_size: int | None = None,
    max_staleness: int | None = None,
    max_attempts: int = 1,
) -> AsyncIterator[Gym]:
    """Start the servers of a configuration, or connect to running ones, and stop them at the end.

    Args:
        config: a configuration, or the paths of configuration files. Free ports are chosen for servers without one.
        policy: the engine; its keys are added to the configuration, and `weights` controls it.
        head: `host:port` of a running head server, instead of `config`.
        agent: the agent of rows without `agent_ref`; default: the only agent of the configuration.
        limits: time and usage limits of a rollout.
        batch_size: rollouts that the trainer uses for each weight update, for the staleness bound.
        max_staleness: the largest number of updates between the oldest token of a rollout and its delivery.
        max_attempts: attempts at a rollout that fails for a reason which may pass.

    Raises:
        ConfigError: the configuration is not valid, or neither or both of `config` and `head` are given.
        ServerDidNotStart: a server did not start.
        HeadServerUnreachable: no head server answers at `head`.
        OutputInUse: another run uses the folder of the token records.
    """
    if (config is None) == (head is None):
        raise ConfigError("a session needs a configuration or the head of running servers", fix="pass config or head")
    version = await policy.version() if policy is not None else None
    options: dict[str, Any] = {
        "policy": policy, "version": version or 0, "agent": agent, "limits": limits, "batch_size": batch_size,
        "max_staleness": max_staleness, "max_attempts": max_attempts,
        "tokens_before": await policy.tokens_generated() if policy is not None else None,
    }  # fmt: skip
    servers = _connect(head) if config is None else _start_servers(config, policy)
    async with servers as (client, run):
        http_sessions.configure_once(client.global_config_dict)
        gym = Gym(client, monitor=run, **options)
        try:
            yield gym
        finally:
            await gym.close()


Connection = tuple[ServerClient, Run | None]


@asynccontextmanager
async def _start_servers(config: ConfigSource, policy: Policy | None) -> AsyncIterator[Connection]:
    """Start the servers of a configuration; yield a client, and the run, which knows about crashes."""
    values = dict(config) if isinstance(config, Mapping) else {"config_paths": [str(path) for path in config]}
    values |= policy.overrides() if policy is not None else {}
    parser_config = GlobalConfigDictParserConfig(
        initial_global_config_dict=OmegaConf.create(values), skip_load_from_cli=True
    )
    resolved = await asyncio.to_thread(runnable_config, parser_config)
    async with Run(resolved, component_search_roots(), watch=log_line) as run:
        await wait_for_endpoints(as_dict(resolved), logger.info)
        with registering(resolved):
            head = BaseServerConfig.model_validate(as_dict(resolved[HEAD_SERVER_KEY_NAME]))
            yield ServerClient(head_server_config=head, global_config_dict=resolved), run


@asynccontextmanager
async def _connect(head: str | BaseServerConfig | None) -> AsyncIterator[Connection]:
    """Connect to running servers."""
    if isinstance(head, str):
        host, separator, port = head.removeprefix("http://").rstrip("/").rpartition(":")
        if not separator or not port.isdecimal():
            raise ConfigError(f"{head!r} is not host:port", where="head", fix="pass for example 127.0.0.1:11000")
        head = BaseServerConfig(host=host, port=int(port))
    client = await asyncio.to_thread(ServerClient.load_from_global_config, head)
    yield client, None
