"""vast.ai's HTTP shape over the simulated market.

The routes at the bottom are the list of what is served: method, path, handler, and the provider's documented minimum
gap between two calls of one caller. Every call passes `VastFace.answer`, which knows the key, the pace and the faults
of the transport; the handlers know the world. Errors have the provider's own inconsistent shapes, because a client that
cannot read those cannot be trusted with money.

Outside the provider's paths, and without a key: `GET /sim/state` (the truth, for tests), `POST /sim/faults` (arms a
fault), and the result files that log and command requests point to.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import count
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fleet_agent.sim import boxes, vast_wire
from fleet_agent.sim.catalogue import GPUS
from fleet_agent.sim.market import Charge, Instance, Market, Order, Refused
from fleet_agent.sim.vast_wire import PAGE_MOST, BadQuery, Json

STATUS_OF = {
    "no_credit": 400,
    "invalid_price": 400,
    "label_too_long": 400,
    "no_such_ask": 404,
    "unavailable": 410,
    "no_such_instance": 404,
}
ERROR_OF = {"no_such_ask": "invalid_args", "unavailable": "no_such_ask", "no_credit": "missing_billing"}
"""Where the provider's error code is not the market's word: a missing offer is called `invalid_args`, in earnest."""

RESULTS_KEPT = 100


@dataclass(frozen=True, slots=True)
class RateLimits:
    """Used while the fault `rate_limits` is armed: documented gaps times a factor, and searches per UTC day."""

    gap_factor: float = 1.0
    searches_per_day: int = 1000


@dataclass(frozen=True, slots=True)
class Call:
    """One authenticated request."""

    request: Request
    body: Json

    @property
    def id(self) -> int:
        return self.request.path_params["id"]

    def query(self, name: str, default: Any) -> Any:
        """A query argument, which the provider's clients send as JSON."""
        text = self.request.query_params.get(name)
        if text is None:
            return default
        try:
            return json.loads(text)
        except ValueError as unreadable:
            raise BadQuery(f"{name} is not JSON") from unreadable


@dataclass(slots=True)
class Account:
    """What the customer keeps at the provider besides boxes and money."""

    ssh_keys: dict[int, Json] = field(default_factory=dict[int, Json])
    templates: dict[int, Json] = field(default_factory=dict[int, Json])
    ids: "count[int]" = field(default_factory=lambda: count(5_000))


Handler = Callable[["VastFace", Call], "Json | list[Json]"]


class Failure(Exception):
    """An answer that is not a success, thrown from wherever it is known."""

    def __init__(self, response: Response) -> None:
        super().__init__(f"HTTP {response.status_code}")
        self.response = response


def failure(status: int, error: str, msg: str, **more: object) -> Failure:
    return Failure(JSONResponse({"success": False, "error": error, "msg": msg, **more}, status))


def _refusal(refused: Refused, **more: object) -> Failure:
    code = ERROR_OF.get(refused.code, refused.code)
    return failure(STATUS_OF[refused.code], code, refused.sentence, **more)


class VastFace:
    """The market behind the provider's paths."""

    def __init__(self, market: Market, limits: RateLimits, elapsed: Callable[[], float]) -> None:
        self.market = market
        self.account = Account()
        self._limits = limits
        self._elapsed = elapsed
        self._last_call: dict[tuple[str, str], float] = {}
        self._searches: dict[tuple[str, datetime], int] = {}
        self._results: dict[str, str] = {}
        self._unready: set[str] = set()
        self._result_numbers = count()

    # --- every call ---------------------------------------------------------------------------------------------------

    async def answer(self, request: Request, endpoint: str, handler: Handler, gap: float) -> Response:
        try:
            self._keep_pace(endpoint, self._authenticated(request), gap)
            if self.market.faults.take("server_error"):
                raise failure(500, "internal_error", "Internal server error")
            result = handler(self, Call(request, await _body(request)))
        except Failure as failed:
            return failed.response
        except BadQuery as bad:
            return failure(400, bad.code, str(bad)).response
        except Refused as refused:
            return _refusal(refused).response
        return JSONResponse(result)

    def _authenticated(self, request: Request) -> str:
        """The caller's key. A wrong one is 404 on old paths and 401 on new ones, as the provider does it."""
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        key = bearer or request.query_params.get("api_key", "")
        if not key:
            raise failure(403, "auth_error", "This action requires login")
        if self.market.api_key not in (None, key):
            raise failure(401 if request.url.path.startswith("/api/v1/") else 404, "auth_error", "Invalid user key")
        return key

    def _keep_pace(self, endpoint: str, key: str, gap: float) -> None:
        if not self.market.faults.is_armed("rate_limits"):
            return
        now, least = self._elapsed(), gap * self._limits.gap_factor
        wait = self._last_call.get((endpoint, key), -math.inf) + least - now
        if wait > 0:
            text = f"API requests too frequent: endpoint threshold={least}"
            raise Failure(PlainTextResponse(text, 429, {"Retry-After": str(math.ceil(wait))}))
        self._last_call[endpoint, key] = now
        if endpoint in SEARCHES:
            self._count_search(key)

    def _count_search(self, key: str) -> None:
        today = self.market.clock.now().replace(hour=0, minute=0, second=0, microsecond=0)
        self._searches[key, today] = self._searches.get((key, today), 0) + 1
        if self._searches[key, today] > self._limits.searches_per_day:
            refusal = failure(429, "search_quota_exceeded", "Daily search quota exceeded")
            refusal.response.headers["X-RateLimit-Reset"] = str(int((today + timedelta(days=1)).timestamp()))
            raise refusal

    # --- offers -------------------------------------------------------------------------------------------------------

    def search_bundles(self, call: Call) -> Json:
        return self._search(call.body)

    def search_asks(self, call: Call) -> Json:
        return self._search(call.body.get("q") or {})

    def _search(self, query: Json) -> Json:
        offers = self.market.offers()
        now = self.market.clock.now()
        bid = query.get("type") in ("bid", "interruptible")
        disk_gb = _decimal(query.get("allocated_storage") or 5, "allocated_storage")
        rows = [vast_wire.offer_row(offer, now=now, bid=bid, disk_gb=disk_gb) for offer in offers]
        return {"offers": vast_wire.searched(rows, query)}

    # --- create -------------------------------------------------------------------------------------------------------

    def create(self, call: Call) -> Json:
        try:
            box = self.market.rent(call.id, self._order(call.body))
        except Refused as refused:
            raise _refusal(refused, ask_id=call.id) from refused
        machine_id = box.machine.machine_id
        if self.market.faults.take("create_lost", machine_id):
            raise Failure(PlainTextResponse("Gateway Timeout", 504))
        if self.market.faults.take("create_refused_but_made", machine_id):
            return {"success": False, "error": "error", "msg": "instance creation failed", "new_contract": box.id}
        return {"success": True, "new_contract": box.id}

    def create_many(self, call: Call) -> Json:
        """One box for each offer that can be had; an offer that cannot does not spoil the others."""
        order = self._order(call.body)
        outcomes: list[Json] = []
        for ask_id in _ids(call.body, "ids"):
            try:
                outcomes.append({"ask_id": ask_id, "success": True, "new_contract": self.market.rent(ask_id, order).id})
            except Refused as refused:
                outcomes.append({"ask_id": ask_id, "success": False, "msg": refused.sentence})
        return {"success": all(outcome["success"] for outcome in outcomes), "results": outcomes}

    def _order(self, body: Json) -> Order:
        template = self._template(body.get("template_hash_id"))
        image = body.get("image") or template.get("image")
        label, price = body.get("label"), body.get("price")
        disk_gb = _decimal(body.get("disk") or 10, "disk")
        if not image or len(image) > 1024:
            raise failure(400, "invalid_args", "image is required, at most 1024 characters")
        if label is not None and len(label) > 256:
            raise failure(400, "invalid_args", "label must be at most 256 characters")
        if disk_gb < 8:
            raise failure(400, "invalid_args", "disk must be at least 8 GB")
        return Order(
            image=image,
            disk_gb=disk_gb,
            label=label,
            env=_env(body.get("env")),
            onstart=body.get("onstart") or template.get("onstart"),
            runtype=body.get("runtype") or template.get("runtype") or "ssh",
            args=body.get("args") or [],
            bid_usd_per_hour=None if price is None else _decimal(price, "price"),
            cancel_unavailable=bool(body.get("cancel_unavail")),
        )

    def _template(self, hash_id: str | None) -> Json:
        if hash_id is None:
            return {}
        for template in self.account.templates.values():
            if template["hash_id"] == hash_id:
                return template
        raise failure(400, "invalid_args", f"no template with hash {hash_id}")

    # --- instances ----------------------------------------------------------------------------------------------------

    def list_instances(self, call: Call) -> Json:
        if self.market.faults.take("list_success_false"):
            return {"success": False, "error": "internal_error", "msg": "could not read instances"}
        limit = int(call.query("limit", PAGE_MOST))
        order = cast("list[Json]", call.query("order_by", []))
        page = vast_wire.listed(
            self._rows(),
            filters=call.query("select_filters", {}),
            order=[(str(key.get("col")), str(key.get("dir", "asc"))) for key in order],
            limit=5 if limit <= 0 else min(limit, PAGE_MOST),
            after_token=call.request.query_params.get("after_token"),
            columns=call.query("select_cols", None),
        )
        if self.market.faults.take("list_partial"):
            shown = page["instances"]
            return page | {"instances": shown[: len(shown) // 2], "next_token": None}
        return page

    def list_instances_v0(self, call: Call) -> Json:
        raise failure(410, "deprecated_endpoint", "This endpoint has been deprecated. Use /api/v1/instances/ instead.")

    def instance_filters(self, call: Call) -> Json:
        columns = ("actual_status", "verification", "gpu_name")
        combinations = {tuple(row[column] for column in columns) for row in self._rows()}
        return {"filters": [dict(zip(columns, values, strict=True)) for values in combinations]}

    def show_instance(self, call: Call) -> Json:
        return {"instances": next((row for row in self._rows() if row["id"] == call.id), None)}

    def _rows(self) -> list[Json]:
        seen = self.market.seen_instances()
        now = self.market.clock.now()
        return [vast_wire.instance_row(box, now=now, market=self.market) for box in seen]

    def manage(self, call: Call) -> Json:
        if "label" in call.body:
            self.market.set_label(call.id, call.body["label"])
        else:
            self._set_state(call.id, call.body.get("state"))
        return {"success": True}

    def manage_many(self, call: Call) -> Json:
        for instance_id in _ids(call.body, "ids"):
            self._set_state(instance_id, call.body.get("state"))
        return {"success": True}

    def _set_state(self, instance_id: int, state: str | None) -> None:
        match state:
            case "running":
                self.market.start(instance_id)
            case "stopped":
                self.market.stop(instance_id)
            case _:
                raise failure(400, "invalid_args", "state must be running or stopped")

    def reboot(self, call: Call) -> Json:
        self.market.reboot(call.id)
        return {"success": True}

    def recycle(self, call: Call) -> Json:
        self.market.recycle(call.id)
        return {"success": True}

    def update_template(self, call: Call) -> Json:
        amendments: Json = {name: call.body[name] for name in ("image", "onstart", "args") if name in call.body}
        if "env" in call.body:
            amendments["env"] = _env(call.body["env"])
        self.market.rebuild(call.id, **amendments)
        return {"success": True, "updated_instance": call.id}

    def change_bid(self, call: Call) -> Json:
        price = call.body.get("price")
        self.market.change_bid(call.id, None if price is None else _decimal(price, "price"))
        return {"success": True}

    def destroy(self, call: Call) -> Json:
        self.market.destroy(call.id)
        return {"success": True, "msg": f"instance {call.id} destroyed"}

    def destroy_many(self, call: Call) -> Json:
        """Those that are there; one that is gone already does not save the others."""
        there = {box.id for box in self.market.instances()}
        for instance_id in there.intersection(_ids(call.body, "instance_ids")):
            self.market.destroy(instance_id)
        return {"success": True}

    # --- logs and commands: the answer is a file that is ready a moment later -----------------------------------------

    def request_logs(self, call: Call) -> Json:
        box = self.market.instance(call.id)
        lines = boxes.log(self.market, box)
        if call.body.get("daemon_logs"):
            lines = [line for line in lines if " container " in line]
        if wanted := call.body.get("filter"):
            lines = [line for line in lines if wanted in line]
        if tail := call.body.get("tail"):
            lines = lines[-int(tail) :]
        return self._published(call, "\n".join(lines) + "\n")

    def execute(self, call: Call) -> Json:
        command = str(call.body.get("command", ""))
        self.market.instance(call.id)
        if len(command) > 512 or command.split(" ")[0] not in ("ls", "rm", "du"):
            raise failure(400, "invalid_args", "only ls, rm and du are allowed, in at most 512 characters")
        return self._published(call, "" if command.startswith("rm") else "4.0K\t/workspace\n") | {
            "writeable_path": "/workspace"
        }

    def _published(self, call: Call, text: str) -> Json:
        name = f"{call.id}-{next(self._result_numbers)}"
        self._results[name] = text
        self._unready.add(name)
        if len(self._results) > RESULTS_KEPT:
            oldest = next(iter(self._results))
            del self._results[oldest]
            self._unready.discard(oldest)
        url = call.request.url_for("result", name=name)
        return {"success": True, "result_url": str(url), "msg": "Result will be available at the url"}

    async def result(self, request: Request) -> Response:
        """Not there at the first look, as a file that is still being uploaded; later there without a key."""
        name = request.path_params["name"]
        if name in self._unready or name not in self._results:
            self._unready.discard(name)
            return PlainTextResponse("no such key", 404)
        return PlainTextResponse(self._results[name])

    # --- account ------------------------------------------------------------------------------------------------------

    def current_user(self, call: Call) -> Json:
        return {
            "id": 1,
            "email": "operator@fleet.example",
            "username": "operator",
            "balance": 0,
            "credit": float(self.market.credit_usd()),
            "host_agreement_accepted": False,
            "api_key": call.request.headers.get("authorization", "").removeprefix("Bearer "),
        }

    def charges(self, call: Call) -> Json:
        """A row for each contract, gone or not, that cost something on the UTC days asked for."""
        since, until = _window(call, "day")
        by_contract: dict[int, list[tuple[datetime, Charge]]] = {}
        for day in _days(self.market.opened_at, self.market.clock.now()):
            if since <= day <= until:
                for bill in self.market.charges(day, day + timedelta(days=1)):
                    by_contract.setdefault(bill.instance.id, []).append((day, bill))
        rows = [vast_wire.charge_row(days) for days in by_contract.values()]
        kinds = call.query("select_filters", {}).get("type", {})
        wanted = [row for row in rows if vast_wire.satisfies(row, {"type": kinds})]
        return _ledger_page(call, wanted, told_apart_by="source", limit=100, most=500)

    def invoices(self, call: Call) -> Json:
        since, until = _window(call, "when")
        deposits = enumerate(self.market.deposits, start=1)
        rows = [vast_wire.invoice_row(number, at, usd) for number, (at, usd) in deposits if since <= at <= until]
        return _ledger_page(call, rows, told_apart_by="amount", limit=60, most=100)

    def ssh_keys(self, call: Call) -> list[Json]:
        return list(self.account.ssh_keys.values())

    def add_ssh_key(self, call: Call) -> Json:
        key: Json = {
            "id": next(self.account.ids),
            "user_id": 1,
            "key": _ssh_key(call.body),
            "created_at": self.market.clock.now().isoformat(),
            "deleted_at": None,
        }
        self.account.ssh_keys[key["id"]] = key
        return {"success": True, "key": key}

    def change_ssh_key(self, call: Call) -> Json:
        if call.id not in self.account.ssh_keys:
            raise failure(404, "invalid_id", "no such ssh key")
        self.account.ssh_keys[call.id]["key"] = _ssh_key(call.body)
        return {"success": True, "key": self.account.ssh_keys[call.id]}

    def remove_ssh_key(self, call: Call) -> Json:
        if self.account.ssh_keys.pop(call.id, None) is None:
            raise failure(404, "invalid_id", "no such ssh key")
        return {"success": True}

    def attach_ssh_key(self, call: Call) -> Json:
        self.market.instance(call.id)
        _ssh_key(call.body)
        return {"success": True}

    def detach_ssh_key(self, call: Call) -> Json:
        self.market.instance(call.id)
        return {"success": True}

    def templates(self, call: Call) -> Json:
        filters = call.query("select_filters", {})
        return {"templates": [row for row in self.account.templates.values() if vast_wire.satisfies(row, filters)]}

    def add_template(self, call: Call) -> Json:
        number = next(self.account.ids)
        template = call.body | {"id": number, "hash_id": f"{number:032x}", "creator_id": 1}
        self.account.templates[number] = template
        return {"success": True, "template": template}

    def change_template(self, call: Call) -> Json:
        """An edit is a new version under a new hash."""
        old = self.account.templates.pop(int(call.body.get("id") or 0), None)
        if old is None:
            raise failure(404, "invalid_id", "no such template")
        return self.add_template(replace(call, body=old | call.body))

    def remove_template(self, call: Call) -> Json:
        number, hash_id = call.body.get("template_id"), call.body.get("hash_id")
        templates = self.account.templates
        kept = {key: row for key, row in templates.items() if key != number and row["hash_id"] != hash_id}
        if len(kept) == len(templates):
            raise failure(404, "invalid_id", "no such template")
        self.account.templates = kept
        return {"success": True}

    # --- control plane ------------------------------------------------------------------------------------------------

    async def gpu_names(self, request: Request) -> Response:
        """Asked for by the official command line before anything else, without a key."""
        return JSONResponse({"gpu_names": [gpu.name for gpu in GPUS]})

    async def state(self, request: Request) -> Response:
        market = self.market
        now = market.clock.now()
        billed = {bill.instance.id: float(bill.usd) for bill in market.charges(market.opened_at, now)}
        return JSONResponse({
            "now": now.isoformat(),
            "credit_usd": float(market.credit_usd()),
            "usd_billed": float(market.usd_billed()),
            "usd_per_hour": float(market.usd_per_hour()),
            "instances": [_truth(market, box, billed.get(box.id, 0.0)) for box in market.all_instances()],
            "creates": [
                {"at": made.at.isoformat(), "instance_id": made.instance_id, "ask_id": made.ask_id, "label": made.label}
                for made in market.creates
            ],
            "faults": [
                {"name": fault.name, "times": fault.times, "machine_id": fault.machine_id}
                for fault in market.faults.armed()
            ],
        })  # fmt: skip

    async def arm_fault(self, request: Request) -> Response:
        """Body: name, and optionally times, machine_id, lasting_seconds."""
        body = await _body(request)
        try:
            self.market.faults.arm(
                str(body.get("name")),
                times=body.get("times"),
                machine_id=body.get("machine_id"),
                lasting=timedelta(seconds=body.get("lasting_seconds", 300)),
            )
        except (ValueError, TypeError) as wrong:
            return JSONResponse({"error": str(wrong)}, 400)
        return JSONResponse({"armed": body["name"]})


def _truth(market: Market, box: Instance, usd_billed: float) -> Json:
    return {
        "id": box.id,
        "label": box.label,
        "machine_id": box.machine.machine_id,
        "is_bid": box.is_bid,
        "actual_status": box.actual_status,
        "stage": boxes.stage(market, box, market.clock.now()),
        "created_at": box.created_at.isoformat(),
        "gone_at": box.gone_at and box.gone_at.isoformat(),
        "usd_billed": usd_billed,
    }


async def _body(request: Request) -> Json:
    text = await request.body()
    try:
        body: object = json.loads(text) if text else {}
    except ValueError as unreadable:
        raise BadQuery("the body is not JSON") from unreadable
    if not isinstance(body, dict):
        raise BadQuery("the body is not an object")
    return cast("Json", body)


def _decimal(value: object, name: str) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation as unreadable:
        raise failure(400, "invalid_args", f"{name} must be a number") from unreadable
    if not number.is_finite():
        raise failure(400, "invalid_args", f"{name} must be finite")
    return number


def _ids(body: Json, name: str) -> list[int]:
    return cast("list[int]", body.get(name) or [])


def _env(env: object) -> dict[str, str]:
    """Documented as a string, sent as an object by the official clients; both are taken."""
    if isinstance(env, dict):
        return {str(name): str(value) for name, value in cast("dict[str, object]", env).items()}
    return {str(env): "1"} if env else {}


def _ssh_key(body: Json) -> str:
    key = body.get("ssh_key")
    if not key:
        raise failure(400, "no_ssh_key", "ssh_key is required")
    return str(key)


def _window(call: Call, column: str) -> tuple[datetime, datetime]:
    """The time range that billing reports must be asked for; without it they answer 200 with success:false."""
    try:
        bounds = call.query("select_filters", {})[column]
        since, until = (datetime.fromtimestamp(float(bounds[bound]), UTC) for bound in ("gte", "lte"))
    except (KeyError, TypeError, ValueError, OverflowError) as missing:
        refusal = {"success": False, "error": "invalid_request", "msg": f"select_filters must bound {column}"}
        raise Failure(JSONResponse(refusal)) from missing
    return since, until


def _days(since: datetime, until: datetime) -> Iterator[datetime]:
    """The UTC days that a stretch of time touches, each by its first instant."""
    day = since.replace(hour=0, minute=0, second=0, microsecond=0)
    while day <= until:
        yield day
        day += timedelta(days=1)


def _ledger_page(call: Call, rows: list[Json], *, told_apart_by: str, limit: int, most: int) -> Json:
    """`limit` where the caller names none, and `most` whatever he names."""
    direction = "desc" if call.query("latest_first", True) else "asc"
    page, next_token = vast_wire.paged(
        rows,
        order=[("start", direction), (told_apart_by, "asc")],
        limit=min(int(call.query("limit", limit)), most),
        after_token=call.request.query_params.get("after_token"),
    )
    return {"success": True, "count": len(page), "total": len(rows), "next_token": next_token, "results": page}


# Gaps in seconds between two calls of one caller, from the provider's public rate-limit page; 0 where it names none.
ROUTES: tuple[tuple[str, str, Handler, float], ...] = (
    ("POST", "/api/v0/bundles/", VastFace.search_bundles, 6.0),
    ("PUT", "/api/v0/search/asks/", VastFace.search_asks, 6.0),
    ("PUT", "/api/v0/asks/{id:int}/", VastFace.create, 4.5),
    ("POST", "/api/v0/asks/bulk/", VastFace.create_many, 4.5),
    ("GET", "/api/v1/instances/", VastFace.list_instances, 1.0),
    ("GET", "/api/v0/instances/", VastFace.list_instances_v0, 1.0),
    ("PUT", "/api/v0/instances/", VastFace.manage_many, 2.0),
    ("DELETE", "/api/v0/instances/", VastFace.destroy_many, 3.0),
    ("GET", "/api/v0/instances/filters/", VastFace.instance_filters, 0.0),
    ("GET", "/api/v0/instances/{id:int}/", VastFace.show_instance, 2.0),
    ("PUT", "/api/v0/instances/{id:int}/", VastFace.manage, 1.0),
    ("DELETE", "/api/v0/instances/{id:int}/", VastFace.destroy, 3.0),
    ("PUT", "/api/v0/instances/reboot/{id:int}/", VastFace.reboot, 1.0),
    ("PUT", "/api/v0/instances/recycle/{id:int}/", VastFace.recycle, 1.0),
    ("PUT", "/api/v0/instances/update_template/{id:int}/", VastFace.update_template, 0.0),
    ("PUT", "/api/v0/instances/bid_price/{id:int}/", VastFace.change_bid, 5.5),
    ("PUT", "/api/v0/instances/request_logs/{id:int}/", VastFace.request_logs, 0.0),
    ("PUT", "/api/v0/instances/command/{id:int}/", VastFace.execute, 1.5),
    ("POST", "/api/v0/instances/{id:int}/ssh/", VastFace.attach_ssh_key, 2.0),
    ("DELETE", "/api/v0/instances/{id:int}/ssh/{key:int}/", VastFace.detach_ssh_key, 2.0),
    ("GET", "/api/v0/users/current", VastFace.current_user, 0.0),
    ("GET", "/api/v0/users/current/", VastFace.current_user, 0.0),
    ("GET", "/api/v0/charges/", VastFace.charges, 1.0),
    ("GET", "/api/v1/invoices/", VastFace.invoices, 3.0),
    ("GET", "/api/v0/ssh/", VastFace.ssh_keys, 1.0),
    ("POST", "/api/v0/ssh/", VastFace.add_ssh_key, 1.0),
    ("PUT", "/api/v0/ssh/{id:int}/", VastFace.change_ssh_key, 1.0),
    ("DELETE", "/api/v0/ssh/{id:int}/", VastFace.remove_ssh_key, 1.0),
    ("GET", "/api/v0/template/", VastFace.templates, 3.0),
    ("POST", "/api/v0/template/", VastFace.add_template, 3.0),
    ("PUT", "/api/v1/template/", VastFace.change_template, 3.0),
    ("DELETE", "/api/v0/template/", VastFace.remove_template, 3.0),
)
SEARCHES = frozenset({"POST /api/v0/bundles/", "PUT /api/v0/search/asks/"})


def create_app(
    market: Market, *, limits: RateLimits | None = None, elapsed: Callable[[], float] = time.monotonic
) -> Starlette:
    """The HTTP face of a market. `elapsed` is the real clock, in seconds, by which the caller's pace is judged."""
    face = VastFace(market, limits or RateLimits(), elapsed)
    routes = [_route(face, method, path, handler, gap) for method, path, handler, gap in ROUTES]
    routes += [
        Route("/api/v0/gpu_names/unique/", face.gpu_names, methods=["GET"]),
        Route("/sim/results/{name}", face.result, methods=["GET"], name="result"),
        Route("/sim/state", face.state, methods=["GET"]),
        Route("/sim/faults", face.arm_fault, methods=["POST"]),
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return app


def _route(face: VastFace, method: str, path: str, handler: Handler, gap: float) -> Route:
    endpoint = f"{method} {path}"

    async def answer(request: Request) -> Response:
        return await face.answer(request, endpoint, handler, gap)

    return Route(path, answer, methods=[method], name=endpoint)
