"""From rollouts to training data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.catalog.row_problems import DataError
from nemo_gym.convert.chat_conversation import items_from_messages
from nemo_gym.data import export_files
from nemo_gym.data.export import ExportDatasetConfig, ExportResult, export
from nemo_gym.data.export_messages import read_conversation
from nemo_gym.errors import ConfigPathNotFoundError, ConversionError
from nemo_gym.journal import StoreError

TOOL = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": True,
}


def text(words: str, role: str = "assistant") -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": words}]}


def call(call_id: str = "c1", arguments: str = '{"a": 1}') -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "add", "arguments": arguments}


def answer(call_id: str = "c1", output: str = "2") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def reasoning_item(words: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": words}]}


def rollout(task: int, number: int, reward: Any, *output: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "responses_create_params": {"input": [text(f"question {task}", "user")], **more.pop("params", {})},
        "response": {"model": "m", "output": list(output) or [text(f"answer {task}.{number}")]},
        "reward": reward,
        "_ng_task_index": task,
        "_ng_rollout_index": number,
        "agent_ref": {"type": "responses_api_agents", "name": "solver"},
        **more,
    }


@pytest.fixture
def write_rollouts(tmp_path: Path) -> Callable[..., tuple[ExportResult, list[dict[str, Any]]]]:
    """Export rollouts and return the result and the written rows."""

    def run(rollouts: list[dict[str, Any]], kind: str, name: str = "out.jsonl", **options: Any) -> Any:
        source = tmp_path / "rollouts.jsonl"
        source.write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in rollouts))
        more = {key: options.pop(key) for key in ("runs", "inputs") if key in options}
        target = tmp_path / name
        config = ExportDatasetConfig(
            rollouts_jsonl_fpath=[str(source)], output_fpath=str(target), format=kind, **options
        )
        done = export(config, **more)
        return done, [orjson.loads(line) for line in target.read_bytes().splitlines()] if name == "out.jsonl" else []

    return run


SEVERAL = [rollout(task, number, reward) for task in (0, 1) for number, reward in enumerate([0.0, 1.0, 0.5])]


def test_the_best_rollout_of_each_task_becomes_an_example(write_rollouts: Any) -> None:
    """One conversation per task, with where it comes from beside it."""
    done, rows = write_rollouts(SEVERAL, "sft")

    assert [(row["task"], row["rollout"], row["reward"]) for row in rows] == [(0, 1, 1.0), (1, 1, 1.0)]
    assert rows[0]["messages"] == [
        {"role": "user", "content": "question 0"},
        {"role": "assistant", "content": "answer 0.1"},
    ]
    assert rows[0]["agent"] == "solver" and rows[0]["model"] == "m" and rows[0]["source"] == "rollouts.jsonl"
    assert (done.rows, done.rollouts, done.tasks) == (2, 6, 2)


def test_all_rollouts_above_a_threshold_become_examples(write_rollouts: Any) -> None:
    """Rejection sampling keeps every good rollout, not only the best."""
    _, rows = write_rollouts(SEVERAL, "sft", select="above", min_reward=0.5)

    assert [(row["task"], row["reward"]) for row in rows] == [(0, 1.0), (0, 0.5), (1, 1.0), (1, 0.5)]


def test_of_equal_rewards_the_earlier_rollout_is_the_best(write_rollouts: Any) -> None:
    """The same file gives the same examples, whatever order the rollouts finished in."""
    _, rows = write_rollouts([rollout(0, 2, 1.0), rollout(0, 1, 1.0), rollout(0, 3, 1.0)], "sft")

    assert [row["rollout"] for row in rows] == [1]


def test_a_reward_of_zero_is_no_example_unless_asked_for(write_rollouts: Any) -> None:
    """The best of three wrong answers is a wrong answer."""
    _, rows = write_rollouts([rollout(0, 0, 0.0), rollout(1, 0, 1.0)], "sft")
    _, all_rows = write_rollouts([rollout(0, 0, 0.0), rollout(1, 0, 1.0)], "sft", min_reward=0.0)

    assert [row["task"] for row in rows] == [1]
    assert [row["task"] for row in all_rows] == [0, 1]


def test_failures_are_never_exported(write_rollouts: Any) -> None:
    """A failure that carries a reward is still a failure."""
    failed = [
        rollout(0, 0, 1.0, _ng_failure_class="timeout"),
        rollout(1, 0, 1.0, _ng_no_persist=True),
        rollout(2, 0, None),
        rollout(3, 0, "1.0"),
        rollout(4, 0, 1.0, mask_sample=True),
    ]
    for kind in ("sft", "rl"):
        done, rows = write_rollouts([*failed, rollout(5, 0, 1.0)], kind)

        assert [row["task"] for row in rows] == [5]
        assert done.left_out == {"failed": 2, "without a finite reward": 2, "masked by the agent": 1}


def test_tasks_are_sorted_by_index_and_agent_whichever_rollout_finished_first(write_rollouts: Any) -> None:
    """Several agents may share task indices; a file with its lines in another order must give the same rows."""
    agents = [{"type": "responses_api_agents", "name": name} for name in ("adder", "solver")]
    rollouts = [rollout(task, 0, 1.0, agent_ref=agent) for task in (0, 1) for agent in agents]
    for lines in (rollouts, rollouts[::-1]):
        _, rows = write_rollouts(lines, "sft")

        assert [(row["task"], row["agent"]) for row in rows] == [
            (0, "adder"),
            (0, "solver"),
            (1, "adder"),
            (1, "solver"),
        ]


def test_a_duplicate_rollout_counts_once(write_rollouts: Any) -> None:
    """Files that were merged twice must not weigh a task double."""
    done, rows = write_rollouts([rollout(0, 0, 1.0), rollout(0, 0, 0.0), rollout(0, 1, 0.5)], "rl")

    assert rows[0]["num_rollouts"] == 2 and rows[0]["mean_reward"] == 0.75
    assert done.left_out == {"given twice": 1}


def test_a_pair_is_the_best_and_the_worst_of_a_task(write_rollouts: Any) -> None:
    """In the columns that TRL documents: prompt, chosen, rejected."""
    _, rows = write_rollouts(SEVERAL, "dpo")

    assert rows[0]["prompt"] == [{"role": "user", "content": "question 0"}]
    assert rows[0]["chosen"] == [{"role": "assistant", "content": "answer 0.1"}]
    assert rows[0]["rejected"] == [{"role": "assistant", "content": "answer 0.0"}]
    assert (rows[0]["chosen_rollout"], rows[0]["rejected_rollout"]) == (1, 0)
    assert (rows[0]["chosen_reward"], rows[0]["rejected_reward"]) == (1.0, 0.0)


def test_more_pairs_of_a_task_use_each_rollout_once_and_keep_the_gap(write_rollouts: Any) -> None:
    """A rollout in two pairs would be learned twice."""
    rewards = [0.0, 0.1, 0.2, 0.8, 0.9, 1.0]
    many = [rollout(0, number, reward) for number, reward in enumerate(rewards)]

    _, rows = write_rollouts(many, "dpo", pairs_per_task=5, min_gap=0.7)

    assert [(row["chosen_rollout"], row["rejected_rollout"]) for row in rows] == [(5, 0), (4, 1)]


def test_a_pair_that_teaches_nothing_is_skipped_and_told(write_rollouts: Any) -> None:
    """The same answer with two rewards says something about the verifier, not about the answer."""
    same = [rollout(0, 0, 0.0, text("4")), rollout(0, 1, 1.0, text("4"))]
    other = [rollout(1, 0, 0.0), rollout(1, 1, 1.0, params={"input": "another question"})]

    done, rows = write_rollouts([*same, *other, rollout(2, 0, 0.0), rollout(2, 1, 1.0)], "dpo")

    assert [row["task"] for row in rows] == [2]
    assert done.skipped == {"both completions of a pair are equal": 1, "the prompts of a pair differ": 1}


def test_rl_rows_carry_the_fields_that_were_sent(write_rollouts: Any, tmp_path: Path) -> None:
    """What the verifier needs again, not what it answered last time."""
    sent = tmp_path / "sent.jsonl"
    lines = [{**rollout(task, 0, None), "expected_answer": task * 2} for task in (0, 1)]
    sent.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    many = [{**record, "extracted": "4"} for record in SEVERAL]

    _, rows = write_rollouts(many, "rl", inputs={tmp_path / "rollouts.jsonl": sent})
    _, without = write_rollouts(many, "rl")

    assert [row["metadata"] for row in rows] == [{"expected_answer": 0}, {"expected_answer": 2}]
    assert rows[1]["prompt"] == [{"role": "user", "content": "question 1"}]
    assert (rows[0]["num_rollouts"], rows[0]["mean_reward"]) == (3, 0.5)
    assert (rows[0]["min_reward"], rows[0]["max_reward"]) == (0.0, 1.0)
    assert without[0]["metadata"] == {"extracted": "4"}


def test_rl_rows_can_be_limited_to_tasks_with_a_signal(write_rollouts: Any) -> None:
    """A task that always or never succeeds moves no gradient in GRPO."""
    _, rows = write_rollouts([*SEVERAL[:3], rollout(1, 0, 1.0), rollout(1, 1, 1.0)], "rl", min_gap=0.5)

    assert [row["task"] for row in rows] == [0]


def test_calls_and_tools_take_the_documented_form(write_rollouts: Any) -> None:
    """Arguments are an object, the answer names its tool, the tools stand in their own column."""
    episode = (reasoning_item("hm"), call(), answer(), text("2"))
    _, rows = write_rollouts(
        [rollout(0, 0, 1.0, *episode, params={"tools": [TOOL], "instructions": "Be brief."})], "sft"
    )

    function = {name: TOOL[name] for name in ("name", "description", "parameters", "strict")}
    assert rows[0]["tools"] == [{"type": "function", "function": function}]
    assert rows[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "question 0"},
        {
            "role": "assistant",
            "content": "<think>hm</think>",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "content": "2", "tool_call_id": "c1", "name": "add"},
        {"role": "assistant", "content": "2"},
    ]
    assert rows[0]["loss_mask"] == [0, 0, 1, 0, 1]


def test_only_what_the_rollout_added_is_learned(write_rollouts: Any) -> None:
    """An assistant message in the prompt is an example, not the model's answer."""
    shown = [text("1+1?", "user"), text("2"), text("2+2?", "user")]
    record = rollout(0, 0, 1.0, call(), answer(), text("4"), params={"input": shown})

    _, rows = write_rollouts([record], "sft")
    _, with_tools = write_rollouts([record], "sft", loss_on=["assistant", "tool"])

    assert rows[0]["loss_mask"] == [0, 0, 0, 1, 0, 1]
    assert with_tools[0]["loss_mask"] == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("reasoning", "want"),
    [
        ("inline", {"role": "assistant", "content": "<think>hm</think>4"}),
        ("separate", {"role": "assistant", "content": "4", "reasoning_content": "hm"}),
        ("drop", {"role": "assistant", "content": "4"}),
    ],
)
def test_reasoning_is_written_in_the_chosen_style(write_rollouts: Any, reasoning: str, want: dict[str, str]) -> None:
    """Chat templates differ in where they expect reasoning."""
    _, rows = write_rollouts([rollout(0, 0, 1.0, reasoning_item("hm"), text("4"))], "sft", reasoning=reasoning)

    assert rows[0]["messages"][-1] == want


@pytest.mark.parametrize(("developer", "role"), [("system", "system"), ("keep", "developer")])
def test_the_developers_rules_reach_the_chat_template(write_rollouts: Any, developer: str, role: str) -> None:
    """Templates that do not know the role leave its message out; only those for gpt-oss want it."""
    request = {"input": [text("Be brief.", "developer"), text("2+2?", "user")]}

    _, rows = write_rollouts([rollout(0, 0, 1.0, params=request)], "rl", developer=developer)

    assert [message["role"] for message in rows[0]["prompt"]] == [role, "user"]


def test_the_order_in_which_rollouts_finished_changes_nothing(write_rollouts: Any) -> None:
    """The same rollouts are the same training data, byte for byte."""
    many = [rollout(task, number, number / 3) for task in range(5) for number in range(4)]

    for kind in ("sft", "dpo", "rl"):
        _, rows = write_rollouts(many, kind)
        _, shuffled = write_rollouts(sorted(many, key=lambda record: str(record["response"])[::-1]), kind)

        assert shuffled == rows


def test_arguments_that_are_no_object_stay_as_the_model_wrote_them(write_rollouts: Any) -> None:
    """Changing them would train on text that was never generated."""
    broken = [call("c1", '{"a": '), call("c2", "[1]"), text("done")]

    _, rows = write_rollouts([rollout(0, 0, 1.0, *broken)], "sft")

    assert [one["function"]["arguments"] for one in rows[0]["messages"][1]["tool_calls"]] == ['{"a": ', "[1]"]


def test_what_cannot_be_said_is_skipped_and_counted(write_rollouts: Any) -> None:
    """Images, hosted tools and an empty answer have no place in a text conversation."""
    image = {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
    bad = [
        rollout(0, 0, 1.0, params={"input": [image]}),
        rollout(1, 0, 1.0, {"type": "web_search_call", "id": "w", "status": "completed"}),
        rollout(2, 0, 1.0, answer()),
    ]

    done, rows = write_rollouts([*bad, rollout(3, 0, 1.0)], "sft")

    assert [row["task"] for row in rows] == [3]
    assert sum(done.skipped.values()) == 3 and done.skipped["the response has no message of the model"] == 1


def test_a_row_names_the_run_it_comes_from(write_rollouts: Any, tmp_path: Path) -> None:
    """Training data must be traceable to its run."""
    _, rows = write_rollouts(
        [rollout(0, 0, 1.0, _ng_rollout_id="r-7")], "sft", runs={tmp_path / "rollouts.jsonl": "run-1"}
    )

    assert rows[0]["run"] == "run-1" and rows[0]["rollout_id"] == "r-7"


def test_rollouts_without_numbers_are_grouped_by_their_request(write_rollouts: Any) -> None:
    """Files of other tools have no task index."""
    decode_json_parts = [
        {key: value for key, value in record.items() if not key.startswith("_ng_")}
        for record in [rollout(0, 0, 0.0, text("a")), rollout(1, 0, 0.5), rollout(0, 1, 1.0, text("b"))]
    ]

    _, rows = write_rollouts(decode_json_parts, "rl")

    assert [row["num_rollouts"] for row in rows] == [2, 1]
    assert [row["task"] for row in rows] == [0, 1]


@pytest.mark.parametrize(
    ("rollouts", "kind", "options", "message"),
    [
        ([], "sft", {}, "there are no rollouts here"),
        ([rollout(0, 0, 1.0, _ng_failure_class="timeout")], "sft", {}, "no rollout has a reward: 1 failed"),
        ([rollout(0, 0, 0.0)], "sft", {}, r"no rollout has a reward above 0 \(1 scored rollouts of 1 task; the best"),
        (SEVERAL, "sft", {"min_reward": 2.0}, "of at least 2 .*the best reward is 1"),
        ([rollout(0, 0, 0.0), rollout(1, 0, 1.0)], "dpo", {}, "no two rollouts of a task to compare"),
        ([rollout(0, 0, 1.0), rollout(0, 1, 1.0)], "dpo", {}, "no task has rollouts whose rewards differ"),
        (SEVERAL, "dpo", {"min_gap": 3.0}, "differ by 3 or more"),
        (
            [rollout(0, 0, 1.0, answer())],
            "sft",
            {},
            "no chosen rollout can be written: 1 the response has no message of the model",
        ),
    ],
)
def test_nothing_that_qualifies_is_told_with_the_reason_and_writes_nothing(
    write_rollouts: Any, tmp_path: Path, rollouts: Any, kind: str, options: Any, message: str
) -> None:
    """An empty training file is found out by the trainer, hours later."""
    (tmp_path / "out.jsonl").write_bytes(b"earlier")

    with pytest.raises(DataError, match=message):
        write_rollouts(rollouts, kind, **options)

    assert (tmp_path / "out.jsonl").read_bytes() == b"earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "rollouts.jsonl"]


def config_for(tmp_path: Path, **more: Any) -> ExportDatasetConfig:
    options = {"rollouts_jsonl_fpath": str(tmp_path / "r.jsonl"), "output_fpath": str(tmp_path / "o.jsonl")}
    return ExportDatasetConfig(**{**options, "format": "sft", **more})


def test_a_damaged_line_is_named_and_a_torn_last_one_is_not_there(tmp_path: Path) -> None:
    """A crash leaves half a line at the end; anything else is damage."""
    whole = orjson.dumps(rollout(0, 0, 1.0)) + b"\n"
    (tmp_path / "r.jsonl").write_bytes(whole + b'{"reward": 1')
    assert export(config_for(tmp_path)).rows == 1

    (tmp_path / "r.jsonl").write_bytes(whole + b'{"reward": 1\n' + whole)
    with pytest.raises(StoreError, match=r"r.jsonl:2: this line is damaged"):
        export(config_for(tmp_path))


def test_a_reward_of_nan_is_left_out_as_a_failure(tmp_path: Path) -> None:
    """Python writes NaN, which is not JSON; one such line must not make a file unusable."""
    bad = orjson.dumps(rollout(0, 1, 0.5)).replace(b"0.5", b"NaN") + b"\n"
    (tmp_path / "r.jsonl").write_bytes(orjson.dumps(rollout(0, 0, 1.0)) + b"\n" + bad)

    result = export(config_for(tmp_path))

    assert (result.rows, dict(result.left_out)) == (1, {"failed": 1})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A mistyped path is the most frequent mistake."""
    with pytest.raises(ConfigPathNotFoundError, match=r"file not found: '.*r.jsonl'"):
        export(config_for(tmp_path))


def test_several_files_are_several_runs(tmp_path: Path) -> None:
    """Task 0 of one run is not task 0 of another."""
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for number, path in enumerate(paths):
        path.write_bytes(orjson.dumps(rollout(0, 0, 1.0, text(f"from {number}"))) + b"\n")

    done = export(config_for(tmp_path, rollouts_jsonl_fpath=[str(path) for path in paths]))

    rows = [orjson.loads(line) for line in done.path.read_bytes().splitlines()]
    assert [(row["source"], row["messages"][-1]["content"]) for row in rows] == [
        ("a.jsonl", "from 0"),
        ("b.jsonl", "from 1"),
    ]


def test_above_needs_a_threshold_and_the_name_an_ending(tmp_path: Path) -> None:
    """A default would silently choose the wrong rollouts or format."""
    with pytest.raises(ValueError, match="min_reward"):
        config_for(tmp_path, select="above")
    with pytest.raises(ValueError, match=r"\.jsonl or \.parquet"):
        config_for(tmp_path, output_fpath="out.csv")


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a Parquet file, with their JSON read and their absent fields left out."""
    parquet = pytest.importorskip("pyarrow.parquet")

    def decode_json_parts(value: Any, kind: Any) -> Any:
        if value is None:
            return None
        if kind == export_files.JSON:
            return orjson.loads(value)
        if isinstance(kind, list):
            return [decode_json_parts(item, kind[0]) for item in value]
        if isinstance(kind, dict):
            return {key: decode_json_parts(value[key], inner) for key, inner in kind.items() if value[key] is not None}
        return value

    return [
        {key: decode_json_parts(value, export_files.COLUMN_TYPES[key]) for key, value in row.items()}
        for row in parquet.read_table(path).to_pylist()
    ]


@pytest.mark.parametrize("kind", ["sft", "dpo", "rl"])
def test_parquet_says_what_json_lines_say(write_rollouts: Any, tmp_path: Path, kind: str) -> None:
    """The ending of the name changes the format and nothing else."""
    pytest.importorskip("pyarrow")
    many = [
        rollout(
            0,
            0,
            0.0,
            reasoning_item("hm"),
            call(),
            answer(),
            text("2"),
            params={"tools": [TOOL]},
            extra={"k": [1, None]},
        ),
        rollout(0, 1, 1.0, call(arguments="{}"), answer(), text("3"), params={"tools": [TOOL]}, extra={"k": "v"}),
        *SEVERAL[3:],
    ]

    _, rows = write_rollouts(many, kind)
    write_rollouts(many, kind, name="out.parquet")

    assert parquet_rows(tmp_path / "out.parquet") == rows


def test_parquet_comes_in_groups_so_that_memory_stays_flat(
    write_rollouts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million rollouts must not be held in memory."""
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(export_files, "ROWS_PER_GROUP", 10)

    write_rollouts([rollout(task, 0, 1.0) for task in range(35)], "sft", name="out.parquet")

    rows = parquet.ParquetFile(tmp_path / "out.parquet")
    assert [rows.metadata.row_group(n).num_rows for n in range(rows.num_row_groups)] == [10, 10, 10, 5]
    assert [row["task"] for row in parquet_rows(tmp_path / "out.parquet")] == list(range(35))


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def episodes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Turns of a model: thoughts, text, calls with their answers, and a last word."""
    items: list[dict[str, Any]] = []
    for turn in range(draw(st.integers(0, 3))):
        thoughts = draw(st.lists(WORDS, max_size=2))
        if thoughts:
            summary = [{"type": "summary_text", "text": thought} for thought in thoughts]
            items.append({"type": "reasoning", "id": "rs", "summary": summary})
        words = draw(WORDS)
        if words:
            items.append(text(words))
        calls = [f"call-{turn}-{n}" for n in range(draw(st.integers(1, 3)))]
        for call_id in calls:
            arguments = json.dumps(draw(st.dictionaries(WORDS, VALUES, max_size=3)))
            items.append(call(call_id, draw(st.sampled_from([arguments, "not json", "[1, 2]", '"text"']))))
        items += [answer(call_id, draw(WORDS)) for call_id in calls]
    return [*items, text(draw(WORDS))]


def conversation_facts(items: list[dict[str, Any]]) -> list[Any]:
    """Reduce a conversation to its content, without ids and spelling."""
    facts: list[Any] = []
    for item in items:
        if item["type"] == "message":
            content = item["content"]
            words = content if isinstance(content, str) else "".join(part["text"] for part in content)
            facts.append((item["role"], words))
        elif item["type"] == "reasoning":
            facts.append(("thought", [part["text"] for part in item["summary"]]))
        elif item["type"] == "function_call":
            try:
                arguments = json.loads(item["arguments"])
            except ValueError:
                arguments = item["arguments"]
            facts.append(("call", item["call_id"], item["name"], arguments))
        else:
            facts.append(("answer", item["call_id"], item["output"]))
    return facts


def as_chat(message: dict[str, Any]) -> dict[str, Any]:
    """An exported message in the Chat dialect, where arguments are text and answers do not name their tool."""
    chat = {key: value for key, value in message.items() if key != "name"}
    calls = [{**one, "function": dict(one["function"])} for one in message.get("tool_calls") or ()]
    for one in calls:
        arguments = one["function"]["arguments"]
        one["function"]["arguments"] = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {**chat, "tool_calls": calls} if calls else chat


@settings(max_examples=60, deadline=None)
@given(prompt=WORDS, episode=episodes())
def test_every_exported_conversation_comes_back_the_same(prompt: str, episode: list[dict[str, Any]]) -> None:
    """Nothing that the model or a tool said is lost, added or moved on the way to the trainer."""
    request = [text("rules", "system"), text(prompt, "user")]
    record = {"responses_create_params": {"input": request}, "response": {"output": episode}}

    answer = read_conversation(orjson.loads(orjson.dumps(record)))
    stored = orjson.loads(orjson.dumps(answer.messages))
    back = items_from_messages([as_chat(message) for message in stored], new_id=lambda prefix: prefix)

    assert conversation_facts(back) == conversation_facts([*request, *episode])
    assert len(answer.loss_mask(["assistant"])) == len(answer.messages)


@settings(max_examples=25, deadline=None)
@given(episode=episodes())
def test_parquet_keeps_every_conversation_too(episode: list[dict[str, Any]], tmp_path_factory: Any) -> None:
    """Both formats must train the same model."""
    pytest.importorskip("pyarrow")
    folder: Path = tmp_path_factory.mktemp("export")
    (folder / "r.jsonl").write_bytes(orjson.dumps(rollout(0, 0, 1.0, *episode)) + b"\n")

    done = export(config_for(folder, output_fpath=str(folder / "o.parquet")))

    (row,) = parquet_rows(done.path)
    back = items_from_messages([as_chat(message) for message in row["messages"]], new_id=lambda prefix: prefix)
    assert conversation_facts(back) == [("user", "question 0"), *conversation_facts(episode)]


def test_a_record_without_its_parts_says_so() -> None:
    """The reason is counted and shown instead of a traceback."""
    with pytest.raises(ConversionError, match="response is not an object"):
        read_conversation({"responses_create_params": {"input": "x"}})


def test_half_a_character_can_be_exported(tmp_path: Path) -> None:
    """Models write it as an escape inside arguments, other tools also in the text of a line."""
    odd = rollout(0, 0, 1.0, call(arguments='{"a": "\\ud83d"}'), answer(), text("MARK"))
    line = json.dumps(odd).replace("MARK", "\\ud83d")
    source = tmp_path / "odd.jsonl"
    source.write_text(line + "\n")
    target = tmp_path / "out.jsonl"

    export(ExportDatasetConfig(rollouts_jsonl_fpath=[str(source)], output_fpath=str(target), format="sft"))

    [row] = [orjson.loads(written) for written in target.read_bytes().splitlines()]
    assert "\ufffd" in str(row)
