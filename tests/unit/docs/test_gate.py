"""The reference of the gate names every field that goes over the wire, every field of policies, and every operator."""

from __future__ import annotations

import re
from typing import Any, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from counterfoil.domain.gate.requests import (
    ClaimRequest,
    CompleteStep,
    CreateWorkflow,
    GateRequest,
    ProlongClaim,
    ToolContext,
)
from counterfoil.domain.policies.conditions import Operator
from counterfoil.domain.policies.definitions import PolicyAction, PolicyDefinition, PolicyMatch
from counterfoil.domain.policies.fields import FIELD_NAMES
from counterfoil.wire.approvals import ApprovalDocument, PendingApproval, PendingApprovals
from counterfoil.wire.gate.calls import ClaimProlonged, GateAnswer, RetryContext
from counterfoil.wire.gate.workflows import CheckpointDocument, CheckpointResumed, WorkflowsPage
from tests.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "gate.md").read_text("utf-8")
NAMED = set(re.findall(r"`([^`\n]+)`", PAGE))

MODELS = (
    CreateWorkflow,
    GateRequest,
    ToolContext,
    ClaimRequest,
    CompleteStep,
    ProlongClaim,
    PolicyDefinition,
    PolicyMatch,
)
SHAPES = (
    *(GateAnswer, ClaimProlonged, RetryContext),
    *(ApprovalDocument, PendingApproval, PendingApprovals),
    *(CheckpointDocument, CheckpointResumed, WorkflowsPage),
)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_has_its_place(model: type[BaseModel]) -> None:
    assert not set(model.model_fields) - NAMED


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_every_field_of_an_answer_has_its_place(shape: type[Any]) -> None:
    assert not get_type_hints(shape).keys() - NAMED


def test_policies_can_be_written_from_it() -> None:
    assert not {f"action.{name}" for name in PolicyAction.model_fields} - NAMED
    assert not set(FIELD_NAMES) - NAMED
    assert not set(get_args(Operator)) - NAMED
