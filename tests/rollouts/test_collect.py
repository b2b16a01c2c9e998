"""Many jobs, a bounded number at a time, one outcome each."""

import asyncio
import logging
import time

import aiohttp
import orjson
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from nemo_gym.errors import AgentFailed, DeadlineExceeded, IncompleteReply, ServerUnreachable
from nemo_gym.rollouts.collect import AttemptRules, RolloutRetryPolicy, StopCondition, collect
from nemo_gym.rollouts.outcome import CancelledRollout, FailedRollout, Job, ScoredRollout, ScoringRule, outcome_record
from nemo_gym.serve.process_status import Crash, RunningHandler
from nemo_gym.transport.deadlines import ToolCallTimeout
from nemo_gym.transport.response_errors import ERROR_HEADER, FAILED_HEADER

pytestmark = pytest.mark.asyncio


SAID = {"response": {"usage": {"total_tokens": 10}}}


def jobs_of(count):
    for task in range(count):
        yield Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": "a"}})


async def test_a_failed_row_does_not_stop_its_siblings():
    """One broken rollout costs one record, never the run."""
    outcomes = []

    async def send(job):
        if job.key.task == 1:
            raise AgentFailed("502 from the agent", where="simple_agent")
        return {"reward": 1.0, **SAID}

    await collect(jobs_of(3), send, [outcomes.append], concurrency=2)

    assert sorted(o.job.key.task for o in outcomes if isinstance(o, ScoredRollout)) == [0, 2]
    assert [o.failure.message for o in outcomes if isinstance(o, FailedRollout)] == ["simple_agent: 502 from the agent"]


async def test_even_a_bug_of_ours_costs_one_record_and_is_logged(caplog):
    """A bug must neither end a night's run nor stay hidden."""
    outcomes = []

    async def send(job):
        raise KeyError("typo")

    with caplog.at_level(logging.ERROR, logger="nemo_gym.rollouts"):
        await collect(jobs_of(1), send, [outcomes.append])

    assert outcomes[0].failure.kind == "internal"
    assert "Traceback" in caplog.text


async def test_no_more_jobs_are_taken_than_are_in_flight():
    """Memory is bounded by what is in flight, whatever the size of the data."""
    taken = flying = most = 0
    done = 0

    def count_jobs():
        nonlocal taken
        for job in jobs_of(50):
            taken += 1
            assert taken - done <= 4
            yield job

    async def send(job):
        nonlocal flying, most, done
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0)
        flying -= 1
        done += 1
        return {"reward": 0, **SAID}

    await collect(count_jobs(), send, [], concurrency=4)

    assert (taken, done, most) == (50, 50, 4)


async def test_an_outcome_is_reported_before_the_next_job_is_taken():
    """Memory stays bounded by the rollouts in flight."""
    order = []

    async def send(job):
        order.append(("sent", job.key.task))
        return {"reward": 0, **SAID}

    await collect(jobs_of(2), send, [lambda o: order.append(("told", o.job.key.task))], concurrency=1)

    assert order == [("sent", 0), ("told", 0), ("sent", 1), ("told", 1)]


async def test_a_full_disk_ends_the_collection_at_once():
    """Results that cannot be kept must not be paid for."""
    started = asyncio.Event()
    outcomes = []

    async def send(job):
        if job.key.task == 0:
            await started.wait()
            return {"reward": 0, **SAID}
        started.set()
        return await asyncio.Event().wait()

    def store(outcome):
        outcomes.append(type(outcome))
        if isinstance(outcome, ScoredRollout):
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        await collect(jobs_of(5), send, [store], concurrency=2)

    assert outcomes == [ScoredRollout, CancelledRollout]


async def test_a_cancelled_collection_reports_the_rollouts_in_flight():
    """An interrupted user wants to know what was lost."""
    outcomes = []
    begun = asyncio.Event()

    async def send(job):
        if job.key.task == 2:
            begun.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(collect(jobs_of(9), send, [outcomes.append], concurrency=3))
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert sorted(outcome.job.key.task for outcome in outcomes) == [0, 1, 2]
    assert {type(outcome) for outcome in outcomes} == {CancelledRollout}


async def test_a_concurrency_of_zero_is_refused():
    """It would wait without end."""
    with pytest.raises(ValueError, match="at least one"):
        await collect(jobs_of(1), None, [], concurrency=0)


AGAIN = RolloutRetryPolicy(max_attempts=3, pause_seconds=0)


async def test_a_failure_that_may_pass_is_tried_again_and_told_once():
    """The store keeps every attempt; a tally counts every rollout once."""
    attempts, ended = [], []

    async def send(job):
        if job.key.task == 1 and not job.key.attempt:
            raise ConnectionError("gone")
        return {"reward": 1.0, **SAID}

    await collect(jobs_of(3), send, [ended.append], store=attempts.append, concurrency=1, retries=AGAIN)

    assert [(str(o.job.key), type(o)) for o in attempts] == [
        ("0-0", ScoredRollout),
        ("1-0", FailedRollout),
        ("1-0-a1", ScoredRollout),
        ("2-0", ScoredRollout),
    ]
    assert [str(o.job.key) for o in ended] == ["0-0", "1-0-a1", "2-0"]


async def test_a_rollout_waiting_for_its_retry_is_reported_as_failed_on_cancel():
    """Its failed attempt is already stored."""
    ended = []
    stored = asyncio.Event()

    async def send(job):
        raise ConnectionError("gone")

    retries = RolloutRetryPolicy(max_attempts=3, pause_seconds=60, uniform=lambda low, high: high)
    run = asyncio.create_task(
        collect(jobs_of(1), send, [ended.append], store=lambda _: stored.set(), retries=retries, concurrency=1)
    )
    await stored.wait()
    await asyncio.sleep(0)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert [o.failure.kind for o in ended] == ["server_died"]


async def test_a_second_attempt_that_is_cancelled_leaves_the_first_as_the_outcome():
    """What is on disk and what is counted must be the same."""
    ended = []
    again = asyncio.Event()

    async def send(job):
        if not job.key.attempt:
            raise ConnectionError("gone")
        again.set()
        await asyncio.Event().wait()

    run = asyncio.create_task(collect(jobs_of(1), send, [ended.append], retries=AGAIN, concurrency=1))
    await again.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run

    assert [(type(o), str(o.job.key)) for o in ended] == [(FailedRollout, "0-0")]


async def test_too_many_failures_end_the_collection_and_cancel_rollouts_in_flight():
    """A broken setup must not use up a night's tokens."""
    outcomes = []

    async def send(job):
        if job.key.task == 0:
            return await asyncio.Event().wait()
        raise AgentFailed("no")

    stopping = StopCondition(max_failures=3)
    await collect(jobs_of(100), send, [outcomes.append], concurrency=2, stop=stopping)

    assert [type(o) for o in outcomes] == [FailedRollout, FailedRollout, FailedRollout, CancelledRollout]
    assert stopping.is_immediate


async def test_spent_tokens_end_the_collection_when_those_in_flight_are_done():
    """Ten tokens each, three at once: nothing that was begun is thrown away."""
    outcomes = []

    async def send(job):
        await asyncio.sleep(0)
        return {"reward": 1.0, **SAID}

    stopping = StopCondition(max_tokens=35)
    await collect(jobs_of(100), send, [outcomes.append], concurrency=3, stop=stopping)

    assert {type(o) for o in outcomes} == {ScoredRollout}
    assert 4 <= len(outcomes) <= 6
    assert stopping.tokens == 10 * len(outcomes)


async def test_rollouts_in_flight_do_not_spend_many_times_the_budget():
    """With a thousand rollouts in flight from the start, a budget of five dollars would cost fifty."""
    in_flight, most, outcomes = 0, 0, []

    async def send(job):
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        in_flight -= 1
        return {"reward": 1.0, **SAID}

    stopping = StopCondition(max_tokens=200)
    await collect(jobs_of(1000), send, [outcomes.append], concurrency=1000, stop=stopping)

    assert stopping.tokens == 200
    assert len(outcomes) == 20
    assert 4 < most <= 17, "after the first four the rest of the budget pays for sixteen more"


async def test_a_budget_does_not_hold_back_rollouts_without_a_price():
    """An endpoint that reports no usage, or a model that costs nothing, must not make a run slow."""
    in_flight, most = 0, 0

    async def send(job):
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return {"reward": 1.0, "response": {"output": [{"type": "message", "role": "assistant", "content": []}]}}

    await collect(jobs_of(100), send, [], concurrency=50, stop=StopCondition(max_tokens=200))

    assert most == 50


async def test_a_run_with_a_budget_ends_when_rollouts_fail_before_they_cost_anything():
    """A dead model server must not leave rollouts waiting for a budget."""
    outcomes = []

    async def send(job):
        raise ServerUnreachable("refused", where="m")

    await asyncio.wait_for(
        collect(jobs_of(50), send, [outcomes.append], concurrency=20, stop=StopCondition(max_tokens=200)), 30
    )

    assert len(outcomes) == 50


async def test_a_failure_is_not_tried_again_when_the_tokens_are_spent():
    """A retry would exceed the token budget."""
    attempts = []

    async def send(job):
        attempts.append(job)
        return {"_ng_failure_class": "judge_failed", **SAID}

    await collect(jobs_of(1), send, [], retries=AGAIN, stop=StopCondition(max_tokens=10))

    assert len(attempts) == 1


async def test_a_failure_whose_pause_outlasts_the_tokens_is_not_tried_again():
    """Many rollouts may wait for a retry when the limit is reached; each would spend a rollout more."""
    attempts, outcomes = [], []
    has_failed = asyncio.Event()

    async def send(job):
        attempts.append(job.key.task)
        if job.key.task == 0:
            return {"_ng_failure_class": "judge_failed", **SAID}
        await has_failed.wait()
        return {"reward": 1.0, "response": {"usage": {"total_tokens": 20}}}

    def store(outcome):
        if outcome.job.key.task == 0:
            has_failed.set()

    pauses = RolloutRetryPolicy(max_attempts=3, pause_seconds=0.2)
    stop = StopCondition(max_tokens=30)
    await collect(jobs_of(2), send, [outcomes.append], store=store, concurrency=2, retries=pauses, stop=stop)

    assert sorted(attempts) == [0, 1]
    assert {type(outcome) for outcome in outcomes} == {FailedRollout, ScoredRollout}


async def test_a_timeout_at_the_end_of_the_rollouts_time_is_the_rollouts():
    """Whichever server notices first, this is the limit the user has to raise."""
    outcomes = []

    async def send(job):
        await asyncio.sleep(0.5 if job.key.task else 0)
        raise DeadlineExceeded("late", where="m")

    await collect(jobs_of(2), send, [outcomes.append], rules=AttemptRules(rollout_seconds=0.5), concurrency=1)

    assert [o.failure.deadline_name for o in outcomes] == ["request", "rollout"]


async def test_a_server_further_down_notices_the_end_of_the_rollouts_time_earlier():
    """Each passes on a little less than it has; raising the tool's limit instead of the rollout's would not help."""
    outcomes = []

    async def send(job):
        await asyncio.sleep(0.45)
        raise (ToolCallTimeout if job.key.task else DeadlineExceeded)("late", where="tool")

    await collect(jobs_of(2), send, [outcomes.append], rules=AttemptRules(rollout_seconds=0.5), concurrency=2)

    which = {o.job.key.task: o.failure.deadline_name for o in outcomes}
    assert which == {0: "rollout", 1: "tool_call"}  # who held the call to its own limit knows better


async def test_results_are_held_to_the_rules_of_their_agent():
    """Environments declare different reward ranges."""
    outcomes = []

    async def send(job):
        return {"reward": 2.0, **SAID}

    await collect(
        jobs_of(1), send, [outcomes.append], rules=AttemptRules(scoring={"a": ScoringRule(reward_range=(0, 1))})
    )

    assert outcomes[0].failure.kind == "invalid_reward"
    assert outcomes[0].seconds is not None


async def test_every_outcome_says_how_long_it_took_and_the_answered_ones_where_the_time_went():
    """The viewer's seconds and the latency of each phase come from here, for good rollouts as for bad ones."""
    records = []

    async def send(job):
        await asyncio.sleep(0.01)
        if job.key.task == 1:
            raise AgentFailed("502 from the agent", where="simple_agent")
        return {"reward": "x" if job.key.task == 2 else 1.0, "_ng_phases": [0.001, 0.002, 0.0, 0.001, 0.005], **SAID}

    await collect(jobs_of(3), send, [lambda outcome: records.append(outcome_record(outcome))], concurrency=1)

    assert all(0.005 < record["_ng_seconds"] < 60 for record in records)
    assert [sorted(record.get("_ng_phases", ())) for record in records] == [
        ["agent", "model", "queue", "seed_session", "tools", "verify"],
        [],
        ["agent", "model", "queue", "seed_session", "tools", "verify"],
    ]
    assert records[1]["_ng_failure"]["seconds"] == pytest.approx(records[1]["_ng_seconds"], abs=1e-3)


async def test_a_failed_rollout_keeps_its_conversation_with_the_turns_beside_it():
    """The page of a failure shows what it had cost until then; a response has no such fields, so they are moved out."""
    records = []
    turns = {"_ng_turns": [[1, 9, 0, 4, 0]], "_ng_turn_seconds": [[2.0, 0.5], [0.1, 0.0]]}

    async def send(_):
        error = AgentFailed("502 from the agent", where="simple_agent")
        error.response_content = orjson.dumps({"_ng_error": "502", "response": {"output": [], **turns}})
        raise error

    await collect(jobs_of(1), send, [lambda outcome: records.append(outcome_record(outcome))])

    assert {name: records[0][name] for name in turns} == turns
    assert records[0]["response"] == {"output": []}


class Monitor:
    """Knows crashes as the process that runs the servers does."""

    def __init__(self, *crashes, lost=(), blocked=(), suspended=()):
        self.crashes = crashes
        self.suspended = set(suspended)
        self.lost_instances = set(lost)
        self.blocked = set(blocked)
        self.since = []

    def blocking_handler(self, instance):
        return self.crashes[0].handler if instance in self.blocked else None

    def is_suspended(self, instance):
        return instance in self.suspended

    async def find_crashes(self, instance, since):
        assert instance == "env"
        self.since.append(since)
        return self.crashes


def crash_of(server="env", rollout=None):
    return Crash("it ended with status 3", RunningHandler(server, "POST /verify", rollout))


NEEDED = {"a": {"a", "env", "model"}, "env": {"env"}, "model": {"model"}, "b": {"b", "other"}, "other": {"other"}}


@pytest.mark.parametrize(
    "error",
    [
        ServerUnreachable("cell 0 ended before it answered", where="other"),
        DeadlineExceeded("not answered within 5 s", where="other"),
    ],
)
async def test_a_rollout_that_lost_its_cell_to_another_server_is_run_again_without_counting(error):
    """Its server did nothing wrong: the attempt is the other server's."""
    stored, sent = [], []

    async def send(job):
        sent.append(job.key.attempt)
        if len(sent) <= 4:
            raise error
        return {"reward": 1.0, **SAID}

    await collect(jobs_of(1), send, [], store=stored.append, rules=AttemptRules(needed_servers=NEEDED))

    assert [type(outcome) for outcome in stored] == [ScoredRollout]
    assert sent == [0] * 5


async def test_a_cell_that_is_lost_again_and_again_ends_the_rollout():
    """Free repetitions must not keep a run alive without end."""
    outcomes = []

    async def send(job):
        raise ServerUnreachable("cell 0 ended before it answered", where="other")

    await collect(jobs_of(1), send, [outcomes.append], rules=AttemptRules(needed_servers=NEEDED))

    assert [(outcome.failure.kind, outcome.failure.server) for outcome in outcomes] == [("server_died", "other")]


async def test_only_the_rollout_whose_request_crashed_its_server_counts_the_attempt():
    """One poisoned row must not use up the attempts of the good rows of its environment."""
    stored, calls = [], []

    async def send(job):
        calls.append(job.key.task)
        if job.key.task == 1 or calls.count(job.key.task) == 1:
            raise ServerUnreachable("cell 0 ended before it answered", where="env")
        return {"reward": 1.0, **SAID}

    rules = AttemptRules(needed_servers=NEEDED, monitor=Monitor(crash_of(rollout=(7, 0)), crash_of(rollout=(1, 0))))
    await collect(jobs_of(3), send, [], store=stored.append, rules=rules, concurrency=1)

    assert [(outcome.job.key.task, type(outcome)) for outcome in stored] == [
        (0, ScoredRollout),
        (1, FailedRollout),
        (2, ScoredRollout),
    ]
    assert (
        "; its process ended: it ended with status 3; env: POST /verify of rollout 1-0 was" in stored[1].failure.message
    )


@pytest.mark.parametrize(
    ("crashes", "kind", "sends"),
    [([], "agent_error", 1), ([(0, 0)], "server_died", 1), ([(7, 0)], "scored", 2)],
)
async def test_an_answer_that_breaks_off_with_the_crash_of_its_process_is_a_lost_server(crashes, kind, sends):
    """Only the crash shows that the handler did not fail itself; an innocent rollout must be sent again."""
    outcomes, sent = [], []

    async def send(job):
        sent.append(job)
        if len(sent) == 1:
            raise IncompleteReply("the answer to /verify breaks off", where="env", path="/verify")
        return {"reward": 1.0, **SAID}

    monitor = Monitor(*(crash_of(rollout=rollout) for rollout in crashes))
    await collect(jobs_of(1), send, [outcomes.append], rules=AttemptRules(needed_servers=NEEDED, monitor=monitor))

    assert len(sent) == sends
    [outcome] = outcomes
    assert ("scored" if isinstance(outcome, ScoredRollout) else outcome.failure.kind) == kind


class CrashingServer(Monitor):
    """A server that the rollouts of some tasks end; every rollout in flight is lost with it."""

    def __init__(self, poisoned, pause=0.001):
        super().__init__()
        self.poisoned, self.pause = poisoned, pause
        self.lives = [asyncio.Event()]
        self.ends = []

    async def send(self, job):
        life = self.lives[-1]
        if job.key.task in self.poisoned:
            await asyncio.sleep(self.pause)
            if not life.is_set():
                self.ends.append((time.monotonic(), crash_of(rollout=job.key.rollout_id)))
                life.set()
                self.lives.append(asyncio.Event())
        try:
            async with asyncio.timeout(2 * self.pause):
                await life.wait()
        except TimeoutError:
            return {"reward": 1.0, **SAID}
        raise ServerUnreachable("ended before it answered", where="env")

    async def find_crashes(self, instance, since):
        return [crash for at, crash in self.ends if at >= since]


async def test_innocent_rollouts_are_scored_although_many_others_end_their_server():
    """With all rows in flight, every crash costs all of them; they were sent again together until none was left."""
    stored, server = [], CrashingServer(poisoned=range(0, 60, 4), pause=0.02)
    rules = AttemptRules(needed_servers=NEEDED, monitor=server)

    await collect(jobs_of(60), server.send, [], store=stored.append, rules=rules, concurrency=60)

    scored = {outcome.job.key.task for outcome in stored if isinstance(outcome, ScoredRollout)}
    assert scored == set(range(60)) - set(server.poisoned)
    assert len(server.ends) <= len(server.poisoned)  # two may end one process


async def test_a_rollout_is_innocent_if_a_server_it_does_not_use_ended_the_process_of_one_that_it_uses():
    """Its agent, in another process, can name only the server that it called."""
    stored = []

    async def send(job):
        raise ServerUnreachable("got no answer", where="env")

    rules = AttemptRules(needed_servers=NEEDED, monitor=Monitor(crash_of("other")))
    await collect(jobs_of(1), send, [], store=stored.append, rules=rules)

    assert [outcome.failure.server for outcome in stored] == ["other"]


@pytest.mark.parametrize(("blocked", "culprit", "sends"), [
    ({"env"}, (5, 0), 2), ({"env"}, (0, 0), 1), ({"env"}, None, 1), (set(), (5, 0), 1),
])  # fmt: skip
async def test_a_timeout_at_a_blocked_server_counts_only_for_the_rollout_that_blocks_it(blocked, culprit, sends):
    """All rollouts of the server wait for the one; a server that only takes long is no excuse."""
    times = []

    async def send(job):
        await asyncio.sleep(0.01)
        times.append(time.monotonic())
        if len(times) == 1:
            raise ToolCallTimeout("not answered within 5 s", where="env")
        return {"reward": 1.0, **SAID}

    monitor = Monitor(crash_of(rollout=culprit), blocked=blocked)
    outcomes = []
    await collect(jobs_of(1), send, [outcomes.append], rules=AttemptRules(needed_servers=NEEDED, monitor=monitor))

    assert len(times) == sends
    assert isinstance(outcomes[0], ScoredRollout) == (sends == 2)
    assert len(monitor.since) == sends - 1  # only an innocent rollout waits for the end of the blocked process
    assert all(since >= times[0] for since in monitor.since)  # an earlier crash did not cause the timeout


@pytest.mark.parametrize(("suspended", "culprit"), [((), "a"), (["env"], "env"), (["a", "env"], "a"), (["other"], "a")])
async def test_a_timeout_of_the_agent_names_the_suspended_server_that_it_waits_for(suspended, culprit):
    """On a busy machine the deadline of the agent passes first; the user would look into the wrong log."""
    outcomes = []

    async def send(job):
        raise DeadlineExceeded("not answered within 8 s", where="a")

    rules = AttemptRules(needed_servers=NEEDED, monitor=Monitor(suspended=suspended))
    await collect(jobs_of(1), send, [outcomes.append], rules=rules)

    [outcome] = outcomes
    assert (outcome.failure.kind, outcome.failure.server) == ("timeout", culprit)


async def test_a_rollout_that_waits_for_the_report_of_a_crash_can_be_interrupted():
    """The wait lasts as long as a server is blocked; the rollout must neither hang nor get lost."""
    outcomes, waiting = [], asyncio.Event()

    class SlowMonitor(Monitor):
        async def find_crashes(self, instance, since):
            waiting.set()
            await asyncio.Event().wait()

    async def send(job):
        raise ServerUnreachable("got no answer", where="env")

    rules = AttemptRules(needed_servers=NEEDED, monitor=SlowMonitor())
    task = asyncio.create_task(collect(jobs_of(1), send, [outcomes.append], rules=rules))
    await waiting.wait()
    assert len(rules.in_flight) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert [type(outcome) for outcome in outcomes] == [CancelledRollout]


async def test_a_crash_without_a_known_culprit_counts_as_an_attempt():
    """Else a server that ends at every request would never end the run."""
    stored = []

    async def send(job):
        raise ServerUnreachable("cell 0 ended before it answered", where="env")

    for monitor in (Monitor(), Monitor(Crash("it was killed")), Monitor(crash_of())):
        await collect(
            jobs_of(1), send, [], store=stored.append, rules=AttemptRules(needed_servers=NEEDED, monitor=monitor)
        )

    assert [outcome.failure.server for outcome in stored] == ["env"] * 3
    assert "it was killed" in stored[1].failure.message


async def test_a_rollout_whose_request_was_cancelled_by_another_one_is_run_again_without_counting():
    """Code of one server can cancel all tasks of its cell, which goes on: no crash names the culprit."""
    stored, calls = [], []

    async def send(job):
        calls.append(job.key.attempt)
        if job.key.task == 0 and len(calls) < 4:
            headers = {FAILED_HEADER: "env", ERROR_HEADER: "RequestCancelled"}
            info = aiohttp.RequestInfo(
                URL("http://a/run"), "POST", CIMultiDictProxy(CIMultiDict()), URL("http://a/run")
            )
            raise aiohttp.ClientResponseError(info, (), status=500, headers=CIMultiDict(headers))
        return {"reward": 1.0, **SAID}

    await collect(
        jobs_of(1), send, [], store=stored.append, rules=AttemptRules(needed_servers=NEEDED, monitor=Monitor())
    )

    assert [type(outcome) for outcome in stored] == [ScoredRollout]
    assert calls == [0] * 4


@pytest.mark.parametrize(("lost", "crashes", "is_counted"), [
    ((), [crash_of(rollout=(5, 0))], False), ((), [crash_of("other")], False), ((), [crash_of(rollout=(0, 0))], True),
    (["env"], [crash_of(rollout=(5, 0))], False), (["env"], [crash_of(rollout=(0, 0))], True), (["env"], [], False),
    ((), [], True), (["other"], [], True), (["env"], [crash_of()], False), (["env"], [Crash("it was killed")], False),
])  # fmt: skip
async def test_a_failure_is_counted_only_if_the_request_of_the_rollout_may_have_ended_the_server(
    lost, crashes, is_counted
):
    """Three runs with a server that is given up would use up the attempts of all innocent rollouts."""
    stored, monitor = [], Monitor(*crashes)

    async def send(job):
        monitor.lost_instances = set(lost)
        raise ServerUnreachable("refused the connection", where="env")

    await collect(jobs_of(1), send, [], store=stored.append, rules=AttemptRules(needed_servers=NEEDED, monitor=monitor))

    [record] = map(outcome_record, stored)
    assert record["_ng_failure"].get("counted", True) == is_counted


async def test_rollouts_of_a_server_that_was_given_up_are_left_for_a_resume():
    """They would only use up their attempts; those of other servers run to the end."""
    outcomes, stop, monitor = [], StopCondition(), Monitor()

    def jobs():
        for task in range(6):
            agent = "a" if task % 2 else "b"
            yield Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": agent}})

    async def send(job):
        if job.agent == "a":
            monitor.lost_instances.add("env")
            raise ServerUnreachable("ended and will not be restarted", where="env")
        return {"reward": 1.0, **SAID}

    await collect(
        jobs(), send, [outcomes.append], concurrency=1, stop=stop, retries=RolloutRetryPolicy(max_attempts=3),
        rules=AttemptRules(needed_servers=NEEDED, monitor=monitor),
    )  # fmt: skip

    assert [(outcome.job.key.task, type(outcome)) for outcome in outcomes] == [
        (0, ScoredRollout),
        (1, FailedRollout),
        (2, ScoredRollout),
        (4, ScoredRollout),
    ]
    assert stop.reason == "env ended and will not be restarted"
