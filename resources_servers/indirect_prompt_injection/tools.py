"""All tools by name: list those of a world, define them for a model, carry out a call."""

import re
from typing import Any

from pydantic import ValidationError

from resources_servers.indirect_prompt_injection import families
from resources_servers.indirect_prompt_injection.tool import Tool, ToolError
from resources_servers.indirect_prompt_injection.world import World


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


TOOLS: dict[str, type[Tool]] = {
    _snake(name): tool
    for name, tool in vars(families).items()
    if isinstance(tool, type) and issubclass(tool, Tool) and tool is not Tool
}


def tools_of(world: World) -> list[str]:
    """Return the names of the tools a world has."""
    return [name for name, tool in TOOLS.items() if getattr(world, tool.TABLE) is not None]


def carry_out(world: World, name: str, arguments: Any) -> Any:
    """Carry out a call in the world and return the tool's answer.

    Raises:
        ToolError: the world does not have the tool, its arguments do not fit, or the call fails.
    """
    if name not in tools_of(world):
        raise ToolError(f"there is no tool {name}")
    try:
        call = TOOLS[name].model_validate(arguments)
    except ValidationError as error:
        raise ToolError("; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])) from None
    return call.run(world)


def definitions(world: World) -> list[dict[str, Any]]:
    """Return the tools of a world as definitions for a model."""
    tools = []
    for name in tools_of(world):
        schema = TOOLS[name].model_json_schema()
        properties = {key: _without_title(value) for key, value in schema.get("properties", {}).items()}
        parameters = {"type": "object", "properties": properties, "required": schema.get("required", [])}
        description = (TOOLS[name].__doc__ or "").strip()
        tools.append(
            {
                "type": "function",
                "name": name,
                "description": description,
                "parameters": {**parameters, "additionalProperties": False},
                "strict": False,
            }
        )
    return tools


def _without_title(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "title"}
