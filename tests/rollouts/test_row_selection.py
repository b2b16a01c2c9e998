"""Which rows of a file a run uses, and which task numbers they have."""

import json
import re
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.plan import PlanOptions, plan_jobs
from nemo_gym.rollouts.row_selection import NoRowsSelected, RowSelection, parse_condition, parse_limit


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    levels = [{"level": n % 3, "meta": {"topic": "even" if n % 2 == 0 else "odd"}, "id": f"r{n}"} for n in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in levels))
    return path


def select(path: Path, **options: object) -> list[int]:
    """Return the indices of the selected rows, in their order."""
    lines = RowSelection(**options).lines(path)  # type: ignore[arg-type]
    return [int(json.loads(line[1])["id"][1:]) for line in lines]


def test_a_limit_is_a_number_of_rows_or_a_range_counted_from_one(rows: Path) -> None:
    """`--limit 10-20` means the same as in inspect_ai: the tenth to the twentieth row."""
    assert select(rows, limit=2) == [0, 1]
    assert select(rows, limit="3-5") == [2, 3, 4]
    assert select(rows, limit=0) == list(range(9))  # the contract's configuration key
    assert (parse_limit("7"), parse_limit("3-5")) == ((1, 7), (3, 5))


def test_conditions_apply_before_the_order_and_the_limit(rows: Path) -> None:
    """`--where … --limit 2` must be two matching rows, not the matching ones of two."""
    assert select(rows, where='level == 2 and meta.topic == "even"') == [2, 8]
    assert select(rows, where='"od" in meta.topic', limit=2) == [1, 3]
    assert select(rows, where="not level > 0 or level == 2", limit="2-3") == [2, 3]
    assert select(rows, ids=("r7", "r1")) == [1, 7]
    assert select(rows, tasks=(8, 3)) == [3, 8]


def test_a_shuffled_order_depends_on_the_seed_alone(rows: Path) -> None:
    """A random sample must be repeatable."""
    first = select(rows, shuffle_seed=1)

    assert sorted(first) == list(range(9)) and first != list(range(9))
    assert select(rows, shuffle_seed=1, limit=3) == first[:3]
    assert select(rows, shuffle_seed=2) != first


def test_a_row_keeps_its_task_number(tmp_path: Path) -> None:
    """Task 17 of a run of one row is the row that was task 17 of the whole file."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"responses_create_params": {"input": str(n)}}) + "\n" for n in range(20)))
    options = PlanOptions(agent_name="a", repeats=2)

    jobs = plan_jobs(RowSelection(ids=("17", "3")).lines(path), options, source="rows")

    assert [str(job.key) for job in jobs] == ["3-0", "3-1", "17-0", "17-1"]


def test_equal_rows_are_one_task_in_every_selection(tmp_path: Path) -> None:
    """A resumed or repeated selection must not count the second copy of a row as another task."""
    path = tmp_path / "rows.jsonl"
    texts = ["a", "b", "a", "c", "a"]
    path.write_text("".join(json.dumps({"responses_create_params": {"input": text}}) + "\n" for text in texts))

    def keys(selection: RowSelection) -> list[str]:
        return [str(job.key) for job in plan_jobs(selection.lines(path), PlanOptions(agent_name="a"), source="rows")]

    assert keys(RowSelection()) == ["0-0", "1-0", "0-1", "3-0", "0-2"]
    assert keys(RowSelection(tasks=(0,))) == ["0-0", "0-1", "0-2"]
    assert keys(RowSelection(limit="3-5")) == ["0-0", "3-0", "0-1"]
    assert sorted(keys(RowSelection(shuffle_seed=1))) == sorted(keys(RowSelection()))


def test_a_task_number_that_is_no_number_is_not_a_crash(tmp_path: Path) -> None:
    """The plan reports it with its line, if the row is selected."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"_ng_task_index": [3]}\n{"_ng_task_index": 4}\n')

    assert [line[0] for line in RowSelection(tasks=(4,)).lines(path)] == [2]


@pytest.mark.parametrize(("options", "problem"), [({"where": "level > 9"}, "no row is selected"), ({}, "has no rows")])
def test_no_rows_are_an_error(tmp_path: Path, rows: Path, options: dict[str, str], problem: str) -> None:
    """A run of nothing once ended with status 0 and moved earlier results aside."""
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")

    with pytest.raises(NoRowsSelected, match=problem):
        select(rows if options else empty, **options)


def test_an_unknown_id_is_an_error(rows: Path) -> None:
    """A misspelled id must not be left out silently."""
    with pytest.raises(ConfigError, match="no row has the id r99"):
        select(rows, ids=("r1", "r99"))


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("levl == 2", "no row has the field 'levl' — did you mean 'level'?"),
        ("topic == 'odd'", "no row has the field 'topic' — did you mean 'meta.topic'?"),
        ("levl == None", "no row has the field 'levl'"),
        ("level == 2 or meta.topik == 'odd'", "no row has the field 'meta.topik' — did you mean 'meta.topic'?"),
    ],
)
def test_a_field_that_no_row_has_is_an_error(rows: Path, condition: str, problem: str) -> None:
    """A misspelt field selects no row, or with `or` and `None` the wrong rows."""
    with pytest.raises(ConfigError, match=re.escape(problem)):
        select(rows, where=condition)


def test_a_field_that_some_rows_have_is_known(tmp_path: Path) -> None:
    """`level == None` selects the rows that lack a field, which may be all rows of a page."""
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "r0"}\n{"id": "r1", "level": null}\n')

    assert select(path, where="level == None") == [0, 1]


@pytest.mark.parametrize(
    "text", ["level >", "level", "f(level) > 1", "level is None", "1 + level > 2", "(" * 300, "level in {[1]}"]
)
def test_a_condition_that_is_no_comparison_is_refused(text: str) -> None:
    """Conditions are data: they are never executed."""
    with pytest.raises(ConfigError, match="cannot read"):
        parse_condition(text)


def test_values_that_cannot_be_compared_do_not_match() -> None:
    """Rows of a mixed file lack fields, or have texts in place of numbers."""
    condition = parse_condition("level > 3")

    assert [condition(row) for row in ({"level": 4}, {"level": "high"}, {}, {"level": None})] == [True, *[False] * 3]


def test_a_field_that_a_row_lacks_fulfils_no_comparison_except_with_none() -> None:
    """`level != 3` must not select the rows without a level."""
    rows = [{"level": 3}, {"level": 4}, {"other": 3}, {"level": None}]

    assert [parse_condition("level != 3")(row) for row in rows] == [False, True, False, False]
    assert [parse_condition("level not in [3]")(row) for row in rows] == [False, True, False, False]
    assert [parse_condition("level == None")(row) for row in rows] == [False, False, True, True]


def test_the_limit_can_apply_to_each_agent(tmp_path: Path) -> None:
    """`--environment a --environment b --limit 2` must evaluate both, not two rows of the first."""
    path = tmp_path / "rows.jsonl"
    lines = [{"id": f"r{n}", "agent_ref": {"name": "ab"[n > 3]}} for n in range(8)]
    path.write_text("".join(json.dumps(row) + "\n" for row in lines))

    assert select(path, limit=2) == [0, 1]
    assert select(path, limit=2, is_limit_per_agent=True) == [0, 1, 4, 5]
    assert select(path, limit="2-3", is_limit_per_agent=True) == [1, 2, 5, 6]
    assert len(select(path, limit=1, is_limit_per_agent=True, shuffle_seed=3)) == 2
    assert RowSelection(is_limit_per_agent=True).is_plain
    assert RowSelection(limit=2).identity() != RowSelection(limit=2, is_limit_per_agent=True).identity()
