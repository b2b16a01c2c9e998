"""Parts of a file hold all of it, cut between lines."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nemo_gym.data.chunks import span_of

LINES = st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")), max_size=12)


@settings(max_examples=100, deadline=None)
@given(LINES, st.booleans(), st.integers(1, 30))
def test_chunks_of_any_size_hold_every_line_once(tmp_path_factory, lines, ended, size):
    """With or without a line feed at the end, with lines longer than a chunk."""
    path = tmp_path_factory.mktemp("chunks") / "rows.jsonl"
    content = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    path.write_bytes(content)

    found = [line for chunk in span_of(path).chunks(size) for line in chunk.lines()]

    assert found == (content.removesuffix(b"\n").split(b"\n") if content else [])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 12), st.none() | st.integers(0, 14), st.none() | st.integers(0, 14), st.integers(1, 9))
def test_a_slice_is_the_slice_of_the_list_of_lines(tmp_path_factory, count, first, end, size):
    """start_idx and end_idx mean what they mean in Python."""
    path = tmp_path_factory.mktemp("chunks") / "rows.jsonl"
    lines = [str(number).encode() for number in range(count)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))

    span = span_of(path, first, end)

    assert [line for chunk in span.chunks(size) for line in chunk.lines()] == lines[first:end]
    assert span.lines_before == min(first or 0, count)
