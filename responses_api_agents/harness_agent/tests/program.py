"""A small coding agent for tests, run in the box: `program.py MODE TASK`.

It speaks Chat Completions at OPENAI_BASE_URL and runs what the model asks for. MODE makes it misbehave.
"""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

BASE = os.environ["OPENAI_BASE_URL"]
TOOL = {
    "type": "function",
    "function": {"name": "bash", "parameters": {"type": "object", "properties": {"command": {}}}},
}


def post(path, body):
    """Return the status and the text of an answer."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{BASE}{path}", data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def solve(task):
    """Follow the model until it calls no tool; return its last text, or the error of a call."""
    messages = [{"role": "user", "content": task}]
    while True:
        status, text = post("/chat/completions", {"model": "m", "messages": messages, "tools": [TOOL]})
        if status != 200:
            return f"status {status}: {text}"
        message = json.loads(text)["choices"][0]["message"]
        messages.append({key: value for key, value in message.items() if value})
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            command = json.loads(call["function"]["arguments"])["command"]
            result = subprocess.run(command, shell=True, capture_output=True, text=True)
            output = result.stdout + result.stderr
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": output})


mode, task = sys.argv[1:3]
if mode == "no calls":
    sys.exit("there is no model")
if mode == "title first":
    title = {"model": "m", "messages": [{"role": "user", "content": f"A title for: {task}"}]}
    post("/chat/completions", title)
if mode == "hang":
    post("/chat/completions", {"model": "m", "messages": [{"role": "user", "content": task}], "tools": [TOOL]})
    subprocess.Popen(["sh", "-c", "trap '' TERM; while true; do sleep 1; done # " + os.environ["MARK"]])
    time.sleep(3600)
if mode == "loud":
    post("/chat/completions", {"model": "m", "messages": [{"role": "user", "content": task}], "tools": [TOOL]})
    while True:
        print("x" * 10_000)
print(json.dumps({"result": {"text": solve(task)}}))
if mode == "last words":
    sys.exit("PermissionError: [Errno 13] Permission denied: '/etc/x'")
if mode == "odd files":
    os.symlink("/usr/bin/python3", "python")
    os.mkfifo("pipe")
    os.mkfifo(f"{os.environ['HOME']}/pipe")
    os.makedirs("node_modules/.bin")
    os.symlink("/etc/passwd", "node_modules/.bin/x")
    os.mkdir("hidden")
    for name in ("hidden/file", b"caf\xe9"):
        with open(name, "w") as file:
            file.write("x")
    os.chmod("hidden", 0)
if mode == "remove":
    os.chdir("/")
    shutil.rmtree("/work/workspace")
    os.symlink("/usr", "/work/workspace")
if mode == "large":
    with open("large", "wb") as file:
        file.truncate(1 << 20)
sys.exit(3 if mode == "exit 3" else 0)
