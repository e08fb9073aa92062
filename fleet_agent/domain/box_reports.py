"""What a box says of itself, and the token by which it is known.

A box stands on a stranger's machine, and whatever it holds the stranger can read. So it has a token of its own that
opens one thing alone: to say how far this one box is, and to hear whether it is to take no more work. The token travels
with the order that makes the box and is kept nowhere; the ledger has its digest from before that order is sent.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from typing import Annotated, Final, Literal, get_args

from pydantic import ConfigDict, Field, SecretStr

from fleet_agent.domain.fleet import LEAVING_STAGES, Stage
from fleet_agent.domain.values import Frozen

# --- the token --------------------------------------------------------------------------------------------------------

VARIABLE: Final = "FLEET_BOX_HOOK"
"""The variable of a box that holds the address of its hook."""

PREFIX: Final = "box_"
"""By it a token is known for one wherever it stands, though nobody here knows it any more."""

_TOKEN = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


class BoxHook(Frozen):
    """The address at which one box speaks with us, and what the ledger keeps of the token in it."""

    address: SecretStr
    digest: str


def hook_of(public_url: str, randomness: str) -> BoxHook:
    """`randomness`: 256 bits as 43 letters that are safe in an address, which nobody uses again."""
    token = f"{PREFIX}{randomness}"
    return BoxHook(address=SecretStr(f"{public_url.rstrip('/')}/box/{token}"), digest=digest_of(token))


def no_hook() -> None:
    """For whoever rents nothing, or where no address was set at which boxes could reach us."""


def digest_of(token: str) -> str:
    """What is kept of a token. A plain digest is enough: there is nothing to guess that a slow hash would protect."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def without_tokens(text: str) -> str:
    """`text` with every token of a box replaced by stars: boxes print their environment, and servers repeat it."""
    return _TOKEN.sub("***", text)


# --- its words --------------------------------------------------------------------------------------------------------

OwnWord = Literal["registered", "params_ready", "benchmarked", "proving"]

WAY: Final = tuple(Stage(word) for word in get_args(OwnWord))
"""How far a box is once it runs, which only the box itself can say."""


class BoxReport(Frozen):
    """What a box says at one time; what it leaves out is as it was. A newer box may say more than we understand."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    tasks: Annotated[int | None, Field(ge=0, le=10_000, description="proofs that it has at hand")] = None
    fetched: Annotated[float | None, Field(ge=0, le=1, description="share of its parameter files, by bytes")] = None
    stage: OwnWord | None = None
    proofs_per_hour: Annotated[float | None, Field(ge=0, le=1_000_000, allow_inf_nan=False)] = None
    draining: Annotated[bool | None, Field(description="no further proof can come: none at hand is then the end")] = (
        None
    )
    gave_up: Annotated[str | None, Field(max_length=200, description="why it ends; a stranger's words")] = None


def stage_after(stage: Stage, word: OwnWord | None, *, spoke_before: bool) -> Stage:
    """Where a box in `stage` is by its own word: only ever further on its way, and nowhere once it is to leave.

    What the provider's list made of a box that never spoke was a guess; its first word puts that right.
    """
    if stage in LEAVING_STAGES or stage is Stage.GONE:
        return stage
    said = Stage(word or Stage.REGISTERED)
    if not spoke_before or stage not in WAY:
        return said
    return max(stage, said, key=WAY.index)


def could_report(*, has_hook: bool, rented_at: datetime, reports_since: datetime | None) -> bool:
    """Whether the silence of a box says anything: it has an address, and runs a program of which it is known that it
    reports at all. `reports_since`: when the first box was rented that ever did."""
    return has_hook and reports_since is not None and rented_at >= reports_since


def is_to_drain(stage: Stage) -> bool:
    """Whether a box in this stage is to take no more work; one that is thought gone will be destroyed where it is
    found."""
    return stage in LEAVING_STAGES or stage is Stage.GONE
