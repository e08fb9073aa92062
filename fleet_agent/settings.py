"""What a person sets on this machine, read from `FLEET_*` variables (and, for the command line, a `.env` file).

Settings say where things are and with which keys to reach them. How much the agent may spend is not here but in the
policy, which lives in the database, has a history and is changed while everything runs. Nothing is read at import;
only `wiring`, `deploy`, `doctor` and the process tree read settings, and the story of a run receives values.

Every field's description is the text of `.env.example`: what it is, its unit, and why its default is what it is.
"""

from __future__ import annotations

import json
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import platformdirs
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from fleet_agent.errors import FixSetup

PREFIX = "FLEET_"
FLEET_NAME = r"^[a-z0-9-]{1,20}$"

HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/]+")]
UsdPerMillionTokens = Annotated[Decimal, Field(ge=0, max_digits=12, decimal_places=6)]


def default_data_dir() -> Path:
    """The platform's user data folder; for root a system folder, so that no home has to be opened to the database."""
    if os.geteuid() == 0:
        return Path("/var/lib/fleet-agent")
    return Path(platformdirs.user_data_dir("fleet-agent"))


class Settings(BaseSettings):
    """Frozen; secrets print as stars. Made by `load`, or in code with keyword arguments."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_ignore_empty=True, frozen=True, extra="forbid", hide_input_in_errors=True
    )

    # --- this machine -----------------------------------------------------------------------------------------------

    fleet: str = Field(
        default="main",
        pattern=FLEET_NAME,
        description="Name of the fleet that commands speak of; part of every box's label, hence short and plain.",
    )
    data_dir: Path = Field(
        default_factory=default_data_dir,
        description=(
            "Folder of the embedded database, Prefect's files, logs and the runtime file. Default: the platform's "
            "user data folder, /var/lib/fleet-agent for root. The demo uses a folder of the same name plus -demo."
        ),
    )
    database_url: SecretStr | None = Field(
        default=None,
        description=(
            "PostgreSQL 14 or later for our tables, such as postgresql://user:password@host/fleet. "
            "Unset: the embedded PostgreSQL, which needs nothing installed."
        ),
    )

    # --- Prefect ----------------------------------------------------------------------------------------------------

    prefect_port: int = Field(
        default=4200,
        ge=1,
        le=65535,
        description="Loopback port of the Prefect server and its pages under `up`; Prefect's own default.",
    )
    prefect_database_url: SecretStr | None = Field(
        default=None,
        description=(
            "PostgreSQL for Prefect's own tables, such as postgresql://user:password@host/prefect. "
            "Unset: the embedded PostgreSQL."
        ),
    )

    # --- webhooks in ------------------------------------------------------------------------------------------------

    hooks_bind: str = Field(
        default="127.0.0.1:8300",
        pattern=r"^(\[[0-9a-fA-F:]+\]|[^\s:/]+):[0-9]{1,5}$",
        description=(
            "Address and port at which webhooks are taken in. Loopback, so that only this machine can post; "
            "for others put a proxy with TLS before it."
        ),
    )

    # --- the provider of boxes --------------------------------------------------------------------------------------

    vast_url: HttpUrl = Field(default="https://console.vast.ai", description="Address of the vast.ai API.")
    vast_api_key: SecretStr | None = Field(
        default=None,
        description="API key of vast.ai; it can rent, so make one for the agent alone (vast.ai, Account, Keys).",
    )
    box_env: dict[str, SecretStr] = Field(
        default_factory=dict[str, SecretStr],
        description=(
            'Secrets for rented boxes as a JSON object, such as {"HF_TOKEN": "..."}: what the policy\'s launch.env '
            "writes as $HF_TOKEN is taken from here when a box is rented."
        ),
    )

    # --- the model --------------------------------------------------------------------------------------------------

    model_url: HttpUrl | None = Field(
        default=None,
        description=(
            "Base address of an OpenAI-compatible server, up to and including /v1, "
            "such as http://127.0.0.1:8000/v1 or your provider's."
        ),
    )
    model_name: str | None = Field(
        default=None,
        description="Name of the model as that server lists it under /models; it must be able to call tools.",
    )
    model_api_key: SecretStr | None = Field(
        default=None, description="API key of the model server. Unset for a local server that asks for none."
    )
    model_usd_per_million_tokens_in: UsdPerMillionTokens = Field(
        default=Decimal(0),
        description="Price of a million prompt tokens in USD, for the cost of a run; 0 for your own server.",
    )
    model_usd_per_million_tokens_out: UsdPerMillionTokens = Field(
        default=Decimal(0), description="Price of a million reply tokens in USD; 0 for your own server."
    )
    model_max_output_tokens: int = Field(
        default=2000,
        ge=200,
        le=16000,
        description=(
            "Longest reply in tokens. With the prompt's 30000 it must fit the model's window; "
            "a decision needs a few hundred, a model that reasons aloud needs more."
        ),
    )
    model_max_output_tokens_name: Literal["max_tokens", "max_completion_tokens"] = Field(
        default="max_tokens",
        description="What the server calls that bound; newer OpenAI models know only max_completion_tokens.",
    )

    # --- demand for proofs ------------------------------------------------------------------------------------------

    demand_prometheus_url: HttpUrl | None = Field(
        default=None, description="Address of the Prometheus that knows the proving queue, without /api/v1."
    )
    demand_query_pending: str = Field(default="fleet_demand_pending", description="PromQL: proofs that wait. Required.")
    demand_query_running: str = Field(
        default="fleet_demand_running", description="PromQL: proofs being made. Required."
    )
    demand_query_oldest_pending_seconds: str = Field(
        default="fleet_demand_oldest_pending_seconds",
        description="PromQL: age in seconds of the proof that waits longest.",
    )
    demand_query_done_per_hour: str = Field(
        default="fleet_demand_done_per_hour", description="PromQL: proofs finished within the last hour."
    )
    demand_query_failed_per_hour: str = Field(
        default="fleet_demand_failed_per_hour", description="PromQL: proofs failed within the last hour."
    )

    # --- telling a person -------------------------------------------------------------------------------------------

    notify_urls: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(),
        description=(
            "Where the agent tells you something: apprise addresses separated by spaces, such as "
            "ntfy://topic or mailto://user:password@host. Unset: only `fleet-agent ledger` shows it."
        ),
    )

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, data_dir: Path) -> Path:
        if not str(data_dir).isprintable():
            raise ValueError("the path holds a control character")
        return Path(os.path.abspath(data_dir.expanduser()))

    @field_validator("notify_urls", mode="before")
    @classmethod
    def _split(cls, urls: object) -> object:
        return tuple(urls.split()) if isinstance(urls, str) else urls

    @classmethod
    def load(cls, dotenv: Path | None = None) -> Self:
        """Read the environment, and below it `dotenv` where it exists. Raises FixSetup in one line per process start.

        Commands pass the `.env` of the folder they are called in. The worker passes none: its environment was
        composed by the process tree, and a `.env` beside the code must not reach into a demo.
        """
        try:
            return cls(_env_file=dotenv)  # pyright: ignore[reportCallIssue]
        except ValidationError as error:
            raise _refusal(error) from error
        except SettingsError as error:
            raise FixSetup(f"{PREFIX}BOX_ENV: not a JSON object", 'write {"NAME": "value"}') from error

    @property
    def hooks_address(self) -> tuple[str, int]:
        host, _, port = self.hooks_bind.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def demo_data_dir(self) -> Path:
        """The demo's own folder: it must never touch what `up` keeps."""
        return self.data_dir.with_name(f"{self.data_dir.name}-demo")

    def with_fleet(self, name: str) -> Settings:
        """The same for another fleet. Raises FixSetup for a name that cannot be one."""
        if not re.fullmatch(FLEET_NAME, name):
            raise FixSetup(f"{name!r} cannot be the name of a fleet", "up to 20 of a-z, 0-9 and -")
        return self.model_copy(update={"fleet": name})

    def environment(self) -> dict[str, str]:
        """The same settings as variables, secrets in the clear: for the worker, which needs them all."""
        values = {name: _as_text(getattr(self, name)) for name in type(self).model_fields}
        return {variable(name): text for name, text in values.items() if text}


def variable(field: str) -> str:
    """The environment variable of a field."""
    return PREFIX + field.upper()


def simulated(*, vast_url: str, model_url: str) -> dict[str, Any]:
    """What a demo puts in the place of every setting that reaches the real world, for `model_copy(update=…)`."""
    queries = {name: field.default for name, field in Settings.model_fields.items() if name.startswith("demand_query")}
    return {
        "vast_url": vast_url,
        "vast_api_key": SecretStr("simulated"),
        "box_env": {},
        "model_url": model_url,
        "model_name": "simulated-operator",
        "model_api_key": None,
        "model_max_output_tokens_name": "max_tokens",
        # Made up, so that a run has a cost to show.
        "model_usd_per_million_tokens_in": Decimal("0.25"),
        "model_usd_per_million_tokens_out": Decimal("1.25"),
        "demand_prometheus_url": f"{vast_url}/demand",
        **queries,
        "notify_urls": (),
    }


def missing_for_up(settings: Settings) -> list[str]:
    """What `up` cannot do without, one line each: the variable, what it is, how to get it."""
    needed = ("vast_api_key", "model_url", "model_name", "demand_prometheus_url")
    return [
        f"{variable(name)}: {type(settings).model_fields[name].description}"
        for name in needed
        if getattr(settings, name) is None
    ]


def _refusal(error: ValidationError) -> FixSetup:
    first = error.errors(include_input=False, include_url=False)[0]
    field = str(first["loc"][0])
    if first["type"] == "extra_forbidden":
        # A misspelt line of the `.env` file; unknown variables of the environment are nobody's business.
        return FixSetup(f"{field.upper()}: no such setting", "`.env.example` has every setting")
    return FixSetup(f"{variable(field)}: {first['msg']}", Settings.model_fields[field].description or "")


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case SecretStr():
            return value.get_secret_value()
        case tuple():
            return " ".join(_as_text(part) for part in cast("tuple[Any, ...]", value))
        case dict():
            parts = {key: _as_text(part) for key, part in cast("dict[str, Any]", value).items()}
            return json.dumps(parts) if parts else ""
        case _:
            return str(value)
