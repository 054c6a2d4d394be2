"""Fan-out: turns arrays into the arguments of one work item for each element, and their outcomes back into lists."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any

from counterfoil.domain.steps.definitions import StepDefinition


class FanOutError(ValueError):
    """The step cannot fan out over this value; the message says why."""


def count_items(definition: StepDefinition, arguments: Mapping[str, Any], most: int) -> int:
    """The number of items; raises FanOutError if the step cannot fan out over its arguments."""
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
    """The arguments of each item, in the order of the input: with several attributes, the last one varies fastest."""
    count_items(definition, arguments, most)
    names = definition.fanned_out
    arrays = [arguments[name] for name in names]
    rows = zip(*arrays, strict=True) if definition.fan_out.mode == "zip" else product(*arrays)
    return [{**arguments, **dict(zip(names, row, strict=True))} for row in rows]


def gathered(definition: StepDefinition, count: int, outcomes: Iterable[tuple[int, Any]]) -> dict[str, list[Any]]:
    """Each declared output as a list in the order of the items; items without an outcome have null.

    ``outcomes``: the outputs of items that succeeded.
    """
    places: list[Any] = [None] * count
    for item, outputs in outcomes:
        places[item] = outputs
    return {name: [None if outputs is None else outputs.get(name) for outputs in places] for name in definition.outputs}
