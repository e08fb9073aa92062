"""What models may cost: in the books before a request is sent, put right by its answer, and never more than allowed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from fleet_agent.domain.context import TARGET_TOKENS
from fleet_agent.domain.run import ModelReply, ToolCall, Usage
from fleet_agent.domain.spending import Prices, Terms, alike
from fleet_agent.domain.tokens import HARD_TOKENS, by_bytes, request_tokens
from fleet_agent.errors import ContextTooLong, ModelUnreachable, Spent
from fleet_agent.ports import Model
from fleet_agent.sim.scenarios import IDLE
from fleet_agent.store import notices, reading, session, spending
from tests.world import Installation, installation

DEAR = Prices(Decimal(10), Decimal(50))
LONGEST_REPLY = 2_000


class Died(BaseException):
    """The process is gone: nothing after it happens, not even an orderly failure."""


@dataclass
class PricedModel:
    """A model that finishes at once; it says in what state the books are when it is asked, and may fail or die."""

    fleet: Installation
    prices: Prices = DEAR
    factor: float = 1.0
    used: Usage = field(default_factory=lambda: Usage(tokens_in=100, tokens_out=10, cost_usd=Decimal("0.0015")))
    trouble: list[BaseException] = field(default_factory=list[BaseException])
    asked: int = 0
    books: list[spending.Spent] = field(default_factory=list[spending.Spent])

    def body(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        return {"model": "dear", "messages": list(messages), "tools": list(tools)}

    async def terms(self) -> Terms:
        return Terms(model="dear at here", factor=self.factor, max_output_tokens=LONGEST_REPLY, prices=self.prices)

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        self.asked += 1
        self.books.append(spent(self.fleet))
        if self.trouble:
            raise self.trouble.pop(0)
        arguments = '{"action": false, "state_changed": false, "summary": "All is well."}'
        call = ToolCall(id=f"call{self.asked:05d}", name="finish", arguments=arguments, provider_id="")
        return ModelReply(text="", calls=(call,), usage=self.used, model="dear at here", estimate=90, reported=100)


def priced(fleet: Installation, *trouble: BaseException, **values: Any) -> PricedModel:
    model = PricedModel(fleet, trouble=list(trouble), **values)
    fleet.ports = replace(fleet.ports, model=model)
    return model


def spent(fleet: Installation) -> spending.Spent:
    with fleet.database.transaction() as tx:
        return spending.of_the_day(tx, "main", now=fleet.time.now())


def usage(fleet: Installation) -> list[dict[str, Any]]:
    with fleet.database.transaction() as tx:
        return reading.usage(tx, "main", last=100)


def told(fleet: Installation) -> list[str]:
    with fleet.database.transaction() as tx:
        return [notice.text for notice in notices.untold(tx, "main")]


@pytest.fixture
async def fleet(database_url: str) -> AsyncGenerator[Installation]:
    async with installation(database_url, scenario=IDLE) as made:
        yield made


# --- booked before, put right after -----------------------------------------------------------------------------------


async def test_a_request_is_in_the_books_before_it_is_sent_and_its_answer_puts_them_right(fleet: Installation) -> None:
    model = priced(fleet)
    await fleet.run()

    (before,) = model.books
    assert before.calls == 1
    assert before.tokens > LONGEST_REPLY
    assert before.usd > Decimal("0.1"), "the longest reply alone costs as much"
    assert spent(fleet) == (1, 110, Decimal("0.0015"))
    (run,) = fleet.runs()
    assert (run["tokens_in"], run["tokens_out"], run["cost_usd"]) == (100, 10, Decimal("0.0015"))


async def test_who_dies_while_the_model_thinks_has_spent_what_was_booked(fleet: Installation) -> None:
    model = priced(fleet, Died())
    with pytest.raises(Died):
        await fleet.run()

    assert spent(fleet) == model.books[0]
    assert fleet.runs()[0]["tokens_in"] + LONGEST_REPLY == model.books[0].tokens


async def test_a_server_that_is_not_there_costs_nothing(fleet: Installation) -> None:
    """The control: a failure that is known to have cost nothing takes the booking back."""
    priced(fleet, ModelUnreachable("not there"))
    await fleet.run()
    assert spent(fleet) == (0, 0, 0)


async def test_a_failure_that_was_paid_for_is_in_the_books_with_what_it_cost(fleet: Installation) -> None:
    priced(fleet, ModelUnreachable("gave up", spent=Spent(70, 7, Decimal("0.001"))))
    await fleet.run()
    assert spent(fleet) == (1, 77, Decimal("0.001"))


async def test_runs_that_die_again_and_again_end_at_the_days_bound(fleet: Installation) -> None:
    model = priced(fleet, *(Died() for _ in range(50)))
    fleet.set_policy({"model.max_usd_per_day": "1"})
    for _ in range(20):
        if (await _run_or_die(fleet)) is not None:
            break

    assert 2 <= model.asked <= 8
    assert spent(fleet).usd <= 1
    assert fleet.runs()[-1]["exit_reason"] == "budget spent"


async def test_control_counting_only_what_is_answered_they_never_end(
    fleet: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Terms, "most", lambda _, __: Usage())
    model = priced(fleet, *(Died() for _ in range(50)))
    fleet.set_policy({"model.max_usd_per_day": "1"})
    for _ in range(20):
        await _run_or_die(fleet)
    assert model.asked == 20


async def _run_or_die(fleet: Installation) -> object:
    try:
        return await fleet.run()
    except Died:
        return None


async def test_a_server_that_never_answers_ends_at_the_days_requests_and_takes_none_of_its_tokens(
    fleet: Installation,
) -> None:
    """The control is the server that is not there, above: it would be asked for ever."""
    model = priced(fleet, *(ModelUnreachable("no answer in time", spent=Spent(0, 0, Decimal(0))) for _ in range(20)))
    fleet.set_policy({"model.max_calls_per_day": "3"})
    for _ in range(8):
        await fleet.run()
    assert model.asked == 3
    assert spent(fleet) == (3, 0, 0)


async def test_what_was_spent_in_a_time_to_come_holds_up_nothing_once_the_clock_is_right(fleet: Installation) -> None:
    """The control: as long as the clock stands so, it counts."""
    priced(fleet)
    right = fleet.time.now()
    fleet.time.advance(timedelta(days=3))
    await fleet.run()
    assert spent(fleet).calls == 1
    with fleet.database.transaction() as tx:
        assert spending.of_the_day(tx, "main", now=right).calls == 0


# --- when the day's budget is gone ------------------------------------------------------------------------------------

BOUNDS = {"requests": "model.max_calls_per_day", "tokens": "model.max_tokens_per_day", "$": "model.max_usd_per_day"}


@pytest.mark.parametrize("bound", BOUNDS)
async def test_when_the_days_budget_is_gone_nobody_is_asked_and_a_person_is_told_once(
    fleet: Installation, bound: str
) -> None:
    model = priced(fleet)
    await fleet.run()
    fleet.set_policy({BOUNDS[bound]: {"requests": "1", "tokens": "120", "$": "0.0016"}[bound]})
    fleet.say("Are you there?")

    for _ in range(6):
        await fleet.heartbeat()

    assert model.asked == 1
    assert {run["exit_reason"] for run in fleet.runs()[1:]} == {"budget spent"}
    assert sum(run["tokens_in"] for run in fleet.runs()[1:]) == 0
    (notice,) = told(fleet)
    assert BOUNDS[bound] in notice


async def test_what_a_person_said_waits_unharmed_for_the_budget_to_come_back(fleet: Installation) -> None:
    model = priced(fleet)
    fleet.set_policy({"model.max_calls_per_day": "1"})
    await fleet.run()
    fleet.say("Are you there?")
    for _ in range(10):
        await fleet.heartbeat()
    assert fleet.status()["quarantined"] == 0

    fleet.time.advance(timedelta(hours=25))
    await fleet.run()
    assert model.asked == 2
    with fleet.database.transaction() as tx:
        assert reading.inbox(tx, "main", last=10) == []


async def test_a_person_is_told_again_on_the_next_day(fleet: Installation) -> None:
    priced(fleet)
    fleet.set_policy({"model.max_calls_per_day": "0"})
    for _ in range(2):
        await fleet.run()
        fleet.time.advance(timedelta(hours=24))
    await fleet.run()
    assert len(told(fleet)) == 3


# --- a part that every prompt carries and that leaves no room ---------------------------------------------------------


async def test_a_pinned_part_that_leaves_no_room_costs_nothing_and_is_told_once(fleet: Installation) -> None:
    """Counted by bytes, an objective of the greatest length leaves too little of a window that counts four times."""
    with fleet.database.exclusive(fleet.fleet) as tx:
        session.state(tx, fleet.fleet).objective = "x" * 6_000
    model = priced(fleet, factor=4.0)
    fleet.ports = replace(fleet.ports, count_tokens=by_bytes)
    for _ in range(3):
        await fleet.heartbeat()
    assert model.asked == 0
    assert {run["exit_reason"] for run in fleet.runs()} == {"shorten objective"}
    (notice,) = told(fleet)
    assert "shorten the objective" in notice


async def test_a_server_that_counts_more_gets_shorter_prompts_from_the_first_request_on(database_url: str) -> None:
    """What was learnt of it is in the budget, before anything is refused."""
    async with installation(database_url) as fleet:
        model = Overheard(fleet.ports.model)
        fleet.ports = replace(fleet.ports, model=model)
        for number in range(40):
            fleet.say(f"Message {number}: " + "please remember this well. " * 30)
            await fleet.run()
        long = max(map(size, model.bodies))
        model.factor = HARD_TOKENS / (long * 0.9)
        model.bodies.clear()
        fleet.say("And now?")
        await fleet.run()
        assert model.bodies
        assert max(map(size, model.bodies)) * model.factor <= TARGET_TOKENS


def size(body: Mapping[str, Any]) -> int:
    return request_tokens(body["messages"], body["tools"], by_bytes)


# --- the bounds of one run --------------------------------------------------------------------------------------------


async def test_a_run_ends_before_the_request_that_could_break_its_bound_in_dollars(database_url: str) -> None:
    async with installation(database_url, model="greedy") as fleet:
        fleet.ports = replace(fleet.ports, model=AtAPrice(fleet.ports.model))
        fleet.set_policy({"run.max_usd": "0.3"})
        await fleet.run()
        (run,) = fleet.runs()
        assert (run["status"], run["exit_reason"]) == ("closed", "the bound of $0.30")
        assert 0 < run["cost_usd"] <= Decimal("0.3")


async def test_a_bound_that_no_request_fits_into_is_told_and_nothing_is_sent(fleet: Installation) -> None:
    model = priced(fleet)
    fleet.set_policy({"run.max_usd": "0.01"})
    for _ in range(3):
        await fleet.heartbeat()
    assert model.asked == 0
    (notice,) = told(fleet)
    assert "not one request fits within the bound of $0.01" in notice


async def test_a_run_whose_time_ends_before_its_first_request_is_not_told_as_a_bound_to_raise(
    fleet: Installation,
) -> None:
    model = priced(fleet)
    fleet.ports = replace(fleet.ports, model=SlowToTell(model, fleet))
    await fleet.run()
    assert told(fleet) == []
    assert "raise run.max_tokens" not in str(fleet.runs())


async def test_a_second_server_that_counts_still_more_gets_a_shorter_prompt_too(fleet: Installation) -> None:
    """In one run: the first refusal was of one server, the next is of another."""
    too_long = [ContextTooLong("too long", fits=fits) for fits in (25_000, 20_000)]
    model = Between(priced(fleet), too_long)
    fleet.ports = replace(fleet.ports, model=model)
    await fleet.run()
    assert [run["status"] for run in fleet.runs()] == ["closed"]
    assert too_long == []


class SlowToTell:
    """The same model; to say its terms takes all of a run's time."""

    def __init__(self, model: Model, fleet: Installation) -> None:
        self.body, self.reply = model.body, model.reply
        self._model, self._fleet = model, fleet

    async def terms(self) -> Terms:
        self._fleet.time.advance(timedelta(seconds=241))
        return await self._model.terms()


class Between:
    """The same model, after a look at the boxes; every other request is too long for whoever is asked."""

    def __init__(self, model: Model, too_long: list[ContextTooLong]) -> None:
        self.body, self.terms = model.body, model.terms
        self._model, self._too_long, self._asked = model, too_long, 0

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        self._asked += 1
        if self._asked % 2 and self._too_long:
            raise self._too_long.pop(0)
        reply = await self._model.reply(body, within=within)
        if not self._too_long:
            return reply
        calls = tuple(call.model_copy(update={"name": "list_boxes", "arguments": "{}"}) for call in reply.calls)
        return reply.model_copy(update={"calls": calls})


class AtAPrice:
    """The same model, dear, and never done."""

    def __init__(self, model: Model) -> None:
        self.body = model.body
        self._model = model

    async def terms(self) -> Terms:
        return Terms(model="dear", max_output_tokens=LONGEST_REPLY, prices=DEAR)

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        reply = await self._model.reply(body, within=within)
        calls = tuple(call.model_copy(update={"name": "list_boxes", "arguments": "{}"}) for call in reply.calls)
        usage = reply.usage.model_copy(update={"cost_usd": Decimal("0.08")})
        return reply.model_copy(update={"calls": calls[:1], "usage": usage})


# --- what is in the books ---------------------------------------------------------------------------------------------


async def test_every_hour_and_model_has_a_row_with_both_counts(database_url: str) -> None:
    async with installation(database_url) as fleet:
        await fleet.run()
        fleet.time.advance(timedelta(hours=1))
        await fleet.run()

        later, earlier = usage(fleet)
        assert later["hour"] - earlier["hour"] == timedelta(hours=1)
        for row, run in zip((earlier, later), fleet.runs(), strict=True):
            assert row["model"] == "simulated at http://simulator.invalid/v1"
            assert row["calls"] == run["steps"]
            assert (row["tokens_in"], row["tokens_out"]) == (run["tokens_in"], run["tokens_out"])
            assert 0 < row["reported"] <= row["estimate"]


class Overheard:
    """The same model; the bodies that it was asked."""

    def __init__(self, model: Model) -> None:
        self.body = model.body
        self.factor = 1.0
        self._model = model
        self.bodies: list[Mapping[str, Any]] = []

    async def terms(self) -> Terms:
        return (await self._model.terms()).model_copy(update={"factor": self.factor})

    async def reply(self, body: Mapping[str, Any], *, within: timedelta) -> ModelReply:
        self.bodies.append(body)
        return await self._model.reply(body, within=within)


async def test_within_a_run_four_fifths_of_a_request_are_as_before_and_the_books_say_so(database_url: str) -> None:
    async with installation(database_url) as fleet:
        model = Overheard(fleet.ports.model)
        fleet.ports = replace(fleet.ports, model=model)
        await fleet.run()

        pairs = [alike(before, body) for before, body in zip(model.bodies, model.bodies[1:], strict=False)]
        assert len(pairs) >= 2
        assert sum(same for _, same in pairs) / sum(all_ for all_, _ in pairs) >= 0.8
        first, _ = alike(None, model.bodies[0])
        (row,) = usage(fleet)
        assert row["chars"] == first + sum(all_ for all_, _ in pairs)
        assert row["chars_as_before"] == sum(same for _, same in pairs)


async def test_the_first_request_of_a_run_is_laid_beside_the_last_of_the_run_before(database_url: str) -> None:
    async with installation(database_url, scenario=IDLE) as fleet:
        await fleet.run()
        before = usage(fleet)[0]["chars_as_before"]
        fleet.time.advance(timedelta(hours=1))
        await fleet.run()
        assert before >= 0
        assert usage(fleet)[0]["chars_as_before"] > usage(fleet)[0]["chars"] / 3
