"""No page of the viewer has a serious violation that axe-core finds, in either theme, or scrolls sideways."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import keep
from tools.view_screenshots import PAGES, served_demo

Demo = tuple[str, dict[str, tuple[str, str]], Callable[[], None]]

AXE = Path(__file__).resolve().parents[2] / ".npm-viewer" / "node_modules" / "axe-core" / "axe.min.js"
"""Installed by `python3 dev.py lint-js`; never shipped."""
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    with served_demo(tmp_path_factory.mktemp("demo")) as served:
        yield served


@pytest.mark.timeout(240)
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_no_page_has_a_serious_violation(browser: Any, demo: Demo, theme: str, width: int) -> None:
    """Contrast, names, roles, landmarks: what keeps people with a screen reader or weak sight out."""
    if not AXE.exists():
        pytest.skip("needs axe-core (python3 dev.py lint-js installs it)")
    url, pages, refresh = demo
    assert set(pages) == set(PAGES)
    violations = []
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce", bypass_csp=True
    )
    page = context.new_page()
    for name, (address, ready) in pages.items():
        refresh()
        page.goto(url + address)
        page.reload()
        page.locator(ready).first.wait_for()
        page.wait_for_function("!document.querySelector('main [aria-busy=\"true\"]')")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            violations.append((name, "scrolls sideways", []))
        page.add_script_tag(path=str(AXE))
        for violation in page.evaluate("async () => (await axe.run()).violations"):
            if violation["impact"] in GRAVE:
                places = [f"{node['html'][:160]} {node['failureSummary'][:200]}" for node in violation["nodes"][:3]]
                violations.append((name, violation["id"], places))
        keep(page, f"axe-{name}-{width}-{theme}")
    context.close()

    assert violations == []
