"""Token ids and log-probabilities of generated messages and items, for training."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from nemo_gym.wire.base import WIRE_CONFIG, free_form

REQUIRED_TOKEN_FIELDS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")
TOKEN_FIELDS = (*REQUIRED_TOKEN_FIELDS, "routed_experts")
REQUIRED_TOKEN_METADATA_FIELDS = frozenset(REQUIRED_TOKEN_FIELDS)
TOKEN_METADATA_FIELDS = frozenset(TOKEN_FIELDS)


class _NumberList:
    """A list of numbers of one type that is neither copied nor walked in Python when parsed or dumped.

    These lists hold tens of thousands of numbers and pass several servers. The type of `sum`, computed at C speed,
    shows the type of the elements (a bool passes for an int); any other value is validated by pydantic, which converts
    or explains it. A dump to Python objects shares the list with the model.
    """

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        written = handler.generate_schema(source)
        kept = handler(source)
        # A format applies to JSON only and leaves Python dumps alone; the outer serializer then takes over for JSON.
        kept["serialization"] = core_schema.format_ser_schema("", when_used="json")  # type: ignore[index]
        return core_schema.no_info_wrap_validator_function(
            self._validate,
            kept,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value, return_schema=written, when_used="json"
            ),
        )

    def _validate(self, value: Any, validate: Callable[[Any], Any]) -> Any:
        if type(value) is list and value:
            try:
                if type(sum(value)) is self.kind:
                    return value
            except (TypeError, OverflowError):
                pass
        return validate(value)


TokenIds = Annotated[list[int], _NumberList(int)]
LogProbs = Annotated[list[float], _NumberList(float)]


class TokenIDLogProbMixin(BaseModel):
    """The token fields of one generation."""

    model_config = WIRE_CONFIG

    prompt_token_ids: TokenIds
    generation_token_ids: TokenIds
    generation_log_probs: LogProbs
    routed_experts: Annotated[str | list[Any] | None, AfterValidator(free_form)] = None


def has_token_fields(item: Mapping[str, Any]) -> bool:
    """Return whether any token field is set. Null counts as not set."""
    if TOKEN_METADATA_FIELDS.isdisjoint(item):
        return False
    return any(item.get(name) is not None for name in TOKEN_METADATA_FIELDS)


def check_token_fields(item: Mapping[str, Any]) -> None:
    """Check that the token fields are complete; a trainer ignores incomplete ones.

    Raises:
        PydanticCustomError: some token fields are set, but not all three required ones.
    """
    missing = sorted(name for name in REQUIRED_TOKEN_FIELDS if item.get(name) is None)
    if missing:
        raise PydanticCustomError(
            "incomplete_token_fields",
            "Token fields belong together; missing: {missing}",
            {"missing": ", ".join(missing)},
        )
