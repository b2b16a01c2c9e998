"""A package of verifiers: several turns, state, hints, an end by the environment or by its limit; faults on request."""

import os
import random
import time

import verifiers as vf
from datasets import Dataset


class GuessEnv(vf.MultiTurnEnv):
    def __init__(self, fault: str = "", **fields) -> None:
        super().__init__(**fields)
        self.fault = fault

    async def setup_state(self, state):
        state["secret"] = int(state["answer"])
        state["hints"] = []
        return state

    async def env_response(self, messages, state, **_):
        if self.fault == "raise":
            raise KeyError("lost secret")
        if self.fault == "error":
            raise vf.ToolError("broken tool")
        if self.fault == "hang":
            time.sleep(3600)  # noqa: ASYNC251
        if self.fault == "exit":
            os._exit(7)
        reply = messages[-1]["content"]
        if f"[{state['secret']}]" in reply:
            state["final_env_response"] = [{"role": "user", "content": f"Right after {len(state['hints'])} hints."}]
            return state["final_env_response"]
        state["hints"].append(random.random())
        return [
            {"role": "user", "content": f"Wrong, hint {state['hints'][-1]:.6f}."},
            {"role": "user", "content": "Guess again: [1] [2] [3] [4]"},
        ]


def load_environment(fault: str = "", max_turns: int = 4) -> vf.Environment:
    rows = [{"question": f"Guess {number}: [1] [2] [3] [4]", "answer": str(1 + number % 4)} for number in range(30)]

    def quickness(state) -> float:
        is_right = state.get("final_env_response") is not None
        return 1 / (1 + len(state["hints"])) if is_right else 0.0

    rubric = vf.Rubric(funcs=[quickness])
    return GuessEnv(fault=fault, max_turns=max_turns, eval_dataset=Dataset.from_list(rows), rubric=rubric)
