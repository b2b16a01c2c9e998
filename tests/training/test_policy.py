"""A session controls the engine through its policy."""

import pytest
from aiohttp import web

from nemo_gym.errors import ModelFailed
from nemo_gym.training import Policy


@pytest.fixture
async def engine():
    """The control endpoints of vLLM 0.32, as its `entrypoints/rl/online/api_router.py` defines them."""
    calls, state = [], {"weight_version": "default"}

    async def answer(request: web.Request) -> web.Response:
        calls.append(f"{request.method} {request.path_qs}")
        if request.path == "/update_weight_version":
            state["weight_version"] = (await request.json())["new_version"]
        if request.path == "/metrics":
            lines = ["# HELP vllm:generation_tokens_total Number of generation tokens processed."]
            lines += [f'vllm:generation_tokens_total{{engine="{n}",model_name="m"}} {n + 1}5.0' for n in range(2)]
            lines += ['vllm:prompt_tokens_total{engine="0"} 999.0', "vllm:generation_tokens_created 1.7e+09"]
            return web.Response(text="\n".join(lines) + "\n")
        if request.path == "/resume" and state["weight_version"] == "13":
            return web.json_response({"error": "busy"}, status=500)
        return web.json_response(state)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1", calls
    await runner.cleanup()


async def test_vllm_is_paused_versioned_and_resumed(engine):
    """Requests in flight must be kept, and the version set where the engine reports it with each answer."""
    url, calls = engine
    policy = Policy.vllm(url, "m")

    assert await policy.version() is None
    await policy.pause()
    await policy.set_version(3)
    await policy.resume()

    assert await policy.version() == 3
    assert calls[1:4] == ["POST /pause?mode=keep", "POST /update_weight_version", "POST /resume"]


async def test_the_tokens_of_all_engines_of_a_server_are_counted(engine):
    """A server with several engines has one line for each; a server without metrics reports no number."""
    assert await Policy.vllm(engine[0], "m").tokens_generated() == 40
    assert await Policy.vllm("http://127.0.0.1:9/v1", "m").tokens_generated() is None
    assert await Policy.endpoint(engine[0], "m").tokens_generated() is None


async def test_an_engine_that_refuses_is_named(engine):
    """A trainer that goes on with a paused engine would hang at its next rollout."""
    policy = Policy.vllm(engine[0], "m")
    await policy.set_version(13)

    with pytest.raises(ModelFailed, match="POST /resume failed"):
        await policy.resume()


async def test_any_endpoint_keeps_its_version_and_gives_its_configuration():
    """A trainer with its own engine needs no control endpoints."""
    policy = Policy.endpoint("http://127.0.0.1:1/v1", "m", api_key="k")
    await policy.pause()
    await policy.set_version(2)

    assert await policy.version() == 2
    assert policy.overrides() == {
        "policy_base_url": "http://127.0.0.1:1/v1",
        "policy_api_key": "k",
        "policy_model_name": "m",
    }
