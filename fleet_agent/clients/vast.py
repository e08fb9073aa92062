"""The market of vast.ai over HTTP: what its answers mean, told as values and as errors that say what to do.

Three rules shape this file, each paid for by somebody before us:

- *Unknown is not empty.* A list of boxes counts only if every page was read, every row was understood, no box came
  twice and their number is the announced one. Anything else is `InventoryUnknown`, never a shorter list.
- *An effect is sent once.* A create that was answered with 504, or not at all, may have made a box that is billed; so
  may one that a proxy refused, with whatever status, after it had passed it on. Only a call that certainly never left,
  or was refused in words of vast.ai's own, is an ordinary failure; the rest is `LookFirst`.
- *A status code says little.* A wrong key comes as 404, a vanished offer as 404 with `invalid_args`, a refusal as 200
  with `success: false`. So the body is read first.

The key travels in a header, never in an address, and is blanked out of whatever the server says.
Source for addresses, fields and limits: vast.ai's published API reference and its command line client 1.9.1.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http import HTTPStatus
from typing import Any, Protocol, TypeVar

import httpx
from pydantic import BaseModel, ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    retry_if_result,
    stop_after_attempt,
    wait_fixed,
)

from fleet_agent.clients.address import address_fault, usable_address
from fleet_agent.clients.pace import Pace, retry_after
from fleet_agent.clients.secrecy import blanked, quoted, sendable_key
from fleet_agent.clients.tls import trusted
from fleet_agent.clients.vast_wire import (
    INSTANCE,
    RENT,
    ChargePage,
    ChargeRow,
    InstancePage,
    InstanceRow,
    LogAddress,
    OfferList,
    OfferRow,
    Said,
    User,
    said_by,
)
from fleet_agent.domain.box_reports import VARIABLE, without_tokens
from fleet_agent.domain.fleet import Instance, Inventory, Offer
from fleet_agent.domain.observation import Account
from fleet_agent.domain.pace import Limit
from fleet_agent.domain.spent import Charge
from fleet_agent.errors import (
    AlreadyGone,
    ChooseAnother,
    FixSetup,
    FleetAgentError,
    InventoryUnknown,
    KeyRefused,
    LookFirst,
    SlowDown,
    StopRenting,
    TryLater,
)
from fleet_agent.ports import Clock, OfferQuery, Offers, RentOrder

LIST = "the list of boxes"
SEARCH = "the search for offers"
CREATE = "the renting of a box"
DESTROY = "the destruction of a box"
LOGS = "the logs of a box"
ACCOUNT = "the account"
CHARGES = "the charges"

LIMITS: Mapping[str, Limit] = {
    # The documented gaps × 1.2. The provider also has a daily search quota of undisclosed size; 1,000 is three searches
    # for each heartbeat of a day.
    LIST: Limit(timedelta(seconds=1.2)),
    SEARCH: Limit(timedelta(seconds=7.2), per_day=1000),
    CREATE: Limit(timedelta(seconds=5.4)),
    DESTROY: Limit(timedelta(seconds=3.6)),
    LOGS: Limit(timedelta(seconds=1.2)),
    ACCOUNT: Limit(timedelta(seconds=1.2)),
    CHARGES: Limit(timedelta(seconds=1.2)),
}

PENALTY = timedelta(seconds=12)
"""How long an endpoint is left alone after a 429 that named no time; the provider's own penalty for creates."""
QUOTA_PAUSE = timedelta(hours=1)
"""… and after the daily search quota was used up, which may be at any hour of our day."""

EXCHANGE_DEADLINE = timedelta(seconds=30)
"""Longest time from the sending of one request to the last byte of its answer, however slowly it trickles in."""
READ_DEADLINE = timedelta(seconds=60)
"""Longest time for everything one question needs: turns, pages, the second attempt."""

LOOK_LASTS = timedelta(seconds=30)
"""Business time for which a complete look at the boxes is good enough to begin a run with, whoever took it."""

ROWS_PER_PAGE = 25
CHARGES_PER_PAGE = 100
LOG_POLLS = 20
LOG_POLL_GAP = timedelta(seconds=0.5)
LONGEST_LOG_BYTES = 256 * 1024

NEVER_LEFT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""Failures before the first byte of a request was written. After any other the request may have been carried out."""

CHECK_KEY = "check the API key of vast.ai (FLEET_VAST_API_KEY)"
NEXT_RUN = "the next run tries again"

Document = TypeVar("Document", bound=BaseModel)


def open_client(base_url: str, api_key: str, *, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """A client for `VastMarket`; close it when done. Raises KeyRefused for what cannot be a key, FixSetup where no
    server can be at `base_url`.

    No redirect is followed, so the key stays with `base_url`.
    """
    return httpx.AsyncClient(
        base_url=usable_address(base_url, "FLEET_VAST_URL"),
        headers={"Authorization": f"Bearer {sendable_key(api_key, CHECK_KEY)}"},
        timeout=httpx.Timeout(15, connect=5),
        verify=trusted(),
        transport=transport,
    )


class Looks(Protocol):
    """Where the newest complete look at an account is kept, for every process and every fleet."""

    async def newest(self) -> Inventory | None: ...

    async def keep(self, look: Inventory) -> None: ...


class VastMarket:
    """`ports.Market` for one account.

    `box_env` holds the secrets that a policy's launch environment names as `$NAME`. `client` is one from `open_client`.
    Complete looks are kept in `looks`. Who `begins_with_newest` may be given somebody else's as his first; from then on
    he sees for himself, for it may be what he has changed that he looks for.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        *,
        clock: Clock,
        pace: Pace,
        box_env: Mapping[str, str],
        looks: Looks | None = None,
        begins_with_newest: bool = False,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        exchange_deadline: timedelta = EXCHANGE_DEADLINE,
        read_deadline: timedelta = READ_DEADLINE,
    ) -> None:
        self._client = client
        self._clock = clock
        self._pace = pace
        self._box_env = box_env
        self._looks = looks
        self._begins_with_newest = begins_with_newest
        self._sleep = sleep
        self._exchange_deadline = exchange_deadline
        self._read_deadline = read_deadline
        self._secrets = (client.headers.get("Authorization", "").removeprefix("Bearer "), *box_env.values())

    # --- what the world looks like ------------------------------------------------------------------------------------

    async def inventory(self) -> Inventory:
        begins, self._begins_with_newest = self._begins_with_newest, False
        kept = await self._newest() if begins else None
        if kept is not None:
            return kept
        look = await self._look()
        if self._looks is not None:
            with suppress(FleetAgentError):  # the look counts more than that others hear of it
                await self._looks.keep(look)
        return look

    async def offers(self, query: OfferQuery) -> Offers:
        async with _at_most(self._read_deadline, SEARCH):
            listed = await self._read(SEARCH, OfferList, "POST", "/api/v0/bundles/", json=_search(query))
        understood = [row for document in listed.offers if (row := OfferRow.understood(document))]
        if listed.offers and not understood:
            raise TryLater(f"none of {len(listed.offers)} offers of vast.ai could be read", "update fleet-agent")
        return _cheapest_per_machine([_offer(row) for row in understood], query)

    async def account(self) -> Account:
        async with _at_most(self._read_deadline, ACCOUNT):
            user = await self._read(ACCOUNT, User, "GET", "/api/v0/users/current")
        return Account(credit_usd=user.credit)

    async def charges(self, since: datetime, until: datetime) -> tuple[Charge, ...]:
        async with _at_most(self._read_deadline, CHARGES):
            rows = await self._every_charge(since, until)
        return tuple(_charge(row, row.instance_id) for row in rows if row.instance_id is not None)

    async def logs(self, vast_id: int, tail: int) -> str:
        async with _at_most(self._read_deadline, LOGS):
            path = f"/api/v0/instances/request_logs/{vast_id}/"
            response = await self._ask(LOGS, "PUT", path, json={"tail": str(tail)})
            if _names_missing_box(response):
                raise AlreadyGone(f"vast.ai knows no box {vast_id}")
            text = await self._fetch_log(_document(response, LogAddress, LOGS, self._secrets).result_url)
        # A program that prints its environment must not carry the secrets of its box into a prompt.
        return blanked("\n".join(text.splitlines()[-tail:]), self._secrets)

    # --- effects ------------------------------------------------------------------------------------------------------

    async def rent(self, order: RentOrder) -> int:
        """As `ports.Market.rent`. Raises FixSetup, before anything is sent, for a `$NAME` that nobody set."""
        body = _create_body(order, env=_looked_up(order.env, self._box_env) | _hook(order))
        path = f"/api/v0/asks/{order.offer_id}/"
        response = await self._send_effect(CREATE, "PUT", path, body, send_by=order.send_by)
        outcome = _outcome_of_create(response, self._secrets)
        if isinstance(outcome, FleetAgentError):
            raise outcome
        return outcome

    async def destroy(self, vast_id: int) -> None:
        """As `ports.Market.destroy`. Raises AlreadyGone where vast.ai knows no such box."""
        response = await self._send_effect(DESTROY, "DELETE", f"/api/v0/instances/{vast_id}/", {})
        failure = _failure_of_destroy(response, vast_id, self._secrets)
        if failure is not None:
            raise failure

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _newest(self) -> Inventory | None:
        """What somebody saw a moment ago. What lies in a time to come is from before the clock was set back."""
        kept = None if self._looks is None else await self._looks.newest()
        if kept is None or not timedelta(0) <= self._clock.now() - kept.seen_at < LOOK_LASTS:
            return None
        return kept

    async def _look(self) -> Inventory:
        seen_at = self._clock.now()
        try:
            async with _at_most(self._read_deadline, LIST):
                rows = await self._every_row()
        except (SlowDown, InventoryUnknown):
            raise
        except TryLater as error:
            raise InventoryUnknown(error.cause, error.remedy) from error
        return Inventory(instances=tuple(_instance(row) for row in rows), seen_at=seen_at)

    async def _every_row(self) -> list[InstanceRow]:
        """The rows of all pages, or InventoryUnknown."""
        rows: dict[int, InstanceRow] = {}
        announced: int | None = None
        query = {"select_filters": "{}", "order_by": '[{"col": "id", "dir": "asc"}]', "limit": str(ROWS_PER_PAGE)}
        while True:
            page = await self._read(LIST, InstancePage, "GET", "/api/v1/instances/", params=query)
            announced = page.total_instances if announced is None else announced
            if page.total_instances != announced:
                raise InventoryUnknown(f"vast.ai announced {announced} boxes, then {page.total_instances}", NEXT_RUN)
            for row in page.instances:
                if row.id in rows:
                    raise InventoryUnknown(f"vast.ai listed box {row.id} twice", NEXT_RUN)
                rows[row.id] = row
            if not page.next_token or len(rows) > announced:
                break
            if not page.instances:
                raise InventoryUnknown("vast.ai sent an empty page and promised another", NEXT_RUN)
            query |= {"after_token": page.next_token}
        if len(rows) != announced:
            raise InventoryUnknown(f"vast.ai announced {announced} boxes and listed {len(rows)}", NEXT_RUN)
        return list(rows.values())

    async def _every_charge(self, since: datetime, until: datetime) -> list[ChargeRow]:
        """The rows of all pages, or TryLater. A contract has one row; should it have several, they are its days."""
        rows: dict[tuple[str, float | None, float | None], ChargeRow] = {}
        query = _charges_asked_for(since, until)
        while True:
            page = await self._read(CHARGES, ChargePage, "GET", "/api/v0/charges/", params=query)
            for row in page.results:
                if (row.source, row.start, row.end) in rows:
                    raise TryLater(f"vast.ai listed a charge for {row.source} twice", NEXT_RUN)
                rows[row.source, row.start, row.end] = row
            contracts = len({row.source for row in rows.values()})
            if not page.next_token or contracts > page.total:
                break
            if not page.results:
                raise TryLater("vast.ai sent an empty page of charges and promised another", NEXT_RUN)
            query |= {"after_token": page.next_token}
        if page.total not in (contracts, len(rows)):
            raise TryLater(f"vast.ai announced charges for {page.total} boxes and listed {contracts}", NEXT_RUN)
        return list(rows.values())

    async def _read(self, endpoint: str, wire: type[Document], method: str, path: str, **request: Any) -> Document:
        """One document. Raises TryLater, SlowDown, KeyRefused."""
        return _document(await self._ask(endpoint, method, path, **request), wire, endpoint, self._secrets)

    async def _ask(self, endpoint: str, method: str, path: str, **request: Any) -> httpx.Response:
        """Send, and send again if the first answer was of no use. Never for effects."""
        twice = AsyncRetrying(
            stop=stop_after_attempt(2),
            wait=wait_fixed(1),
            sleep=self._sleep,
            retry=retry_if_exception_type((httpx.RequestError, TimeoutError)) | retry_if_result(_is_no_answer),
            retry_error_callback=_last_outcome,
        )
        try:
            return await twice.wraps(self._exchange)(endpoint, method, path, **request)
        except (httpx.RequestError, TimeoutError) as error:
            raise TryLater(f"vast.ai did not answer for {endpoint} ({type(error).__name__})", NEXT_RUN) from error

    async def _fetch_log(self, address: str) -> str:
        """Poll the place where a log is going to appear. It is not vast.ai's own, so the key is not sent there."""
        if fault := address_fault(address):
            raise TryLater(f"the log could not be fetched: of its address, {fault}", NEXT_RUN)
        for _ in range(LOG_POLLS):
            request = self._client.build_request("GET", address)
            request.headers.pop("Authorization", None)
            try:
                response = await self._client.send(request, stream=True)
                try:
                    if response.status_code == HTTPStatus.OK:
                        return await _end_of_text(response)
                finally:
                    await response.aclose()
            except httpx.RequestError as error:
                # The error's own text would repeat the signed address.
                raise TryLater(f"the log could not be fetched ({type(error).__name__})", NEXT_RUN) from None
            await self._sleep(LOG_POLL_GAP.total_seconds())
        raise TryLater("vast.ai did not provide the log in time", "try again in a minute")

    # --- the wire -----------------------------------------------------------------------------------------------------

    async def _send_effect(
        self, endpoint: str, method: str, path: str, body: Mapping[str, Any], *, send_by: timedelta | None = None
    ) -> httpx.Response:
        """Send once. Raises TryLater if it certainly did not leave, LookFirst if nobody knows what became of it."""
        try:
            return await self._exchange(endpoint, method, path, send_by=send_by, json=body)
        except NEVER_LEFT as error:
            raise TryLater(f"vast.ai could not be reached for {endpoint} ({type(error).__name__})", NEXT_RUN) from error
        except (httpx.RequestError, TimeoutError) as error:
            raise LookFirst(f"the answer of vast.ai for {endpoint} was lost ({type(error).__name__})") from error

    async def _exchange(
        self, endpoint: str, method: str, path: str, *, send_by: timedelta | None = None, **request: Any
    ) -> httpx.Response:
        """One request in its turn; none, but TryLater, if the turn came after `send_by` (of `Clock.elapsed()`)."""
        await self._pace.turn(endpoint)
        if send_by is not None and self._clock.elapsed() >= send_by:
            raise TryLater(f"the turn for {endpoint} came too late, so nothing was sent", NEXT_RUN)
        async with asyncio.timeout(self._exchange_deadline.total_seconds()):
            response = await self._client.request(method, path, **request)
        if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            with suppress(FleetAgentError):  # the answer counts more than the note that it leaves
                await self._pace.hold(endpoint, _pause_asked_for(response))
        return response


@asynccontextmanager
async def _at_most(deadline: timedelta, what: str) -> AsyncGenerator[None]:
    try:
        async with asyncio.timeout(deadline.total_seconds()):
            yield
    except TimeoutError as error:
        raise TryLater(f"vast.ai took over {deadline.total_seconds():.0f} s for {what}", NEXT_RUN) from error


# --- what we ask for --------------------------------------------------------------------------------------------------


def _search(query: OfferQuery) -> dict[str, Any]:
    """The floors as the provider's filters: they save traffic, and `_cheapest_per_machine` applies the floors again."""
    floors = query.policy.offers
    wanted: dict[str, Any] = {
        "rentable": {"eq": True},
        "rented": {"eq": False},
        "external": {"eq": False},
        "gpu_ram": {"gte": floors.min_gpu_ram_gb * 1000},
        "reliability": {"gte": floors.min_reliability},
        "inet_down": {"gte": floors.min_inet_down_mbps},
        "disk_space": {"gte": query.policy.launch.disk_gb},
        "allocated_storage": query.policy.launch.disk_gb,
        "type": "on-demand",
        "order": [["dph_total", "asc"]],
        # Several offers may stand on one machine, and some fall to our own filter: without a reserve few would be left.
        "limit": (query.limit + len(query.banned)) * 4,
    }
    if names := [query.gpu_name] if query.gpu_name else list(floors.gpu_names):
        wanted["gpu_name"] = {"in": names}
    if floors.verified_only:
        wanted["verified"] = {"eq": True}
    if floors.whole_machine:
        wanted["gpu_frac"] = {"gte": 1}
    if query.num_gpus is not None:
        wanted["num_gpus"] = {"eq": query.num_gpus}
    if query.offer_id is not None:
        wanted["id"] = {"eq": query.offer_id}
    return wanted


def _charges_asked_for(since: datetime, until: datetime) -> dict[str, str]:
    day = since.replace(hour=0, minute=0, second=0, microsecond=0)  # of a later hour the provider leaves its day out
    days = {"gte": math.floor(day.timestamp()), "lte": math.ceil(until.timestamp())}
    return {
        "select_filters": json.dumps({"day": days, "type": {"in": [INSTANCE]}}),
        "latest_first": "false",  # the newest come last, so that what is charged meanwhile moves no page
        "format": "table",
        "limit": str(CHARGES_PER_PAGE),
    }


def _create_body(order: RentOrder, env: Mapping[str, str]) -> dict[str, Any]:
    return {
        "client_id": "me",
        "image": order.image,
        "disk": order.disk_gb,
        "label": order.label,
        "env": dict(env),
        "onstart": order.onstart,
        "runtype": order.runtype,
        # Without this a create whose GPUs are taken makes a stopped box, and its disk is billed.
        "cancel_unavail": True,
        # No `price`: with one the box is interruptible, whatever kind of offer was searched for.
    }


def _looked_up(env: Mapping[str, str], box_env: Mapping[str, str]) -> dict[str, str]:
    """`env` with every value `$NAME` replaced by the secret of that name."""
    unset = sorted(value for value in env.values() if value.startswith("$") and value[1:] not in box_env)
    if unset:
        raise FixSetup(f"the policy's launch.env names {', '.join(unset)}, which nobody set", "add it to FLEET_BOX_ENV")
    return {name: box_env[value[1:]] if value.startswith("$") else value for name, value in env.items()}


def _hook(order: RentOrder) -> dict[str, str]:
    return {} if order.hook is None else {VARIABLE: order.hook.get_secret_value()}


# --- what an answer means ---------------------------------------------------------------------------------------------


def _outcome_of_create(response: httpx.Response, secrets: tuple[str, ...]) -> int | FleetAgentError:
    """The id of the new box, or what else the answer means."""
    said = said_by(response)
    words = quoted(said.words, secrets) if said else "no readable reason"
    made = said.new_contract if said else None
    if response.is_success and made is not None and said and said.success is not False:
        return made
    if made is not None:
        return LookFirst(f"vast.ai refused to rent and named a box all the same ({words})")
    if not _may_have_happened(response, said) and (refusal := _refusal_to_rent(response, said, words)):
        return refusal
    return LookFirst(f"vast.ai answered {response.status_code} to the renting of a box ({words})")


def _refusal_to_rent(response: httpx.Response, said: Said | None, words: str) -> FleetAgentError | None:
    """What a refusal means that is worded as only vast.ai words it, None for any other.

    The status is not enough: a proxy sends any of them, and may do so after vast.ai has made the box.
    """
    if _is_about_pace(response, said) or (said and said.is_about_key):
        return _refusal_of_caller(response, said, CREATE, words)
    if said and said.is_about_credit:
        return StopRenting(f"the vast.ai account lacks credit ({words})", "add credit at vast.ai, Billing")
    if said and said.is_about_offer:
        remedy = "choose another offer from a new search"
        return ChooseAnother(f"vast.ai refused to rent: {response.status_code}, {words}", remedy)
    return None


def _is_about_pace(response: httpx.Response, said: Said | None) -> bool:
    """Whether it is vast.ai itself that asks for fewer requests: in plain text, as a `detail` or with a code."""
    if response.status_code != HTTPStatus.TOO_MANY_REQUESTS:
        return False
    if said and (said.detail or said.error == "rate_limit_exceeded"):
        return True
    return re.search("requests too frequent|threshold=", response.text) is not None


def _failure_of_destroy(response: httpx.Response, vast_id: int, secrets: tuple[str, ...]) -> FleetAgentError | None:
    """None if the destruction was accepted, else what the answer means."""
    said = said_by(response)
    words = quoted(said.words, secrets) if said else "no readable reason"
    if response.is_success and said and said.success is not False:
        return None
    if _may_have_happened(response, said):
        return LookFirst(f"vast.ai answered {response.status_code} to the destruction of box {vast_id} ({words})")
    if refusal := _refusal_of_caller(response, said, DESTROY, words):
        return refusal
    if _names_missing_box(response):
        return AlreadyGone(f"vast.ai knows no box {vast_id}")
    return TryLater(f"vast.ai refused to destroy box {vast_id}: {response.status_code}, {words}", NEXT_RUN)


def _may_have_happened(response: httpx.Response, said: Said | None) -> bool:
    """Whether an effect may have been carried out although the answer does not say so.

    Only a refusal rules it out: a client error (408 is none: the server gave up waiting, perhaps after it had read
    enough) that claims no success, or a readable `success: false`.
    """
    if response.is_client_error:
        return response.status_code == HTTPStatus.REQUEST_TIMEOUT or (said is not None and said.success is True)
    return not (response.is_success and said and said.success is False)


def _names_missing_box(response: httpx.Response) -> bool:
    """A bare 404 does not say it: that may be a wrong address or a proxy."""
    said = said_by(response)
    return said is not None and said.is_about_missing_box and not said.is_about_key


def _document(response: httpx.Response, wire: type[Document], endpoint: str, secrets: tuple[str, ...]) -> Document:
    said = said_by(response)
    words = quoted(said.words, secrets) if said else "not a JSON object"
    if refusal := _refusal_of_caller(response, said, endpoint, words):
        raise refusal
    if not response.is_success or said is None or said.success is False:
        raise TryLater(f"vast.ai answered {response.status_code} for {endpoint}: {words}", NEXT_RUN)
    try:
        return wire.model_validate_json(response.content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TryLater(f"vast.ai's answer for {endpoint} cannot be read: {where}: {first['msg']}", NEXT_RUN) from error


def _refusal_of_caller(
    response: httpx.Response, said: Said | None, endpoint: str, words: str
) -> FleetAgentError | None:
    """What is refused whoever asks for whatever: the key, or the number of requests."""
    if response.status_code == HTTPStatus.UNAUTHORIZED or (said and said.is_about_key):
        return KeyRefused(f"vast.ai does not accept the API key ({words})", CHECK_KEY)
    if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        pause = _pause_asked_for(response)
        return SlowDown(
            f"vast.ai asks for fewer requests for {endpoint} ({words})",
            f"it is left alone for {pause.total_seconds():.0f} s",
            retry_after=pause,
        )
    return None


def _pause_asked_for(response: httpx.Response) -> timedelta:
    said = said_by(response)
    if said and said.error == "search_quota_exceeded":
        return QUOTA_PAUSE
    return retry_after(response.headers) or PENALTY


def _is_no_answer(response: httpx.Response) -> bool:
    """Worth a second request: the server failed, or sent with 200 what is no JSON object."""
    return response.is_server_error or (response.is_success and said_by(response) is None)


async def _last_outcome(state: RetryCallState) -> httpx.Response:
    assert state.outcome is not None
    return state.outcome.result()


async def _end_of_text(response: httpx.Response) -> str:
    """The last part of a body of any length, without ever holding more than twice that part."""
    end = b""
    async for chunk in response.aiter_bytes():
        end = (end + chunk)[-LONGEST_LOG_BYTES:]
    return end.decode("utf-8", "replace")


# --- rows to values ---------------------------------------------------------------------------------------------------


def _instance(row: InstanceRow) -> Instance:
    return Instance(
        id=row.id,
        label=row.label or "",
        machine_id=row.machine_id,
        host_id=row.host_id or 0,
        gpu_name=row.gpu_name or "",
        num_gpus=row.num_gpus,
        gpu_share=row.gpu_frac,
        usd_per_hour=row.dph_total,
        interruptible=bool(row.is_bid),
        image=row.image_uuid or "",
        actual_status=row.actual_status or "",
        intended_status=row.intended_status or "",
        contract_status=row.cur_state or "",
        status_message=without_tokens(row.status_msg or ""),
        started_at=datetime.fromtimestamp(row.start_date, UTC),
    )


def _offer(row: OfferRow) -> Offer:
    share = row.gpu_frac or 0.0
    return Offer(
        id=row.id,
        machine_id=row.machine_id,
        host_id=row.host_id or 0,
        gpu_name=row.gpu_name,
        num_gpus=row.num_gpus,
        gpu_ram_mb=row.gpu_ram,
        gpu_share=share,
        usd_per_hour=row.dph_total,
        reliability=row.reliability2 or row.reliability or 0.0,
        verified=row.verification == "verified",
        datacenter=row.hosting_type == 1,
        location=row.geolocation or "",
        cpu_cores=row.cpu_cores_effective or 0.0,
        ram_mb=int((row.cpu_ram or 0) * share),  # the provider states the memory of the whole machine
        disk_gb=row.disk_space or 0.0,
        inet_down_mbps=row.inet_down or 0.0,
        inet_up_mbps=row.inet_up or 0.0,
        cuda=row.cuda_max_good or 0.0,
        rentable_until=datetime.fromtimestamp(row.end_date, UTC) if row.end_date else None,
    )


def _charge(row: ChargeRow, vast_id: int) -> Charge:
    by_the_hour = [item.amount for item in row.items or () if item.type in RENT]
    return Charge(
        vast_id=vast_id,
        label=row.metadata.label if row.metadata else "",
        start=datetime.fromtimestamp(row.start, UTC) if row.start else None,
        end=datetime.fromtimestamp(row.end, UTC) if row.end else None,
        usd=row.amount,
        rent_usd=sum(by_the_hour, start=Decimal(0)) if row.items else row.amount,
    )


def _cheapest_per_machine(offers: list[Offer], query: OfferQuery) -> Offers:
    """The floors, the question and the bans applied on our side, cheapest first, one per machine."""
    best: dict[int, Offer] = {}
    for offer in sorted(offers, key=lambda offer: (offer.usd_per_hour, offer.id)):
        if _answers(offer, query) and query.policy.offers.unmet_by(offer) is None:
            best.setdefault(offer.machine_id, offer)
    wanted = [offer for machine_id, offer in best.items() if machine_id not in query.banned]
    return Offers(wanted[: query.limit], left_out=len(best) - len(wanted))


def _answers(offer: Offer, query: OfferQuery) -> bool:
    return (
        query.gpu_name in (None, offer.gpu_name)
        and query.num_gpus in (None, offer.num_gpus)
        and query.offer_id in (None, offer.id)
        and offer.disk_gb >= query.policy.launch.disk_gb
    )
