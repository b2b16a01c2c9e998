"""The language of a text, by langdetect with a fixed seed: the same text is always the same language."""

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError

LONGEST = 5_000
"""Characters that are looked at."""


def check_langdetect(where: str) -> None:
    """Say at the start, not in the middle of a run, that langdetect is missing.

    Raises:
        ConfigError: it is.
    """
    if find_spec("langdetect") is None:
        raise ConfigError("langdetect is not installed", where=where, fix="pip install 'nemo-gym[environments]'")


@lru_cache(maxsize=1)
def _factory() -> Any:
    langdetect = import_module("langdetect.detector_factory")  # half a second: only when a language is asked for
    factory = langdetect.DetectorFactory()
    factory.set_seed(0)
    profiles = sorted(Path(langdetect.PROFILES_DIRECTORY).iterdir())  # in one order on every machine
    factory.load_json_profile([profile.read_text("utf-8") for profile in profiles if profile.suffix != ".py"])
    return factory


def language_of(text: str) -> str | None:
    """The code of the language `text` is written in (`en`, `de`, `zh-cn`), or None when it shows none."""
    unreadable = import_module("langdetect.lang_detect_exception").LangDetectException
    script = _east_asian(text)
    if script in ("ja", "ko"):
        return script
    detector = _factory().create()
    detector.append(text[:LONGEST].lower())  # words in capitals are not looked at
    try:
        found = str(detector.detect())
    except unreadable:
        found = "unknown"
    if script == "zh":
        return found if found.startswith("zh") else "zh-cn"
    return None if found == "unknown" else found


def _east_asian(text: str) -> str | None:
    """The language that the script of most of `text` tells; langdetect often takes short Chinese for Korean."""
    letters = [character for character in text[:LONGEST] if character.isalpha()]
    kana = sum("\u3040" <= character <= "\u30ff" for character in letters)
    hangul = sum("\uac00" <= character <= "\ud7a3" for character in letters)
    han = sum("\u4e00" <= character <= "\u9fff" for character in letters)
    if 2 * (kana + hangul + han) <= len(letters):
        return None
    return "ko" if hangul > han + kana else "ja" if 10 * kana > han else "zh"


def is_written_in(text: str, language: str) -> bool:
    """Whether `text` is in `language`: a code, where `zh` stands for every kind of it."""
    found, wanted = language_of(text), language.strip().lower()
    return found is not None and (found == wanted or found.split("-")[0] == wanted)
