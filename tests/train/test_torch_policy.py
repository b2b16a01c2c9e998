"""The policy's endpoint: tokens of earlier turns are kept, bad requests are refused, and every wait has an end."""

import asyncio
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: python3 dev.py train")

from nemo_gym.training.chat_tokens import tool_call  # noqa: E402
from nemo_gym.training.demo import demo_policy, seeded_model  # noqa: E402
from nemo_gym.training.tiny_model import CONTEXT_LENGTH, WORDS, WordTokenizer  # noqa: E402
from nemo_gym.training.torch_policy import TorchPolicy, serve_policy  # noqa: E402

Json = dict[str, Any]
USER = {"role": "user", "content": "Ask, then say the digit."}


@pytest.fixture
def policy() -> Iterator[TorchPolicy]:
    with demo_policy(seeded_model(0), seed=0) as policy:
        yield policy


async def post(policy: TorchPolicy, token: str | None = None, **body: Any) -> tuple[int, Json]:
    token = token if token is not None else policy.overrides()["policy_api_key"]
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as http,
        http.post(f"{policy.base_url}/chat/completions", json=body) as answer,
    ):
        return answer.status, await answer.json()


async def test_a_reply_has_tokens_log_probs_version_and_finish_reason(policy: TorchPolicy) -> None:
    """These are the fields that samples are built from."""
    policy.update(seeded_model(1), version=3)
    status, reply = await post(policy, messages=[USER])
    message = reply["choices"][0]["message"]

    assert status == 200
    assert message["prompt_token_ids"] == WordTokenizer().apply_chat_template([USER], add_generation_prompt=True)
    assert 1 <= len(message["generation_token_ids"]) == len(message["generation_log_probs"]) <= 4
    assert message["weight_version"] == 3
    assert message["finish_reason"] in ("stop", "length")


async def test_the_next_prompt_starts_with_the_sampled_tokens(policy: TorchPolicy) -> None:
    """The sampled turn `<user> <pad> ask` has no text: tokenising its message again would lose two tokens."""
    prompt = WordTokenizer().apply_chat_template([USER], add_generation_prompt=True)
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "ask", "arguments": "{}"}}],
        "prompt_token_ids": prompt,
        "generation_token_ids": [2, 0, 6],
        "generation_log_probs": [-1.0, -1.0, -1.0],
    }
    tool = {"role": "tool", "tool_call_id": "c", "content": '{"digit": 7}'}
    _, reply = await post(policy, messages=[USER, turn, tool])

    expected = [*prompt, 2, 0, 6, *WordTokenizer().encode("<tool> digit 7 <end> <assistant>")]
    assert reply["choices"][0]["message"]["prompt_token_ids"] == expected


async def test_a_turn_that_was_cut_off_gets_its_end_token_in_the_prompt(policy: TorchPolicy) -> None:
    """The end token is then part of the prompt and not trained on."""
    prompt = WordTokenizer().apply_chat_template([USER], add_generation_prompt=True)
    fields = {"prompt_token_ids": prompt, "generation_token_ids": [9], "generation_log_probs": [-1.0]}
    _, reply = await post(policy, messages=[USER, {"role": "assistant", "content": "the", **fields}, USER])

    expected = [*prompt, 9, *WordTokenizer().encode("<end> <user> ask then say the digit <end> <assistant>")]
    assert reply["choices"][0]["message"]["prompt_token_ids"] == expected


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"n": 2}, "one completion"),
        ({"top_p": 0.9}, "log-probs"),
        ({"top_k": 5}, "top_k"),
        ({"stop": ["."]}, "stop"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"3": 5}}, "logit_bias"),
        ({"stream": True}, "stream"),
        ({"tool_choice": "required"}, "grammar"),
        ({"messages": []}, "at least one message"),
    ],
)
async def test_what_the_engine_does_not_do_is_refused(policy: TorchPolicy, change: Json, problem: str) -> None:
    """Ignoring an option silently would give samples of another distribution."""
    status, reply = await post(policy, **{"messages": [USER], **change})

    assert status == 400
    assert problem in reply["error"]["message"]


async def test_without_tools_they_are_neither_offered_nor_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that asks for a final text would get a tool call that it does not run."""
    offered: list[object] = []
    tokenizer = WordTokenizer()
    render = tokenizer.apply_chat_template

    def watch(*args: Any, tools: object = None, **options: Any) -> Any:
        offered.append(tools)
        return render(*args, **options)

    monkeypatch.setattr(tokenizer, "apply_chat_template", watch)
    tools = [{"type": "function", "function": {"name": "ask", "parameters": {}}}]
    called = {"content": None, "tool_calls": [tool_call("ask", {})]}
    with serve_policy(seeded_model(0), tokenizer, max_tokens=2, parse=lambda _: called) as policy:
        _, auto = await post(policy, messages=[USER], tools=tools)
        _, none = await post(policy, messages=[USER], tools=tools, tool_choice="none")

    assert offered == [tools, None]
    assert auto["choices"][0]["message"]["tool_calls"]
    assert "tool_calls" not in none["choices"][0]["message"]
    assert isinstance(none["choices"][0]["message"]["content"], str)


TURN = {"role": "assistant", "content": "the", "generation_token_ids": [9], "generation_log_probs": [-1.0]}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"max_tokens": 0}, "max_tokens: 0"),
        ({"max_tokens": -1}, "max_tokens: -1"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens: 1.5"),
        ({"max_tokens": True}, "max_tokens: True"),
        ({"temperature": -0.5}, "temperature: -0.5"),
        ({"temperature": 1e-40}, "temperature: 1e-40"),
        ({"temperature": "1"}, "temperature: '1'"),
        ({"messages": [USER, {**TURN, "prompt_token_ids": [len(WORDS)]}, USER]}, f"from 0 to {len(WORDS) - 1}"),
        ({"messages": [USER, {**TURN, "prompt_token_ids": [-1]}, USER]}, "-1 is not a token id"),
        ({"messages": [USER, {**TURN, "prompt_token_ids": "2 6"}, USER]}, "a list of token ids"),
    ],
)
async def test_a_request_that_would_fail_its_batch_is_refused(policy: TorchPolicy, change: Json, problem: str) -> None:
    """The model raises for a batch, so one such request would end the rollouts of all others."""
    await policy.pause()
    good = asyncio.create_task(post(policy, messages=[USER]))
    bad = asyncio.create_task(post(policy, **{"messages": [USER], **change}))
    async with asyncio.timeout(30):
        await asyncio.wait([bad], timeout=5)  # a refusal does not wait for the paused engine
        await policy.resume()
        (status, reply), (good_status, _) = await bad, await good

    assert (status, good_status) == (400, 200)
    assert problem in reply["error"]["message"]


async def test_a_prompt_that_does_not_fit_is_named_as_such(policy: TorchPolicy) -> None:
    """The rollout then ends with the limit context_length and not with a score."""
    status, reply = await post(policy, messages=[{"role": "user", "content": "say " * CONTEXT_LENGTH}])

    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")


async def test_another_program_on_this_machine_cannot_use_the_policy(policy: TorchPolicy) -> None:
    """Every local user can connect to a loopback port."""
    assert (await post(policy, token="wrong", messages=[USER]))[0] == 401


async def test_a_client_that_disconnects_cancels_its_request(
    policy: TorchPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled rollout must not take the engine's time."""
    loop, submitted, ended = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    submit, futures = policy.engine.submit, []

    def watch(*args: Any, **options: Any) -> Any:
        future = submit(*args, **options)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(ended.set))
        futures.append(future)
        loop.call_soon_threadsafe(submitted.set)
        return future

    with monkeypatch.context() as patch:
        patch.setattr(policy.engine, "submit", watch)
        await policy.pause()
        request = asyncio.create_task(post(policy, messages=[USER]))
        async with asyncio.timeout(30):
            await submitted.wait()
            request.cancel()
            await ended.wait()
    await policy.resume()

    assert [future.cancelled() for future in futures] == [True]
    assert (await post(policy, messages=[USER]))[0] == 200
    assert policy.engine.requests_in_flight == 0


async def test_a_request_has_a_deadline_also_while_the_engine_is_paused() -> None:
    """A trainer that forgets to resume must not hang its rollouts."""
    tokenizer = WordTokenizer()
    with serve_policy(seeded_model(0), tokenizer, request_seconds=0.2) as policy:
        await policy.pause()
        status, reply = await post(policy, messages=[USER])

    assert status == 504
    assert "0.2 s" in reply["error"]["message"]
