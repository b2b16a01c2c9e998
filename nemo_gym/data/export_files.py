"""The files of an export: JSON lines or Parquet, chosen by the name's ending, whole or not there at all.

Both carry the columns of `COLUMNS`. What has no fixed shape (calls, tools, metadata) is JSON inside Parquet, and says
so in the way `datasets.load_dataset` understands: it gives back the same objects as from JSON lines.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import orjson

from nemo_gym.catalog.files import whole_file
from nemo_gym.errors import ConfigError

ENDINGS = (".jsonl", ".parquet")
ROWS_PER_GROUP = 2000
BYTES_PER_GROUP = 32 << 20

TEXT, NUMBER, WHOLE, FREE = "string", "float64", "int64", "json"
MESSAGE = {
    "role": TEXT,
    "content": TEXT,
    "reasoning_content": TEXT,
    "tool_calls": [FREE],
    "tool_call_id": TEXT,
    "name": TEXT,
}
"""A message, as TRL documents it."""
_ORIGIN = {"agent": TEXT, "model": TEXT, "run": TEXT, "source": TEXT}
COLUMNS: dict[str, dict[str, Any]] = {
    "sft": {
        "messages": [MESSAGE],
        "tools": [FREE],
        "loss_mask": [WHOLE],
        "task": WHOLE,
        "rollout": WHOLE,
        "rollout_id": TEXT,
        "reward": NUMBER,
        **_ORIGIN,
    },
    "dpo": {
        "prompt": [MESSAGE],
        "chosen": [MESSAGE],
        "rejected": [MESSAGE],
        "tools": [FREE],
        "chosen_loss_mask": [WHOLE],
        "rejected_loss_mask": [WHOLE],
        "task": WHOLE,
        "chosen_rollout": WHOLE,
        "rejected_rollout": WHOLE,
        "chosen_reward": NUMBER,
        "rejected_reward": NUMBER,
        **_ORIGIN,
    },
    "rl": {
        "prompt": [MESSAGE],
        "tools": [FREE],
        "metadata": FREE,
        "task": WHOLE,
        "num_rollouts": WHOLE,
        "mean_reward": NUMBER,
        "min_reward": NUMBER,
        "max_reward": NUMBER,
        **_ORIGIN,
    },
}
"""The columns of each kind of export. A list stands for a list of its one member, `json` for anything."""

Write = Callable[[Mapping[str, Any]], None]


class _Sink(Protocol):
    def write(self, row: Mapping[str, Any]) -> None: ...
    def close(self) -> None: ...


@contextmanager
def export_file(path: Path, kind: str) -> Iterator[Write]:
    """Write rows of one kind to `path`; the file appears when the block ends well.

    Raises:
        ConfigError: the name says no format we know, or pyarrow is missing.
    """
    if path.suffix not in ENDINGS:
        raise ConfigError(f"'{path.name}' does not say its format", fix=f"end it in {' or '.join(ENDINGS)}")
    columns = COLUMNS[kind]
    with whole_file(path) as stream:
        sink: _Sink = _Parquet(stream, columns) if path.suffix == ".parquet" else _Lines(stream)
        yield sink.write
        sink.close()


class _Lines:
    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, row: Mapping[str, Any]) -> None:
        self._stream.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """The file is somebody else's."""


class _Parquet:
    """Rows in groups, so that memory holds one group however many there are."""

    def __init__(self, stream: BinaryIO, columns: Mapping[str, Any]) -> None:
        try:
            self._arrow = importlib.import_module("pyarrow")
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise ConfigError("Parquet files need the package pyarrow", fix="pip install 'nemo-gym[data]'") from None
        self._columns = columns
        self._plain = self._schema(self._arrow.string())
        features = {"info": {"features": {name: _feature(kind) for name, kind in columns.items()}}}
        self._full = self._schema(self._arrow.json_()).with_metadata({"huggingface": orjson.dumps(features).decode()})
        self._file = parquet.ParquetWriter(stream, self._full, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def write(self, row: Mapping[str, Any]) -> None:
        self._rows.append({name: _flattened(row.get(name), kind) for name, kind in self._columns.items()})
        self._size += len(orjson.dumps(row))  # cheaper than adding the lengths up
        if len(self._rows) >= ROWS_PER_GROUP or self._size >= BYTES_PER_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        if not self._rows:
            return
        plain = self._arrow.Table.from_pylist(self._rows, schema=self._plain)
        columns = [
            self._retyped(column.combine_chunks(), field.type)
            for column, field in zip(plain.columns, self._full, strict=True)
        ]
        self._file.write_table(self._arrow.Table.from_arrays(columns, schema=self._full))
        self._rows, self._size = [], 0

    def _schema(self, free: Any) -> Any:
        arrow = self._arrow

        def kind_of(kind: Any) -> Any:
            if isinstance(kind, list):
                return arrow.list_(kind_of(kind[0]))
            if isinstance(kind, dict):
                return arrow.struct([(name, kind_of(inner)) for name, inner in kind.items()])
            return {TEXT: arrow.string(), NUMBER: arrow.float64(), WHOLE: arrow.int64(), FREE: free}[kind]

        return arrow.schema([(name, kind_of(kind)) for name, kind in self._columns.items()])

    def _retyped(self, values: Any, kind: Any) -> Any:
        """The same values, with their texts declared as JSON where `kind` says so; Arrow has no cast for that."""
        arrow = self._arrow
        if isinstance(kind, arrow.BaseExtensionType):
            return arrow.ExtensionArray.from_storage(kind, values)
        if arrow.types.is_list(kind):
            inner = [self._retyped(values.values, kind.value_type)]
            return arrow.Array.from_buffers(kind, len(values), values.buffers()[:2], children=inner)
        if arrow.types.is_struct(kind):
            inner = [self._retyped(values.field(n), kind.field(n).type) for n in range(kind.num_fields)]
            return arrow.Array.from_buffers(kind, len(values), values.buffers()[:1], children=inner)
        return values


def _flattened(value: Any, kind: Any) -> Any:
    """A value with its free parts written as JSON."""
    if value is None:
        return None
    if kind == FREE:
        return orjson.dumps(value).decode()
    if isinstance(kind, list):
        return [_flattened(item, kind[0]) for item in value]
    if isinstance(kind, dict):
        return {name: _flattened(value.get(name), inner) for name, inner in kind.items()}
    return value


def _feature(kind: Any) -> dict[str, Any]:
    """A column as `datasets` describes it."""
    if isinstance(kind, list):
        return {"feature": _feature(kind[0]), "_type": "List"}
    if isinstance(kind, dict):
        return {name: _feature(inner) for name, inner in kind.items()}
    return {"_type": "Json"} if kind == FREE else {"dtype": kind, "_type": "Value"}
