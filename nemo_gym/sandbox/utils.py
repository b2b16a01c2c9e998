"""Rewrite the names of container images."""

from collections.abc import Iterable, Mapping


def rewrite_image(image: str, rewrites: Iterable[Mapping[str, str]] | None) -> str:
    """Replace the first matching prefix of `image`; each rewrite is `{from: prefix, to: prefix}`.

    Sites use it to pull images from a mirror without changing the configs that name them.
    """
    for rewrite in rewrites or ():
        if image.startswith(rewrite["from"]):
            return rewrite["to"] + image.removeprefix(rewrite["from"])
    return image
