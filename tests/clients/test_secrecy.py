"""No key, no secret of a box and no signed address reaches a log, an error or a traceback."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Generator

import httpx
import httpx2
import pytest
from pydantic import SecretStr

from fleet_agent.clients.model import DEADLINE, ChatModel, ChatOptions
from fleet_agent.clients.model import open_client as open_model_client
from fleet_agent.clients.notify import AppriseNotifier
from fleet_agent.clients.secrecy import LONGEST_QUOTE, TALKATIVE, bare_address, quiet_transport_logs, quoted
from fleet_agent.clients.vast import open_client as open_vast_client
from fleet_agent.domain.box_reports import VARIABLE
from fleet_agent.domain.tokens import by_bytes
from fleet_agent.errors import FleetAgentError, KeyRefused
from fleet_agent.ports import OfferQuery
from tests.clients.world import KEY, POLICY, PassingTime, answering, market_over, order

BOX_SECRET = "made-up-box-secret-0123456789"
SIGNATURE = "made-up-signature-0123456789"
MODEL_KEY = "made-up-model-key-0123456789"
NOTIFY_TOKEN = "madeuptoken0123456789"
BOX_TOKEN = "box_made-up-token-of-a-box-that-nobody-knows-47"
SECRETS = (KEY, BOX_SECRET, SIGNATURE, MODEL_KEY, NOTIFY_TOKEN, BOX_TOKEN)

ECHO = f"cannot do that: key {KEY}, env TOKEN={BOX_SECRET} {VARIABLE}=https://fleet.test/box/{BOX_TOKEN}"
SERVERS = [
    *(
        httpx.Response(status, json={"success": False, "error": "e", "msg": ECHO})
        for status in (200, 400, 401, 429, 500)
    ),
    httpx.Response(200, json={"credit": None, "api_key": KEY, "instances": KEY, "offers": KEY, "result_url": [KEY]}),
    httpx.Response(502, text=ECHO),
    httpx.ReadTimeout(ECHO.replace(KEY, "…").replace(BOX_SECRET, "…").replace(BOX_TOKEN, "…")),
]


LOG_ADDRESS = httpx.Response(200, json={"result_url": f"http://logs.test/1?signature={SIGNATURE}"})


@pytest.fixture
def everything_logged(caplog: pytest.LogCaptureFixture) -> Generator[pytest.LogCaptureFixture]:
    """A process that logs all it can, after the start that the product makes."""
    levels = {name: logging.getLogger(name).level for name in TALKATIVE}
    caplog.set_level(logging.DEBUG)
    quiet_transport_logs()
    yield caplog
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


async def told(question: Awaitable[object]) -> str:
    """Everything that a question may leave behind: its answer, its error, the whole traceback."""
    try:
        return str(await question)
    except FleetAgentError as error:
        return "".join(traceback.format_exception(error)) + repr(error) + str(error.remedy)


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


@pytest.mark.parametrize("server", SERVERS, ids=lambda server: str(server)[:40])
async def test_whatever_the_provider_answers_no_secret_is_told(
    everything_logged: pytest.LogCaptureFixture, server: httpx.Response | Exception
):
    market = market_over(answering(server), PassingTime(), box_env={"TOKEN": BOX_SECRET}, limits={})

    texts = [
        await told(market.inventory()),
        await told(market.offers(OfferQuery(policy=POLICY))),
        await told(market.account()),
        await told(market.rent(order(40_000_001, env={"TOKEN": "$TOKEN"}, hook=SecretStr(BOX_TOKEN)))),
        await told(market.destroy(77)),
        await told(market.logs(77, tail=5)),
    ]

    assert secrets_in("".join(texts)) == []
    assert secrets_in(everything_logged.text) == []


@pytest.mark.parametrize(
    "log",
    [
        httpx.Response(200, text=f"TOKEN={BOX_SECRET}\n{VARIABLE}=https://fleet.test/box/{BOX_TOKEN}"),
        httpx.Response(404, text=f"no such file: {SIGNATURE}"),
        httpx.ConnectError("no such host"),
        httpx.UnsupportedProtocol(f"http://logs.test/1?signature={SIGNATURE}"),
    ],
    ids=str,
)
async def test_neither_the_signed_address_of_a_log_nor_a_secret_printed_in_it_is_told(
    everything_logged: pytest.LogCaptureFixture, log: httpx.Response | Exception
):
    market = market_over(answering(LOG_ADDRESS, log), PassingTime(), box_env={"TOKEN": BOX_SECRET}, limits={})

    text = await told(market.logs(77, tail=5))

    assert secrets_in(text) == []
    assert secrets_in(everything_logged.text) == []


@pytest.mark.parametrize("status", [200, 400, 401, 404, 429, 500])
async def test_whatever_the_model_server_answers_its_key_is_not_told(
    everything_logged: pytest.LogCaptureFixture, status: int
):
    server = httpx2.MockTransport(
        lambda _: httpx2.Response(status, json={"error": {"message": f"Incorrect API key provided: {MODEL_KEY}"}})
    )
    time = PassingTime()
    address = f"http://user:{SIGNATURE}@model.test/v1?token={SIGNATURE}"
    client = open_model_client(address, MODEL_KEY, transport=server)
    model = ChatModel(
        client, ChatOptions(model="wise-one"), count_tokens=by_bytes, elapsed=time.elapsed, sleep=time.sleep
    )

    text = await told(model.reply(model.body([{"role": "user", "content": "Hello?"}], []), within=DEADLINE))

    assert "API key" in text
    assert secrets_in(text) == []
    assert secrets_in(everything_logged.text) == []


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")
async def test_an_address_for_notifications_is_not_told(everything_logged: pytest.LogCaptureFixture):
    # Unknown schemes, bad ports and missing parts: nothing of this leaves the process.
    urls = [f"nosuch://{NOTIFY_TOKEN}", f"json://u:{NOTIFY_TOKEN}@host:99999999/", f"slack://{NOTIFY_TOKEN}"]

    text = await told(AppriseNotifier(urls).notify("Hello."))

    assert "none of the 3" in text
    assert secrets_in(text) == []
    assert secrets_in(everything_logged.text) == []


async def test_control_without_the_quiet_start_a_signed_address_is_logged(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    for name in TALKATIVE:  # as in a new process: any test before this one may have made them quiet
        caplog.set_level(logging.NOTSET, logger=name)
    market = market_over(answering(LOG_ADDRESS), PassingTime(), limits={})

    await told(market.logs(77, tail=5))

    assert secrets_in(caplog.text) == [SIGNATURE]


def test_control_an_error_that_repeats_the_server_word_for_word_tells_the_key():
    assert secrets_in(str(FleetAgentError(f"refused: {ECHO}"))) == [KEY, BOX_SECRET, BOX_TOKEN]
    assert secrets_in(str(FleetAgentError(f"refused: {quoted(ECHO, SECRETS)}"))) == []


def test_a_quote_is_one_short_line_of_printable_text():
    quote = quoted("one\ntwo\x1b[31m\u202ethree\x00 " + "x" * 5000)

    assert quote.startswith("one two [31m three x")
    assert quote.isprintable()
    assert len(quote) == LONGEST_QUOTE + 1


def test_a_secret_that_is_too_short_to_be_one_blanks_out_nothing():
    assert quoted("1 offer of 10", ["1", ""]) == "1 offer of 10"


@pytest.mark.parametrize("key", [f"{KEY}\n", f"“{KEY}”", f"Bearer {KEY}", f"{KEY}\x00"])
def test_what_cannot_be_a_key_is_refused_before_it_is_sent_and_not_repeated(key: str):
    for opening in (lambda: open_vast_client("http://vast.test", key), lambda: open_model_client("http://m.test", key)):
        with pytest.raises(KeyRefused) as error:
            opening()
        assert KEY not in str(error.value)


@pytest.mark.parametrize(
    ("url", "bare"),
    [
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000/v1"),
        ("https://user:password@host/v1?key=secret#part", "https://host/v1"),
        ("https://host", "https://host"),
    ],
)
def test_an_address_is_shown_without_user_password_and_query(url: str, bare: str):
    assert bare_address(url) == bare
