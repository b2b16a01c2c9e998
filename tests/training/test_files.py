"""Files of samples, and the command that exports them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.data.export import ExportDatasetConfig
from nemo_gym.errors import ConfigError
from nemo_gym.training import Rollout, Sample, Span, read_samples, samples_table, write_samples
from nemo_gym.training.export import export_samples
from nemo_gym.training.files import SampleFileError, rollouts_from_rows, sample_rows
from tests.training.test_samples import TOOL_RESULT, call, record

FINITE = st.floats(allow_nan=False, allow_infinity=False)
VERSIONS = st.none() | st.tuples(st.integers(0, 99), st.integers(0, 99))
SPANS = st.builds(
    Span,
    st.integers(0, 9),
    st.integers(0, 9),
    st.integers(0, 9),
    st.none() | FINITE,
    VERSIONS,
    st.none() | st.text(max_size=5),
    st.booleans(),
)


@st.composite
def rollouts(draw: st.DrawFn, number: int = 0) -> Rollout:
    rollout_id = f"{number}-0"
    ids = st.lists(st.integers(0, 2**40), max_size=5)
    samples = draw(
        st.lists(
            st.builds(
                Sample,
                ids,
                st.lists(st.integers(0, 1), max_size=5),
                st.lists(FINITE, max_size=5),
                st.integers(0, 9),
                st.lists(SPANS, max_size=3),
                st.just(rollout_id),
                st.sampled_from(["main", "searcher"]),
                st.none() | st.just([[1], None]),
            ),
            max_size=3,
        )
    )
    outcome = draw(st.sampled_from(["scored", "failed", "limit", "cancelled"]))
    return Rollout(
        rollout_id,
        number,
        draw(st.text(max_size=5)),
        draw(st.integers(0, 3)),
        draw(st.none() | st.text(max_size=5)),
        outcome,
        draw(FINITE) if outcome == "scored" else None,
        samples,
        draw(st.booleans()),
        draw(st.none() | st.text(max_size=5)),
        draw(st.dictionaries(st.text(max_size=3), FINITE, max_size=2)),
        draw(st.lists(FINITE, max_size=3)),
        draw(st.integers(0, 3)),
        draw(st.dictionaries(st.text(max_size=3), st.integers(0, 99), max_size=2)),
        draw(st.dictionaries(st.text(max_size=3), FINITE, max_size=2)),
    )


@given(st.data())
def test_rows_keep_rollouts_exactly(data: st.DataObject) -> None:
    """A file is how samples travel between machines; a changed token is a wrong gradient."""
    originals = [data.draw(rollouts(number)) for number in range(3)]
    rows = [orjson.loads(orjson.dumps(row)) for rollout in originals for row in sample_rows(rollout)]

    assert list(rollouts_from_rows(rows)) == originals


EXAMPLE = Rollout(
    "0-0",
    0,
    "0",
    0,
    "solver",
    "scored",
    1.0,
    [Sample([1, 2, 3], [0, 1, 1], [0.0, -0.5, -0.25], 1, [Span(1, 3, 0, None, (1, 2), "stop")], "0-0")],
    trainable=True,
    left_out={"generated under a grammar": 4},
)


@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_files_keep_rollouts(tmp_path: Path, ending: str) -> None:
    """Both kinds of file hold the same rollouts."""
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"samples{ending}"

    assert write_samples(path, [EXAMPLE]) == 1
    assert list(read_samples(path)) == [EXAMPLE]


def test_a_table_has_the_columns_of_the_files() -> None:
    """A trainer in the same process takes the table without a file."""
    pytest.importorskip("pyarrow")
    table = samples_table([EXAMPLE])

    assert table.column_names == list(sample_rows(EXAMPLE)[0])
    assert table["token_ids"].to_pylist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "line 1 is not JSON"),
        (b"[]", "line 1 is not an object"),
        (b'{"rollout_id": "1"}', "row 1 is not the row of a sample"),
    ],
)
def test_a_wrong_file_is_one_clear_error(tmp_path: Path, line: bytes, problem: str) -> None:
    """Someone passes the file of rollouts instead of that of samples."""
    path = tmp_path / "samples.jsonl"
    path.write_bytes(line + b"\n")

    with pytest.raises(SampleFileError, match=problem) as caught:
        list(read_samples(path))

    assert str(path) in str(caught.value)


def write_records(path: Path, *records: dict[str, Any]) -> Path:
    path.write_bytes(b"".join(orjson.dumps(each) + b"\n" for each in records))
    return path


def export_config(source: Path, output: Path) -> ExportDatasetConfig:
    return ExportDatasetConfig(rollouts_jsonl_fpath=[str(source)], output_fpath=str(output), format="samples")


def test_export_counts_what_it_leaves_out(tmp_path: Path) -> None:
    """People who train on the file must know which part of the run it is."""
    good = record(call([1], [2]), TOOL_RESULT, call([1, 2, 3], [4]))
    bare = record({"type": "message", "role": "assistant", "content": "7"}, _ng_rollout_index=2)
    bad = record(call([1], [2], ["NaN"]), _ng_rollout_index=3)
    masked = record(call([1], [2]), _ng_rollout_index=4, mask_sample=True)
    source = write_records(tmp_path / "rollouts.jsonl", good, bare, bad, masked)

    result = export_samples(export_config(source, tmp_path / "samples.jsonl"))

    assert (result.rows, result.rollouts) == (1, 3)
    assert result.left_out == {"masked by the agent": 1}
    assert result.skipped.total() == 2
    (rollout,) = read_samples(tmp_path / "samples.jsonl")
    assert rollout.samples[0].token_ids == [1, 2, 3, 4]


def test_export_without_tokens_writes_no_file(tmp_path: Path) -> None:
    """An empty file would look like a finished export."""
    bare = record({"type": "message", "role": "assistant", "content": "7"})
    source = write_records(tmp_path / "rollouts.jsonl", bare)

    with pytest.raises(DataError, match="no rollout is trainable: 1 the model server reported no token ids"):
        export_samples(export_config(source, tmp_path / "samples.jsonl"))

    assert not (tmp_path / "samples.jsonl").exists()


def test_the_command_reports_the_export(tmp_path: Path) -> None:
    """The command is what people use."""
    source = write_records(tmp_path / "rollouts.jsonl", record(call([1], [2])))
    command = [sys.executable, "-m", "nemo_gym.cli.main", "dataset", "export", "--format", "samples"]

    done = subprocess.run(
        [*command, "-i", str(source), "-o", str(tmp_path / "samples.jsonl"), "--json"],
        capture_output=True,
        timeout=60,
        cwd=tmp_path,
        check=True,
    )

    assert orjson.loads(done.stdout)["rows"] == 1


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The extra is optional."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(ConfigError, match="pip install 'nemo-gym\\[data\\]'"):
        write_samples(tmp_path / "samples.parquet", [EXAMPLE])


def test_training_imports_no_heavy_package() -> None:
    """Trainers import it beside their own torch; a server must not get one through it."""
    code = (
        "import sys, nemo_gym.training; print([name for name in ('torch', 'numpy', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True, text=True)

    assert done.stdout.strip() == "[]"
