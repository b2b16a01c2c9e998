"""Responses ↔ Chat, the laws: what the other dialect can express comes back unchanged, and nothing is lost."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.convert.chat_conversation import items_from_messages, wrap_in_think_tags
from nemo_gym.convert.responses_chat import (
    chat_messages,
    chat_request,
    response_from_completion,
    responses_request,
)

Json = dict[str, Any]
law = settings(max_examples=100, deadline=None)

text = st.text(alphabet="abc \n<>/é漢", max_size=8)
some = text.filter(bool)
name = st.text(alphabet="fgh_", min_size=1, max_size=4)
arguments = st.dictionaries(name, st.integers() | text, max_size=2).map(json.dumps) | st.just("{not json")

chat_part = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, text),
    st.builds(
        lambda u, d: {"type": "image_url", "image_url": {"url": u, "detail": d}},
        some,
        st.sampled_from(["auto", "high"]),
    ),
    st.builds(lambda u: {"type": "video_url", "video_url": {"url": u}}, some),
    st.builds(lambda d: {"type": "input_audio", "input_audio": {"data": d, "format": "wav"}}, some),
    st.builds(lambda f: {"type": "file", "file": {"file_id": f}}, some),
)
text_parts = st.lists(st.builds(lambda t: {"type": "text", "text": t}, text), max_size=2)
tokens = st.fixed_dictionaries(
    {
        "prompt_token_ids": st.lists(st.integers(0, 9), max_size=3),
        "generation_token_ids": st.lists(st.integers(0, 9), max_size=3),
        "generation_log_probs": st.lists(st.floats(-9, 0), max_size=3),
    },
    optional={"routed_experts": st.just("b64")},
)


chat_call = st.builds(
    lambda i, n, a: {"id": i, "type": "function", "function": {"name": n, "arguments": a}}, some, name, arguments
)


@st.composite
def chat_assistant(draw: st.DrawFn) -> Json:
    """An assistant message in its one canonical form: thoughts, then text; null only beside something else."""
    content = wrap_in_think_tags(draw(st.lists(text, max_size=2))) + draw(text)
    message: Json = {"role": "assistant"}
    calls = draw(st.lists(chat_call, max_size=2))
    refusal = draw(st.just("") | some)
    message["content"] = content or (None if calls or refusal else "")
    if refusal:
        message["refusal"] = refusal
    if calls:
        message["tool_calls"] = calls
    return message | draw(st.just({}) | tokens)


chat_other = st.one_of(
    st.builds(
        lambda r, c: {"role": r, "content": c},
        st.sampled_from(["user", "system", "developer"]),
        text | st.lists(chat_part, max_size=2),
    ),
    st.builds(lambda i, c: {"role": "tool", "tool_call_id": i, "content": c}, some, text | text_parts),
)
conversation = st.lists(st.tuples(st.lists(chat_other, max_size=2), chat_assistant(), chat_other), max_size=3).map(
    lambda rounds: [message for before, piece, after in rounds for message in (*before, piece, after)]
)

tool = st.fixed_dictionaries(
    {"name": name, "parameters": st.just({"type": "object"})},
    optional={"description": text, "strict": st.just(True)},
)
chat_tool = tool.map(lambda function: {"type": "function", "function": function})
choice = st.one_of(
    st.sampled_from(["auto", "none", "required"]),
    st.builds(lambda n: {"type": "function", "function": {"name": n}}, name),
    st.builds(
        lambda n: {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": n}}]},
        },
        name,
    ),
)
response_format = st.one_of(
    st.just({"type": "json_object"}),
    st.just({"type": "text"}),
    st.just({"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}),
)
chat_options = st.fixed_dictionaries(
    {},
    optional={
        "model": some,
        "max_tokens": st.integers(1, 9),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0, 1),
        "user": some,
        "store": st.booleans(),
        "metadata": st.dictionaries(name, text, max_size=2),
        "service_tier": st.just("auto"),
        "reasoning_effort": st.sampled_from(["low", "high"]),
        "verbosity": st.just("low"),
        "response_format": response_format,
        "logprobs": st.just(True),
    },
)
tooling = st.just({}) | st.fixed_dictionaries(
    {"tools": st.lists(chat_tool, min_size=1, max_size=2)},
    optional={"tool_choice": choice, "parallel_tool_calls": st.booleans()},
)


def same_id(prefix: str) -> str:
    return f"{prefix}_0"


item = st.one_of(
    st.builds(
        lambda r, c: {"type": "message", "role": r, "content": c},
        st.sampled_from(["user", "system", "developer"]),
        text,
    ),
    st.builds(
        lambda parts: {
            "type": "message",
            "id": "msg_0",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": t, "annotations": []} for t in parts],
        },
        st.lists(text, min_size=1, max_size=2),
    ),
    st.builds(
        lambda ts: {"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": t} for t in ts]},
        st.lists(text, max_size=2),
    ),
    st.builds(
        lambda i, n, a: {
            "type": "function_call",
            "id": i,
            "call_id": i,
            "name": n,
            "arguments": a,
            "status": "completed",
        },
        some,
        name,
        arguments,
    ),
    st.builds(lambda i, o: {"type": "function_call_output", "call_id": i, "output": o}, some, text),
)


@given(conversation)
@law
def test_a_chat_conversation_comes_back_from_responses(messages: list[Json]) -> None:
    """chat → responses → chat is the identity on canonical conversations, token fields included."""
    items = items_from_messages(messages, new_id=same_id, with_tokens=True)

    assert chat_messages(items, with_tokens=True) == messages


@given(conversation, chat_options, tooling)
@law
def test_a_chat_request_comes_back_from_responses(messages: list[Json], options: Json, tools: Json) -> None:
    """Every option with a counterpart survives the way there and back."""
    chat = {"messages": messages, **options, **tools}

    assert chat_request(responses_request(chat, new_id=same_id, with_tokens=True), with_tokens=True) == chat


@given(st.lists(item, max_size=6))
@law
def test_converting_again_changes_nothing_more(items: list[Json]) -> None:
    """Any items settle: one round trip puts a turn's thoughts before its text, and from then on nothing moves."""

    def round_trip(messages: list[Json]) -> list[Json]:
        return chat_messages(items_from_messages(messages, new_id=same_id))

    settled = round_trip(chat_messages(items))

    assert round_trip(settled) == settled


@given(st.lists(item, max_size=6))
@law
def test_every_text_call_and_result_is_still_there(items: list[Json]) -> None:
    """Nothing is dropped silently: what was piece, called and answered can be found in the Chat conversation."""
    spoken = json.dumps(chat_messages(items), ensure_ascii=False)

    for one in items:
        texts = [part["text"] for part in one.get("summary", [])]
        content = one.get("content", [])
        texts += [content] if isinstance(content, str) else [part["text"] for part in content]
        texts += [one[key] for key in ("call_id", "name", "arguments", "output") if key in one]
        for piece in texts:
            assert json.dumps(piece, ensure_ascii=False)[1:-1] in spoken


@given(
    st.lists(text.filter(bool), min_size=1, max_size=2),
    some,
    st.lists(st.tuples(some, name, arguments), max_size=2),
    tokens,
)
@law
def test_a_turn_of_a_model_comes_back_from_chat(
    thoughts: list[str], answer: str, calls: list[tuple[str, str, str]], fields: Json
) -> None:
    """responses → chat → responses is the identity on what a model says in one turn."""
    turn: list[Json] = [
        {"type": "reasoning", "id": "rs_0", "summary": [{"type": "summary_text", "text": t} for t in thoughts]},
        {
            "type": "message",
            "id": "msg_0",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": answer, "annotations": []}],
        },
        *(
            {"type": "function_call", "id": i, "call_id": i, "name": n, "arguments": a, "status": "completed"}
            for i, n, a in calls
        ),
    ]
    turn[-1] = turn[-1] | fields

    messages = chat_messages(turn, with_tokens=True)

    assert items_from_messages(messages, new_id=same_id, with_tokens=True) == turn


usage = st.none() | st.fixed_dictionaries(
    {"prompt_tokens": st.integers(0, 9), "completion_tokens": st.integers(0, 9), "total_tokens": st.integers(0, 18)},
    optional={
        "prompt_tokens_details": st.builds(lambda n: {"cached_tokens": n}, st.integers(0, 9)),
        "completion_tokens_details": st.builds(lambda n: {"reasoning_tokens": n}, st.integers(0, 9)),
    },
)
logprobs = st.none() | st.lists(
    st.builds(
        lambda t: {
            "token": t,
            "bytes": [1],
            "logprob": -1.0,
            "top_logprobs": [{"token": t, "bytes": [], "logprob": -2.0}],
        },
        text,
    ),
    min_size=1,
    max_size=2,
).map(lambda content: {"content": content, "refusal": None})


@given(chat_assistant(), st.sampled_from(["length", "content_filter", None]), usage, logprobs)
@law
def test_a_completion_comes_back_as_the_same_message(message: Json, cut: str | None, counts: Any, probs: Any) -> None:
    """An agent sends the output back in the next turn: text, thoughts, calls, refusals and tokens must be unchanged."""
    thoughtful = "<think>" in (message["content"] or "")
    has_text = bool(message["content"]) or not (message.get("tool_calls") or message.get("refusal"))
    probs = probs if has_text and not thoughtful else None
    finish = cut or ("tool_calls" if message.get("tool_calls") else "stop")
    choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": probs}
    completion = {
        "id": "chatcmpl_0",
        "object": "chat.completion",
        "created": 7,
        "model": "m",
        "choices": [choice],
        "usage": counts,
    }
    params = {"include": ["message.output_text.logprobs"]}

    response = response_from_completion(params, completion, new_id=same_id, with_tokens=True)

    assert chat_messages(response["output"], with_tokens=True) == [message]
    assert response["status"] == ("incomplete" if finish in ("length", "content_filter") else "completed")
    assert (response["usage"] or {}).get("input_tokens") == (counts or {}).get("prompt_tokens")
