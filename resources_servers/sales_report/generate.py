"""Write reporting tasks: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator
from resources_servers.sales_report.desk import TOOLS
from resources_servers.sales_report.world import QUARTERS, REGIONS

SYSTEM = """You work at a company's reporting desk. Its files tell you how reports are written, which orders count and
who gets a report. Use the tools, do only what is asked, and say in one sentence when you are done."""


def tool_schemas() -> list[dict[str, Any]]:
    """Return the tools as a row offers them."""
    schemas = []
    for name, (model, _, _) in TOOLS.items():
        schema = model.model_json_schema()
        parameters = {key: schema[key] for key in ("type", "properties", "required") if key in schema}
        parameters["additionalProperties"] = False
        schemas.append(
            {
                "type": "function",
                "name": name,
                "description": model.__doc__,
                "parameters": parameters,
                "strict": False,
            }
        )
    return schemas


def row(world_seed: int, region: str, quarter: str) -> dict[str, Any]:
    instruction = f"Write the sales report of the {region} region for {quarter} and send it to whoever gets it."
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": instruction}]
    return {
        "responses_create_params": {"input": messages, "tools": tool_schemas(), "parallel_tool_calls": False},
        "world_seed": world_seed,
        "region": region,
        "quarter": quarter,
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` tasks, each in another company."""
    draw = random.Random(seed)
    worlds = draw.sample(range(1_000_000), count)
    return [row(world, draw.choice(REGIONS), draw.choice(QUARTERS[1:])) for world in worlds]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
