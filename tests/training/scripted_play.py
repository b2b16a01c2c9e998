"""The model of the session tests: it does what the user message says, a JSON object."""

import json

from responses_api_models.scripted_model.script import Scene


def play(scene: Scene) -> dict:
    """Call the tool first if the message says so; wait, fail or answer as it says."""
    message = next(item for item in scene.conversation if item.get("role") == "user")
    wish = json.loads(message["content"])
    if wish.get("tool") and scene.number == 0:
        return {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}
    if wish.get("fault"):
        return {"fault": {"kind": "status", "status": 400}}
    return {"text": str(wish.get("answer", 0)), "delay_seconds": wish.get("seconds", 0)}
