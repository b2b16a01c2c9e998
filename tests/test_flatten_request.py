"""Streaming requests of coding agents, made plain."""

from typing import Any

import pytest

from nemo_gym.convert.flattened_tools import flatten_call, split_call
from nemo_gym.errors import ConversionError
from nemo_gym.responses_streaming import flatten_request, namespaced_names, restore_namespace_tool_calls


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": {}}


def test_tools_of_a_namespace_get_flat_names_and_so_do_their_calls() -> None:
    """A model that knows only flat names must find its earlier calls under the same ones."""
    body = {
        "stream": True,
        "tools": [tool("a"), {"type": "namespace", "name": "ns", "tools": [tool("b"), {"type": "odd"}]}],
        "input": [{"type": "function_call", "name": "b", "namespace": "ns", "call_id": "c", "arguments": "{}"}],
    }

    request, dropped = flatten_request(body)

    assert request == {
        "tools": [tool("a"), tool("ns__b")],
        "input": [{"type": "function_call", "name": "ns__b", "call_id": "c", "arguments": "{}"}],
    }
    assert dropped == ["tools[1].tools[1]: has no name"]


def test_tools_inside_the_input_join_the_tool_list() -> None:
    """Model servers read only the list; the model would not know the other tools."""
    body = {"tools": [tool("a")], "input": [{"type": "additional_tools", "tools": [tool("b")]}, {"role": "user"}]}

    request, _ = flatten_request(body)

    assert (request["tools"], request["input"]) == ([tool("a"), tool("b")], [{"role": "user"}])


@pytest.mark.parametrize("choice", [{"name": "b", "namespace": "ns"}, {"name": "b"}])
def test_a_choice_of_a_tool_in_a_namespace_has_its_flat_name(choice: dict[str, str]) -> None:
    """A choice of a name that no tool has is refused by the endpoint, or no tool is called."""
    function = {"type": "function", **choice}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [function, {"type": "function", "name": "a"}]}
    tools = [tool("a"), {"type": "namespace", "name": "ns", "tools": [tool("b")]}]

    one, _ = flatten_request({"input": "hi", "tools": tools, "tool_choice": function})
    several, _ = flatten_request({"input": "hi", "tools": tools, "tool_choice": allowed})

    assert one["tool_choice"] == {"type": "function", "name": "ns__b"}
    assert [each["name"] for each in several["tool_choice"]["tools"]] == ["ns__b", "a"]


def test_the_namespaces_of_flat_names_are_known() -> None:
    """The client finds the tool of a call by its namespace; the flat name is ours."""
    namespace = {"type": "namespace", "name": "ns", "tools": [tool("b")]}
    inside = {"type": "additional_tools", "tools": [{"type": "namespace", "name": "m", "tools": [tool("c")]}]}
    body = {"tools": [tool("a__x"), namespace], "input": [inside]}

    names = namespaced_names(body)

    assert names == {"ns__b": ("ns", "b"), "m__c": ("m", "c")}
    call = {"type": "function_call", "name": "ns__b", "arguments": "{}"}
    assert split_call(call, names) == {**call, "name": "b", "namespace": "ns"}
    assert split_call({**call, "name": "a__x"}, names)["name"] == "a__x"
    assert flatten_call(split_call(call, names)) == call


def test_the_request_of_the_caller_is_not_changed() -> None:
    """The caller still needs `stream` to know how to answer."""
    body = {"stream": True, "tools": [{"type": "namespace", "name": "n", "tools": [tool("b")]}], "input": []}

    flatten_request(body)

    assert body["stream"] is True
    assert body["tools"] == [{"type": "namespace", "name": "n", "tools": [tool("b")]}]


def test_a_body_that_is_not_an_object_is_an_error() -> None:
    """The client gets a message about its request instead of a server error."""
    with pytest.raises(ConversionError, match="request: expected an object"):
        flatten_request([])


def test_calls_of_flattened_tools_get_their_namespaces_back() -> None:
    """A client knows its tools by namespace and name only."""
    inner = {"type": "function", "name": "search", "parameters": {}}
    tools = [{"type": "namespace", "name": "files", "tools": [inner]}, {**inner, "name": "other"}]
    calls = [{"type": "function_call", "name": name, "call_id": "c"} for name in ("files__search", "other", "files__x")]

    output = restore_namespace_tool_calls({"id": "r", "output": calls}, tools)["output"]

    assert [(call.get("namespace"), call["name"]) for call in output] == [
        ("files", "search"),
        (None, "other"),
        (None, "files__x"),
    ]
