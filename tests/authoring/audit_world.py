"""A small server folder to audit, with optional faults."""

import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

APP = '''
"""Echo: the last word is compared with the expected one."""

from fastapi import FastAPI, Request
from pydantic import PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.keys import SESSION_ID_KEY


class WordsConfig(BaseResourcesServerConfig):
    lenient: bool = False


class WordsRunRequest(BaseRunRequest):
    expected_word: str
    calls_wanted: int = 0


class WordsVerifyRequest(WordsRunRequest, BaseVerifyRequest):
    pass


class WordsServer(SimpleResourcesServer):
    config: WordsConfig
    _calls: dict = PrivateAttr(default_factory=dict)
    _verdicts: int = PrivateAttr(default=0)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/ring")(self.ring)
        return app

    async def ring(self, request: Request) -> dict[str, int]:
        session = request.session[SESSION_ID_KEY]
        self._calls[session] = self._calls.get(session, 0) + 1
        return {"rung": self._calls[session]}

    async def verify(self, request: Request, body: WordsVerifyRequest) -> BaseVerifyResponse:
        words = body.response.output_text.split()
        right = bool(words) and words[-1].strip(".!*").lower() == body.expected_word
        rung = self._calls.get(request.session[SESSION_ID_KEY], 0)
        reward = float((right or self.config.lenient) and rung >= body.calls_wanted)
        {fault}
        return BaseVerifyResponse(**body.model_dump(), reward=reward)
'''

AUDIT = '''
"""Replies about a word."""

FORMS = ("{}", "{}.", "{}!", "**{}**", "It is {}", "so: {}", "\\n{}\\n", "<think>no</think> {}", "1 {}", "2 {}", "3 {}")


def oracle(row):
    return f"The word is {row['expected_word']}."


def odd_forms(row):
    forms = [form.format(row["expected_word"]) for form in FORMS]
    return forms + [form.upper() for form in forms]


def wrong(row):
    return [row["expected_word"] + "s", "un" + row["expected_word"]]


def cheats(row):
    return [("both", f"{row['expected_word']} or not")]
'''

GENERATE = '''
"""Rows of words."""


def rows(count, *, seed):
    words = [f"w{seed}x{number}" for number in range(count)]
    if count > 50:
        raise SystemExit(f"there are only 50 words; asked for {count}")
    params = {"input": [{"role": "user", "content": "Which word? Say it."}]}
    return [{"responses_create_params": params, "expected_word": word} for word in words]
'''


def write_folder(
    root: Path, *, name: str = "words", fault: str = "", audit: str = AUDIT, app: str = APP, settings: str = ""
) -> Path:
    """Write a folder `resources_servers/<name>`; `fault` is a line in its verifier."""
    folder = root / "resources_servers" / name
    (folder / "configs").mkdir(parents=True)
    (root / "resources_servers" / "__init__.py").touch()
    (folder / "__init__.py").touch()
    (folder / "app.py").write_text(textwrap.dedent(app).replace("{fault}", fault))
    (folder / "audit.py").write_text(audit)
    (folder / "generate.py").write_text(GENERATE)
    (folder / "README.md").write_text("# Words\n\n## Proof\n\nSee tests.\n")
    block = f"words:\n  resources_servers:\n    {name}:\n      entrypoint: app.py\n      domain: other\n{settings}"
    (folder / "configs" / f"{name}.yaml").write_text(block)
    return folder


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A root to write folders in, importable while the test runs."""
    loaded = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "resources_servers"}
    for name in loaded:
        monkeypatch.delitem(sys.modules, name)
    package = ModuleType("resources_servers")
    package.__path__ = [str(tmp_path / "resources_servers")]
    monkeypatch.setitem(sys.modules, "resources_servers", package)
    return tmp_path
