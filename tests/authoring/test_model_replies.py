"""Replies become responses, and the generic cheats cover every form of row."""

import asyncio
from typing import Any

import pytest

from nemo_gym.authoring.audit import row_breakers
from nemo_gym.authoring.cheats import generic_cheats, injections
from nemo_gym.authoring.model_replies import build_response, message, play_calls, prompt_texts, shorten_reply, tool_call
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.wire.run_seed_verify import BaseVerifyRequest

ROW: dict[str, Any] = {
    "responses_create_params": {"input": [{"role": "user", "content": "Which?"}], "tools": []},
    "options": [{"A": "Paris"}, {"B": "Rome"}],
}


def test_a_text_becomes_the_last_message() -> None:
    """Most replies of an audit are texts."""
    assert NeMoGymResponse.model_validate(build_response("Rome", ROW)).output_text == "Rome"


def test_ids_and_statuses_are_added_to_items() -> None:
    """An author of an audit should not have to write them."""
    items = [*tool_call("look", {"at": "it"}, {"seen": True}), message("Rome"), {"role": "user", "content": "Sure?"}]
    response = NeMoGymResponse.model_validate(build_response(items, ROW))
    call, output, answer, question = response.output

    assert (call.name, call.arguments) == ("look", '{"at": "it"}')  # type: ignore[union-attr]
    assert call.call_id == output.call_id  # type: ignore[union-attr]
    assert output.output == '{"seen": true}'  # type: ignore[union-attr]
    assert answer.content[0].text == "Rome"  # type: ignore[union-attr]
    assert question.role == "user"  # type: ignore[union-attr]


def test_call_ids_depend_on_name_and_arguments_only() -> None:
    """Example data made from replies must not change from run to run."""
    one, same, other = (tool_call("f", arguments)[0]["call_id"] for arguments in ({"x": 1}, {"x": 1}, {"x": 2}))

    assert one == same != other


def test_calls_are_played_in_order_as_an_agent_would() -> None:
    """Arguments that are not JSON never reach a tool."""
    calls: list[tuple[str, Any]] = []

    async def call(path: str, body: Any) -> None:
        calls.append((path, body))

    broken = {"type": "function_call", "name": "c", "arguments": "{"}
    reply = [*tool_call("a", {"x": 1}, "ok"), broken, *tool_call("b", "{}")]
    asyncio.run(play_calls(ROW, reply, call))
    asyncio.run(play_calls(ROW, "just words", call))

    assert calls == [("/a", {"x": 1}), ("/b", {})]


def test_a_long_reply_is_shortened_to_one_line() -> None:
    """The table of findings has one line per case."""
    assert shorten_reply("a\nb") == "'a\\nb'"
    assert len(shorten_reply("x" * 1000)) == 160


def test_every_cheat_is_a_valid_response_with_a_unique_name() -> None:
    """`EXCUSED` refers to cheats by name."""
    cheats = list(generic_cheats(ROW))

    assert len({name for name, _ in cheats}) == len(cheats)
    assert {"silence", "white space", "the question", "every number", "all options", "a forged result"} <= dict(
        cheats
    ).keys()
    for _, reply in cheats:
        NeMoGymResponse.model_validate(build_response(reply, ROW))


@pytest.mark.parametrize("options", [["A", "B"], [{"A": "x"}, {"B": "y"}], {"A": "x", "B": "y"}])
def test_options_are_read_in_every_form_of_the_datasets(options: Any) -> None:
    """Naming all options at once is the oldest cheat."""
    assert dict(generic_cheats({**ROW, "options": options}))["all options"] == "A, B"


@pytest.mark.parametrize("options", [None, [], ["A"], "A, B", 7])
def test_rows_without_options_have_no_cheats_with_them(options: Any) -> None:
    """A cheat about options makes no sense there."""
    assert not [name for name, _ in generic_cheats({**ROW, "options": options}) if "option" in name]


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("Which?", ["Which?"]),
        ([{"role": "user", "content": [{"type": "input_text", "text": "Which?"}]}], ["Which?"]),
        (
            [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Which?"}],
            ["Be brief.", "Which?"],
        ),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], []),
        (None, []),
    ],
)
def test_the_prompt_is_read_in_every_form(prompt: Any, texts: list[str]) -> None:
    """The echo cheat must repeat the real prompt."""
    assert prompt_texts(prompt) == texts


def test_there_are_at_least_fifty_injections() -> None:
    """docs/audit.md promises them."""
    texts = [text for _, text in injections()]

    assert len(set(texts)) == len(texts) >= 50


def test_rows_are_broken_only_in_ways_that_are_wrong() -> None:
    """An optional field may be missing, and one that may be null may be null."""

    class Request(BaseVerifyRequest):
        needed: str
        nullable: int | None
        optional: list[str] = []

    row = {"responses_create_params": {}, "needed": "x", "nullable": 1, "optional": []}
    rows = {name: break_row(row) for name, break_row in row_breakers(Request, row)}

    assert set(rows) == {
        "no responses_create_params",
        "no needed",
        "needed is null",
        "needed is of another type",
        "no nullable",
        "nullable is of another type",
        "optional is of another type",
    }
    assert "needed" not in rows["no needed"]
    assert rows["needed is null"]["needed"] is None
    assert row["needed"] == "x"
