"""The name of this database, which is part of every label, and the line that business time follows.

Both are set once. A second installation on the same provider account has another name, so that neither ever touches
the other's boxes; a name that changed would make strangers of our own.
"""

from __future__ import annotations

import secrets
import string
from datetime import datetime

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from fleet_agent.domain.timeline import Timeline
from fleet_agent.store.database import Database, DatabaseClock, real_now
from fleet_agent.store.tables import Installation

NAME_LENGTH = 6


def found_installation(database: Database, *, origin: datetime | None = None, speed: float = 1.0) -> Installation:
    """The installation, made on the first call; on later ones nothing is changed.

    `origin` is the business time to begin with (default: the real time), `speed` business seconds per real second.
    """
    with database.transaction() as tx:
        now = real_now(tx)
        name = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(NAME_LENGTH))
        row = {"id": 1, "name": name, "clock_origin": origin or now, "clock_started_at": now, "clock_speed": speed}
        tx.execute(insert(Installation).values(row).on_conflict_do_nothing())
        return installation(tx)


def is_founded(database: Database) -> bool:
    with database.transaction() as tx:
        return tx.get(Installation, 1) is not None


def installation(tx: Session) -> Installation:
    return tx.get_one(Installation, 1)


def timeline_of(row: Installation) -> Timeline:
    return Timeline(origin=row.clock_origin, started_at=row.clock_started_at, speed=row.clock_speed)


def timeline(database: Database) -> Timeline:
    with database.transaction() as tx:
        return timeline_of(installation(tx))


def read_clock(database: Database) -> DatabaseClock:
    with database.transaction() as tx:
        return DatabaseClock(timeline_of(installation(tx)), real_now(tx))
