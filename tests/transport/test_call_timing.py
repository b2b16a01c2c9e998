"""The phases of a rollout add up to its wall time."""

from contextvars import Context

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from nemo_gym.transport import call_timing

MODEL, TOOLS = "responses_api_models", "resources_servers"
KINDS = [(TOOLS, "/seed_session"), (MODEL, "/v1/responses"), (TOOLS, "/get_weather"), (TOOLS, "/verify")]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    reward: float


class ClosedAnswer(BaseModel):
    reward: float


@pytest.mark.parametrize(
    ("kind", "path", "phase"),
    [
        (TOOLS, "/seed_session", call_timing.SEED),
        (TOOLS, "/ng-rollout/3-1/verify", call_timing.VERIFY),
        (TOOLS, "/verify_email", call_timing.TOOLS),
        (MODEL, "/ng-rollout/3-1/v1/responses", call_timing.MODEL),
        ("responses_api_agents", "/v1/responses", call_timing.OTHER),
    ],
)
def test_a_call_is_counted_by_what_it_is_for(kind: str, path: str, phase: int) -> None:
    """Also where calls are observed and paths carry the rollout's id."""
    assert call_timing.call_phase(kind, path) == phase


def test_calls_at_the_same_time_count_once() -> None:
    """Three tools at once for two seconds are two seconds of waiting, not six."""
    tools = [(TOOLS, "/a", 1.0, 2.0), (TOOLS, "/b", 2.5, 3.0), (TOOLS, "/c", 1.0, 4.0), (TOOLS, "/d", 5.0, 6.0)]

    assert call_timing.seconds_by_phase(tools)[call_timing.TOOLS] == 4.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 10)), max_size=12))
def test_phases_are_wall_time(drawn: list[tuple[int, int, int]]) -> None:
    """However calls overlap, a second counts once in each phase that something waited for."""
    calls = [(*KINDS[kind], float(began), float(began + took)) for kind, began, took in drawn]
    covered = [
        {second for kind, began, took in drawn if kind == phase for second in range(began, began + took)}
        for phase in range(4)
    ]

    assert call_timing.seconds_by_phase(sorted(calls, key=lambda call: call[3]))[:4] == [
        float(len(seconds)) for seconds in covered
    ]


def test_the_phases_of_a_record_add_up() -> None:
    """What the agent did itself and what passed before it began are the rest."""
    answer = {"_ng_phases": [0.1, 2.0, 0.5, 0.25, 3.0]}

    phases = call_timing.phase_seconds(answer, 3.5)

    assert phases is not None
    assert list(phases) == ["queue", "seed_session", "model", "tools", "verify", "agent"]
    assert sum(phases.values()) == pytest.approx(3.5, abs=1e-5)
    assert phases["queue"] == pytest.approx(0.5, abs=1e-5)
    assert phases["agent"] == pytest.approx(0.15, abs=1e-5)


@pytest.mark.parametrize("value", [None, "soon", [1.0], [None] * 5, {"model": 1}, ["a"] * 5])
def test_what_another_agent_put_there_is_not_taken_for_phases(value: object) -> None:
    """A field of that name may come from anywhere."""
    assert call_timing.phase_seconds({"_ng_phases": value}, 1.0) is None


def test_figures_go_where_an_answer_has_room_for_them() -> None:
    """A class that allows no other fields is left as it is: its schema is its author's."""

    def run_timed() -> tuple[Open, ClosedAnswer, dict[str, object]]:
        timer = call_timing.PhaseTimer()
        return timer.add_to(Open(reward=1)), timer.add_to(ClosedAnswer(reward=1)), timer.add_to({"reward": 1.0})

    opened, closed, plain = Context().run(run_timed)

    assert len(opened.model_dump()["_ng_phases"]) == 5
    assert closed.model_dump() == {"reward": 1}
    assert isinstance(plain["_ng_phases"], list)


def test_a_rollout_without_a_timer_records_nothing() -> None:
    """Trainers that call agents themselves pay nothing and find no field they did not ask for."""
    assert Context().run(call_timing.finished_calls) is None


def test_an_error_answer_brings_its_phases_in_a_header() -> None:
    """Where a failed rollout spent its time is the first question; the way back goes through real headers."""

    def run_failing() -> tuple[dict[str, str], list[float]]:
        timer, error = call_timing.PhaseTimer(), RuntimeError("boom")
        timer.add_to_error(error)
        return call_timing.phase_headers(error), getattr(error, "nemo_gym_phases")  # noqa: B009 - not an attribute of its class

    headers, sums = Context().run(run_failing)
    answer = OSError("500")
    setattr(answer, "headers", headers)  # noqa: B010

    assert call_timing.phases_from_error(answer) == pytest.approx(sums, abs=1e-6)
    assert call_timing.phase_headers(RuntimeError("outside a rollout")) == {}


@pytest.mark.parametrize("value", ["", "soon", "1,2,x"])
def test_an_unreadable_header_counts_as_absent(value: str) -> None:
    """It must not turn a failure into a bug."""
    answer = OSError("500")
    setattr(answer, "headers", {call_timing.PHASES_HEADER: value})  # noqa: B010

    assert call_timing.phase_seconds({"_ng_phases": call_timing.phases_from_error(answer)}, 1.0) is None
    assert call_timing.phases_from_error(OSError("no answer at all")) is None


def test_each_turn_has_its_seconds_and_those_of_its_tools() -> None:
    """A mean over the rollout hides the one slow turn; tools that ran at the same time count once."""
    timer = Context().run(call_timing.PhaseTimer)
    calls = [
        ("resources_servers", "/seed_session", 0.0, 1.0),
        ("responses_api_models", "/v1/responses", 1.0, 3.0),
        ("resources_servers", "/add", 3.0, 3.5),
        ("resources_servers", "/add", 3.25, 4.0),
        ("responses_api_models", "/v1/responses", 4.0, 4.25),
        ("resources_servers", "/verify", 4.25, 5.0),
    ]
    timer._calls.extend(calls)

    assert timer.add_to({})["_ng_turn_seconds"] == [[2.0, 1.0], [0.25, 0.0]]
    assert timer.with_turn_seconds({"id": "r"}) == {"id": "r", "_ng_turn_seconds": [[2.0, 1.0], [0.25, 0.0]]}
    timer._calls[2:4] = [("resources_servers", "/add", 3.0, 3.5), ("resources_servers", "/add", 3.5, 4.0)]
    assert timer.add_to({})["_ng_turn_seconds"] == [[2.0, 1.0], [0.25, 0.0]]
