"""Ask, then answer: a tool knows a digit, and the reward is for asking it and then saying that digit and no other."""

import re
from typing import ClassVar

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY
from nemo_gym.wire.responses import NeMoGymResponse

Digit = Field(ge=0, le=9)


class AskThenAnswerConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class SeedRequest(BaseSeedSessionRequest):
    digit: int = Digit


class AskRequest(BaseModel):
    """The tool has no arguments."""


class AskResponse(BaseModel):
    digit: int


class AskThenAnswerRunRequest(BaseRunRequest):
    digit: int = Digit


class AskThenAnswerVerifyRequest(AskThenAnswerRunRequest, BaseVerifyRequest):
    pass


class AskThenAnswerVerifyResponse(AskThenAnswerVerifyRequest, BaseVerifyResponse):
    asked: bool
    """The model called the tool."""
    extracted_answer: int | None
    """The only number in the last message; None if it has none, several, or one of more than one digit."""


def only_digit(text: str) -> int | None:
    """Return the digit in `text`; None if it has no number or different ones, so that a list of guesses fails."""
    numbers = set(re.findall(r"-?[0-9]+", text))
    number = numbers.pop() if len(numbers) == 1 else ""
    return int(number) if len(number) == 1 else None


def last_message(response: NeMoGymResponse) -> str:
    """Return the text of the last item if it is a message: what was said before a tool call is no answer."""
    last = response.output[-1] if response.output else None
    if last is None or last.type != "message":
        return ""
    return "".join(getattr(part, "text", "") for part in last.content)


class AskThenAnswerServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: AskThenAnswerConfig
    _digits: dict[str, int] = PrivateAttr(default_factory=dict)
    """The digit of each open session."""

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/ask")(self.ask)
        return app

    async def seed_session(self, request: Request, body: SeedRequest) -> BaseSeedSessionResponse:
        self._digits[request.session[SESSION_ID_KEY]] = body.digit
        return BaseSeedSessionResponse()

    async def ask(self, request: Request, body: AskRequest) -> AskResponse:  # noqa: ARG002
        """Return the digit of this session."""
        digit = self._digits.get(request.session[SESSION_ID_KEY])
        if digit is None:
            raise HTTPException(409, "this session has no digit: it was not seeded, or its verdict was already given")
        return AskResponse(digit=digit)

    async def verify(self, request: Request, body: AskThenAnswerVerifyRequest) -> AskThenAnswerVerifyResponse:
        """Give 1.0 if the model asked and its last message has the digit and no other number, else 0.0.

        An answer without a call is a guess, and earns nothing: so no policy but the intended one has any reward. The
        verdict ends the session.
        """
        self._digits.pop(request.session.get(SESSION_ID_KEY, ""), None)
        answer = only_digit(last_message(body.response))
        has_asked = any(item.type == "function_call" and item.name == "ask" for item in body.response.output)
        verdict = {"asked": has_asked, "extracted_answer": answer, "reward": float(has_asked and answer == body.digit)}
        return AskThenAnswerVerifyResponse(**(dict(body) | verdict))  # a stored rollout has an old verdict

    async def close(self, session_id: str) -> None:
        """Forget the digit also of a rollout that ended without a verdict."""
        self._digits.pop(session_id, None)


if __name__ == "__main__":
    AskThenAnswerServer.run_webserver()
