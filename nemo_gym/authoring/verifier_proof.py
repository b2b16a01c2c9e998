"""Run the checks of the audit as tests of a server folder: derive a class from `VerifierProof`.

The oracle and odd forms of it must get the full reward, close answers and cheats must not, and malformed rows must be
rejected. The tests use the folder's `audit.py`, `generate.py`, configuration and example data. Needs the extra `dev`.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fastapi.testclient import TestClient

from nemo_gym.authoring.audit import (
    audit_rows,
    example_rows,
    generated_rows,
    import_folder_module,
    load_expectations,
    serve_folder,
)
from nemo_gym.authoring.audit_result import Check
from nemo_gym.authoring.audit_server import serve_for_audit
from nemo_gym.authoring.model_replies import Reply, Row, build_response
from nemo_gym.authoring.verifier_cases import exercise_verifier_fixture, offline_server
from nemo_gym.base_resources_server import SimpleResourcesServer

EXAMPLES = 5
CONCURRENCY = 4


def offline_client(server_class: type[SimpleResourcesServer], **settings: Any) -> TestClient:
    """Build a server with `settings` and return an HTTP client for it."""
    return TestClient(offline_server(server_class, **settings).setup_webserver())


def verify_reply(http: TestClient, row: Row, reply: Reply) -> Row:
    """Post a reply to `/verify` and return the verdict."""
    answer = http.post("/verify", json={**row, "response": build_response(reply, row)})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def verify_replies(
    server_class: type[SimpleResourcesServer], cases: Sequence[tuple[Row, Reply]], **settings: Any
) -> list[Row]:
    """Verify replies to rows, `CONCURRENCY` at a time, for slow servers; return the verdicts in order."""

    async def verify_all() -> list[Row]:
        concurrency = asyncio.Semaphore(CONCURRENCY)

        async def verify_one(row: Row, reply: Reply) -> Row:
            async with concurrency:
                answer = await server.play(row, reply)
            assert answer.status == 200, answer.summary
            return dict(answer.body)

        async with serve_for_audit(server_class, "proof", settings) as server:
            return await asyncio.gather(*(verify_one(row, reply) for row, reply in cases))

    return asyncio.run(verify_all())


class VerifierProof:
    """Base class of a test class: set `folder` in the derived class; lower the numbers for slow verifiers."""

    folder: ClassVar[Path]
    oracle_rows: ClassVar[int] = 20
    """Number of generated rows that the oracle must solve."""
    checked_rows: ClassVar[int] = 4
    """Number of generated rows on which odd forms, wrong answers and cheats are checked."""
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def run_checks(self, *checks: Check, rows: int | None = None) -> None:
        """Run checks of the audit on generated rows; fail if one has a finding or no cases."""
        generated = generated_rows(self.folder, rows or self.checked_rows, seed=1)
        result = asyncio.run(audit_rows(self.folder, generated, checks=checks))
        # Only servers with a judge have cases of the check `judge`.
        assert all(result.checks.get(check) for check in checks if check != "judge"), f"no cases: {result.checks}"
        assert result.is_clean, "\n".join(map(str, result.findings))

    def test_the_oracle_solves_every_generated_row(self) -> None:
        """The oracle gets the full reward for every generated row."""
        self.run_checks("oracle", rows=self.oracle_rows)

    def test_right_answers_in_odd_forms_score_full(self) -> None:
        """Right answers in unusual forms get the full reward."""
        self.run_checks("odd form")

    def test_wrong_answers_and_cheats_earn_no_more_than_allowed(self) -> None:
        """Wrong answers and cheats get at most the allowed reward."""
        self.run_checks("wrong answer", "cheat")

    def test_malformed_rows_are_refused(self) -> None:
        """Malformed rows are rejected with status 422 instead of being scored."""
        self.run_checks("malformed row", rows=2)

    def test_verdicts_do_not_depend_on_other_sessions_or_on_a_failing_judge(self) -> None:
        """Concurrent verifications agree, and a judge without a verdict causes a failure instead of a zero reward."""
        self.run_checks("repeat", "judge", rows=1)

    def test_the_example_data_is_what_the_generator_writes(self) -> None:
        """The committed example data is reproduced by `generate.py`."""
        generated = json.loads(json.dumps(generated_rows(self.folder, EXAMPLES, seed=0)))
        examples = example_rows(self.folder)

        assert len(examples) == EXAMPLES
        assert examples == generated, "data/example.jsonl is not rows(5, seed=0) of generate.py"

    def test_the_example_rollouts_get_the_same_verdict_today(self) -> None:
        """Verifying the committed example rollouts again gives the stored rewards."""
        path = self.folder / "data" / "example_rollouts.jsonl"
        if not path.exists():
            pytest.skip("the folder has no example rollouts yet")
        records = [json.loads(line) for line in path.read_text("utf-8").splitlines()]

        rewards = asyncio.run(self._current_rewards(records))

        assert len(records) == EXAMPLES
        assert rewards == [record["reward"] for record in records], f"the current rewards are {rewards}"

    async def _current_rewards(self, records: Sequence[Row]) -> list[float | None]:
        """Verify stored rollouts again and return their rewards."""
        async with serve_folder(self.folder, load_expectations(self.folder)) as server:
            return [(await server.verify_record(record)).reward for record in records]

    def test_the_verifier_decides_every_case_of_its_fixture_as_written(self) -> None:
        """The verifier gives the expected reward in every case of its fixture, as `gym env test` checks."""
        app = import_folder_module(self.folder, "app")
        if not hasattr(app, "VERIFIER_FIXTURE"):
            pytest.skip("the folder exports no VERIFIER_FIXTURE")
        results = asyncio.run(
            exercise_verifier_fixture(
                app.VERIFIER_FIXTURE, seeded=True, reward_range=self.reward_range, best=self.reward_range[1]
            )
        )

        problems = [f"{result.name}: {result.problem}" for result in results if not result.is_good]
        assert not problems, problems
