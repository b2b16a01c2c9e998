"""Write sentences to translate: `python generate.py OUT --rows 40 --seed 0`."""

import random
from typing import Any

from nemo_gym.data.generated import write_generated
from resources_servers.wmt_translation.sentences import LANGUAGES, PAIRS, SENTENCES


def row(sentence: dict[str, str], source: str, target: str) -> dict[str, Any]:
    """One sentence from one language into another."""
    asked = (
        f"Translate the following text from {LANGUAGES[source]} into {LANGUAGES[target]}. "
        f"Answer with the translation and nothing else.\n\n{sentence[source]}"
    )
    return {
        "responses_create_params": {"input": [{"role": "user", "content": asked}]},
        "source_language": source,
        "target_language": target,
        "source_text": sentence[source],
        "reference": sentence[target],
    }


def rows(count: int, *, seed: int) -> list[dict[str, Any]]:
    """`count` different rows, the language pairs in turn."""
    draw = random.Random(f"translation {seed}")
    order = {pair: draw.sample(SENTENCES, len(SENTENCES)) for pair in draw.sample(PAIRS, len(PAIRS))}
    made = [row(order[pair][n], *pair) for n in range(len(SENTENCES)) for pair in order]
    if count > len(made):
        raise SystemExit(f"there are only {len(made)} different rows; asked for {count}")
    return made[:count]


def main() -> None:
    write_generated(rows, __doc__)


if __name__ == "__main__":
    main()
