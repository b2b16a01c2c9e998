"""A counter per session: two tools change and read it, the verdict compares it with the expected count."""

from typing import Any, ClassVar

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, PrivateAttr

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


class CounterConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNSUPPORTED  # the verdict removes the counter


class CounterSeedRequest(BaseSeedSessionRequest):
    initial_count: int = 0


class IncrementCounterRequest(BaseModel):
    count: int


class IncrementCounterResponse(BaseModel):
    success: bool


class GetCounterValueResponse(BaseModel):
    count: int


class CounterRunRequest(BaseRunRequest):
    initial_count: int = 0
    expected_count: int


class CounterVerifyRequest(CounterRunRequest, BaseVerifyRequest):
    pass


class CounterVerifyResponse(CounterVerifyRequest, BaseVerifyResponse):
    final_count: int


class CounterServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: CounterConfig
    _counts: dict[str, int] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/increment_counter")(self.increment_counter)
        app.post("/get_counter_value")(self.get_counter_value)
        return app

    async def seed_session(self, request: Request, body: CounterSeedRequest) -> BaseSeedSessionResponse:
        self._counts[request.session[SESSION_ID_KEY]] = body.initial_count
        return BaseSeedSessionResponse()

    def _count(self, request: Request) -> int:
        return self._counts.get(request.session[SESSION_ID_KEY], 0)

    async def increment_counter(self, request: Request, body: IncrementCounterRequest) -> IncrementCounterResponse:
        """Add a number to the counter."""
        self._counts[request.session[SESSION_ID_KEY]] = self._count(request) + body.count
        return IncrementCounterResponse(success=True)

    async def get_counter_value(self, request: Request, body: dict[str, Any]) -> GetCounterValueResponse:  # noqa: ARG002
        """Read the counter."""
        return GetCounterValueResponse(count=self._count(request))

    async def verify(self, request: Request, body: CounterVerifyRequest) -> CounterVerifyResponse:
        """Give the full reward if the counter has the expected value, and end the session.

        A session without a counter was lost or has ended; its zero would be no mistake of the model.
        """
        final = self._counts.pop(request.session[SESSION_ID_KEY], None)
        if final is None:
            raise HTTPException(409, "this session has no counter: it was not seeded, or its verdict was already given")
        return CounterVerifyResponse(**dict(body), final_count=final, reward=float(final == body.expected_count))


# The names of these classes in NeMo Gym, for folders that import or subclass them.
StatefulCounterResourcesServer = CounterServer
StatefulCounterResourcesServerConfig = CounterConfig


if __name__ == "__main__":
    CounterServer.run_webserver()
