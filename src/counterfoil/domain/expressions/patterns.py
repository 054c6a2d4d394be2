"""Patterns of policies: regular expressions and globs, whose matching takes linear time whatever is matched.

Python's own engine can take for ever with a pattern such as ``(a+)+$``. The engine of jsonschema-rs, which is here for
JSON Schema anyway, knows no backtracking: it refuses what would need it (backreferences, lookaround) and patterns that
are large once compiled.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

MAX_PATTERN = 512
MAX_TEXT = 128 * 1024
"""Characters that a regular expression is matched against: the time is linear, but pattern times text."""

_COMPILED_BYTES = 64 * 1024


@functools.lru_cache(maxsize=1024)
def compile_regex(pattern: str) -> Callable[[str], bool]:
    """Whether a text has the pattern somewhere in it; ValueError for a pattern that is none, or too large.

    The answer's own ValueError is about the text: it is too long, or no Unicode.
    """
    import jsonschema_rs as library  # noqa: PLC0415 - 15 MB that most processes never need

    if len(pattern) > MAX_PATTERN:
        raise ValueError(f"must have at most {MAX_PATTERN} characters")
    options = library.RegexOptions(size_limit=_COMPILED_BYTES, dfa_size_limit=_COMPILED_BYTES)
    try:
        is_valid = library.validator_for({"pattern": pattern}, offline=True, pattern_options=options).is_valid
    except (library.ValidationError, ValueError):
        raise ValueError(
            "is not a regular expression that can be matched in linear time: it is malformed or too large, or it has "
            "backreferences or lookaround"
        ) from None

    def found(text: str) -> bool:
        if len(text) > MAX_TEXT:
            raise ValueError(f"has more than {MAX_TEXT} characters")
        try:
            return is_valid(text)
        except ValueError:
            raise ValueError("contains an unpaired surrogate") from None

    return found


def is_glob(pattern: str) -> bool:
    """Whether the pattern can match more than itself."""
    return "*" in pattern or "?" in pattern


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Whether a text is what the glob says: ``*`` is any text, ``?`` one character, all else is itself."""
    if pattern == "*":  # of most policies: asked for each step that is new, so it must cost nothing
        return lambda text: True
    first, *others = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    # Atomic groups: once a part is found where it stands first, another place would not do better.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    expression = re.compile(first + (f"{middle}.*{others[-1]}" if others else ""), re.DOTALL)
    return lambda text: expression.fullmatch(text) is not None
