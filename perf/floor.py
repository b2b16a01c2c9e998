"""Measure the minimum cost of a rollout: the same two model calls in a bare loop, tool and verification inline.

`python -m perf.floor ROWS CONCURRENCY URL FIRST LAST [wait]` runs all rows and prints, as JSON, the CPU and wall
seconds between the end of rollout number FIRST (0: the start) and that of number LAST, and the number of rollouts
between them. With `wait` it prints `ready` first and starts when it reads a line.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import uvloop

HEADERS = {"content-type": "application/json", "authorization": "Bearer x"}


async def rollout(session: aiohttp.ClientSession, url: str, row: dict[str, Any]) -> bytes:
    """Call model, tool and model; return the scored record as JSON."""
    params = {**row["responses_create_params"], "model": "mock"}
    prompt: list[Any] = params["input"]
    output: list[Any] = []
    while True:
        params["input"] = [*prompt, *output]
        async with session.post(url, data=orjson.dumps(params), headers=HEADERS) as answer:
            response = orjson.loads(await answer.read())
        output += response["output"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if not calls:
            break
        for call in calls:
            city = orjson.loads(call["arguments"])["city"]
            text = orjson.dumps({"city": city, "weather_description": f"The weather in {city} is cold."}).decode()
            output.append({"type": "function_call_output", "call_id": call["call_id"], "output": text})
    response["output"] = output
    return orjson.dumps({**row, "response": response, "reward": 1.0})


async def main(rows: list[dict[str, Any]], at_once: int, url: str, first: int, last: int) -> None:
    waiting = iter(rows)
    done = 0
    marks = {0: (time.process_time(), time.monotonic())}
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def worker() -> None:
            nonlocal done
            for row in waiting:
                await rollout(session, url, row)
                done += 1
                if done in (first, last):
                    marks[done] = (time.process_time(), time.monotonic())

        await asyncio.gather(*[worker() for _ in range(at_once)])
    (cpu_before, before), (cpu_after, after) = marks[first], marks[last]
    print(json.dumps({"count": last - first, "cpu_s": cpu_after - cpu_before, "wall_s": after - before}))


if __name__ == "__main__":
    lines = [orjson.loads(line) for line in Path(sys.argv[1]).read_bytes().splitlines()]
    if sys.argv[6:] == ["wait"]:
        print("ready", flush=True)
        sys.stdin.readline()
    uvloop.run(main(lines, int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:6])))
