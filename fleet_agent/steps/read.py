"""What the model only looks at. Nothing here changes anything; what comes from outside says so (`Result.outside`)."""

from __future__ import annotations

from fleet_agent.domain.actions import ListBoxes, Read, ReadLogs, ReadRun, SearchOffers
from fleet_agent.domain.hosts import machines_of
from fleet_agent.domain.hygiene import clean
from fleet_agent.domain.ledger import Listing
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.policy import Policy
from fleet_agent.domain.record import as_of, one_step, overview
from fleet_agent.domain.run import Result, Run
from fleet_agent.domain.show import boxes_table, offers_table, one_line
from fleet_agent.errors import AlreadyGone, TryLater
from fleet_agent.ports import OfferQuery, Ports


async def read(
    run: Run, ports: Ports, tool: Read, *, policy: Policy, seen: Observation
) -> tuple[Result, Listing | None]:
    """The result for the model and, of a search, the listing that it may rent from.

    What cannot be read now is a failed result; only what a person must mend is raised.
    """
    try:
        if isinstance(tool, SearchOffers):
            banned = machines_of(await ports.journal.bans(run))
            query = OfferQuery(policy=policy, gpu_name=tool.gpu_name, limit=tool.limit, banned=banned)
            found = await ports.market.offers(query)
            return Result(sentence=offers_table(found, left_out=found.left_out)), Listing(offers=found)
        return await _result(run, ports, tool, seen), None
    except (TryLater, AlreadyGone) as error:
        return Result(sentence=f"Not available: {one_line(error.cause)}", failed=True), None


async def _result(run: Run, ports: Ports, tool: Read, seen: Observation) -> Result:
    match tool:
        case ListBoxes():
            boxes = await ports.journal.boxes(run)
            count, rate = await ports.journal.in_flight(run)
            now_known = seen.model_copy(
                update={"boxes": boxes, "in_flight_count": count, "in_flight_usd_per_hour": rate}
            )
            return Result(sentence="\n".join(boxes_table(now_known, ports.clock.now(), with_machines=True)))
        case ReadLogs(id=box_id, tail=tail):
            if all(box.vast_id != box_id for box in await ports.journal.boxes(run)):
                return Result(sentence=f"Box {box_id} is not a live box of this fleet.", failed=True)
            printed = clean(await ports.market.logs(box_id, tail))
            return Result(sentence=printed or "(empty)", outside=f"log of box {box_id}")
        case ReadRun(run_id=run_id, step=step):
            return await _run_again(run, ports, run_id or run.run_id, step)
        case _:
            raise AssertionError(f"{tool.name} is a read without a way to carry it out")


async def _run_again(run: Run, ports: Ports, run_id: int, step: int | None) -> Result:
    record = await ports.journal.record_of(run, run_id)
    if record is None:
        return Result(sentence=f"This conversation has no run #{run_id}.", failed=True)
    shown, tainted_until = as_of(record, ports.clock.now())
    text = overview(shown, ports.count_tokens) if step is None else one_step(shown, step)
    outside = f"run #{run_id}, which had read text from outside" if tainted_until else None
    return Result(sentence=text, outside=outside, tainted_until=tainted_until)
