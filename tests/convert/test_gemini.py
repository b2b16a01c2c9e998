"""Gemini requests and answers; tests/dialects reads the same with the package google-genai."""

import itertools
import json

import pytest

from nemo_gym.convert import sse
from nemo_gym.convert.gemini_answer import (
    GeminiArrayEncoder,
    GeminiStreamEncoder,
    gemini_from_chunks,
    gemini_from_response,
)
from nemo_gym.convert.gemini_request import accepted_gemini_request, json_schema, wants_thoughts
from nemo_gym.errors import ConversionError

USER = {"role": "user", "parts": [{"text": "hi"}]}


def convert(body):
    numbers = itertools.count()
    return accepted_gemini_request(body, model="m", new_id=lambda prefix: f"{prefix}_{next(numbers)}")


def response(*output, **fields):
    return {"id": "r", "status": "completed", "output": list(output), "usage": None, **fields}


THOUGHT = {
    "type": "reasoning",
    "id": "rs",
    "summary": [{"type": "summary_text", "text": "hm"}],
    "encrypted_content": "é",
}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}


def test_the_parts_of_a_conversation_become_items():
    """The model must see what the client sent, in order."""
    call = {"functionCall": {"name": "f", "args": {"snake_key": 1}}}
    result = {"functionResponse": {"name": "f", "response": {"value": 2}}}
    contents = [USER, {"role": "model", "parts": [{"text": "so"}, call]}, {"role": "user", "parts": [result]}]

    params, dropped = convert({"contents": contents, "system_instruction": {"parts": [{"text": "Be brief."}]}})

    assert dropped == []
    assert params["instructions"] == "Be brief."
    question, answer, function_call, output = params["input"]
    assert question["content"] == [{"type": "input_text", "text": "hi"}]
    assert answer["content"][0]["text"] == "so"
    assert json.loads(function_call["arguments"]) == {"snake_key": 1}, "names of the user stay"
    assert output["call_id"] == function_call["call_id"]
    assert json.loads(output["output"]) == {"value": 2}


def test_thoughts_come_back_with_their_ciphertext():
    """A provider that encrypts its reasoning needs it again in the next request."""
    answer = gemini_from_response(response(THOUGHT), model="m", include_thoughts=True)

    params, _ = convert({"contents": [USER, answer["candidates"][0]["content"]]})

    item = params["input"][1]
    assert (item["encrypted_content"], item["summary"]) == ("é", THOUGHT["summary"])


def test_thoughts_are_shown_on_request_only():
    """A client that joins all texts would show the thoughts as the answer."""
    assert not wants_thoughts({})
    assert wants_thoughts({"generation_config": {"thinking_config": {"include_thoughts": True}}})

    answer = gemini_from_response(response(THOUGHT, CALL), model="m", include_thoughts=False)

    assert [list(part) for part in answer["candidates"][0]["content"]["parts"]] == [["functionCall"]]


@pytest.mark.parametrize(
    ("reason", "finish"), [(None, "STOP"), ("max_output_tokens", "MAX_TOKENS"), ("content_filter", "SAFETY")]
)
def test_the_end_of_an_answer_has_a_reason(reason, finish):
    """A client must know that an answer was cut off."""
    details = {"reason": reason} if reason else None

    answer = gemini_from_response(response(incomplete_details=details), model="m", include_thoughts=True)

    assert answer["candidates"][0]["finishReason"] == finish


def test_arguments_that_are_no_object_survive():
    """A model may write invalid JSON; the client sees it, and the model gets its own text back."""
    answer = gemini_from_response(response({**CALL, "arguments": "{oops"}), model="m", include_thoughts=True)

    params, _ = convert({"contents": [USER, answer["candidates"][0]["content"]]})

    assert params["input"][1]["arguments"] == "{oops"


def test_chunks_are_assembled_to_the_answer():
    """Captures store the whole answer of a stream."""
    message = {"type": "message", "id": "m", "content": [{"type": "output_text", "text": "yes", "annotations": []}]}
    whole = response({key: THOUGHT[key] for key in ("type", "id", "summary")}, message, CALL)
    chunks = json.loads(GeminiArrayEncoder("m", include_thoughts=True).finish(whole))

    assert len(chunks) > 3
    assert gemini_from_chunks(chunks) == gemini_from_response(whole, model="m", include_thoughts=True)
    with pytest.raises(ConversionError, match="stops before"):
        gemini_from_chunks(chunks[:-1])


def test_what_is_dropped_is_listed():
    """A dropped option must be visible in the log."""
    body = {
        "contents": [USER],
        "tools": [{"googleSearch": {}}],
        "safetySettings": [{"category": "x"}],
        "generationConfig": {"topK": 5, "speechConfig": {}, "thinkingConfig": {"thinkingBudget": 5}},
    }

    params, dropped = convert(body)

    assert params["top_k"] == 5
    assert dropped == [
        "safetySettings",
        "generationConfig.speechConfig",
        "generationConfig.thinkingConfig.thinkingBudget",
        "tools.googleSearch",
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"contents": "hi"}, "contents"),
        ({"contents": [{"role": "robot", "parts": []}]}, "robot"),
        ({"contents": [{"role": "user", "parts": [{"executableCode": {}}]}]}, "executableCode"),
        ({"contents": [{"role": "user", "parts": [{"functionResponse": {"name": "f"}}]}]}, "no function call"),
        ({"contents": [{"role": "user", "parts": [{"fileData": {"fileUri": "gs://x"}}]}]}, "gs://x"),
        ({"contents": [USER], "cachedContent": "x"}, "cachedContent"),
        ({"contents": [USER], "generationConfig": {"candidateCount": 2}}, "candidate"),
        (
            {
                "contents": [USER],
                "tools": [{"functionDeclarations": [{"name": "f"}]}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["g"]}},
            },
            "no tool is named 'g'",
        ),
        ({"contents": [{"role": "model", "parts": [{"thought": True, "thoughtSignature": "%"}]}]}, "signature"),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_its_place(body, words):
    """The user must know which field to change."""
    with pytest.raises(ConversionError, match=words):
        convert(body)


def test_schemas_become_json_schemas():
    """Engines and providers compile them; Gemini writes types in capitals and counts as texts."""
    schema = {
        "type": "OBJECT",
        "properties": {
            "snake_name": {"type": "STRING", "nullable": True, "maxLength": "5"},
            "list": {"type": "ARRAY", "items": {"anyOf": [{"type": "INTEGER"}, {"type": "BOOLEAN"}]}},
        },
        "propertyOrdering": ["list"],
    }

    assert json_schema(schema, "x") == {
        "type": "object",
        "properties": {
            "snake_name": {"type": ["string", "null"], "maxLength": 5},
            "list": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "boolean"}]}},
        },
    }


def test_line_separators_of_unicode_are_escaped_in_a_stream():
    """google-genai splits a stream with `splitlines`, which also splits at these characters."""
    stream = sse.encode({"text": "a\u2028b\u2029c\u0085d"})

    assert len(stream.decode().splitlines()) == 2
    assert list(sse.decode(stream)) == [{"text": "a\u2028b\u2029c\u0085d"}]


def test_a_gemini_stream_has_no_comments():
    """google-genai cannot parse them, and most answers take longer than the first one waits."""
    assert GeminiStreamEncoder("m", include_thoughts=False).keep_alive == b""
