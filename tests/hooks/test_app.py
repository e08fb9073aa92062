"""The door: who is let in, what is stored before it is answered, and the numbers that senders act on."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import psycopg
import pytest

from fleet_agent.hooks.app import BATCH, LARGEST_BODY, hooks_app
from fleet_agent.hooks.rate import Buckets
from fleet_agent.store.database import open_database
from tests.hooks.bodies import alert, group
from tests.hooks.conftest import MOST_POSTS, Door, token_of
from tests.postgres import plain
from tests.store.rig import Fleet


def texts(door: Door) -> list[str]:
    return [row["text"] for row in door.fleet.rows("inbox")]


# --- what is stored ---------------------------------------------------------------------------------------------------


async def test_a_post_is_answered_when_its_event_is_there_for_everybody(door: Door) -> None:
    answer = await door.post({"title": "Disk", "message": "is full"}, source="backup.sh")

    (row,) = door.fleet.rows("inbox")

    assert (answer.status_code, answer.json()) == (200, {"events": 1})
    assert (row["source"], row["kind"], row["priority"]) == ("backup.sh", "webhook", 1)
    assert (row["text"], row["payload"]) == ("backup.sh: Disk: is full", {"title": "Disk", "message": "is full"})


async def test_a_group_that_is_told_again_brings_only_what_is_new(door: Door) -> None:
    await door.post(group(alert("QueueStarved"), alert("DiskFull")))
    await door.fleet.run_through()
    await door.post(group(alert("DiskFull"), alert("QueueStarved"), alert("TooHot")))

    assert sorted(text.split()[1] for text in texts(door)) == ["DiskFull", "QueueStarved", "TooHot"]


async def test_the_severity_of_an_alert_decides_how_urgent_it_is(door: Door) -> None:
    for severity in ("critical", "info"):
        await door.post(group(alert(severity, labels={"alertname": severity, "severity": severity})))

    assert [row["priority"] for row in door.fleet.rows("inbox")] == [1, 2]


async def test_a_large_group_is_stored_whole_in_several_transactions(door: Door) -> None:
    alerts = [alert(f"A{number}", fingerprint=str(number)) for number in range(2 * BATCH + 1)]

    answer = await door.post(group(*alerts))

    rows = door.fleet.rows("inbox")
    assert answer.json() == {"events": len(alerts)}
    assert len(rows) == len(alerts)


async def test_a_post_that_is_sent_again_under_its_name_is_stored_once(door: Door) -> None:
    """Control: without a name the same words are two events."""
    for headers in ({"Idempotency-Key": "1"}, {"Idempotency-Key": "1"}, {}, {}):
        await door.post({"text": "hello"}, headers=headers)

    assert texts(door) == ["prom: hello"] * 3


async def test_the_event_belongs_to_the_fleet_of_the_token(door: Door) -> None:
    east = Fleet(door.fleet.database, name="east")
    answer = await door.sender.post(f"/hooks/prom/{token_of(east)}", json={"text": "for east"})

    assert answer.status_code == 200
    assert (texts(door), [row["text"] for row in east.rows("inbox")]) == ([], ["prom: for east"])


# --- who is let in ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["path", "bearer", "basic"])
async def test_the_token_is_taken_from_where_a_sender_can_put_it(door: Door, way: str) -> None:
    async def status(token: str) -> int:
        path = f"/hooks/prom/{token}" if way == "path" else "/hooks/prom"
        request: dict[str, Any] = {
            "path": {},
            "bearer": {"headers": {"Authorization": f"bearer {token}"}},
            "basic": {"auth": ("anybody", token)},
        }[way]
        return (await door.sender.post(path, json={}, **request)).status_code

    assert (await status(door.token), await status("guess")) == (200, 401)


@pytest.mark.parametrize("header", ["", "Basic", "Basic !!!", "Basic //79", "Digest x", "Bearer "])
async def test_who_brings_no_token_is_refused_and_told_how_to_bring_one(door: Door, header: str) -> None:
    answer = await door.sender.post("/hooks/prom", json={}, headers={"Authorization": header} if header else {})

    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == 'Basic realm="hooks"'
    assert texts(door) == []


async def test_a_token_that_was_replaced_lets_nobody_in(door: Door) -> None:
    new = token_of(door.fleet)

    assert (await door.post({})).status_code == 401
    door.token = new
    assert (await door.post({})).status_code == 200


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["Prom", "a" * 33, "-", "a b"])
async def test_a_source_has_a_plain_name(door: Door, source: str) -> None:
    assert (await door.post({}, source=source)).status_code == 400


async def test_what_is_no_json_is_refused_for_good(door: Door) -> None:
    answer = await door.post(content=b"status=firing")

    assert (answer.status_code, answer.text) == (400, "the body is no JSON → send a JSON value in UTF-8\n")


async def test_a_megabyte_is_read_and_more_is_refused(door: Door) -> None:
    def body(size: int) -> bytes:
        return b'"' + b"x" * (size - 2) + b'"'

    async def in_pieces(size: int) -> AsyncGenerator[bytes]:
        whole = body(size)
        for start in range(0, size, 65_536):
            yield whole[start : start + 65_536]

    assert (await door.post(content=body(LARGEST_BODY))).status_code == 200
    assert (await door.post(content=body(LARGEST_BODY + 1))).status_code == 413
    # A sender need not say beforehand how long it will be.
    assert (await door.post(content=in_pieces(LARGEST_BODY))).status_code == 200
    assert (await door.post(content=in_pieces(LARGEST_BODY + 1))).status_code == 413


async def test_a_sender_that_never_stops_is_slowed_down_and_the_others_are_not(door: Door) -> None:
    answers = [(await door.post({})).status_code for _ in range(MOST_POSTS)]
    slowed = await door.post({})
    other = await door.post({}, source="curio")

    assert answers == [200] * MOST_POSTS
    assert (slowed.status_code, slowed.headers["retry-after"]) == (429, "1")
    assert other.status_code == 200


# --- when it is our fault ---------------------------------------------------------------------------------------------


async def test_while_the_database_refuses_the_sender_is_to_try_again_and_may_when_it_is_back(
    door: Door, database_url: str
) -> None:
    def let_in(allowed: bool) -> None:
        with psycopg.connect(plain(database_url).replace(name, "postgres"), autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {allowed}")
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

    with psycopg.connect(plain(database_url)) as connection:
        name = connection.info.dbname
    let_in(False)
    down = await door.post({"text": "hello"})
    let_in(True)
    back = await door.post({"text": "hello"})

    assert (down.status_code, down.text, down.headers["retry-after"]) == (503, "not stored: send it again\n", "1")
    assert back.status_code == 200
    assert texts(door) == ["prom: hello"]


async def test_a_post_that_cannot_be_committed_is_not_answered_200(door: Door, database_url: str) -> None:
    """The lock of the fleet is not free: what was told is nowhere, so the sender must tell it again."""
    hurried = open_database(f"{database_url}&options=-c%20lock_timeout%3D50ms")
    app = hooks_app(hurried, door.fleet.clock, Buckets(door.fleet.clock.elapsed))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://hooks.invalid") as sender:
        with door.fleet.database.exclusive(door.fleet.name):
            held = await sender.post(f"/hooks/prom/{door.token}", json={"text": "hello"})
        free = await sender.post(f"/hooks/prom/{door.token}", json={"text": "hello"})
    hurried.close()

    assert (held.status_code, free.status_code) == (503, 200)
    assert texts(door) == ["prom: hello"]


# --- what is logged ---------------------------------------------------------------------------------------------------


async def test_a_refusal_is_logged_with_its_source_and_never_with_the_token(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="fleet_agent")
    for path in (f"/hooks/curio/{door.token}x", f"/hooks/{door.token}", f"/hooks/{door.token}/prom"):
        assert (await door.sender.post(path, json={})).status_code == 401
    assert (await door.post(content=b"no json", source="curio")).status_code == 400

    assert "refused a post of curio: the token is missing or not ours" in caplog.messages
    assert "refused a post of a source without a proper name: the token is missing or not ours" in caplog.messages
    assert "refused a post of curio: the body is no JSON → send a JSON value in UTF-8" in caplog.messages
    assert door.token not in "".join(caplog.messages)
