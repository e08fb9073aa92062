"""The newest complete look at the boxes of an account, kept for whoever begins a run in the next moment.

The provider counts the requests of an account, and all fleets of a database look at the same one: heartbeats that come
at the same minute would each read the same pages, one after the other. What was seen is kept whole or not at all, and
never in the place of what is newer.
"""

from __future__ import annotations

import hashlib

from pydantic import ValidationError
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import col

from fleet_agent.domain.fleet import Inventory
from fleet_agent.store.database import Database
from fleet_agent.store.tables import AccountLook
from fleet_agent.store.threads import in_thread


class PostgresLooks:
    """Those at the account that `api_key` opens, which is known here by its digest. Raises DatabaseUnreachable."""

    def __init__(self, database: Database, api_key: str) -> None:
        self._database = database
        self._account = hashlib.sha256(api_key.encode()).hexdigest()

    async def newest(self) -> Inventory | None:
        """None where nobody has looked, or another version of the program kept it in another way."""

        def newest(tx: Session) -> Inventory | None:
            row = tx.get(AccountLook, self._account)
            try:
                return None if row is None else Inventory.model_validate(row.inventory)
            except ValidationError:
                return None

        return await in_thread(self._database.transaction(), newest)

    async def keep(self, look: Inventory) -> None:
        def keep(tx: Session) -> None:
            seen = {"seen_at": look.seen_at, "inventory": look.model_dump(mode="json")}
            new = insert(AccountLook).values(account=self._account, **seen)
            tx.execute(
                new.on_conflict_do_update(
                    index_elements=["account"], set_=seen, where=col(AccountLook.seen_at) < look.seen_at
                )
            )

        await in_thread(self._database.transaction(), keep)
