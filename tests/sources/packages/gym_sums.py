"""A package of verifiers: one turn, a system prompt, and a rubric of three functions with weights."""

import verifiers as vf
from datasets import Dataset


def load_environment(count: int = 24) -> vf.Environment:
    rows = [
        {"question": f"{number} + {number * 7 % 5} = [?] [3] [7] [9]", "answer": str(number % 10)}
        for number in range(count)
    ]

    def is_right(completion, answer) -> float:
        return float(f"[{answer}]" in completion[-1]["content"])

    def is_short(completion) -> float:
        return 10 / (10 + len(completion[-1]["content"]))

    async def length(completion) -> float:
        return float(len(completion[-1]["content"]))

    rubric = vf.Rubric(funcs=[is_right, is_short, length], weights=[1.0, 0.25, 0.0])
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), system_prompt="Answer as [3].", rubric=rubric)
