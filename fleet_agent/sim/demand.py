"""The proof queue: work that arrives, is proved by the boxes at work, and is measured as a proving stack measures it.

Time is cut into ticks counted from the moment the queue opened, and every read first catches up tick by tick. So what
the queue holds depends on the clock and on the market alone, never on how often somebody looked. A box proves one
proof after another; a proof whose box went away is lost, and goes back to the head of the queue as it came.

The face speaks the part of Prometheus' HTTP API that an instant query needs.
"""

from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fleet_agent.sim.boxes import productive
from fleet_agent.sim.catalogue import seeded
from fleet_agent.sim.clock import SimClock
from fleet_agent.sim.market import Market

TICK = timedelta(seconds=5)
HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class DemandScript:
    """How work arrives: `waiting` proofs at the start, then `per_hour[h]` proofs an hour in hour h of the UTC day.

    `effort` is the size of a proof: 1.0 takes a box as long as its proofs per hour say. `failing` is the share of
    proofs that fail and are proved again.
    """

    waiting: int = 0
    per_hour: tuple[float, ...] = (0.0,) * 24
    effort: float = 1.0
    failing: float = 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What the proving stack reports; the rates count the hour that has just passed."""

    pending: int
    running: int
    oldest_pending: timedelta
    done_per_hour: int
    failed_per_hour: int


@dataclass(slots=True)
class Proof:
    """`left` is the work that is still to be done, 1.0 at first."""

    arrived_at: datetime
    left: float = 1.0


class ProofQueue:
    def __init__(self, clock: SimClock, market: Market, script: DemandScript, seed: int) -> None:
        self.clock = clock
        self._market = market
        self._script = script
        self._arrivals = seeded(seed, "arrivals")
        self._failures = seeded(seed, "failures")
        self._counted_until = clock.now()
        self._pending = deque(Proof(self._counted_until) for _ in range(script.waiting))
        self._running: dict[int, Proof] = {}
        self._done: deque[datetime] = deque()
        self._failed: deque[datetime] = deque()
        self._drained: set[int] = set()
        self._lost = 0

    def figures(self) -> Figures:
        now = self._catch_up()
        oldest = self._pending[0].arrived_at if self._pending else now
        return Figures(
            pending=len(self._pending),
            running=len(self._running),
            oldest_pending=now - oldest,
            done_per_hour=_in_the_last_hour(self._done, now),
            failed_per_hour=_in_the_last_hour(self._failed, now),
        )

    def at_hand(self, box_id: int) -> int:
        """The proofs that a box works on now."""
        self._catch_up()
        return int(box_id in self._running)

    def lost(self) -> int:
        """The proofs that were begun by boxes which then went away."""
        self._catch_up()
        return self._lost

    def no_more(self, box_id: int) -> None:
        """A box finishes what it has at hand and is given nothing after that."""
        self._catch_up()
        self._drained.add(box_id)

    def takes_no_more(self, box_id: int) -> bool:
        return box_id in self._drained

    def arrive(self, proofs: int) -> None:
        """So many proofs come in now, beside those of the script."""
        now = self.clock.now()
        self._pending.extend(Proof(now) for _ in range(proofs))

    def fail(self, proofs: int) -> None:
        """So many proofs are counted as failed now; that they are proved again is left out."""
        self._failed.extend([self.clock.now()] * proofs)

    def _catch_up(self) -> datetime:
        now = self.clock.now()
        while self._counted_until + TICK <= now:
            self._tick(self._counted_until)
            self._counted_until += TICK
        return now

    def _tick(self, since: datetime) -> None:
        """Who is at work when a tick begins works through it: what happens at its end may not have happened yet."""
        rates = {box.instance.id: box.proofs_per_hour for box in productive(self._market, since)}
        self._arrive(since)
        self._take_back(lost=self._running.keys() - rates.keys())
        for box_id, proofs_per_hour in rates.items():
            self._prove(box_id, proofs_per_hour * (TICK / HOUR) / self._script.effort, since + TICK)

    def _arrive(self, at: datetime) -> None:
        expected = self._script.per_hour[at.hour] * (TICK / HOUR)
        whole, fraction = divmod(expected, 1)
        arriving = int(whole) + (self._arrivals.random() < fraction)
        self._pending.extend(Proof(at) for _ in range(arriving))

    def _take_back(self, lost: set[int]) -> None:
        self._lost += len(lost)
        for box_id in sorted(lost, reverse=True):
            self._pending.appendleft(Proof(self._running.pop(box_id).arrived_at))

    def _prove(self, box_id: int, work: float, at: datetime) -> None:
        """Spends what a box can do within a tick, measured in proofs, on the proof it has and on the next ones."""
        while work > 0:
            proof = self._running.pop(box_id, None) or self._next(box_id)
            if proof is None:
                return
            spent = min(work, proof.left)
            work -= spent
            proof.left -= spent
            if proof.left > 0:
                self._running[box_id] = proof
            else:
                self._conclude(proof, at)

    def _next(self, box_id: int) -> Proof | None:
        return self._pending.popleft() if self._pending and box_id not in self._drained else None

    def _conclude(self, proof: Proof, at: datetime) -> None:
        if self._failures.random() < self._script.failing:
            self._failed.append(at)
            self._pending.appendleft(Proof(proof.arrived_at))
        else:
            self._done.append(at)


def create_app(queue: ProofQueue) -> Starlette:
    """Instant queries for the gauges of `gauges`; a name that is not among them has no samples, as in Prometheus."""

    async def query(request: Request) -> Response:
        name = request.query_params.get("query", "")
        if not name:
            return JSONResponse({"status": "error", "errorType": "bad_data", "error": "query is missing"}, 400)
        value = gauges(queue.figures()).get(name)
        sample = {"metric": {"__name__": name}, "value": [queue.clock.now().timestamp(), str(value)]}
        result = [] if value is None else [sample]
        return JSONResponse({"status": "success", "data": {"resultType": "vector", "result": result}})

    return Starlette(routes=[Route("/api/v1/query", query)])


def gauges(figures: Figures) -> dict[str, float]:
    return {
        "fleet_demand_pending": figures.pending,
        "fleet_demand_running": figures.running,
        "fleet_demand_oldest_pending_seconds": figures.oldest_pending.total_seconds(),
        "fleet_demand_done_per_hour": figures.done_per_hour,
        "fleet_demand_failed_per_hour": figures.failed_per_hour,
    }


def _in_the_last_hour(instants: deque[datetime], now: datetime) -> int:
    while instants and instants[0] <= now - HOUR:
        instants.popleft()
    return len(instants)
