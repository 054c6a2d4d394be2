"""``/api/v1/policies``: the rules that the gate and the dispatcher evaluate before each attempt."""

from __future__ import annotations

import re

from aiohttp import web

from counterfoil.domain.errors import (
    InvalidInput,
    InvalidPolicy,
    PayloadTooLarge,
    UnknownPolicy,
    UnknownStep,
    UnknownWorkflow,
    UnsupportedMediaType,
)
from counterfoil.domain.policies.definitions import POLICY_ID_PATTERN, PolicyDefinition
from counterfoil.domain.policies.trials import PolicyTrial
from counterfoil.server.answers import empty_response, json_response
from counterfoil.server.auth import ADMINS, OPERATORS, caller
from counterfoil.server.control_requests import ControlPaging
from counterfoil.server.requests import read_model, read_query
from counterfoil.server.routes import EngineFacade, Route, SuccessAnswer
from counterfoil.wire.policies import PoliciesPage, PolicyDocument, PolicyPut, PolicyTested, PolicyVersions

_POLICY_ID = re.compile(POLICY_ID_PATTERN)

EXAMPLE = {
    "name": "no rapid retries",
    "match": {"step_id": "transfer*", "step_type": "tool_call"},
    "conditions": [{"field": "step.gate_count", "operator": "greater_than", "value": 3}],
    "action": {"type": "require_approval", "reason": "fourth attempt", "severity": "high", "expires_in": "24h"},
}
TRIAL = {"policy": EXAMPLE, "call": {"step_id": "transfer-1", "attempt": {"gate_count": 4}}}


def policy_routes(engine: EngineFacade) -> list[Route]:
    return [_trial_route(engine), *_reading_routes(engine), *_changing_routes(engine)]


def _trial_route(engine: EngineFacade) -> Route:
    async def test_policy(request: web.Request) -> web.Response:
        return json_response(await engine.policies.test(await read_model(request, PolicyTrial, InvalidPolicy)))

    return Route(
        method="POST",
        path="/api/v1/policies/test",
        handler=test_policy,
        tag="policies",
        summary="Dry-run a policy",
        description="Evaluates a described call (`call`), or the next gate call of a recorded step (`recorded`), with "
        "`policy`, or with all policies in force. Nothing is recorded.",
        request=PolicyTrial,
        example=TRIAL,
        answers={200: SuccessAnswer(description="the decision that would be made", model=PolicyTested)},
        errors=(InvalidPolicy, UnknownWorkflow, UnknownStep, UnsupportedMediaType, PayloadTooLarge),
        roles=OPERATORS,
    )


def _reading_routes(engine: EngineFacade) -> list[Route]:
    async def list_policies(request: web.Request) -> web.Response:
        wanted = read_query(request, ControlPaging)
        return json_response(await engine.control_queries.policies(cursor=wanted.cursor, limit=wanted.limit))

    async def get_policy(request: web.Request) -> web.Response:
        return json_response(await engine.control_queries.policy(_known(request)))

    async def list_policy_versions(request: web.Request) -> web.Response:
        return json_response(await engine.control_queries.policy_versions(_known(request)))

    return [
        Route(
            method="GET",
            path="/api/v1/policies",
            handler=list_policies,
            tag="policies",
            summary="List the policies, by id",
            description="One page of the policies in force, each in its current version; `next_cursor` leads to the "
            "next page.",
            query=ControlPaging,
            answers={200: SuccessAnswer(description="a page of policies", model=PoliciesPage)},
            errors=(InvalidInput,),
        ),
        Route(
            method="GET",
            path="/api/v1/policies/{policy_id}",
            handler=get_policy,
            tag="policies",
            summary="Show a policy",
            description="The current version of a policy in force. After a policy was deleted, only its versions can "
            "be read.",
            answers={200: SuccessAnswer(description="the policy", model=PolicyDocument)},
            errors=(UnknownPolicy,),
        ),
        Route(
            method="GET",
            path="/api/v1/policies/{policy_id}/versions",
            handler=list_policy_versions,
            tag="policies",
            summary="Show the versions of a policy, newest first",
            description="Each change of the policy, its deletion included, with its time, its source and the API key "
            "that made it. The newest 100 versions are shown.",
            answers={200: SuccessAnswer(description="its versions, also after it was deleted", model=PolicyVersions)},
            errors=(UnknownPolicy,),
        ),
    ]


def _changing_routes(engine: EngineFacade) -> list[Route]:
    async def put_policy(request: web.Request) -> web.Response:
        policy_id = request.match_info["policy_id"]
        if not _POLICY_ID.fullmatch(policy_id):
            fault = "must be 1 to 128 letters, digits, or . _ ~ : - and begin with a letter or digit"
            raise InvalidPolicy("the policy id is not valid", errors=[{"place": "policy_id", "message": fault}])
        definition = await read_model(request, PolicyDefinition, InvalidPolicy)
        document, created = await engine.policies.put(policy_id, definition, caller(request))
        return json_response(document, 201 if created else 200)

    async def delete_policy(request: web.Request) -> web.Response:
        await engine.policies.delete(_known(request), caller(request))
        return empty_response()

    return [
        Route(
            method="PUT",
            path="/api/v1/policies/{policy_id}",
            handler=put_policy,
            tag="policies",
            summary="Create or change a policy",
            description="The policy applies, on every node, to every decision after the answer. Each change is kept as "
            "a version; the same definition again makes no new version.",
            request=PolicyDefinition,
            example=EXAMPLE,
            answers={
                200: SuccessAnswer(description="changed, or the same as before", model=PolicyPut),
                201: SuccessAnswer(description="new", model=PolicyPut),
            },
            errors=(InvalidPolicy, UnsupportedMediaType, PayloadTooLarge),
            roles=ADMINS,
        ),
        Route(
            method="DELETE",
            path="/api/v1/policies/{policy_id}",
            handler=delete_policy,
            tag="policies",
            summary="Remove a policy",
            description="Earlier decisions stay as they are.",
            answers={204: SuccessAnswer(description="removed")},
            errors=(UnknownPolicy,),
            roles=ADMINS,
        ),
    ]


def _known(request: web.Request) -> str:
    """The policy id of the path; an id that no policy can have raises UnknownPolicy without a query."""
    policy_id = request.match_info["policy_id"]
    if not _POLICY_ID.fullmatch(policy_id):
        raise UnknownPolicy
    return policy_id
