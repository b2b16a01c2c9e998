"""Prompt files fill rows, or explain why they cannot."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from nemo_gym.errors import ConfigError, ConfigPathNotFoundError
from nemo_gym.prompt import (
    PromptConfig,
    apply_prompt_to_row,
    fill_prompt,
    load_prompt_config,
    materialize_prompts,
    validate_prompt_compatibility,
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))
    return tmp_path


def prompt_file(root: Path, text: str) -> Path:
    path = root / "prompts" / "p.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_system_comes_before_user():
    """Chat templates refuse a system message anywhere else."""
    config = PromptConfig(system="You are {role}.", user="{{answer}} {question}")

    assert fill_prompt(config, {"role": "terse", "question": "2+2?"}) == [
        {"role": "system", "content": "You are terse."},
        {"role": "user", "content": "{answer} 2+2?"},
    ]
    assert fill_prompt(PromptConfig(user="hi"), {}) == [{"role": "user", "content": "hi"}]


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_the_content_of_a_row_is_never_a_template(text):
    """A question about Python's format strings must arrive as written."""
    (message,) = fill_prompt(PromptConfig(user="{q}"), {"q": text})

    assert message["content"] == text


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{a.__class__}", "is not a plain field name"),
        ("{a[0]}", "is not a plain field name"),
        ("{}", "has no field name"),
        ("{0}", "has no field name"),
        ("{a:{width}}", "field inside its format"),
        ("{a!x}", "unknown conversion"),
        ("{a", "expected '}'"),
        ("a}", "Single '}'"),
    ],
)
def test_a_template_may_only_name_fields(template, reason):
    """Format strings that reach into objects leak data."""
    with pytest.raises(ValidationError, match=reason):
        PromptConfig(user=template)


def test_formats_and_conversions_work():
    """Authors know them from Python."""
    (message,) = fill_prompt(PromptConfig(user="{price:.2f} {name!r}"), {"price": 1.5, "name": "x"})

    assert message["content"] == "1.50 'x'"


def test_a_missing_field_is_named_with_the_existing_ones():
    """The list shows a typo at once."""
    with pytest.raises(KeyError) as caught:
        fill_prompt(PromptConfig(user="{qestion}"), {"question": "?", "id": 1}, where="rows.jsonl:3")

    assert str(caught.value) == "rows.jsonl:3: the row lacks the field 'qestion' of the template; it has: id, question"


def test_a_value_that_does_not_take_the_format_is_named():
    """A text instead of a number is a mistake in the data, and must be reported as one."""
    with pytest.raises(ValueError, match=r"the format '\.2f' is invalid for 'price'"):
        fill_prompt(PromptConfig(user="{price:.2f}"), {"price": "cheap"})


def test_a_prompt_file_is_found_in_the_search_roots_and_read_once(root):
    """Benchmarks name their prompt relative to their tree."""
    prompt_file(root, "user: '{q}'\n")

    first = load_prompt_config("prompts/p.yaml")

    assert first.user == "{q}"
    assert load_prompt_config("prompts/p.yaml") is first
    assert load_prompt_config(root / "prompts" / "p.yaml") is first


def test_a_changed_prompt_file_is_read_again(root):
    """A user who edits a prompt expects the next run to use it."""
    prompt_file(root, "user: '{q}'\n")
    load_prompt_config("prompts/p.yaml")

    prompt_file(root, "user: 'Answer: {q}'\n")

    assert load_prompt_config("prompts/p.yaml").user == "Answer: {q}"


def test_a_missing_prompt_file_lists_the_paths_tried(root):
    """The usual cause is a relative path from another folder."""
    with pytest.raises(ConfigPathNotFoundError) as caught:
        load_prompt_config("prompts/none.yaml")

    assert str(root / "prompts" / "none.yaml") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("system: only\n", "user: Field required"),
        ("user: hi\nsytem: x\n", "did you mean 'system'"),
        ("user: [unclosed\n", "not valid YAML"),
        ("- a list\n", "valid dictionary"),
        ("user: '{a.b}'\n", "user: '{a.b}' is not a plain field name"),
    ],
)
def test_a_broken_prompt_file_is_named_with_its_problem(root, text, reason):
    """The author needs file and problem, not a traceback."""
    path = prompt_file(root, text)

    with pytest.raises(ValueError) as caught:
        load_prompt_config(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)


def test_an_error_while_filling_names_the_prompt_file(root):
    """A run may use many prompts."""
    path = prompt_file(root, "user: '{q}'\n")

    with pytest.raises(KeyError, match="lacks the field 'q'") as caught:
        fill_prompt(load_prompt_config(path), {"x": 1}, where="rows.jsonl:1")

    assert str(caught.value).startswith(f"{path}: rows.jsonl:1: ")


def test_the_rest_of_the_row_and_its_parameters_stay():
    """The prompt supplies only the input; temperature and tools come from the row."""
    row = {"q": "?", "responses_create_params": {"temperature": 0.5, "input": []}}

    filled = apply_prompt_to_row(row, PromptConfig(user="{q}"))

    assert filled["responses_create_params"] == {"temperature": 0.5, "input": [{"role": "user", "content": "?"}]}
    assert row["responses_create_params"]["input"] == []
    assert apply_prompt_to_row({"q": "?"}, PromptConfig(user="{q}"))["responses_create_params"].keys() == {"input"}


def test_rows_with_an_input_are_listed():
    """Filling the prompt would replace their input."""
    rows = [{"q": 1}, {"responses_create_params": {"input": "mine"}}, {"responses_create_params": {"input": [{}]}}]

    with pytest.raises(ValueError, match=r"2 rows have an input: 1, 2"):
        validate_prompt_compatibility(rows, PromptConfig(user="{q}"))
    validate_prompt_compatibility(rows[:1], PromptConfig(user="{q}"))


def test_a_rendered_dataset_names_its_prompt(root):
    """The origin of the rows must be known months later."""
    path = prompt_file(root, "user: '{q}'\n")
    rows, out = root / "rows.jsonl", root / "deep" / "out.jsonl"
    rows.write_text('{"q": "a"}\n\n{"q": "b"}\n')

    materialize_prompts(rows, "prompts/p.yaml", out)

    first, second = map(json.loads, out.read_text().splitlines())
    assert first == {
        "q": "a",
        "responses_create_params": {"input": [{"role": "user", "content": "a"}]},
        "prompt_config_used": str(path.resolve()),
    }
    assert second["q"] == "b"


@pytest.mark.parametrize(
    ("line", "kind", "reason"),
    [
        ('{"x": 1}', KeyError, "lacks the field 'q'"),
        ('{"q": 1', ConfigError, "not JSON"),
        ("[1]", ConfigError, "not a JSON object"),
        ('{"q": 1, "responses_create_params": {"input": "x"}}', ValueError, "already has"),
    ],
)
def test_a_bad_row_is_named_by_line_and_leaves_no_half_output(root, line, kind, reason):
    """Half a dataset that looks complete is worse than none."""
    prompt_file(root, "user: '{q}'\n")
    rows, out = root / "rows.jsonl", root / "out.jsonl"
    rows.write_text('{"q": "a"}\n' + line + "\n")
    out.write_text("earlier")

    with pytest.raises(kind) as caught:
        materialize_prompts(rows, "prompts/p.yaml", out)

    assert f"{rows}:2: " in str(caught.value)
    assert reason in str(caught.value)
    assert out.read_text() == "earlier"
    assert sorted(p.name for p in root.iterdir()) == ["out.jsonl", "prompts", "rows.jsonl"]


def test_a_missing_dataset_is_an_error(root):
    """A wrong path must not give an empty output."""
    prompt_file(root, "user: '{q}'\n")

    with pytest.raises(ConfigPathNotFoundError, match=r"none\.jsonl"):
        materialize_prompts(root / "none.jsonl", "prompts/p.yaml", root / "out.jsonl")
