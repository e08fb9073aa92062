"""What becomes of the owner does not touch the prover: a box that is not heard goes on, and one that nobody knows falls
silent."""

from __future__ import annotations

import http.client
import socket
from urllib.parse import urlsplit

import pytest

from tests.box.conftest import Machine
from tests.box.door import DRAIN, TOKEN, WELL, Answer, Owner, owning
from tests.stack.waiting import until

RUN = "curio run --name C.101"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(500), "it answers 500"),
        (Answer(503, headers=(("Retry-After", "0.1"),)), "it answers 503"),
        (Answer(429, headers=(("Retry-After", "soon"),)), "it answers 429"),
        (Answer(400), "it answers 400"),
        (Answer(302, headers=(("Location", "http://127.0.0.1:1/"),)), "it answers 302"),
        (Answer(200, b"<html>Welcome to the Wi-Fi of this hotel"), "its answer makes no sense"),
        (Answer(200, b"\xff{"), "its answer makes no sense"),
        (Answer(200, b"[]"), "its answer makes no sense"),
        (Answer(200, b"{}"), "its answer makes no sense"),
        (Answer(200, b'{"drain": false' + b" " * 20_000), "its answer makes no sense"),
        (Answer(hangs=True), "no answer in time"),
        (Answer(drips=True), "no answer in time"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_an_owner_in_trouble_is_tried_again_and_the_prover_does_not_wait_for_it(
    machine: Machine, owner: Owner, answer: Answer, words: str
) -> None:
    owner.answer = lambda _: answer
    life = machine.starts(BOX_POST_WITHIN="1" if answer.hangs or answer.drips else "60")
    life.noted(RUN)
    life.says(f"the owner does not hear ({words}); it is tried again")
    owner.answer = lambda _: WELL
    life.says("the owner hears again")
    owner.until(lambda words: words["stage"] == "proving")

    assert life.log().count("does not hear") == 1  # once for each trouble, not for each try


@pytest.mark.parametrize("drain", ['"yes"', "1", "null", '{"drain": true}'])
def test_only_a_plain_yes_drains(machine: Machine, owner: Owner, drain: str) -> None:
    owner.answer = lambda _: Answer(body=f'{{"drain": {drain}}}'.encode())
    life = machine.starts()
    life.noted(RUN)
    owner.posts(5)

    assert "is to drain" not in life.log()


def test_an_owner_whose_time_out_begins_anew_with_each_byte_is_waited_for_for_ever(owner: Owner) -> None:
    """Control: the naive reader, whose time-out is the socket's own, is still reading when the owner stops."""
    owner.answer = lambda _: Answer(drips=True)
    address = urlsplit(owner.address)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=0.2)
    connection.request("POST", address.path, b"{}")
    answer = connection.getresponse()

    assert len(answer.read(50)) == 50  # fifty times two hundredths of a second
    connection.close()


def test_an_owner_who_is_down_for_long_is_found_again(machine: Machine, owner: Owner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    life = machine.starts(FLEET_BOX_HOOK=f"http://127.0.0.1:{port}/box/{TOKEN}")
    life.noted(RUN)
    life.says("the owner does not hear (ConnectionRefusedError)")
    with owning(port) as found:
        found.until(lambda words: words["stage"] == "proving")
        life.says("the owner hears again")


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_box_that_nobody_knows_falls_silent_and_proves_on(machine: Machine, owner: Owner, status: int) -> None:
    owner.answer = lambda _: Answer(status)
    life = machine.starts()
    life.says(f"the owner does not know this box (it answers {status})")
    life.noted(RUN)
    owner.answer = lambda _: DRAIN  # it does not come back to hear that
    counted = owner.counted
    until(lambda: owner.counted > counted + 5)

    assert len(owner.heard) == 3
    assert "is to drain" not in life.log()


def test_a_refusal_or_two_may_be_a_proxy_that_lost_its_way(machine: Machine, owner: Owner) -> None:
    """The control of the one before."""
    owner.answer = lambda before: Answer(404) if before % 3 < 2 else WELL
    life = machine.starts()
    owner.until(lambda words: words["stage"] == "proving")
    owner.posts(7)

    assert "does not know this box" not in life.log()


def test_last_words_are_said_again_where_nobody_heard_them(machine: Machine, owner: Owner) -> None:
    """A few times: whoever gives up has nothing to wait for."""
    owner.answer = lambda _: Answer(500)
    life = machine.starts(BOX_FETCH="exit 1")

    assert life.ends() == 3
    assert sum("gave_up" in words for words in owner.heard) == 3
