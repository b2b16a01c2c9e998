"""Whatever a model writes, the viewer shows it as text: it cannot run, load, write into the page or turn it around."""

from collections.abc import Callable
from typing import Any

import pytest

from nemo_gym.view.database import RunDatabase
from tests.browser.conftest import keep, served_page
from tests.view.records import failure, record

Make = Callable[..., RunDatabase]
HOSTILE = [
    "<script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "</pre></article><svg onload=window.hacked=1>",
    "[click](javascript:window.hacked=1)",
    "\u202egnp.exe",
    "\x1b[31mred\x1b[0m",
    "'; DROP TABLE rollouts; --",
]
MARKDOWN = "\n\n".join(
    (
        "[a](javascript:window.hacked=1) <a href='javascript:window.hacked=1'>b</a> <javascript:window.hacked=1>",
        "![x](https://evil.example/pixel.png) ![y](data:text/html,<script>window.hacked=1</script>)",
        '<iframe srcdoc="<script>parent.hacked=1</script>"></iframe><style>body{display:none}</style>',
        "```html\n<img src=x onerror=window.hacked=1><script>window.hacked=1</script>\n```",
        '```"onmouseover=window.hacked=1 x="\ncode\n```',
        "| a | <img src=x onerror=window.hacked=1> |\n|---|---|\n| <svg/onload=window.hacked=1> | `</td>` |",
        r"$\href{javascript:window.hacked=1}{x}$ $\url{javascript:window.hacked=1}$ $\style{color:red}{x}$",
        r"$\includegraphics{https://evil.example/x.png}$ $\class{x}{y}$ $\htmlData{onclick=window.hacked=1}{z}$",
        r"$$\def\a{\a\a}\a$$ $\text{<img src=x onerror=window.hacked=1>}$ $\unicode{x202e}$ $\boxed{1}$",
        "\u202e**bold**\u202c ```\u202e```",
    )
)
INERT = r"""
(() => {
  const harmless = ["data-tip", "aria-label", "value"], bad = [];
  const forbidden = /^(script|iframe|object|embed|style|link|form|base|foreignObject)$/i;
  for (const element of document.querySelectorAll("#app *")) {
    if (forbidden.test(element.localName)) bad.push(element.localName);
    for (const { name, value } of element.attributes) {
      if (/^on/i.test(name) || (/^\s*javascript:/i.test(value) && !harmless.includes(name))) bad.push(name);
    }
    if (element.localName === "img" && !/^data:image/.test(element.src)) bad.push("img");
    const address = element.localName === "a" ? element.getAttribute("href") : null;
    if (address !== null && !/^(#|https?:)/.test(address)) bad.push(address);
  }
  return bad;
})()
"""


@pytest.fixture
def requests_elsewhere(page: Any) -> list[str]:
    """The addresses of other hosts that the page asked for."""
    addresses: list[str] = []
    page.on("request", lambda request: None if "127.0.0.1" in request.url else addresses.append(request.url))
    return addresses


def assert_inert(page: Any) -> None:
    assert page.evaluate("window.hacked") is None
    assert page.evaluate(INERT) == []


def test_hostile_rollouts_are_only_ever_text(page: Any, make: Make, requests_elsewhere: list[str]) -> None:
    """Every page that shows fields of a record."""
    hostile = [record(task, 0, answer=text, extracted_answer=text) for task, text in enumerate(HOSTILE)]
    hostile[1]["difficulty"] = HOSTILE[1]
    with served_page(make(*hostile, failures=(failure(50, 0, message=HOSTILE[0]),))) as url:
        for view in (
            "#/run/0",
            "#/run/0/rollouts?at=1%3A0",
            "#/run/0/tasks",
            *(f"#/run/0/rollout/{n}/0" for n in (0, 1, 2, 4, 50)),
            "#/run/0/rollout/1/0?tab=json",
        ):
            page.goto(url + view)
            page.reload()
            page.locator("main h1").first.wait_for(state="attached")
            assert_inert(page)
        page.goto(f"{url}#/run/0/rollout/4/0")
        page.get_by_text("⟦U+202E⟧gnp.exe").first.wait_for()
        keep(page, "hostile")
    assert requests_elsewhere == []


def test_markdown_formulas_code_and_differences_are_inert(page: Any, make: Make, requests_elsewhere: list[str]) -> None:
    """Everything that the renderers of messages understand, used against them."""
    hostile = record(
        0, 0, answer=MARKDOWN, extracted_answer=MARKDOWN, expected_answer=MARKDOWN + "<b>x</b>", reward=0.0
    )
    hostile["response"]["output"][1]["arguments"] = (
        '{"code": "<img src=x onerror=window.hacked=1>\\n' + "# x\\n" * 5 + '"}'
    )
    hostile["response"]["output"][2]["output"] = '{"a": "</code><script>window.hacked=1</script>"}'
    with served_page(make(hostile)) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.locator(".prose .inertlink").first.wait_for()
        page.keyboard.press("e")
        page.locator(".convo details[open]").first.wait_for()
        assert_inert(page)
        page.locator(".prose .linklike").first.click()
        assert page.get_by_text("cannot be opened").count() == 1, "only http and https can be opened"
        assert_inert(page)
        page.get_by_role("button", name="Full width").first.click()
        page.locator(".widedialog").wait_for()
        assert_inert(page)
        assert page.locator(".prose math").count() > 0, "formulas are still rendered"
        keep(page, "hostile-markdown")
    assert requests_elsewhere == []


def test_images_of_messages_are_shown_only_if_they_are_in_the_record(
    page: Any, make: Make, requests_elsewhere: list[str]
) -> None:
    """A remote image would tell its host who reads the rollout."""
    pixel = (
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ"
        "RU5ErkJggg=="
    )
    images = [{"type": "input_image", "image_url": each} for each in (pixel, "https://evil.example/x.png")]
    shown = record(0, 0)
    shown["responses_create_params"]["input"] = [
        {"role": "user", "content": [{"type": "input_text", "text": "?"}, *images]}
    ]
    shown["response"]["output"][2]["output"] = images
    with served_page(make(shown)) as url:
        page.goto(f"{url}#/run/0/rollout/0/0")
        page.locator(".picture img").first.wait_for()

        assert page.locator("main img").count() == 2, "that of the message and that of the tool output"
        assert page.get_by_text("not shown: https://evil.example/x.png").count() == 2
    assert requests_elsewhere == []
