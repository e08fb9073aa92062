"""What Prefect does by itself when nobody of ours is left to do it.

Two automations are the second line behind the watch: one crashes a flow run that has fallen silent, the other one that
never began. They carry no truth about runs; that is in our tables, behind the fence. They free the slot, without which
the next run would wait for ever. Nothing is lost by it: what a run had claimed waits again, and the bell rings anew.

A trigger counts in windows, one for each flow run, and a change of its automation forgets them. The automations of
`prefect.yaml` are made anew with every deployment, so these two are kept apart: found by name, left alone as long as
they are as they should be, mended in place where they are not.

Both fire before the run's lease is over (120 s from Pending, 300 s from Running). Afterwards Prefect has given the slot
to somebody else and, crashing the first run, would take it from that one (measured, 3.9.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

from fleet_agent.clients.prefect_admin import Json, PrefectAdmin
from fleet_agent.clients.prefect_api import FLOW, HOUSEKEEPING

SILENCE = timedelta(seconds=90)
"""Three of Prefect's liveness beats, which come every 30 s: one may be lost."""

PENDING_TOO_LONG = timedelta(seconds=90)
"""A process that takes longer to begin is stuck. Prefect looks every 5 s, so that this ends before the lease does."""

SILENT = "fleet-agent: crash a silent run"
STUCK = "fleet-agent: crash a run stuck in Pending"


def guards(*, silence: timedelta = SILENCE, pending: timedelta = PENDING_TOO_LONG) -> tuple[Json, ...]:
    """The automations that must not be made anew at a deployment, as Prefect's API takes them; for every fleet."""
    return (
        _crash_after(
            SILENT,
            "Second line behind the watch: Prefect heard nothing of a run for too long.",
            # Running, so that a run which dies before its first beat is found too.
            signs=["prefect.flow-run.Running", "prefect.flow-run.heartbeat"],
            within=silence,
            message=f"No sign of life for {silence.total_seconds():.0f} s.",
        ),
        _crash_after(
            STUCK,
            "Frees the slot of a run whose process never began.",
            signs=[
                "prefect.flow-run.InfrastructurePending",
                "prefect.flow-run.Pending",
                "prefect.flow-run.Submitting",
            ],
            within=pending,
            message=f"Still pending after {pending.total_seconds():.0f} s.",
        ),
    )


def _crash_after(name: str, description: str, *, signs: list[str], within: timedelta, message: str) -> Json:
    """Crash a run of our flows of which nothing more was heard within a window that each of `signs` opens anew."""
    return {
        "name": name,
        "description": description,
        "enabled": True,
        "tags": ["fleet-agent"],
        "trigger": {
            "type": "event",
            "posture": "Proactive",
            "match": {"prefect.resource.id": "prefect.flow-run.*"},
            "match_related": {"prefect.resource.role": "flow", "prefect.resource.name": [FLOW, HOUSEKEEPING]},
            "for_each": ["prefect.resource.id"],  # without it the trigger would fire for ever, for no run at all
            "after": signs,
            "expect": ["prefect.flow-run.*"],  # whatever else happens to the run ends the waiting
            "threshold": 1,
            "within": within.total_seconds(),
        },
        "actions": [
            {
                "type": "change-flow-run-state",
                "name": None,
                "state": "CRASHED",
                "message": message,
                "force": False,  # a run that ended meanwhile stays as it ended
            }
        ],
        "actions_on_trigger": [],
        "actions_on_resolve": [],
    }


def doorbells(deployment: Mapping[str, Any], deployment_id: str) -> tuple[Json, ...]:
    """The automations that Prefect makes of the `triggers` of a deployment in `prefect.yaml`."""
    return tuple(
        {
            "name": each["name"],
            "enabled": each["enabled"],
            "trigger": {
                "type": "event",
                "posture": each["posture"],
                "match": each["match"],
                "match_related": {},
                "for_each": [],
                "after": [],
                "expect": each["expect"],
                "threshold": each["threshold"],
                "within": each["within"],
            },
            "actions": [
                {
                    "type": "run-deployment",
                    "source": "selected",
                    "deployment_id": deployment_id,
                    "parameters": each["parameters"],
                    "job_variables": None,
                    "schedule_after": each["schedule_after"],
                }
            ],
            "actions_on_trigger": [],
            "actions_on_resolve": [],
        }
        for each in deployment["triggers"]
    )


async def bootstrap(prefect: PrefectAdmin, wanted: Sequence[Json]) -> list[str]:
    """Have each of `wanted` once, as it should be; a line for each thing done, none where nothing was to do."""
    done: list[str] = []
    there = await prefect.automations()
    for automation in wanted:
        name = automation["name"]
        first, *twins = named(there, name) or [None]
        if first is None:
            await prefect.create_automation(automation)
            done.append(f"automation {name!r} made")
        elif differs := faults(automation, first):
            await prefect.replace_automation(first["id"], automation)
            done.append(f"automation {name!r} mended ({', '.join(differs)})")
        for twin in filter(None, twins):
            await prefect.delete_automation(twin["id"])
            done.append(f"a second automation {name!r} deleted")
    return done


def named(automations: Sequence[Json], name: str) -> list[Json]:
    return [each for each in automations if each["name"] == name]


def faults(wanted: Json, found: Json) -> list[str]:
    """The fields of `wanted` that `found` has otherwise; what Prefect adds of its own does not count."""
    return [field for field, value in wanted.items() if not _agrees(value, found.get(field))]


def _agrees(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, dict) and isinstance(found, dict) and wanted:
        ours, theirs = cast("Json", wanted), cast("Json", found)
        return all(_agrees(value, theirs.get(key)) for key, value in ours.items())
    if isinstance(wanted, list) and isinstance(found, list):
        mine, others = cast("list[Any]", wanted), cast("list[Any]", found)
        return len(mine) == len(others) and all(map(_agrees, _in_order(mine), _in_order(others)))
    return wanted == found


def _in_order(values: list[Any]) -> list[Any]:
    """Prefect keeps names of events and labels as sets."""
    return sorted(values) if all(isinstance(value, str) for value in values) else values
