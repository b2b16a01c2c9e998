"""What is kept of a rollout: its numbers, and nothing else."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.metrics.rollout_numbers import RecordShapes, column, columns_of, describe

ROW = {
    "_ng_task_index": 3,
    "_ng_rollout_index": 1,
    "reward": 0.5,
    "right": True,
    "answer": "7",
    "_ng_attempt_index": 1,
    "_ng_seconds": 2.5,
    "_ng_phases": {"model": 2.0},
    "response": {"usage": {"input_tokens": 10, "total_tokens": 12, "input_tokens_details": {"cached_tokens": 1}}},
}


def numbers_of(row):
    shape, values = RecordShapes().record(row)
    return dict(zip(shape.names, values, strict=True))


def test_the_numbers_of_a_row_are_its_own_and_its_token_usage():
    """Indices say who a rollout is and seconds how long it took; neither is a score."""
    records = numbers_of(ROW)

    assert records == {"reward": 0.5, "right": 1, "_ng_attempt_index": 1, "input_tokens": 10, "total_tokens": 12}
    assert type(records["right"]) is int
    assert numbers_of({"reward": 1.0, "response": None}) == {"reward": 1.0}
    assert numbers_of({"reward": 1.0, "response": {"usage": None}}) == {"reward": 1.0}


def test_a_field_of_the_servers_own_stands_for_a_token_count_of_the_same_name():
    """The server knows better what it counted."""
    row = {"total_tokens": 99, "reward": 1.0, "response": {"usage": {"input_tokens": 3, "total_tokens": 5}}}

    assert numbers_of(row) == {"total_tokens": 99, "reward": 1.0, "input_tokens": 3}


def test_rows_with_the_same_fields_share_their_names():
    """That is why a hundred thousand rollouts fit in a few dozen megabytes."""
    shapes = RecordShapes()

    first, second = shapes.record(ROW), shapes.record({**ROW, "reward": 0.0, "answer": None})

    assert first[0] is second[0]
    assert shapes.names == ["reward", "right", "_ng_attempt_index", "input_tokens", "total_tokens"]


FIELDS = st.dictionaries(st.sampled_from("abcde"), st.floats(-10, 10) | st.integers(-5, 5), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(FIELDS, max_size=8))
def test_columns_hold_what_the_rows_held_in_their_order(rows):
    """Whatever fields come and go from row to row."""
    shapes = RecordShapes()
    records = [shapes.record(row) for row in rows]

    columns = dict(columns_of(records)) if records else {}

    assert {n: list(v) for n, v in columns.items()} == {
        n: [row[n] for row in rows if n in row] for row in rows for n in row
    }
    assert all(column(records, name) == list(values) for name, values in columns.items())
    assert set(describe(records, shapes.names)) >= {f"mean/{name}" for name in columns}
