"""Schemas of task fields: a server folder's `task_data.py` exports `TaskData`, the fields that its rows own.

`TaskData` is a pydantic model, or any type that pydantic can validate, without the fields of the framework. A field
that only occurs inside `verifier_metadata` has `json_schema_extra={"legacy_location": "verifier_metadata"}`.
"""

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, TypeAdapter, ValidationError

from nemo_gym.config.search_roots import component_search_roots
from nemo_gym.errors import ConfigError
from nemo_gym.keys import RESOURCES, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME, TASK_SOURCE_KEY_NAME

RESERVED_ROW_KEYS = frozenset(
    {"responses_create_params", "agent_ref", TASK_SOURCE_KEY_NAME, TASK_INDEX_KEY_NAME, ROLLOUT_INDEX_KEY_NAME}
)
"""Fields of rows that belong to the framework."""
VERIFIER_METADATA = "verifier_metadata"
_NESTED_FIELDS = (VERIFIER_METADATA, "task_data")
MAX_REPORTED_ERRORS = 5


class TaskDataSchemaError(ConfigError, ValueError):
    """A `task_data.py` cannot be imported or exports no usable `TaskData`."""


def find_server_dir(name: str, base_folder: str = RESOURCES) -> Path | None:
    """Return the folder of a server in the first search root that has it; None without one."""
    folders = (Path(root) / base_folder / name for root in component_search_roots())
    return next((folder for folder in folders if folder.is_dir()), None)


def load_task_data_schema(directory: str | Path) -> TypeAdapter[Any] | None:
    """Return the schema in the `task_data.py` of a folder; None if the folder has no such file.

    Raises:
        TaskDataSchemaError: the file cannot be imported, or has no `TaskData` that pydantic can validate.
    """
    path = Path(directory) / "task_data.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(f"task_data_{uuid4().hex}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        return TypeAdapter(module.TaskData)
    except Exception as error:  # the code of the folder may fail in any way
        problem = f"no usable TaskData: {type(error).__name__}: {error}"
        raise TaskDataSchemaError(problem, where=str(path)) from error


def normalize_task_fields(row: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the task fields of a row in one level, and the keys that occur with different values.

    `verifier_metadata` and `task_data` are spliced in; a field of the row itself has priority.
    """
    fields = {key: value for key, value in row.items() if key not in RESERVED_ROW_KEYS and key not in _NESTED_FIELDS}
    conflicts: list[str] = []
    for name in _NESTED_FIELDS:
        nested = row.get(name)
        for key, value in nested.items() if isinstance(nested, Mapping) else ():
            if fields.setdefault(key, value) != value:
                conflicts.append(key)
    return fields, conflicts


@dataclass
class TaskDataReport:
    """What is wrong with the rows of a dataset."""

    server_name: str
    dataset_fpath: str
    rows: int = 0
    error_rows: int = 0
    errors: list[str] = field(default_factory=list)
    """The first problems."""
    unknown_keys: set[str] = field(default_factory=set)
    conflicting_keys: set[str] = field(default_factory=set)
    misplaced_keys: set[str] = field(default_factory=set)

    @property
    def clean(self) -> bool:
        return not (self.error_rows or self.unknown_keys or self.conflicting_keys or self.misplaced_keys)

    def summary(self) -> str:
        """Return one line for a report: the counts, the first problems and the keys."""
        parts = [f"{self.error_rows} of {self.rows} rows are invalid: {'; '.join(self.errors)}"] if self.errors else []
        names = [name for name in ("unknown", "conflicting", "misplaced") if getattr(self, f"{name}_keys")]
        parts += [f"{name} keys: {', '.join(sorted(getattr(self, f'{name}_keys')))}" for name in names]
        return f"{self.dataset_fpath} ({self.server_name}): " + ("; ".join(parts) or f"{self.rows} rows are valid")


class TaskDataValidator:
    """Checks the rows of a dataset against the schema of a server; `report` has the result."""

    def __init__(self, server_name: str, adapter: TypeAdapter[Any], dataset_fpath: str | Path) -> None:
        self.adapter = adapter
        self.report = TaskDataReport(server_name, str(dataset_fpath))
        self._locations = _field_locations(adapter)

    def validate_row(self, index: int, row: Mapping[str, Any]) -> None:
        """Check one row and add its problems to the report."""
        report = self.report
        report.rows += 1
        fields, conflicts = normalize_task_fields(row)
        report.conflicting_keys.update(conflicts)
        if self._locations:
            report.unknown_keys.update(key for key in fields if key not in self._locations)
            report.misplaced_keys.update(
                key for key, place in self._locations.items() if place == VERIFIER_METADATA and key in row
            )
        try:
            self.adapter.validate_python(fields)
        except ValidationError as error:
            report.error_rows += 1
            first = error.errors(include_url=False, include_input=False)[0]
            if len(report.errors) < MAX_REPORTED_ERRORS:
                report.errors.append(f"row {index}: {'.'.join(map(str, first['loc']))}: {first['msg']}")


def validate_jsonl_rows(
    server_name: str, adapter: TypeAdapter[Any], dataset_fpath: str | Path, rows: Iterable[Mapping[str, Any]]
) -> TaskDataReport:
    """Check all rows of a dataset and return the report."""
    validator = TaskDataValidator(server_name, adapter, dataset_fpath)
    for index, row in enumerate(rows):
        validator.validate_row(index, row)
    return validator.report


def _field_locations(adapter: TypeAdapter[Any]) -> dict[str, str | None]:
    """Return the fields of a schema, each with the part of the row that it belongs to; empty if it is not a model."""
    model = getattr(adapter, "_type", None)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        return {}
    locations: dict[str, str | None] = {}
    for name, info in model.model_fields.items():
        extra = info.json_schema_extra
        place = extra.get("legacy_location") if isinstance(extra, dict) else None
        locations[info.alias or name] = str(place) if place else None
    return locations
