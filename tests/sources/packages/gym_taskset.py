"""A taskset of verifiers 0.4: a system prompt, tools, two rewards with weights, a metric; faults on request."""

import os
import time
from zlib import crc32

import verifiers.v1 as vf

__all__ = ["NumberTaskset"]


class NumberData(vf.TaskData):
    answer: str


class NumberTaskConfig(vf.TaskConfig):
    fault: str = ""


class NumberTask(vf.Task[NumberData, vf.State, NumberTaskConfig]):
    @vf.reward(weight=1.0)
    async def right(self, trace) -> float:
        if self.config.fault == "raise":
            raise KeyError("lost answer")
        if self.config.fault == "hang":
            time.sleep(3600)  # noqa: ASYNC251
        if self.config.fault == "exit":
            os._exit(7)
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.25)
    async def short(self, trace) -> float:
        return 10 / (10 + len(trace.last_reply))

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)


class NumberTasksetConfig(vf.TasksetConfig):
    task: NumberTaskConfig = NumberTaskConfig()
    count: int = 24


class NumberTaskset(vf.Taskset[NumberTask, NumberTasksetConfig]):
    def load(self):
        for number in range(self.config.count):
            prompt = f"Number {number}: [1] [2] [3]"
            data = NumberData(prompt=prompt, system_prompt="Be brief.", answer=f"[{1 + number % 3}]")
            yield NumberTask(data, self.config.task)


def policy(text: str, number: int) -> str:
    return f"I say [{1 + crc32(f'{text}:{number}'.encode()) % 4}]"
