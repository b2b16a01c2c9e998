"""Write the file of an export as JSON lines or Parquet, by the ending of its name. The file appears when complete.

Both formats have the same columns. Values without a fixed schema (calls, tools, metadata) have Arrow's JSON
type in Parquet, so that `datasets.load_dataset` returns the same objects as from JSON lines.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from nemo_gym.catalog.atomic_files import whole_file
from nemo_gym.errors import ConfigError

ENDINGS = (".jsonl", ".parquet")
ROWS_PER_GROUP = 2000
BYTES_PER_GROUP = 32 << 20

TEXT, FLOAT, INTEGER, BOOLEAN, JSON = "string", "float64", "int64", "bool", "json"
MESSAGE = {
    "role": TEXT,
    "content": TEXT,
    "reasoning_content": TEXT,
    "tool_calls": [JSON],
    "tool_call_id": TEXT,
    "name": TEXT,
}
"""The fields of a message in TRL's format."""
COLUMN_TYPES: dict[str, Any] = {
    name: kind
    for kind, names in (
        ([MESSAGE], "messages prompt chosen rejected"),
        ([JSON], "tools"),
        (JSON, "metadata spans routed_experts reward_components left_out timings"),
        ([INTEGER], "loss_mask chosen_loss_mask rejected_loss_mask token_ids"),
        ([FLOAT], "logprobs step_rewards"),
        (INTEGER, "task rollout chosen_rollout rejected_rollout num_rollouts attempt sample prompt_len breaks"),
        (BOOLEAN, "trainable"),
        (FLOAT, "reward chosen_reward rejected_reward mean_reward min_reward max_reward"),
        (TEXT, "rollout_id agent model run source group outcome why_not trace"),
    )
    for name in names.split()
}
"""The type of each column of any export. `[X]` means a list of X, and `json` any JSON value."""

WriteRow = Callable[[Mapping[str, Any]], None]


@contextmanager
def writing_export(path: Path) -> Iterator[WriteRow]:
    """Yield a function that writes rows to `path`; the file appears when the block ends without error.

    All rows must have the same columns.

    Raises:
        ConfigError: pyarrow is missing.
    """
    with whole_file(path) as stream:
        if path.suffix == ".parquet":
            parquet = _ParquetWriter(stream)
            yield parquet.write
            parquet.close()
        else:

            def write(row: Mapping[str, Any]) -> None:
                stream.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))

            yield write


def import_pyarrow() -> Any:
    """Return the module `pyarrow`.

    Raises:
        ConfigError: pyarrow is missing.
    """
    try:
        return importlib.import_module("pyarrow")
    except ImportError:
        problem = "Parquet files and Arrow tables need the package pyarrow"
        raise ConfigError(problem, fix="pip install 'nemo-gym[data]'") from None


def arrow_table(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return rows with the same columns as a `pyarrow.Table`; at least one row is needed for the columns.

    Raises:
        ConfigError: pyarrow is missing.
        ValueError: there is no row.
    """
    arrow = import_pyarrow()
    encoded = [_encode_row(row) for row in rows]
    if not encoded:
        raise ValueError("a table needs at least one row")
    text_schema, json_schema = (_arrow_schema(arrow, encoded[0], kind) for kind in (arrow.string(), arrow.json_()))
    return arrow.Table.from_pylist(encoded, schema=text_schema).cast(json_schema)


class _ParquetWriter:
    """Write rows in groups, so that only one group is in memory."""

    def __init__(self, stream: BinaryIO) -> None:
        self._arrow = import_pyarrow()
        self._parquet = importlib.import_module("pyarrow.parquet")
        self._stream = stream
        self._writer: Any = None
        self._rows: list[Mapping[str, Any]] = []
        self._size = 0

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a row to the current group; the first row determines the columns of the file."""
        if self._writer is None:
            schema = _arrow_schema(self._arrow, row, self._arrow.json_())
            self._writer = self._parquet.ParquetWriter(self._stream, schema, compression="zstd")
        self._rows.append(row)
        self._size += len(orjson.dumps(row))  # faster than adding up the lengths of the values
        if len(self._rows) >= ROWS_PER_GROUP or self._size >= BYTES_PER_GROUP:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        """Write the collected rows as one group."""
        if not self._rows:
            return
        self._writer.write_table(arrow_table(self._rows))
        self._rows, self._size = [], 0


def _arrow_schema(arrow: Any, columns: Iterable[str], json_type: Any) -> Any:
    """Return the Arrow schema of the columns, with `json_type` for JSON values.

    Arrow cannot build nested JSON values, but it casts texts to them, so a table is built with texts first.
    """
    scalars = {TEXT: arrow.string(), FLOAT: arrow.float64(), INTEGER: arrow.int64(), BOOLEAN: arrow.bool_()}

    def arrow_type(column_type: Any) -> Any:
        if isinstance(column_type, list):
            return arrow.list_(arrow_type(column_type[0]))
        if isinstance(column_type, dict):
            return arrow.struct([(name, arrow_type(inner)) for name, inner in column_type.items()])
        return json_type if column_type == JSON else scalars[column_type]

    return arrow.schema([(name, arrow_type(COLUMN_TYPES[name])) for name in columns])


def _encode_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _encode_json_parts(value, COLUMN_TYPES[name]) for name, value in row.items()}


def _encode_json_parts(value: Any, column_type: Any) -> Any:
    """Return a value of a column type with the parts that have the type `json` encoded as JSON texts."""
    if value is None:
        return None
    if column_type == JSON:
        return orjson.dumps(value).decode()
    if isinstance(column_type, list) and column_type[0] not in (
        INTEGER,
        FLOAT,
    ):  # long lists of tokens stay as they are
        return [_encode_json_parts(item, column_type[0]) for item in value]
    if isinstance(column_type, dict):
        return {name: _encode_json_parts(value.get(name), inner) for name, inner in column_type.items()}
    return value
