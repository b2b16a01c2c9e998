"""Tasks of the made-up runs of `tools.view_demo`: their questions, answers and conversations."""

import json
import random
from dataclasses import dataclass
from typing import Any

SPECIAL_TASK = 41
"""The task whose repeat 3 has the conversation of the pictures: formulas, code, long output and a table."""
SYSTEM = (
    "You solve competition problems. You may run Python with the tool `execute_python`. Put the final answer in"
    r" `\boxed{}`. Explain each step in one or two sentences, and check the result by a second way if possible."
)
OTHER_SYSTEM = "You are a careful assistant. Explain each step in one or two sentences, then give the final answer."
TOOLS = {
    "math_with_code": (
        "execute_python",
        "Run a Python program and return what it prints. Names stay defined between calls of one rollout.",
        {
            "code": {"type": "string", "description": "Source text; the value of a last expression is printed"},
            "timeout": {"type": "number", "description": "Seconds until the program is stopped", "default": 10},
        },
        ["code"],
    ),
    "workplace_assistant": (
        "project_management_search_tasks",
        "Search the tasks of the project by words.",
        {"query": {"type": "string", "description": "Words of the title"}},
        ["query"],
    ),
}
QUESTIONS = (
    ("math_with_code", "How many primes below {0:,} have digits that add up to {1}?", "{2}", r"last \boxed{}"),
    (
        "bird_sql",
        "How many books of each genre are by authors from Norway, lent more than {1} times in 2025?",
        "SELECT genre, COUNT(*) FROM book GROUP BY genre",
        "rows of the last SQL block",
    ),
    (
        "workplace_assistant",
        "Move the task 'Rotate the API keys' ({1}) to Completed and send its assignee an email.",
        "2 changes",
        "state of the tables afterwards",
    ),
    (
        "instruction_following",
        "Describe a reading lamp in exactly {1} paragraphs, without commas, and end with a question.",
        "4 of 4 rules",
        "each instruction on its own",
    ),
    ("math_with_code", r"Evaluate $\int_0^\infty x e^{{-{1}x}}\,dx$.", "1/{3}", r"last \boxed{}"),
    (
        "equivalence_judge",
        "Which gas makes up most of the atmosphere of Titan, and about how many percent is it? ({1})",
        "nitrogen, 95 %",
        "last line with Answer:, then the judge",
    ),
)
WRONG_ANSWERS = {
    "math_with_code": ("1/2", "1/7", "2/9"),
    "bird_sql": ("SELECT COUNT(*) FROM book", "SELECT genre FROM book"),
    "workplace_assistant": ("1 of 2 changes",),
    "instruction_following": ("3 of 4 rules", "2 of 4 rules"),
    "equivalence_judge": ("methane, 95 %", "nitrogen, 78 %"),
}
SPECIAL_QUESTION = (
    r"Find the number and the sum of all positive integers $n \le 1000$ for which $n^2 + n + 41$ is divisible by 43."
    " Give the answer as `(number, sum)`."
)
Turn = list[dict[str, Any]]


@dataclass(frozen=True)
class DemoTask:
    """One task: who answers it, what is asked, and the expected answer."""

    number: int
    agent: str
    question: str
    answer: str
    rule: str
    ease: float

    @property
    def difficulty(self) -> str:
        return "simple" if self.ease > 0.66 else "moderate" if self.ease > 0.33 else "hard"

    def request(self) -> dict[str, Any]:
        """Return the parameters of the request."""
        system = SYSTEM if self.agent == "math_with_code" else OTHER_SYSTEM
        messages = [{"role": "system", "content": system}, {"role": "user", "content": self.question}]
        request: dict[str, Any] = {"input": messages, "temperature": 0.7, "top_p": 0.95, "max_output_tokens": 8192}
        if self.agent in TOOLS:
            name, description, properties, required = TOOLS[self.agent]
            parameters = {"type": "object", "properties": properties, "required": required}
            tool = {"type": "function", "name": name, "description": description, "parameters": parameters}
            request["tools"] = [tool]
        return request

    def wrong_answer(self, chance: random.Random) -> str:
        """Return a wrong answer; some are missing altogether."""
        if chance.random() < 0.15:
            return ""
        if self.answer.isdigit():
            return str(int(self.answer) + chance.choice((-7, -1, 1, 2, 10)))
        return chance.choice(WRONG_ANSWERS[self.agent])

    def loose_ending(self) -> str:
        """Return the end of a rollout from which no answer can be extracted; of some tasks, the answer is right."""
        return f"So the answer is {self.answer}." if self.number % 4 == 0 else "I found no answer that holds."

    def conversation(self, answer: str) -> list[Turn]:
        """Return the turns of a rollout that ends with an answer; without one, nothing is boxed."""
        ending = f"The final answer is $\\boxed{{\\text{{{answer}}}}}$." if answer else self.loose_ending()
        final = message(f"I checked each step again.\n\n{ending}")
        thought = reasoning("Let me first restate the question, and then look for a way that can be checked.")
        if self.agent == "math_with_code":
            code = f"candidates = range({self.number + 2}, {self.number + 40})\nprint(sum(candidates))"
            call = tool_call("execute_python", {"code": code}, f"call_{self.number}")
            return [[thought, call, tool_output(f"call_{self.number}", str(self.number * 39))], [final]]
        if self.agent == "workplace_assistant":
            call = tool_call("project_management_search_tasks", {"query": "Rotate the API keys"}, "call_1")
            status = tool_output("call_1", json.dumps({"task_id": "00000388", "list": "In review"}))
            return [[call, status], [final]]
        return [[thought, final]]


def demo_task(number: int) -> DemoTask:
    """Return the task of a number; the same one for every run."""
    if number == SPECIAL_TASK:
        return DemoTask(number, "math_with_code", SPECIAL_QUESTION, "(47, 23714)", r"last \boxed{}", 0.6)
    chance = random.Random(number + 1000)
    agent, question, answer, rule = QUESTIONS[number % len(QUESTIONS)]
    values = (2000 + chance.randrange(90) * 500, 2 + chance.randrange(9), 60 + chance.randrange(400), 0)
    values = (*values[:3], values[1] ** 2)
    return DemoTask(number, agent, question.format(*values), answer.format(*values), rule, chance.random())


def special_conversation() -> list[Turn]:
    """Return the conversation of the pictures."""
    first = "a = range(1, 1000, 43)\nb = range(41, 970, 43)   # 41 + 43k\nprint(len(a), sum(a))\nprint(len(b), sum(b))"
    second = 'for n in sorted([*a, *b]):\n    print(f"{n:4} {n*n + n + 41:8} {(n*n + n + 41) % 43}")'
    numbers = sorted([*range(1, 1000, 43), *range(41, 970, 43)])
    listing = "\n".join(f"{n:4} {n * n + n + 41:8} {(n * n + n + 41) % 43}" for n in numbers)
    opening = (
        "Since $41 \\equiv -2$ modulo 43, the polynomial factors:\n\n"
        "$$n^2 + n + 41 \\equiv n^2 + n - 2 = (n + 2)(n - 1) \\pmod{43}$$\n\n"
        "43 is prime, so there are two residue classes:\n\n"
        "1. $n \\equiv 1$, the integers 1, 44, 87, …\n2. $n \\equiv 41$, the integers 41, 84, 127, …"
    )
    closing = (
        "All remainders are 0. Adding both progressions:\n\n| class | number | sum |\n|---|---:|---:|\n"
        "| $n \\equiv 1$ | 24 | 11,892 |\n| $n \\equiv 41$ | 22 | 10,835 |\n| **total** | **46** | **22,727** |\n\n"
        "The answer is $\\boxed{(46, 22727)}$, which is (46, 22727)."
    )
    thought = "Reduce modulo 43 and factor: the constant 41 becomes −2, which suggests (n + 2)(n − 1)."
    return [
        [
            reasoning(thought),
            message(opening),
            tool_call("execute_python", {"code": first}, "call_a"),
            tool_output("call_a", "24 11892\n22 10835"),
        ],
        [
            message("I list them with the value of the polynomial, to be certain that every remainder is 0."),
            tool_call("execute_python", {"code": second}, "call_b"),
            tool_output("call_b", listing),
        ],
        [message(closing)],
    ]


def message(text: str) -> dict[str, Any]:
    """Return a message of the assistant."""
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def reasoning(text: str) -> dict[str, Any]:
    """Return an item of reasoning."""
    return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}


def tool_call(name: str, arguments: dict[str, Any], call_id: str) -> dict[str, Any]:
    """Return a call of a tool."""
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": json.dumps(arguments)}


def tool_output(call_id: str, text: str) -> dict[str, Any]:
    """Return the output of a tool."""
    return {"type": "function_call_output", "call_id": call_id, "output": text}
