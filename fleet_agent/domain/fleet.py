"""What is offered, what is rented, and what the ledger says of it.

Three views of a machine are kept apart and never merged into one type:

- `Offer`     what the provider would rent us (single use: an id is gone once somebody took it);
- `Instance`  a row of the provider's list: a claim of theirs, possibly late, partial or wrong;
- `Box`       a row of our ledger: what we asked for, agreed to and saw.
"""

from __future__ import annotations

import re
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from fleet_agent.domain.values import Frozen


class Offer(Frozen):
    """One machine, or a share of one, that can be rented now."""

    id: int
    machine_id: int
    host_id: int
    gpu_name: str
    num_gpus: int
    gpu_ram_mb: int
    gpu_share: Annotated[float, Field(description="offered GPUs ÷ GPUs of the machine; 1.0 is the whole machine")]
    usd_per_hour: Annotated[Decimal, Field(description="GPU and the requested disk; traffic comes on top")]
    reliability: float
    verified: bool
    datacenter: bool
    location: str
    cpu_cores: float
    ram_mb: int
    disk_gb: float
    inet_down_mbps: float
    inet_up_mbps: float
    cuda: float
    rentable_until: datetime | None


class Instance(Frozen):
    """One row of the provider's list of rented machines."""

    id: int
    label: str
    machine_id: int
    host_id: int
    gpu_name: str
    num_gpus: int
    gpu_share: float | None
    usd_per_hour: Decimal
    interruptible: bool
    image: str
    actual_status: Annotated[str, Field(description="what the host reports; empty while the provider prepares it")]
    intended_status: str
    contract_status: str
    status_message: str
    started_at: datetime


TROUBLED = frozenset({"stopped", "frozen", "exited", "unknown", "offline"})
"""What `actual_status` says of an instance that does not work and, left alone, may not begin to."""


class Inventory(Frozen):
    """A complete look at the account: every page was read and counted. Anything less is not an Inventory."""

    instances: tuple[Instance, ...]
    seen_at: datetime


class Stage(StrEnum):
    """Where a box is on its way from rented to gone; only `proving` boxes earn their price."""

    RENTED = "rented"
    LOADING = "loading"
    REGISTERED = "registered"
    PARAMS_READY = "params_ready"
    BENCHMARKED = "benchmarked"
    PROVING = "proving"
    DRAINING = "draining"
    DESTROYING = "destroying"
    GONE = "gone"


LIVE_STAGES = frozenset(Stage) - {Stage.GONE}
LEAVING_STAGES = frozenset({Stage.DRAINING, Stage.DESTROYING})


class Box(Frozen):
    """A rented machine as our ledger knows it."""

    key: str
    label: str
    vast_id: int | None
    machine_id: int
    gpu_name: str
    num_gpus: int
    usd_per_hour: Decimal
    """As the newest look shows it; as agreed until there is one."""
    agreed_usd_per_hour: Decimal
    stage: Stage
    stage_since: datetime
    rented_at: datetime
    protected: bool
    drain_by: datetime | None = None
    """It takes no more work, and is destroyed once it is idle, at this time at the latest."""
    drain_because: str = ""
    tasks: int | None = None
    """Proofs that it has at hand by its own word; None where it never said."""
    fetched: float | None = None
    """Share of its parameter files that it has, by its own word."""
    reported_at: datetime | None = None
    busy: bool = False
    """A call about it is on its way to the provider."""


LABEL_PREFIX = "fa"
_LABEL = re.compile(r"fa/(?P<installation>[a-z0-9]{6})/(?P<fleet>[a-z0-9-]{1,20})/(?P<key>[a-z0-9-]+)")


class Label(Frozen):
    """`fa/{installation}/{fleet}/{key}`: written at creation, it is the only proof that a box is ours."""

    installation: str
    fleet: str
    key: str

    def __str__(self) -> str:
        return f"{LABEL_PREFIX}/{self.installation}/{self.fleet}/{self.key}"


def parse_label(text: str | None) -> Label | None:
    """The label if it is one of any fleet-agent installation, else None."""
    found = _LABEL.fullmatch(text or "")
    return Label(**found.groupdict()) if found else None


def ours(instance: Instance, *, installation: str, fleet: str) -> bool:
    label = parse_label(instance.label)
    return label is not None and (label.installation, label.fleet) == (installation, fleet)
