"""Image names."""

from collections.abc import Iterable, Mapping


def rewrite_image(image: str, rewrites: Iterable[Mapping[str, str]] | None) -> str:
    """`image` with the first matching prefix exchanged; each rewrite is `{from: prefix, to: prefix}`.

    Sites use it to draw images from a mirror without touching the configs that name them.
    """
    for rewrite in rewrites or ():
        if image.startswith(rewrite["from"]):
            return rewrite["to"] + image.removeprefix(rewrite["from"])
    return image
