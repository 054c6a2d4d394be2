"""Patterns of policies: regular expressions and globs that match in linear time, whatever the text is.

Python's own engine can take exponential time with a pattern such as ``(a+)+$``. The engine of jsonschema-rs, a
dependency for JSON Schema anyway, never backtracks: it refuses patterns that would need it (backreferences,
lookaround), and patterns that are large once compiled.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

MAX_PATTERN = 512
MAX_TEXT = 128 * 1024
"""The most characters that a regular expression is matched against: the time is linear in pattern times text."""

_COMPILED_BYTES = 64 * 1024


@functools.lru_cache(maxsize=1024)
def compile_regex(pattern: str) -> Callable[[str], bool]:
    """A function that searches a text for the pattern; raises ValueError for an invalid or too large pattern.

    The function itself raises ValueError for a text that is too long or not valid Unicode.
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
    """Whether the pattern can match any text other than itself."""
    return "*" in pattern or "?" in pattern


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """A function that matches a text with a glob: ``*`` is any text, ``?`` one character, all else is literal."""
    if pattern == "*":  # the usual case, made free because it is tested for each new step
        return lambda text: True
    first, *others = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    # Atomic groups: if the first match of a part does not lead to a match of the whole, no later one does.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    expression = re.compile(first + (f"{middle}.*{others[-1]}" if others else ""), re.DOTALL)
    return lambda text: expression.fullmatch(text) is not None
