"""A refusal of a model endpoint: of one row, or of the whole run."""

import asyncio
import itertools
import json
import shutil

import pytest

from nemo_gym.rollouts.attribution import classify_error
from nemo_gym.rollouts.collect import AttemptRules, InFlight, RolloutRetryPolicy, StopCondition, collect
from nemo_gym.rollouts.outcome import CancelledRollout, FailedRollout, Failure, Job, ScoredRollout, ScoringRule
from nemo_gym.rollouts.refusals import ENOUGH_REFUSALS, MAX_GROUPS, endpoint_refused, refusal_reason
from nemo_gym.rollouts.store import RolloutStore
from tests.rollouts.test_attribution import TYPES, status_error

pytestmark = pytest.mark.asyncio

SCORED = {"reward": 1.0, "response": {"usage": {"total_tokens": 10}}}


def jobs_of(count, agents="a"):
    for task, agent in zip(range(count), itertools.cycle(agents), strict=False):
        yield Job.of({"_ng_task_index": task, "_ng_rollout_index": 0, "agent_ref": {"name": agent}})


def refusal(status, body="no", whom="m"):
    return status_error(500, body, whom=whom, upstream=status)


async def collect_with(send, count=60, *, concurrency=4, agents="a", judges=(), **conditions):
    """Collect and return the outcomes by kind, and the stop condition."""
    outcomes, stop = [], StopCondition(**conditions)
    rules = AttemptRules(server_type=TYPES.get, scoring={"a": ScoringRule(judges=frozenset(judges))})
    await asyncio.wait_for(
        collect(jobs_of(count, agents), send, [outcomes.append], concurrency=concurrency, rules=rules, stop=stop), 20
    )
    kinds = (ScoredRollout, FailedRollout, CancelledRollout)
    return [[outcome for outcome in outcomes if isinstance(outcome, kind)] for kind in kinds], stop


def failing_after(good, error):
    """A sender whose endpoint accepts the first `good` calls; an accepted call takes longer than a refused one."""
    calls = itertools.count()

    async def send(_job):
        if next(calls) >= good:
            raise error
        for _ in range(3):
            await asyncio.sleep(0)
        return SCORED

    return send


@pytest.mark.parametrize("status", [401, 402, 403, 404])
@pytest.mark.parametrize(("good", "concurrency"), [(0, 1), (23, 1), (23, 7), (0, 40)])
async def test_a_key_that_expires_stops_the_run_and_leaves_its_rows_open(status, good, concurrency):
    """Every further row would be refused, too; after the key is replaced, all of them must be runnable."""
    (scored, failed, cancelled), stop = await collect_with(
        failing_after(good, refusal(status)), concurrency=concurrency
    )

    assert (len(scored), len(cancelled)) == (good, 0)
    assert len(failed) <= concurrency + ENOUGH_REFUSALS - 1, "no rows are sent in vain"
    assert all(outcome.failure.retryable and not outcome.failure.is_counted for outcome in failed)
    assert (stop.refusal.refusal_status, stop.is_immediate) == (status, False)
    assert stop.reason.startswith("m: the endpoint ")


@pytest.mark.parametrize("status", [400, 413, 422])
@pytest.mark.parametrize("good", [0, 23])
async def test_a_run_that_is_refused_like_a_row_stays_open(status, good):
    """Some providers answer 400 to a wrong key or model name; however often the run is tried, that costs no row."""
    (scored, failed, cancelled), stop = await collect_with(failing_after(good, refusal(status, "key req-81f")))

    assert (len(scored), len(cancelled)) == (good, 0)
    assert ENOUGH_REFUSALS <= len(failed) < 12
    assert all(outcome.failure.retryable and not outcome.failure.is_counted for outcome in failed)
    assert stop.refusal.refusal_status == status


@pytest.mark.parametrize("concurrency", [1, 3, 100])
@pytest.mark.parametrize("body", ["prompt of {0} tokens exceeds 8192", "the prompt is too long"])
async def test_rows_that_are_too_long_fail_alone(concurrency, body):
    """They are refused faster than others are answered, but those others show that the endpoint accepts requests."""

    async def send(job):
        if job.key.task % 5 == 2:
            raise refusal(400, body.format(job.key.task + 9000))
        await asyncio.sleep(0.01)
        return SCORED

    (scored, failed, cancelled), stop = await collect_with(send, concurrency=concurrency)

    assert (len(scored), len(failed), len(cancelled)) == (48, 12, 0)
    assert not any(outcome.failure.retryable for outcome in failed)
    assert stop.reason is None


@pytest.mark.parametrize("first", [0, 9, 46])
@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "Rejected", "code": "string_above_max_length"}},
        {"error": {"message": "Rejected", "innererror": {"code": "ResponsibleAIPolicyViolation"}}},
        "This model's maximum context length is 512 tokens. However, you requested 700 tokens",
        "prompt is too long: 9 tokens > 8 maximum",
    ],
)
async def test_a_refusal_that_names_the_row_never_stops_the_run(body, first):
    """Sorted rows have the long ones together; they fail alone, wherever they are, and no other row is sent twice."""
    calls = []

    async def send(job):
        calls.append(job.key)
        if first <= job.key.task < first + 14:
            raise refusal(400, body)
        return SCORED

    (scored, failed, cancelled), stop = await collect_with(send, concurrency=1)

    assert (len(scored), len(failed), len(cancelled), stop.reason) == (46, 14, 0, None)
    assert not any(outcome.failure.retryable for outcome in failed)
    assert len(calls) == 60


@pytest.mark.parametrize(("first", "end"), [(9, 30), (46, 60), (57, 60)])
async def test_rows_refused_for_an_unknown_reason_fail_alone_if_an_answered_rollout_is_answered_again(first, end):
    """The text does not tell whether the endpoint refuses rows or everything; one more call does."""
    calls = []

    async def send(job):
        calls.append(job.key)
        if first <= job.key.task < end:
            raise refusal(422, "rejected")
        return SCORED

    (scored, failed, cancelled), stop = await collect_with(send, concurrency=1)

    assert (len(scored), len(failed), len(cancelled), stop.reason) == (60 - end + first, end - first, 0, None)
    assert not any(outcome.failure.retryable for outcome in failed)
    again = [key for key in calls if key.attempt]
    assert 1 <= len(again) <= 1 + (end - first) // ENOUGH_REFUSALS
    assert all(not first <= key.task < end for key in again)


async def test_a_run_that_ends_sends_no_rollout_again():
    """After Ctrl-C nothing is sent; refusals that are undecided then stay open."""

    class Ending(InFlight):
        def begin(self, job):
            if job.key.attempt or job.key.task > 12:
                raise asyncio.CancelledError
            super().begin(job)

    outcomes, stop = [], StopCondition()
    rules = AttemptRules(server_type=TYPES.get, in_flight=Ending())
    send = failing_after(3, refusal(400))
    await collect(jobs_of(60), send, [outcomes.append], concurrency=20, rules=rules, stop=stop)

    failed = [outcome for outcome in outcomes if isinstance(outcome, FailedRollout)]
    assert len(failed) == 10
    assert all(not outcome.failure.is_counted for outcome in failed)


@pytest.mark.parametrize("is_fixed", [True, False])
async def test_a_resumed_run_tells_bad_rows_from_a_bad_endpoint(tmp_path, is_fixed):
    """Rows that stopped earlier runs come last: first the others are scored, then the refused ones are decided."""
    bad, jobs, store = set(range(7)), list(jobs_of(24)), RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin(jobs)

    async def send(job):
        if job.key.task in bad or not bad:
            raise refusal(400, "no")
        return SCORED

    async def run():
        stop = StopCondition()
        with store:
            history = store.history()
            await collect(
                store.unfinished_jobs(history, 2),
                send,
                [],
                concurrency=1,
                store=store.write,
                rules=AttemptRules(server_type=TYPES.get),
                stop=stop,
                answered_job=store.finished_job(history),
            )
        return stop.reason

    assert await run() is not None
    with store:
        assert [job.key.task for job in store.unfinished_jobs(store.history(), 2)] == [*range(5, 24), *range(5)]
    if not is_fixed:
        bad, all_bad = set(), bad
        for _ in range(4):
            assert await run() is not None
        bad = all_bad
        assert await run() is not None  # the first rows in the new order are refused as well
    assert await run() is None
    with store:
        history = store.history()
        assert (len(history.finished), history.count_given_up(2)) == (17, 7)


async def test_only_refused_rows_are_left_of_a_run():
    """A rollout that an earlier run scored shows that the endpoint accepts requests."""
    scored_before = next(jobs_of(1))
    outcomes, stop = [], StopCondition()

    async def send(job):
        if job.key.task == 0:
            return SCORED
        raise refusal(400)

    await collect(
        itertools.islice(jobs_of(4), 1, None),
        send,
        [outcomes.append],
        rules=AttemptRules(server_type=TYPES.get),
        stop=stop,
        answered_job=scored_before,
    )

    assert [(outcome.job.key.task, outcome.failure.retryable) for outcome in outcomes] == [
        (1, False),
        (2, False),
        (3, False),
    ]
    assert stop.reason is None


async def test_the_words_of_a_row_are_not_the_reason_of_the_endpoint():
    """An endpoint may repeat the request; a question about prompts must not make the row responsible."""
    body = {"detail": "Invalid model", "input": "Why is the prompt too long for the context window?"}
    (_, failed, _), stop = await collect_with(failing_after(0, refusal(422, body)))

    assert stop.refusal is not None
    assert all(not outcome.failure.is_counted for outcome in failed)


@pytest.mark.parametrize("count", [1, ENOUGH_REFUSALS - 1])
async def test_a_short_run_that_is_refused_like_a_row_stays_open(count):
    """A run with few rows and a wrong model name must be resumable any number of times, too."""
    (_, failed, _), _ = await collect_with(failing_after(0, refusal(400)), count=count)

    assert len(failed) == count
    assert all(outcome.failure.retryable and not outcome.failure.is_counted for outcome in failed)


async def test_a_flaky_gateway_does_not_stop_the_run():
    """One replica with an old key refuses some calls; the others answer, so those rows are tried again on resume."""

    async def send(job):
        if job.key.task % 4 == 0:
            raise refusal(401)
        await asyncio.sleep(0.001)
        return SCORED

    (scored, failed, cancelled), stop = await collect_with(send, count=61, concurrency=3)

    assert (len(scored), len(failed), len(cancelled)) == (45, 16, 0)
    assert all(outcome.failure.retryable for outcome in failed)
    assert stop.refusal is not None, "the last one is undecided"


async def test_the_success_of_another_agent_proves_nothing():
    """Its model may be another one with another key."""

    async def send(job):
        if job.agent == "a":
            raise refusal(401)
        await asyncio.sleep(0)
        return SCORED

    (scored, failed, cancelled), stop = await collect_with(send, count=400, agents="ab", concurrency=4)

    assert not cancelled
    assert len(failed) <= 4 + ENOUGH_REFUSALS
    assert len(scored) < 50
    assert stop.refusal is not None


async def test_refusals_of_different_rows_are_not_those_of_the_run():
    """Each body names another field: nothing says that the next row is refused, and memory stays bounded."""

    async def send(job):
        raise refusal(422, f"field {'x' * job.key.task} is unknown")

    (_, failed, cancelled), stop = await collect_with(send, count=3 * MAX_GROUPS)

    assert (len(failed), len(cancelled), stop.reason) == (3 * MAX_GROUPS, 0, None)


@pytest.mark.parametrize("count", [1, ENOUGH_REFUSALS - 1])
async def test_a_short_run_with_a_wrong_key_stays_open(count):
    """A run with fewer rows than refusals that stop a run has the same problem."""
    (_, failed, cancelled), stop = await collect_with(failing_after(0, refusal(401)), count=count)

    assert (len(failed), len(cancelled)) == (count, 0)
    assert stop.refusal is not None


async def test_one_refused_row_at_the_end_is_its_own_problem():
    """No rollout is sent after it, but all others were answered."""
    (scored, failed, _), stop = await collect_with(failing_after(59, refusal(400)))

    assert (len(scored), len(failed), stop.reason) == (59, 1, None)
    assert not failed[0].failure.retryable


async def test_a_verifier_that_fails_shows_that_the_model_answered():
    """Two problems at once must not look like a refused run."""

    async def send(job):
        if job.key.task % 4 == 0:
            raise refusal(400, "too long")
        await asyncio.sleep(0)
        raise status_error(500, "boom", whom="r", path="/verify")

    (_, failed, cancelled), stop = await collect_with(send, concurrency=3)

    assert (len(failed), len(cancelled), stop.reason) == (60, 0, None)
    assert sum(not outcome.failure.retryable for outcome in failed) == 15


async def test_waiting_for_a_decision_is_reported_once(monkeypatch, caplog):
    """A long tool call delays the decision; a run that sends nothing must say why."""
    monkeypatch.setattr("nemo_gym.rollouts.refusals.REPORT_SECONDS", 0.0)

    async def send(job):
        if job.key.task:
            raise refusal(401)
        while "waits for its rollouts in flight (1)" not in caplog.text:  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0)
        return SCORED

    (scored, failed, _), stop = await collect_with(send, concurrency=12)

    assert (len(scored), stop.refusal.refusal_status) == (1, 401)
    assert ENOUGH_REFUSALS <= len(failed) <= 12 + ENOUGH_REFUSALS
    assert caplog.text.count("to decide whether to go on") == 1


async def test_a_limit_on_failures_is_kept():
    """`-x` must not wait for further refusals."""
    (_, failed, cancelled), stop = await collect_with(failing_after(0, refusal(400)), concurrency=1, max_failures=1)

    assert (len(failed), len(cancelled)) == (1, 0)
    assert stop.reason == "a rollout failed (max_failures 1)"
    assert (stop.is_immediate, stop.refusal) == (True, None)


async def test_a_refused_judge_is_a_refusal_too():
    """An expired key of the judge must not cost every rollout of the policy."""

    (scored, failed, cancelled), stop = await collect_with(failing_after(2, refusal(402)), concurrency=1, judges=["m"])

    assert (len(scored), len(failed), len(cancelled)) == (2, ENOUGH_REFUSALS, 0)
    assert stop.refusal.kind == "judge_failed"


async def test_workers_that_wait_for_a_decision_end_when_the_collection_fails():
    """A full disk ends the run at once; undecided rollouts are open."""
    outcomes, finish = [], asyncio.Event()

    async def send(job):
        if job.key.task == 0:
            await finish.wait()
            return SCORED
        if job.key.task == ENOUGH_REFUSALS + 2:
            finish.set()
        raise refusal(401)

    def store(outcome):
        raise OSError("disk full")

    rules = AttemptRules(server_type=TYPES.get)
    with pytest.raises(OSError, match="disk full"):
        await asyncio.wait_for(
            collect(jobs_of(20), send, [outcomes.append], concurrency=20, rules=rules, store=store), 20
        )

    assert {type(outcome) for outcome in outcomes} == {CancelledRollout}
    assert len(outcomes) == 19


async def test_the_error_names_the_reason_and_the_key_to_fix():
    """One sentence instead of nested JSON; a secret is never part of it."""
    message = (
        '/run of a answered 500: Hit an exception in a calling an inner server: "Hit an exception in m calling an '
        'inner server: {\\"error\\": {\\"code\\": 1, \\"message\\": \\"No such key\\"}}"'
    )
    block = {"openai_model": {"entrypoint": "app.py", "openai_api_key": "s3cret", "openai_base_url": "http://h/v1"}}
    config = {"my_key": "s3cret", "m": {"responses_api_models": block}}
    failure = Failure("model_refused", "model", message, "m", refusal_status=401)

    error = endpoint_refused(failure, config, "30 scored, 30 not tried")

    assert str(error) == (
        "m: the endpoint refuses the key (401: No such key): 30 scored, 30 not tried\n"
        "  try: fix my_key and run the same command with --resume"
    )
    del config["my_key"]
    assert "fix m.openai_api_key and" in str(endpoint_refused(failure, config, ""))
    unknown = Failure("model_refused", "model", "no such parameter", "m", refusal_status=400)
    assert "if the message is about the content of the rows, correct them" in str(endpoint_refused(unknown, config, ""))
    assert "fix the configuration of x and" in str(
        endpoint_refused(Failure("model_refused", "model", "no", "x", refusal_status=410), config, "")
    )
    lacking = Failure("model_refused", "model", "Invalid URL (POST /v1/responses)", "m", refusal_status=404)
    advice = "for an endpoint without /v1/responses, use --model-type chat_completions_model"
    assert advice in str(endpoint_refused(lacking, config, ""))
    chat = {"m": {"responses_api_models": {"chat_completions_model": {"entrypoint": "app.py"}}}}
    assert advice not in str(endpoint_refused(lacking, chat, ""))
    assert refusal_reason(Failure("model_refused", "model", "oh " * 300, "x", refusal_status=418)).endswith("oh oh…)")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("forbidden", "(402: forbidden)"),
        ('say "please"', '(402: say "please")'),
        ("", "(402)"),
        ('{"detail": "no \\"money\\""}', '(402: no "money")'),
    ],
)
async def test_the_reason_is_the_text_of_the_endpoint(body, expected):
    """Quotation marks of the errors around it are no part of it."""
    text = body
    for server in ("m", "a"):
        text = f"Hit an exception in {server} calling an inner server: {text}"
        inner, text = text, json.dumps(text)
    failure = Failure("model_refused", "model", f"/run of a answered 500: {inner}", "m", refusal_status=402)

    assert refusal_reason(failure).endswith(expected)


async def test_a_redirect_to_a_page_is_a_refusal():
    """Behind a login page every call is redirected; the run stops instead of reading the page for every row."""
    block = {"openai_model": {"entrypoint": "app.py", "openai_base_url": "http://h/v1"}}
    (scored, failed, _), stop = await collect_with(failing_after(2, refusal(303, "it redirects to /sign-in")))

    assert len(scored) == 2
    assert len(failed) <= 4 + ENOUGH_REFUSALS
    assert all(not outcome.failure.is_counted for outcome in failed)
    assert str(endpoint_refused(stop.refusal, {"m": {"responses_api_models": block}}, "2 scored")) == (
        "m: the endpoint redirects the requests to another page (303: it redirects to /sign-in)"
        ": 2 scored\n  try: fix m.openai_base_url and run the same command with --resume"
    )


async def test_rollouts_given_up_by_earlier_versions_run_again_once(tmp_path):
    """They stored neither status nor reason, so a wrong key and a bad row look alike: both are tried again."""
    old = {"kind": "model_refused", "phase": "model", "retryable": False, "message": "/run of a answered 500: no"}
    own = {**old, "message": "the agent's own decision"}
    jobs = list(jobs_of(4))
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin(jobs)
        for job, detail in zip(jobs[:2], (old, own), strict=True):
            answer = {"_ng_failure_class": "model_refused", "_ng_failure": detail, "_ng_failure_terminal": True}
            store.open()[1].add(job.key, job.with_key(answer))
        for job in jobs[2:]:
            failure = Failure("model_refused", "model", "/run of a …", "m", retryable=False, refusal_status=400)
            store.write(FailedRollout(job, failure))

    with store:
        history = store.history()
        assert [str(job.key) for job in store.unfinished_jobs(history, 3)] == ["0-0"]
        assert history.count_given_up(3) == 3
        store.write(FailedRollout(jobs[0], Failure("model_refused", "model", "/run", "m", False, refusal_status=400)))

    with store:
        assert store.history().count_given_up(3) == 4


async def test_a_stored_refusal_that_was_never_counted_is_not_subtracted(tmp_path):
    """Another tool may store a terminal refusal that is no attempt; resume must not fail on it."""
    (job,) = jobs_of(1)
    detail = {"kind": "model_refused", "message": "/run of a answered 500: no", "counted": False}
    answer = {"_ng_failure_class": "model_refused", "_ng_failure": detail, "_ng_failure_terminal": True}
    store = RolloutStore(tmp_path / "x.jsonl")
    with store:
        store.begin([job])
        store.open()[1].add(job.key, job.with_key(answer))

        assert [str(job.key) for job in store.unfinished_jobs(store.history(), 1)] == ["0-0"]


@pytest.mark.parametrize("with_index", [True, False])
async def test_a_refused_run_can_be_resumed_any_number_of_times(tmp_path, with_index):
    """A key that is replaced only at the fifth try costs no row; other failures still count as attempts."""
    (job,) = jobs_of(1)
    store = RolloutStore(tmp_path / "x.jsonl")
    refused = FailedRollout(job, Failure("model_refused", "model", "no", "m", refusal_status=401))
    with store:
        store.begin([job])
        for _ in range(5):
            store.write(refused)
        store.write(FailedRollout(job, Failure("timeout", "model", "late", "m")))
    if not with_index:
        shutil.rmtree(tmp_path / "x_index")

    with store:
        history = store.history()
        assert [str(job.key) for job in store.unfinished_jobs(history, 2)] == ["0-0-a1"]
        assert history.count_given_up(1) == 1


LOGIN_PAGE = "ModelFailed(\"m: the answer is not JSON: '<html>sign in</html>'\")"
ENDPOINT_ERRORS = {
    "conflict": refusal(409, "the deployment is being changed"),
    "internal error": refusal(500, "invalid access token"),
    "bad gateway": refusal(502, "upstream refused request 8f31"),
    "not implemented": refusal(501),
    "page": status_error(500, LOGIN_PAGE, whom="m", upstream=500, cause="ModelFailed"),
    "other object": status_error(500, "status: Field required", whom="m", upstream=500, cause="ValidationError"),
    "no connection": status_error(500, "got no answer", whom="m", cause="ServerUnreachable", path="/v1/responses"),
    "open circuit": status_error(500, "h:1 is not called for another 3.9 s", whom="h:1", cause="CircuitOpen"),
}
"""Of the last two, the first is reported by a model server, the second by an agent that calls the endpoint itself."""
TYPES_WITH_ENDPOINT = {**TYPES, "h:1": "responses_api_models"}


@pytest.mark.parametrize("kind", ENDPOINT_ERRORS)
async def test_an_endpoint_that_answers_every_row_with_one_error_costs_no_row(tmp_path, kind):
    """Some gateways report a wrong key with a 500 or a login page; after it is fixed, every row must be runnable."""
    store, accepted, calls = RolloutStore(tmp_path / "x.jsonl"), 7, []
    with store:
        store.begin(jobs_of(20))

    async def send(job):
        calls.append(job)
        if len(calls) > accepted:
            raise ENDPOINT_ERRORS[kind]
        return SCORED

    async def run():
        stop = StopCondition()
        with store:
            history = store.history()
            await collect(
                store.unfinished_jobs(history, 3), send, [], concurrency=3, store=store.write, stop=stop,
                rules=AttemptRules(server_type=TYPES_WITH_ENDPOINT.get), answered_job=store.finished_job(history),
                retries=RolloutRetryPolicy(max_attempts=3, pause_seconds=0.001),
            )  # fmt: skip
        return stop.refusal

    for _ in range(5):
        assert await run() is not None
        assert len(calls) < 30, "no rows are sent in vain"
        accepted = 0
        calls.clear()
    accepted = 100
    assert await run() is None
    with store:
        assert len(store.history().finished) == 20


@pytest.mark.parametrize("kind", sorted(set(ENDPOINT_ERRORS) - {"conflict"}))
async def test_rows_that_always_cause_an_error_of_the_endpoint_fail_alone(kind):
    """A row that makes the endpoint fail must neither stop the run nor be sent without end."""
    stored, stop = [], StopCondition()

    async def send(job):
        if job.key.task % 3 == 1:
            raise ENDPOINT_ERRORS[kind]
        await asyncio.sleep(0.001)
        return SCORED

    await collect(
        jobs_of(30), send, [], concurrency=4, store=stored.append, stop=stop,
        rules=AttemptRules(server_type=TYPES_WITH_ENDPOINT.get),
        retries=RolloutRetryPolicy(max_attempts=3, pause_seconds=0.001),
    )  # fmt: skip

    failed = [outcome for outcome in stored if isinstance(outcome, FailedRollout)]
    assert stop.reason is None
    assert len(stored) - len(failed) == 20
    assert len(failed) == 20 and all(outcome.failure.is_counted for outcome in failed)  # two attempts each


@pytest.mark.parametrize(("down", "is_stopped"), [({1}, False), ({1, 2, 3}, False), ({1, 2, 3, 4}, True)])
@pytest.mark.parametrize("kind", ["no connection", "open circuit", "bad gateway"])
async def test_one_of_several_endpoints_that_is_down_stops_no_run(kind, down, is_stopped):
    """The id of a rollout, which has the attempt, chooses its endpoint: one attempt may meet the one that is down."""
    stored, stop, again = [], StopCondition(), []

    async def send(job):
        if job.key.task >= 10:
            raise ENDPOINT_ERRORS[kind]
        if job.key.attempt:
            again.append(job.key.attempt)
            if job.key.attempt in down:
                raise ENDPOINT_ERRORS[kind]
        return SCORED

    await collect(
        jobs_of(10 + ENOUGH_REFUSALS), send, [], concurrency=1, store=stored.append, stop=stop,
        rules=AttemptRules(server_type=TYPES_WITH_ENDPOINT.get),
        retries=RolloutRetryPolicy(max_attempts=2, pause_seconds=0.001),
    )  # fmt: skip

    if kind == "bad gateway":  # an endpoint that answers is asked once
        assert again == [1] and stop.reason is not None
        return
    assert again == [*range(1, max(down) + 1 + (not is_stopped))]
    assert (stop.reason is not None) is is_stopped
    assert sum(isinstance(outcome, ScoredRollout) for outcome in stored) == 10


async def test_an_unreachable_endpoint_is_named_with_what_to_do():
    """The endpoint has no field in the configuration that is certainly wrong: most often it has only stopped."""
    failure = classify_error(ENDPOINT_ERRORS["no connection"], "a", TYPES_WITH_ENDPOINT.get)

    error = endpoint_refused(failure, {}, "8 scored, 3 not tried")

    assert (
        error.problem
        == "the endpoint cannot be reached, or breaks its connections off (got no answer): 8 scored, 3 not tried"
    )
    assert str(error.fix).startswith("start it again or correct its address and run the same command with --resume")


async def test_a_model_server_of_the_run_that_ends_is_no_refusal():
    """Its crash has a culprit, and its rollouts are sent again after the restart."""
    failure = classify_error(status_error(500, "ended", whom="m", cause="ServerUnreachable"), "a", TYPES.get)

    assert (failure.kind, failure.refusal_status) == ("model_unreachable", None)
