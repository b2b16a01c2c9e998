"""Plain JSON endpoints are called directly, with the same answers as by FastAPI."""

from typing import Annotated, Any, ClassVar

import pytest
from fastapi import BackgroundTasks, Body, Depends, FastAPI, Form, HTTPException, Query, Request, Response
from fastapi.responses import PlainTextResponse
from fastapi.testclient import TestClient
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from nemo_gym.serve.app import create_app
from nemo_gym.serve.endpoints import BodyFields, EndpointRouter
from nemo_gym.wire.run_seed_verify import BaseRunRequest, BaseVerifyRequest


class In(BaseModel):
    a: int
    b: list[str] = []


class Out(BaseModel):
    total: int = Field(alias="sumOfAll")
    hidden: str = "shown"


class More(Out):
    more: int = 1


class Handlers:
    async def with_request(self, request: Request, body: In = Body()) -> dict[str, Any]:
        return {"path": request.url.path, "a": body.a}

    async def with_cookie(self, response: Response, body: In = Body()) -> Out:
        response.set_cookie("seen", "1")
        response.headers["x-extra"] = "2"
        response.status_code = 202
        return Out(sumOfAll=body.a)

    async def subclass(self, body: In) -> Out:
        return More(sumOfAll=body.a)

    async def from_dict(self, body: In) -> Out:
        return {"sumOfAll": body.a}  # type: ignore[return-value]

    async def wrong_answer(self, body: In) -> Out:
        return {"nothing": 1}  # type: ignore[return-value]

    async def no_model(self, body: dict[str, Any]):
        return body

    async def own_response(self, response: Response, body: In) -> Response:
        response.set_cookie("dropped", "1")
        return PlainTextResponse("own", status_code=201)

    async def refuses(self, body: In) -> None:
        raise HTTPException(409, {"why": "busy"})

    async def no_body(self) -> list[int]:
        return [1, 2]


HANDLERS = [name for name in vars(Handlers) if not name.startswith("_")]
BODIES = [{"a": 1, "b": ["x"]}, {"a": "x"}, {"b": []}, [], "text", {"a": 2.0}]


def both_ways() -> tuple[TestClient, TestClient]:
    apps: list[FastAPI] = []
    for _ in range(2):
        app = create_app()
        handlers = Handlers()
        for name in HANDLERS:
            app.post(f"/{name}")(getattr(handlers, name))
        apps.append(app)
    direct, general = apps
    general.router.middleware_stack = general.router.app
    return (
        TestClient(direct, raise_server_exceptions=False),
        TestClient(general, raise_server_exceptions=False),
    )


@pytest.mark.parametrize("name", HANDLERS)
@pytest.mark.parametrize("body", BODIES, ids=repr)
def test_the_same_answers_as_the_general_way(name, body):
    """Status, headers, cookies and body: all of it, for good and bad requests."""
    direct, general = (client.post(f"/{name}", json=body) for client in both_ways())

    assert direct.status_code == general.status_code
    assert direct.content == general.content
    assert sorted(direct.headers.multi_items()) == sorted(general.headers.multi_items())


def planned_paths(app: FastAPI) -> set[str]:
    router = app.router.middleware_stack
    assert isinstance(router, EndpointRouter)
    router._index_routes()
    return {path for _, path in router._plans}


def test_the_usual_endpoints_take_the_direct_way():
    """If this list shrinks, every hop of every rollout gets slower."""
    app = create_app()
    for name in HANDLERS:
        app.post(f"/{name}")(getattr(Handlers(), name))

    assert planned_paths(app) >= {f"/{name}" for name in HANDLERS} - {"/own_response"}


def test_what_needs_more_of_fastapi_does_not():  # noqa: C901 - a list of endpoints, not a decision
    """The fast path ignores these features; an endpoint that uses one would misbehave there."""
    app = create_app()

    async def dependency() -> int:
        return 1

    @app.post("/dep")
    async def dep(body: In, n: Annotated[int, Depends(dependency)]) -> int: ...

    @app.post("/query")
    async def query(body: In, n: Annotated[int, Query()] = 1) -> int: ...

    @app.post("/two")
    async def two(body: In, other: In) -> int: ...

    @app.post("/optional")
    async def optional(body: In | None = None) -> int: ...

    @app.post("/embedded")
    async def embedded_body(body: Annotated[In, Body(embed=True)]) -> int: ...

    @app.post("/tasks")
    async def tasks(body: In, tasks: BackgroundTasks) -> int: ...

    @app.post("/sync")
    def sync(body: In) -> int: ...

    @app.post("/plain", response_class=PlainTextResponse)
    async def plain_text(body: In) -> str: ...

    @app.post("/unset", response_model_exclude_unset=True)
    async def unset(body: In) -> Out: ...

    @app.delete("/empty", status_code=204)
    async def empty() -> None: ...

    @app.post("/{anything}")
    async def anything(anything: str) -> int: ...

    @app.post("/after")
    async def after(body: In) -> int: ...

    assert planned_paths(app) == set()


def test_a_form_takes_the_general_way():
    """The fast path reads JSON only and would refuse every form."""
    pytest.importorskip("python_multipart")
    app = create_app()

    @app.post("/form")
    async def form(a: Annotated[int, Form()]) -> int: ...

    assert planned_paths(app) == set()


def test_routes_that_come_or_change_later_are_seen():
    """Servers add their tools after `super().setup_webserver()`; MCP exposure replaces routes."""
    app = create_app()
    client = TestClient(app)

    @app.post("/one")
    async def one() -> int:
        return 1

    assert client.post("/one").json() == 1
    app.router.routes.pop()

    @app.post("/one")
    async def other() -> int:
        return 2

    assert client.post("/one").json() == 2
    assert client.get("/one").status_code == 405
    assert client.get("/openapi.json").json()["paths"].keys() == {"/one"}


class Inner(BaseModel):
    a: int


class Sub(Inner):
    b: int = 0


class SentModel(BaseModel):
    model_config = ConfigDict(extra="allow")
    FIELDS_ARE_VALIDATED: ClassVar[bool] = True

    inner: Inner
    other: Any = None


class DeclaredModel(BaseModel):
    inner: Inner
    pair: list[int] = []


def fields_of(model: Any) -> BodyFields | None:
    return BodyFields.of(FieldInfo.from_annotation(model))


def test_the_model_itself_arrives_and_the_rest_as_json_would_say_it() -> None:
    """A handler must not be able to notice that the call skipped JSON, except by its speed."""
    inner = Inner(a=1)
    sent = SentModel(inner=inner, pair=(1, 2), unknown="dropped")  # type: ignore[call-arg]

    fields = fields_of(DeclaredModel).extract(sent)  # type: ignore[union-attr]

    assert fields == {"inner": inner, "pair": [1, 2]}
    assert fields["inner"] is inner


def test_what_nobody_set_is_not_sent() -> None:
    """As over HTTP: `exclude_unset`."""

    class Open(DeclaredModel):
        model_config = ConfigDict(extra="allow")

    assert fields_of(Open).extract(SentModel(inner=Inner(a=1))).keys() == {"inner"}  # type: ignore[union-attr]


def test_a_subclass_is_written_out() -> None:
    """The receiver knows only the fields of the class it declares."""
    fields = fields_of(DeclaredModel).extract(SentModel(inner=Sub(a=1, b=2)))  # type: ignore[union-attr]

    assert fields == {"inner": {"a": 1}}


def test_a_sender_that_vouches_for_nothing_is_written_out() -> None:
    """It may have put unchecked values into its models."""

    class UncheckedModel(BaseModel):
        inner: Inner

    assert fields_of(DeclaredModel).extract(UncheckedModel(inner=Inner(a=1))) is None  # type: ignore[union-attr]


class Before(BaseModel):
    inner: Inner

    @model_validator(mode="before")
    @classmethod
    def look(cls, value: Any) -> Any:
        return value


class FieldBefore(BaseModel):
    inner: Inner

    @field_validator("inner", mode="before")
    @classmethod
    def look(cls, value: Any) -> Any:
        return value


class AliasedModel(BaseModel):
    inner: Inner = Field(alias="Inner")
    plain: Inner
    named: Inner | None = Field(default=None, validation_alias="Named")


class ManyAliases(BaseModel):
    inner: Inner = Field(validation_alias=AliasChoices("Inner", "INNER"))


class OwnInit(BaseModel):
    inner: Inner

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)


@pytest.mark.parametrize(
    "model", [Before, FieldBefore, ManyAliases, OwnInit, dict[str, Any], Annotated[DeclaredModel, "note"]]
)
def test_who_looks_at_its_input_itself_gets_plain_data(model: Any) -> None:
    """Code written for JSON must find JSON."""
    assert fields_of(model) is None


def test_a_field_with_a_look_of_its_own_gets_plain_data() -> None:
    """Validators of authors expect the data of a JSON body, not an object."""

    class Picky(BaseModel):
        inner: Annotated[Inner, BeforeValidator(lambda value: value)]

    assert fields_of(Picky).extract(SentModel(inner=Inner(a=1))) == {"inner": {"a": 1}}  # type: ignore[union-attr]


def test_a_check_afterwards_changes_nothing() -> None:
    """Such a validator is common and never sees the raw data, so it need not cost the fast path."""

    class After(DeclaredModel):
        @model_validator(mode="after")
        def check(self) -> "After":
            return self

    assert fields_of(After) is not None


class SentByAlias(BaseModel):
    model_config = ConfigDict(extra="allow")
    FIELDS_ARE_VALIDATED: ClassVar[bool] = True

    plain: Inner


def test_a_field_with_an_alias_is_encoded_and_the_others_are_not() -> None:
    """The alias of one field must not make a server parse the bodies of all its requests, as one of ours once did."""
    plain = Inner(a=1)
    sent = SentByAlias(plain=plain, Inner=Inner(a=2), inner=Inner(a=3), Named=Inner(a=4))  # type: ignore[call-arg]

    fields = fields_of(AliasedModel).extract(sent)  # type: ignore[union-attr]

    assert fields == {"plain": plain, "Inner": {"a": 2}, "inner": {"a": 3}, "Named": {"a": 4}}
    assert AliasedModel.model_validate(fields) == AliasedModel.model_validate_json(sent.model_dump_json())


@pytest.mark.parametrize("body_class", [BaseRunRequest, BaseVerifyRequest])
def test_the_models_of_a_rollout_are_passed_without_json(body_class: type[BaseModel]) -> None:
    """Encoding and parsing the request and the response once more costs a fifth of a rollout."""
    fields = fields_of(body_class)

    assert fields is not None
    assert fields.model_classes.keys() == body_class.model_fields.keys() & {"responses_create_params", "response"}
