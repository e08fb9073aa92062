"""Tokens by which strangers are let in. A token is shown once, when it is made; what is kept does not give it away."""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlmodel import select

from fleet_agent.domain.box_reports import digest_of
from fleet_agent.store import audit, session
from fleet_agent.store.tables import Purpose, Token


def rotate(tx: Session, fleet: str, purpose: Purpose, *, who: str, now: datetime) -> str:
    """A new token of the fleet for this purpose; the one before it opens nothing any more."""
    session.begin(tx, fleet)
    token = secrets.token_urlsafe(32)
    new = insert(Token).values(fleet=fleet, purpose=purpose.value, digest=digest_of(token), made_at=now)
    tx.execute(
        new.on_conflict_do_update(
            index_elements=["fleet", "purpose"],
            set_={"digest": new.excluded.digest, "made_at": new.excluded.made_at},
        )
    )
    audit.note(tx, fleet, who=who, what="token", text=f"a new one for {purpose.value}", now=now)
    return token


def fleet_of(tx: Session, purpose: Purpose, token: str) -> str | None:
    """The fleet whose token this is. Every one is compared, each in constant time."""
    presented = digest_of(token)
    known = tx.execute(select(Token.fleet, Token.digest).where(Token.purpose == purpose)).all()
    opened = [fleet for fleet, digest in known if hmac.compare_digest(digest, presented)]
    return opened[0] if opened else None
