"""Limits and failures as the shipped agent, model and environment meet them, all in this process."""

import orjson
import pytest

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.server_utils import ServerClient, server_config
from nemo_gym.transport import in_process
from resources_servers.example_single_tool_call.app import WeatherServer
from responses_api_agents.simple_agent.app import SimpleAgent
from responses_api_models.scripted_model.app import ScriptedModel

pytestmark = pytest.mark.asyncio

ASKS = {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}
SAYS = {"text": "Cold."}
TOOL = {
    "type": "function",
    "name": "get_weather",
    "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def config_with(script, environment=None):
    def at(port, **fields):
        return {"entrypoint": "app.py", "host": "127.0.0.1", "port": port, **fields}

    model = {"type": "responses_api_models", "name": "m"}
    weather = {"type": "resources_servers", "name": "r"}
    return {
        "head_server": {"host": "127.0.0.1", "port": 31000},
        "m": {"responses_api_models": {"scripted_model": at(11, script=script)}},
        "r": {"resources_servers": {"example_single_tool_call": at(12, domain="agent", **(environment or {}))}},
        "a": {"responses_api_agents": {"simple_agent": at(13, model_server=model, resources_server=weather)}},
    }


@pytest.fixture
def collect(tmp_path):
    """Run rows against a script and return the tally, the records and the failures."""
    mounted = []

    async def collect_one(script, *, count=1, environment=None, **options):
        config = config_with(script, environment)
        head = BaseServerConfig(host="127.0.0.1", port=31000)
        client = ServerClient(head_server_config=head, global_config_dict=config)
        for cls, name in ((ScriptedModel, "m"), (WeatherServer, "r"), (SimpleAgent, "a")):
            loaded = server_config(cls, client.global_config_dict, name)
            app = cls(config=loaded, server_client=client).prepare_webserver(config)
            in_process.mount("127.0.0.1", loaded.port, app)
            mounted.append(loaded.port)
        helper = RolloutCollectionHelper()
        helper.setup_server_client = lambda head_server_config=None: client
        rows = tmp_path / "in.jsonl"
        request = {"input": "what is the weather?", "tools": [TOOL]}
        rows.write_bytes(
            (orjson.dumps({"responses_create_params": request, "agent_ref": {"name": "a"}}) + b"\n") * count
        )
        output = tmp_path / "out" / "x.jsonl"
        tally = await helper.collect_from_config(
            RolloutCollectionConfig(
                input_jsonl_fpath=str(rows),
                output_jsonl_fpath=str(output),
                disable_aggregation=True,
                **{"retry_pause_seconds": 0, **options},
            )
        )
        stored = [orjson.loads(line) for line in output.read_bytes().splitlines()]
        failed = [orjson.loads(line) for line in (tmp_path / "out/x_failures.jsonl").read_bytes().splitlines()]
        return tally, stored, failed

    yield collect_one
    for port in mounted:
        in_process.unmount("127.0.0.1", port)


async def test_a_model_that_never_stops_calling_tools_is_stopped_and_its_transcript_kept(collect):
    """A runaway loop costs a bounded number of turns, and its record can be read afterwards."""
    tally, stored, failed = await collect([ASKS], max_steps_per_rollout=3)

    assert (stored, tally.limits) == ([], {"steps": 1})
    (line,) = failed
    assert line["_ng_failure"] == {"which": "steps", "most": 3}
    assert "reward" not in line
    turns = [item for item in line["response"]["output"] if item["type"] == "function_call"]
    assert len(turns) == 3


async def test_a_rollout_ends_when_its_tokens_are_used(collect):
    """One runaway rollout must not use up the budget of the run."""
    tally, _, failed = await collect([ASKS], max_tokens_per_rollout=200)

    assert tally.limits == {"tokens": 1}
    assert failed[0]["response"]["usage"]["total_tokens"] < 2000, "it was stopped on the way, not counted at the end"


async def test_within_its_limits_a_rollout_is_scored(collect):
    """Limits must not change normal rollouts."""
    tally, stored, failed = await collect([ASKS, SAYS], max_steps_per_rollout=2, max_tokens_per_rollout=100_000)

    assert (tally.scored, failed) == (1, [])
    assert "_ng_failure" not in stored[0]


async def test_a_model_that_stalls_is_a_timeout_of_the_model_call(collect):
    """The user must know which timeout to raise."""
    stalls = {**SAYS, "fault": {"kind": "stall"}}

    tally, _, failed = await collect([stalls], model_call_timeout_seconds=0.2, max_rollout_attempts=1)

    assert tally.failed == {"timeout": 1}
    assert failed[0]["_ng_failure"]["which"] == "model_call"
    assert failed[0]["_ng_failure"]["whom"] == "m"


async def test_a_stall_that_passes_is_scored_at_the_second_attempt(collect):
    """A transient problem must not cost a rollout."""
    passes = {**SAYS, "fault": {"kind": "stall", "times": 1}}

    tally, stored, failed = await collect([passes], model_call_timeout_seconds=0.3)

    assert (tally.scored, tally.retried, tally.failed.total()) == (1, 1, 0)
    assert stored[0]["_ng_attempt_index"] == 1
    assert [line["_ng_failure_class"] for line in failed] == ["timeout"]


@pytest.mark.parametrize(
    ("fault", "kind", "attempts"),
    [
        ({"kind": "status", "status": 400}, "model_refused", 1),
        ({"kind": "status", "status": 500}, "model_refused", 2),
        ({"kind": "wrong_shape"}, "model_bad_reply", 2),
    ],
    ids=repr,
)
async def test_a_model_that_fails_is_a_failure_and_never_a_reward(collect, fault, kind, attempts):
    """A zero for a dead model would lower the score."""
    tally, stored, failed = await collect([{**SAYS, "fault": fault}], max_rollout_attempts=2)

    assert (stored, tally.failed) == ([], {kind: 1})
    assert len(failed) == attempts, "what was refused as wrong would be refused again"
    assert not [line for line in failed if "reward" in line]


async def test_a_reward_outside_the_declared_range_is_a_failure(collect):
    """It would distort the mean."""
    tally, stored, failed = await collect([ASKS, SAYS], environment={"reward_range": [5, 6]})

    assert (stored, tally.failed) == ([], {"invalid_reward": 1})
    assert "outside the declared range 5 to 6" in failed[0]["_ng_failure"]["message"]
