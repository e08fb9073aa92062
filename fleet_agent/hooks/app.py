"""The door: who is let in, how much is read, and what senders are told.

Senders act on the number alone, Alertmanager first of all: what is answered with 4xx it drops, what is answered with
5xx it sends again. So 4xx is for what would be refused the next time too, and whatever goes wrong on our side is 503. A
post is answered 200 when its events are committed, and never before.

The token stands in the path, for senders that can set no header, or in a header. No log has it: of a request only the
name of its source is ever logged.

Boxes come by a door of their own, each with a token that speaks for it alone: they say how far they are, and hear
whether they are to take no more work.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import re
from collections.abc import Sequence
from typing import Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fleet_agent.domain.box_reports import BoxReport
from fleet_agent.errors import FixSetup, FleetAgentError
from fleet_agent.hooks.formats import events_of
from fleet_agent.hooks.rate import WORDS, Buckets
from fleet_agent.ports import Clock
from fleet_agent.store import reports, tokens
from fleet_agent.store.database import Database
from fleet_agent.store.inbox import Post, post_all
from fleet_agent.store.tables import Purpose

LARGEST_BODY: Final = 1_000_000
"""Bytes; Alertmanager bounds neither a group nor its alerts."""

BATCH: Final = 50
"""Events that are stored in one transaction: a run that wants to close waits for it, and a group may have thousands."""

A_BOX: Final = "a box"

SOURCE: Final = r"[a-z0-9][a-z0-9._-]{0,31}"
"""Shorter than a token: one that was put in its place must not be logged as a name."""

LARGEST_REPORT: Final = 16_384
"""Bytes; what a box has to say is three figures."""

RETRY_AFTER: Final = {"Retry-After": "1"}

log = logging.getLogger(__name__)


def hooks_app(database: Database, clock: Clock, buckets: Buckets) -> Starlette:
    """`POST /hooks/{source}` and `POST /hooks/{source}/{token}`, and `POST /box/{token}` for boxes; for every fleet:
    the token says which."""
    door = _Door(database, clock, buckets)
    return Starlette(
        routes=[
            Route("/hooks/{source}", door.post, methods=["POST"]),
            Route("/hooks/{source}/{token}", door.post, methods=["POST"]),
            Route("/box/{token}", door.hear, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refused, FleetAgentError: _not_stored},
    )


class _Door:
    def __init__(self, database: Database, clock: Clock, buckets: Buckets) -> None:
        self._database = database
        self._clock = clock
        self._buckets = buckets

    async def post(self, request: Request) -> Response:
        fleet = await asyncio.to_thread(self._fleet_of, _presented_token(request))
        if fleet is None:
            raise HTTPException(401, "the token is missing or not ours", {"WWW-Authenticate": 'Basic realm="hooks"'})
        source = _source(request)
        if source is None:
            raise HTTPException(400, f"the name of a source is {SOURCE}")
        if not self._buckets.take(fleet, source):
            raise HTTPException(429, "too many posts of this source", RETRY_AFTER)
        body = await _body(request, LARGEST_BODY)
        try:
            events = events_of(source, body, idempotency_key=request.headers.get("idempotency-key"))
        except FixSetup as error:
            raise HTTPException(400, str(error)) from error
        await asyncio.to_thread(self._store, fleet, events)
        return JSONResponse({"events": len(events)})

    async def hear(self, request: Request) -> Response:
        """What a box says, and whether it is to take no more work. Without a body it only asks."""
        box = await asyncio.to_thread(self._box_of, request.path_params["token"])
        if box is None:
            raise HTTPException(404, "no box has this token")
        if not self._buckets.take(box.fleet, f"{A_BOX} {box.key}", most=WORDS):
            raise HTTPException(429, "too many words of this box", RETRY_AFTER)
        said = _report(await _body(request, LARGEST_REPORT))
        return JSONResponse({"drain": await asyncio.to_thread(self._keep, box, said)})

    def _box_of(self, token: str) -> reports.Speaker | None:
        with self._database.transaction() as tx:
            return reports.box_of(tx, token)

    def _keep(self, box: reports.Speaker, said: BoxReport) -> bool:
        with self._database.shared(box.fleet) as tx:
            return reports.record(tx, box, said, now=self._clock.now())

    def _fleet_of(self, token: str) -> str | None:
        with self._database.transaction() as tx:
            return tokens.fleet_of(tx, Purpose.HOOKS, token)

    def _store(self, fleet: str, events: Sequence[Post]) -> None:
        for start in range(0, len(events), BATCH):
            with self._database.shared(fleet) as tx:
                post_all(tx, fleet, events[start : start + BATCH], now=self._clock.now())


def _presented_token(request: Request) -> str:
    """The token of the path, a bearer token, or the password of Basic, whatever its user. Empty where there is none."""
    scheme, _, credentials = request.headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case _ if "token" in request.path_params:
            return request.path_params["token"]
        case "bearer":
            return credentials.strip()
        case "basic":
            return _password(credentials)
        case _:
            return ""


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _source(request: Request) -> str | None:
    source = request.path_params.get("source", "")
    return source if re.fullmatch(SOURCE, source) else None


def _report(body: bytes) -> BoxReport:
    try:
        return BoxReport.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise HTTPException(400, ": ".join(filter(None, (where, first["msg"])))) from error


async def _body(request: Request, largest: int) -> bytes:
    """The whole body. One that is too long is read to its end all the same: most senders hear no answer before that."""
    body = bytearray()
    length = 0
    async for chunk in request.stream():
        length += len(chunk)
        if length <= largest:
            body += chunk
    if length > largest:
        raise HTTPException(413, f"the body has {length} bytes and may have {largest}")
    return bytes(body)


# --- what senders are told -------------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    log.warning("refused a post of %s: %s", _sender(request), error.detail)
    return PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)


async def _not_stored(request: Request, error: Exception) -> Response:
    """Ours is the fault, so the sender is to try again; what is wrong is nobody's business outside."""
    log.warning("could not store a post of %s: %s", _sender(request), error)
    return PlainTextResponse("not stored: send it again\n", 503, RETRY_AFTER)


def _sender(request: Request) -> str:
    """For a log: never the path."""
    if "source" not in request.path_params:
        return A_BOX
    return _source(request) or "a source without a proper name"
