"""Which run this is, and what makes it another."""

import orjson
import pytest
from omegaconf import OmegaConf

from nemo_gym.journal import StoreError
from nemo_gym.rollouts.run_identity import (
    Identity,
    RowHash,
    code_versions,
    file_stat,
    has_same_rows,
    read_identity,
    server_fields,
    write_identity,
)


def identity(**changes):
    return Identity(
        **{
            "rows": "blake2b:1",
            "plan": {"responses_create_params": {"temperature": 0.5}, "limit": None},
            "repeats": 2,
            "servers": {"m.openai_model.model": "x"},
            "code": {"nemo-gym": "1"},
            **changes,
        }
    )


def config(**fields):
    return OmegaConf.create(
        {
            "secret": "sk-very-secret-value",
            "m": {"responses_api_models": {"openai_model": {"openai_api_key": "${secret}", "model": "x", **fields}}},
            "r": {"resources_servers": {"arithmetic": {"tolerance": 0.1, "nested": {"deep": [1, 2]}}}},
            "head_server": {"host": "h", "port": 1},
        }
    )


def test_the_same_run_has_no_differences():
    """Otherwise nothing could be resumed."""
    assert identity().differences(identity()) == []


def test_every_difference_is_listed_with_both_values():
    """A refused user must see at a glance which of fifty settings it was."""
    now = identity(
        rows="blake2b:2",
        plan={"responses_create_params": {"temperature": 0.7}, "limit": None, "agent_name": "a"},
        servers={"m.openai_model.model": "y"},
        code={"nemo-gym": "2"},
    )

    assert identity().differences(now) == [
        "the input rows, or how many of them are used",
        'agent_name: (nothing) -> "a"',
        'responses_create_params: {"temperature": 0.5} -> {"temperature": 0.7}',
        'm.openai_model.model: "x" -> "y"',
        'code: nemo-gym: "1" -> "2"',
    ]


def test_long_values_are_shortened_and_still_differ():
    """A changed prompt must not look unchanged."""
    before = identity(plan={"prompt": "a" * 1000})
    (line,) = before.differences(identity(plan={"prompt": "a" * 999 + "b"}))

    assert len(line) < 250
    old, new = line.split(" -> ")
    assert old.removeprefix("prompt: ") != new


def test_repeats_and_limits_are_not_differences():
    """Those a resumed run may change."""
    assert identity().differences(identity(repeats=9, limits={"max_steps": 1}, file_stat={"size": 1})) == []


def test_the_identity_contains_no_secret():
    """The file is shared with the results."""
    assert "very-secret" not in orjson.dumps(server_fields(config())).decode()
    assert server_fields(config())["m.openai_model.openai_api_key"] == "****"


def test_where_a_server_runs_is_not_part_of_it():
    """A run begun on one machine is continued on another, with another endpoint for the same model."""
    here = config(host="a", port=1, openai_base_url="http://a/v1", max_concurrent_requests=4, num_workers=2)
    there = config(host="b", port=2, openai_base_url="http://b/v1", max_concurrent_requests=9, num_workers=1)

    assert server_fields(here) == server_fields(there) == server_fields(config())


def test_fields_that_change_answers_are_part_of_it():
    """Half a run with another model is not one result."""
    assert server_fields(config())["r.arithmetic.nested.deep"] == [1, 2]
    assert server_fields(config(temperature=1)) != server_fields(config())
    assert server_fields({**config(), "skip_verification": True})["skip_verification"] is True


def test_code_is_versions_and_the_sources_of_the_servers(tmp_path, monkeypatch):
    """An edited verifier scores differently: half a run with each would be the result of neither."""
    folder = tmp_path / "resources_servers" / "arithmetic"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text("one")
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path))

    first = code_versions(config())
    (folder / "tests").mkdir()
    (folder / "tests" / "test_app.py").write_text("a test")
    (folder / ".venv").mkdir()
    (folder / ".venv" / "site.py").write_text("installed")
    (folder / "README.md").write_text("words")
    assert code_versions(config()) == first, "what is not run does not count"
    (folder / "app.py").write_text("two")

    assert code_versions(config()) != first
    assert {"python", "nemo-gym", "pydantic", "resources_servers/arithmetic"} <= set(first)
    assert not {"pytest", "ruff"} & set(first), "tools of developers do not change a score"


def test_the_run_id_stays_and_notes_are_added(tmp_path):
    """Each resume must be traceable."""
    path = tmp_path / "x_run.json"
    write_identity(path, identity(limits={"max_steps": 3}))
    stored = read_identity(path)
    assert stored is not None
    before, content = stored

    assert before == identity(limits={"max_steps": 3})
    write_identity(path, identity(repeats=3), content, "num_repeats: 2 -> 3")
    after = orjson.loads(path.read_bytes())

    assert (after["run_id"], after["started_at"]) == (content["run_id"], content["started_at"])
    assert [entry["note"] for entry in after["resumed"]] == ["num_repeats: 2 -> 3"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["x_run.json"]


def test_a_missing_file_is_none_and_a_broken_one_is_an_error(tmp_path):
    """Resuming with a broken identity would check nothing."""
    assert read_identity(tmp_path / "none") is None
    for broken in (b"{", b"[]", b"{}"):
        (tmp_path / "x_run.json").write_bytes(broken)
        with pytest.raises(StoreError, match="no readable run identity"):
            read_identity(tmp_path / "x_run.json")


def test_the_hash_is_that_of_the_rows_and_not_of_their_line_breaks():
    """An editor may change line ends without changing rows."""

    def hash_lines(*lines):
        rows = RowHash()
        assert list(rows.hashing(enumerate(lines))) == list(enumerate(lines))
        return rows.text()

    assert hash_lines(b'{"a":1}\n', b'{"b":1}') == hash_lines(b'{"a":1}\r\n', b'{"b":1}\n')
    assert hash_lines(b'{"a":1}\n') != hash_lines(b'{"a":2}\n')
    assert hash_lines(b"12\n", b"3\n") != hash_lines(b"1\n", b"23\n")


def test_a_file_that_was_not_touched_need_not_be_read(tmp_path):
    """Hashing a large file takes long."""
    path = tmp_path / "in.jsonl"
    path.write_text("{}\n")
    before = identity(file_stat=file_stat(path))

    assert has_same_rows(before, before)
    assert not has_same_rows(before, before.with_values(plan={**before.plan, "limit": 1}))
    path.write_text("{} \n")
    assert not has_same_rows(before, before.with_values(file_stat=file_stat(path)))
    missing = identity(file_stat=file_stat(tmp_path / "none"))
    assert not has_same_rows(missing, missing)
