"""The least a rollout can cost: the same two model calls by a bare loop, tool and verification inline.

`python -m perf.floor ROWS CONCURRENCY URL` prints CPU seconds and the count as JSON.
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
    """Model, tool, model, reward; the finished record as JSON."""
    params = {**row["responses_create_params"], "model": "mock"}
    asked, said = params["input"], []
    while True:
        params["input"] = [*asked, *said]
        async with session.post(url, data=orjson.dumps(params), headers=HEADERS) as answer:
            response = orjson.loads(await answer.read())
        said += response["output"]
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        if not calls:
            break
        for call in calls:
            city = orjson.loads(call["arguments"])["city"]
            text = orjson.dumps({"city": city, "weather_description": f"The weather in {city} is cold."}).decode()
            said.append({"type": "function_call_output", "call_id": call["call_id"], "output": text})
    response["output"] = said
    return orjson.dumps({**row, "response": response, "reward": 1.0})


async def main(rows: list[dict[str, Any]], at_once: int, url: str) -> None:
    waiting = iter(rows)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def worker() -> None:
            for row in waiting:
                await rollout(session, url, row)

        before = time.process_time()
        await asyncio.gather(*[worker() for _ in range(at_once)])
        spent = time.process_time() - before
    print(json.dumps({"count": len(rows), "cpu_s": spent}))


if __name__ == "__main__":
    lines = Path(sys.argv[1]).read_bytes().splitlines()
    uvloop.run(main([orjson.loads(line) for line in lines], int(sys.argv[2]), sys.argv[3]))
