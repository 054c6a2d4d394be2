"""What a call of a tool can end with, other than its result.

ToolError
├── CallRefused             nothing was executed by this call
│   ├── InvalidArguments        INVALID_ARGUMENTS
│   ├── KeyInArguments          KEY_IN_ARGUMENTS
│   ├── KeyRequired             KEY_REQUIRED
│   ├── VersionMismatch         VERSION_MISMATCH
│   ├── ScopeMismatch           SCOPE_MISMATCH
│   ├── DedupUnavailable        DEDUP_UNAVAILABLE, retriable
│   ├── CallInFlight            RETRY_IN_FLIGHT, retriable
│   ├── UnsafeOnceIncomplete    UNSAFE_ONCE_INCOMPLETE
│   └── EffectKeyConflict       EFFECT_KEY_REUSED
├── ToolFailure             raised by a tool: final, recorded and replayed
│   └── PartialSuccess          PARTIAL_SUCCESS, with the parts that are done and undone
├── Transient               raised by a tool: retried with the same key; the reservation is kept
├── OutcomeUnknown          OUTCOME_UNKNOWN: the tool raised an exception that its contract does not know
├── NotRecorded             RESULT_NOT_RECORDED: the tool has ended, and its outcome could not be stored
├── HolderFenced            FENCED: another caller took the key over after this one's TTL
├── OutcomeConflict         CONFLICTING_RESULT: another outcome was recorded meanwhile
└── ContractViolation       CONTRACT_VIOLATION: the tool did what its contract does not declare

``hint`` is for people, ``corrective_action`` for the model that called the tool. Neither holds an idempotency key or a
stack trace, and ``to_dict`` shows nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

UPSTREAM_TIMEOUT = "UPSTREAM_TIMEOUT"


@dataclass(frozen=True, slots=True)
class ErrorSpec:
    """A declared error: what the model should do, and whether a repeat of the same call can succeed.

    ``raised_as``: exception types of the tool that mean this error.
    """

    corrective_action: str
    retriable: bool = False
    hint: str = ""
    raised_as: tuple[type[Exception], ...] = ()


class ToolError(Exception):
    """Root of what a contract raises. ``code`` is stable; ``retriable``: the same call, with the same key, may succeed.

    ``retry_after``: seconds before which a repeat is of no use. ``replayed``: it was recorded by an earlier call.
    """

    code: str = ""
    default_retriable: ClassVar[bool] = False
    default_hint: ClassVar[str] = ""
    default_action: ClassVar[str] = ""

    def __init__(
        self,
        hint: str = "",
        *,
        corrective_action: str = "",
        retriable: bool | None = None,
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        self.hint = hint or self.default_hint
        self.corrective_action = corrective_action or self.default_action
        self.retriable = self.default_retriable if retriable is None else retriable
        self.details: dict[str, Any] = dict(details or {})
        self.retry_after = retry_after
        self.replayed = False
        super().__init__(self.hint)

    def __str__(self) -> str:
        return f"{self.code}: {self.hint}" if self.hint else self.code

    def to_dict(self) -> dict[str, Any]:
        """The error as a model or an API shows it: no stack trace, no key."""
        shown: dict[str, Any] = {
            "code": self.code,
            "retriable": self.retriable,
            "hint": self.hint,
            "corrective_action": self.corrective_action,
        }
        if self.details:
            shown["details"] = self.details
        if self.retry_after is not None:
            shown["retry_after"] = self.retry_after
        return shown


class CallRefused(ToolError):
    """Nothing was executed by this call."""


class InvalidArguments(CallRefused):
    code = "INVALID_ARGUMENTS"
    default_hint = "the arguments do not fit the tool's schema"
    default_action = "Correct the arguments that details.problems names, and call the tool again."


class KeyInArguments(CallRefused):
    code = "KEY_IN_ARGUMENTS"
    default_hint = "the arguments hold an idempotency key; only the runtime gives keys, never the model"
    default_action = "Call the tool again without an idempotency key among its arguments."


class KeyRequired(CallRefused):
    code = "KEY_REQUIRED"
    default_hint = (
        "a write needs an idempotency key of its caller, or a conversation id and a step id to make one of: "
        "a key made below the retry boundary would be another one at each retry"
    )
    default_action = "Do not call the tool again: its runtime must be corrected first."


class VersionMismatch(CallRefused):
    code = "VERSION_MISMATCH"
    default_action = "Read the tool's present schema before calling it again."


class ScopeMismatch(CallRefused):
    code = "SCOPE_MISMATCH"
    default_action = "Do not call the tool again: this agent is not allowed to use it."


class DedupUnavailable(CallRefused):
    code = "DEDUP_UNAVAILABLE"
    default_retriable = True
    default_hint = "the dedup store cannot be reached, so nothing was executed: a retry could not be recognised"
    default_action = "The system is degraded for the moment. Try the same call again later."


class CallInFlight(CallRefused):
    code = "RETRY_IN_FLIGHT"
    default_retriable = True
    default_hint = "another call with the same key is being executed"
    default_action = "Wait, then make the same call again to get its result."


class UnsafeOnceIncomplete(CallRefused):
    """An earlier call of an irreversible tool was left pending: it is never executed again by the library itself.

    ``tool``, ``key`` and ``holder`` are for the person who settles it; ``to_dict`` does not show the key.
    """

    code = "UNSAFE_ONCE_INCOMPLETE"
    default_hint = "an earlier call may have had its effect; a person must settle it before another one"
    default_action = "Do not call the tool again. Tell the user that a person has to check what happened."

    def __init__(self, tool: str, key: str, holder: str) -> None:
        self.tool, self.key, self.holder = tool, key, holder
        super().__init__(details={"tool": tool})


class EffectKeyConflict(CallRefused):
    code = "EFFECT_KEY_REUSED"
    default_hint = "the key was used before for other arguments, or for another class of effect"
    default_action = "Do not repeat the call: its runtime used the key of another action."


class ToolFailure(ToolError):
    """Raised by a tool: this call failed for good. It is recorded, and a repeat with the same key gets it again."""

    def __init__(
        self,
        code: str,
        hint: str = "",
        *,
        corrective_action: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.code = code
        super().__init__(hint, corrective_action=corrective_action, retriable=False, details=details)


class PartialSuccess(ToolFailure):
    """Raised by a tool: some of its parts are done, others are not. It is recorded and never retried by itself."""

    code = "PARTIAL_SUCCESS"
    default_hint = "some parts of the call have had their effect, others have not"
    default_action = "Do not repeat the call. Look at details.undone, and do what is missing by other means."

    def __init__(
        self,
        done: Sequence[Any],
        undone: Sequence[Any],
        hint: str = "",
        *,
        corrective_action: str = "",
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.done, self.undone = list(done), list(undone)
        parts = {**(details or {}), "done": self.done, "undone": self.undone}
        super().__init__(self.code, hint, corrective_action=corrective_action, details=parts)


class Transient(ToolError):
    """Raised by a tool: a repeat with the same key may succeed.

    ``not_applied``: the effect surely did not happen. Only then an irreversible tool is tried again.
    """

    default_retriable = True

    def __init__(
        self,
        code: str = UPSTREAM_TIMEOUT,
        hint: str = "",
        *,
        corrective_action: str = "",
        not_applied: bool = False,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.code = code
        self.not_applied = not_applied
        super().__init__(hint, corrective_action=corrective_action, details=details)


class OutcomeUnknown(ToolError):
    code = "OUTCOME_UNKNOWN"


class NotRecorded(ToolError):
    """The tool has ended, but the store did not take its outcome: ``result`` or ``failure``.

    The call did not succeed as far as retries are concerned: a repeat would not find the outcome.
    """

    code = "RESULT_NOT_RECORDED"
    default_hint = "the tool was executed, but its outcome could not be recorded; a person should settle it"
    default_action = "Do not repeat the call: it was executed. Tell the user that its record must be checked."

    def __init__(self, *, result: Any = None, failure: ToolError | None = None) -> None:
        self.result = result
        self.failure = failure
        super().__init__(details={"executed": "failed" if failure else "succeeded"})


class HolderFenced(ToolError):
    code = "FENCED"
    default_hint = "the call took longer than its pending TTL, and another caller took the key over: see its outcome"
    default_action = "Make the same call again to get the recorded outcome."


class OutcomeConflict(ToolError):
    code = "CONFLICTING_RESULT"
    default_hint = "the tool ended after another outcome of the same key had been recorded, which is final"
    default_action = "Do not rely on this call. Tell the user that a person has to compare both outcomes."


class ContractViolation(ToolError):
    code = "CONTRACT_VIOLATION"
    default_action = "Do not call the tool again: it has a defect."

    @classmethod
    def undeclared_code(cls, code: str) -> Self:
        return cls("the tool raised an error code that its contract does not declare", details={"code": code})


def _own_codes(root: type[ToolError]) -> frozenset[str]:
    codes = {root.code} if root.code else set()
    return frozenset(codes.union(*map(_own_codes, root.__subclasses__())))


OWN_CODES = _own_codes(ToolError) | {UPSTREAM_TIMEOUT}
"""Codes that every contract has: those of the library itself, and the timeout of a downstream system."""
RAISED_BY_TOOLS = frozenset({PartialSuccess.code, UPSTREAM_TIMEOUT})
"""The codes among them that a tool may raise without declaring them."""


def failure_document(failure: ToolError) -> dict[str, Any]:
    """A final failure as it is recorded."""
    return failure.to_dict()


def recorded_failure(document: Mapping[str, Any] | None) -> ToolError:
    """The failure that a store holds, as it is replayed. It may also come from a person who settled the call."""
    kept = dict(document or {})
    details = kept.get("details")
    shown = dict(details) if isinstance(details, Mapping) else {}
    hint, action = str(kept.get("hint") or kept.get("message") or ""), str(kept.get("corrective_action") or "")
    code = str(kept.get("code") or "FAILED")
    failure: ToolError
    if code == PartialSuccess.code:
        done, undone = shown.get("done") or [], shown.get("undone") or []
        failure = PartialSuccess(done, undone, hint, corrective_action=action, details=shown)
    elif code == ContractViolation.code:
        failure = ContractViolation(hint, corrective_action=action, details=shown)
    else:
        failure = ToolFailure(code, hint, corrective_action=action, details=shown)
    failure.replayed = True
    return failure
