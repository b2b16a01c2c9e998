"""What servers print arrives whole."""

from pathlib import Path

from nemo_gym.launch.logs import LONGEST_LINE, Log


def test_lines_are_passed_on_whole_however_the_bytes_come(tmp_path: Path) -> None:
    """Half lines of two servers must never mix on one terminal line."""
    heard: list[tuple[str, str]] = []
    log = Log("sums", tmp_path / "sums.log", lambda name, line: heard.append((name, line)))

    for chunk in (b"one\ntw", b"o\r\n", b"\xff\n", b"rest"):
        log.feed(chunk)
    log.close()

    assert heard == [("sums", "one"), ("sums", "two"), ("sums", "\ufffd"), ("sums", "rest")]
    assert (tmp_path / "sums.log").read_bytes() == b"one\ntwo\r\n\xff\nrest"


def test_a_line_without_end_is_cut_not_kept_for_ever() -> None:
    """A server that prints no newline must not fill our memory."""
    heard: list[str] = []
    log = Log("sums", None, lambda _, line: heard.append(line))

    log.feed(b"x" * (LONGEST_LINE + 1))

    assert len(heard) == 1


def test_the_end_is_remembered_for_error_messages() -> None:
    """When a server does not come up, its last lines are the explanation."""
    log = Log("sums", None)

    log.feed("".join(f"line {n}\n" for n in range(100)).encode())

    assert log.tail(2) == "line 98\nline 99"
