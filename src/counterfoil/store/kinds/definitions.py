"""Definitions of steps, which of them are current, and plans. A definition and a plan are named by their content."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from counterfoil.domain.flows.planning import Plan
from counterfoil.domain.jsontext import parse_json
from counterfoil.domain.records import StepVersion
from counterfoil.domain.steps.definitions import StepDefinition
from counterfoil.store.kinds.columns import written
from counterfoil.store.kinds.kind import (
    ChangesOf,
    Kind,
    Load,
    Loaded,
    Phase,
    Unlocked,
    Write,
    filling_pairs,
    nothing_written,
)

if TYPE_CHECKING:
    from counterfoil.domain.steps.definitions import WorkDefaults
    from counterfoil.store.unit_of_work.unit import UnitOfWork


def _add_version(unit: UnitOfWork, version: str, step_id: str, definition: str, defaults: WorkDefaults) -> None:
    versions = unit.definitions.versions
    if version not in versions:
        parsed = StepDefinition.model_validate_json(definition)
        versions[version] = StepVersion.of(step_id, parsed, defaults, version)


def _fill_versions(loaded: Loaded) -> None:
    for version, step_id, definition in loaded.rows:
        _add_version(loaded.unit, version, step_id, definition, loaded.defaults)


def _writes_versions(of: ChangesOf[str, StepVersion]) -> Iterator[Write]:
    versions = of.records
    rows = [
        (each.version, each.step_id, each.definition.model_dump_json(by_alias=True, exclude_unset=True))
        for each in versions.values()
        if each is not None
    ]
    yield Write("insert_version", rows, exact=False)


VERSIONS: Kind[str, StepVersion] = Kind(
    name="versions",
    key=lambda version: version.version,
    loads=(
        Load(
            name="versions",
            query="load_versions",
            columns=("version", "step_id", "definition"),
            fill=_fill_versions,
            unlocked=Unlocked.LATER,
        ),
    ),
    writes=_writes_versions,
    written=Phase.DEFINITIONS,
)
"""Every version that was current at some moment of the batch: a flow of the batch may have started with it."""


def _writes_current(of: ChangesOf[str, str]) -> Iterator[Write]:
    current = of.records
    put = [
        (step_id, version, of.changes.at, of.changes.at) for step_id, version in current.items() if version is not None
    ]
    yield Write("put_step", put)
    yield Write("delete_step", [(step_id,) for step_id, version in current.items() if version is None], exact=False)
    yield Write("raise_register", [(len(current),)])


CURRENT: Kind[str, str] = Kind(
    name="current",
    loads=(
        Load(
            name="steps",
            query="load_current",
            columns=("step_id", "version"),
            fill=filling_pairs(lambda: CURRENT, tuple),
            unlocked=Unlocked.AT_FIRST,
        ),
    ),
    writes=_writes_current,
    written=Phase.DEFINITIONS + 1,
    optimistic=False,
)
"""The current version of each registered step, by step."""


def _fill_register(loaded: Loaded) -> None:
    """A row for each step, or one with the revision alone: then that is known already, or there are no steps."""
    found = list(loaded.rows)
    if not found:
        return
    revision: int = found[0][0]
    versions: list[str] = []
    for _, step_id, version, definition in found:
        if version is not None:
            _add_version(loaded.unit, version, step_id, definition, loaded.defaults)
            versions.append(version)
    loaded.unit.add_register(revision, None if str(revision) in loaded.keys else versions)


REGISTER: Kind[str, str] = Kind(
    name="register",
    loads=(
        Load(
            name="registers",
            query="load_register",
            columns=("revision", "step_id", "version", "definition"),
            fill=_fill_register,
            unlocked=Unlocked.AT_FIRST,
        ),
    ),
    writes=nothing_written,
)
"""The whole register; its key in a read set is the revision that is known already."""


def _fill_plans(loaded: Loaded) -> None:
    plans = loaded.unit.records(PLANS)
    for plan_id, document in loaded.rows:
        plan = Plan(**parse_json(document))
        loaded.unit.definitions.learn_plans([plan])
        plans.add(plan_id, plan)


def _writes_plans(of: ChangesOf[str, Plan]) -> Iterator[Write]:
    plans = of.records
    rows = [(plan.plan_id, written(plan.stored())) for plan in plans.values() if plan is not None]
    yield Write("insert_plans", rows, exact=False)


PLANS: Kind[str, Plan] = Kind(
    name="plans",
    key=lambda plan: plan.plan_id,
    loads=(
        Load(
            name="plans",
            query="load_plans",
            columns=("plan_id", "document"),
            fill=_fill_plans,
            unlocked=Unlocked.LATER,
        ),
    ),
    writes=_writes_plans,
    written=Phase.DEFINITIONS + 2,
    optimistic=False,
)
"""Changed are plans that are not known to be stored."""
