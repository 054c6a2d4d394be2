"""Which media types are JSON: ``application/json`` and every type with the suffix ``+json``, in UTF-8."""

from __future__ import annotations

import re

from counterfoil.domain.errors import UnsupportedMediaType

NOT_JSON = UnsupportedMediaType.default_message
NOT_UTF8 = "the body must be in UTF-8: another charset is not supported"

_JSON_TYPE = re.compile(r"application/json|[a-z0-9!#$&^_.+-]+/[a-z0-9!#$&^_.+-]+\+json")
_PARAMETER = re.compile(r';\s*([^\s;="]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]*)')
_UTF8_NAMES = frozenset({"utf-8", "utf8", "us-ascii"})
"""ASCII text is UTF-8 text."""


def refusal_of_type(content_type: str) -> str | None:
    """Why a body of this ``Content-Type`` is not read; None: it is JSON in UTF-8."""
    if content_type == "application/json":
        return None
    media_type, semicolon, parameters = content_type.partition(";")
    if not _JSON_TYPE.fullmatch(media_type.strip().lower()):
        return NOT_JSON
    for name, value in _PARAMETER.findall(semicolon + parameters):
        if name.lower() == "charset" and value.strip('"').lower() not in _UTF8_NAMES:
            return NOT_UTF8
    return None
