"""Unknown is not empty: whatever happens to a list of boxes on its way, it arrives whole or not at all."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet_agent.clients.vast import ROWS_PER_PAGE
from fleet_agent.errors import InventoryUnknown
from tests.clients.world import PassingTime, market_over

Page = dict[str, Any]
Reader = Callable[[list[bytes]], list[int] | None]

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**9) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def pages_of(boxes: int) -> list[Page]:
    """The list of an account as the provider pages it."""
    rows = [
        {"id": 1000 + n, "machine_id": 1 + n, "num_gpus": 1, "dph_total": 0.4, "start_date": 1.7e9, "label": None}
        for n in range(boxes)
    ]
    cuts = [rows[at : at + ROWS_PER_PAGE] for at in range(0, max(boxes, 1), ROWS_PER_PAGE)]
    return [
        {
            "success": True,
            "instances_found": len(cut),
            "total_instances": boxes,
            "next_token": str(number + 1) if number + 1 < len(cuts) else None,
            "instances": cut,
        }
        for number, cut in enumerate(cuts)
    ]


def served(answers: list[bytes]) -> httpx.MockTransport:
    """Each page under its token; a token that no page has is answered with the first page again."""

    def answer(request: httpx.Request) -> httpx.Response:
        token = request.url.params.get("after_token", "0")
        number = int(token) if token.isdigit() and int(token) < len(answers) else 0
        return httpx.Response(200, content=answers[number], headers={"content-type": "application/json"})

    return httpx.MockTransport(answer)


def our_reader(answers: list[bytes]) -> list[int] | None:
    """The ids that our client lists, None where it says that the list is unknown."""
    try:
        inventory = asyncio.run(market_over(served(answers), PassingTime()).inventory())
    except InventoryUnknown:
        return None
    return [box.id for box in inventory.instances]


def naive_reader(answers: list[bytes]) -> list[int] | None:
    """As the official client reads: what is missing is empty, and nobody counts."""
    ids: list[int] = []
    for answer in answers:
        try:
            page = json.loads(answer)
        except ValueError:
            continue
        rows = (page.get("instances") if isinstance(page, dict) else None) or []
        ids += [row["id"] for row in rows if isinstance(row, dict) and "id" in row]
    return ids


@st.composite
def mutilations(draw: st.DrawFn) -> tuple[int, list[bytes]]:
    """The number of boxes of an account, and its pages with one thing wrong."""
    boxes = draw(st.integers(0, 60))
    pages = copy.deepcopy(pages_of(boxes))
    number = draw(st.integers(0, len(pages) - 1))
    page = pages[number]
    rows = page["instances"]
    answers: list[bytes] | None = None
    wrong = draw(st.sampled_from(["field gone", "field odd", "row gone", "row twice", "row odd", "cell odd", "cut"]))
    if wrong == "field gone":
        del page[draw(st.sampled_from(sorted(page)))]
    elif wrong == "field odd":
        page[draw(st.sampled_from(sorted(page)))] = draw(ANY_JSON)
    elif wrong == "row gone" and rows:
        rows.pop(draw(st.integers(0, len(rows) - 1)))
    elif wrong == "row twice" and rows:
        rows.append(draw(st.sampled_from(rows)))
    elif wrong == "row odd" and rows:
        rows[draw(st.integers(0, len(rows) - 1))] = draw(ANY_JSON)
    elif wrong == "cell odd" and rows:
        row = draw(st.sampled_from(rows))
        row[draw(st.sampled_from(["machine_id", "num_gpus", "dph_total", "start_date", "label"]))] = draw(ANY_JSON)
    elif wrong == "cut":
        answers = [json.dumps(page).encode() for page in pages]
        answers[number] = answers[number][: draw(st.integers(0, len(answers[number]) - 1))]
    return boxes, answers or [json.dumps(page).encode() for page in pages]


def is_whole_or_unknown(ids: list[int] | None, boxes: int) -> bool:
    return ids is None or sorted(ids) == [1000 + n for n in range(boxes)]


@settings(deadline=None)
@given(mutilations())
def test_a_list_with_one_thing_wrong_is_read_whole_or_is_unknown(mutilation: tuple[int, list[bytes]]):
    boxes, answers = mutilation

    assert is_whole_or_unknown(our_reader(answers), boxes)


def changed(boxes: int, number: int, **fields: object) -> list[bytes]:
    pages = pages_of(boxes)
    pages[number] |= fields
    return [json.dumps(page).encode() for page in pages]


@pytest.mark.parametrize(
    "answers",
    [
        [b"{}"],
        [b'{"success": true, "instances": []}'],
        [b'{"success": true, "total_instances": 0}'],
        changed(0, 0, success=False),
        changed(0, 0, instances=None),
        changed(0, 0, total_instances=None),
        changed(0, 0, total_instances=1),
        changed(3, 0, success=False),
        changed(30, 1, total_instances=31),
        changed(30, 1, instances=[], next_token="1"),
        changed(30, 0, next_token="leads back to the first page"),
        changed(30, 1, next_token="leads back to the first page"),
    ],
    ids=lambda answers: str(answers[-1])[:80],
)
def test_a_list_that_might_be_short_is_unknown(answers: list[bytes]):
    assert our_reader(answers) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 0),
        ("id", 2**63),
        ("machine_id", -1),
        ("machine_id", 2**63),
        ("num_gpus", 2**31),
        ("dph_total", 10_000),
        ("dph_total", 1e300),
    ],
)
def test_a_list_with_a_number_that_cannot_be_is_unknown(name: str, value: float):
    [page] = pages_of(1)
    page["instances"][0][name] = value

    assert our_reader([json.dumps(page).encode()]) is None


def test_a_provider_that_never_stops_listing_is_not_followed_for_ever():
    asked: list[str | None] = []

    def more(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.params.get("after_token"))
        [page] = pages_of(1)
        page["instances"][0]["id"] = len(asked)
        return httpx.Response(200, json=page | {"next_token": str(len(asked))})

    with pytest.raises(InventoryUnknown):
        asyncio.run(market_over(httpx.MockTransport(more), PassingTime()).inventory())

    assert asked == [None, "1"]


def test_every_list_without_anything_wrong_is_read_whole():
    for boxes in (0, 1, 24, 25, 26, 50, 51, 60):
        answers = [json.dumps(page).encode() for page in pages_of(boxes)]
        assert our_reader(answers) == [1000 + n for n in range(boxes)]


def test_control_a_reader_that_takes_missing_for_empty_fails_the_same_check():
    def spoiled(spoil: Callable[[list[Page]], None]) -> list[bytes]:
        pages = pages_of(30)
        spoil(pages)
        return [json.dumps(page).encode() for page in pages]

    mistakes = [
        spoiled(lambda pages: pages[0].update(instances=None)),
        spoiled(lambda pages: pages[1].update(success=False, instances=[])),
        spoiled(lambda pages: pages[0]["instances"].pop()),
        spoiled(lambda pages: pages[0]["instances"].append(pages[0]["instances"][0])),
        [b"<html>", b"<html>"],
    ]

    assert not any(is_whole_or_unknown(naive_reader(answers), 30) for answers in mistakes)
    assert all(is_whole_or_unknown(our_reader(answers), 30) for answers in mistakes)
