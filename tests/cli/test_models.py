"""Several models over real HTTP: one that is not there, one that answers, and what a person sees of both."""

from __future__ import annotations

import asyncio
import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import SecretStr
from sqlalchemy import delete, select
from sqlmodel import col

from fleet_agent import wiring
from fleet_agent.domain.model_server import Asked, ModelName
from fleet_agent.domain.spending import hour_of
from fleet_agent.errors import FixSetup
from fleet_agent.settings import Fallback, Settings
from fleet_agent.store import session
from fleet_agent.store.database import open_database
from fleet_agent.store.model_servers import PostgresModelMemory
from fleet_agent.store.tables import Notice, Usage
from fleet_agent.worker import first_look
from tests.cli.conftest import Run, begin
from tests.cli.test_bad_input import closed_port
from tests.cli.test_cycle_once import simulators


def test_a_run_goes_on_with_the_second_model_and_status_says_what_ails_the_first(fleet_agent: Run) -> None:
    with simulators() as reached:
        nobody = f"http://127.0.0.1:{closed_port()}/v1"
        fallback = json.dumps([{"name": "understudy", "url": reached["FLEET_MODEL_URL"]}])
        changed = {"FLEET_MODEL_URL": nobody, "FLEET_MODEL_FALLBACKS": fallback}
        said = fleet_agent("cycle", "--once", **(reached | changed))
    assert said.code == 0, said.out + said.err

    first, second = json.loads(fleet_agent("status", "--json").out)["models"]
    assert (first["server"], first["failures"] > 0) == (nobody, True)
    assert (second["model"], second["failures"], second["trouble"]) == ("understudy", 0, "")
    shown = fleet_agent("status").out
    assert f"simulated at {nobody}: " in shown
    assert "cannot be reached" in shown
    assert f"understudy at {reached['FLEET_MODEL_URL']}: well" in shown


def test_the_doctor_asks_for_a_tool_call_and_tells_budget_and_room_and_usage_shows_the_hours(fleet_agent: Run) -> None:
    with simulators() as reached:
        assert fleet_agent("cycle", "--once", **reached).code == 0
        said = fleet_agent("doctor", **reached).out
    assert "ok   model: answers and calls tools" in said
    assert re.search(r"ok   prompt: a run has [0-9,]+ tokens of its own", said)
    assert re.search(r"ok   model budget: [1-9]\d* requests, .*; no price is set for simulated", said)
    assert "ok   models: all well" in said
    (hour,) = json.loads(fleet_agent("usage", "--json").out)
    (run,) = json.loads(fleet_agent("runs", "--json").out)
    assert (hour["calls"], hour["tokens_in"]) == (run["steps"], run["tokens_in"])
    assert "as before" in fleet_agent("usage").out


def test_the_doctor_finds_that_the_day_has_not_left_what_one_request_may_cost(
    fleet_agent: Run, database_url: str
) -> None:
    """$4.99 of $5.00 is less than the bound and too much for a prompt at this price. Control: at $4 one more fits."""

    def spent(usd: str) -> str:
        database = open_database(database_url)
        with database.exclusive("main") as tx:
            tx.execute(delete(Usage))
            hour = hour_of(wiring.read_clock(database).now())
            tx.add(Usage(fleet="main", hour=hour, model="simulated", calls=1, cost_usd=Decimal(usd)))
        database.close()
        said = fleet_agent("doctor", **reached, FLEET_MODEL_USD_PER_MILLION_TOKENS_IN="5").out
        return next(line for line in said.splitlines() if "model budget:" in line)

    with simulators() as reached:
        assert fleet_agent("policy", "set", "model.max_usd_per_day=5").code == 0
        too_dear = spent("4.99")
        assert too_dear.startswith("BAD  model budget: the last 24 h took $4.99 of model.max_usd_per_day=5")
        assert " → " in too_dear
        assert spent("4").startswith("ok   model budget: 1 requests, ")


async def test_the_self_test_sees_each_model_call_a_tool_and_keeps_what_it_saw(database_url: str) -> None:
    with simulators() as reached:
        settings = Settings(
            database_url=SecretStr(database_url),
            model_url=reached["FLEET_MODEL_URL"],
            model_name="simulated",
            model_fallbacks=(Fallback(name="away", url=f"http://127.0.0.1:{closed_port()}/v1"),),
        )
        tested = await asyncio.wait_for(wiring.self_test_models(settings), timeout=90)

    assert [(each.name.model, each.passed) for each in tested] == [("simulated", True), ("away", False)]
    with wiring.find_store(settings) as database, database.transaction() as tx:
        from fleet_agent.store import reading

        shown = reading.status(tx, "main", now=wiring.read_clock(database).now())["models"]
    assert [row["test_passed"] for row in shown] == [True, False]
    assert "cannot be reached" in shown[1]["test"]


async def test_a_worker_says_at_its_start_what_is_not_well_and_goes_on(database_url: str) -> None:
    with simulators() as reached:
        settings = Settings(
            database_url=SecretStr(database_url),
            model_url=reached["FLEET_MODEL_URL"],
            model_name="simulated",
            model_fallbacks=(Fallback(name="away", url=f"http://127.0.0.1:{closed_port()}/v1"),),
        )
        said: list[str] = []
        await asyncio.wait_for(first_look.look(settings, tell=said.append), timeout=120)

    well, away, room = said
    assert "passed its self-test: answers and calls tools" in well
    assert "FAILED its self-test" in away
    assert re.fullmatch(r"a run has [0-9,]+ tokens of a prompt for itself", room)


async def test_a_person_is_told_once_a_day_that_a_prompt_leaves_no_room_however_often_a_worker_starts(
    database_url: str,
) -> None:
    """An objective of many tokens, for a model that counts four of each of ours. Control: with a short one there is
    room, and no notice."""
    begin(database_url)

    async def told_at_a_start(objective: str) -> list[str]:
        with wiring.open_store(settings) as database, database.exclusive("main") as tx:
            session.state(tx, "main").objective = objective
        await first_look.look(settings, tell=lambda _: None)
        with wiring.open_store(settings) as database, database.transaction() as tx:
            of_the_look = select(Notice).where(col(Notice.key).startswith("first look"))
            return [notice.text for notice in tx.scalars(of_the_look)]

    with simulators() as reached:
        settings = settings_with(window=32_768, output=2_000).model_copy(
            update={
                "database_url": SecretStr(database_url),
                "model_url": reached["FLEET_MODEL_URL"],
                "model_fallbacks": (),
            }
        )
        await first_look.look(settings, tell=lambda _: None)  # by which the model is on the list
        with wiring.open_store(settings) as database:
            memory = PostgresModelMemory(database, wiring.read_clock(database), "main")
            counts_four = Asked(estimate=10_000, at_least=1, at_most=10**6, reported=40_000, called_a_tool=True)
            for model in settings.models:
                await memory.learn(
                    ModelName(model.url, model.name), lambda known, now: known.answered(counts_four, now)
                )

        assert await told_at_a_start("prove") == []
        for _ in range(2):
            (notice,) = await told_at_a_start("7 " * 3_000)
            assert "shorten the objective" in notice


async def test_a_worker_without_a_database_says_so_and_goes_on() -> None:
    settings = settings_with(window=32_768, output=2_000).model_copy(
        update={"database_url": SecretStr(f"postgresql://nobody@127.0.0.1:{closed_port()}/none")}
    )
    said: list[str] = []
    await first_look.look(settings, tell=said.append)
    (line,) = said
    assert "database" in line


# --- what must fit ----------------------------------------------------------------------------------------------------


def settings_with(*, window: int, output: int, fallback_window: int | None = None) -> Settings:
    return Settings(
        model_url="http://model.test/v1",
        model_name="wise-one",
        model_max_output_tokens=output,
        model_window_tokens=window,
        model_fallbacks=(Fallback(name="second", window_tokens=fallback_window),),
        model_usd_per_million_tokens_in=Decimal(1),
    )


@pytest.mark.parametrize(
    ("settings", "too_small"),
    [
        (settings_with(window=32_000, output=2_000), None),
        (settings_with(window=31_999, output=2_000), "wise-one"),
        (settings_with(window=32_768, output=16_000), "wise-one"),
        (settings_with(window=32_768, output=2_000, fallback_window=8_192), "second"),
    ],
    ids=["just fits", "one token short", "a long reply", "a small understudy"],
)
def test_a_window_without_room_for_prompt_and_reply_is_refused_before_anything_starts(
    settings: Settings, too_small: str | None
) -> None:
    if too_small is None:
        wiring.models_must_fit(settings)
        return
    with pytest.raises(FixSetup, match=f"the window of {too_small} has .* → .*FLEET_MODEL_WINDOW_TOKENS"):
        wiring.models_must_fit(settings)


def test_up_says_so_too_and_starts_nothing(fleet_agent: Run, tmp_path: Path) -> None:
    said = fleet_agent(
        "up",
        FLEET_VAST_API_KEY="made-up-key",
        FLEET_MODEL_URL="http://model.test/v1",
        FLEET_MODEL_NAME="wise-one",
        FLEET_DEMAND_PROMETHEUS_URL="http://prometheus.test",
        FLEET_MODEL_WINDOW_TOKENS="8192",
    )
    assert said.code != 0
    assert "the window of wise-one has 8192 tokens" in said.out + said.err
