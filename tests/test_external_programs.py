"""Programs that call a model server by its base URL, outside of their agent: attribution, usage and limits."""

import asyncio
import socket

import orjson
import pytest
from pydantic import ConfigDict

from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, Body, SimpleResponsesAPIAgent
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.metrics.prices import PriceTable
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.serve import rollout_budgets
from nemo_gym.serve.rollout_budgets import Budget, BudgetCounts, parse_budget, usage_of_answer
from nemo_gym.serve.run_budget import RunBudget, with_usage
from nemo_gym.serve.session import SessionStore
from nemo_gym.serve.webserver import serve_in_thread
from nemo_gym.server_utils import ServerClient, request, server_config
from nemo_gym.transport import in_process
from nemo_gym.transport.deadlines import Allowance
from responses_api_models.scripted_model.app import ScriptedModel

SAYS = {"text": "Cold and windy."}
MESSAGES = [{"role": "user", "content": "what is the weather?"}]
BODIES = {
    "/responses": {"input": "what is the weather?"},
    "/chat/completions": {"messages": MESSAGES},
    "/messages": {"messages": MESSAGES, "max_tokens": 100, "model": "m"},
}


class ProgramAgentConfig(BaseResponsesAPIAgentConfig):
    path: str = "/responses"
    calls: int = 4
    hides_refusals: bool = False
    crashes: bool = False


class ProgramRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class ProgramAgent(SimpleResponsesAPIAgent):
    """Stands for a harness: it knows a base URL, calls the model a few times, and reports no usage."""

    config: ProgramAgentConfig

    async def responses(self, body=Body()):
        raise NotImplementedError

    async def run(self, body: ProgramRunRequest = Body()) -> dict:
        base_url = self.resolve_model_base_url("m")
        body.__pydantic_extra__["seen"] = seen = [base_url]
        for _ in range(self.config.calls):
            reply = await request("POST", f"{base_url}{self.config.path}", json=BODIES[self.config.path])
            seen.append(reply.status)
            answer = await reply.text()
            if reply.status != 200 and not self.config.hides_refusals:
                raise RuntimeError(f"the harness failed: {answer}")
        if self.config.crashes:
            raise RuntimeError("the program ended with status 1")
        output = [{"type": "message", "role": "assistant", "id": "m", "content": []}]
        response = {"id": "r", "created_at": 0, "model": "m", "object": "response", "output": output}
        return {**body.model_dump(), "reward": 1.0, "response": response}


@pytest.fixture(autouse=True)
def _no_budgets_of_other_tests(monkeypatch):
    monkeypatch.setattr(rollout_budgets, "_open_budgets", SessionStore())


@pytest.fixture
def collect(tmp_path):
    """Run one row with the program agent against a served model; return the tally, the records and the failures."""
    servers = []

    async def collect_one(*, agent=None, config=None, script=None, **options):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        at = {"entrypoint": "app.py", "host": "127.0.0.1"}
        tree = {
            "head_server": {"host": "127.0.0.1", "port": 31000},
            "m": {"responses_api_models": {"scripted_model": {**at, "port": port, "script": script or [SAYS]}}},
            "a": {"responses_api_agents": {"program_agent": {**at, "port": 13, **(agent or {})}}},
            **(config or {}),
        }
        head = BaseServerConfig(host="127.0.0.1", port=31000)
        client = ServerClient(head_server_config=head, global_config_dict=tree)
        model = ScriptedModel(config=server_config(ScriptedModel, client.global_config_dict, "m"), server_client=client)
        model_app = model.prepare_webserver(tree)
        servers.append(serve_in_thread(model_app, host="127.0.0.1", port=port))
        loaded = server_config(ProgramAgent, client.global_config_dict, "a")
        in_process.mount("127.0.0.1", 13, ProgramAgent(config=loaded, server_client=client).prepare_webserver(tree))
        helper = RolloutCollectionHelper()
        helper.setup_server_client = lambda head_server_config=None: client
        rows = tmp_path / "in.jsonl"
        rows.write_bytes(orjson.dumps({"responses_create_params": {"input": "?"}, "agent_ref": {"name": "a"}}) + b"\n")
        output = tmp_path / "out" / "x.jsonl"
        tally = await helper.collect_from_config(
            RolloutCollectionConfig(
                input_jsonl_fpath=str(rows),
                output_jsonl_fpath=str(output),
                disable_aggregation=True,
                **{"retry_pause_seconds": 0, "max_rollout_attempts": 1, **options},
            )
        )
        failures = tmp_path / "out/x_failures.jsonl"
        stored = [orjson.loads(line) for line in output.read_bytes().splitlines()]
        return tally, stored, [orjson.loads(line) for line in failures.read_bytes().splitlines()]

    yield collect_one
    in_process.unmount("127.0.0.1", 13)
    for server, thread in servers:
        server.should_exit = True
        thread.join(10)


@pytest.mark.asyncio
@pytest.mark.parametrize("path", BODIES)
async def test_calls_of_a_program_are_the_usage_of_its_rollout(collect, path):
    """A harness reports no tokens; the budget of the run and the cost of a score depend on them."""
    tally, stored, _ = await collect(agent={"path": path})

    assert tally.scored == 1
    usage = stored[0]["response"]["usage"]
    assert usage["output_tokens"] == 4 * 3, "four answers of three words"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert not len(rollout_budgets._open_budgets), "the counts end with the rollout"


@pytest.mark.asyncio
@pytest.mark.parametrize("path", BODIES)
async def test_a_program_that_makes_too_many_calls_is_refused_and_its_rollout_limited(collect, path):
    """Most harnesses have no turn limit; one that runs away must not be scored or retried."""
    tally, stored, failed = await collect(agent={"path": path}, max_steps_per_rollout=2)

    assert (stored, tally.limits) == ([], {"steps": 1})
    (line,) = failed
    assert line["_ng_failure"] == {"which": "steps", "most": 2}
    assert "reward" not in line
    assert line["response"]["usage"]["output_tokens"] == 2 * 3


@pytest.mark.asyncio
async def test_a_program_that_hides_a_refusal_is_not_scored(collect):
    """Several harnesses end with status 0 after a refused call; the answer so far is no answer to the task."""
    tally, stored, failed = await collect(agent={"hides_refusals": True}, max_steps_per_rollout=3)

    assert (stored, tally.limits) == ([], {"steps": 1})
    assert failed[0]["seen"][1:] == [200, 200, 200, 400]
    assert "reward" not in failed[0]


@pytest.mark.asyncio
async def test_a_program_whose_calls_all_failed_is_not_scored(collect):
    """Harnesses end with status 0 and an empty result when the endpoint refuses every call: that was a reward of 0."""
    refusal = {"kind": "status", "status": 400, "message": "no such model"}

    tally, stored, failed = await collect(
        agent={"hides_refusals": True, "calls": 3}, script=[{"text": "never", "fault": refusal}]
    )

    assert (stored, tally.scored) == ([], 0)
    failure = failed[0]["_ng_failure"]
    assert (failure["kind"], failure["phase"]) == ("model_bad_reply", "model")
    assert "none of the 3 calls" in failure["message"]


@pytest.mark.asyncio
async def test_tokens_of_a_program_are_limited(collect):
    """A long conversation can cost much in few turns."""
    tally, _, failed = await collect(max_tokens_per_rollout=8)

    assert tally.limits == {"tokens": 1}
    assert failed[0]["_ng_failure"] == {"which": "tokens", "most": 8}


@pytest.mark.asyncio
async def test_failed_calls_are_no_turns(collect):
    """A program may repeat a call that failed for a transient reason."""
    fails_once = {**SAYS, "fault": {"kind": "status", "status": 503, "times": 1}}

    tally, _, _ = await collect(
        agent={"hides_refusals": True, "calls": 3}, script=[fails_once], max_steps_per_rollout=3
    )

    assert tally.scored == 1


@pytest.mark.asyncio
async def test_calls_without_a_rollout_id_argument_are_captured(collect, tmp_path):
    """An agent that forgets the rollout id would lose its captures without a word."""
    config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path / "captures")}

    tally, stored, _ = await collect(config=config)

    assert tally.scored == 1
    assert "/ng-rollout/0-0/budget/" in stored[0]["seen"][0]
    (capture,) = (tmp_path / "captures").rglob("*0-0*")
    assert len(capture.read_bytes().splitlines()) == 4


def test_the_text_of_a_budget_is_parsed_back_and_garbage_is_not() -> None:
    """The text travels in URLs that programs pass on."""
    budget = Budget("0123456789abcdef", 3, 10, None)

    assert parse_budget(str(budget)) == budget
    assert parse_budget(str(Budget("0123456789abcdef"))) == Budget("0123456789abcdef")
    for text in ("", "x", "0123456789abcdef", "0123456789abcdef-c1-s-1", "0123456789abcdef-c1-s" + "9" * 30):
        assert parse_budget(text) is None


@pytest.mark.asyncio
@pytest.mark.parametrize("names", [("input", "output"), ("prompt", "completion")])
async def test_cached_tokens_of_a_program_keep_their_price(names) -> None:
    """Most input of a long conversation is cached, at a tenth of the price; as new input it would end the run early."""
    read, written = (f"{name}_tokens" for name in names)
    usage = {read: 900, f"{read}_details": {"cached_tokens": 800}, written: 50}
    usage |= {f"{written}_details": {"reasoning_tokens": 40}, "total_tokens": 950}
    counts, budget = BudgetCounts(), RunBudget({}, Allowance(steps=9))
    budget.open_at("m", "0-0")
    for _ in range(2):
        assert counts.admit(Budget("0123456789abcdef")) is None
        counts.settle(usage_of_answer({"usage": usage}))

    async def post(server, path):
        return counts.as_dict()

    record = with_usage({"response": {"model": "m"}}, await budget.close(post))

    assert record["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 80}
    prices = PriceTable({"m": {"input": 10.0, "cached_input": 1.0, "output": 100.0}})
    assert prices.cost_of_record(record) == pytest.approx((200 * 10 + 1600 * 1 + 100 * 100) / 1e6)


@pytest.mark.asyncio
async def test_a_limited_rollout_without_an_answer_has_the_price_of_its_model(collect) -> None:
    """Tokens of a model without a name have no price, and one such rollout would end a run with --max-cost."""
    _, _, failed = await collect(max_steps_per_rollout=2)

    (model,) = {line["response"]["model"] for line in failed}
    assert model
    assert PriceTable({model: {"input": 1.0, "output": 2.0}}).cost_of_record(failed[0]) > 0


@pytest.mark.asyncio
async def test_a_program_that_fails_has_spent_its_tokens(collect) -> None:
    """Failed attempts are paid for as well; uncounted, a run whose program crashes would never reach its limit."""
    tally, stored, failed = await collect(agent={"crashes": True})

    assert (tally.failed.total(), stored) == (1, [])
    assert failed[0]["response"]["usage"]["output_tokens"] == 4 * 3
    assert failed[0]["response"]["model"] and "reward" not in failed[0]


def test_calls_in_flight_count_against_the_turns() -> None:
    """Sub-agents call in parallel; together they must not exceed the limit."""
    counts, budget = BudgetCounts(), Budget("0123456789abcdef", steps=2)

    assert [counts.admit(budget) for _ in range(3)] == [None, None, "steps"]
    counts.settle(None)
    assert counts.admit(budget) is None, "the failed call gave its turn back"


@pytest.mark.asyncio
async def test_another_cell_counts_for_the_cell_that_serves_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells share their ports: the calls of one rollout arrive in all of them."""
    budget = Budget("00000000000000aa", 1, steps=1)
    calls = []

    class Link:
        async def send(self, instance, call):
            calls.append((instance, call.body_bytes()))
            messages = []

            async def receive():
                return {"type": "http.request", "body": call.body_bytes()}

            async def send(message):
                messages.append(message)

            await rollout_budgets.count_here({}, receive, send)
            from nemo_gym.wire.call_reply import Reply

            return Reply(200, messages[1]["body"])

    monkeypatch.setenv("NEMO_GYM_CELL", "0")
    monkeypatch.setattr(rollout_budgets, "_links", [Link(), Link()])

    await rollout_budgets.admit_call(budget)
    with pytest.raises(Exception, match="limit of 1 steps"):
        await rollout_budgets.admit_call(budget)
    await rollout_budgets.settle_call(budget, (5, 6, 3, 2, "m"))
    counts = await rollout_budgets._count(budget, "close")

    tokens = {"input_tokens": 5, "output_tokens": 6, "cached_tokens": 3, "reasoning_tokens": 2, "model": "m"}
    assert counts == {"calls": 1, "turns": 1, **tokens, "reached_limit": "steps"}
    assert len(calls) == 4
    assert await asyncio.wait_for(rollout_budgets._count(budget, "close"), 1) is None


@pytest.mark.asyncio
async def test_a_cancelled_rollout_closes_its_budget_in_the_background() -> None:
    """Counts of cancelled rollouts would otherwise stay until they are idle for hours."""
    closed = asyncio.get_running_loop().create_future()

    async def post(server, path):
        closed.set_result((server, path))
        return BudgetCounts().as_dict()

    budget = RunBudget({}, Allowance(steps=3))
    text = budget.open_at("m", "0-0")
    budget.close_later(post)

    assert await asyncio.wait_for(closed, 5) == ("m", f"/ng-rollout/0-0/budget/{text}/rollout-budget/close")
    assert not budget.is_open


@pytest.mark.asyncio
async def test_a_model_server_that_does_not_return_counts_costs_no_result(caplog) -> None:
    """A result that is earned must not be lost because its calls cannot be counted."""

    async def post(server, path):
        raise ConnectionError("gone")

    budget = RunBudget({}, Allowance(steps=3))
    budget.open_at("m", "0-0")
    counts = await budget.close(post)

    answer = {"reward": 1.0, "response": {"usage": None}}
    assert with_usage(answer, counts) is answer
    assert "m did not return the counts" in caplog.text


def test_without_an_allowance_a_program_has_no_budget() -> None:
    """A rollout without limits is not counted."""
    budget = RunBudget({"_ng_task_index": 4, "_ng_rollout_index": 1, "_ng_attempt_index": 2}, None)

    assert budget.rollout_id() == "4-1-a2"
    assert budget.open_at("m", "4-1") is None
    assert not budget.is_open
