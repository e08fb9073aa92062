"""The verbs on boxes, brakes and what waits for a person's word."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from fleet_agent.domain.actions import RentBox
from fleet_agent.store import session
from fleet_agent.store.database import open_database
from fleet_agent.store.installation import read_clock
from tests.cli.conftest import Run
from tests.store.rig import IMAGE, Fleet, offer


@dataclass
class House:
    """A fleet with box 101, one action that waits for a word, and the command line in front of it."""

    fleet: Fleet
    call: Run
    waiting: str

    def json(self, *arguments: str) -> Any:
        return json.loads(self.call(*arguments, "--json").out)


@pytest.fixture
async def house(fleet_agent: Run, database_url: str) -> AsyncGenerator[House]:
    database = open_database(database_url)
    fleet = Fleet(database)
    fleet.set_policy(launch__image=IMAGE)
    run = await fleet.open()
    await fleet.rented(run)
    fleet.set_policy(approvals__always='["rent_box"]')
    (ruled,) = await fleet.reply(run, RentBox(offer_id=2, reason="work waits"), step=2, offers=[offer(id=2)])
    await fleet.close(run)
    yield House(fleet, fleet_agent, ruled.key)
    database.close()


def test_boxes_are_listed_with_the_columns_of_the_table_and_without_the_digest_of_a_token(house: House) -> None:
    (box,) = house.json("boxes", "list")

    assert (box["vast_id"], box["stage"], box["agreed_usd_per_hour"], box["protected"]) == (101, "rented", 0.4, False)
    assert {"drain_by", "tasks", "proofs_per_hour", "spent_usd"} <= box.keys()
    assert "hook_digest" not in box
    heading, row = house.call("boxes", "list").out.splitlines()
    assert heading.split()[:2] == ["box", "stage"]
    assert row.split()[:2] == ["101", "rented"]
    assert "1x RTX 4090" in row


@pytest.mark.parametrize(("verb", "tool"), [("drain", "drain_box"), ("destroy", "destroy_box")])
def test_an_order_is_kept_and_without_a_watch_it_is_said_that_nobody_carries_it_out(
    house: House, verb: str, tool: str
) -> None:
    said = house.call("boxes", verb, "101")
    (order,) = [row for row in house.json("ledger") if row["actor"] == "operator"]

    assert (said.code, "no watch runs" in said.out) == (0, True)
    assert (order["tool"], order["status"], order["sentence"]) == (tool, "intended", "Ordered by cli.")


def test_a_box_is_protected_from_your_own_orders_until_you_take_that_back(house: House) -> None:
    assert house.call("boxes", "protect", "101").out == "Box 101 is protected.\n"
    assert "rented, protected" in house.call("boxes", "list").out
    refused = house.call("boxes", "destroy", "101")
    assert house.call("boxes", "protect", "101", "--off").out == "Box 101 is protected no more.\n"

    assert (refused.code, refused.out) == (2, "")
    assert refused.err == "fleet-agent: box 101 is protected → fleet-agent boxes protect 101 --off\n"
    assert house.call("boxes", "destroy", "101").code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        *(["boxes", "drain", "7"], ["boxes", "destroy", "7"], ["boxes", "protect", "7"], ["boxes", "drain", "x"]),
        *(["approve", "guess"], ["reject", "guess"], ["approve"], ["boxes", "destroy", "9" * 30]),
        ["resume", "--scale-out", "--dry-run"],
    ],
)
def test_what_cannot_be_done_is_one_line(house: House, arguments: list[str]) -> None:
    said = house.call(*arguments)

    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert " → " in said.err


def test_what_waits_for_a_word_is_in_status_and_ledger_with_its_bound_and_how_to_answer(house: House) -> None:
    line = next(line for line in house.call("status").out.splitlines() if line.startswith("APPROVAL"))
    (approval,) = house.json("status")["approvals"]

    assert "rent one 1x RTX 4090 for at most $0.400/h, until 2026-03-17 16:00 UTC" in line
    assert line.endswith(f"→ fleet-agent approve {house.waiting}, or reject {house.waiting}")
    assert (approval["key"], approval["tool"]) == (house.waiting, "rent_box")
    assert "rent one 1x RTX 4090 for at most $0.400/h" in house.call("ledger").out


def test_brakes_stand_in_status_with_how_to_let_go_of_them(house: House) -> None:
    assert "BRAKE" not in house.call("status").out
    assert "Paused: renting." in house.call("pause", "--scale-out").out
    assert "Paused: renting and giving boxes up." in house.call("pause", "--scale-out", "--scale-in").out
    house.call("pause")
    with house.fleet.database.exclusive("main") as tx:
        state = session.state(tx, "main")
        state.rent_breaker, state.frozen_because = "5 rents in a row came to nothing", "the list lacks all boxes"
    lines = [line.split("  ")[-1].strip() for line in house.call("status").out.splitlines() if "BRAKE" in line]

    assert lines == [
        "the fleet is paused → fleet-agent resume",
        "nothing is rented → fleet-agent resume --scale-out",
        "no box is given up → fleet-agent resume --scale-in",
        "nothing is rented: 5 rents in a row came to nothing → fleet-agent resume --scale-out",
        "nothing happens by itself: the list lacks all boxes → fleet-agent resume",
    ]


def test_one_brake_is_let_go_alone_and_resume_lets_go_of_all(house: House) -> None:
    house.call("pause", "--scale-out", "--scale-in")
    house.call("pause")
    said = house.call("resume", "--scale-in").out
    half = house.json("status")
    house.call("resume")
    whole = house.json("status")

    names = ("mode", "scale_out_paused", "scale_in_paused")
    assert said == "Resumed: giving boxes up. The mode is paused.\n"
    assert [half[name] for name in names] == ["paused", True, False]
    assert [whole[name] for name in names] == ["live", False, False]


async def test_an_answer_is_given_by_key(house: House) -> None:
    """The clock of the command line is a real one, so the question has to be as young."""
    house.fleet.clock.jump(read_clock(house.fleet.database).now() - house.fleet.clock.now())
    run = await house.fleet.open()
    keys: list[str] = []
    for step in (1, 2):
        (ruled,) = await house.fleet.reply(run, RentBox(offer_id=3, reason="more"), step=step, offers=[offer(id=3)])
        keys.append(ruled.key)
    await house.fleet.close(run)
    approved, rejected = house.call("approve", keys[0]), house.call("reject", keys[1])
    statuses = {row["key"]: (row["status"], row["approved_by"]) for row in house.json("ledger")}

    assert approved.out.startswith("Approved: rent one 1x RTX 4090 for at most $0.400/h, until ")
    assert rejected.out == f"Rejected {keys[1]}. The next run knows.\n"
    assert [statuses[key] for key in keys] == [("awaiting_approval", "cli"), ("refused", None)]
