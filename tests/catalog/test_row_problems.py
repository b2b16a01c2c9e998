"""Problems are grouped by lines, and merging parts gives the report of the whole file."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.catalog.row_problems import LineRanges, RowProblem, RowProblems

LINES = st.sets(st.integers(1, 60)).map(sorted)
REQUIRED = RowProblem("responses_create_params.input", "field required")


def ranges_of(lines) -> LineRanges:
    ranges = LineRanges()
    for line in lines:
        ranges.add(line)
    return ranges


@settings(max_examples=100, deadline=None)
@given(LINES)
def test_ranges_hold_exactly_the_lines(lines):
    """A report with a wrong line sends the author to the wrong place."""
    ranges = ranges_of(lines)

    assert [line for first, last in ranges for line in range(first, last + 1)] == lines
    assert len(ranges) == len(lines)
    ends = list(ranges)
    assert all(after - before > 1 for (_, before), (after, _) in pairwise(ends))


@settings(max_examples=100, deadline=None)
@given(LINES, st.integers(0, 60))
def test_a_file_read_in_two_parts_gives_the_same_report(lines, cut):
    """Chunks count their lines from 1, and the author needs the lines of the file."""
    together = RowProblems()
    for line in lines:
        together.add(line, [REQUIRED])
    first, second = RowProblems(), RowProblems()
    for line in lines:
        if line <= cut:
            first.add(line, [REQUIRED])
        else:
            second.add(line - cut, [REQUIRED])

    merged = RowProblems()
    merged.merge(first, after=0)
    merged.merge(second, after=cut)

    assert str(merged) == str(together)
    assert merged.report() == together.report()
    assert merged.rows == len(lines)


@settings(max_examples=60, deadline=None)
@given(LINES.filter(bool), st.data())
def test_the_first_problems_are_those_of_the_first_rows(lines, data):
    """`--max-errors 5` promises the first five rows."""
    count = data.draw(st.integers(1, len(lines)))
    problems = RowProblems()
    for line in lines:
        problems.add(line, [REQUIRED, RowProblem("", "odd")] if line % 2 else [REQUIRED])

    kept = problems.first(count)

    assert kept.rows == count
    assert [line for first, last in kept._invalid_lines for line in range(first, last + 1)] == lines[:count]


def test_a_report_names_lines_field_and_reason():
    """A thousand bad lines must read as one sentence."""
    problems = RowProblems()
    for line in (12, *range(40, 58)):
        problems.add(line, [REQUIRED])
    problems.add(60, [RowProblem("", "the line is not JSON", "first: at column 3")])

    assert str(problems).splitlines() == [
        "lines 12, 40–57: responses_create_params.input: field required",
        "line 60: the line is not JSON (first: at column 3)",
    ]
    assert problems.report()[0] == {
        "lines": [[12, 12], [40, 57]],
        "count": 19,
        "field": "responses_create_params.input",
        "reason": "field required",
        "first_detail": "",
    }


def test_a_row_with_two_problems_is_one_row():
    """The count tells how many rows have to be repaired."""
    problems = RowProblems()
    problems.add(1, [REQUIRED, RowProblem("x", "wrong")])

    assert problems.rows == 1
    assert len(str(problems).splitlines()) == 2
