"""Tools of the Messages API that have a type instead of a schema: those that the client runs, as functions.

A model behind another dialect gets a function with the name and the parameters that the client expects in calls. Tools
that run at Anthropic have no counterpart and are dropped.
"""

from nemo_gym.convert.json_access import Json, text_at

_TEXT: Json = {"type": "string"}
_RANGE: Json = {"type": "array", "items": {"type": "integer"}, "description": "first and last line, from 1"}
_EDITOR_FIELDS: Json = {
    "path": {"type": "string", "description": "absolute path of a file or folder"},
    "file_text": {"type": "string", "description": "content of the file to create"},
    "old_str": {"type": "string", "description": "text to replace; must occur once"},
    "new_str": {"type": "string", "description": "text to put in its place"},
    "insert_line": {"type": "integer", "description": "line after which insert_text is inserted"},
    "insert_text": _TEXT,
    "view_range": _RANGE,
}
_FIRST_EDITORS = ("text_editor_20241022", "text_editor_20250124")
"""Types of the text editor that can undo an edit and insert `new_str`."""


def _schema(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


def _commands(*names: str) -> Json:
    return {"type": "string", "enum": list(names)}


def function_of_typed_tool(tool: Json, path: str) -> Json | None:
    """Return the function that stands for a typed tool; None for a tool that runs at Anthropic or is unknown."""
    kind = text_at(tool, "type", path)
    family = kind.rstrip("0123456789").rstrip("_")
    if family == "bash":
        description = "Run a command in a persistent bash session; with restart, start a new session."
        schema = _schema({"command": _TEXT, "restart": {"type": "boolean"}})
    elif family == "text_editor":
        commands = ["view", "create", "str_replace", "insert"] + (["undo_edit"] if kind in _FIRST_EDITORS else [])
        description = "View, create and edit files."
        schema = _schema({"command": _commands(*commands), **_EDITOR_FIELDS}, "command", "path")
    elif family == "memory":
        names = {"old_path": _TEXT, "new_path": _TEXT}
        commands = ["view", "create", "str_replace", "insert", "delete", "rename"]
        description = "Keep notes as files below /memories."
        schema = _schema({"command": _commands(*commands), **_EDITOR_FIELDS, **names}, "command")
    elif family == "computer":
        size = f"{tool.get('display_width_px')}x{tool.get('display_height_px')}"
        description = f"Use mouse and keyboard of a computer with a display of {size} pixels; take screenshots."
        point: Json = {"type": "array", "items": {"type": "integer"}}
        options = {"coordinate": point, "start_coordinate": point, "text": _TEXT, "duration": {"type": "number"}}
        scroll = {"scroll_direction": _commands("up", "down", "left", "right"), "scroll_amount": {"type": "integer"}}
        schema = _schema({"action": _TEXT, **options, **scroll}, "action")
    else:
        return None
    name = text_at(tool, "name", path)
    return {"type": "function", "name": name, "description": description, "parameters": schema, "strict": False}
