"""Write function-calling rows: `python generate.py OUT --rows 40 --seed 0`."""

import random
from collections.abc import Callable
from typing import Any

from nemo_gym.data.generator_command import run_generator

CITIES = ("Kraków", "São Paulo", "Nairobi", "Oslo", "Hanoi", "Québec", "Lima", "Zürich", "Perth", "Osaka")
PEOPLE = ("Ada", "Ben", "Chloe", "Dmitri", "Elif", "Femi", "Goran", "Hana", "Søren", "Zoë")
GOODS = ("apples", "bolts", "candles", "drums", "envelopes", "flutes")
CURRENCIES = ("EUR", "USD", "PLN", "JPY", "KES", "BRL")
SUBJECTS = ("the invoice", "lunch on Friday", "the new schedule", "your flight", "a lost parcel")

ToolRequest = tuple[str, dict[str, Any]]
"""A request in words, and the arguments of the call that answers it."""


def _schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _weather(draw: random.Random) -> ToolRequest:
    city, days = draw.choice(CITIES), draw.randint(2, 9)
    return f"tell me the weather in {city} for the next {days} days", {"city": city, "days": days}


def _convert(draw: random.Random) -> ToolRequest:
    source, target = draw.sample(CURRENCIES, 2)
    amount = round(draw.uniform(10, 900), 2)
    arguments = {"amount": amount, "from_currency": source, "to_currency": target}
    return f"convert {amount} {source} to {target}", arguments


def _email(draw: random.Random) -> ToolRequest:
    person, subject, urgent = draw.choice(PEOPLE), draw.choice(SUBJECTS), draw.random() < 0.5
    flag = "an urgent" if urgent else "an ordinary"
    return f"send {person} {flag} e-mail about {subject}", {"to": person, "subject": subject, "urgent": urgent}


def _order(draw: random.Random) -> ToolRequest:
    items = [
        {"product": product, "quantity": draw.randint(2, 60)} for product in draw.sample(GOODS, draw.randint(1, 3))
    ]
    listed = " and ".join(f"{item['quantity']} {item['product']}" for item in items)
    return f"order {listed}", {"items": items}


def _reminder(draw: random.Random) -> ToolRequest:
    subject, hour, minute = draw.choice(SUBJECTS), draw.randint(6, 21), draw.choice((0, 15, 30, 45))
    return f"remind me of {subject} at {hour:02d}:{minute:02d}", {"text": subject, "hour": hour, "minute": minute}


TOOLS: dict[str, tuple[Callable[[random.Random], ToolRequest], str, dict[str, Any]]] = {
    "get_weather": (
        _weather,
        "Forecast for a city.",
        _schema(city={"type": "string"}, days={"type": "integer"}),
    ),
    "convert_currency": (
        _convert,
        "Convert an amount of money.",
        _schema(
            amount={"type": "number"},
            from_currency={"type": "string", "enum": list(CURRENCIES)},
            to_currency={"type": "string", "enum": list(CURRENCIES)},
        ),
    ),
    "send_email": (
        _email,
        "Send an e-mail. The subject is given in the words of the request.",
        _schema(to={"type": "string"}, subject={"type": "string"}, urgent={"type": "boolean"}),
    ),
    "place_order": (
        _order,
        "Order goods, the items in the order of the request.",
        _schema(items={"type": "array", "items": _schema(product={"type": "string"}, quantity={"type": "integer"})}),
    ),
    "set_reminder": (
        _reminder,
        "Set a reminder for today. The text is given in the words of the request.",
        _schema(text={"type": "string"}, hour={"type": "integer"}, minute={"type": "integer"}),
    ),
}
INSTRUCTIONS = "Answer with tool calls only, all of them at once: one call for each thing that is asked for."


def tool(name: str) -> dict[str, Any]:
    """Return a tool as it is offered to a model."""
    _, description, parameters = TOOLS[name]
    return {
        "type": "function",
        "name": name,
        "description": description,
        "parameters": parameters,
        "strict": True,
    }


def row(count: int, draw: random.Random) -> dict[str, Any]:
    """Build a request that takes `count` calls, possibly several of the same tool, and the tools to choose from."""
    names = [draw.choice(list(TOOLS)) for _ in range(count)]
    requests: list[tuple[str, ToolRequest]] = []
    while len(requests) < count:
        one = (names[len(requests)], TOOLS[names[len(requests)]][0](draw))
        if one not in requests:
            requests.append(one)
    request = ", then ".join(words for _, (words, _) in requests)
    offered = sorted({*names, *draw.sample(list(TOOLS), 3)})
    conversation = [
        {"role": "developer", "content": INSTRUCTIONS},
        {"role": "user", "content": f"Please {request}."},
    ]
    params = {"input": conversation, "tools": [tool(name) for name in offered], "parallel_tool_calls": True}
    answers = [{"name": name, "arguments": arguments} for name, (_, arguments) in requests]
    return {"responses_create_params": params, "expected_answers": answers}


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` rows that take one, two and three calls in turn."""
    draw = random.Random(seed)
    return [row(1 + number % 3, draw) for number in range(count)]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
