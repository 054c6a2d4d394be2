"""The settings model: every field with its default, its limits and a one-line description."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from counterfoil.domain.steps.attributes import YEAR_MS
from counterfoil.domain.steps.definitions import DAY_MS, WorkDefaults
from counterfoil.settings.callbacks import CallbackSettings
from counterfoil.settings.values import (
    ApiKey,
    Names,
    SecretValues,
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
SECRET_PREFIX = f"{PREFIX}SECRET_"
"""The variables of the table [secrets] begin with this, and end with the name of a secret in upper case."""
_MEBIBYTE = 1_048_576


class Settings(BaseSettings):
    """All settings. ``config/counterfoil.toml`` lists the same; a test compares the two."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    host: str = Field("127.0.0.1", description="Address to listen on; without API keys, only a loopback address.")
    port: Whole = Field(8080, ge=0, le=65_535, description="Port to listen on; 0: any free port.")
    data: Path = Field(
        Path("counterfoil-data"), description="Data directory: the SQLite database and generated secrets."
    )
    store: str = Field(
        "",
        repr=False,
        description="Database URL: sqlite:///path or postgresql://...; empty: a SQLite file in the data directory.",
    )
    store_listen: str = Field(
        "",
        repr=False,
        description="Direct PostgreSQL URL (bypassing any pooler) for notifications; empty: same as store.",
    )
    store_statement_cache: Whole = Field(
        1024,
        ge=0,
        le=100_000,
        description="Prepared statements cached per PostgreSQL connection; 0 behind pgbouncer.",
    )
    lease_ms: Whole = Field(
        15_000,
        ge=500,
        le=3_600_000,
        description="Lease duration: in-flight attempts of a node that stops renewing are reclaimed after this "
        "(PostgreSQL only).",
    )
    webhook_base_url: str = Field(
        "", description="Base of webhook URLs, as workers reach the engine; empty: the address it listens on."
    )
    api_keys: str = Field(
        "",
        repr=False,
        description="API keys as name:role:secret, comma separated; roles: viewer, operator, reviewer, admin; "
        "secrets: at least 16 characters.",
    )
    receipt_secrets: str = Field(
        "",
        repr=False,
        description="Secrets for receipts, comma separated: the first signs, all verify; empty: generated once.",
    )
    signing_secret: str = Field(
        "",
        repr=False,
        description="Standard Webhooks secrets (whsec_<base64>, comma separated) for dispatches and completions.",
    )
    secrets: SecretValues = Field(
        default={},
        repr=False,
        description="Secrets of vendors by name: a value, or a list of values during rotation; steps refer to one by "
        "setting:<name>.",
    )
    max_body_bytes: Whole = Field(_MEBIBYTE, ge=1, le=1024 * _MEBIBYTE, description="Maximum size of a request body.")
    max_response_bytes: Whole = Field(
        _MEBIBYTE, ge=1, le=1024 * _MEBIBYTE, description="Maximum size of an endpoint's response."
    )
    page_bytes: Whole = Field(
        4 * _MEBIBYTE,
        ge=1,
        le=1024 * _MEBIBYTE,
        description="Maximum size of one page of a list; a page may end before its limit.",
    )
    max_connections: Whole = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of client connections; less if the file descriptor limit requires it.",
    )
    header_timeout_ms: Whole = Field(
        10_000,
        ge=10,
        le=3_600_000,
        description="Time to receive the request head, from its first byte or from the start of the connection.",
    )
    body_timeout_ms: Whole = Field(
        30_000, ge=10, le=3_600_000, description="Time to receive the whole request body, from the end of the head."
    )
    keepalive_timeout_ms: Whole = Field(
        75_000, ge=10, le=3_600_000, description="How long an idle connection stays open for the next request."
    )
    write_timeout_ms: Whole = Field(
        60_000,
        ge=10,
        le=3_600_000,
        description="How long a client may read nothing of a response before its connection is closed.",
    )
    backlog_limit: Whole = Field(
        20_000,
        ge=1,
        le=10_000_000,
        description="Maximum number of commands waiting for a commit; beyond it, requests get 503.",
    )
    batch_limit: Whole = Field(512, ge=1, le=100_000, description="Maximum number of commands in one commit.")
    readers: Whole = Field(2, ge=1, le=64, description="Number of read-only database connections.")
    dispatch_concurrency: Whole = Field(
        256, ge=1, le=100_000, description="Maximum number of concurrent calls to step endpoints."
    )
    dispatch_concurrency_per_host: Whole = Field(
        64, ge=1, le=100_000, description="Maximum number of concurrent calls to step endpoints on one host."
    )
    retry_after_limit_ms: Whole = Field(
        3_600_000,
        ge=0,
        le=YEAR_MS,
        description="Maximum delay that a Retry-After header or retry_after field can request.",
    )
    fan_out_limit: Whole = Field(
        10_000,
        ge=1,
        le=1_000_000,
        description="Maximum number of work items of one fan-out, regardless of the step's own limit.",
    )
    value_check_ms: Whole = Field(
        500, ge=10, le=60_000, description="Maximum processor time to check one value against its JSON Schema."
    )
    gate_patience_ms: Whole = Field(
        3_600_000,
        ge=100,
        le=YEAR_MS,
        description="How long an agent without a claim may go without reporting an allowed step.",
    )
    policies_file: str = Field(
        "", description="JSON file of policies, loaded at start; policies removed from the file are deleted."
    )
    sweep_interval_ms: Whole = Field(
        1_000, ge=10, le=3_600_000, description="How often each sweep runs if nothing wakes it earlier."
    )
    retention_ms: Whole = Field(
        30 * DAY_MS, ge=0, le=100 * YEAR_MS, description="How long ended flows are kept; 0: forever."
    )
    payload_retention_ms: Whole = Field(
        0, ge=0, le=100 * YEAR_MS, description="How long payloads of ended flows are kept; 0: as long as the flow."
    )
    shutdown_grace_ms: Whole = Field(
        10_000, ge=0, le=3_600_000, description="How long a shutdown waits for requests in flight."
    )
    egress_allow: Names = Field(
        default=[], description="Networks and host names that may be called although the default rules deny them."
    )
    egress_deny: Names = Field(
        default=[], description="Networks and host names that must not be called; takes precedence over egress_allow."
    )
    egress_only: Names = Field(
        default=[], description="Allow list: if not empty, only these networks and host names may be called."
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(lower_case)] = Field(
        "info", description="Minimum log level: debug, info, warning or error."
    )
    log_format: Annotated[Literal["auto", "pretty", "json"], BeforeValidator(lower_case)] = Field(
        "auto", description="Log format: pretty, json, or auto (pretty on a terminal, otherwise JSON)."
    )
    fast_path: bool = Field(
        default=True,
        description="Serve HTTP with the engine's own protocol; false: with aiohttp's public API only (slower).",
    )
    access_log: bool = Field(default=False, description="Log each HTTP request, with receipt tokens masked.")
    work: WorkDefaults = Field(WorkDefaults(), description="Defaults that steps inherit, field by field.")
    callbacks: CallbackSettings = Field(CallbackSettings(), description="What the callback inbox keeps.")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (the library's signature)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the given values: ``load_settings`` merges the other sources, because it records each value's origin."""
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
            raise refused("must be sqlite:///path of a file, postgresql://host/database, or empty")
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
                raise refused("must be whsec_ followed by padded base64, comma separated if several, or empty")
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
                    "message": "without API keys, the engine listens only on a loopback address: "
                    "configure api_keys, or use 127.0.0.1, ::1 or localhost",
                },
            )
        return self

    @property
    def keys(self) -> list[ApiKey]:
        """The API keys, parsed."""
        return parse_api_keys(self.api_keys)

    @property
    def receipt_secret_list(self) -> list[str]:
        """The configured receipt secrets, the signing one first; empty: the engine generates and stores one."""
        return [part.strip() for part in self.receipt_secrets.split(",") if part.strip()]

    @property
    def store_url(self) -> str:
        """The database URL, defaults applied."""
        return self.store or f"sqlite:///{self.data / 'counterfoil.db'}"

    @property
    def is_shared(self) -> bool:
        """Whether the store may serve several nodes."""
        return is_postgres_url(self.store)

    @property
    def store_path(self) -> Path:
        """The file of a SQLite database URL."""
        return Path(sqlite_file(self.store_url))


class SettingDescription(NamedTuple):
    """One setting, as the reference and the example file show it."""

    name: str
    default: Any
    description: str
    variable: str


_WORK_DESCRIPTIONS = {
    "max_retries": "Maximum number of retries after the first attempt; 0: none, -1: unlimited.",
    "backoff_type": "Growth of the retry delay: fixed, linear or exponential.",
    "init_backoff_ms": "Delay before the first retry.",
    "max_backoff_ms": "Maximum computed retry delay.",
    "jitter": "Randomize each delay between half and all of the computed delay.",
    "ack_timeout_ms": "Time for the endpoint to acknowledge; for a sync step, time for the whole response.",
    "deadline_ms": "Time for the callback; each heartbeat restarts it.",
    "heartbeat_timeout_ms": "Maximum time between heartbeats; not set: only the deadline applies.",
    "parallelism": "Maximum number of active work items of one step; not set: no limit.",
    "rate_limit": "Maximum dispatches of one step, retries included, in any window of per_ms; not set: no limit.",
}


TABLES: dict[str, type[BaseModel]] = {"work": WorkDefaults, "callbacks": CallbackSettings}
"""Settings that are tables, in file order, and what they consist of."""


def describe_settings() -> Iterator[SettingDescription]:
    """Every setting in file order; those of a table, such as [work], as ``work.<name>``."""
    for name, info in Settings.model_fields.items():
        if name == "secrets":
            yield SettingDescription(name, None, info.description or "", f"{SECRET_PREFIX}<NAME>")
        elif name not in TABLES:
            yield SettingDescription(name, info.default, info.description or "", PREFIX + name.upper())
    for table, model in TABLES.items():
        for name, info in model.model_fields.items():
            description = info.description or _WORK_DESCRIPTIONS[name]
            variable = f"{PREFIX}{table.upper()}__{name.upper()}"
            yield SettingDescription(f"{table}.{name}", info.default, description, variable)
