"""What each answer of vast.ai means, where the simulator does not give it: what was seen in the wild, and worse."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx
import pytest

from fleet_agent.clients.pace import MemoryTurns
from fleet_agent.clients.vast import CREATE
from fleet_agent.domain.fleet import Offer
from fleet_agent.domain.pace import Limit
from fleet_agent.domain.policy import OfferFloors, Policy
from fleet_agent.errors import (
    AlreadyGone,
    ChooseAnother,
    DatabaseUnreachable,
    FleetAgentError,
    InventoryUnknown,
    KeyRefused,
    LookFirst,
    SlowDown,
    StopRenting,
    TryLater,
)
from fleet_agent.ports import OfferQuery
from tests.clients.world import IMAGE, KEY, POLICY, PassingTime, SimulatedWorld, answering, market_over, order

AUTHORIZED = {"Authorization": f"Bearer {KEY}"}
HTML = httpx.Response(200, html="<title>Sign in</title>")
LOST_IN_FLIGHT = [
    httpx.ReadTimeout("no answer"),
    httpx.WriteTimeout("half sent"),
    httpx.ReadError("connection reset"),
    httpx.WriteError("broken pipe"),
    httpx.RemoteProtocolError("server disconnected"),
    httpx.ProxyError("who knows"),
]
NEVER_SENT = [httpx.ConnectError("refused"), httpx.ConnectTimeout("no route"), httpx.PoolTimeout("no connection free")]


def said(status: int, **body: Any) -> httpx.Response:
    return httpx.Response(status, json=body)


def name_of(answer: httpx.Response | Exception) -> str:
    if isinstance(answer, Exception):
        return type(answer).__name__
    return f"{answer.status_code} {answer.text[:60]}"


async def outcome_of_create(*answers: httpx.Response | Exception) -> tuple[int | type[FleetAgentError], int]:
    """The box id or the kind of error, and how often the create was sent."""
    asked: list[httpx.Request] = []
    market = market_over(answering(*answers, asked=asked), PassingTime())
    try:
        outcome: int | type[FleetAgentError] = await market.rent(order(40_000_001))
    except FleetAgentError as error:
        outcome = type(error)
    return outcome, len(asked)


class RefusingAfterwards(httpx.AsyncBaseTransport):
    """A proxy that passes a request on, and answers 499 whatever came of it."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        await self._inner.handle_async_request(request)
        return httpx.Response(499)


# --- create -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer",
    [said(200, success=True, new_contract=77), said(200, new_contract=77), said(200, success=True, new_contract="77")],
    ids=name_of,
)
async def test_a_create_that_names_the_box_and_denies_nothing_is_done(answer: httpx.Response):
    assert await outcome_of_create(answer) == (77, 1)


@pytest.mark.parametrize(
    "answer",
    [
        *LOST_IN_FLIGHT,
        httpx.Response(500, text="oops"),
        httpx.Response(502, html="<h1>Bad gateway</h1>"),
        httpx.Response(504, text="Gateway Timeout"),
        httpx.Response(408),
        httpx.Response(302, headers={"location": "http://vast.test/login"}),
        HTML,
        said(200),
        said(200, success=True),
        said(200, success=True, new_contract=None),
        said(200, success=True, new_contract={"id": 77}),
        said(200, success={}, new_contract=77),
        said(200, success=True, new_contract=0),
        said(200, success=True, new_contract=-77),
        said(200, success=True, new_contract=2**63),
        said(200, success=False, error="error", new_contract=77),
        said(400, success=False, error="error", new_contract=77),
        httpx.Response(200, text='{"success": true, "new_contr'),
        httpx.Response(200, json=[1, 2]),
        httpx.Response(499),
        httpx.Response(409),
        httpx.Response(400, html="<h1>Bad request</h1>"),
        httpx.Response(401),
        httpx.Response(404, text="not found"),
        httpx.Response(429),
        httpx.Response(429, html="<h1>Too many requests</h1>"),
        said(400, success=False, msg="internal"),
        said(403, error="forbidden", msg="not for you"),
        said(418, success=False, error="brand_new_code"),
        said(404, success=True, error="no_such_ask"),
        said(429, success=True, detail="too many"),
        said(200, success=False, msg="internal"),
        said(200, success=False, msg="the credit service is down"),
    ],
    ids=name_of,
)
async def test_a_create_of_which_nobody_knows_what_became_means_look_first_and_is_sent_once(
    answer: httpx.Response | Exception,
):
    assert await outcome_of_create(answer) == (LookFirst, 1)


@pytest.mark.parametrize("answer", NEVER_SENT, ids=name_of)
async def test_a_create_that_never_left_means_try_later_and_is_not_sent_again_either(answer: Exception):
    assert await outcome_of_create(answer) == (TryLater, 1)


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        (said(404, success=False, error="invalid_args", msg="no_such_ask 5 is not available"), ChooseAnother),
        (said(410, success=False, error="no_such_ask", msg="no longer available"), ChooseAnother),
        (said(400, success=False, error="invalid_price", msg="price too low"), ChooseAnother),
        (said(400, success=False, error="no_ssh_key_for_vm", msg="add a key"), ChooseAnother),
        (said(200, success=False, error="no_such_ask", msg="gone"), ChooseAnother),
        (said(400, success=False, error="insufficient_credit", msg="Your account lacks credit"), StopRenting),
        (said(200, success=False, msg="Your account lacks credit"), StopRenting),
        (said(404, success=False, error="auth_error", msg="Invalid user key"), KeyRefused),
        (said(403, error="auth_error"), KeyRefused),
        (said(404, message="Invalid user key"), KeyRefused),
        (said(401, error="auth_error", msg="who are you"), KeyRefused),
        (said(429, detail="too many"), SlowDown),
        (said(429, error="rate_limit_exceeded"), SlowDown),
        (httpx.Response(429, text="API requests too frequent"), SlowDown),
        (httpx.Response(429, text="endpoint threshold=4.5"), SlowDown),
    ],
    ids=lambda value: name_of(value) if isinstance(value, httpx.Response) else "",
)
async def test_a_create_that_was_plainly_refused_says_what_to_do(
    answer: httpx.Response, meaning: type[FleetAgentError]
):
    assert await outcome_of_create(answer) == (meaning, 1)


async def test_control_judging_by_the_status_alone_takes_a_wrong_key_for_a_vanished_offer():
    def by_status(response: httpx.Response) -> type[FleetAgentError]:
        return {404: ChooseAnother, 401: KeyRefused}[response.status_code]

    answer = said(404, success=False, error="auth_error", msg="Invalid user key")

    assert by_status(answer) is ChooseAnother
    assert (await outcome_of_create(answer))[0] is KeyRefused


async def test_a_create_that_a_proxy_refuses_after_it_passed_it_on_is_looked_for():
    world = SimulatedWorld()
    [offer] = await world.market.offers(OfferQuery(policy=POLICY, limit=1))
    market = market_over(RefusingAfterwards(world.wire), world.time)

    with pytest.raises(LookFirst):
        await market.rent(order(offer.id))

    assert len(world.truth.instances()) == 1


async def test_control_taking_every_client_error_for_a_refusal_loses_that_box():
    def naive(response: httpx.Response) -> bool:
        return response.is_client_error

    world = SimulatedWorld()
    [offer] = await world.market.offers(OfferQuery(policy=POLICY, limit=1))
    async with httpx.AsyncClient(transport=RefusingAfterwards(world.wire), headers=AUTHORIZED) as client:
        answer = await client.put(f"http://vast.test/api/v0/asks/{offer.id}/", json={"image": IMAGE, "disk": 100})

    assert naive(answer)
    assert len(world.truth.instances()) == 1


async def test_a_create_asks_for_no_bid_and_for_nothing_that_is_taken():
    asked: list[httpx.Request] = []
    market = market_over(answering(said(200, success=True, new_contract=77), asked=asked), PassingTime())

    await market.rent(order(40_000_001))

    [create] = asked
    assert (create.method, create.url.path) == ("PUT", "/api/v0/asks/40000001/")
    assert b'"cancel_unavail":true' in create.content
    assert b"price" not in create.content


async def test_a_create_whose_answer_does_not_end_means_look_first():
    class Silence(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"{"
            await asyncio.Event().wait()

    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Silence()))
    market = market_over(transport, PassingTime(), exchange_deadline=timedelta(0))

    with pytest.raises(LookFirst, match="TimeoutError"):
        await market.rent(order(40_000_001))


# --- a create that is late --------------------------------------------------------------------------------------------

RENTED = said(200, success=True, new_contract=77)
TEN_SECONDS = timedelta(seconds=10)


async def turns_on_hold_for_12_seconds(time: PassingTime) -> MemoryTurns:
    turns = MemoryTurns(time.now)
    await turns.hold(CREATE, timedelta(seconds=12))
    return turns


async def test_a_create_whose_turn_comes_after_its_time_is_not_sent():
    time, asked = PassingTime(), list[httpx.Request]()
    market = market_over(answering(RENTED, asked=asked), time, turns=await turns_on_hold_for_12_seconds(time))

    with pytest.raises(TryLater, match="nothing was sent"):
        await market.rent(order(40_000_001, send_by=TEN_SECONDS))

    assert asked == []


async def test_control_a_caller_that_looks_at_the_time_before_the_turn_sends_a_late_create():
    time, asked = PassingTime(), list[httpx.Request]()
    market = market_over(answering(RENTED, asked=asked), time, turns=await turns_on_hold_for_12_seconds(time))

    assert time.elapsed() < TEN_SECONDS
    await market.rent(order(40_000_001))

    assert len(asked) == 1
    assert time.elapsed() > TEN_SECONDS


# --- turns that cannot be had -----------------------------------------------------------------------------------------


class FailingTurns:
    """Turns whose memory fails: always, or only when it is to note a refusal."""

    def __init__(self, *, also_takes: bool) -> None:
        self._also_takes = also_takes

    async def take(self, endpoint: str, limit: Limit, patience: timedelta) -> timedelta:
        if self._also_takes:
            raise DatabaseUnreachable("the database does not answer")
        return timedelta(0)

    async def hold(self, endpoint: str, pause: timedelta) -> None:
        raise DatabaseUnreachable("the database does not answer")


async def test_when_nobody_knows_whose_turn_it_is_nothing_is_sent_and_the_list_is_unknown():
    asked: list[httpx.Request] = []
    market = market_over(answering(RENTED, asked=asked), PassingTime(), turns=FailingTurns(also_takes=True))

    with pytest.raises(TryLater):
        await market.rent(order(40_000_001))
    with pytest.raises(InventoryUnknown):
        await market.inventory()

    assert asked == []


async def test_what_an_answer_means_does_not_depend_on_whether_its_pause_could_be_noted():
    answer = said(429, error="odd", new_contract=77)
    market = market_over(answering(answer), PassingTime(), turns=FailingTurns(also_takes=False))

    with pytest.raises(LookFirst):
        await market.rent(order(40_000_001))


# --- destroy ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "meaning"),
    [
        *((lost, LookFirst) for lost in LOST_IN_FLIGHT),
        *((unsent, TryLater) for unsent in NEVER_SENT),
        (httpx.Response(502), LookFirst),
        (HTML, LookFirst),
        (said(404, success=False, error="no_such_instance", msg="gone"), AlreadyGone),
        (said(404, success=False, error="not_found"), AlreadyGone),
        (said(200, success=False, error="no_such_instance"), AlreadyGone),
        (httpx.Response(404, html="<h1>Not found</h1>"), TryLater),
        (said(404, success=False, error="auth_error", msg="Invalid user key"), KeyRefused),
        (said(200, success=False, error="busy", msg="try again"), TryLater),
        (said(429, error="rate_limit_exceeded"), SlowDown),
    ],
    ids=lambda value: name_of(value) if isinstance(value, httpx.Response | Exception) else "",
)
async def test_what_an_answer_to_a_destroy_means(answer: httpx.Response | Exception, meaning: type[FleetAgentError]):
    asked: list[httpx.Request] = []
    market = market_over(answering(answer, asked=asked), PassingTime())

    with pytest.raises(FleetAgentError) as error:
        await market.destroy(77)

    assert type(error.value) is meaning
    assert len(asked) == 1


# --- reads ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", [*LOST_IN_FLIGHT, *NEVER_SENT, httpx.Response(503), HTML], ids=name_of)
async def test_a_read_is_sent_a_second_time_and_no_third(trouble: httpx.Response | Exception):
    asked: list[httpx.Request] = []
    healed = market_over(answering(trouble, said(200, credit=12.5), asked=asked), PassingTime())
    lasting = market_over(answering(trouble, trouble, said(200, credit=12.5), asked=asked), PassingTime())

    assert (await healed.account()).credit_usd == pytest.approx(12.5)
    with pytest.raises(TryLater):
        await lasting.account()
    assert len(asked) == 4


@pytest.mark.parametrize("answer", [said(400, msg="no"), said(429), said(401), said(200, success=False)], ids=name_of)
async def test_a_read_that_was_refused_is_not_repeated(answer: httpx.Response):
    asked: list[httpx.Request] = []

    with pytest.raises(FleetAgentError):
        await market_over(answering(answer, asked=asked), PassingTime()).account()

    assert len(asked) == 1


@pytest.mark.parametrize(
    "body",
    [
        "{}",
        '{"credit": null}',
        '{"credit": "much"}',
        '{"credit": NaN}',
        '{"balance": 5}',
        '{"success": false, "credit": 5}',
    ],
)
async def test_an_account_without_a_readable_credit_is_not_an_account_without_credit(body: str):
    with pytest.raises(TryLater):
        await market_over(answering(httpx.Response(200, text=body)), PassingTime()).account()


async def test_a_retired_address_is_not_an_empty_account():
    answer = said(410, success=False, error="deprecated_endpoint", msg="use another")

    with pytest.raises(InventoryUnknown, match="410"):
        await market_over(answering(answer), PassingTime()).inventory()


async def test_a_list_that_is_not_there_is_unknown_and_not_a_box_that_is_gone():
    answer = said(404, success=False, error="not_found", msg="no such page")

    with pytest.raises(InventoryUnknown):
        await market_over(answering(answer), PassingTime()).inventory()


async def test_a_list_that_was_refused_for_too_many_requests_says_when_to_come_back():
    answer = httpx.Response(429, headers={"retry-after": "9"}, text="too many")

    with pytest.raises(SlowDown) as refusal:
        await market_over(answering(answer), PassingTime()).inventory()

    assert refusal.value.retry_after == timedelta(seconds=9)


async def test_a_provider_that_never_answers_is_given_up_at_the_deadline():
    async def silence(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    market = market_over(httpx.MockTransport(silence), PassingTime(), read_deadline=timedelta(0))

    with pytest.raises(InventoryUnknown, match="took over"):
        await market.inventory()
    for question in (market.account(), market.offers(OfferQuery(policy=POLICY)), market.logs(77, tail=5)):
        with pytest.raises(TryLater, match="took over"):
            await question


async def test_a_used_up_search_quota_is_not_asked_for_again_within_the_hour():
    asked: list[httpx.Request] = []
    time = PassingTime()
    market = market_over(answering(said(429, error="search_quota_exceeded"), asked=asked), time)
    for _ in range(3):
        with pytest.raises(SlowDown):
            await market.offers(OfferQuery(policy=POLICY))

    assert len(asked) == 1
    time.advance(timedelta(hours=1))
    with pytest.raises(SlowDown):
        await market.offers(OfferQuery(policy=POLICY))
    assert len(asked) == 2


# --- offers that cannot be read ---------------------------------------------------------------------------------------

OFFER: dict[str, Any] = {
    "id": 1,
    "machine_id": 11,
    "host_id": 111,
    "gpu_name": "RTX 4090",
    "num_gpus": 1,
    "gpu_ram": 24564,
    "gpu_frac": 1.0,
    "dph_total": 0.4123,
    "reliability2": 0.998,
    "verification": "verified",
    "inet_down": 900.0,
    "disk_space": 800.0,
}


async def offered(*rows: object) -> list[int]:
    return [offer.id for offer in await offers_from(*rows)]


async def offers_from(*rows: object, policy: Policy = POLICY) -> tuple[Offer, ...]:
    market = market_over(answering(httpx.Response(200, json={"offers": list(rows)})), PassingTime())
    return await market.offers(OfferQuery(policy=policy))


@pytest.mark.parametrize(
    "broken",
    [
        None,
        "row",
        [],
        {},
        *(
            {**OFFER, "id": 2, "machine_id": 12, name: value}
            for name, value in [
                ("dph_total", None),
                ("dph_total", 10_000),
                ("dph_total", float("1e300")),
                ("gpu_ram", None),
                ("id", 0),
                ("id", 2**63),
                ("machine_id", -1),
                ("machine_id", 2**63),
                ("num_gpus", 2**31),
                ("gpu_frac", 1e300),
            ]
        ),
    ],
    ids=str,
)
async def test_a_row_that_cannot_be_read_hides_no_other(broken: object):
    assert await offered(broken, OFFER) == [1]


@pytest.mark.parametrize("name", ["reliability2", "verification", "inet_down", "gpu_frac", "disk_space"])
async def test_an_offer_that_does_not_say_whether_it_meets_a_floor_does_not_meet_it(name: str):
    assert await offered({**OFFER, name: None}) == []


async def test_control_the_same_offer_with_everything_said_is_offered():
    assert await offered(OFFER) == [1]


@pytest.mark.parametrize("name", ["host_id", "geolocation", "cpu_ram", "cpu_cores_effective", "cuda_max_good"])
async def test_an_offer_may_leave_out_what_no_floor_is_about(name: str):
    assert await offered({**OFFER, name: None}) == [1]


async def test_offers_of_which_none_can_be_read_are_not_no_offers():
    with pytest.raises(TryLater, match="none of 2 offers"):
        await offered({"id": 1}, {"id": 2})


async def test_a_filter_that_the_provider_forgot_is_applied_on_our_side():
    assert await offered({**OFFER, "gpu_frac": 0.5}, {**OFFER, "id": 2, "gpu_ram": 8000}) == []


async def test_of_two_offers_of_one_machine_the_cheaper_is_shown():
    assert await offered({**OFFER, "id": 5, "dph_total": 0.5}, OFFER) == [1]


async def test_of_a_shared_machine_only_the_share_of_its_memory_is_offered():
    policy = Policy(offers=OfferFloors(whole_machine=False))

    [offer] = await offers_from({**OFFER, "gpu_frac": 0.25, "cpu_ram": 256_000}, policy=policy)

    assert offer.ram_mb == 64_000


# --- logs -------------------------------------------------------------------------------------------------------------


async def test_a_log_that_never_appears_is_given_up_after_ten_seconds():
    time = PassingTime()
    wanted = said(200, success=True, result_url="http://logs.test/1?signature=made-up")

    with pytest.raises(TryLater):
        await market_over(answering(wanted, httpx.Response(404)), time).logs(77, tail=5)

    assert sum(time.slept) == pytest.approx(10)


@pytest.mark.parametrize("address", ["http://logs.test:99999/1", "http://[::1", "", "/1"])
async def test_a_log_whose_address_is_none_is_not_fetched(address: str):
    asked: list[httpx.Request] = []
    wanted = said(200, success=True, result_url=address)

    with pytest.raises(TryLater, match="address"):
        await market_over(answering(wanted, asked=asked), PassingTime()).logs(77, tail=5)

    assert len(asked) == 1


async def test_of_an_endless_log_only_the_end_is_kept():
    wanted = said(200, success=True, result_url="http://logs.test/1")
    log = httpx.Response(200, content=b"x" * 1_000_000 + b"\nthe end")

    text = await market_over(answering(wanted, log), PassingTime()).logs(77, tail=2)

    assert text.endswith("\nthe end")
    assert len(text) <= 256 * 1024
