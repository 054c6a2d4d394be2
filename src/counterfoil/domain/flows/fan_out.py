"""Fan-out: from arrays to one set of arguments for each work item, and from their outcomes back to lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from counterfoil.domain.steps.definitions import StepDefinition


class FanOutError(ValueError):
    """What the step is to fan out over cannot be fanned out over; the message says why."""


def count_items(definition: StepDefinition, arguments: Mapping[str, Any], most: int) -> int:
    """How many items there will be; FanOutError if there cannot be."""
    names = definition.fanned_out
    for name in names:
        if not isinstance(arguments[name], list):
            raise FanOutError(f"{name} is not an array")
    lengths = {name: len(arguments[name]) for name in names}
    if definition.fan_out.mode == "product":
        count = math.prod(lengths.values())
    else:
        count = max(lengths.values())
        if count != min(lengths.values()):
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise FanOutError(f"zipped arrays must have the same length: {told}")
    limit = min(most, definition.fan_out.max_items)
    if count > limit:
        raise FanOutError(f"{count} items exceed the limit of {limit}")
    return count


def fanned_out(definition: StepDefinition, arguments: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """The arguments of each item, in the order of the input: that of the last attribute changes fastest."""
    count_items(definition, arguments, most)
    names = definition.fanned_out
    arrays = [arguments[name] for name in names]
    rows = zip(*arrays, strict=True) if definition.fan_out.mode == "zip" else product(*arrays)
    return [{**arguments, **dict(zip(names, row, strict=True))} for row in rows]


def gathered(definition: StepDefinition, count: int, outcomes: Iterable[tuple[int, Any]]) -> dict[str, list[Any]]:
    """Each declared output as a list in the order of the items; the place of an item without outcome is null.

    ``outcomes``: the outputs of items that succeeded.
    """
    places: list[Any] = [None] * count
    for item, outputs in outcomes:
        places[item] = outputs
    return {name: [None if outputs is None else outputs.get(name) for outputs in places] for name in definition.outputs}
