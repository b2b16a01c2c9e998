"""Tasks of Inspect give the scores and turns that its evaluation gives."""

import asyncio
import json
from typing import Any

import pytest
from inspect_ai import eval_async
from inspect_ai.model import ChatMessageAssistant, ModelOutput, ModelUsage, get_model
from inspect_ai.model._call_tools import parse_tool_call
from inspect_ai.model._model_output import ChatCompletionChoice
from inspect_ai.scorer import value_to_float

from nemo_gym.adapters.rows import write_missing_rows
from nemo_gym.config.environment_sources import parse_name
from nemo_gym.errors import ConfigError
from resources_servers.inspect.episode import as_message, load_task
from tests.sources.conftest import ROOT, Evaluation, actions_of, source
from tests.sources.packages import inspect_tasks
from tests.sources.policies import choose

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the package, with the newest tenacity
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
TASKS = "tests.sources.packages.inspect_tasks"


def reply_function(policy):
    """A function for the package's scripted model: the last message and the number of its turns decide."""

    def reply(messages, tools, tool_choice, config) -> ModelOutput:
        number = sum(message.role == "assistant" for message in messages)
        last = messages[-1]
        chosen = policy(last.error.message if getattr(last, "error", None) else last.text, number)
        fields = chosen if isinstance(chosen, dict) else {"text": chosen}
        calls = [
            parse_tool_call(f"{number}-{position}", call["name"], json.dumps(call["arguments"]))
            for position, call in enumerate(fields.get("tool_calls", ()))
        ]
        message = ChatMessageAssistant(content=fields.get("text", ""), tool_calls=calls or None)
        stop = "tool_calls" if calls else "stop"
        return ModelOutput(choices=[ChatCompletionChoice(message=message, stop_reason=stop)], usage=ModelUsage())

    return reply


def play_alone(name: str, policy) -> list[Any]:
    """Evaluate a task in the package's own runner; return its samples."""
    model = get_model("mockllm/model", custom_outputs=reply_function(policy), memoize=False)
    task = getattr(inspect_tasks, name)()
    (log,) = asyncio.run(eval_async(task, model=model, log_dir="memory://alone", ctl_server=False, acp_server=False))
    assert log.status == "success", log.error
    return log.samples


def shown_of(record: dict[str, Any]) -> list[str]:
    items = record["response"]["output"]
    return [
        item.get("output", item.get("content"))
        for item in items
        if item["type"] == "function_call_output" or item.get("role") == "user"
    ]


def text_of(message: Any) -> str:
    return message.error.message if getattr(message, "error", None) else message.text


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        ("numbers", choose),
        ("choices", inspect_tasks.choice_policy),
        ("tools", inspect_tasks.tool_policy),
        ("talk", choose),
    ],
)
def test_scores_and_turns_are_those_of_the_package(evaluation: Evaluation, name, policy) -> None:
    """Solvers change the prompt, call tools that fail, and run into limits: all must end as in the package."""
    chosen = f"{policy.__module__}:{policy.__name__}"
    records = evaluation.run([f"inspect:{TASKS}:{name}?size=12"], "--concurrency", "12", GYM_TEST_POLICY=chosen)

    assert len(records) == 12
    for record, sample in zip(records, play_alone(name, policy)[:12], strict=True):
        first = next(iter(sample.scores.values()))
        assert record["reward"] == value_to_float()(first.value)
        assert record["info"]["scores"] == {key: score.value for key, score in sample.scores.items()}
        replies = [one.text for one in sample.messages if one.role == "assistant" and one.text]
        assert actions_of(record) == replies
        begin = next(number for number, one in enumerate(sample.messages) if one.role == "assistant")
        shown = [text_of(one) for one in sample.messages[begin:] if one.role != "assistant"]
        assert shown_of(record) == (shown[:-1] if record["ending"] == "message_limit" else shown)
        assert record["truncated"] == (sample.limit is not None)
    assert len({record["reward"] for record in records}) > 1


def test_another_score_or_a_part_of_it_is_the_reward_on_request(evaluation: Evaluation) -> None:
    """A task may have several scores, of which a training run needs one."""
    records = evaluation.run([f"inspect:{TASKS}:numbers?size=4&scorer=parts.length"], GYM_TEST_POLICY="choose")

    assert [record["reward"] for record in records] == [len(actions_of(record)[0]) / 100 for record in records]


def test_a_scorer_asks_the_model_server_of_its_name(evaluation: Evaluation, tmp_path) -> None:
    """The policy must neither grade itself nor be trained on what the grader reads."""
    grades = {"entrypoint": "app.py", "script": [{"text": "Well. GRADE: C"}], "after_last": "cycle"}
    config = tmp_path / "grader.yaml"
    config.write_text(json.dumps({"judge": {"responses_api_models": {"scripted_model": grades}}}))
    records = evaluation.run([f"inspect:{TASKS}:with_grader?size=6&grader=judge"], "--config", str(config))

    assert [record["reward"] for record in records] == [1.0] * 6
    for record in records:
        assert "[SUBMISSION]" in json.dumps(record["other_turns"][0]["observation"]).upper()
        assert len(actions_of(record)) == 1


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("talk?fault=raise&size=2", "lost sample"),
        ("talk?fault=exit&size=2", "its process ended with status 7"),
        ("talk?fault=hang&size=2", "did not answer within 20 s"),
        ("talk?fault=other&size=2", "only a conversation that grows"),
        ("with_grader?size=2", "add grader=MODEL_SERVER"),
    ],
)
def test_a_fault_of_the_task_is_a_failure_without_a_reward(evaluation: Evaluation, task, reason) -> None:
    """The package scores an error as 0 if a task says so; a policy would learn from it."""
    name = f"inspect:{TASKS}:{task}"
    limit = f"++{parse_name(name, [ROOT]).instance}.resources_servers.inspect.step_timeout_seconds=20"
    records = evaluation.run([name], "--max-attempts", "1", limit, may_fail=True)

    assert (records, len(evaluation.failed)) == ([], 2)
    assert all(reason in failure["_ng_failure"]["message"] for failure in evaluation.failed)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("local", "outside of a sandbox"),
        ("look", "no task of Inspect"),
        ("missing", "has no attribute 'missing'"),
        ("number_samples", "no task of Inspect"),
    ],
)
def test_what_cannot_be_run_is_refused_before_the_run(name, reason) -> None:
    """The local sandbox of the package runs code of the model as this user."""
    with pytest.raises(ConfigError, match=reason):
        write_missing_rows({"config_paths": [f"inspect:{TASKS}:{name}"]}, [ROOT], notify=lambda _: None)


def test_only_a_function_that_makes_a_task_is_called(tmp_path) -> None:
    """A name comes from a command line or a row of a data file, which must not be able to run any function."""
    path = tmp_path / "called"
    with pytest.raises(TypeError, match="os:system is no task of Inspect"):
        load_task("os:system", {"command": f"touch {path}"})
    assert not path.exists()

    assert load_task(f"{TASKS}:talk", {"fault": "raise"}).name == "talk"
    assert load_task(f"{TASKS}:READY", {}) is inspect_tasks.READY
    with pytest.raises(TypeError, match="takes no setting 'fault'"):
        load_task(f"{TASKS}:READY", {"fault": "raise"})


def test_arguments_of_earlier_tool_calls_are_json() -> None:
    """The model reads them in the prompt of its next turn, and must not learn the syntax of Python."""
    arguments = {"shelf": None, "is_open": True, "name": "it's"}
    call = parse_tool_call("1", "look", json.dumps(arguments))
    message = as_message(ChatMessageAssistant(content="", tool_calls=[call]))

    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == arguments


def test_a_rollout_that_ends_at_max_turns_has_no_reward(evaluation: Evaluation) -> None:
    """No scorer has seen it; a reward of 0 would teach that a long attempt is a wrong one."""
    name = f"inspect:{TASKS}:talk?size=2&max_turns=1"
    records = evaluation.run([name], may_fail=True, GYM_TEST_POLICY="tests.sources.policies:choose_wrongly")

    assert records == []
    kinds = [(failure["_ng_failure_class"], failure["_ng_failure"]["which"]) for failure in evaluation.failed]
    assert kinds == [("limit", "steps")] * 2


def test_24_samples_at_once_do_not_mix(evaluation: Evaluation) -> None:
    """Every sample has its process; the package allows one evaluation in each."""
    records = evaluation.run([f"inspect:{TASKS}:talk?size=12"], "--concurrency", "24", "--num-repeats", "2")
    by_task: dict[int, set[str]] = {}
    for record in records:
        by_task.setdefault(record["_ng_task_index"], set()).add(json.dumps([shown_of(record), actions_of(record)]))

    assert len(records) == 24
    assert {len(shown) for shown in by_task.values()} == {1}


def test_there_is_no_list_of_ids_because_tasks_are_imported() -> None:
    """Any `module:task` may be one."""
    assert source("inspect").ids == {}
