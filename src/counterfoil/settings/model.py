"""The settings themselves: every field with its default, its limits and one line that says what it is for."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from counterfoil.domain.steps.attributes import YEAR_MS
from counterfoil.domain.steps.definitions import DAY_MS, WorkDefaults
from counterfoil.settings.values import (
    ApiKey,
    Names,
    Whole,
    is_address,
    is_base_url,
    is_host_name,
    is_loopback,
    is_network,
    is_postgres_url,
    lower_case,
    parse_api_keys,
    refused,
    sqlite_file,
)

PREFIX = "COUNTERFOIL_"
_MEBIBYTE = 1_048_576


class Settings(BaseSettings):
    """Everything that can be set. ``config/counterfoil.toml`` lists the same, and a test compares the two."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    host: str = Field("127.0.0.1", description="Address to serve on; without API keys only a loopback address.")
    port: Whole = Field(8080, ge=0, le=65_535, description="Port to serve on; 0 takes a free one.")
    data: Path = Field(Path("counterfoil-data"), description="Directory of the database and of generated secrets.")
    store: str = Field(
        "",
        repr=False,
        description="Where the state is kept: sqlite:///path or postgresql://...; empty: a file in the data directory.",
    )
    store_listen: str = Field(
        "",
        repr=False,
        description="PostgreSQL URL past any pooler, to hear other nodes by; empty: that of the store.",
    )
    store_statement_cache: Whole = Field(
        1024,
        ge=0,
        le=100_000,
        description="Statements that each PostgreSQL connection keeps prepared; 0 for pgbouncer.",
    )
    lease_ms: Whole = Field(
        15_000, ge=500, le=3_600_000, description="How long a silent node of several keeps what it is sending."
    )
    webhook_base_url: str = Field(
        "", description="What webhook URLs start with, as workers reach it; empty: the address served."
    )
    api_keys: str = Field(
        "",
        repr=False,
        description="API keys, name:role:secret, comma separated; roles: viewer, operator, reviewer, admin; "
        "secrets: 16 characters or more.",
    )
    receipt_secrets: str = Field(
        "",
        repr=False,
        description="Secrets that sign receipts, comma separated, the first signs; empty: generated once.",
    )
    signing_secret: str = Field(
        "",
        repr=False,
        description="Standard Webhooks secrets, whsec_<base64>, comma separated, of dispatches and signed completions.",
    )
    max_body_bytes: Whole = Field(_MEBIBYTE, ge=1, le=1024 * _MEBIBYTE, description="Largest request body taken.")
    max_response_bytes: Whole = Field(
        _MEBIBYTE, ge=1, le=1024 * _MEBIBYTE, description="How much of an endpoint's response is read."
    )
    page_bytes: Whole = Field(
        4 * _MEBIBYTE, ge=1, le=1024 * _MEBIBYTE, description="Size at which a page of a list ends before its limit."
    )
    max_connections: Whole = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Connections of callers at once; fewer where the limit on file descriptors leaves no room.",
    )
    header_timeout_ms: Whole = Field(
        10_000,
        ge=10,
        le=3_600_000,
        description="Time for the head of a request, from its first byte, or from the start of the connection.",
    )
    body_timeout_ms: Whole = Field(
        30_000, ge=10, le=3_600_000, description="Time for the whole body of a request, from the end of its head."
    )
    keepalive_timeout_ms: Whole = Field(
        75_000, ge=10, le=3_600_000, description="Time for the next request on a connection before it is closed."
    )
    write_timeout_ms: Whole = Field(
        60_000, ge=10, le=3_600_000, description="How long a client may take nothing of an answer before it is cut off."
    )
    backlog_limit: Whole = Field(
        20_000, ge=1, le=10_000_000, description="Commands that may wait for a commit; past it the answer is 503."
    )
    batch_limit: Whole = Field(512, ge=1, le=100_000, description="Commands that share one commit at most.")
    readers: Whole = Field(2, ge=1, le=64, description="Connections that only read.")
    dispatch_concurrency: Whole = Field(256, ge=1, le=100_000, description="Calls of step endpoints at once, in all.")
    dispatch_concurrency_per_host: Whole = Field(
        64, ge=1, le=100_000, description="Calls of step endpoints at once, to one host."
    )
    retry_after_limit_ms: Whole = Field(
        3_600_000, ge=0, le=YEAR_MS, description="Longest delay that a Retry-After or retry_after may ask for."
    )
    fan_out_limit: Whole = Field(
        10_000, ge=1, le=1_000_000, description="Work items that one step may fan out into, whatever it says itself."
    )
    value_check_ms: Whole = Field(
        500, ge=10, le=60_000, description="Processor time for checking one value against its JSON Schema, at most."
    )
    gate_patience_ms: Whole = Field(
        3_600_000,
        ge=100,
        le=YEAR_MS,
        description="How long an agent that claimed nothing may be silent about a step that it was let run.",
    )
    policies_file: str = Field(
        "", description="JSON file of policies, by id, that are put at the start, and removed when they left the file."
    )
    sweep_interval_ms: Whole = Field(
        1_000, ge=10, le=3_600_000, description="How often the sweeps run when nothing wakes them earlier."
    )
    retention_ms: Whole = Field(
        30 * DAY_MS, ge=0, le=100 * YEAR_MS, description="How long flows are kept that have ended; 0: for ever."
    )
    payload_retention_ms: Whole = Field(
        0, ge=0, le=100 * YEAR_MS, description="How long what they carried is kept; 0: as long as the flow itself."
    )
    shutdown_grace_ms: Whole = Field(
        10_000, ge=0, le=3_600_000, description="How long a stop waits for requests in flight."
    )
    egress_allow: Names = Field(
        default=[], description="Networks and host names that may be called although they are denied by default."
    )
    egress_deny: Names = Field(
        default=[], description="Networks and host names that must not be called; wins over allow."
    )
    egress_only: Names = Field(
        default=[], description="If not empty: the only networks and host names that may be called."
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower_case)] = Field(
        "info", description="Least severe level that is logged: debug, info, warning or error."
    )
    log_format: Annotated[Literal["auto", "pretty", "json"], BeforeValidator(lower_case)] = Field(
        "auto", description="pretty, json, or auto: pretty on a terminal, JSON otherwise."
    )
    fast_path: bool = Field(
        default=True,
        description="Serve HTTP by the engine's own protocol; false: by aiohttp's public API alone, which is slower.",
    )
    access_log: bool = Field(default=False, description="Log each HTTP request, receipt tokens blanked out.")
    work: WorkDefaults = Field(WorkDefaults(), description="What steps inherit, field by field.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (the library's signature)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the caller gives: load_settings merges the rest, because it must know where a value is from."""
        return (init_settings,)

    @field_validator("host")
    @classmethod
    def _is_a_host(cls, value: str) -> str:
        if not is_address(value) and not is_host_name(value):
            raise refused("must be an IP address or a host name, without brackets or port")
        return value

    @field_validator("store")
    @classmethod
    def _is_a_store(cls, value: str) -> str:
        if is_postgres_url(value):
            return value
        if value and (
            not value.startswith("sqlite:///") or not sqlite_file(value) or re.search(r"[?#]|:memory:", value)
        ):
            raise refused("must be sqlite:///path with the path of a file, postgresql://host/database, or empty")
        return value

    @field_validator("store_listen")
    @classmethod
    def _is_a_database_url(cls, value: str) -> str:
        if value and not is_postgres_url(value):
            raise refused("must be postgresql://host/database, or empty")
        return value

    @field_validator("webhook_base_url")
    @classmethod
    def _is_a_base_url(cls, value: str) -> str:
        if value and not is_base_url(value):
            raise refused("must be an http:// or https:// URL with a host, without user, query or fragment, or empty")
        return value.rstrip("/")

    @field_validator("api_keys")
    @classmethod
    def _are_keys(cls, value: str) -> str:
        keys = parse_api_keys(value)
        for what, given in (("name", [key.name for key in keys]), ("secret", [key.secret for key in keys])):
            if len(set(given)) < len(given):
                raise refused(f"two keys have the same {what}; each key needs its own")
        return value

    @field_validator("receipt_secrets")
    @classmethod
    def _are_secrets(cls, value: str) -> str:
        if value and not all(part.strip() for part in value.split(",")):
            raise refused("must be secrets separated by single commas: one of them is empty")
        return value

    @field_validator("signing_secret")
    @classmethod
    def _is_a_signing_secret(cls, value: str) -> str:
        for secret in value.split(",") if value else ():
            try:
                decoded = base64.b64decode(secret.strip().removeprefix("whsec_"), validate=True)
            except (binascii.Error, ValueError):
                decoded = b""
            if not secret.strip().startswith("whsec_") or not decoded:
                raise refused("must be whsec_ and then base64, padding included; several comma separated, or empty")
        return value

    @field_validator("egress_allow", "egress_deny", "egress_only")
    @classmethod
    def _are_networks_or_names(cls, value: list[str]) -> list[str]:
        for item in value:
            if not is_network(item) and not is_host_name(item.removeprefix("*.")):
                raise refused(f"{item!r} must be a network such as 10.0.0.0/8, an address, a host name or *.name")
        return value

    @model_validator(mode="after")
    def _without_keys_only_loopback(self) -> Self:
        if not self.keys and not is_loopback(self.host):
            raise PydanticCustomError(
                "setting",
                "{message}",
                {
                    "setting": "host",
                    "message": "without API keys only a loopback address is served: "
                    "configure api_keys, or take 127.0.0.1, ::1 or localhost",
                },
            )
        return self

    @property
    def keys(self) -> list[ApiKey]:
        """The API keys, parsed."""
        return parse_api_keys(self.api_keys)

    @property
    def receipt_secret_list(self) -> list[str]:
        """The configured receipt secrets, the signing one first; empty: the engine keeps a generated one."""
        return [part.strip() for part in self.receipt_secrets.split(",") if part.strip()]

    @property
    def store_url(self) -> str:
        """Where the state is kept, defaults applied."""
        return self.store or f"sqlite:///{self.data / 'counterfoil.db'}"

    @property
    def is_shared(self) -> bool:
        """Whether the store may serve several nodes."""
        return is_postgres_url(self.store)

    @property
    def store_path(self) -> Path:
        """The database file behind the URL, where it is one."""
        return Path(sqlite_file(self.store_url))


class SettingDescription(NamedTuple):
    """One setting, as the reference and the example file show it."""

    name: str
    default: Any
    description: str
    variable: str


_WORK_DESCRIPTIONS = {
    "max_retries": "Retries after the first attempt; 0: none, -1: as many as it takes.",
    "backoff_type": "How the delay grows: fixed, linear or exponential.",
    "init_backoff_ms": "Delay before the first retry.",
    "max_backoff_ms": "Longest computed delay.",
    "jitter": "Draw the delay evenly between half of it and all of it.",
    "ack_timeout_ms": "Time for the acknowledgement; of a sync step, for the whole answer.",
    "deadline_ms": "Time for the callback, counted again from each heartbeat.",
    "heartbeat_timeout_ms": "Longest silence between heartbeats; not set: only the deadline counts.",
    "parallelism": "Work items of one step that may be active at once; not set: no limit.",
    "rate_limit": "Dispatches of one step in any window of per_ms, retries included; not set: no limit.",
}


def describe_settings() -> Iterator[SettingDescription]:
    """Every setting in the order of the file; those of the table [work] as ``work.<name>``."""
    for name, info in Settings.model_fields.items():
        if name != "work":
            yield SettingDescription(name, info.default, info.description or "", PREFIX + name.upper())
    for name, info in WorkDefaults.model_fields.items():
        yield SettingDescription(
            f"work.{name}", info.default, _WORK_DESCRIPTIONS[name], f"{PREFIX}WORK__{name.upper()}"
        )
