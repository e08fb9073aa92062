"""The operator's limits: a frozen value that only a person changes.

The model never sees a way to write it. Every field says its unit and why its default is what it is; defaults are
chosen so that a forgotten setting costs little. `launch` is the only source of what runs on a rented box.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any, cast

from pydantic import Field, ValidationError, field_validator

from fleet_agent.domain.fleet import Offer
from fleet_agent.domain.hosts import BanBounds
from fleet_agent.domain.values import Frozen
from fleet_agent.errors import PolicyInvalid

Positive = Annotated[Decimal, Field(gt=0, max_digits=12, decimal_places=6)]


class Limits(Frozen):
    """Hard caps, enforced by the rules whatever the model says."""

    max_boxes: Annotated[int, Field(ge=0, le=1000, description="boxes at any time, in flight included")] = 4
    max_usd_per_hour: Annotated[Positive, Field(description="burn of all boxes, in flight included, $/h")] = Decimal(
        "4.00"
    )
    max_usd_per_hour_per_box: Annotated[Positive, Field(description="price ceiling of one box, $/h")] = Decimal("1.50")
    max_rents_per_run: Annotated[int, Field(ge=0, le=50, description="a wrong run can only do so much")] = 2
    max_destroys_per_run: Annotated[int, Field(ge=0, le=50, description="a wrong run can only do so much")] = 2
    max_notifications_per_run: Annotated[int, Field(ge=0, le=20, description="a person reads only so much")] = 2
    max_bans_per_run: Annotated[int, Field(ge=0, le=50, description="machines that one run may ban")] = 2
    max_usd_per_day: Annotated[
        Positive, Field(description="boxes of the last 24 h and the next hour of all that run, $")
    ] = Decimal("50.00")
    max_usd_per_proof: Annotated[
        Positive | None, Field(description="ceiling for machines whose rate was measured, $; null: none")
    ] = None
    min_runway: Annotated[
        timedelta,
        Field(ge=timedelta(0), description="such as PT2H; nothing is rented that leaves credit for less than this"),
    ] = timedelta(hours=2)
    max_rents_per_hour: Annotated[int, Field(ge=0, le=1000, description="of all runs together")] = 10
    max_destroys_per_hour: Annotated[int, Field(ge=0, le=1000, description="of all runs together")] = 20
    min_age: Annotated[
        timedelta,
        Field(ge=timedelta(0), description="such as PT5M; a younger box is not given up: its start is paid already"),
    ] = timedelta(minutes=5)


class OfferFloors(Frozen):
    """What an offer must have before the model even sees it."""

    gpu_names: Annotated[tuple[str, ...], Field(description="allowed GPU names; empty: any")] = ()
    min_gpu_ram_gb: Annotated[int, Field(ge=0, le=10_000, description="the prover's keys need about this much")] = 24
    min_reliability: Annotated[float, Field(ge=0, le=1, description="the provider's own figure, 0 to 1")] = 0.95
    min_inet_down_mbps: Annotated[int, Field(ge=0, le=1_000_000, description="parameter files are tens of GB")] = 200
    verified_only: Annotated[bool, Field(description="hosts the provider has verified")] = True
    whole_machine: Annotated[bool, Field(description="no neighbours on the other GPUs; proving needs CPU and RAM")] = (
        True
    )

    def unmet_by(self, offer: Offer) -> str | None:
        """The first floor that `offer` does not meet, in words; None when it meets all."""
        if self.gpu_names and offer.gpu_name not in self.gpu_names:
            return f"{offer.gpu_name} is not among the allowed GPUs"
        if offer.gpu_ram_mb < self.min_gpu_ram_gb * 1000:
            return f"{offer.gpu_ram_mb / 1000:.0f} GB of GPU memory is under the floor of {self.min_gpu_ram_gb} GB"
        if offer.reliability < self.min_reliability:
            return f"reliability {offer.reliability:.3f} is under the floor of {self.min_reliability:g}"
        if offer.inet_down_mbps < self.min_inet_down_mbps:
            return f"{offer.inet_down_mbps:.0f} Mb/s down is under the floor of {self.min_inet_down_mbps} Mb/s"
        if self.verified_only and not offer.verified:
            return "the host is not verified"
        if self.whole_machine and offer.gpu_share < 1:
            return "it is a share of a machine"
        return None


class Launch(Frozen):
    """What runs on a rented box. Never written by the model."""

    image: Annotated[str, Field(description="image with digest: name@sha256:…; empty: renting is refused")] = ""
    disk_gb: Annotated[int, Field(ge=8, le=4000, description="paid by the hour; cannot grow later")] = 100
    runtype: Annotated[str, Field(pattern="^(args|ssh|ssh_direct|jupyter)$", description="the provider's run type")] = (
        "args"
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="variables of the box; a value `$NAME` is taken from the setting FLEET_BOX_ENV at launch",
    )
    onstart: Annotated[str, Field(max_length=4000, description="start script of the box")] = ""

    @field_validator("image")
    @classmethod
    def _by_digest(cls, image: str) -> str:
        if image and not re.fullmatch(r"[\w./:-]+@sha256:[0-9a-f]{64}", image):
            raise ValueError(
                "an image is named by digest (name@sha256:<64 hex digits>), so that a tag cannot change it"
            )
        return image


class RunBounds(Frozen):
    """How much one run may use, and how many are no surprise."""

    max_steps: Annotated[int, Field(ge=1, le=50, description="model calls of one run")] = 12
    max_turns: Annotated[int, Field(ge=1, le=10, description="passes over what was waiting")] = 3
    max_tokens: Annotated[int, Field(ge=1000, le=10_000_000, description="tokens in and out of one run")] = 300_000
    max_usd: Annotated[Positive, Field(description="model cost of one run, $; ten steps of a dear model")] = Decimal(
        "1.00"
    )
    max_real_time: Annotated[
        timedelta,
        Field(
            ge=timedelta(seconds=30),
            le=timedelta(seconds=240),
            description="such as PT3M; shorter than the heartbeat, so that runs do not pile up",
        ),
    ] = timedelta(seconds=240)
    max_opened_per_hour: Annotated[
        int,
        Field(ge=12, le=1000, description="more runs in an hour are a notice to you; they are not held back"),
    ] = 40
    review_every: Annotated[
        timedelta,
        Field(
            ge=timedelta(0), le=timedelta(days=7), description="such as PT1H; an unchanged fleet is shown this often"
        ),
    ] = timedelta(minutes=60)


class ModelBounds(Frozen):
    """What the model may use within 24 hours, whatever runs ask for it. A normal day is 300 calls of 10,000 tokens."""

    max_calls_per_day: Annotated[int, Field(ge=0, le=100_000, description="requests of 24 h; 0: none")] = 1000
    max_tokens_per_day: Annotated[int, Field(ge=0, le=1_000_000_000, description="tokens in and out of 24 h")] = (
        5_000_000
    )
    max_usd_per_day: Annotated[
        Positive, Field(description="model cost of 24 h, $, as far as FLEET_MODEL_USD_PER_MILLION_TOKENS_* are set")
    ] = Decimal("5.00")


class Approvals(Frozen):
    """What waits for a person's word. A grant has a bound, is used once, and expires."""

    rent_above_usd_per_hour: Annotated[
        Positive | None, Field(description="a dearer box needs a word, $/h; null: none does")
    ] = Decimal("1.00")
    always: Annotated[tuple[str, ...], Field(description='tools that always need a word, such as ["destroy_box"]')] = ()
    tainted_max_usd_per_hour: Annotated[
        Decimal,
        Field(ge=0, description="what a run may rent by itself that has read words from outside, all together, $/h"),
    ] = Decimal("0.50")
    tainted_max_destroys: Annotated[
        int, Field(ge=0, le=50, description="boxes that such a run may give up by itself")
    ] = 1
    expire_after: Annotated[
        timedelta, Field(gt=timedelta(0), le=timedelta(days=7), description="such as PT4H; then it is refused")
    ] = timedelta(hours=4)

    @field_validator("always")
    @classmethod
    def _known(cls, tools: tuple[str, ...]) -> tuple[str, ...]:
        unknown = sorted(set(tools) - {"rent_box", "drain_box", "destroy_box"})
        if unknown:
            raise ValueError(f"{', '.join(unknown)} cannot be made to wait; rent_box, drain_box and destroy_box can")
        return tools


class Deadlines(Frozen):
    """How long a box may take for each part of its way; then the watch destroys it. Times since the part before."""

    booting: Annotated[timedelta, Field(gt=timedelta(0), description="from renting until its container runs")] = (
        timedelta(minutes=30)
    )
    registering: Annotated[timedelta, Field(gt=timedelta(0), description="until it reports for the first time")] = (
        timedelta(minutes=15)
    )
    fetching: Annotated[timedelta, Field(gt=timedelta(0), description="until its parameter files are there")] = (
        timedelta(minutes=90)
    )
    benchmarking: Annotated[timedelta, Field(gt=timedelta(0), description="until it has measured itself")] = timedelta(
        minutes=45
    )
    outage: Annotated[
        timedelta, Field(gt=timedelta(0), description="how long a host may be offline or a box stopped unasked")
    ] = timedelta(minutes=5)
    draining: Annotated[timedelta, Field(gt=timedelta(0), description="for the proofs that a box has at hand")] = (
        timedelta(minutes=30)
    )


class WatchBounds(Frozen):
    """What the watch does by itself."""

    orphans: Annotated[
        str, Field(pattern="^(adopt|destroy)$", description="boxes with our label that the ledger does not know")
    ] = "adopt"
    over_price: Annotated[
        Decimal, Field(ge=0, le=10, description="share by which a box may cost more than agreed; 0.05 is 5 %")
    ] = Decimal("0.05")
    rent_failures: Annotated[
        int, Field(ge=1, le=100, description="rents in a row that come to nothing, until renting is paused")
    ] = 5
    most_proofs_per_hour_per_gpu: Annotated[
        float, Field(gt=0, le=1_000_000, description="a box that says it does more is not believed; the fastest do 120")
    ] = 500.0


ProofsPerHour = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]


class Planning(Frozen):
    """How the planner sizes the fleet by the work. It keeps within `limits`, and only ever wants less."""

    drain_window: Annotated[
        timedelta,
        Field(
            ge=timedelta(minutes=1),
            le=timedelta(hours=24),
            description="what waits is to be done within it: the market's 45 min, less 15 for a proof that was lost",
        ),
    ] = timedelta(minutes=30)
    deadline: Annotated[
        timedelta,
        Field(
            ge=timedelta(minutes=1),
            le=timedelta(days=7),
            description="a proof that waits longer is lost; the market gives 45 min",
        ),
    ] = timedelta(minutes=45)
    startup_p95: Annotated[
        timedelta,
        Field(
            gt=timedelta(0),
            le=timedelta(hours=24),
            description="from renting to proving, until boxes have shown it; with a benchmark 35 to 75 min",
        ),
    ] = timedelta(minutes=60)
    parameters_gb: Annotated[
        int, Field(ge=0, le=10_000, description="fetched by each box, so a slow line is a late start; PoRep and Snap")
    ] = 78
    confirmations: Annotated[
        int, Field(ge=1, le=10, description="readings in a row that ask for boxes before any is rented; one may err")
    ] = 2
    quiet_window: Annotated[
        timedelta,
        Field(
            ge=timedelta(0),
            le=timedelta(hours=24),
            description="a box without use for so long is given up; sooner, and its start-up is soon paid again",
        ),
    ] = timedelta(minutes=30)
    given_up_share: Annotated[
        float, Field(ge=0, le=1, description="of the fleet that may drain at a time; one box may in any case")
    ] = 0.1
    headroom: Annotated[
        float, Field(ge=0, le=2, description="share beyond what arrives; without it no queue ever shrinks")
    ] = 0.1
    max_changes_per_hour: Annotated[
        int, Field(ge=0, le=1000, description="boxes rented or given up; a fleet of ten comes and goes with a wave")
    ] = 12
    repair_brake: Annotated[
        float, Field(ge=0, le=1, description="share of boxes in trouble beyond which the fault is probably our own")
    ] = 0.2
    min_boxes: Annotated[
        int, Field(ge=0, le=1000, description="kept without work too; 0: the fleet may be scaled to zero")
    ] = 0
    expected_stay: Annotated[
        timedelta,
        Field(
            gt=timedelta(0),
            le=timedelta(days=30),
            description="over which a start-up is spread when machines are compared; a wave of the day lasts 6 h",
        ),
    ] = timedelta(hours=6)
    proofs_per_hour: dict[str, ProofsPerHour] = Field(
        default_factory=lambda: {"RTX 3090": 30.0, "RTX 4090": 55.0, "RTX 5090": 85.0},
        description="of one GPU by its name, where nobody measured the machine; what hosts show moves these guesses",
    )
    proofs_per_hour_default: Annotated[
        ProofsPerHour, Field(description="of one GPU that is not named; less than most have shown")
    ] = 40.0
    unmeasured_discount: Annotated[
        float,
        Field(ge=0, lt=1, description="share by which a stranger may fall short of its class; hosts differ so much"),
    ] = 0.2


class Policy(Frozen):
    limits: Limits = Limits()
    offers: OfferFloors = OfferFloors()
    launch: Launch = Launch()
    run: RunBounds = RunBounds()
    model: ModelBounds = ModelBounds()
    approvals: Approvals = Approvals()
    bans: BanBounds = BanBounds()
    deadlines: Deadlines = Deadlines()
    watch: WatchBounds = WatchBounds()
    planning: Planning = Planning()


def changed(policy: Policy, changes: Mapping[str, str]) -> Policy:
    """`policy` with dotted keys set, such as `limits.max_boxes=6`.

    Values are read as JSON where they are JSON, else as text. Raises PolicyInvalid in one line that names the key.
    """
    document = policy.model_dump(mode="json")
    for key, text in changes.items():
        _set(document, key, _value(text))
    try:
        return Policy.model_validate_json(_json(document))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise PolicyInvalid(f"policy {where}: {first['msg']}", "`fleet-agent policy get` shows every key") from error


def flattened(policy: Policy) -> dict[str, str]:
    """Dotted key → value as text that `changed` reads back."""
    rows: dict[str, str] = {}
    for section, fields in policy.model_dump(mode="json").items():
        for name, value in cast("dict[str, Any]", fields).items():
            rows[f"{section}.{name}"] = value if isinstance(value, str) else _json(value)
    return rows


def _set(document: dict[str, Any], key: str, value: Any) -> None:
    section, _, name = key.partition(".")
    if not isinstance(document.get(section), dict) or name not in document[section]:
        raise PolicyInvalid(f"there is no policy key {key!r}", "`fleet-agent policy get` shows every key")
    document[section][name] = value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
