"""Every error of ours, in one tree, named by what the caller should do.

    FleetAgentError
    ├── FixSetup              a person must change something; repeating is useless
    │   ├── KeyRefused        … the API key of the provider or the model
    │   ├── PolicyInvalid     … a value of the policy
    │   ├── ShortenObjective  … the objective: what every prompt must carry leaves no room for a run
    │   └── DatabaseUnusable  … the database (too new, too old, not PostgreSQL)
    ├── TryLater              nothing is broken here; the next run may find it working
    │   ├── SlowDown          … and not before `retry_after`
    │   ├── InventoryUnknown  … no answer about boxes that may be acted on; unknown is never empty
    │   ├── ModelUnreachable
    │   ├── BudgetSpent       … what models may cost is used up; older hours will count no more
    │   └── DatabaseUnreachable
    ├── ModelUnusable         the model answered with what cannot be used; it is still paid for
    ├── RequestRefused        the model server refuses this very request: what it carries may be the cause
    ├── ContextTooLong        the prompt does not fit the model: compose a shorter one, once
    ├── LookFirst             the effect may have happened: look by label, never repeat
    ├── ChooseAnother         the offer is gone or was refused; choose anew from a new listing
    ├── StopRenting           the account is out of credit: tell the human, ban nobody
    ├── AlreadyGone           the box is not there; for a destroy this is success
    └── StandDown             this run no longer holds the fence: no further effect
        └── RunSuperseded

A person sees `str(error)`: one line with the cause and, behind an arrow, the remedy. Causes are chained.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import NamedTuple


class Spent(NamedTuple):
    """What a model call that was sent had cost before it failed, as far as anybody knows: it may be nothing."""

    tokens_in: int
    tokens_out: int
    cost_usd: Decimal


class FleetAgentError(Exception):
    """One line for a person: the cause, then the remedy. `spent` where a request to a model had left."""

    def __init__(self, cause: str, remedy: str = "", *, spent: Spent | None = None) -> None:
        self.spent = spent
        self.cause = " ".join(cause.split())
        self.remedy = remedy
        super().__init__(f"{self.cause} → {remedy}" if remedy else self.cause)


class FixSetup(FleetAgentError):
    """A person must change a setting or the machine; repeating the call is useless."""


class KeyRefused(FixSetup):
    """The provider or the model server does not accept our API key."""


class PolicyInvalid(FixSetup):
    """A policy value was refused; nothing was stored."""


class ShortenObjective(FixSetup):
    """What is pinned into every prompt does not fit, or leaves no room for what a run is about."""


class DatabaseUnusable(FixSetup):
    """The database answers, but this version of the program cannot work with it."""


class TryLater(FleetAgentError):
    """The other side did not answer usefully; nothing happened; a later run may succeed."""


class SlowDown(TryLater):
    """The other side asked for fewer requests. `retry_after` is real time, None where it was not said."""

    def __init__(self, cause: str, remedy: str = "", *, retry_after: timedelta | None = None) -> None:
        super().__init__(cause, remedy)
        self.retry_after = retry_after


class InventoryUnknown(TryLater):
    """No complete, well-formed list of boxes: neither rent nor destroy may follow from it."""


class ModelUnreachable(TryLater):
    """No reply of the model within the deadline."""


class BudgetSpent(TryLater):
    """The next request could cost more than the policy still allows; it was not sent."""


class DatabaseUnreachable(TryLater):
    """The database does not answer."""


class ModelUnusable(FleetAgentError):
    """The model answered with what cannot be used; it was paid for all the same."""


class RequestRefused(FleetAgentError):
    """The model server refuses this very request; another one may pass."""


class ContextTooLong(FleetAgentError):
    """The prompt does not fit, and nothing was done with it: compose a shorter one.

    `fits` is how many tokens by our own count it may have, None where nobody knows. `said` are the words of the server
    that refused it; empty where it was held back and never sent.
    """

    def __init__(
        self, cause: str, remedy: str = "", *, spent: Spent | None = None, fits: int | None = None, said: str = ""
    ) -> None:
        super().__init__(cause, remedy, spent=spent)
        self.fits = fits
        self.said = said


class LookFirst(FleetAgentError):
    """The call may have taken effect. Look by label; never repeat it."""


class ChooseAnother(FleetAgentError):
    """The offer is gone, changed its price or was refused."""


class StopRenting(FleetAgentError):
    """The account is out of credit."""


class AlreadyGone(FleetAgentError):
    """There is no such box; for a destroy that is success."""


class StandDown(FleetAgentError):
    """This run may cause no further effect."""


class RunSuperseded(StandDown):
    """Another run holds the fence."""
