"""Kill a server at a step of making a box: a line of `sandbox/providers/local/box.py`, determined by the seed.

Its boxes must end with it, at whatever step they are, and after a resume every rollout must have its reward.
"""

import json
import random
from pathlib import Path

import yaml

from chaos.evaluation import BrokenPromise, Evaluation, read_records, rollout_id
from nemo_gym.sandbox.providers.local import probe

STEPS, BOXES = 105, 4
"""The number of lines that start a box (about), and of boxes of which one is chosen."""

SERVER = '''
import json, os, signal, threading, time
from pathlib import Path

from nemo_gym.sandbox.base_server import SandboxServer, SandboxServerConfig
from nemo_gym.sandbox.providers.local import box
from nemo_gym.base_resources_server import BaseVerifyRequest, BaseVerifyResponse

PLAN = Path(__file__).parents[2] / "plan.json"


class KillStep:
    """Kills this process at the planned line of the planned box; only once in a run."""

    def __init__(self, box, step, delay_seconds):
        self.box, self.step, self.delay_seconds = box, step, delay_seconds
        self.boxes = self.lines = 0

    def __call__(self, frame, event, argument):
        if frame.f_code.co_filename != box.__file__:
            return None
        if event == "call" and frame.f_code.co_name == "launch":
            self.boxes += 1
        self.lines += event == "line" and self.boxes == self.box
        if self.lines == self.step:
            PLAN.rename(PLAN.with_name("executed.json"))
            time.sleep(self.delay_seconds)
            os.kill(os.getpid(), signal.SIGKILL)
        return self


class SumRequest(BaseVerifyRequest):
    expected_answer: int


class BoxedSums(SandboxServer):
    config: SandboxServerConfig

    async def verify(self, body: SumRequest) -> BaseVerifyResponse:
        number = body.response.output_text.rstrip(".").split()[-1]
        result = await self._runner.run(f"print(int({number!r}))")
        if result.kind is not None:
            raise RuntimeError(f"the program ended with {result}")
        return BaseVerifyResponse(**body.model_dump(), reward=float(int(result.stdout) == body.expected_answer))


if __name__ == "__main__":
    if PLAN.exists():
        threading.settrace(KillStep(**json.loads(PLAN.read_text())))
    BoxedSums.run_webserver()
'''


def run_seed(folder: Path, seed: int) -> str:
    """Kill the server that runs programs while it makes a box, then resume until every rollout is scored."""
    if not probe().available:
        return f"not run: {probe().problem}"
    chance = random.Random(seed)
    job = Evaluation(folder, tasks=4, repeats=2)
    server = folder / "resources_servers" / "boxed_sums"
    server.mkdir(parents=True)
    (server / "app.py").write_text(SERVER)
    (server / "requirements.txt").write_text("-e nemo-gym[dev] @ ../../\n")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    block = {"entrypoint": "app.py", "domain": "math", "hosting": "process", "sandbox": {"local": {"warm": 2}}}
    config["arithmetic"] = {"resources_servers": {"boxed_sums": block}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    plan = {"box": chance.randint(1, BOXES), "step": 1 + seed % STEPS, "delay_seconds": chance.choice([0.0, 0.0, 0.01])}
    (folder / "plan.json").write_text(json.dumps(plan))
    status, _ = job.run()
    if status not in (0, 1, 3):  # 3: the server was killed before it was ready
        raise BrokenPromise(f"the run ended with status {status}:\n{job.log_tail()}")
    was_killed = not (folder / "plan.json").exists()
    if status:
        job.resume_until_scored()
    if set(job.rewards()) != job.rollout_ids():
        raise BrokenPromise(f"only {len(job.rewards())} rollouts are stored")
    for record in read_records(job.output):
        answer = record["response"]["output"][-1]["content"][0]["text"].rstrip(".").split()[-1]
        if record["reward"] != float(int(answer) == 8 * rollout_id(record)[0]):
            raise BrokenPromise(f"rollout {rollout_id(record)} has the reward {record['reward']} for {answer}")
    moment = f"killed at step {plan['step']} of box {plan['box']}" if was_killed else "the step was not reached"
    return f"{moment}; no process was left"
