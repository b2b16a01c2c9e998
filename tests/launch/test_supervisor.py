"""The output of servers arrives in whole lines."""

from pathlib import Path

from nemo_gym.launch.supervisor import MAX_LINE_BYTES, TAIL_LINES, ProcessLog


def test_lines_are_passed_on_whole_however_the_bytes_arrive(tmp_path: Path) -> None:
    """Half lines of two servers must never mix on one terminal line."""
    lines: list[tuple[str, str]] = []
    log = ProcessLog("sums", tmp_path / "sums.log", lambda name, line: lines.append((name, line)))

    for chunk in (b"one\ntw", b"o\r\n", b"\xff\n", b"rest"):
        log.data_received(chunk)
    log.connection_lost()

    assert lines == [("sums", "one"), ("sums", "two"), ("sums", "\ufffd"), ("sums", "rest")]
    assert (tmp_path / "sums.log").read_bytes() == b"one\ntwo\r\n\xff\nrest"


def test_a_line_without_end_is_cut() -> None:
    """A server that prints no newline must not fill our memory."""
    lines: list[str] = []
    log = ProcessLog("sums", None, lambda _, line: lines.append(line))

    log.data_received(b"x" * (MAX_LINE_BYTES + 1))

    assert len(lines) == 1


def test_the_last_lines_are_kept_for_error_messages() -> None:
    """When a server does not start, its last lines are the explanation."""
    log = ProcessLog("sums", None)

    log.data_received("".join(f"line {n}\n" for n in range(100)).encode())

    assert log.tail().splitlines()[-2:] == ["line 98", "line 99"]
    assert len(log.tail().splitlines()) == TAIL_LINES
