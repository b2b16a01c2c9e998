"""The rows of an audit: a folder's examples, rows its generator makes, and rows broken on purpose."""

import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from nemo_gym.errors import ConfigError
from nemo_gym.wire.tasks import BaseVerifyRequest

Row = dict[str, Any]
Breaking = Callable[[Row], Row]
"""A row to a broken copy of it."""


def example_rows(folder: Path) -> list[Row]:
    """The rows of `data/example.jsonl`; none if there is no such file.

    Raises:
        ConfigError: a line is not an object.
    """
    path = folder / "data" / "example.jsonl"
    if not path.exists():
        return []
    rows: list[Row] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ConfigError("is not a JSON object", where=f"{path}:{number}")
        rows.append({key: value for key, value in row.items() if key != "agent_ref"})
    return rows


def generated_rows(folder: Path, module: str, count: int, seed: int) -> list[Row]:
    """`count` rows of the folder's `generate.py`; none if it has none.

    Raises:
        ConfigError: the generator refuses.
    """
    if not count or not (folder / "generate.py").exists():
        return []
    rows: Callable[..., Sequence[Row]] = importlib.import_module(module).rows
    try:
        return list(rows(count, seed=seed))
    except SystemExit as refusal:
        raise ConfigError(str(refusal), where=str(folder / "generate.py"), fix="fewer --rows") from None


def request_model(server: Any) -> type[BaseModel]:
    """The class that a server's `verify` reads its body into."""
    hints = inspect.get_annotations(server.verify, eval_str=True)
    models = [hint for name, hint in hints.items() if name != "return" and isinstance(hint, type)]
    return next((one for one in models if issubclass(one, BaseVerifyRequest)), BaseVerifyRequest)


def breakings(model: type[BaseModel], row: Row) -> Iterator[tuple[str, Breaking]]:
    """(name, how) of the ways to break each field that the verifier declares, as far as they are wrong for it.

    A field that is not required may be missing, and one whose type has None may be null.
    """
    yield "no responses_create_params", lambda row: _without(row, "responses_create_params")
    for name, field in model.model_fields.items():
        if name in BaseVerifyRequest.model_fields:
            continue
        if field.is_required():
            yield f"no {name}", lambda row, name=name: _without(row, name)  # type: ignore[misc]
        if field.is_required() and not _takes_null(field.annotation):
            yield f"{name} is null", lambda row, name=name: {**row, name: None}  # type: ignore[misc]
        if name in row:
            wrong = _of_another_type(row[name])
            yield f"{name} is of another type", lambda row, name=name, wrong=wrong: {**row, name: wrong}  # type: ignore[misc]


def _without(row: Mapping[str, Any], name: str) -> Row:
    return {key: value for key, value in row.items() if key != name}


def _takes_null(annotation: Any) -> bool:
    return annotation is Any or type(None) in get_args(annotation)


def _of_another_type(value: Any) -> Any:
    return "another type" if isinstance(value, Mapping) else {"unexpected": True}
