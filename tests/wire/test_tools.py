"""Tools and tool choice in a request."""

import pytest
from pydantic import ValidationError

from nemo_gym.openai_utils import NeMoGymResponseCreateParamsNonStreaming as Request

TOOLS = [
    {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True, "description": "d"},
    {"type": "function", "name": "f"},
    {"type": "function", "name": "f", "async": True},
    {"type": "custom", "name": "c", "format": {"type": "text"}},
    {"type": "file_search", "vector_store_ids": ["v"], "max_num_results": 3},
    {"type": "web_search", "filters": {"allowed_domains": ["x.org"]}},
    {"type": "web_search_2025_08_26"},
    {"type": "web_search_preview", "search_context_size": "low"},
    {"type": "computer_use_preview", "display_height": 1, "display_width": 1, "environment": "linux"},
    {"type": "mcp", "server_label": "s", "server_url": "https://x", "require_approval": "never"},
    {"type": "code_interpreter", "container": {"type": "auto"}},
    {"type": "image_generation", "quality": "low"},
    {"type": "local_shell"},
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "namespace", "name": "n", "description": "d", "tools": []},
    {"type": "tool_search"},
]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool["type"])
def test_every_tool_of_the_api_passes_unchanged(tool):
    """Tools are dictionaries in a request and reach the model as the row wrote them."""
    request = Request(input="hi", tools=[tool])

    assert request.tools == [tool]
    assert request.model_dump(exclude_unset=True)["tools"] == [tool]


@pytest.mark.parametrize(
    ("tool", "named"),
    [
        ({"type": "telepathy"}, "telepathy"),
        ({"name": "f"}, "tools.0"),
        ({"type": "function"}, "name"),
        ({"type": "function", "name": "f", "paramaters": {}}, "paramaters"),
        ({"type": "function", "name": "f", "parameters": "none"}, "parameters"),
        ({"type": "mcp"}, "server_label"),
        ("f", "tools.0"),
    ],
)
def test_a_tool_that_cannot_work_is_refused_by_name(tool, named):
    """A tool silently lost shows up much later as a model that never calls it."""
    with pytest.raises(ValidationError, match=named):
        Request(input="hi", tools=[tool])


@pytest.mark.parametrize(
    "choice",
    [
        "none",
        "auto",
        "required",
        {"type": "function", "name": "f"},
        {"type": "custom", "name": "c"},
        {"type": "mcp", "server_label": "s"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
        {"type": "file_search"},
    ],
)
def test_every_tool_choice_of_the_api_passes_unchanged(choice):
    """The choice decides whether a tool is called at all."""
    assert Request(input="hi", tool_choice=choice).tool_choice == choice


@pytest.mark.parametrize("choice", ["sometimes", {"type": "function"}, {"type": "x"}, {}, None, 3])
def test_a_wrong_tool_choice_is_one_error(choice):
    """One mistake, one message."""
    with pytest.raises(ValidationError) as caught:
        Request(input="hi", tool_choice=choice)

    assert len(caught.value.errors()) == 1


def test_text_reasoning_and_prompt_are_dictionaries():
    """Servers read `body.reasoning["effort"]`, as in the API's own request type."""
    options = {
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}, "verbosity": "low"},
        "reasoning": {"effort": "high", "summary": "auto"},
        "prompt": {"id": "p", "variables": {"x": "y"}},
    }

    request = Request(input="hi", **options)

    assert {name: getattr(request, name) for name in options} == options
