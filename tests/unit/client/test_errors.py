"""Errors of the client: each is imported from one place, and its text says what is wrong where."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import counterfoil.client
from counterfoil.client import ApiError, ClientError
from counterfoil.client import errors as client_errors
from counterfoil.client.refusals import api_error


def tree(root: type[Exception] = ClientError) -> Iterator[type[Exception]]:
    """Every class of errors in the program itself; tests may define more."""
    for child in root.__subclasses__():
        if child.__module__.startswith("counterfoil."):
            yield child
        yield from tree(child)


KINDS = {kind.__name__: kind for kind in tree()}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_error_is_imported_from_the_client_by_the_name_in_a_traceback(name: str) -> None:
    assert getattr(counterfoil.client, name, None) is KINDS[name]
    assert name in counterfoil.client.__all__


def test_what_the_module_of_errors_offers_is_offered_by_the_client() -> None:
    assert set(client_errors.__all__) <= set(counterfoil.client.__all__)
    for name in client_errors.__all__:
        assert getattr(counterfoil.client, name) is getattr(client_errors, name)


def answered(code: str, message: str, **details: Any) -> ApiError:
    return api_error(422, {"error": {"code": code, "message": message, "details": details}})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            answered("INVALID_STEP", "not valid", errors=[{"place": "work.max_retries", "message": "is too small"}]),
            "INVALID_STEP: not valid (work.max_retries: is too small)",
        ),
        (
            answered("INVALID_INPUT", "no", errors=[{"attribute": "n", "message": "is missing"}, {"place": "goals"}]),
            "INVALID_INPUT: no (n: is missing; goals: is wrong)",
        ),
        (answered("INVALID_INPUT", "no", errors=["odd", {"message": "also"}]), "INVALID_INPUT: no (odd; also)"),
        (answered("INVALID_INPUT", "no", errors=[]), "INVALID_INPUT: no"),
        (answered("INVALID_INPUT", "no", errors="odd"), "INVALID_INPUT: no"),
        (answered("UNKNOWN_FLOW", "no flow has this id"), "UNKNOWN_FLOW: no flow has this id"),
    ],
)
def test_the_text_of_an_error_names_each_place_that_is_wrong(error: ApiError, text: str) -> None:
    assert str(error) == text
    assert text in repr(error)
    assert error.message == text.partition(": ")[2].partition(" (")[0]
