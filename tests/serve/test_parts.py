"""Models inside a sent model pass as they are where, and only where, nobody could tell."""

from typing import Annotated, Any, ClassVar

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from nemo_gym.serve.parts import Parts


class Inner(BaseModel):
    a: int


class Sub(Inner):
    b: int = 0


class Sent(BaseModel):
    model_config = ConfigDict(extra="allow")
    PARTS_ARE_CHECKED: ClassVar[bool] = True

    inner: Inner
    other: Any = None


class Wanted(BaseModel):
    inner: Inner
    pair: list[int] = []


def parts_of(model: Any) -> Parts | None:
    return Parts.of(FieldInfo.from_annotation(model))


def test_the_model_itself_arrives_and_the_rest_as_json_would_say_it() -> None:
    inner = Inner(a=1)
    sent = Sent(inner=inner, pair=(1, 2), unknown="dropped")  # type: ignore[call-arg]

    given = parts_of(Wanted).of_sent(sent)  # type: ignore[union-attr]

    assert given == {"inner": inner, "pair": [1, 2]}
    assert given["inner"] is inner


def test_what_nobody_set_is_not_sent() -> None:
    """As over HTTP: `exclude_unset`."""

    class Open(Wanted):
        model_config = ConfigDict(extra="allow")

    assert parts_of(Open).of_sent(Sent(inner=Inner(a=1))).keys() == {"inner"}  # type: ignore[union-attr]


def test_a_subclass_is_written_out() -> None:
    """The receiver knows only the fields of its own class."""
    given = parts_of(Wanted).of_sent(Sent(inner=Sub(a=1, b=2)))  # type: ignore[union-attr]

    assert given == {"inner": {"a": 1}}


def test_a_sender_that_vouches_for_nothing_is_written_out() -> None:
    """It may have put unchecked values into its models."""

    class Unchecked(BaseModel):
        inner: Inner

    assert parts_of(Wanted).of_sent(Unchecked(inner=Inner(a=1))) is None  # type: ignore[union-attr]


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


class Aliased(BaseModel):
    inner: Inner = Field(alias="Inner")


class OwnInit(BaseModel):
    inner: Inner

    def __init__(self, **data: Any) -> None:
        super().__init__(**data)


@pytest.mark.parametrize("model", [Before, FieldBefore, Aliased, OwnInit, dict[str, Any], Annotated[Wanted, "note"]])
def test_who_looks_at_its_input_itself_gets_plain_data(model: Any) -> None:
    """Code written for JSON must find JSON."""
    assert parts_of(model) is None


def test_a_field_with_a_look_of_its_own_gets_plain_data() -> None:
    class Picky(BaseModel):
        inner: Annotated[Inner, BeforeValidator(lambda value: value)]

    assert parts_of(Picky).of_sent(Sent(inner=Inner(a=1))) == {"inner": {"a": 1}}  # type: ignore[union-attr]


def test_a_check_afterwards_changes_nothing() -> None:
    class After(Wanted):
        @model_validator(mode="after")
        def check(self) -> "After":
            return self

    assert parts_of(After) is not None
