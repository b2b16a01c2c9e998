"""The calls that NeMo RL and Megatron RL make work as they make them."""

import asyncio
import sys

import pytest
from aiohttp import ClientResponseError
from omegaconf import DictConfig, OmegaConf

from nemo_gym.cli.env import RunHelper, ServersNotRunning
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.global_config import GlobalConfigDictParserConfig
from nemo_gym.rollout_collection import RolloutCollectionHelper
from nemo_gym.server_utils import HEAD_SERVER_KEY_NAME
from nemo_gym.transport import in_process
from nemo_gym.transport.asgi import write_reply
from nemo_gym.wire.call_reply import Reply
from tests.rollout_world import World
from tests.rollout_world import row as world_row
from tests.training.session_world import HangingEngine, row, servers


@pytest.fixture(scope="module")
def engine():
    with HangingEngine() as hanging:
        yield hanging


@pytest.fixture(scope="module")
def run_helper(engine):
    """Start the servers as NeMo RL does: from a dictionary, without the command line."""
    config = servers(engine.url, global_aiohttp_connector_limit=65536, global_aiohttp_connector_limit_per_host=16384)
    helper = RunHelper()
    helper.start(
        GlobalConfigDictParserConfig(
            initial_global_config_dict=DictConfig(config), skip_load_from_cli=True, skip_load_from_dotenv=True
        )
    )
    yield helper
    helper.shutdown()


async def test_nemo_rl_streams_results_with_row_numbers_and_token_fields(run_helper):
    """NeMo RL puts results back in order by `_rowidx` and reads the token fields of every item it trains on."""
    rows = [{**row(tool=True), "_rowidx": number} for number in range(6)]
    run_helper.poll()
    results = [None] * len(rows)
    for awaitable in RolloutCollectionHelper().run_examples(examples=rows, head_server_config=run_helper.head):
        sent, result = await awaitable
        results[sent["_rowidx"]] = result

    for result in results:
        items = [item for item in result["response"]["output"] if item.get("generation_token_ids")]
        assert [item["type"] for item in items] == ["function_call", "message"]
        first, second = items
        seen = first["prompt_token_ids"] + first["generation_token_ids"]
        assert second["prompt_token_ids"][: len(seen)] == seen
        assert len(second["generation_token_ids"]) == len(second["generation_log_probs"])


async def test_megatron_rl_finds_the_head_and_awaits_a_list(run_helper):
    """Megatron RL reads the head from `RunHelper._server_client` and lists the awaitables before it awaits them."""
    head = run_helper._server_client.head_server_config
    awaitables = list(RolloutCollectionHelper().run_examples([row(), row()], head_server_config=head))

    assert [(await awaitable)[1]["reward"] for awaitable in awaitables] == [1.0, 1.0]
    assert isinstance(head, BaseServerConfig)
    assert head == run_helper.head
    assert HEAD_SERVER_KEY_NAME == "head_server"


async def test_a_bad_row_is_a_422_for_the_trainer(run_helper):
    """NeMo RL retries a 500 as an infrastructure problem, five times; a bad row would fail every time."""
    awaitables = RolloutCollectionHelper().run_examples([row("sums_agent")], head_server_config=run_helper.head)

    with pytest.raises(ClientResponseError) as caught:
        await next(awaitables)

    assert caught.value.status == 422
    assert b"expected_answer" in caught.value.response_content


async def test_closing_the_iterator_cancels_at_the_engine(run_helper, engine):
    """A trainer that has enough rollouts must get its engine back."""
    rows = [row(), *[row("engine_agent")] * 3]
    results = RolloutCollectionHelper().run_examples(rows, head_server_config=run_helper.head)
    await next(results)
    for _ in range(3):
        assert await asyncio.to_thread(engine.arrived.acquire, timeout=10)

    results.close()

    for _ in range(3):
        assert await asyncio.to_thread(engine.given_up.acquire, timeout=1)


async def test_all_rows_are_in_flight_unless_the_trainer_limits_them():
    """NeMo RL gives no semaphore and sizes its pool for 65,536; a silent cap of 1,024 starved its engine."""
    world, count, together = World(), 1500, asyncio.Event()
    arrived = 0

    async def crowd(scope, receive, send):
        nonlocal arrived
        arrived += 1
        if arrived == count:
            together.set()
        await together.wait()
        await write_reply(Reply(200, b'{"reward": 1.0}'), send)

    in_process.mount("127.0.0.1", 1, crowd)
    try:
        awaitables = world.helper().run_examples([world_row(n) for n in range(count)])
        async with asyncio.timeout(30):
            assert sum([(await awaitable)[1]["reward"] for awaitable in awaitables]) == count
    finally:
        world.close()


def test_a_helper_that_was_not_started_has_no_head():
    """The error must say what to do; an AttributeError on None does not."""
    with pytest.raises(ServersNotRunning, match="start"):
        _ = RunHelper().head


@pytest.mark.parametrize("name", ["my_secret", "quiz_password", "browser_cookies", "credentials", "api_key"])
def test_a_server_may_be_named_like_a_secret(name):
    """A name is not a secret: it used to mask every host at the head, and no client found a server."""
    from nemo_gym.config.secrets import MaskedRepr, mask_secrets, secret_values

    # As an override file gives it: without the entrypoint, which another file has.
    partial = {name: {"resources_servers": {name: {"host": "127.0.0.1", "port": 5, "api_key": "s3cret-value"}}}}
    inherited = {name: {"_inherit_from": "other", "host": "10.1.2.3"}, "num_repeats": {name: 4}}

    for tree in (partial, inherited):
        assert not any(text.startswith(("127.", "10.")) for text in secret_values(tree))
    block = mask_secrets(partial)[name]["resources_servers"][name]
    assert block == {"host": "127.0.0.1", "port": 5, "api_key": "****"}
    assert mask_secrets(OmegaConf.create(inherited)) == inherited
    assert "127.0.0.1" in repr(MaskedRepr(partial))
    assert "s3cret-value" not in repr(MaskedRepr(partial))


def test_reading_samples_does_not_load_the_launcher():
    """Trainer processes import `nemo_gym.training` for its types; they must stay light."""
    import subprocess

    code = (
        "import nemo_gym.training, sys; assert 'nemo_gym.launch.run' not in sys.modules and 'torch' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
