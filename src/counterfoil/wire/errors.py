"""Errors: the body of every refusal, and why a step, a work item or a flow failed."""

from __future__ import annotations

from typing import Annotated, NotRequired

from typing_extensions import TypedDict

from counterfoil.wire.schema import Values, described, keyword


class ErrorContent(TypedDict):
    code: Annotated[str, described("stable, from a closed set", pattern=r"^[A-Z][A-Z0-9_]*$")]
    message: Annotated[str, described("for people; its wording may change")]
    details: Annotated[Values, described("for programs; `errors` lists each invalid place of a request")]


class ErrorAnswer(TypedDict):
    """Every error response has this body."""

    error: ErrorContent


class OutputProblem(TypedDict):
    """An output that is missing, or not of the declared type."""

    attribute: str
    message: str


class Failure(TypedDict):
    """Why a work item, a step or a flow failed."""

    code: Annotated[str, keyword(examples=["STEP_FAILED"])]
    message: str
    step_id: NotRequired[Annotated[str, described("the step that failed")]]
    work_id: NotRequired[Annotated[str, described("the work item that failed")]]
    flow_id: NotRequired[Annotated[str, described("the sub-flow that failed")]]
    attribute: NotRequired[Annotated[str, described("the first invalid output")]]
    errors: NotRequired[Annotated[list[OutputProblem], described("each invalid output")]]
    policies: NotRequired[Annotated[list[str], described("the policies that blocked the attempt")]]
    retriable: NotRequired[
        Annotated[bool | None, described("whether another attempt may help, as the agent reported it")]
    ]
    details: NotRequired[Annotated[Values, described("for programs: cause, attempt and key of an unknown outcome")]]
    cause: NotRequired[Annotated[Failure, described("the failure behind this one")]]
