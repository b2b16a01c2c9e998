"""The session store drops sessions that are no longer used."""

from nemo_gym.serve.session import SessionStore


class FakeClock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_keeps_its_value_until_it_is_removed() -> None:
    """A step must find the state that the step before left."""
    store: SessionStore[int] = SessionStore()
    store.put("a", 1)

    assert (store.get("a"), store.pop("a"), store.pop("a"), store.get("b")) == (1, 1, None, None)


def test_an_idle_session_is_dropped_and_one_in_use_is_not() -> None:
    """A dead agent must not cost memory; a slow model must not lose its episode."""
    clock = FakeClock()
    store: SessionStore[str] = SessionStore(idle_seconds=10, clock=clock)
    store.put("idle", "x")
    store.put("in use", "y")
    for clock.now in (6.0, 12.0, 18.0):
        assert store.get("in use") == "y"

    assert store.get("idle") is None
    assert len(store) == 1


def test_beyond_the_bound_the_least_recently_used_session_goes() -> None:
    """Memory has a bound, no matter how agents behave."""
    store: SessionStore[int] = SessionStore(max_sessions=3)
    for number in range(3):
        store.put(str(number), number)
    store.get("0")
    store.put("3", 3)

    assert [store.get(str(number)) for number in range(4)] == [0, None, 2, 3]


def test_removing_an_expired_session_returns_nothing() -> None:
    """An expired session must not come back through another method."""
    now = [0.0]
    store: SessionStore[str] = SessionStore(idle_seconds=10, clock=lambda: now[0])
    store.put("a", "value")
    now[0] = 11.0

    assert store.pop("a") is None
