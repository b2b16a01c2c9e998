"""A small MCP server for tests: `python mcp_server.py FOLDER`.

In FOLDER it writes its process ids, so that tests can check that they end.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TOOLS = [
    {
        "name": name,
        "description": f"{name} of the test server",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    for name in ("echo", "sleep", "flood", "fail", "crash", "picture", "count")
]
PIXEL = "iVBORw0KGgo="
_calls = 0


def call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a tool."""
    global _calls
    _calls += 1
    text = str(arguments.get("text"))
    if name == "sleep":
        time.sleep(3600)
    if name == "crash":
        sys.stderr.write("the disk is full\n")
        os._exit(3)
    if name == "flood":
        text = "x" * 200_000
    if name == "count":
        text = str(_calls)
    if name == "picture":
        return {"content": [{"type": "image", "mimeType": "image/png", "data": PIXEL}]}
    return {"content": [{"type": "text", "text": text}], "isError": name == "fail"}


def answer(message: dict[str, Any]) -> dict[str, Any] | None:
    """Return the answer to a message; None for a notification. Tools are listed in two pages."""
    params = message.get("params") or {}
    if "id" not in message:
        return None
    if message["method"] == "initialize":
        result: dict[str, Any] = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
    elif message["method"] == "tools/list":
        result = {"tools": TOOLS[3:]} if params.get("cursor") else {"tools": TOOLS[:3], "nextCursor": "more"}
    else:
        result = call(params["name"], params["arguments"])
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def serve_pipes(folder: Path) -> None:
    """Start a helper that ignores SIGTERM, as servers do, and answer lines."""
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(3600)"
    helper = subprocess.Popen([sys.executable, "-c", ignore], start_new_session=True, stdout=subprocess.PIPE)
    assert helper.stdout is not None
    helper.stdout.readline()
    (folder / f"{os.getpid()}.pids").write_text(f"{os.getpid()} {helper.pid}")
    sys.stdout.write("a line that is no message\n")
    for line in sys.stdin:
        if (reply := answer(json.loads(line))) is not None:
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    serve_pipes(Path(sys.argv[1]))
