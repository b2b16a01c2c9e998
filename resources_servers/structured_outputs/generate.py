"""Write rows that ask for data about a made-up order: `python generate.py OUT --rows 40 --seed 0`."""

import json
import random
from typing import Any

from nemo_gym.data.generator_command import run_generator

FORMATS = ("json", "yaml", "xml", "toml", "csv")
NAMES = ("Ada", "Ben", "Chloe", "Dmitri", "Elif", "Femi", "Goran", "Hana")
GOODS = ("apples", "bolts", "candles", "drums", "envelopes", "flutes")

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer": {"type": "string"},
        "product": {"type": "string", "enum": list(GOODS)},
        "quantity": {"type": "integer", "minimum": 1},
        "paid": {"type": "boolean"},
    },
}


def row(format_name: str, draw: random.Random) -> dict[str, Any]:
    """Build a task: an order in words that the reply must give as data."""
    schema: dict[str, Any] = {"type": "array", "items": ORDER, "minItems": 1} if format_name == "csv" else ORDER
    customer, product, count = draw.choice(NAMES), draw.choice(GOODS), draw.randint(2, 90)
    paid = draw.random() < 0.5
    order = f"{customer} ordered {count} {product} and has {'already' if paid else 'not yet'} paid."
    root = " Call the root element order." if format_name == "xml" else ""
    instruction = f"Answer with {format_name.upper()} only, no other text, that fits this schema:{root}"
    question = f"{order}\n{instruction}\n{json.dumps(schema)}"
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "schema_str": json.dumps(schema),
        "schema_type": format_name,
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` rows, the formats in turn."""
    draw = random.Random(seed)
    return [row(FORMATS[number % len(FORMATS)], draw) for number in range(count)]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
