"""Prompts with an image: the messages of a prompt template, and the image in the user's message."""

from typing import Any

from nemo_gym.data.prompt import PromptConfig, fill_prompt


def build_image_input(prompt_config: PromptConfig, question: str, image: str | None) -> list[dict[str, Any]]:
    """Return the messages of a prompt for a question; with an image (a data URI), the user's message contains both."""
    messages: list[dict[str, Any]] = [dict(message) for message in fill_prompt(prompt_config, {"question": question})]
    if image is None:
        return messages
    for message in messages:
        if message["role"] == "user":
            text = {"type": "input_text", "text": message["content"]}
            message["content"] = [text, {"type": "input_image", "image_url": image, "detail": "high"}]
    return messages
