"""Media types and content codings of bodies: what is read, what is refused, and how far anything is decompressed."""

from __future__ import annotations

import gzip
import time
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.domain.errors import BadRequest, PayloadTooLarge, UnsupportedMediaType
from counterfoil.server.bodies.content_codings import MOST_MEMBERS, Coding, coding_of, decode
from counterfoil.server.bodies.media_types import NOT_JSON, NOT_UTF8, refusal_of_type

TYPES = {
    "application/json": None,
    "APPLICATION/JSON": None,
    " application/json ; charset=utf-8": None,
    "application/json;charset=UTF8;a=b": None,
    'application/json; profile="a;charset=latin-1"; charset="utf-8"': None,
    "application/json; charset=us-ascii": None,
    "application/json;": None,
    "application/cloudevents+json": None,
    "application/vnd.api+json; ext=x": None,
    "model/gltf+json": None,
    "application/a+b+json": None,
    "": NOT_JSON,
    "text/json": NOT_JSON,
    "application/jsonp": NOT_JSON,
    "application/json+xml": NOT_JSON,
    "+json": NOT_JSON,
    "application/+json": NOT_JSON,
    "a/b/c+json": NOT_JSON,
    "application/json, text/plain": NOT_JSON,
    "application/json; charset=latin-1": NOT_UTF8,
    "application/json; CHARSET=utf-16": NOT_UTF8,
    "application/vnd.api+json; charset=": NOT_UTF8,
}


@pytest.mark.parametrize("content_type", TYPES)
def test_types(content_type: str) -> None:
    assert refusal_of_type(content_type) == TYPES[content_type]


LONG = ["application/json;" * 500, "application/json" + ";  a" * 2_000 + "=", "a" * 8_000]


@pytest.mark.parametrize("content_type", LONG)
def test_a_long_type_takes_no_long_time(content_type: str) -> None:
    begun = time.process_time()
    refusal_of_type(content_type)
    assert time.process_time() - begun < 0.2


@pytest.mark.parametrize(
    ("name", "coding"),
    [("", None), ("identity", None), ("gzip", Coding.GZIP), (" X-GZip ", Coding.GZIP), ("Deflate", Coding.DEFLATE)],
)
def test_codings(name: str, coding: Coding | None) -> None:
    assert coding_of(name) is coding


@pytest.mark.parametrize("name", ["br", "zstd", "compress", "gzip, gzip", "gzip;q=1", "\u0130dentity"])
def test_other_codings(name: str) -> None:
    with pytest.raises(UnsupportedMediaType) as refused:
        coding_of(name)
    assert name not in refused.value.message
    assert refused.value.details["content_encodings"] == ["gzip", "deflate", "identity"]


def raw_deflate(body: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-15)
    return packing.compress(body) + packing.flush()


Pack = Callable[[bytes], bytes]
PACKINGS: dict[str, tuple[Coding, Pack]] = {
    "gzip": (Coding.GZIP, gzip.compress),
    "zlib": (Coding.DEFLATE, zlib.compress),
    "raw": (Coding.DEFLATE, raw_deflate),
}
every_packing = pytest.mark.parametrize(("coding", "pack"), PACKINGS.values(), ids=PACKINGS)


@every_packing
@given(body=st.binary(max_size=3_000))
def test_what_was_packed_is_unpacked(coding: Coding, pack: Pack, body: bytes) -> None:
    assert decode(pack(body), coding, 3_000) == body


@every_packing
def test_the_limit_is_exact(coding: Coding, pack: Pack) -> None:
    assert len(decode(pack(b"x" * 5_000), coding, 5_000)) == 5_000
    with pytest.raises(PayloadTooLarge) as refused:
        decode(pack(b"x" * 5_001), coding, 5_000)
    assert refused.value.details == {"limit_bytes": 5_000}


@every_packing
def test_a_bomb_is_not_unpacked(coding: Coding, pack: Pack) -> None:
    bomb = pack(b"0" * 100_000_000)
    begun = time.process_time()
    with pytest.raises(PayloadTooLarge):
        decode(bomb, coding, 2**20)
    assert time.process_time() - begun < 0.2


@every_packing
def test_what_is_damaged_or_cut_off_is_refused(coding: Coding, pack: Pack) -> None:
    packed = pack(b'{"success": true}' * 20)
    for broken in (packed[:-1], packed[:5], packed + b"rest", b"{}", b"\0"):
        with pytest.raises(BadRequest):
            decode(broken, coding, 10_000)


def test_several_members() -> None:
    member = gzip.compress(b"ab")
    assert decode(member * MOST_MEMBERS, Coding.GZIP, 100) == b"ab" * MOST_MEMBERS
    with pytest.raises(BadRequest):
        decode(member * (MOST_MEMBERS + 1), Coding.GZIP, 100)
    with pytest.raises(PayloadTooLarge):
        decode(gzip.compress(b"x" * 60) * 2, Coding.GZIP, 100)
    with pytest.raises(BadRequest):
        decode(zlib.compress(b"ab") * 2, Coding.DEFLATE, 100)


def test_very_many_members_take_no_long_time() -> None:
    begun = time.process_time()
    with pytest.raises(BadRequest):
        decode(gzip.compress(b"") * 50_000, Coding.GZIP, 2**20)
    assert time.process_time() - begun < 0.5
