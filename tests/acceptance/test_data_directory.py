"""Other users of the machine: an engine serves no files that they could replace, and makes none that they can read."""

from __future__ import annotations

import pytest

from tests.acceptance.processes import EngineProcess
from tests.acceptance.starting import logged, refused

pytestmark = pytest.mark.sqlite_only  # the others have no files


async def test_a_data_directory_that_others_can_write_to_is_refused(engine: EngineProcess) -> None:
    await engine.stop()
    for mode in (0o777, 0o770, 0o702, 0o1777):
        engine.data.chmod(mode)
        assert f"chmod 700 {engine.data}" in await refused(engine), oct(mode)
    engine.data.chmod(0o755)
    (engine.data / "counterfoil.db").chmod(0o666)
    assert "chmod 600" in await refused(engine)
    (engine.data / "counterfoil.db").chmod(0o600)
    await engine.start()
    [entry] = logged(engine, "data_directory_open_to_others")
    assert (entry["level"], entry["path"], entry["mode"]) == ("warning", str(engine.data), "0755")
    await engine.stop()
    engine.data.chmod(0o700)
    await engine.start()
    assert not logged(engine, "data_directory_open_to_others")


async def test_what_an_engine_makes_is_for_its_owner_only(engine: EngineProcess) -> None:
    assert engine.data.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in engine.data.iterdir()} == {0o600}
