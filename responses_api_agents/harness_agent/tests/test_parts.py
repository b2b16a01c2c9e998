"""The parts of the harness agent that need no box: conversations, final texts, placeholders, the catalogue."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.capture.record import CapturedExchange
from nemo_gym.catalog.agent_pairing import agent_config_file
from nemo_gym.launch.programs import Programs
from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.sandbox import SandboxErrorKind, SandboxExecResult
from responses_api_agents.harness_agent.answer import build_response, prompt_text
from responses_api_agents.harness_agent.app import HarnessAgentConfig, kind_of_kill
from responses_api_agents.harness_agent.conversation import MAX_TRACES, Conversations, exchange_items
from responses_api_agents.harness_agent.harness import PLACEHOLDERS, FinalText, Harness, prepare_start, read_final_text

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
VALUES = {name: f"<{name}>" for name in PLACEHOLDERS}
PARAMS = NeMoGymResponseCreateParamsNonStreaming(input="Do it.")


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat_call(messages: list[dict[str, Any]], answer: str) -> CapturedExchange:
    """Return a captured call of Chat Completions."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer}}
    response = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}
    return CapturedExchange(model_call_id="1", dialect="chat", request={"messages": messages}, response=response)


def messages_call(messages: list[dict[str, Any]], content: list[dict[str, Any]]) -> CapturedExchange:
    """Return a captured call of Messages."""
    response = {"role": "assistant", "content": content, "stop_reason": "end_turn", "model": "m"}
    response |= {"usage": {"input_tokens": 1, "output_tokens": 1}}
    return CapturedExchange(model_call_id="1", dialect="messages", request={"messages": messages}, response=response)


def test_a_call_continues_the_conversation_that_its_request_repeats() -> None:
    """The last request has the whole conversation; earlier ones must not be added again."""
    conversations = Conversations()
    conversations.add(chat_call([user("Do it.")], "One."))
    conversations.add(chat_call([user("Do it."), assistant("One."), user("Go on.")], "Two."))

    main = conversations.main()

    assert main is not None
    assert (len(conversations.traces), main.calls, main.final_text()) == (1, 2, "Two.")
    texts = [item["content"][0]["text"] for item in build_response(PARAMS, main, None).model_dump()["output"][::2]]
    assert texts == ["One.", "Two."]


def test_titles_sub_agents_and_compacted_contexts_are_separate_traces() -> None:
    """A side call must not replace the conversation that solved the task."""
    conversations = Conversations()
    conversations.add(chat_call([user("A title for: Do it.")], "Title"))
    conversations.add(chat_call([user("Do it.")], "One."))
    conversations.add(chat_call([user("You are a sub-agent.")], "Found it."))
    conversations.add(chat_call([user("Do it."), assistant("One."), user("Go on.")], "Two."))
    conversations.add(chat_call([user("Summary: one and two are done.")], "Three."))

    main = conversations.main()

    assert main is not None
    assert main.final_text() == "Two."
    assert [trace.calls for trace in conversations.traces] == [1, 2, 1, 1]


def test_calls_are_matched_by_tool_call_id_when_the_program_drops_thoughts() -> None:
    """Programs send tool calls back without the thoughts before them."""
    use = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "a.py"}]}
    conversations = Conversations()
    conversations.add(messages_call([user("Do it.")], [thought, use]))
    conversations.add(
        messages_call(
            [user("Do it."), {"role": "assistant", "content": [use]}, result], [{"type": "text", "text": "Ok."}]
        )
    )

    main = conversations.main()

    assert main is not None
    assert [item["type"] for item in main.items_after_prompt] == ["function_call", "function_call_output", "message"]


def test_the_items_of_every_dialect_are_read() -> None:
    """A program may speak any of the four dialects."""
    responses = CapturedExchange(
        model_call_id="1",
        dialect="responses",
        request={"input": "Hi"},
        response={
            "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A"}]}]
        },
    )
    gemini = CapturedExchange(
        model_call_id="1",
        dialect="gemini",
        request={"contents": [{"role": "user", "parts": [{"text": "Hi"}]}]},
        response={"candidates": [{"content": {"role": "model", "parts": [{"text": "A"}]}}]},
    )
    calls = [
        responses,
        gemini,
        chat_call([user("Hi")], "A"),
        messages_call([user("Hi")], [{"type": "text", "text": "A"}]),
    ]

    kinds = [[item["type"] for items in exchange_items(call) for item in items] for call in calls]

    assert kinds == [["message", "message"]] * 4


def test_a_call_that_cannot_be_read_is_counted() -> None:
    """A new form of answer must not fail a rollout whose work is done."""
    conversations = Conversations()
    conversations.add(CapturedExchange(model_call_id="1", dialect="chat", request={"messages": 3}, response={}))

    assert (conversations.unread_calls, conversations.main()) == (1, None)


def test_the_number_of_traces_is_bounded() -> None:
    """A program that asks something new with every call must not fill the memory."""
    conversations = Conversations()
    for number in range(MAX_TRACES + 20):
        conversations.add(chat_call([user(f"Question {number}")], f"Answer {number}"))

    assert len(conversations.traces) == MAX_TRACES
    assert conversations.traces[-1].final_text() == f"Answer {MAX_TRACES + 19}"


def test_a_final_text_that_the_model_did_not_write_last_is_added() -> None:
    """Verifiers read the last message; some programs report their answer in another way."""
    conversations = Conversations()
    conversations.add(chat_call([user("Do it.")], "Let me  submit."))

    same, other = (build_response(PARAMS, conversations.main(), text) for text in ("Let me submit.", "42"))

    assert len(same.output) == 1
    assert [item["content"][0]["text"] for item in other.model_dump()["output"]] == ["Let me  submit.", "42"]


@pytest.mark.parametrize(
    ("rule", "stdout", "text"),
    [
        ({"stdout": "text"}, " done \n", "done"),
        ({"stdout": "text"}, "", None),
        ({"stdout": "json", "field": "a.b"}, '{"a": {"b": "done"}}', "done"),
        ({"stdout": "last_json_line", "field": "result"}, '{"result": "1"}\n{"result": "2"}\nbye', "2"),
        ({"stdout": "last_json_line", "field": "result"}, '{"result": 3}\n[1]\n"x"', None),
        ({"stdout": "json", "field": "a"}, "[" * 50_000, None),
    ],
)
def test_the_final_text_is_read_where_the_rule_says(rule: dict[str, Any], stdout: str, text: str | None) -> None:
    """The output of a program is untrusted text, of which one part is the answer."""
    assert read_final_text(FinalText.model_validate(rule), stdout, None) == text


def test_the_prompt_is_all_text_of_the_row() -> None:
    """A program has one text for the task; system messages and instructions must not be lost."""
    params = NeMoGymResponseCreateParamsNonStreaming(
        instructions="Be brief.",
        input=[
            {"role": "system", "content": "You code."},
            {"role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        ],
    )

    shots = [user("2 + 2"), assistant("4"), user("3 + 3")]

    assert prompt_text(params) == "Be brief.\n\nYou code.\n\nFix it."
    assert prompt_text(NeMoGymResponseCreateParamsNonStreaming(input=shots)) == (
        "User: 2 + 2\n\nAssistant: 4\n\nUser: 3 + 3"
    )


def test_other_braces_than_placeholders_stay_as_they_are() -> None:
    """Configuration files of programs are JSON, with braces of their format."""
    harness = Harness.model_validate(
        {
            "command": ["agent", "{prompt}"],
            "dialect": "chat",
            "files": {"a.json": '{"url": "{base}", "x": {"{model}": {}}}'},
            "mcp": {"arguments": ["--mcp"], "env": {"URL": "{mcp_url}"}},
        }
    )

    start, with_mcp = (prepare_start(harness, VALUES, has_mcp=has_mcp) for has_mcp in (False, True))

    assert start.files == {"a.json": '{"url": "<base>", "x": {"<model>": {}}}'}
    assert (start.command, start.env) == (["agent", "<prompt>"], {})
    assert (with_mcp.command, with_mcp.env) == (["agent", "--mcp", "<prompt>"], {"URL": "<mcp_url>"})


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_entry_of_the_catalogue_is_valid_and_pinned(path: Path) -> None:
    """A typing error in a catalogue entry must not wait for a user who starts that program."""
    tree = yaml.safe_load(path.read_text())
    block = tree[path.stem]["responses_api_agents"]["harness_agent"]
    address = {"host": "127.0.0.1", "port": 1, "name": path.stem}
    block["resources_server"]["name"] = "env"

    config = HarnessAgentConfig.model_validate({**address, **block})

    assert not config.programs.is_empty
    assert config.harness.licence
    assert config.harness.page.startswith("https://")
    assert agent_config_file(path.stem, [Path(__file__).parents[3]]) == path
    for name, content in prepare_start(config.harness, VALUES, has_mcp=True).files.items():
        if name.endswith(".json"):
            json.loads(content.replace("<context_tokens>", "1").replace("<answer_tokens>", "1"))


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"npm": {"a": "^1.0"}}, "not an exact version"),
        ({"npm": {"a": "1"}}, "not an exact version"),
        ({"npm": {"a": "1.2"}}, "not an exact version"),
        ({"npm": {"a": "1.2.x"}}, "not an exact version"),
        ({"npm": {"a b": "1.0.0"}}, "not the name of an npm package"),
        ({"npm_scripts": ["a"]}, "must be listed"),
        ({"pip": ["a>=1"]}, "name==version"),
        ({"pip": ["a==1.*"]}, "name==version"),
        ({"pip": ["-r x"]}, "name==version"),
    ],
)
def test_programs_must_be_pinned(fields: dict[str, Any], problem: str) -> None:
    """An unpinned program changes the results of tomorrow."""
    with pytest.raises(ValueError, match=problem):
        Programs.model_validate(fields)


@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (1, SandboxErrorKind.FORBIDDEN, None),
        (1, SandboxErrorKind.MEMORY, None),
        (137, SandboxErrorKind.MEMORY, SandboxErrorKind.MEMORY),
        (139, SandboxErrorKind.CRASHED, SandboxErrorKind.CRASHED),
        (0, SandboxErrorKind.OUTPUT, SandboxErrorKind.OUTPUT),
        (139, None, None),
    ],
)
def test_only_a_program_that_was_killed_was_ended_by_the_sandbox(
    status: int, kind: SandboxErrorKind | None, expected: SandboxErrorKind | None
) -> None:
    """The sandbox guesses a kind from the last line of a program, which is no reason to discard its work."""
    assert kind_of_kill(SandboxExecResult(return_code=status, error_type=kind)) is expected
