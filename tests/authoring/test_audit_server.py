"""Servers with a judge are audited with a scripted judge and with failing judges."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nemo_gym.authoring.audit import run_audit
from nemo_gym.authoring.audit_result import AuditResult
from nemo_gym.authoring.audit_server import folder_settings, model_refs, scripted_judges
from nemo_gym.errors import ConfigError
from nemo_gym.judge import JudgeError, call_judge
from nemo_gym.openai_utils import NeMoGymResponse
from tests.authoring.audit_world import AUDIT, tree, write_folder

__all__ = ["tree"]

APP = '''
"""A judge says whether a word is right."""

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import JudgeError, call_judge
from nemo_gym.openai_utils import NeMoGymResponse


class JudgedConfig(BaseResourcesServerConfig):
    judge_model_server: ModelServerRef
    sloppy: bool = False


class JudgedVerifyRequest(BaseVerifyRequest):
    expected_word: str


class JudgedServer(SimpleResourcesServer):
    config: JudgedConfig

    async def verify(self, body: JudgedVerifyRequest) -> BaseVerifyResponse:
        said = body.response.output_text
        prompt = f"expected: {body.expected_word}\\nsaid: {said}"
        try:
            answer = await call_judge(
                self.server_client,
                server_name=self.config.judge_model_server.name,
                url_path="/v1/responses",
                json={"input": prompt},
                response_model=NeMoGymResponse,
            )
        except JudgeError:
            if not self.config.sloppy:
                raise
            return BaseVerifyResponse(**body.model_dump(), reward=0.0)
        verdict = answer.output_text.strip()
        if verdict not in ("same", "different"):
            raise JudgeError("no verdict")
        return BaseVerifyResponse(**body.model_dump(), reward=float(verdict == "same"))
'''
JUDGE = """
def judge(prompt):
    first, second = prompt.split("\\nsaid: ", 1)
    words = second.split()
    word = words[-1].strip(".!*").lower() if words else ""
    return "same" if first.removeprefix("expected: ") == word else "different"
"""
REF = "      judge_model_server: {type: responses_api_models, name: judge_model}\n"


@pytest.fixture(autouse=True)
def _unload_modules(tree: Path) -> Iterator[None]:
    yield
    for name in [name for name in sys.modules if name.startswith("resources_servers.words")]:
        del sys.modules[name]


def audit(folder: Path) -> AuditResult:
    return asyncio.run(run_audit(folder, rows=2))


def test_a_server_with_a_judge_is_clean_when_a_failing_judge_is_a_failure(tree: Path) -> None:
    """More than a hundred injections are tried on the way."""
    result = audit(write_folder(tree, app=APP, audit=AUDIT + JUDGE, settings=REF))

    assert result.findings == []
    assert result.checks["judge"] == 3
    assert result.checks["cheat"] > 2 * 3 * 50


def test_a_failing_judge_that_becomes_a_zero_is_reported(tree: Path) -> None:
    """An outage must not look like a wrong answer."""
    result = audit(write_folder(tree, app=APP, audit=AUDIT + JUDGE, settings=f"{REF}      sloppy: true\n"))

    assert [(finding.check, finding.case) for finding in result.findings] == [
        ("judge", "a judge that cannot be reached")
    ]


def test_the_row_whose_reply_reached_the_failing_judge_is_reported(tree: Path) -> None:
    """The author repeats the finding with that row; the first row may never reach the judge."""
    app = APP.replace(
        "        prompt = f",
        "        type(self).first = getattr(type(self), 'first', body.expected_word)\n"
        "        if body.expected_word == type(self).first:\n"
        "            return BaseVerifyResponse(**body.model_dump(), reward=float(said == body.expected_word))\n"
        "        prompt = f",
    )  # fmt: skip
    result = audit(write_folder(tree, app=app, audit=AUDIT + JUDGE, settings=f"{REF}      sloppy: true\n"))

    assert [finding.row for finding in result.findings if finding.check == "judge"] == [1]


def test_a_server_that_trusts_the_candidate_is_reported(tree: Path) -> None:
    """The candidate can write any verdict that is read from the whole conversation."""
    app = APP.replace('verdict == "same"', '"same" in (verdict, *said.lower().split())')
    result = audit(write_folder(tree, app=app, audit=AUDIT + JUDGE, settings=REF))

    assert result.as_dict()["cheats_paid"] > 0


def test_an_exception_in_the_judge_of_audit_py_is_reported(tree: Path) -> None:
    """The folder's own mistake must not look like the server's."""
    result = audit(
        write_folder(tree, app=APP, audit=AUDIT + "def judge(prompt):\n    return {}[prompt[:3]]\n", settings=REF)
    )

    assert ("judge() of audit.py", "KeyError: 'exp'") in [(finding.case, finding.actual) for finding in result.findings]


def test_a_judge_that_is_never_called_is_a_finding(tree: Path) -> None:
    """Its failures would not be tested."""
    result = audit(
        write_folder(tree, audit=AUDIT + JUDGE, app=APP.replace("answer = await", "answer = 1 or await"), settings=REF)
    )

    assert "no reply causes one" in {finding.actual for finding in result.findings if finding.check == "judge"}


def test_scripted_judges_answer_by_name_and_are_unmounted_afterwards() -> None:
    """Nothing of an audit stays behind in the process."""

    async def call_both() -> str:
        with scripted_judges(["one"], "here.test") as (client, judges):
            judges[0].set_answer(str.upper)
            answer = await call_judge(
                client,
                server_name="one",
                url_path="/v1/responses",
                json={"input": "hm"},
                response_model=NeMoGymResponse,
            )
            text = answer.output_text
        with pytest.raises(JudgeError):
            await call_judge(
                client,
                server_name="two",
                url_path="/v1/responses",
                json={"input": "hm"},
                response_model=NeMoGymResponse,
            )
        return text

    assert asyncio.run(call_both()) == "HM"


def test_settings_come_from_the_configuration_of_the_folder(tmp_path: Path) -> None:
    """A server is audited as it is shipped."""
    folder = write_folder(tmp_path, settings=f"{REF}      nested: {{deep: {{type: responses_api_models, name: b}}}}\n")
    settings = folder_settings(folder)

    assert settings["domain"] == "other"
    assert [ref["name"] for ref in model_refs(settings)] == ["judge_model", "b"]

    (folder / "configs" / "words.yaml").write_text("w:\n  resources_servers:\n    words:\n      key: ${nowhere}\n")
    with pytest.raises(ConfigError, match="nowhere"):
        folder_settings(folder)
