"""``config/compose.yaml`` fits the settings, files and nginx configuration that it names. No Docker is needed."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from typing import Any

import pytest

from counterfoil.settings import Settings, describe_settings
from tests.architecture.source_tree import ROOT

CONFIG = ROOT / "config"
GIVEN = {
    "DATABASE_PASSWORD": "secret",
    "COUNTERFOIL_API_KEYS": "ops:admin:cf_a-key-for-this-test-only",
    "WEBHOOK_BASE_URL": "http://10.0.0.5:8080",
}
"""What the head of the file tells its reader to set; everything else must do without."""


@pytest.fixture(scope="module")
def text() -> str:
    return (CONFIG / "compose.yaml").read_text("utf-8")


@pytest.fixture(scope="module")
def services(text: str) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed here, so config/compose.yaml is not read")
    document = yaml.safe_load(re.sub(r"\$\{(\w+):([?-])([^}]*)\}", filled_in, text))
    assert set(document) == {"name", "x-node", "services", "volumes"}
    found: dict[str, Any] = document["services"]
    return found


def filled_in(variable: re.Match[str]) -> str:
    """What Compose makes of ${NAME:?why} and ${NAME:-default}."""
    name, needed, rest = variable.groups()
    assert needed == "-" or name in GIVEN, f"{name} is needed, and the head of the file does not say so"
    return GIVEN.get(name, rest)


def nodes_of(services: dict[str, Any]) -> list[str]:
    return [name for name in services if name.startswith("node-")]


def test_the_head_names_every_variable_that_is_needed(text: str) -> None:
    assert set(re.findall(r"^#     export (\w+)=", text, re.MULTILINE)) == set(GIVEN)


def test_nodes_are_given_settings_that_are_valid(services: dict[str, Any]) -> None:
    names = {item.variable: item.name for item in describe_settings()}
    assert len(nodes_of(services)) == 3
    for node in nodes_of(services):
        environment = services[node]["environment"]
        assert set(environment) <= set(names)
        settings = Settings(**{names[variable]: value for variable, value in environment.items() if value})
        assert settings.is_shared
        assert settings.webhook_base_url == GIVEN["WEBHOOK_BASE_URL"]


def test_nodes_speak_with_the_database_that_is_there(services: dict[str, Any]) -> None:
    made = services["postgres"]["environment"]
    user, password, database = (made[f"POSTGRES_{name}"] for name in ("USER", "PASSWORD", "DB"))
    for node in nodes_of(services):
        assert services[node]["environment"]["COUNTERFOIL_STORE"] == (
            f"postgresql://{user}:{password}@postgres:5432/{database}"
        )


def test_nginx_knows_the_nodes_and_waits_for_them(services: dict[str, Any]) -> None:
    configuration = (CONFIG / "nginx.conf").read_text("utf-8")
    upstreams = set(re.findall(r"server (node-\d+):8080 ", configuration))
    assert upstreams == set(nodes_of(services)) == set(services["nginx"]["depends_on"])
    published = services["nginx"]["ports"][0].partition(":")[2]
    assert f"listen {published};" in configuration
    assert services["nginx"]["volumes"] == ["./nginx.conf:/etc/nginx/nginx.conf:ro"]


def test_a_service_that_others_wait_for_has_a_health_check(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}, name
            test = services[other]["healthcheck"]["test"]
            assert test[0] == "CMD"
            if "-c" in test:
                compile(test[-1], f"healthcheck of {other}", "exec")


def test_a_stop_is_given_the_time_that_it_may_take(services: dict[str, Any]) -> None:
    for node in nodes_of(services):
        assert int(services[node]["stop_grace_period"].removesuffix("s")) * 1000 > Settings().shutdown_grace_ms


def test_the_image_is_built_of_files_that_exist(services: dict[str, Any]) -> None:
    lines = services["node-1"]["build"]["dockerfile_inline"].splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in shlex.split(line)[1:-1]]
    assert {"src", "pyproject.toml", "constraints.txt"} <= set(copied)
    assert all((ROOT / name).exists() for name in copied)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert "postgres" in project["optional-dependencies"]
    assert {project["readme"], *project["license-files"]} <= set(copied), "the build needs what the project names"
    (command,) = (json.loads(line.removeprefix("CMD ")) for line in lines if line.startswith("CMD "))
    assert command[0] in project["scripts"]
