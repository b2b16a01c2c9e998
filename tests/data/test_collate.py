"""Datasets are collated into the files a trainer reads, all of them or none."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.config.schema_datasets import BenchmarkDatasetConfig, DatasetConfig
from nemo_gym.data import collate as collating
from nemo_gym.data.collate import CollationResult, MetricsConflict, RowsRefused, collate
from nemo_gym.data.sources import DatasetSource, assign_stems

PATIENCE = 60.0


def row(number: int = 1, **more):
    return {"responses_create_params": {"input": f"What is {number}?"}, "answer": number, **more}


def write(path: Path, rows) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def read(path: Path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def source(path: Path, agent: str = "agent", kind: str = "train", **more) -> DatasetSource:
    config = DatasetConfig(name=kind, type=kind, jsonl_fpath=str(path), license="MIT", **more)
    return DatasetSource(agent, config, path, path.stem)


def run(output: Path, *sources: DatasetSource, **options) -> CollationResult:
    options.setdefault("watch", lambda what, done, total: None)
    return collate(assign_stems(sources), output, **options)


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def test_rows_of_all_agents_end_up_in_one_file_per_type(data, out):
    """A trainer reads one file and sends each row to its agent."""
    first = source(write(data / "a.jsonl", [row(1), row(2)]), "a_agent")
    second = source(write(data / "b.jsonl", [row(3)]), "b_agent")
    third = source(write(data / "v.jsonl", [row(4)]), "a_agent", "validation")

    done = run(out, first, second, third)

    train = read(out / "train.jsonl")
    assert [(each["answer"], each["agent_ref"]["name"]) for each in train] == [
        (1, "a_agent"),
        (2, "a_agent"),
        (3, "b_agent"),
    ]
    assert [each["answer"] for each in read(out / "validation.jsonl")] == [4]
    assert read(data / "a_prepare.jsonl") == train[:2]
    assert json.loads((out / "train_metrics.json").read_text())["Number of examples"] == 3
    beside = json.loads((data / "b_metrics.json").read_text())
    assert (beside["name"], beside["license"], beside["Number of examples"]) == ("train", "MIT", 1)
    assert [result.type for result in done.types] == ["train", "validation"]


def test_a_slice_takes_only_its_rows_and_has_separate_files(data, out):
    """One file may hold training and validation rows, which must not mix."""
    path = write(data / "all.jsonl", [row(number) for number in range(10)])

    run(out, source(path, end_idx=7), source(path, kind="validation", start_idx=7))

    assert [each["answer"] for each in read(out / "train.jsonl")] == list(range(7))
    assert [each["answer"] for each in read(out / "validation.jsonl")] == [7, 8, 9]
    assert sorted(file.name for file in data.glob("*_metrics.json")) == [
        "all_0-7_metrics.json",
        "all_7-end_metrics.json",
    ]


def test_problems_in_a_slice_name_their_line_in_the_file(data, out):
    """The author repairs the file, not the slice."""
    path = write(data / "all.jsonl", [row(1), {}, row(2), {}, row(3)])

    with pytest.raises(RowsRefused, match=r"line 4: responses_create_params: field required"):
        run(out, source(path, start_idx=2))


def test_agents_that_share_a_file_have_separate_prepared_files(data, out):
    """The second would overwrite the rows of the first."""
    path = write(data / "rows.jsonl", [row(1)])

    run(out, source(path, "a_agent"), source(path, "b_agent"))

    assert [each["agent_ref"]["name"] for each in read(out / "train.jsonl")] == ["a_agent", "b_agent"]
    assert read(data / "rows_prepare.jsonl")[0]["agent_ref"]["name"] == "a_agent"
    assert read(data / "rows_b_agent_prepare.jsonl")[0]["agent_ref"]["name"] == "b_agent"


def test_repeats_are_written_out_and_measured(data, out):
    """Trainers shuffle lines and know nothing about repeats."""
    path = write(data / "rows.jsonl", [row(1), row(2)])

    run(out, source(path, num_repeats=3))

    assert [each["answer"] for each in read(out / "train.jsonl")] == [1, 1, 1, 2, 2, 2]
    assert json.loads((data / "rows_metrics.json").read_text())["Number of examples"] == 6


def test_the_prompt_of_a_benchmark_is_applied(tmp_path, data, out):
    """The rows of a benchmark have no input until its prompt is filled in."""
    prompt = tmp_path / "prompt.yaml"
    prompt.write_text("user: 'Q: {q}'\n")
    path = write(data / "raw.jsonl", [{"q": "one"}])
    config = BenchmarkDatasetConfig(
        name="b", type="benchmark", jsonl_fpath=path, prepare_script="p.py", prompt_config=prompt
    )

    run(out, DatasetSource("agent", config, path, path.stem))

    (result,) = read(out / "benchmark.jsonl")
    assert result["responses_create_params"]["input"] == [{"role": "user", "content": "Q: one"}]


class TestBadRows:
    """Invalid rows are reported, and nothing is written."""

    def test_every_file_and_line_is_named_with_the_counts(self, data, out):
        """A complete list saves one run per mistake."""
        good = write(data / "good.jsonl", [row(1)])
        bad = write(data / "bad.jsonl", [row(1), {}, {}, row(2, responses_create_params={"input": 3})])
        worse = write(data / "worse.jsonl", [[1]])

        with pytest.raises(RowsRefused) as refused:
            run(out, source(good), source(bad), source(worse, kind="validation"))

        assert str(refused.value).splitlines() == [
            "4 rows cannot be used; no file was written",
            f"{bad} (agent): 3 rows",
            "  lines 2–3: responses_create_params: field required",
            "  line 4: responses_create_params.input: should be a valid list",
            f"{worse} (agent): 1 row",
            "  line 1: the line is a list, not a JSON object",
        ]
        assert not out.exists()
        assert sorted(file.name for file in data.iterdir()) == ["bad.jsonl", "good.jsonl", "worse.jsonl"]

    def test_lines_are_counted_through_all_chunks(self, data, out, monkeypatch):
        """A chunk counts its lines from 1; the report must not."""
        monkeypatch.setattr(collating, "CHUNK", 200)
        monkeypatch.setattr(collating, "SMALLEST_CHUNK", 200)
        rows = [row(number) for number in range(50)]
        for number in (0, 17, 18, 49):
            rows[number] = {}
        path = write(data / "rows.jsonl", rows)

        with pytest.raises(RowsRefused, match=r"lines 1, 18–19, 50: responses_create_params: field required"):
            run(out, source(path))

    def test_reading_stops_after_max_errors(self, data, out, monkeypatch):
        """The first problems of a file are enough to recognise a wrong file, whatever the chunk size."""
        monkeypatch.setattr(collating, "CHUNK", 20)
        monkeypatch.setattr(collating, "SMALLEST_CHUNK", 20)
        path = write(data / "rows.jsonl", [{}] * 100)

        with pytest.raises(RowsRefused, match=r"lines 1–7: ") as refused:
            run(out, source(path), max_errors=7)

        assert refused.value.stopped
        assert "there may be more" in str(refused.value)

    def test_the_earlier_output_stays(self, data, out):
        """A complete earlier result is better than half a new one."""
        path = write(data / "rows.jsonl", [row(1)])
        run(out, source(path))
        before = (out / "train.jsonl").read_bytes()
        path.write_text("{}\n")

        with pytest.raises(RowsRefused):
            run(out, source(path))

        assert (out / "train.jsonl").read_bytes() == before
        assert not [file for folder in (out, data) for file in folder.iterdir() if file.name.startswith(".")]


def test_a_dataset_without_rows_is_refused(data, out):
    """Training on an empty dataset is always a mistake."""
    path = write(data / "rows.jsonl", [row(1)])

    with pytest.raises(DataError, match="no rows between start_idx 5 and end_idx 9"):
        run(out, source(path, start_idx=5, end_idx=9))
    path.write_text("")
    with pytest.raises(DataError, match="the dataset has no rows"):
        run(out, source(path))


def test_the_rows_themselves_are_never_overwritten(data, out):
    """Many users name their rows `train.jsonl`, like the output."""
    path = write(data / "train.jsonl", [row(1)])

    with pytest.raises(DataError, match="would overwrite") as refused:
        run(data, source(path))

    assert "--output-dir" in str(refused.value)


def test_a_file_in_the_way_of_the_output_is_named(data, tmp_path):
    """A traceback at the end of an hour of work helps no one."""
    (tmp_path / "out").write_text("")

    with pytest.raises(DataError, match="is a file"):
        run(tmp_path / "out", source(write(data / "rows.jsonl", [row(1)])))


def test_a_file_that_grows_while_it_is_read_is_refused(data, out):
    """The metrics would describe a state of the file that never existed."""
    path = write(data / "rows.jsonl", [row(1)])

    def grow(what, done, total):
        with path.open("a") as stream:
            stream.write(json.dumps(row(2)) + "\n")

    with pytest.raises(DataError, match="changed while it was read"):
        run(out, source(path), watch=grow)


class TestMetricsBesideTheRows:
    """Reviewers read the metrics, so they must describe these rows."""

    def test_changed_rows_are_in_conflict_with_their_metrics(self, data, out):
        """The user compares both files before deciding which is right."""
        path = write(data / "rows.jsonl", [row(1)])
        run(out, source(path))
        before = (data / "rows_metrics.json").read_bytes()
        write(path, [row(1), row(2)])

        with pytest.raises(MetricsConflict) as conflict:
            run(out, source(path))

        assert "Number of examples: was 1, is 2" in str(conflict.value)
        assert f"rm {data / 'rows_metrics.json'} {data / 'rows_conflict.json'}" in str(conflict.value)
        assert json.loads((data / "rows_conflict.json").read_text())["Number of examples"] == 2
        assert (data / "rows_metrics.json").read_bytes() == before
        assert len(read(out / "train.jsonl")) == 1

    def test_a_conflict_can_be_overwritten(self, data, out):
        """A user who changed the rows on purpose needs new metrics."""
        path = write(data / "rows.jsonl", [row(1)])
        run(out, source(path))
        write(path, [row(1), row(2)])
        with pytest.raises(MetricsConflict):
            run(out, source(path))

        done = run(out, source(path), overwrite=True)

        assert json.loads((data / "rows_metrics.json").read_text())["Number of examples"] == 2
        assert not (data / "rows_conflict.json").exists()
        assert any("overwritten" in note for note in done.notes)

    def test_a_file_that_agrees_is_not_touched(self, data, out):
        """Metrics are under version control, where a touched file looks changed."""
        path = write(data / "rows.jsonl", [row(1)])
        run(out, source(path))
        os.utime(data / "rows_metrics.json", ns=(1, 1))

        done = run(out, source(path))

        assert (data / "rows_metrics.json").stat().st_mtime_ns == 1
        assert done.datasets[0].state == "same"

    def test_a_file_of_an_earlier_version_is_completed(self, data, out):
        """Its figures are right; it only lacks new ones."""
        path = write(data / "rows.jsonl", [row(1)])
        run(out, source(path))
        file = data / "rows_metrics.json"
        complete = json.loads(file.read_text())
        file.write_text(json.dumps({key: value for key, value in complete.items() if "unique" not in key}))

        run(out, source(path))

        assert json.loads(file.read_text()) == complete


@settings(max_examples=30, deadline=None)
@given(st.lists(st.builds(row, st.integers(0, 3), note=st.text() | st.integers()), min_size=1, max_size=5))
def test_collating_collated_rows_changes_nothing(tmp_path_factory, rows):
    """Users collate the output of an earlier run."""
    folder = tmp_path_factory.mktemp("twice")
    path = folder / "rows.jsonl"
    path.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in rows))

    run(folder / "once", source(path))
    run(folder / "twice", source(folder / "once" / "train.jsonl"))

    assert (folder / "twice" / "train.jsonl").read_bytes() == (folder / "once" / "train.jsonl").read_bytes()


def test_large_data_is_read_by_several_processes_and_comes_out_the_same(data, out, monkeypatch):
    """Parallel work must not change a byte."""
    path = write(data / "rows.jsonl", [row(number, text=f"{number}") for number in range(400)])
    run(out, source(path))
    alone = [(out / name).read_bytes() for name in ("train.jsonl", "train_metrics.json")]
    monkeypatch.setattr(collating, "CHUNK", 4000)
    monkeypatch.setattr(collating, "SMALLEST_CHUNK", 4000)
    reports = []

    run(out, source(path), processes=2, watch=lambda *how: reports.append(how))

    assert [(out / name).read_bytes() for name in ("train.jsonl", "train_metrics.json")] == alone
    assert reports[-1] == ("collating", path.stat().st_size, path.stat().st_size)


def test_a_killed_run_leaves_the_old_files(data, out):
    """A training that reads the files meanwhile must read complete ones."""
    path = write(data / "rows.jsonl", [row(1)])
    run(out, source(path))
    before = {file: file.read_bytes() for folder in (out, data) for file in folder.iterdir() if file != path}
    write(path, [row(number) for number in range(3000)])
    script = out.parent / "killed.py"
    script.write_text(
        "import sys, time\n"
        "from pathlib import Path\n"
        "from nemo_gym.config.schema_datasets import DatasetConfig\n"
        "from nemo_gym.data import collate\n"
        "from nemo_gym.data.sources import DatasetSource\n"
        "path, out = map(Path, sys.argv[1:])\n"
        "collate.CHUNK = collate.SMALLEST_CHUNK = 10_000\n"
        "def watch(*how):\n"
        "    print('begun', flush=True)\n"
        "    time.sleep(600)\n"
        "config = DatasetConfig(name='train', type='train', jsonl_fpath=str(path), license='MIT')\n"
        "collate.collate([DatasetSource('agent', config, path, path.stem)], out, overwrite=True, watch=watch)\n"
    )

    with subprocess.Popen([sys.executable, script, path, out], stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "begun\n"
        os.kill(running.pid, signal.SIGKILL)
        running.wait(PATIENCE)

    assert {file: file.read_bytes() for file in before} == before


def test_a_full_disk_is_named(data):
    """The user must learn which disk is full."""
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    path = write(data / "rows.jsonl", [row(1)])

    with pytest.raises(DataError, match="cannot be read or written"):
        run(Path("/dev/full/out"), source(path))


def test_progress_is_reported_while_rows_are_read(data, out, monkeypatch):
    """Two gigabytes take a minute, and silence looks like a hang."""
    monkeypatch.setattr(collating, "CHUNK", 500)
    monkeypatch.setattr(collating, "SMALLEST_CHUNK", 500)
    path = write(data / "rows.jsonl", [row(number) for number in range(40)])
    reports = []

    run(out, source(path), watch=lambda what, done, total: reports.append((done, total)))

    size = path.stat().st_size
    assert len(reports) > 3
    assert reports == sorted(reports)
    assert reports[-1] == (size, size)


def test_without_the_tokenizer_a_note_says_what_is_left_out(data, out, monkeypatch):
    """Missing figures need an explanation."""
    monkeypatch.setattr("nemo_gym.data.row_metrics.token_counter", lambda: None)

    done = run(out, source(write(data / "rows.jsonl", [row(1)])))

    assert any("pip install 'nemo-gym[data]'" in note for note in done.notes)
    assert "Input length in OpenAI tokens" not in done.types[0].report


def test_a_row_of_another_agent_is_noted(data, out):
    """The usual cause is a file that was collated with another configuration."""
    path = write(data / "rows.jsonl", [row(1, agent_ref={"type": "responses_api_agents", "name": "old"})])

    done = run(out, source(path, "new"))

    assert f"{path}: 1 row referred to the agent 'old', now to 'new'" in done.notes
    assert read(out / "train.jsonl")[0]["agent_ref"]["name"] == "new"
