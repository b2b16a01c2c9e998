from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, Dict, List

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class TodoListConfig(BaseResourcesServerConfig):
    max_items: int = 10


class TodoSeedSessionRequest(BaseSeedSessionRequest):
    model_config = ConfigDict(extra="allow")


class TodoSeedSessionResponse(BaseSeedSessionResponse):
    items: List[str]


class AddRequest(BaseModel):
    title: str


class AnyArguments(BaseModel):
    model_config = ConfigDict(extra="allow")


class TodoRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")


class TodoVerifyRequest(TodoRunRequest, BaseVerifyRequest):
    pass


class TodoVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")


class TodoListServer(SimpleResourcesServer):
    config: TodoListConfig
    session_id_to_items: Dict[str, List[str]] = Field(default_factory=lambda: defaultdict(list))

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/add")(self.add)
        app.post("/{tool_name}")(self.route_to_python_function)
        return app

    async def seed_session(self, request: Request, body: TodoSeedSessionRequest) -> TodoSeedSessionResponse:
        metadata = (body.model_extra or {}).get("verifier_metadata", {})
        items = list(metadata.get("initial_items", []))
        self.session_id_to_items[request.session[SESSION_ID_KEY]] = items
        return TodoSeedSessionResponse(items=items)

    async def add(self, body: AddRequest, request: Request) -> Dict[str, Any]:
        items = self.session_id_to_items[request.session[SESSION_ID_KEY]]
        if len(items) >= self.config.max_items:
            raise HTTPException(status_code=400, detail="The list is full.")
        items.append(body.title)
        return {"items": items}

    async def route_to_python_function(self, tool_name: str, body: AnyArguments, request: Request) -> Dict[str, Any]:
        items = self.session_id_to_items[request.session[SESSION_ID_KEY]]
        arguments = body.model_dump()
        if tool_name == "remove":
            items.remove(arguments["title"])
        elif tool_name != "list":
            return {"error": f"Unknown tool {tool_name}"}
        return {"items": items}

    async def verify(self, request: Request, body: TodoVerifyRequest) -> TodoVerifyResponse:
        items = self.session_id_to_items[request.session[SESSION_ID_KEY]]
        expected = (body.model_extra or {})["verifier_metadata"]["expected_items"]
        tool_calls = [json.loads(o.arguments) for o in body.response.output if o.type == "function_call"]
        return TodoVerifyResponse(
            **body.model_dump(), reward=float(items == expected), final_items=items, num_calls=len(tool_calls)
        )


if __name__ == "__main__":
    TodoListServer.run_webserver()
