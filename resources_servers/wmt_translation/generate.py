"""Write sentences to translate: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generator_command import run_generator
from resources_servers.wmt_translation.sentences import LANGUAGES, PAIRS, SENTENCES


def row(sentence: dict[str, str], source: str, target: str) -> dict[str, Any]:
    """Build a task: translate one sentence from one language into another."""
    question = (
        f"Translate the following text from {LANGUAGES[source]} into {LANGUAGES[target]}. "
        f"Answer with the translation and nothing else.\n\n{sentence[source]}"
    )
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "source_language": source,
        "target_language": target,
        "source_text": sentence[source],
        "reference": sentence[target],
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Return `count` different rows, the language pairs in turn."""
    draw = random.Random(f"translation {seed}")
    order = {pair: draw.sample(SENTENCES, len(SENTENCES)) for pair in draw.sample(PAIRS, len(PAIRS))}
    tasks = [row(order[pair][n], *pair) for n in range(len(SENTENCES)) for pair in order]
    if count > len(tasks):
        raise SystemExit(f"there are only {len(tasks)} different rows; asked for {count}")
    return tasks[:count]


def main() -> None:
    run_generator(rows, __doc__)


if __name__ == "__main__":
    main()
