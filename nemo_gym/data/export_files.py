"""Write the file of an export as JSON lines or Parquet, by the ending of its name. The file appears when complete.

Both formats have the columns of `COLUMNS`. Values without a fixed schema (calls, tools, metadata) have Arrow's JSON
type in Parquet, so that `datasets.load_dataset` returns the same objects as from JSON lines.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.errors import ConfigError

ENDINGS = (".jsonl", ".parquet")
ROWS_PER_GROUP = 2000
BYTES_PER_GROUP = 32 << 20

TEXT, FLOAT, INTEGER, JSON = "string", "float64", "int64", "json"
MESSAGE = {
    "role": TEXT,
    "content": TEXT,
    "reasoning_content": TEXT,
    "tool_calls": [JSON],
    "tool_call_id": TEXT,
    "name": TEXT,
}
"""The fields of a message in TRL's format."""
_ORIGIN = {"agent": TEXT, "model": TEXT, "run": TEXT, "source": TEXT}
COLUMNS: dict[str, dict[str, Any]] = {
    "sft": {
        "messages": [MESSAGE],
        "tools": [JSON],
        "loss_mask": [INTEGER],
        "task": INTEGER,
        "rollout": INTEGER,
        "rollout_id": TEXT,
        "reward": FLOAT,
        **_ORIGIN,
    },
    "dpo": {
        "prompt": [MESSAGE],
        "chosen": [MESSAGE],
        "rejected": [MESSAGE],
        "tools": [JSON],
        "chosen_loss_mask": [INTEGER],
        "rejected_loss_mask": [INTEGER],
        "task": INTEGER,
        "chosen_rollout": INTEGER,
        "rejected_rollout": INTEGER,
        "chosen_reward": FLOAT,
        "rejected_reward": FLOAT,
        **_ORIGIN,
    },
    "rl": {
        "prompt": [MESSAGE],
        "tools": [JSON],
        "metadata": JSON,
        "task": INTEGER,
        "num_rollouts": INTEGER,
        "mean_reward": FLOAT,
        "min_reward": FLOAT,
        "max_reward": FLOAT,
        **_ORIGIN,
    },
}
"""The columns of each kind of export. `[X]` means a list of X, and `json` any JSON value."""

WriteRow = Callable[[Mapping[str, Any]], None]


@contextmanager
def writing_export(path: Path, kind: str) -> Iterator[WriteRow]:
    """Yield a function that writes rows of one kind to `path`; the file appears when the block ends without error.

    Raises:
        ConfigError: pyarrow is missing.
    """
    with whole_file(path) as stream:
        if path.suffix == ".parquet":
            parquet = _ParquetWriter(stream, COLUMNS[kind])
            yield parquet.write
            parquet.close()
        else:

            def write(row: Mapping[str, Any]) -> None:
                stream.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

            yield write


class _ParquetWriter:
    """Write rows in groups, so that only one group is in memory."""

    def __init__(self, stream: BinaryIO, columns: Mapping[str, Any]) -> None:
        try:
            self._arrow = importlib.import_module("pyarrow")
            parquet = importlib.import_module("pyarrow.parquet")
        except ImportError:
            raise ConfigError("Parquet files need the package pyarrow", fix="pip install 'nemo-gym[data]'") from None
        self._columns = columns
        self._text_schema = self._schema(self._arrow.string())
        self._json_schema = self._schema(self._arrow.json_())
        self._file = parquet.ParquetWriter(stream, self._json_schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._size = 0

    def write(self, row: Mapping[str, Any]) -> None:
        self._rows.append({name: _encode_json_parts(row.get(name), kind) for name, kind in self._columns.items()})
        self._size += len(orjson.dumps(row))  # faster than adding up the lengths of the values
        if len(self._rows) >= ROWS_PER_GROUP or self._size >= BYTES_PER_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()

    def _flush(self) -> None:
        """Write the collected rows as one group."""
        if not self._rows:
            return
        table = self._arrow.Table.from_pylist(self._rows, schema=self._text_schema)
        columns = [
            self._retype(column.combine_chunks(), field.type)
            for column, field in zip(table.columns, self._json_schema, strict=True)
        ]
        self._file.write_table(self._arrow.Table.from_arrays(columns, schema=self._json_schema))
        self._rows, self._size = [], 0

    def _schema(self, json_type: Any) -> Any:
        """Return the Arrow schema of the columns, with `json_type` for JSON values."""
        arrow = self._arrow

        def arrow_type(kind: Any) -> Any:
            if isinstance(kind, list):
                return arrow.list_(arrow_type(kind[0]))
            if isinstance(kind, dict):
                return arrow.struct([(name, arrow_type(inner)) for name, inner in kind.items()])
            return {TEXT: arrow.string(), FLOAT: arrow.float64(), INTEGER: arrow.int64(), JSON: json_type}[kind]

        return arrow.schema([(name, arrow_type(kind)) for name, kind in self._columns.items()])

    def _retype(self, values: Any, kind: Any) -> Any:
        """Return an array of texts as type `kind`, in which some parts have the JSON type; Arrow cannot cast to it."""
        arrow = self._arrow
        if isinstance(kind, arrow.BaseExtensionType):
            return arrow.ExtensionArray.from_storage(kind, values)
        if arrow.types.is_list(kind):
            inner = [self._retype(values.values, kind.value_type)]
            return arrow.Array.from_buffers(kind, len(values), values.buffers()[:2], children=inner)
        if arrow.types.is_struct(kind):
            inner = [self._retype(values.field(n), kind.field(n).type) for n in range(kind.num_fields)]
            return arrow.Array.from_buffers(kind, len(values), values.buffers()[:1], children=inner)
        return values


def _encode_json_parts(value: Any, kind: Any) -> Any:
    """Encode the parts of a value that are JSON columns as JSON texts."""
    if value is None:
        return None
    if kind == JSON:
        return orjson.dumps(value).decode()
    if isinstance(kind, list):
        return [_encode_json_parts(item, kind[0]) for item in value]
    if isinstance(kind, dict):
        return {name: _encode_json_parts(value.get(name), inner) for name, inner in kind.items()}
    return value
