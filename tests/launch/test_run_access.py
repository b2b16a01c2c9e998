"""The processes of a run call each other with the run token, whichever way a server is hosted."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from omegaconf import DictConfig

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import ConfigError
from nemo_gym.launch.run import Run
from nemo_gym.serve.head import HeadServerUnreachable
from nemo_gym.serve.run_registry import registering
from nemo_gym.server_utils import ServerClient, get_response_json
from nemo_gym.transport import run_token
from tests.launch.test_run import config_for, url, write_folder

RELAY = """
    import os
    import aiohttp
    from fastapi import Request
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
    from nemo_gym.server_utils import get_server_url, request

    class Relay(SimpleResourcesServer):
        HOSTING = "{hosting}"
        config: BaseResourcesServerConfig

        def setup_webserver(self):
            app = super().setup_webserver()
            app.post("/headers")(self.headers)
            app.post("/ask")(self.ask)
            return app

        async def headers(self, request: Request) -> dict:
            return dict(request.headers)

        async def ask(self, body: dict) -> dict:
            by_name = await self.server_client.post(server_name=body["to"], url_path="/headers", json={{}})
            by_url = await request("POST", get_server_url(body["to"]) + "/headers", json={{}})
            async with aiohttp.ClientSession() as session:
                async with session.post(get_server_url(body["to"]) + "/headers", json={{}}) as answer:
                    foreign = answer.status
            seen = [await by_name.json(), await by_url.json()]
            return {{"statuses": [by_name.status, by_url.status, foreign], "seen": seen}}

        async def verify(self, body):
            raise NotImplementedError

    if __name__ == "__main__":
        Relay.run_webserver()
"""


async def get_status(client: aiohttp.ClientSession, address: str, **options: Any) -> int:
    """Return the status of an answer and give its connection back."""
    async with client.get(address, **options) as answer:
        return answer.status


@pytest.fixture
def strict_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DictConfig:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for hosting in ("cell", "process"):
        write_folder(tmp_path, f"in_{hosting}", RELAY.format(hosting=hosting))
    config = config_for(inner="in_cell", outer="in_process")
    config["server_access"] = "token"
    return config


async def test_servers_call_each_other_with_the_token_by_themselves(tmp_path: Path, strict_config: DictConfig) -> None:
    """Strict access must cost a folder author nothing; a client that does not know the run is refused."""
    async with Run(strict_config, [tmp_path], links=False) as run, aiohttp.ClientSession() as stranger:
        head = BaseServerConfig(host="127.0.0.1", port=run.config.head_server.port)
        client = ServerClient(head_server_config=head, global_config_dict=run.config)
        answers = [
            await get_response_json(await client.post(server_name=name, url_path="/ask", json={"to": other}))
            for name, other in (("inner", "outer"), ("outer", "inner"))
        ]
        refused = [
            await get_status(stranger, f"{address}/{path}")
            for address in (f"http://127.0.0.1:{head.port}", url(run, "inner"), url(run, "outer"))
            for path in ("", "global_config_dict_yaml", "openapi.json")
        ]
        token = run_token.token_for("127.0.0.1", head.port)
        header = {run_token.RUN_TOKEN_HEADER: token or ""}
        async with stranger.get(f"http://127.0.0.1:{head.port}/global_config_dict_yaml", headers=header) as answer:
            served = await answer.text()

    assert [answer["statuses"] for answer in answers] == [[200, 200, 401], [200, 200, 401]]
    assert refused == [401] * 9
    assert token and token not in json.dumps(answers) + served
    assert run_token.token_for("127.0.0.1", head.port) is None


async def test_another_process_of_the_user_finds_the_token_in_the_registry(
    tmp_path: Path, strict_config: DictConfig
) -> None:
    """`gym eval run --no-serve` and trainers connect to a run that they did not start."""
    async with Run(strict_config, [tmp_path], links=False) as run:
        with registering(run.config):
            run_token.forget([("127.0.0.1", run.config.head_server.port), *((i.host, i.port) for i in run.instances)])
            head = BaseServerConfig(host="127.0.0.1", port=run.config.head_server.port)
            client = await asyncio.to_thread(ServerClient.load_from_global_config, head)
            answer = await client.post(server_name="outer", url_path="/headers", json={})
            await answer.read()

    assert answer.status == 200


async def test_a_refused_client_learns_that_it_needs_the_token(tmp_path: Path, strict_config: DictConfig) -> None:
    """The run works; starting it again, as for an unreachable head server, would not help."""
    async with Run(strict_config, [tmp_path], links=False) as run:  # not registered
        run_token.forget([("127.0.0.1", run.config.head_server.port)])
        head = BaseServerConfig(host="127.0.0.1", port=run.config.head_server.port)
        with pytest.raises(HeadServerUnreachable, match="requires the token of its run\n  try: set NEMO_GYM_RUN_TOKEN"):
            await asyncio.to_thread(ServerClient.load_from_global_config, head)


LEAK = """
    import os, sys
    from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer

    class Leak(SimpleResourcesServer):
        HOSTING = "{hosting}"
        config: BaseResourcesServerConfig

        async def verify(self, body: dict):
            text = "environment: " + " ".join(map("=".join, os.environ.items()))
            print(text, flush=True)
            os.write(2, text.encode() + b"\\n")
            raise RuntimeError(text)

    if __name__ == "__main__":
        Leak.run_webserver()
"""


@pytest.mark.parametrize("hosting", ["cell", "process"])
async def test_secrets_of_the_run_are_masked_in_output_and_errors(tmp_path: Path, hosting: str) -> None:
    """A server that reports its environment must not write the token to logs and records, which are shared."""
    write_folder(tmp_path, "leak", LEAK.format(hosting=hosting))
    lines: list[str] = []
    config, logs = config_for(s="leak"), tmp_path / "logs"
    async with (
        Run(config, [tmp_path], log_dir=logs, watch=lambda _, line: lines.append(line)) as run,
        aiohttp.ClientSession(headers=run_token.headers_for("127.0.0.1", run.config.head_server.port)) as client,
        client.post(
            f"{url(run, 's')}/verify", json={"responses_create_params": {"input": []}, "response": {}}
        ) as answer,
    ):
        token = run_token.token_for("127.0.0.1", run.config.head_server.port)
        error = await answer.text()
    texts = [error, "\n".join(lines), *(file.read_text() for file in logs.iterdir())]

    assert token
    for text in texts:
        assert "NEMO_GYM_RUN_TOKEN=****" in text and "NEMO_GYM_SESSION_SECRET=****" in text, text
        assert token not in text


async def test_a_user_may_choose_the_token(
    tmp_path: Path, strict_config: DictConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients on other machines and in containers get it as a setting before the run exists."""
    monkeypatch.setenv("NEMO_GYM_RUN_TOKEN", "chosen-by-the-user-77")
    headers = {"Authorization": "Bearer chosen-by-the-user-77"}
    async with Run(strict_config, [tmp_path], links=False) as run, aiohttp.ClientSession(headers=headers) as client:
        statuses = [await get_status(client, url(run, name)) for name in ("inner", "outer")]

    assert statuses == [200, 200]


@pytest.mark.parametrize("token", ["short", "x" * 15, "with space in the middle", "line\nbreak-in-the-token", "ü" * 20])
def test_a_weak_or_unusable_token_is_refused(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """A guessable token is worse than none; the message must not repeat it."""
    monkeypatch.setenv("NEMO_GYM_RUN_TOKEN", token)

    with pytest.raises(ConfigError, match="NEMO_GYM_RUN_TOKEN") as caught:
        run_token.choose_token()

    assert token not in str(caught.value)


def test_every_run_has_another_token() -> None:
    """The token of one run opens no other."""
    assert "NEMO_GYM_RUN_TOKEN" not in os.environ
    assert run_token.choose_token() != run_token.choose_token()


def test_the_token_is_sent_to_its_address_only() -> None:
    """A model endpoint or another program on the machine must not receive it."""
    run_token.adopt([("127.0.0.1", 4001), (None, 4002), ("127.0.0.1", None)], "token-of-the-run-2")
    try:
        for_own = [run_token.headers_for(host, 4001) for host in ("localhost", "127.0.0.1", "0.0.0.0", "::1")]
        for_others = [run_token.headers_for(*address) for address in (("127.0.0.1", 4002), ("model.example", 4001))]
    finally:
        run_token.forget([("127.0.0.1", 4001), (None, 4002)])

    assert for_own == [{"x-nemo-gym-run-token": "token-of-the-run-2"}] * 4
    assert for_others == [{}, {}]
