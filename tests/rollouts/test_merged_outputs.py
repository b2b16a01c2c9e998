"""Outputs of several runs as one."""

import orjson
import pytest

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.rollouts.merged_outputs import MergedOutputs, find_outputs


def write(path, *places, tail=b""):
    rows = [{"_ng_task_index": task, "_ng_rollout_index": rollout, "from": path.name} for task, rollout in places]
    path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows) + tail)


def test_shards_are_found_once_and_sidecars_are_not_shards(tmp_path):
    """A glob like `*.jsonl` also matches failures, inputs and the merged file of last time."""
    beside = ("a_failures.jsonl", "a_materialized_inputs.jsonl", "a_reward_profiling.jsonl")
    deeper = ("a_previous/a.jsonl", "a/preprocessed_datasets/train.jsonl")
    for name in ("b.jsonl", "a.jsonl", "out.jsonl", *beside, *deeper):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    shards = find_outputs(f"{tmp_path}/**/*.jsonl, {tmp_path}/a.jsonl", output=tmp_path / "out.jsonl")

    assert [path.name for path in shards] == ["a.jsonl", "b.jsonl"]


def test_an_output_that_is_alone_is_scored_again(tmp_path):
    """After a metric changed, users score the merged file of last time."""
    (tmp_path / "out.jsonl").write_text("")

    assert find_outputs(f"{tmp_path}/out.jsonl", output=tmp_path / "out.jsonl") == [tmp_path / "out.jsonl"]


def test_a_pattern_that_matches_nothing_is_an_error(tmp_path):
    """An empty result would look like a score of nothing."""
    with pytest.raises(ConfigPathNotFoundError, match=r"no rollouts match"):
        find_outputs(f"{tmp_path}/*.jsonl", output=tmp_path / "out.jsonl")


def sorted_lines(paths):
    shards = MergedOutputs(paths)
    list(shards.records())
    return shards.sorted_lines()


def test_records_of_all_shards_come_sorted(tmp_path):
    """The merged file must not depend on the order of the shards."""
    write(tmp_path / "a", (2, 0), (0, 1), tail=b'{"_ng_task_index": 7, "torn')
    write(tmp_path / "b", (1, 0), (0, 0))

    rows = list(map(orjson.loads, sorted_lines([tmp_path / "a", tmp_path / "b"])))

    assert [(row["_ng_task_index"], row["_ng_rollout_index"], row["from"]) for row in rows] == [
        (0, 0, "b"),
        (0, 1, "a"),
        (1, 0, "b"),
        (2, 0, "a"),
    ]


def test_merged_lines_are_copied_as_they_are(tmp_path):
    """Merging moves lines; it does not rewrite anybody's numbers."""
    (tmp_path / "a").write_bytes(b'{"_ng_task_index":1,"_ng_rollout_index":0,"x":1.50}\n')
    (tmp_path / "b").write_bytes(b'{"x": 2,  "_ng_rollout_index":0, "_ng_task_index":0}')
    shards = MergedOutputs([tmp_path / "a", tmp_path / "b"])

    assert len(list(shards.records())) == 2
    assert list(shards.sorted_lines()) == [
        b'{"x": 2,  "_ng_rollout_index":0, "_ng_task_index":0}\n',
        b'{"_ng_task_index":1,"_ng_rollout_index":0,"x":1.50}\n',
    ]


def test_the_same_rollout_in_two_shards_is_refused(tmp_path):
    """Counting it twice would weigh its task double."""
    write(tmp_path / "a", (0, 0))
    write(tmp_path / "b", (0, 0))

    with pytest.raises(ConfigError, match="task 0, rollout 0 occurs twice"):
        list(map(orjson.loads, sorted_lines([tmp_path / "a", tmp_path / "b"])))


@pytest.mark.parametrize("line", [b"[]\n", b"{}\n", b"nonsense\n"])
def test_a_line_that_is_no_rollout_is_refused(tmp_path, line):
    """The file and the line are named."""
    (tmp_path / "a").write_bytes(line)

    with pytest.raises(ConfigError, match=r"a:1: this line is not a rollout"):
        list(sorted_lines([tmp_path / "a"]))


def test_lines_of_other_tools_are_named_and_merged_as_json(tmp_path):
    """Python writes NaN; what we merge can be read by anybody, and such a reward stays a failure."""
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": NaN}\n'
        '{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "text": "NaN"}\n'
    )
    shards = MergedOutputs([path])

    records = list(shards.records())

    assert shards.lenient_lines == [f"{path}:1"]
    assert [record.get("_ng_failure_class") for record in records] == ["invalid_reward", None]
    assert [orjson.loads(line) for line in shards.sorted_lines()] == [records[1], records[0]]
