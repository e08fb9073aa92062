"""The documents of vast.ai as they come over the wire, under the provider's own names.

What decides about money or identity must be there and make sense; everything else may be missing or null, and often
is. Unknown fields are ignored. Validation errors hide their input: an account document contains an API key.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Any, Self

import httpx
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator


class Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True, allow_inf_nan=False)


def _text_or_nothing(value: object) -> str:
    return value if isinstance(value, str) else ""


Words = Annotated[str, BeforeValidator(_text_or_nothing)]
Epoch = Annotated[float, Field(ge=0, le=253_402_300_799, description="seconds since 1970, up to the year 9999")]
Price = Annotated[Decimal, Field(ge=0, lt=10_000, description="$/h; nothing that is rented there costs nearly as much")]
Amount = Annotated[Decimal, Field(gt=-100_000, lt=100_000, description="$; a credit is negative")]
Id = Annotated[int, Field(ge=1, le=2**63 - 1, description="what a database can keep")]
Gpus = Annotated[int, Field(ge=0, le=10_000)]

CREDIT_CODES = {"missing_billing", "insufficient_credit"}
OFFER_CODES = {"no_such_ask", "invalid_args", "invalid_price", "no_ssh_key", "no_ssh_key_for_vm"}


class Said(Wire):
    """What any answer says of its own success. The same thing has many names here."""

    success: bool | None = None
    error: Words = ""
    msg: Words = ""
    message: Words = ""
    detail: Words = ""
    new_contract: Id | None = None

    @property
    def words(self) -> str:
        return ": ".join(dict.fromkeys(filter(None, (self.error, self.msg, self.message, self.detail)))) or "no reason"

    @property
    def is_about_key(self) -> bool:
        return self.error == "auth_error" or "invalid user key" in self.words.lower()

    @property
    def is_about_credit(self) -> bool:
        return self.error in CREDIT_CODES or re.search("(lacks|insufficient) credit", self.words.lower()) is not None

    @property
    def is_about_offer(self) -> bool:
        return self.error in OFFER_CODES or "no_such_ask" in self.words

    @property
    def is_about_missing_box(self) -> bool:
        return self.error in {"no_such_instance", "not_found", "invalid_id"} or "no_such_instance" in self.words


def said_by(response: httpx.Response) -> Said | None:
    """None if the body is not a JSON object, or one whose success nobody can tell."""
    try:
        return Said.model_validate_json(response.content)
    except ValidationError:
        return None


class InstanceRow(Wire):
    """A rented box. `start_date` and `dph_total` are in every row that the official client can print."""

    id: Id
    machine_id: Id
    num_gpus: Gpus
    dph_total: Price
    start_date: Epoch
    host_id: int | None = None
    label: str | None = None
    gpu_name: str | None = None
    gpu_frac: float | None = None
    is_bid: bool | None = None
    image_uuid: str | None = None
    actual_status: str | None = None
    intended_status: str | None = None
    cur_state: str | None = None
    status_msg: str | None = None


class InstancePage(Wire):
    """A page of the list. Without the total nobody could tell a short list from a cut one."""

    instances: list[InstanceRow]
    total_instances: Annotated[int, Field(ge=0)]
    next_token: str | None = None


class OfferRow(Wire):
    """An offer. `gpu_ram` and `cpu_ram` in MB, `inet_*` in Mb/s, `disk_space` in GB at most."""

    id: Id
    machine_id: Id
    gpu_name: str
    num_gpus: Annotated[Gpus, Field(ge=1)]
    gpu_ram: int
    dph_total: Annotated[Price, Field(gt=0)]
    host_id: int | None = None
    gpu_frac: Annotated[float, Field(ge=0, le=1)] | None = None
    reliability: float | None = None
    reliability2: float | None = None
    verification: str | None = None
    hosting_type: int | None = None
    geolocation: str | None = None
    cpu_cores_effective: float | None = None
    cpu_ram: float | None = None
    disk_space: float | None = None
    inet_down: float | None = None
    inet_up: float | None = None
    cuda_max_good: float | None = None
    end_date: Epoch | None = None

    @classmethod
    def understood(cls, document: Any) -> Self | None:
        """None for a row that cannot be read: one broken offer must not hide the others."""
        try:
            return cls.model_validate(document)
        except ValidationError:
            return None


class OfferList(Wire):
    offers: list[Any]


class User(Wire):
    """`credit` is what can be spent; `balance` stays near zero."""

    credit: Decimal


class LogAddress(Wire):
    result_url: str


INSTANCE = "instance"
INSTANCE_SOURCE = rf"{INSTANCE}-([1-9][0-9]{{0,17}})"

RENT = frozenset({"gpu", "disk"})
"""The items of a charge that go by the hour; the others are traffic, and what was agreed about outages."""


class ChargeItem(Wire):
    type: Words = ""
    amount: Amount


class ChargeMetadata(Wire):
    label: Words = ""


class ChargeRow(Wire):
    """What was charged for one contract: `source` is its kind and number. `start` and `end` are its first and last day
    among those asked for, or nothing."""

    type: str
    source: str
    amount: Amount
    start: Epoch | None = None
    end: Epoch | None = None
    metadata: ChargeMetadata | None = None
    items: list[ChargeItem] | None = None

    @field_validator("source")
    @classmethod
    def _tells_the_number(cls, source: str) -> str:
        if source.startswith(INSTANCE) and not re.fullmatch(INSTANCE_SOURCE, source):
            raise ValueError("no number of an instance")
        return source

    @property
    def instance_id(self) -> int | None:
        """None for what else is charged for."""
        found = re.fullmatch(INSTANCE_SOURCE, self.source)
        return int(found[1]) if found else None


class ChargePage(Wire):
    """A page of charges. `total` is how many contracts there are on all pages."""

    results: list[ChargeRow]
    total: Annotated[int, Field(ge=0)]
    next_token: str | None = None
