"""Content parts of user, system, developer and tool messages, Responses ↔ Chat."""

from typing import Any

from nemo_gym.convert.shapes import CHAT, RESPONSES, Json, dict_at, each_dict, text_at, unsayable
from nemo_gym.errors import ConversionError


def content_to_chat(content: Any, where: str) -> Any:
    """A message's content in Chat form; a plain string stays a plain string."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ConversionError("content is neither a string nor a list of parts", where=where)
    return [part_to_chat(part, place) for part, place in each_dict(content, f"{where}.content")]


def content_from_chat(content: Any, where: str) -> Any:
    """A message's content in Responses form; a plain string stays a plain string."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ConversionError("content is neither a string nor a list of parts", where=where)
    return [part_from_chat(part, place) for part, place in each_dict(content, f"{where}.content")]


def part_to_chat(part: Json, where: str) -> Json:
    kind = text_at(part, "type", where)
    if kind == "input_text":
        return {"type": "text", "text": text_at(part, "text", where)}
    if kind == "input_image":
        if part.get("file_id") is not None:
            raise unsayable("an image given by file_id", CHAT, where, fix="give it as image_url")
        url = text_at(part, "image_url", where)
        return {"type": "image_url", "image_url": {"url": url, "detail": part.get("detail") or "auto"}}
    if kind == "input_video":
        return {"type": "video_url", "video_url": {"url": _video_url(part, where)}}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": dict_at(part, "input_audio", where)}
    if kind == "input_file":
        if part.get("file_url") is not None:
            raise unsayable("a file given by file_url", CHAT, where, fix="give it as file_data or file_id")
        return {"type": "file", "file": {key: part[key] for key in _FILE_KEYS if part.get(key) is not None}}
    raise unsayable(kind, CHAT, where)


def part_from_chat(part: Json, where: str) -> Json:
    kind = text_at(part, "type", where)
    if kind == "text":
        return {"type": "input_text", "text": text_at(part, "text", where)}
    if kind == "image_url":
        image = dict_at(part, "image_url", where)
        url = text_at(image, "url", f"{where}.image_url")
        return {"type": "input_image", "image_url": url, "detail": image.get("detail") or "auto"}
    if kind == "video_url":
        video = dict_at(part, "video_url", where)
        return {"type": "input_video", "video_url": text_at(video, "url", f"{where}.video_url")}
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": dict_at(part, "input_audio", where)}
    if kind == "file":
        return {"type": "input_file", **_known_keys(dict_at(part, "file", where), _FILE_KEYS, f"{where}.file")}
    raise unsayable(kind, RESPONSES, where)


def text_parts_only(content: list[Any], where: str) -> list[Json]:
    """Text parts in Chat form, for the places where Chat takes nothing else (tool results)."""
    parts = []
    for part, place in each_dict(content, where):
        kind = text_at(part, "type", place)
        if kind != "input_text":
            raise unsayable(kind, f"a tool message of {CHAT}", place)
        parts.append({"type": "text", "text": text_at(part, "text", place)})
    return parts


def plain_text(content: Any) -> str | None:
    """The text of a message's content if it is nothing but text, else None. Works for both dialects."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("input_text", "text", "output_text"):
            return None
        if not isinstance(part.get("text"), str):
            return None
        texts.append(part["text"])
    return "".join(texts)


def _video_url(part: Json, where: str) -> str:
    given = [key for key in ("video_url", "video") if part.get(key) is not None]
    if len(given) != 1:
        raise ConversionError("a video part has exactly one of video_url and video", where=where)
    return text_at(part, given[0], where)


def _known_keys(holder: Json, keys: tuple[str, ...], where: str) -> Json:
    strange = [key for key in holder if key not in keys and holder[key] is not None]
    if strange:
        raise unsayable(strange[0], RESPONSES, where)
    return {key: value for key, value in holder.items() if value is not None}


_FILE_KEYS = ("file_data", "file_id", "filename")
