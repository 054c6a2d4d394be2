"""Policies from a file: in force before the engine serves its first request; policies removed from it are deleted."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import ValidationError

from counterfoil.domain.jsontext import JsonError, accept_json
from counterfoil.domain.policies.definitions import POLICY_ID_PATTERN, PolicyDefinition

SOURCE = "file"
"""The source of policies from a file; those of the API are never changed by the file."""


class PolicyFileError(Exception):
    """The file is not valid: none of its policies was put."""


def read_policies(path: Path) -> dict[str, PolicyDefinition]:
    """The policies of a file, by id; raises PolicyFileError with the place of what is wrong."""
    try:
        found = accept_json(path.read_bytes())
    except OSError as error:
        raise PolicyFileError(f"{path}: {error.strerror or error}") from error
    except JsonError as error:
        raise PolicyFileError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise PolicyFileError(f"{path}: must be an object, with a policy under each id")
    return {policy_id: _definition(path, policy_id, value) for policy_id, value in found.items()}


def _definition(path: Path, policy_id: str, value: object) -> PolicyDefinition:
    if not re.fullmatch(POLICY_ID_PATTERN, policy_id):
        raise PolicyFileError(f"{path}: {policy_id!r} is not a policy id: letters, digits, and . _ ~ : -")
    try:
        return PolicyDefinition.model_validate(value)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, fault["loc"])) or "it"
        raise PolicyFileError(f"{path}: policy {policy_id}: {place}: {fault['msg']}") from None
