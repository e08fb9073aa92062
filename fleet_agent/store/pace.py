"""The turns at a provider's endpoints, remembered for every process and every run.

A provider counts the requests of an account, whoever sends them; a run that began with a pace of its own would follow
too closely on the one before it, and nobody would know how much of the day's budget is left. So each endpoint of an
account is a row, and taking a turn is one short transaction that locks it. The waiting comes after the commit.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from fleet_agent.domain.pace import Limit, TurnsGiven
from fleet_agent.store.database import Database, real_now
from fleet_agent.store.installation import installation, timeline_of
from fleet_agent.store.tables import AccountPace
from fleet_agent.store.threads import in_thread


class PostgresTurns:
    """The turns of the account that `api_key` opens, which is known here by its digest. Raises DatabaseUnreachable."""

    def __init__(self, database: Database, api_key: str) -> None:
        self._database = database
        self._account = hashlib.sha256(api_key.encode()).hexdigest()

    async def take(self, endpoint: str, limit: Limit, patience: timedelta) -> timedelta:
        """Take the next turn of `endpoint` and return how long it is away; take none if that exceeds the patience."""

        def take(tx: Session) -> timedelta:
            row = self._locked(tx, endpoint)
            wait, given = _given(row).take(limit, patience, _now(tx))
            _keep(row, given)
            return wait

        return await in_thread(self._database.transaction(), take)

    async def hold(self, endpoint: str, pause: timedelta) -> None:
        """Give no turn for `pause`."""

        def hold(tx: Session) -> None:
            row = self._locked(tx, endpoint)
            _keep(row, _given(row).held_for(pause, _now(tx)))

        await in_thread(self._database.transaction(), hold)

    def _locked(self, tx: Session, endpoint: str) -> AccountPace:
        none_yet: dict[str, Any] = {
            "account": self._account,
            "endpoint": endpoint,
            "free_at": TurnsGiven().free_at,
            "counted": [],
            "written_at": TurnsGiven().written_at,
        }
        tx.execute(insert(AccountPace).values(none_yet).on_conflict_do_nothing())
        return tx.get_one(AccountPace, (self._account, endpoint), with_for_update=True)


def _now(tx: Session) -> datetime:
    """Business time by the database's clock at this statement, hence after the wait for the lock.

    It is the provider's time: a simulated provider lives at the speed of the installation, a real one at speed 1.
    """
    return timeline_of(installation(tx)).business(real_now(tx))


def _given(row: AccountPace) -> TurnsGiven:
    return TurnsGiven(free_at=row.free_at, counted=tuple(row.counted), written_at=row.written_at)


def _keep(row: AccountPace, given: TurnsGiven) -> None:
    row.free_at, row.counted, row.written_at = given.free_at, list(given.counted), given.written_at
