"""How much proving work there is. A figure that could not be read is None, which is not zero."""

from __future__ import annotations

from datetime import datetime, timedelta

from fleet_agent.domain.values import Frozen


class Demand(Frozen):
    """One reading of the proving stack."""

    pending: int
    running: int
    oldest_pending: timedelta | None
    done_per_hour: float | None
    failed_per_hour: float | None
    seen_at: datetime
