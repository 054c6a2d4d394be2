"""Flow starts: what a caller asks for, and what each step of the flow is given."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from counterfoil.domain.errors import InvalidInput, UnreachableGoal
from counterfoil.domain.steps import STEP_ID_PATTERN, NotYet, StepDefinition, has_type

FLOW_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._~:-]{0,199}$"

StepId = Annotated[str, Field(pattern=STEP_ID_PATTERN)]
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
    deadline_ms: NotYet = None
    on_deadline: NotYet = None
    compensate: Literal[False] | None = None


def arguments_for(definition: StepDefinition, init: dict[str, Any]) -> dict[str, Any]:
    """What the step is called with. A step without attributes takes all of init as it is."""
    if not definition.attributes:
        return init
    arguments: dict[str, Any] = {}
    for name, attribute in definition.attributes.items():
        if attribute.role == "const":
            arguments[name] = attribute.value
        elif attribute.role == "optional":
            arguments[name] = init.get(name, attribute.default)
        elif attribute.role == "required":
            arguments[name] = init[name]
    return arguments


def check_inputs(steps: dict[str, StepDefinition], init: dict[str, Any]) -> None:
    """Refuse a start whose goals lack a required input, or that gives one of the wrong type."""
    missing = [
        {"step_id": step_id, "attribute": name, "could_be_provided_by": []}
        for step_id, definition in steps.items()
        for name, attribute in definition.attributes.items()
        if attribute.role == "required" and name not in init
    ]
    if missing:
        names = ", ".join(f"{item['step_id']} needs {item['attribute']}" for item in missing)
        raise UnreachableGoal(f"inputs are missing: {names}", missing=missing)
    wrong = [
        {"place": f"init.{name}", "message": f"step {step_id} takes {attribute.type} here"}
        for step_id, definition in steps.items()
        for name, attribute in definition.attributes.items()
        if attribute.role in ("required", "optional") and name in init and not has_type(init[name], attribute.type)
    ]
    if wrong:
        raise InvalidInput("a value is of the wrong type", errors=wrong)


def invalid_outputs(definition: StepDefinition, outputs: dict[str, Any]) -> list[dict[str, str]]:
    """Which declared outputs are absent or of another type than declared."""
    return [
        {"attribute": name, "message": f"is not of type {wanted}" if name in outputs else "is missing"}
        for name, wanted in definition.output_types.items()
        if name not in outputs or not has_type(outputs[name], wanted)
    ]


def flow_outputs(definition: StepDefinition, outputs: dict[str, Any]) -> dict[str, Any]:
    """What a step gives to its flow: everything, or what it declares."""
    if not definition.attributes:
        return outputs
    return {name: outputs[name] for name in definition.output_types if name in outputs}
