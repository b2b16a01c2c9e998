"""Some answers of the model are far too large: they must fail as such, once, without filling the memory.

The seed decides which rows get such an answer and in which form: a declared length, chunks without end, a compressed
bomb, or JSON with millions of values. The other rollouts must be scored, no call may be paid for twice, and the run
must stay within a bounded amount of memory.
"""

import asyncio
import gzip
import json
import os
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from chaos.endpoint import Endpoint, answer_to, head_of, serving
from chaos.evaluation import BrokenPromise, Evaluation, read_records, rollout_id
from nemo_gym.config.keys import KEYS

FORMS = ("declared length", "endless", "gzip", "values")
OVERSIZED_SHARE = 0.3
SIZE, VALUES = 100_000_000, 15_000_000
"""Size of an answer and number of values that exceed the default limit; divided by the scale of the run."""
DEFAULT_LIMIT = KEYS["max_model_answer_bytes"].default
FULL_SCALE_SEEDS, SCALE = 5, 4
"""Every fifth run has the default limit and the full size; the others a fourth of both."""
BASE_MEMORY, ANSWER_MEMORY = 300_000_000, 1_200_000_000
"""Bytes that the processes of a run may use together, without and for answers of the full size. All answers in flight
at once would take more."""
CHUNK = b"100000\r\n" + b"x" * 0x100000 + b"\r\n"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"


@cache
def compressed_bomb(size: int) -> bytes:
    return gzip.compress(b'{"id": "' + b"x" * size + b'"}', 1)


@cache
def many_values(count: int) -> bytes:
    return b'{"output": [' + b"{}," * count + b"1]}"


class OversizedEndpoint(Endpoint):
    """Answers sums; the questions that the seed selects get an answer that is too large."""

    def __init__(self, seed: int, scale: int) -> None:
        self._seed, self._scale = seed, scale
        self.calls: Counter[str] = Counter()
        """Number of calls by question and seed of the rollout."""
        self.forms: dict[str, str] = {}
        """The form of each oversized answer, by the same text."""

    async def answer(self, request: dict[str, object], writer: asyncio.StreamWriter) -> bool:
        """Write the answer, or one that is too large if the question is one of those that the seed selects."""
        name = json.dumps([request["input"], request.get("metadata")], sort_keys=True)
        self.calls[name] += 1
        chance = random.Random(f"{self._seed} {name}")
        if chance.random() < OVERSIZED_SHARE:
            form = self.forms[name] = chance.choice(FORMS)
            await self._write_oversized(writer, form)
        else:
            body = answer_to(request)
            writer.write(head_of(body) + body)
        return True

    async def _write_oversized(self, writer: asyncio.StreamWriter, form: str) -> None:
        if form == "gzip":
            body = compressed_bomb(SIZE // self._scale)
            writer.write(HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        elif form == "values":
            body = many_values(VALUES // self._scale)
            writer.write(head_of(body) + body)
        elif form == "declared length":
            writer.write(HEAD + b"content-length: %d\r\n\r\n" % (SIZE // self._scale) + b"x" * 1000)
        else:
            writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n")
            while True:
                writer.write(CHUNK)
                await writer.drain()


class PeakMemory:
    """The highest memory use of all processes of an evaluation, measured while a block runs."""

    def __init__(self, job: Evaluation) -> None:
        self._job = job
        self._done = threading.Event()
        self.bytes = 0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        thread = threading.Thread(target=self._measure, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join(10)

    def _measure(self) -> None:
        while not self._done.wait(0.1):
            self.bytes = max(self.bytes, sum(map(private_memory, self._job.processes())))


def private_memory(pid: int) -> int:
    """Return the memory of a process that it does not share with files or other processes' mappings."""
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def run_seed(folder: Path, seed: int) -> str:
    """Run against the endpoint; check kinds, counts, calls and memory; a resume must not pay for anything again."""
    scale = SCALE if seed % FULL_SCALE_SEEDS else 1
    endpoint = OversizedEndpoint(seed, scale)
    with serving(endpoint) as url:
        model = {"entrypoint": "app.py", "openai_base_url": url, "openai_api_key": "x", "openai_model": "chaos"}
        job = Evaluation(
            folder,
            model={"responses_api_models": {"openai_model": model}},
            overrides=[f"+max_model_answer_bytes={DEFAULT_LIMIT // scale}"],
            tasks=12,
        )
        peak = PeakMemory(job)
        with peak.measuring():
            status, _ = job.run("--concurrency", "19")
        check_results(job, endpoint, status)
        if peak.bytes > BASE_MEMORY + ANSWER_MEMORY / scale:
            raise BrokenPromise(f"the run used {peak.bytes / 1e6:.0f} MB")
        paid = endpoint.calls.total()
        job.run("--resume")
        if endpoint.calls.total() != paid:
            raise BrokenPromise(f"a resume made {endpoint.calls.total() - paid} calls again")
    forms = ", ".join(f"{count} {form}" for form, count in sorted(Counter(endpoint.forms.values()).items()))
    return f"{len(endpoint.forms)} of {paid} answers were too large ({forms}); peak memory {peak.bytes / 1e6:.0f} MB"


def check_results(job: Evaluation, endpoint: OversizedEndpoint, status: int) -> None:
    """Fail unless exactly the rollouts with an oversized answer failed, as such, and every call was made once."""
    if not endpoint.forms:
        raise BrokenPromise("no answer was too large, so the run shows nothing")
    rewards, failures = job.rewards(), read_records(job.failures)
    if set(rewards) | set(map(rollout_id, failures)) != job.rollout_ids():
        raise BrokenPromise(f"{len(rewards)} scored and {len(failures)} failed are not all rollouts:\n{job.log_tail()}")
    if status != 1 or set(rewards.values()) != {1.0}:
        raise BrokenPromise(f"exit status {status}, rewards {set(rewards.values())}")
    kinds = Counter(record["_ng_failure_class"] for record in failures)
    if kinds != {"model_answer_too_large": len(endpoint.forms)}:
        raise BrokenPromise(f"{len(endpoint.forms)} answers were too large, but the failures are {dict(kinds)}")
    if {record["_ng_failure"]["whom"] for record in failures} != {"policy_model"}:
        raise BrokenPromise("the failures do not name the model server")
    repeated = {name: count for name, count in endpoint.calls.items() if count > 1}
    if repeated:
        raise BrokenPromise(f"calls were paid for more than once: {repeated}")
