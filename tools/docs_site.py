"""MkDocs hook: add `llms.txt` and the Markdown source of every page to the site, for coding assistants."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
NOT_PROSE = ("#", "|", "`", "!", "<", "-")
"""First characters of a block that is no paragraph: heading, table, code, image, comment, list."""


def on_post_build(config: Any, **_: Any) -> None:
    """Copy the pages into the site as Markdown and write the list of them."""
    source, site = Path(config["docs_dir"]), Path(config["site_dir"])
    pages = sorted(source.rglob("*.md"))
    for page in pages:
        copy = site / page.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(page.read_bytes())
    text = page_list(config["site_name"], config["site_description"], source)
    (site / "llms.txt").write_text(text, encoding="utf-8")


def page_list(name: str, description: str, folder: Path) -> str:
    """Return the text of `llms.txt`: the name, the description, and a line for each page with its first sentence."""
    return "\n".join([f"# {name}", "", f"> {description}", "", "## Pages", "", *page_lines(folder), ""])


def page_lines(folder: Path) -> Iterator[str]:
    """Yield a Markdown link to each page, with its title and first sentence."""
    for page in sorted(folder.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        title = TITLE.search(text)
        sentence = first_sentence(text)
        path = page.relative_to(folder).as_posix()
        yield f"- [{title[1] if title else path}]({path})" + (f": {sentence}" if sentence else "")


def first_sentence(text: str) -> str:
    """Return the first sentence of the first paragraph, without line breaks; empty if there is no paragraph."""
    for block in text.split("\n\n"):
        words = " ".join(block.split())
        if words and not words.startswith(NOT_PROSE):
            return re.split(r"(?<=[.:])\s", words, maxsplit=1)[0].rstrip(":")
    return ""
