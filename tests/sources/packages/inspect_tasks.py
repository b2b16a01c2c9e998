"""Tasks of Inspect: one turn, choices, tools, a dialogue with a limit, a model that grades; faults on request."""

import os
import time
from zlib import crc32

from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser
from inspect_ai.scorer import Score, accuracy, choice, includes, match, model_graded_qa, scorer
from inspect_ai.solver import generate, multiple_choice, solver, system_message, use_tools
from inspect_ai.tool import tool


def tool_policy(text: str, number: int):
    """Choose calls by the last text and the turn; in the end, say a number."""
    value = crc32(f"{text}:{number}".encode())
    if number == 0:
        calls = [{"name": "look", "arguments": {"shelf": value % 4}}, {"name": "look", "arguments": {"shelf": 2}}]
        return {"text": "so", "tool_calls": calls}
    if number == 1:
        choices = [{"shelf": 3}, {"shelf": "many"}, {"wrong": 1}]
        names = ["look", "burn"]
        return {"tool_calls": [{"name": names[value % 2], "arguments": choices[value % 3]}]}
    return f"It is {value % 3}"


def choice_policy(text: str, number: int) -> str:
    return f"ANSWER: {'ABC'[crc32(text.encode()) % 3]}"


def number_samples(count: int = 24) -> list[Sample]:
    return [Sample(input=f"Number {number}: [1] [2] [3]", target=f"[{1 + number % 3}]") for number in range(count)]


@scorer(metrics=[accuracy()])
def parts():
    async def score(state, target):
        length = len(state.output.completion)
        return Score(value={"right": float(target.text in state.output.completion), "length": length / 100})

    return score


@task
def numbers() -> Task:
    return Task(
        dataset=number_samples(), solver=[system_message("Be brief."), generate()], scorer=[includes(), parts()]
    )


@task
def choices() -> Task:
    samples = [
        Sample(input=f"Which {number}?", choices=["a", "b", "c"], target="ABC"[number % 3]) for number in range(24)
    ]
    return Task(dataset=samples, solver=multiple_choice(), scorer=choice())


@tool
def look():
    async def execute(shelf: int) -> str:
        """Look at a shelf.

        Args:
            shelf: The number of the shelf.
        """
        if shelf == 2:
            raise PermissionError("shelf 2 is locked")
        return f"The number {shelf * 11}."

    return execute


@task
def tools() -> Task:
    samples = [Sample(input=f"What is the number of {number}?", target=str(number % 3)) for number in range(24)]
    return Task(dataset=samples, solver=[use_tools(look()), generate()], scorer=match(location="end"))


@solver
def dialogue(fault: str = ""):
    async def solve(state, generate):
        while True:
            state = await generate(state)
            if fault == "raise":
                raise KeyError("lost sample")
            if fault == "hang":
                time.sleep(3600)  # noqa: ASYNC251
            if fault == "exit":
                os._exit(7)
            if fault == "other":
                state.messages = [ChatMessageUser(content="something else")]
            if state.target.text in state.output.completion:
                return state
            turn = len(state.messages)
            state.messages.append(ChatMessageUser(content=f"Wrong at {turn}. Again: [1] [2] [3]"))

    return solve


@task
def talk(fault: str = "") -> Task:
    return Task(dataset=number_samples(), solver=dialogue(fault), scorer=includes(), message_limit=7)


@task
def with_grader() -> Task:
    return Task(dataset=number_samples(), scorer=model_graded_qa())


@task
def local() -> Task:
    return Task(dataset=number_samples(), scorer=includes(), sandbox="local")


READY = Task(dataset=number_samples(), scorer=includes())
"""A task that no function makes."""
