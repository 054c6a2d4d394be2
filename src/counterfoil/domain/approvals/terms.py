"""The terms of an approval, as a policy or a step sets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt

from counterfoil.domain.durations import parse_duration
from counterfoil.domain.steps.attributes import Definition

Severity = Literal["low", "medium", "high", "critical"]


def _duration(given: Any) -> Any:
    if isinstance(given, bool) or not isinstance(given, str | int):
        raise ValueError("must be a string such as 24h, or milliseconds")  # noqa: TRY004 (pydantic makes an error of it)
    parse_duration(given)
    return given


class ApprovalTerms(Definition):
    """How many reviewers must approve, which ones may, and until when."""

    reason: Annotated[str, Field(max_length=1024)] | None = None
    severity: Severity = "medium"
    expires_in: Annotated[str | int, BeforeValidator(_duration)] = "24h"
    """How long an approval may take: a text such as 24h, or milliseconds."""
    approvals: Annotated[StrictInt, Field(ge=1, le=10)] = 1
    separate_requester: StrictBool = False

    @property
    def expires_in_ms(self) -> int:
        return parse_duration(self.expires_in)


@dataclass(frozen=True, slots=True)
class Reviewers:
    """The number of callers that can approve. Without API keys there is one, ``local``, which makes every request."""

    total: int = 1
    besides_requester: int = 0
    """How many of them remain without the requester, if the requester is one of them."""

    def available(self, terms: ApprovalTerms) -> int:
        """How many of them can approve on these terms."""
        return self.besides_requester if terms.separate_requester else self.total
