"""What a person sets on this machine, read from `FLEET_*` variables (and, for the command line, a `.env` file).

Settings say where things are and with which keys to reach them. How much the agent may spend is not here but in the
policy, which lives in the database, has a history and is changed while everything runs. Nothing is read at import;
only what composes or begins a process reads settings, and the story of a run receives values.

Every field's description is the text of `.env.example`: what it is, its unit, and why its default is what it is.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast, get_args

import platformdirs
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from fleet_agent.errors import FixSetup

PREFIX = "FLEET_"
FLEET_NAME = r"^[a-z0-9-]{1,20}$"

HttpUrl = Annotated[str, Field(pattern=r"^https?://[^\s/]+")]
UsdPerMillionTokens = Annotated[Decimal, Field(ge=0, max_digits=12, decimal_places=6)]


OutputTokensName = Literal["max_tokens", "max_completion_tokens"]

CurioTask = Literal["PoRep", "UpdateProve", "PSProve"]
"""A name that is misspelt would be a queue that is always empty."""


class Fallback(BaseModel):
    """A model that is asked while others fail; None is as for the first of the list."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    name: str = Field(min_length=1)
    url: HttpUrl | None = None
    api_key: SecretStr | None = None
    usd_per_million_tokens_in: UsdPerMillionTokens | None = None
    usd_per_million_tokens_out: UsdPerMillionTokens | None = None
    max_output_tokens_name: OutputTokensName | None = None
    window_tokens: int | None = Field(default=None, ge=1024)


@dataclass(frozen=True)
class ServedModel:
    """A model of the list, with everything that it takes to ask it."""

    name: str
    url: str
    api_key: SecretStr | None
    usd_per_million_tokens_in: Decimal
    usd_per_million_tokens_out: Decimal
    max_output_tokens_name: OutputTokensName
    window_tokens: int


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

    work_pool: Literal["fleet-agent", "fleet-agent-process"] = Field(
        default="fleet-agent",
        description=(
            "Who carries out runs: fleet-agent, the resident worker, begins a run in about a second in its own process;"
            " fleet-agent-process starts a process for each run, in about ten."
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
    hooks_public_url: HttpUrl | None = Field(
        default=None,
        description=(
            "Address at which rented boxes reach that port, such as https://fleet.example.net. Each box is given one "
            "of its own below it, with a token that opens nothing else. Unset: boxes tell nothing, and one that drains "
            "is destroyed when no proof is under way anywhere, or at its deadline."
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

    watch_every: int = Field(
        default=60,
        ge=10,
        le=3600,
        description=(
            "Seconds between two looks of the watch at everything that is rented; under `demo` as fast as its time. A "
            "minute is what a box in trouble may cost at most before anybody knows."
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
    model_max_output_tokens_name: OutputTokensName = Field(
        default="max_tokens",
        description="What the server calls that bound; newer OpenAI models know only max_completion_tokens.",
    )
    model_window_tokens: int = Field(
        default=32768,
        ge=1024,
        description=(
            "Window of the model in tokens, as it is served: the prompt's 30000 and the longest reply must fit into it "
            "together. 32768 is the usual size with room for both; Ollama serves less: set OLLAMA_CONTEXT_LENGTH."
        ),
    )
    model_fallbacks: Annotated[tuple[Fallback, ...], NoDecode] = Field(
        default=(),
        description=(
            "Models that are asked, in this order, while those before them fail: a JSON list of names on the same "
            'server, or of objects such as {"name": "...", "url": "...", "api_key": "..."} for another one. Of '
            "usd_per_million_tokens_in, usd_per_million_tokens_out, max_output_tokens_name and window_tokens, what "
            "an object leaves out is as for FLEET_MODEL_NAME; a key is never sent to another server."
        ),
    )

    # --- demand for proofs ------------------------------------------------------------------------------------------

    demand_curio_url: SecretStr | None = Field(
        default=None,
        description=(
            "Curio's own database, such as postgresql://fleet_agent:password@host:5433/yugabyte with a role that may "
            "only read. Set this or FLEET_DEMAND_PROMETHEUS_URL, not both."
        ),
    )
    demand_curio_tasks: Annotated[tuple[CurioTask, ...], NoDecode] = Field(
        default=get_args(CurioTask),
        min_length=1,
        description=(
            "Which of Curio's proofs are work for rented boxes, separated by spaces: PoRep, UpdateProve, PSProve. "
            "WdPost and WinPost never are: a box can be gone at any moment, and a proof that is missed costs dearly."
        ),
    )
    demand_prometheus_url: HttpUrl | None = Field(
        default=None,
        description=(
            "Address of the Prometheus that knows the proving queue, without /api/v1. Set this or "
            "FLEET_DEMAND_CURIO_URL, not both."
        ),
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
    demand_query_claimed: str | None = Field(
        default=None,
        description=(
            "PromQL: proofs that workers have taken, those included that wait within a worker. Unset, as those that "
            "follow: not asked for, and not known."
        ),
    )
    demand_query_retrying: str | None = Field(
        default=None, description="PromQL: of the proofs that wait, those that have failed before."
    )
    demand_query_final_failures_per_hour: str | None = Field(
        default=None, description="PromQL: proofs that were given up within the last hour."
    )
    demand_query_dead_workers: str | None = Field(
        default=None, description="PromQL: workers that would prove and give no sign of life."
    )
    demand_query_proof_p95_seconds: str | None = Field(
        default=None, description="PromQL: seconds within which 19 of 20 proofs are made."
    )
    demand_query_market_waiting: str | None = Field(
        default=None, description="PromQL: proofs for the market that no worker has taken."
    )
    demand_query_market_computing: str | None = Field(
        default=None, description="PromQL: proofs for the market that a worker has taken."
    )
    demand_query_market_unsubmitted: str | None = Field(
        default=None, description="PromQL: proofs for the market that are made and not handed in."
    )
    demand_query_market_orphaned: str | None = Field(
        default=None, description="PromQL: proofs for the market whose task is no more."
    )
    demand_query_market_slots: str | None = Field(
        default=None, description="PromQL: proofs that the market lets you have at once."
    )

    # --- telling a person -------------------------------------------------------------------------------------------

    notify_urls: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        default=(),
        description=(
            "Where you are told something: apprise addresses separated by spaces, such as "
            "ntfy://topic or mailto://user:password@host. Unset: only `fleet-agent ledger` and `status` show it."
        ),
    )

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, data_dir: Path) -> Path:
        if not str(data_dir).isprintable():
            raise ValueError("the path holds a control character")
        return Path(os.path.abspath(data_dir.expanduser()))

    @field_validator("notify_urls", "demand_curio_tasks", mode="before")
    @classmethod
    def _split(cls, words: object) -> object:
        return tuple(words.split()) if isinstance(words, str) else words

    @field_validator("model_fallbacks", mode="before")
    @classmethod
    def _read_fallbacks(cls, fallbacks: object) -> object:
        """A name is short for a model of that name."""
        if isinstance(fallbacks, str):
            try:
                fallbacks = json.loads(fallbacks)
            except ValueError as error:
                raise ValueError('not JSON; write ["other-model"]') from error
        if not isinstance(fallbacks, list):
            return fallbacks
        return [{"name": each} if isinstance(each, str) else each for each in cast("list[object]", fallbacks)]

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
    def models(self) -> tuple[ServedModel, ...]:
        """Every model that may be asked, the first one first; none where the first is not set."""
        if self.model_url is None or self.model_name is None:
            return ()
        first = ServedModel(
            name=self.model_name,
            url=self.model_url,
            api_key=self.model_api_key,
            usd_per_million_tokens_in=self.model_usd_per_million_tokens_in,
            usd_per_million_tokens_out=self.model_usd_per_million_tokens_out,
            max_output_tokens_name=self.model_max_output_tokens_name,
            window_tokens=self.model_window_tokens,
        )
        return first, *(_served(fallback, first) for fallback in self.model_fallbacks)

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


SOURCES_OF_DEMAND = (variable("demand_curio_url"), variable("demand_prometheus_url"))


def simulated(*, vast_url: str, model_url: str) -> dict[str, Any]:
    """What a demo puts in the place of every setting that reaches the real world, for `model_copy(update=…)`."""
    no_demand = {name: field.default for name, field in Settings.model_fields.items() if name.startswith("demand_")}
    return {
        "vast_url": vast_url,
        "vast_api_key": SecretStr("simulated"),
        "box_env": {},
        "hooks_public_url": None,  # the tree of a demo has an address of its own
        "model_url": model_url,
        "model_name": "simulated-operator",
        "model_api_key": None,
        "model_max_output_tokens_name": "max_tokens",
        "model_window_tokens": 131072,
        "model_fallbacks": (),
        # Made up, so that a run has a cost to show.
        "model_usd_per_million_tokens_in": Decimal("0.25"),
        "model_usd_per_million_tokens_out": Decimal("1.25"),
        **no_demand,
        "demand_prometheus_url": f"{vast_url}/demand",
        "notify_urls": (),
    }


def _served(fallback: Fallback, first: ServedModel) -> ServedModel:
    own = {name: getattr(fallback, name) for name in Fallback.model_fields if getattr(fallback, name) is not None}
    elsewhere = fallback.url is not None and fallback.url != first.url
    return replace(first, **({"api_key": None} if elsewhere else {}) | own)


def missing_for_up(settings: Settings) -> list[str]:
    """What `up` cannot do without, one line each: the variable, what it is, how to get it."""
    needed = ("vast_api_key", "model_url", "model_name")
    return [
        *(
            f"{variable(name)}: {type(settings).model_fields[name].description}"
            for name in needed
            if getattr(settings, name) is None
        ),
        *([] if _demand_urls(settings) else [f"{' or '.join(SOURCES_OF_DEMAND)}: where the proving queue is read"]),
    ]


def demand_must_have_one_source(settings: Settings) -> None:
    """Raises FixSetup where two are set: they count differently, and nobody could say which of them was meant."""
    if len(_demand_urls(settings)) > 1:
        raise FixSetup(f"{' and '.join(SOURCES_OF_DEMAND)} are both set", "unset the one that is not to be asked")


def _demand_urls(settings: Settings) -> list[object]:
    return [url for url in (settings.demand_curio_url, settings.demand_prometheus_url) if url is not None]


def _refusal(error: ValidationError) -> FixSetup:
    first = error.errors(include_input=False, include_url=False)[0]
    field = str(first["loc"][0])
    inside = "".join(f" {part}:" for part in first["loc"][1:])
    if first["type"] == "extra_forbidden" and not inside:
        # A misspelt line of the `.env` file; unknown variables of the environment are nobody's business.
        return FixSetup(f"{field.upper()}: no such setting", "`.env.example` has every setting")
    return FixSetup(f"{variable(field)}:{inside} {first['msg']}", Settings.model_fields[field].description or "")


def _as_text(value: Any) -> str:
    match value:
        case None:
            return ""
        case SecretStr():
            return value.get_secret_value()
        case (BaseModel(), *_):
            return json.dumps([_as_object(part) for part in cast("tuple[BaseModel, ...]", value)])
        case tuple():
            return " ".join(_as_text(part) for part in cast("tuple[Any, ...]", value))
        case dict():
            parts = {key: _as_text(part) for key, part in cast("dict[str, Any]", value).items()}
            return json.dumps(parts) if parts else ""
        case _:
            return str(value)


def _as_object(model: BaseModel) -> dict[str, str]:
    values = {name: _as_text(getattr(model, name)) for name in type(model).model_fields}
    return {name: text for name, text in values.items() if text}
