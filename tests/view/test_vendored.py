"""Libraries of the viewer's page: their origin is stated in one file, and they are what was published."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from nemo_gym.view.server import page_files

STATIC = Path(__file__).resolve().parents[2] / "nemo_gym" / "view" / "static"
VENDOR = STATIC / "vendor"
LIBRARIES = json.loads((VENDOR / "VENDORED.json").read_text())["libraries"]
UNSAFE = re.compile(
    r"\.(?:inner|outer)HTML\b|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function"
)
RENDERERS = ("markdown-it", "temml", "highlight")


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library["file"])
def test_a_library_is_what_its_registry_published(library: dict[str, str]) -> None:
    """A changed file would be code that no one reviewed."""
    assert hashlib.sha256((VENDOR / library["file"]).read_bytes()).hexdigest() == library["sha256"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", library["version"])
    assert library["licence"]
    assert all((VENDOR / path).read_text().strip() for path in library["licence_files"])


def test_every_script_of_others_is_listed() -> None:
    """A file without version and licence cannot be updated or distributed."""
    assert {path.name for path in VENDOR.glob("*.js")} == {library["file"] for library in LIBRARIES}


def test_our_scripts_never_turn_text_into_html() -> None:
    """Text of models must reach the page as text; the renderers build elements from a fixed list."""
    scripts = [path for path in STATIC.rglob("*.js") if VENDOR not in path.parents]
    assert len(scripts) > 20
    assert [path.name for path in scripts if UNSAFE.search(path.read_text())] == []


def test_the_page_has_no_inline_script_or_style_and_loads_renderers_later() -> None:
    """The policy of the page forbids both; a run's overview should not load what only messages need."""
    page = (STATIC / "index.html").read_text()

    assert not re.search(r"<script>|<style|\sstyle=|\son\w+=", page)
    assert not any(name in page for name in RENDERERS)
    sources = re.findall(r'(?:src|href)="([^"#]+)"', page)
    assert [source for source in sources if not (STATIC / source).is_file()] == []
    assert set(sources) <= set(page_files())
    own = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.js") if VENDOR not in path.parents}
    assert own <= set(sources), "every script is part of the page"
