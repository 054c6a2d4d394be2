"""Flow starts: what a caller asks for, and what each step of the flow is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StrictInt, WithJsonSchema

from counterfoil.domain.steps.checks import Findings, Inspection
from counterfoil.domain.steps.definitions import STEP_ID_PATTERN, NotYet, PositiveMilliseconds, StepDefinition
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


class StartFlow(BaseModel):
    """``POST /api/v1/flows``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    flow_id: Annotated[str, Field(pattern=FLOW_ID_PATTERN)] | None = None
    goals: Annotated[list[StepId], Field(min_length=1, max_length=64)]
    init: Annotated[dict[str, Any], Field(max_length=1024)] = {}
    metadata: Annotated[dict[str, Any], Field(max_length=128)] = {}
    labels: Annotated[dict[LabelKey, LabelText], Field(max_length=32)] = {}
    idempotency_key: NotYet = None
    on_conflict: Literal["reject"] = "reject"
    retain_key_for: str | int | None = "24h"
    init_keys: NotYet = None
    deadline_ms: PositiveMilliseconds | None = None
    on_deadline: Literal["fail", "cancel"] = "fail"
    compensate: StrictBool = True

    def options(self) -> dict[str, Any]:
        """What the flow must remember of how it is to end, where that is not as usual."""
        options: dict[str, Any] = {}
        if self.deadline_ms is not None:
            options["deadline_ms"] = self.deadline_ms
            options["on_deadline"] = self.on_deadline
        if not self.compensate:
            options["compensate"] = False
        return options


class RedriveFilter(BaseModel):
    """Which failed work: every field that is given must fit."""

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
    """What the step is called with, of the values that there are. A step without attributes takes all as they are."""
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
    """Which of the values that there are the step does not take, and why: name and problem.

    As far as the inspection knows: its ``close`` says whether it knew enough.
    """
    wrong = []
    for name, attribute in definition.inputs.items():
        if attribute.role != "const" and name in values and (problem := inspection.problem(attribute, values[name])):
            wrong.append((name, problem))
    return wrong


def invalid_outputs(definition: StepDefinition, outputs: Mapping[str, Any], findings: Findings) -> list[dict[str, str]]:
    """Which declared outputs are absent or other than declared; CheckNeeded if that is not known yet."""
    wrong = []
    inspection = Inspection(findings)
    for name, attribute in definition.outputs.items():
        problem = inspection.problem(attribute, outputs[name]) if name in outputs else "is missing"
        if problem:
            wrong.append({"attribute": name, "message": problem})
    inspection.close()
    return wrong


def invalid_own_values(definition: StepDefinition, findings: Findings) -> list[dict[str, str]]:
    """Which constants and defaults are other than declared; CheckNeeded if that is not known yet."""
    wrong = []
    inspection = Inspection(findings)
    for name, attribute in definition.attributes.items():
        for kind, value in attribute.own_values():
            if problem := inspection.problem(attribute, value):
                wrong.append({"place": f"attributes.{name}.{kind}", "message": problem})
    inspection.close()
    return wrong


def declared_outputs(definition: StepDefinition, outputs: Mapping[str, Any]) -> dict[str, Any]:
    """What a step gives to its flow: everything, or what it declares."""
    if not definition.attributes:
        return dict(outputs)
    return {name: outputs[name] for name in definition.outputs if name in outputs}
