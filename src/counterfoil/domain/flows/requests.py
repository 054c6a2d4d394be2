"""Flow starts: the request of a caller, and the arguments of each step of the flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    model_validator,
)

from counterfoil.domain.runs.requests import (
    KEY,
    RETAINED_FOR,
    RETAINS_FAILED,
    HookSignal,
    KeyRetention,
    OnConflict,
    RunKeyText,
    SeenOwner,
    retention_ms,
)
from counterfoil.domain.steps.checks import Findings, Inspection
from counterfoil.domain.steps.definitions import STEP_ID_PATTERN, PositiveMilliseconds, StepDefinition
from counterfoil.domain.time import wire_time

FLOW_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._~:-]{0,199}$"


def _time(value: Any) -> int:
    if not isinstance(value, str):
        raise ValueError("must be a string")  # noqa: TRY004 (pydantic makes an error of a ValueError)
    return wire_time(value)


StepId = Annotated[str, Field(pattern=STEP_ID_PATTERN)]
WireTime = Annotated[int, BeforeValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"})]
LabelText = Annotated[str, Field(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
LabelKey = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f:]+$")]


InitKey = Annotated[StrictStr, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")]
"""What an HTTP header carries unchanged: no space at its ends."""


class StartFlow(BaseModel):
    """``POST /api/v1/flows``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    flow_id: Annotated[str, Field(pattern=FLOW_ID_PATTERN)] | None = None
    goals: Annotated[list[StepId], Field(min_length=1, max_length=64)]
    init: Annotated[dict[str, Any], Field(max_length=1024)] = {}
    metadata: Annotated[dict[str, Any], Field(max_length=128)] = {}
    labels: Annotated[dict[LabelKey, LabelText], Field(max_length=32)] = {}
    idempotency_key: RunKeyText | None = None
    """The run key: at most one active flow has it."""
    on_conflict: OnConflict = "reject"
    """What happens while another flow owns the key."""
    if_owner: SeenOwner | None = None
    """``on_conflict`` applies only to this owner, as it is described here."""
    retain_key_for: KeyRetention = 0
    """How long after the end of the flow the same start is answered with its result."""
    retain_failed: StrictBool = False
    """Whether the key is retained after a failure or a cancellation, too."""
    signal: HookSignal | None = None
    """A payload for a hook of the flow that this start admits, or with ``on_conflict: signal`` of the owner."""
    init_keys: Annotated[dict[StepId, InitKey], Field(max_length=64)] | None = None
    """Idempotency keys of steps, given by the caller: each is sent as it is."""
    deadline_ms: PositiveMilliseconds | None = None
    on_deadline: Literal["fail", "cancel"] = "fail"
    compensate: StrictBool = True

    @model_validator(mode="after")
    def _has_what_its_strategy_needs(self) -> Self:
        if self.idempotency_key is None and (self.on_conflict != "reject" or self.retain_failed or self.if_owner):
            raise ValueError("idempotency_key: is missing: without it every start makes a flow of its own")
        if self.on_conflict == "signal" and self.signal is None:
            raise ValueError("signal: is missing: on_conflict signal delivers it")
        return self

    @property
    def retain_ms(self) -> int:
        return retention_ms(self.retain_key_for)

    def options(self) -> dict[str, Any]:
        """The options of the flow that differ from the defaults: its deadline, its compensation and its run key."""
        options: dict[str, Any] = {}
        if self.idempotency_key is not None:
            options[KEY] = self.idempotency_key
            if self.retain_ms:
                options[RETAINED_FOR] = self.retain_ms
            if self.retain_failed:
                options[RETAINS_FAILED] = True
        if self.deadline_ms is not None:
            options["deadline_ms"] = self.deadline_ms
            options["on_deadline"] = self.on_deadline
        if not self.compensate:
            options["compensate"] = False
        if self.init_keys:
            options["init_keys"] = self.init_keys
        return options


class RedriveFilter(BaseModel):
    """Selects failed work: every given field must match."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    step_id: StepId | None = None
    error_code: Annotated[str, Field(max_length=128)] | None = None
    since: WireTime | None = None
    until: WireTime | None = None
    label: Annotated[str, Field(max_length=400, pattern="^[^:]+:")] | None = None


class RedriveRequest(BaseModel):
    """``POST /api/v1/work/redrive``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    filter: RedriveFilter = RedriveFilter()
    limit: Annotated[StrictInt, Field(ge=1, le=10_000)] = 1000
    dry_run: StrictBool = False


def arguments_for(definition: StepDefinition, values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the step, taken from the available values. A step without attributes takes all."""
    if not definition.attributes:
        return dict(values)
    arguments: dict[str, Any] = {}
    for name, attribute in definition.inputs.items():
        if attribute.role == "const":
            arguments[name] = attribute.value
        elif attribute.role == "optional":
            arguments[name] = values.get(name, attribute.default)
        else:
            arguments[name] = values[name]
    return arguments


def invalid_inputs(
    definition: StepDefinition, values: Mapping[str, Any], inspection: Inspection
) -> list[tuple[str, str]]:
    """The available values that the step does not accept: name and problem of each.

    As far as the inspection knows: its ``close`` raises if it did not know enough.
    """
    wrong = []
    for name, attribute in definition.inputs.items():
        if attribute.role != "const" and name in values and (problem := inspection.problem(attribute, values[name])):
            wrong.append((name, problem))
    return wrong


def invalid_outputs(definition: StepDefinition, outputs: Mapping[str, Any], findings: Findings) -> list[dict[str, str]]:
    """Declared outputs that are missing or do not match; raises CheckNeeded if that is not known yet."""
    wrong = []
    inspection = Inspection(findings)
    for name, attribute in definition.outputs.items():
        problem = inspection.problem(attribute, outputs[name]) if name in outputs else "is missing"
        if problem:
            wrong.append({"attribute": name, "message": problem})
    inspection.close()
    return wrong


def invalid_own_values(definition: StepDefinition, findings: Findings) -> list[dict[str, str]]:
    """Constants and defaults that do not match their declaration; raises CheckNeeded if that is not known yet."""
    wrong = []
    inspection = Inspection(findings)
    for name, attribute in definition.attributes.items():
        for kind, value in attribute.own_values():
            if problem := inspection.problem(attribute, value):
                wrong.append({"place": f"attributes.{name}.{kind}", "message": problem})
    inspection.close()
    return wrong


def declared_outputs(definition: StepDefinition, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """The outputs that a step gives to its flow: all of them, or those that it declares."""
    if not definition.attributes:
        return dict(outputs)
    return {name: outputs[name] for name in definition.outputs if name in outputs}
