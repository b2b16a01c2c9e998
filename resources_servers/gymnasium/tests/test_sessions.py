"""Sessions that nobody comes back to are forgotten."""

from resources_servers.gymnasium import Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_keeps_its_value_until_it_is_over() -> None:
    """What a step left behind is there for the next one, once."""
    kept: Sessions[int] = Sessions()
    kept.put("a", 1)

    assert (kept.get("a"), kept.pop("a"), kept.pop("a"), kept.get("b")) == (1, 1, None, None)


def test_a_session_left_alone_is_dropped_and_one_in_use_is_not() -> None:
    """An agent that died must not cost memory for ever; a slow model must not lose its game."""
    clock = Clock()
    kept: Sessions[str] = Sessions(idle_seconds=10, clock=clock)
    kept.put("alone", "x")
    kept.put("in use", "y")
    for clock.now in (6.0, 12.0, 18.0):
        assert kept.get("in use") == "y"

    assert kept.get("alone") is None
    assert len(kept) == 1


def test_beyond_the_bound_the_one_left_alone_longest_goes() -> None:
    """Memory has a bound whatever the agents do."""
    kept: Sessions[int] = Sessions(most=3)
    for number in range(3):
        kept.put(str(number), number)
    kept.get("0")
    kept.put("3", 3)

    assert [kept.get(str(number)) for number in range(4)] == [0, None, 2, 3]
