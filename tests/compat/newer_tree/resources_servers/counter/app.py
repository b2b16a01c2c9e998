from asyncio import Semaphore
from typing import Any, ClassVar

from fastapi import FastAPI, HTTPException, Request
from pydantic import Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ResourcesCloseSessionRequest,
    ResourcesCloseSessionResponse,
    ResourcesSeedSessionRequest,
    ResourcesSeedSessionResponse,
    SimpleResourcesServer,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.judge import call_judge
from nemo_gym.openai_utils import NeMoGymEasyInputMessage, NeMoGymResponse, NeMoGymResponseCreateParamsNonStreaming
from nemo_gym.server_utils import SESSION_ID_KEY


class CounterConfig(BaseResourcesServerConfig):
    judge_model_server: ModelServerRef | None = None
    judge_responses_create_params: NeMoGymResponseCreateParamsNonStreaming | None = None
    concurrency: int = 2


class CounterVerifyRequest(BaseVerifyRequest):
    expected_count: int


class CounterVerifyResponse(BaseVerifyResponse):
    count: int
    judged: str | None = None


class CounterResourcesServer(SimpleResourcesServer):
    ray_enabled = False
    STEP: ClassVar[int] = 1

    config: CounterConfig
    counts: dict[str, int] = Field(default_factory=dict)
    closed: set[str] = Field(default_factory=set)
    _semaphore: Semaphore | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self._semaphore = Semaphore(value=self.config.concurrency)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/increment")(self.increment)
        app.post("/{tool}")(self.unknown_tool)
        return app

    async def seed_session(
        self, request: Request, body: ResourcesSeedSessionRequest | BaseSeedSessionRequest
    ) -> ResourcesSeedSessionResponse | BaseSeedSessionResponse:
        if not isinstance(body, ResourcesSeedSessionRequest):
            self.counts[request.session[SESSION_ID_KEY]] = 0
            return BaseSeedSessionResponse()
        if body.resources_session_id in self.closed:
            raise HTTPException(409, "closed")
        self.counts.setdefault(body.resources_session_id, 0)
        request.session[SESSION_ID_KEY] = body.resources_session_id
        return ResourcesSeedSessionResponse(resources_session_id=body.resources_session_id)

    async def close_resources_session(self, body: ResourcesCloseSessionRequest) -> ResourcesCloseSessionResponse:
        self.counts.pop(body.resources_session_id, None)
        self.closed.add(body.resources_session_id)
        return ResourcesCloseSessionResponse(resources_session_id=body.resources_session_id)

    async def increment(self, body: dict[str, Any], request: Request):
        self.counts[request.session[SESSION_ID_KEY]] += body.get("by", self.STEP)
        return {"count": self.counts[request.session[SESSION_ID_KEY]]}

    async def unknown_tool(self, tool: str, request: Request):
        return {"error": f"no tool {tool}", "arguments": await request.json()}

    async def verify(self, request: Request, body: CounterVerifyRequest) -> CounterVerifyResponse:
        judged = None
        async with self._semaphore:
            if self.config.judge_model_server is not None:
                params = self.config.judge_responses_create_params.model_copy(deep=True)
                params.input = [NeMoGymEasyInputMessage(role="user", content=body.response.output_text)]
                answer = await call_judge(
                    self.server_client,
                    server_name=self.config.judge_model_server.name,
                    url_path="/v1/responses",
                    json=params,
                    response_model=NeMoGymResponse,
                )
                judged = answer.output[-1].content[-1].text
        count = self.counts[request.session[SESSION_ID_KEY]]
        reward = float(count == body.expected_count)
        return CounterVerifyResponse(**body.model_dump(), reward=reward, count=count, judged=judged)


if __name__ == "__main__":
    CounterResourcesServer.run_webserver()
