"""Detect the language of a text with langdetect and a fixed seed, so that results are reproducible."""

from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError

MAX_CHARACTERS = 5_000
"""Number of characters that are examined, from the start of a text."""


def check_langdetect(location: str) -> None:
    """Check at start-up that langdetect is installed, so that a run does not fail later.

    Raises:
        ConfigError: langdetect is not installed.
    """
    if find_spec("langdetect") is None:
        raise ConfigError("langdetect is not installed", where=location, fix="pip install 'nemo-gym[environments]'")


@lru_cache(maxsize=1)
def _detector_factory() -> Any:
    """Return the factory of detectors with all language profiles loaded."""
    langdetect = import_module("langdetect.detector_factory")  # takes 0.5 s, so only on first use
    factory = langdetect.DetectorFactory()
    factory.set_seed(0)
    profiles = sorted(Path(langdetect.PROFILES_DIRECTORY).iterdir())  # in the same order on every machine
    factory.load_json_profile([profile.read_text("utf-8") for profile in profiles if profile.suffix != ".py"])
    return factory


def detect_language(text: str) -> str | None:
    """Return the language code of `text` (`en`, `de`, `zh-cn`), or None if it cannot be detected."""
    detection_error = import_module("langdetect.lang_detect_exception").LangDetectException
    east_asian = _east_asian_language(text)
    if east_asian in ("ja", "ko"):
        return east_asian
    detector = _detector_factory().create()
    detector.append(text[:MAX_CHARACTERS].lower())  # langdetect ignores words in capitals
    try:
        code = str(detector.detect())
    except detection_error:
        code = "unknown"
    if east_asian == "zh":
        return code if code.startswith("zh") else "zh-cn"
    return None if code == "unknown" else code


def _east_asian_language(text: str) -> str | None:
    """Return `ja`, `ko` or `zh` if most letters are East Asian, else None.

    This check is needed because langdetect often classifies short Chinese texts as Korean.
    """
    letters = [character for character in text[:MAX_CHARACTERS] if character.isalpha()]
    kana = sum("\u3040" <= character <= "\u30ff" for character in letters)
    hangul = sum("\uac00" <= character <= "\ud7a3" for character in letters)
    han = sum("\u4e00" <= character <= "\u9fff" for character in letters)
    if 2 * (kana + hangul + han) <= len(letters):
        return None
    return "ko" if hangul > han + kana else "ja" if 10 * kana > han else "zh"


def is_written_in(text: str, language: str) -> bool:
    """Return whether `text` is in `language`; a code without a variant (`zh`) accepts every variant (`zh-cn`)."""
    detected, expected = detect_language(text), language.strip().lower()
    return detected is not None and expected in (detected, detected.split("-")[0])
