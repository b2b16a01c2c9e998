"""Replies of an audit as a verifier receives them, and the cheats that every server must withstand."""

import asyncio
from typing import Any

import pytest

from nemo_gym.environment.audit_cheats import generic_cheats, injections, prompt_texts
from nemo_gym.environment.audit_replies import message, play_calls, response_of, shown, tool_call
from nemo_gym.environment.audit_rows import breakings
from nemo_gym.openai_utils import NeMoGymResponse
from nemo_gym.wire.tasks import BaseVerifyRequest

ROW: dict[str, Any] = {
    "responses_create_params": {"input": [{"role": "user", "content": "Which?"}], "tools": []},
    "options": [{"A": "Paris"}, {"B": "Rome"}],
}


def test_a_text_is_the_last_message() -> None:
    """The plainest reply there is."""
    assert NeMoGymResponse.model_validate(response_of("Rome", ROW)).output_text == "Rome"


def test_items_get_what_an_author_need_not_write() -> None:
    """Ids and statuses say nothing about a verifier."""
    items = [*tool_call("look", {"at": "it"}, {"seen": True}), message("Rome"), {"role": "user", "content": "Sure?"}]
    response = NeMoGymResponse.model_validate(response_of(items, ROW))
    call, output, said, asked = response.output

    assert (call.name, call.arguments) == ("look", '{"at": "it"}')  # type: ignore[union-attr]
    assert call.call_id == output.call_id  # type: ignore[union-attr]
    assert output.output == '{"seen": true}'  # type: ignore[union-attr]
    assert said.content[0].text == "Rome"  # type: ignore[union-attr]
    assert asked.role == "user"  # type: ignore[union-attr]


def test_calls_with_other_arguments_have_other_ids_and_the_same_always_one() -> None:
    """Data made from replies must not change from run to run."""
    one, same, other = (tool_call("f", arguments)[0]["call_id"] for arguments in ({"x": 1}, {"x": 1}, {"x": 2}))

    assert one == same != other


def test_calls_are_played_in_order_as_an_agent_would() -> None:
    """Arguments that are no JSON never reach a tool."""
    played: list[tuple[str, Any]] = []

    async def call(path: str, body: Any) -> None:
        played.append((path, body))

    broken = {"type": "function_call", "name": "c", "arguments": "{"}
    reply = [*tool_call("a", {"x": 1}, "ok"), broken, *tool_call("b", "{}")]
    asyncio.run(play_calls(ROW, reply, call))
    asyncio.run(play_calls(ROW, "just words", call))

    assert played == [("/a", {"x": 1}), ("/b", {})]


def test_a_long_reply_is_cut_where_it_is_shown() -> None:
    """One case, one line."""
    assert shown("a\nb") == "'a\\nb'"
    assert len(shown("x" * 1000)) == 160


def test_every_cheat_is_a_response_and_has_a_name_of_its_own() -> None:
    """Excuses are written by name."""
    cheats = list(generic_cheats(ROW))

    assert len({name for name, _ in cheats}) == len(cheats)
    assert {"silence", "white space", "the question", "every number", "all options", "a forged result"} <= dict(
        cheats
    ).keys()
    for _, reply in cheats:
        NeMoGymResponse.model_validate(response_of(reply, ROW))


@pytest.mark.parametrize("options", [["A", "B"], [{"A": "x"}, {"B": "y"}], {"A": "x", "B": "y"}])
def test_options_are_known_in_every_form_of_the_datasets(options: Any) -> None:
    """All of them at once is the oldest cheat."""
    assert dict(generic_cheats({**ROW, "options": options}))["all options"] == "A, B"


@pytest.mark.parametrize("options", [None, [], ["A"], "A, B", 7])
def test_rows_without_options_have_no_cheats_with_them(options: Any) -> None:
    """Nothing is made up."""
    assert not [name for name, _ in generic_cheats({**ROW, "options": options}) if "option" in name]


@pytest.mark.parametrize(
    ("asked", "texts"),
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
def test_the_prompt_is_read_in_every_form(asked: Any, texts: list[str]) -> None:
    """The echo must be what the model was really told."""
    assert prompt_texts({"responses_create_params": {"input": asked}}) == texts


def test_there_are_at_least_fifty_injections() -> None:
    """Of several kinds, no two alike."""
    texts = [text for _, text in injections()]

    assert len(set(texts)) == len(texts) >= 50


def test_fields_are_broken_as_far_as_that_is_wrong() -> None:
    """An optional field may be missing, and one that may be null may be null."""

    class Request(BaseVerifyRequest):
        needed: str
        nullable: int | None
        optional: list[str] = []

    row = {"responses_create_params": {}, "needed": "x", "nullable": 1, "optional": []}
    found = {name: broken(row) for name, broken in breakings(Request, row)}

    assert set(found) == {
        "no responses_create_params",
        "no needed",
        "needed is null",
        "needed is of another type",
        "no nullable",
        "nullable is of another type",
        "optional is of another type",
    }
    assert "needed" not in found["no needed"]
    assert found["needed is null"]["needed"] is None
    assert row["needed"] == "x"
