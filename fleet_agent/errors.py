"""Every error of ours, in one tree, named by what the caller should do.

    FleetAgentError
    ├── FixSetup              a person must change something; repeating is useless
    │   ├── KeyRefused        … the API key of the provider or the model
    │   ├── PolicyInvalid     … a value of the policy
    │   └── DatabaseUnusable  … the database (too new, too old, not PostgreSQL)
    ├── TryLater              nothing is broken here; the next run may find it working
    │   ├── SlowDown          … and not before `retry_after`
    │   ├── InventoryUnknown  … no answer about boxes that may be acted on; unknown is never empty
    │   ├── ModelUnreachable
    │   └── DatabaseUnreachable
    ├── ModelUnusable         the model answered with what cannot be used; its tokens are still paid for
    ├── ContextTooLong        compact harder, once
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


class FleetAgentError(Exception):
    """One line for a person: the cause, then the remedy."""

    remedy: str

    def __init__(self, cause: str, remedy: str = "") -> None:
        self.cause = " ".join(cause.split())
        self.remedy = remedy
        super().__init__(f"{self.cause} → {remedy}" if remedy else self.cause)


class FixSetup(FleetAgentError):
    """A person must change a setting or the machine; repeating the call is useless."""


class KeyRefused(FixSetup):
    """The provider or the model server does not accept our API key."""


class PolicyInvalid(FixSetup):
    """A policy value was refused; nothing was stored."""


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


class DatabaseUnreachable(TryLater):
    """The database does not answer."""


class ModelUnusable(FleetAgentError):
    """The model answered with what cannot be used. The tokens were spent all the same."""

    def __init__(self, cause: str, remedy: str = "", *, tokens_in: int = 0, tokens_out: int = 0) -> None:
        super().__init__(cause, remedy)
        self.tokens_in = tokens_in
        self.tokens_out = tokens_out


class ContextTooLong(FleetAgentError):
    """The model server refused the request for its length: compact harder, once."""


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
