"""Cases of a verifier for its tests, under the names that server folders written for NeMo Gym import.

    VERIFIER_FIXTURE = VerifierFixture(server_factory=MyServer, request_model=MyRequest, cases_path=CASES)

The cases are run by `nemo_gym.authoring.verifier_cases`.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

from nemo_gym.authoring import verifier_cases
from nemo_gym.authoring.verifier_cases import CaseResult, VerifierCase, VerifierFixture, VerifierFixtureError


class FixtureResults(list[CaseResult]):
    """The results of all cases. Tests call `exercise_verifier_fixture` with and without `await`; both return them."""

    def send(self, _value: Any) -> Any:
        raise StopIteration(self)

    def throw(self, error: Any, *_: Any) -> Any:
        raise error

    def close(self) -> None:
        """Do nothing: all cases have been run."""

    def __await__(self) -> Any:
        yield from ()
        return self


Coroutine.register(FixtureResults)  # for `asyncio.run(exercise_verifier_fixture(…))`


def exercise_verifier_fixture(
    fixture: VerifierFixture,
    *,
    reward_range: Sequence[float],
    higher_is_better: bool = True,
    determinism: Literal["seeded", "stochastic", "unknown"],
    update_expected: bool = False,
) -> FixtureResults:
    """Run every case of a fixture and return the results, which may also be awaited.

    Raises:
        VerifierFixtureError: the cases file is invalid or lacks a required kind, or a case fails.
    """
    lowest, highest = reward_range
    cases = verifier_cases.exercise_verifier_fixture(
        fixture,
        seeded=determinism == "seeded",
        reward_range=(lowest, highest),
        best=highest if higher_is_better else lowest,
        update_expected=update_expected,
    )
    with ThreadPoolExecutor(1) as thread:  # an event loop may be running in this thread
        results = FixtureResults(thread.submit(asyncio.run, cases).result())
    if problems := [f"{result.name}: {result.problem}" for result in results if result.problem is not None]:
        raise VerifierFixtureError("; ".join(problems), where=str(fixture.cases_path))
    return results


__all__ = ["CaseResult", "VerifierCase", "VerifierFixture", "VerifierFixtureError", "exercise_verifier_fixture"]
