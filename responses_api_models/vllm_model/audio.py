"""Read audio files that a request names from the configured folder and put them into the request."""

import base64
import mimetypes
from pathlib import Path
from typing import Any

from fastapi import HTTPException

Json = dict[str, Any]


def names_files(messages: list[Json]) -> bool:
    """Return whether an audio part names a file."""
    return any(_reference(part) for message in messages for part in _parts(message))


def with_audio_inline(messages: list[Json], root: Path) -> list[Json]:
    """Replace every named audio file by a `data:` URL. Blocking: call it in a thread.

    Raises:
        HTTPException: 400, a file is missing or outside `root`.
    """
    inlined = []
    for message in messages:
        parts = [_inline(part, root) for part in _parts(message)]
        inlined.append({**message, "content": parts} if parts else message)
    return inlined


def _parts(message: Json) -> list[Json]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _reference(part: Json) -> str | None:
    """Return the file an audio part names. A file name contains a dot, base64 does not."""
    if part.get("type") == "input_audio":
        value = part.get("input_audio", {}).get("data")
    elif part.get("type") == "audio_url":
        value = part.get("audio_url", {}).get("url")
    else:
        return None
    if not isinstance(value, str) or value.startswith(("data:", "http://", "https://")):
        return None
    return value.removeprefix("file://") if value.startswith("file://") or "." in value[-16:] else None


def _inline(part: Json, root: Path) -> Json:
    name = _reference(part)
    if name is None:
        return part
    folder = root.resolve()
    file = (folder / name).resolve()  # resolves `..`, absolute names and links
    if not file.is_relative_to(folder):
        raise HTTPException(400, f"the audio file {name!r} is outside audio_root")
    if not file.is_file():
        raise HTTPException(400, f"there is no audio file {name!r} below audio_root")
    kind = mimetypes.guess_type(file.name)[0] or f"audio/{part.get('input_audio', {}).get('format') or 'wav'}"
    url = f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode('ascii')}"
    return {"type": "audio_url", "audio_url": {"url": url}}
