"""Every name other people's server folders import from `nemo_gym` is there and has the shape they rely on.

The table is `surface.yaml`; this file gives its words a meaning. A row is one promise, so a row is one test.
"""

import ast
import dataclasses
import enum
import importlib
import inspect
import types
from pathlib import Path
from typing import Any

import pydantic
import pytest
import typing_extensions
import yaml

HERE = Path(__file__).parent
ROWS: list[dict[str, Any]] = yaml.safe_load((HERE / "surface.yaml").read_text())
LATER: list[dict[str, Any]] = yaml.safe_load((HERE / "later.yaml").read_text())
MISSING = object()


def load(at: str, name: str) -> Any:
    if name == "(module)":
        return importlib.import_module(at)
    module = importlib.import_module(at)
    target = getattr(module, name, MISSING)
    if target is MISSING:  # `from package import submodule`
        return importlib.import_module(f"{at}.{name}")
    return target


def load_reference(reference: str) -> Any:
    return load(*reference.split(":"))


# -- what each word of the table means --------------------------------------------------------------------------------


def binds(function: Any, call: str) -> None:
    """The argument list in `call` is one the function takes. `await` in front: it must be a coroutine function."""
    if call.startswith("await "):
        call = call.removeprefix("await ")
        assert inspect.iscoroutinefunction(function), f"{function} must be async"
    node = ast.parse(f"f{call}", mode="eval").body
    assert isinstance(node, ast.Call)
    keywords = {k.arg: None for k in node.keywords if k.arg}
    inspect.signature(function).bind(*[None] * len(node.args), **keywords)


def check_calls(target: Any, calls: list[str]) -> None:
    assert callable(target)
    for call in calls:
        binds(target, call)


def check_awaited(target: Any, expected: bool) -> None:
    assert inspect.iscoroutinefunction(target) is expected


def check_methods(target: Any, methods: dict[str, str]) -> None:
    for name, call in methods.items():
        bound = getattr(target, name)
        if inspect.ismethod(bound) or isinstance(inspect.getattr_static(target, name), staticmethod):
            call = call.replace("(self,)", "()").replace("(self, ", "(")
        binds(bound, call)


def check_model(target: Any, shape: dict[str, Any]) -> None:
    assert inspect.isclass(target) and issubclass(target, pydantic.BaseModel)
    fields = target.model_fields
    if "requires" in shape:
        assert {name for name, field in fields.items() if field.is_required()} == set(shape["requires"])
    for name, default in shape.get("defaults", {}).items():
        value = fields[name].get_default(call_default_factory=True, validated_data={})
        assert (value == default and type(value) is not bool) or value is default, f"{name}: {value!r}"
    assert set(shape.get("fields", [])) <= set(fields)
    assert not set(shape.get("lacks", [])) & set(fields)
    assert all(hasattr(target, name) for name in shape.get("attributes", []))
    if "extra" in shape:
        assert target.model_config.get("extra", "ignore") == shape["extra"]
    if "ignores" in shape:
        unknown = set(shape["ignores"]) - set(fields)
        assert unknown and not unknown & set(target.model_validate(shape["ignores"]).model_dump())
    for fields_set, expected in shape.get("dumps", []):
        dumped = target(**fields_set).model_dump()
        assert dumped == expected
        assert list(dumped) == list(expected), "the order of keys is part of what tests compare"


def check_typed_dict(target: Any, keys: list[str]) -> None:
    assert typing_extensions.is_typeddict(target)
    assert set(keys) <= set(typing_extensions.get_type_hints(target))


def check_dataclass(target: Any, names: list[str]) -> None:
    """Built by keyword and read by attribute; a pydantic model would do as well."""
    if dataclasses.is_dataclass(target):
        fields = {field.name for field in dataclasses.fields(target)}
    else:
        fields = set(target.model_fields)
    assert set(names) <= fields


def check_values(target: Any, values: list[str]) -> None:
    assert issubclass(target, enum.Enum)
    assert {member.value for member in target} >= set(values)


def check_subclass_of(target: Any, parents: list[str]) -> None:
    for parent in parents:
        assert issubclass(target, load_reference(parent))


def check_picks(target: Any, cases: list[tuple[Any, str]]) -> None:
    adapter = pydantic.TypeAdapter(target)
    for value, expected in cases:
        assert type(adapter.validate_python(value)).__name__ == expected, value


def check_rejects(target: Any, values: list[Any]) -> None:
    adapter = pydantic.TypeAdapter(target)
    for value in values:
        with pytest.raises(pydantic.ValidationError):
            adapter.validate_python(value)


def check_gives(target: Any, cases: list[tuple[list[Any], Any]]) -> None:
    for arguments, expected in cases:
        assert target(*arguments) == expected


def check_is(target: Any, value: Any) -> None:
    assert target == value and type(target) is type(value)


def check_set(target: Any, values: list[str]) -> None:
    assert isinstance(target, frozenset) and target == set(values)


CHECKS = {
    "is": check_is,
    "set": check_set,
    "same_as": lambda target, other: check_identity(target, load_reference(other)),
    "instance_of": lambda target, kind: check_instance(target, load_reference(kind)),
    "module": lambda target, _: check_instance(target, types.ModuleType),
    "a_class": lambda target, _: check_instance(target, type),
    "a_function": lambda target, _: check_instance(target, types.FunctionType),
    "awaited": check_awaited,
    "calls": check_calls,
    "methods": check_methods,
    "model": check_model,
    "typed_dict": check_typed_dict,
    "dataclass": check_dataclass,
    "values": check_values,
    "subclass_of": check_subclass_of,
    "picks": check_picks,
    "rejects": check_rejects,
    "gives": check_gives,
}


def check_identity(target: Any, other: Any) -> None:
    assert target is other


def check_instance(target: Any, kind: type) -> None:
    assert isinstance(target, kind)


# -- the tests --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['n']:03}-{row['at']}:{row['name']}" for row in ROWS])
def test_a_public_name_has_the_shape_server_folders_rely_on(row):
    """Existing server folders import these 176 names; each must work as it always did."""
    target = load(row["at"], row["name"])

    words = set(row) - {"n", "at", "name"}
    assert words, "a row without a shape would test nothing but the import"
    for word in sorted(words):
        CHECKS[word](target, row[word])


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['n']:03}" for row in ROWS])
def test_no_row_is_content_with_just_anything(row):
    """A check that nothing can fail is not a check."""
    with pytest.raises(Exception):  # noqa: B017 - which one depends on the word
        for word in set(row) - {"n", "at", "name"}:
            CHECKS[word](object(), row[word])


def test_the_table_holds_every_row_of_the_contract_once():
    """A promise must not be dropped to make the suite green."""
    assert sorted(row["n"] for row in ROWS) == list(range(1, 177))
    assert len({(row["at"], row["name"]) for row in ROWS}) == 176


@pytest.mark.parametrize("row", LATER, ids=[f"{row['at']}:{row['name']}" for row in LATER])
def test_a_name_of_a_later_issue_has_its_shape_once_it_is_there(row):
    """Names of later issues are tested as soon as they exist."""
    try:
        target = load(row["at"], row["name"])
    except ModuleNotFoundError as missing:
        if not f"{row['at']}.{row['name']}".startswith(str(missing.name)):
            raise
        pytest.skip(f"issue {row['issue']}")

    for word in sorted(set(row) - {"issue", "at", "name"}):
        CHECKS[word](target, row[word])


def test_the_seed_imports_the_references_from_server_utils():
    """The user's own README writes `from nemo_gym.server_utils import ResourcesServerRef, ModelServerRef`."""
    for name in ("ResourcesServerRef", "ModelServerRef", "AgentServerRef"):
        assert load_reference(f"nemo_gym.server_utils:{name}") is load_reference(f"nemo_gym.config_types:{name}")


@pytest.mark.parametrize(
    ("at", "names"),
    [
        (
            "nemo_gym.server_utils",
            "get_global_config_dict HEAD_SERVER_KEY_NAME BaseRunServerInstanceConfig ClientResponse",
        ),
        ("nemo_gym.server_utils", "get_first_server_config_dict SimpleServer BaseServer HeadServer ServerStatus"),
        ("nemo_gym.server_utils", "ServerInstanceDisplayConfig initialize_ray setup_server_client"),
        ("nemo_gym.server_utils", "set_global_aiohttp_client GlobalAIOHTTPAsyncClientConfig MAX_NUM_TRIES"),
        ("nemo_gym.global_config", "DEFAULT_HEAD_SERVER_PORT NEMO_GYM_RESERVED_TOP_LEVEL_KEYS set_global_config_dict"),
        ("nemo_gym.global_config", "format_almost_server_warning HEAD_SERVER_KEY_NAME"),
        ("nemo_gym.openai_utils", "TokenIDLogProbMixin RESPONSES_TO_TRAIN training_variant_of"),
        ("nemo_gym.openai_utils", "NeMoGymResponseReasoningItemForTraining NeMoGymEasyInputMessageForTraining"),
        ("nemo_gym.responses_converter", "ResponsesConverterState uuid4"),
        ("nemo_gym.base_resources_server", "MCPServerMetadata RESERVED_MCP_TOOL_NAMES normalize_tool_name"),
        ("nemo_gym.base_resources_server", "NEMO_GYM_MCP_SESSION_TOKEN_HEADER BaseResourcesServer"),
        ("nemo_gym.rollout_collection", "NG_TRAJECTORY_KEY get_global_config_dict"),
        ("nemo_gym.reward_profile", "compute_aggregate_metrics AggregateMetricsMixin RewardProfiler"),
        ("nemo_gym.config_types", "ServerRef ServerRefTypeAdapter is_server_ref Domain DatasetConfig ConfigError"),
    ],
)
def test_a_name_re_exported_by_accident_stays_on_purpose(at, names):
    """Folders reach for names where they happened to find them; those imports keep working."""
    module = importlib.import_module(at)

    assert [name for name in names.split() if not hasattr(module, name)] == []
