"""A program with the command line of `vllm serve`, without a model."""

import argparse
import os
import subprocess
import sys

from aiohttp import web


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--hang", action="store_true")
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    if arguments.worker:
        worker = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        print("worker", worker.pid, flush=True)
    print("loading", arguments.model, os.environ.get("HF_HOME"), flush=True)
    if arguments.fail:
        sys.exit("CUDA out of memory")

    async def answer(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {os.environ['VLLM_API_KEY']}":
            return web.Response(status=401)
        body = await request.json()
        if body["messages"][-1]["content"] == "die":
            os._exit(9)
        text = f"{body['model']} {arguments.max_model_len}"
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        fixed = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"]}
        return web.json_response({**fixed, "choices": [choice]})

    async def healthy(_: web.Request) -> web.Response:
        return web.Response(status=503 if arguments.hang else 200)

    app = web.Application()
    app.router.add_get("/health", healthy)
    app.router.add_post("/v1/chat/completions", answer)
    web.run_app(app, host=arguments.host, port=arguments.port, print=None)


if __name__ == "__main__":
    main()
