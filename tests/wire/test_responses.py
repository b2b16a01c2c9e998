"""The Responses request and response as servers build, read and dump them."""

import pytest
from pydantic import ValidationError

from nemo_gym.openai_utils import (
    NeMoGymEasyInputMessage,
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    NeMoGymResponseFunctionToolCall,
    NeMoGymResponseOutputMessage,
    NeMoGymResponseOutputRefusal,
    NeMoGymResponseOutputText,
    NeMoGymResponseReasoningItem,
    NeMoGymSummary,
)

REQUIRED = {
    "id": "resp_1",
    "created_at": 1.0,
    "model": "m",
    "object": "response",
    "output": [],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
FIELDS = [
    "id created_at error incomplete_details instructions metadata model object output parallel_tool_calls temperature",
    "tool_choice tools top_p background conversation max_output_tokens max_tool_calls previous_response_id prompt",
    "prompt_cache_key reasoning safety_identifier service_tier status text top_logprobs truncation usage user",
]


def message(*texts: str) -> NeMoGymResponseOutputMessage:
    return NeMoGymResponseOutputMessage(
        id="m", content=[NeMoGymResponseOutputText(text=text, annotations=[]) for text in texts]
    )


def test_a_dump_has_the_apis_fields_in_the_apis_order():
    """Outside tests compare whole dumps; a missing or additional default key breaks them."""
    dump = NeMoGymResponse(**REQUIRED).model_dump()

    assert list(dump) == " ".join(FIELDS).split()
    assert dump == dict.fromkeys(dump) | REQUIRED


@pytest.mark.parametrize("name", REQUIRED)
def test_what_the_api_always_sends_is_required(name):
    """A body without these is not a response, however much of it looks like one."""
    with pytest.raises(ValidationError, match=name):
        NeMoGymResponse(**{key: value for key, value in REQUIRED.items() if key != name})


def test_items_are_built_by_keyword_with_the_contracts_defaults():
    """Nearly every server builds these by hand."""
    assert message("hi").model_dump() == {
        "id": "m",
        "content": [{"annotations": [], "text": "hi", "type": "output_text", "logprobs": None}],
        "role": "assistant",
        "status": "completed",
        "type": "message",
    }
    assert NeMoGymEasyInputMessage(role="user", content="hi").model_dump() == {
        "content": "hi",
        "role": "user",
        "type": "message",
    }
    assert NeMoGymResponseFunctionToolCall(arguments="{}", call_id="c", name="f").model_dump() == {
        "arguments": "{}",
        "call_id": "c",
        "name": "f",
        "type": "function_call",
        "id": None,
        "status": None,
    }
    assert NeMoGymFunctionCallOutput(call_id="c", output="4").model_dump() == {
        "call_id": "c",
        "output": "4",
        "type": "function_call_output",
        "id": None,
        "status": None,
    }
    assert NeMoGymResponseReasoningItem(id="r", summary=[NeMoGymSummary(text="hm")]).model_dump() == {
        "id": "r",
        "summary": [{"text": "hm", "type": "summary_text"}],
        "type": "reasoning",
        "encrypted_content": None,
        "content": None,
    }


def test_output_text_joins_the_texts_of_the_model_only():
    """Verifiers grade this string: a refusal or a tool result in it would be graded as the answer."""
    refusal = NeMoGymResponseOutputMessage(id="m", content=[NeMoGymResponseOutputRefusal(refusal="no")])
    tool = NeMoGymFunctionCallOutput(call_id="c", output="tool text")
    short = NeMoGymEasyInputMessage(role="assistant", content="!")
    parts = NeMoGymEasyInputMessage(role="assistant", content=[{"type": "output_text", "text": "?"}])
    user = NeMoGymEasyInputMessage(role="user", content="user text")

    response = NeMoGymResponse(**{**REQUIRED, "output": [message("a", "b"), refusal, tool, user, short, parts]})

    assert response.output_text == "ab!?"
    assert NeMoGymResponse(**REQUIRED).output_text == ""


@pytest.mark.parametrize("role", [{}, {"role": None}])
@pytest.mark.parametrize("content", ["7", [{"type": "output_text", "text": "7", "annotations": []}]])
def test_a_message_of_the_output_without_a_role_is_the_models(role, content):
    """Some endpoints leave the role empty; every answer of theirs was an invalid one, which ended the run."""
    item = {"type": "message", "id": "m", "status": "completed", "content": content, **role}

    response = NeMoGymResponse.model_validate({**REQUIRED, "output": [item]})

    assert (response.output[0].role, response.output_text) == ("assistant", "7")


def test_a_copy_can_replace_the_output_without_touching_the_original():
    """Agents return the last model response with all items of the episode."""
    first = NeMoGymResponse(**{**REQUIRED, "output": [message("a")]})

    second = first.model_copy(update={"output": [*first.output, message("b")]})

    assert (first.output_text, second.output_text) == ("a", "ab")


def test_unknown_fields_of_a_provider_survive_at_every_level():
    """Fields that a provider adds are analysed later."""
    part = {"type": "output_text", "text": "hi", "annotations": [{"type": "new", "x": 1}], "phase": "final"}
    item = {"type": "message", "id": "m", "role": "assistant", "content": [part], "agent": {"name": "a"}}
    body = {
        **REQUIRED,
        "output": [item],
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True, "defer_loading": False}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []},
        "usage": {
            "input_tokens": 1,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 2},
            "output_tokens": 1,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 2,
        },
        "completed_at": 2,
        "output_text": "hi",
    }

    response = NeMoGymResponse.model_validate(body)

    assert response.model_dump(exclude_unset=True) == body
    assert NeMoGymResponse.model_validate_json(response.model_dump_json(exclude_unset=True)) == response


def test_a_reasoning_item_keeps_only_what_endpoints_accept_in_their_input():
    """Endpoints refuse a reasoning item with a status when it is sent back to them."""
    item = {"type": "reasoning", "id": "r", "summary": []}

    response = NeMoGymResponse.model_validate({**REQUIRED, "output": [{**item, "status": "completed", "x": 1}]})

    assert response.model_dump(exclude_unset=True)["output"] == [item]


def test_tokens_of_a_reasoning_item_keep_what_is_known_about_their_generation():
    """A trainer reads the weight version beside the tokens."""
    tokens = {"prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5], "weight_version": 3}
    item = {"type": "reasoning", "id": "r", "summary": [], **tokens}

    response = NeMoGymResponse.model_validate({**REQUIRED, "output": [{**item, "status": "completed"}]})

    assert response.model_dump(exclude_unset=True)["output"] == [item]


def test_fields_that_the_api_added_later_read_as_none_and_are_dumped_only_if_set():
    """Newer folders read `phase` and `namespace`; the tests of older ones compare dumps without them."""
    call = NeMoGymResponseFunctionToolCall(arguments="{}", call_id="c", name="f")
    spoken = NeMoGymResponseOutputMessage(id="m", content=[], phase="commentary")

    assert (call.namespace, "namespace" in call.model_dump()) == (None, False)
    assert (spoken.phase, spoken.model_dump()["phase"]) == ("commentary", "commentary")
    call.namespace = "files"
    assert call.model_dump()["namespace"] == "files"
    params = NeMoGymResponseCreateParamsNonStreaming(input="hi", safety_identifier="s")
    assert "safety_identifier" in params.model_dump()
    assert not {"moderation", "conversation", "prompt_cache_key"} & params.model_dump().keys()


def test_a_request_refuses_fields_it_does_not_know():
    """An option that never reaches the model is worse than an error."""
    with pytest.raises(ValidationError, match="temprature"):
        NeMoGymResponseCreateParamsNonStreaming(input="hi", temprature=0)


def test_a_request_fills_in_only_three_defaults():
    """`exclude_unset` is what goes to the model; the three defaults are what code reads."""
    request = NeMoGymResponseCreateParamsNonStreaming(input=[{"role": "user", "content": "hi"}])

    assert request.model_dump(exclude_unset=True) == {"input": [{"role": "user", "content": "hi"}]}
    assert request.model_dump(exclude_none=True) == {
        "input": [{"role": "user", "content": "hi", "type": "message"}],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
    assert isinstance(request.input[0], NeMoGymEasyInputMessage)


@pytest.mark.parametrize(
    "wrong",
    [
        {"metadata": {"a": 1}},
        {"stream": True},
        {"input": {"role": "user"}},
        {"input": None},
        {"truncation": "always"},
        {"temperature": "hot"},
        {"max_output_tokens": 1.5},
        {"text": {"format": {"type": "xml"}}},
        {"reasoning": {"effort": "heroic"}},
        {"prompt": {"version": "1"}},
    ],
)
def test_wrong_values_are_refused_where_they_stand(wrong):
    """The first element of the error's place is the field the user has to fix."""
    with pytest.raises(ValidationError) as caught:
        NeMoGymResponseCreateParamsNonStreaming(**{"input": "hi", **wrong})

    assert {error["loc"][0] for error in caught.value.errors()} == set(wrong)


@pytest.mark.parametrize("created_at", [float("nan"), float("inf"), "NaN"])
def test_a_time_that_is_no_number_is_an_error_of_the_endpoint(created_at):
    """JSON has no NaN: it became null on the way to the verifier, whose refusal was blamed instead."""
    with pytest.raises(ValidationError, match="created_at"):
        NeMoGymResponse.model_validate({**REQUIRED, "created_at": created_at})


def test_an_input_video_has_exactly_one_source():
    """Two sources, or an empty one, would be decided differently by every model server."""

    def content(**source):
        return [{"role": "user", "content": [{"type": "input_video", **source}]}]

    for source in ({"video_url": "https://x/v.mp4"}, {"video": "data"}):
        request = NeMoGymResponseCreateParamsNonStreaming(input=content(**source))
        assert request.model_dump(exclude_unset=True) == {"input": content(**source)}
    for source in ({}, {"video_url": ""}, {"video": "a", "video_url": "b"}):
        with pytest.raises(ValidationError, match="exactly one of"):
            NeMoGymResponseCreateParamsNonStreaming(input=content(**source))


def test_an_error_speaks_of_the_form_that_was_used():
    """A wrong part in a list must not also be reported as `not a string`."""
    with pytest.raises(ValidationError) as caught:
        NeMoGymResponseCreateParamsNonStreaming(input=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}])

    (error,) = caught.value.errors()
    assert "'text'" in error["msg"]
