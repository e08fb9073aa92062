"""The Prefect flow of the housekeeping: wiring only. What is done is told in `fleet_agent/housekeeping.py`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from fleet_agent.errors import FleetAgentError
from fleet_agent.housekeeping import keep_house
from fleet_agent.settings import Settings
from fleet_agent.wiring import open_house
from flows.tasked import TaskedMarket


@flow(name="housekeeping", flow_run_name="housekeeping", persist_result=False)
async def housekeeping() -> State[Any]:
    """Once an hour, for every fleet: what the provider charged is laid beside what was counted."""
    try:
        async with open_house(Settings.load()) as ports:
            reckoning = await keep_house(replace(ports, market=TaskedMarket(ports.market)))
    except FleetAgentError as error:
        return Failed(message=str(error))
    return Completed(message=reckoning.headline)
