"""Mask secrets in texts: credentials in URLs, headers and connection strings, well-known keys, and known secrets.

A known secret is a value that came from the environment or from a resolver such as `${vault:…}`, or that has a secret
name in the configuration of this process. It is masked wherever it occurs in a text that is shown or stored.
"""

import json
import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote

from nemo_gym.config.secret_names import is_secret_name

MASK = "****"

_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.\-]{0,30}://)(?P<secret>[^\s/?#\"'<>]*)@")
_URL_QUERY = re.compile(
    r"(?i)[?&](?:[a-z0-9]+[_-])*(?:key|apikey|token|password|secret|sig|signature)=(?P<secret>[^&\s#\"']+)"
)
_AUTH_SCHEME = re.compile(r"(?i)\b(?:bearer|basic)\s+(?=[A-Za-z0-9._~+/\-]*[0-9])(?P<secret>[A-Za-z0-9._~+/\-]{8,}=*)")
_KEY_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?P<secret>sk-(?=[\w\-]*\d)[\w\-]{16,}|nvapi-[\w\-]{16,}|hf_[A-Za-z0-9]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|glpat-[\w\-]{16,}|xox[abeprs]-[\w\-]{10,}|A[KS]IA[A-Z0-9]{16}|AIza[\w\-]{30,}"
    r"|eyJ[\w\-]{8,}\.[\w\-]{8,}\.[\w\-]*)"
)
"""Keys of providers that are recognized by their prefix."""
_ASSIGNMENT = re.compile(
    r"(?P<name>(?<!\w)(?<!\w-)[A-Za-z][\w\-]{0,60})[\"']?\s?[:=]\s?[\"']?(?P<secret>[^\s,;&}\]\"'*<…$][^\s,;&}\]\"']*)"
)
"""`name=value` or `name: value`, as in connection strings and overrides."""

_OPTION_VALUE = re.compile(
    r"(?P<name>(?<!\w)(?<!\w-)(?!(?:key|token)=)[A-Za-z][\w\-]{0,60})=[\"']?(?P<secret>[^\s,;&}\]\"'*<…$%{][^\s,;&}\]\"']*)"
)
"""`name=value` in a value of the configuration; `key=value` and `name: value` are part of many prompts."""
_HEADER_LINE = re.compile(r"(?P<name>[A-Za-z][\w\-]{0,60}):[ \t]+(?:[A-Za-z]+[ \t]+)?(?P<secret>[^\s\"'*<…$%{]\S*)")
"""A value of the configuration that is one header as in HTTP: `X-Auth: value`."""
_JSON_MEMBER = re.compile(
    r"(?P<quote>(?<!\\)\\{0,3}[\"'])(?P<name>(?!(?:key|token)\\{0,3}[\"'])[A-Za-z][\w\-]{0,60})(?P=quote)\s{0,4}:\s{0,4}"
    r"(?P=quote)(?P<secret>(?![*<…${%.])(?:(?!(?P=quote))(?:[^\s\\]|\\.)){6,})(?P=quote)"
)
"""A member of a JSON object in a value of the configuration, such as the options of a client.

The object may be a text in another one, whose quotes are escaped, or a Python dictionary with single quotes.
"""
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?P<secret>.*?)(?=-----END|\Z)", re.DOTALL)
_WEBHOOK = re.compile(
    r"(?i)://(?:hooks\.slack\.com/\w+|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|[\w\-]+\.webhook\.office\.com/\w+)/"
    r"(?P<secret>[^\s\"'?#]+)"
)

_ENV_DEFAULT = re.compile(r"\$\{oc\.env:\s*(?P<name>\w+)\s*,(?P<secret>.*)(?=\})", re.DOTALL)
"""The default value in `${oc.env:NAME, default}`; it is masked if NAME is the name of a secret."""

_SHORTEST_INSIDE_WORDS = 6
"""Known secrets with fewer characters are masked only as whole words, because they occur inside ordinary words."""
_SHORTEST_URL_CREDENTIAL = 6
"""Users and passwords of URLs with fewer characters are masked only in URLs, because they may be ordinary words."""
_SHORTEST_KNOWN = 3
_PUBLIC_NUMBER = re.compile(r"[+-]?\d{0,6}(?:\.\d{0,6})?(?:[eE][+-]?\d{1,2})?")
_PUBLIC_URL = re.compile(
    r"(?:https?|grpc|wss?)://(?:\[::1\]|(?:[a-z\-]{1,20}\d{0,4}|\d{1,3})(?:\.(?:[a-z\-]{1,20}\d{0,4}|\d{1,3}))*)(?::\d{1,5})?"
    r"(?:/[a-z]{0,8}\d{0,2})*"
)
_PUBLIC_WORDS = re.compile(
    r"(?i)true|false|yes|no|on|off|null|none|auto|default|train|test|validation|dev|debug|info|warning|error|critical"
    r"|production|staging|development|local|localhost|127\.0\.0\.1|0\.0\.0\.0|::1"
    r"|cpu|gpu|cuda|main|master|latest|json|yaml|text|utf-8|utc|low"
    r"|medium|high|small|large|dummy"
)

_known: set[str] = set()
_patterns: dict[str, re.Pattern[str]] = {}
"""The pattern that matches every known secret, under the key "known"; empty if no secret is known."""


def remember_secrets(values: Iterable[str]) -> None:
    """Mask these values in every text from now on, except trivial ones."""
    new = {value for value in values if value not in _known and not _is_trivial(value.strip())}
    if new:
        _known.update(new)
        _compile_known()


def forget_secrets(values: Iterable[str] | None = None) -> None:
    """Stop masking these values, or all known secrets if `values` is None."""
    before = len(_known)
    _known.difference_update(_known.copy() if values is None else values)
    if len(_known) != before:
        _compile_known()


def known_secrets() -> list[str]:
    """Return the known secrets, to pass them to another process of the run."""
    return sorted(_known)


def has_known_secret(text: str) -> bool:
    return bool(_patterns) and _patterns["known"].search(text) is not None


def is_public_value(text: str) -> bool:
    """Return whether a value of any origin is obviously not secret: trivial, a path, or a plain URL.

    A path is public if it exists, or could be created in a folder that exists; a URL if it consists of a host, a port
    and short words. Everything else may be a secret, whatever it looks like.
    """
    text = text.strip()
    if _is_trivial(text) or _PUBLIC_URL.fullmatch(text):
        return True
    if "/" not in text or len(text) > 1000 or "\0" in text:  # not a path
        return False
    path = Path(text)
    try:
        is_in_root = path.parent == Path(path.anchor)  # "/" always exists, so any "/text" would be public
        return (path.is_absolute() and not is_in_root and path.parent.is_dir()) or path.expanduser().exists()
    except (OSError, RuntimeError):  # RuntimeError: `~name` of an unknown user
        return False


def _is_trivial(text: str) -> bool:
    """Return whether a text is never masked in other texts: it is short, common, a small number or a placeholder."""
    if len(text) < _SHORTEST_KNOWN or text in (MASK, "???") or "${" in text:
        return True
    return bool(_PUBLIC_WORDS.fullmatch(text) or _PUBLIC_NUMBER.fullmatch(text))


def _compile_known() -> None:
    """Compile the pattern of the known secrets. It prefers longer forms: a short one may be a part of a long one."""
    _patterns.clear()
    forms = {form for value in _known for form in _forms(value)}
    if forms:
        longest_first = sorted(forms, key=len, reverse=True)
        _patterns["known"] = re.compile("|".join(map(_form_pattern, longest_first)))


def _form_pattern(form: str) -> str:
    escaped = re.escape(form)
    return escaped if len(form) >= _SHORTEST_INSIDE_WORDS else rf"(?<!\w){escaped}(?!\w)"


def _forms(value: str) -> Iterator[str]:
    """Yield the forms of a secret in texts: its lines, its URL credentials, and both escaped for URL, JSON, Python."""
    pieces = {value, value.strip(), unquote(value), *(line.strip() for line in value.splitlines())}
    pieces |= {part for match in _URL_USER.finditer(value) for part in _user_and_password(value, match["scheme"])}
    for piece in pieces:
        if not _is_trivial(piece):
            yield from {piece, quote(piece, safe=""), quote(piece), quote_plus(piece)}
            escaped = _escaped_forms(piece)
            yield from escaped.union(*map(_escaped_forms, escaped))  # escaped twice, as in JSON inside a log line


def _escaped_forms(text: str) -> set[str]:
    """Return a text as it appears inside the quotes of JSON and of Python."""
    return {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}


def _user_and_password(url: str, scheme: str) -> list[str]:
    """Return the user and the password of the URL that begins with `scheme`, without those that are short."""
    user_info = url.partition(scheme)[2].partition("/")[0].rpartition("@")[0]
    return [part for part in user_info.split(":", 1) if len(part) >= _SHORTEST_URL_CREDENTIAL]


def mask_text(text: str) -> str:
    """Mask known secrets, credentials in URLs, Authorization values, defaults of secret variables, well-known keys."""
    return scrub_text(text, ())


def scrub_text(text: str, secrets: Iterable[str]) -> str:
    """Mask the given `secrets`, and everything that `mask_text` masks."""
    return _replace_spans(text, [*_secret_spans(text), *_spans_of(secrets, text)])


def assigned_secrets(text: str) -> list[str]:
    """Return the values of secret names in `name=value`, as in connection strings, in JSON text, or in a header."""
    values = [text[start:end] for start, end in _spans_after_names(_OPTION_VALUE, text)] if "=" in text else []
    if '":' in text or "':" in text:
        values += [text[start:end] for start, end in _spans_after_names(_JSON_MEMBER, text)]
    header = _HEADER_LINE.fullmatch(text.strip()) if ": " in text or ":\t" in text else None
    return [*values, header["secret"]] if header and is_secret_name(header["name"]) else values


def mask_assignments(text: str) -> str:
    """Mask a text like `mask_text`; in `name=value` and `name: value`, also mask the values of secret names."""
    return _replace_spans(text, [*_secret_spans(text), *_spans_after_names(_ASSIGNMENT, text)])


def _secret_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of every part of a text that is secret of itself; they may overlap."""
    patterns = [_AUTH_SCHEME, _KEY_SHAPE]
    if "://" in text:
        patterns += [_URL_USER, _WEBHOOK]
    if "=" in text and ("?" in text or "&" in text):  # also a query without its URL
        patterns.append(_URL_QUERY)
    if "PRIVATE KEY-----" in text:
        patterns.append(_PRIVATE_KEY)
    for pattern in patterns:
        yield from (match.span("secret") for match in pattern.finditer(text))
    if "${oc.env:" in text:
        yield from _spans_after_names(_ENV_DEFAULT, text)
    if _patterns:
        yield from (match.span() for match in _patterns["known"].finditer(text))


def _spans_after_names(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
    return (match.span("secret") for match in pattern.finditer(text) if is_secret_name(match["name"]))


def _spans_of(secrets: Iterable[str], text: str) -> Iterator[tuple[int, int]]:
    for secret in secrets:
        start = text.find(secret)
        while start >= 0:
            yield start, start + len(secret)
            start = text.find(secret, start + 1)


def _replace_spans(text: str, spans: list[tuple[int, int]]) -> str:
    """Replace parts of a text by the mask; those that overlap or touch are one part, so that no rest is shown."""
    shown: list[str] = []
    masked_to = -1
    for start, end in sorted(spans):
        if start > masked_to:
            shown.append(text[max(masked_to, 0) : start])
        masked_to = max(masked_to, end)
    masked = MASK.join([*shown, text[max(masked_to, 0) :]])
    if "://" not in masked:
        return masked
    return _URL_USER.sub(rf"\g<scheme>{MASK}@", masked)  # again, because a password with a `/` is now masked


class MaskingFormatter(logging.Formatter):
    """Formats log records without secrets, tracebacks included."""

    def format(self, record: logging.LogRecord) -> str:
        return mask_text(super().format(record))
