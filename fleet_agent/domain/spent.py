"""What boxes cost: counted at every good look by the price that was seen, and held against what the provider charged.

    look  →  the stretch since the last one, at the price seen  →  split over the hours it falls in  →  the books

What is counted is a stretch of time and not a look: a watch that was down for a night loses no hour of it. It begins
where the last one ended, at first where the box was rented, and ends with the look, with the first look that missed the
box, or where it is known to be gone. So it does not matter how often somebody looks, nor when: the parts come to the
same sum, to the last digit. A clock that was set back counts nothing twice; what lies ahead of it has been counted.

The price that we see is an upper bound of what is charged by the hour: the provider bills the GPUs only while a box
runs and the disk always, and the price has both in it. Traffic is in no price and comes on top. So the charges are read
once an hour and laid beside the books, and a person is told where the two do not fit: a box that is gone and goes on
being charged, a box that nobody knows, a sum that is another than the price explains. Nothing is decided by charges:
nobody says how late they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from fleet_agent.domain.money import Usd, show_usd
from fleet_agent.domain.spending import DAY, hour_of
from fleet_agent.domain.values import Frozen

HOUR: Final = timedelta(hours=1)
MICROSECOND: Final = timedelta(microseconds=1)
SMALLEST: Final = Decimal("0.000001")
"""Dollars: the last digit that the tables keep."""

LONGEST_STRETCH: Final = timedelta(days=31)
"""What is counted at once goes no further back. A box that would have run longer than that without a look of ours has
told a lie about its beginning, or the books do."""

# --- counting --------------------------------------------------------------------------------------------------------


class Meter(Frozen):
    """What the ledger knows of a box that tells what it costs. All times are business time."""

    usd_per_hour: Decimal
    """As seen last; as agreed where it was never seen."""
    rented_at: datetime
    accrued_until: datetime | None = None
    looked_at: datetime | None = None
    misses: int = 0
    """Looks in a row without it, up to `looked_at`."""
    gone_at: datetime | None = None


class Reading(Frozen):
    """What is to be entered in the books, by the hours in which it was spent, and until when they then are complete."""

    until: datetime
    hours: Mapping[datetime, Usd] = {}

    @property
    def usd(self) -> Usd:
        return _sum(self.hours.values())


def read(meter: Meter, now: datetime) -> Reading:
    """What the box has cost since the books were last written."""
    until = _known_until(meter)
    since = meter.rented_at if meter.accrued_until is None else meter.accrued_until
    if until is None:
        return Reading(until=since)
    if since > now + DAY:  # somebody set the clock back by so much that waiting would lose more than is counted twice
        return Reading(until=until)
    return Reading(until=max(since, until), hours=split(meter.usd_per_hour, since, until))


def _known_until(meter: Meter) -> datetime | None:
    """Until when the box is known to have cost; None where that has been counted already.

    A box that is missing was there until it was first missed, as far as anybody knows. Should it be found again, then
    the time between was only late.
    """
    if meter.misses > 1:
        return None
    return meter.gone_at if meter.gone_at is not None and meter.misses == 0 else meter.looked_at


def split(usd_per_hour: Decimal, since: datetime, until: datetime) -> dict[datetime, Usd]:
    """The cost from `since` to `until` by the hours that it falls in; empty where `until` is not after `since`.

    Whoever splits a stretch anywhere gets parts that come to the same, because what is rounded is the cost since the
    beginning of an hour, and not of each part.
    """
    since = max(since, until - LONGEST_STRETCH)
    parts: dict[datetime, Usd] = {}
    hour = hour_of(since)
    while since < until and hour < until:
        usd = _in_an_hour(usd_per_hour, until - hour) - _in_an_hour(usd_per_hour, since - hour)
        if usd:
            parts[hour] = Usd(usd)
        hour += HOUR
    return parts


def _in_an_hour(usd_per_hour: Decimal, passed: timedelta) -> Decimal:
    """The cost of so much of one hour: nothing before it has begun, the whole price once it is over."""
    microseconds = min(max(passed, timedelta(0)), HOUR) // MICROSECOND
    return (usd_per_hour * microseconds / (HOUR // MICROSECOND)).quantize(SMALLEST, ROUND_HALF_UP)


def _sum(amounts: Iterable[Decimal]) -> Usd:
    return Usd(sum(amounts, start=Decimal(0)))


# --- what the provider charged ---------------------------------------------------------------------------------------


class Charge(Frozen):
    """What the provider charged for one box within some stretch of time; a box may have several."""

    vast_id: int
    label: str
    start: datetime | None
    end: datetime | None
    """As the provider dates it, which may be by the day; nothing is judged by it."""
    usd: Decimal
    rent_usd: Decimal
    """Of it, what the GPUs and the disk cost: the part that the price stands for."""


class Bill(Frozen):
    """All charges for one box."""

    vast_id: int
    label: str
    usd: Decimal = Decimal(0)
    rent_usd: Decimal = Decimal(0)


def bills(charges: Iterable[Charge]) -> dict[int, Bill]:
    """One for each box, by the provider's number; to the digits that are kept, or one that stands still would seem to
    have grown."""
    of_box: dict[int, list[Charge]] = {}
    for charge in charges:
        of_box.setdefault(charge.vast_id, []).append(charge)
    return {
        vast_id: Bill(
            vast_id=vast_id,
            label=next((each.label for each in reversed(parts) if each.label), ""),
            usd=_sum(each.usd for each in parts).quantize(SMALLEST, ROUND_HALF_UP),
            rent_usd=_sum(each.rent_usd for each in parts).quantize(SMALLEST, ROUND_HALF_UP),
        )
        for vast_id, parts in of_box.items()
    }


BILLS_COME_WITHIN: Final = timedelta(days=3)
"""After a box is gone: for so long its bill may still change and is read."""

FURTHEST_BACK: Final = timedelta(days=366)
"""Bills of boxes that were rented before that are not compared."""


def bills_begin(first_rented_at: datetime | None, now: datetime) -> datetime:
    """The beginning of the UTC day from which charges are to be read: then each bill that may still change is whole.

    `first_rented_at`: of the boxes that are live, or gone for no longer than `BILLS_COME_WITHIN`.
    """
    since = min(filter(None, (first_rented_at, now - BILLS_COME_WITHIN)))
    return max(since, now - FURTHEST_BACK).replace(hour=0, minute=0, second=0, microsecond=0)


# --- where the two do not fit ----------------------------------------------------------------------------------------

GONE_FOR_GOOD: Final = HOUR
"""After that, nothing more should be charged for a box that is gone."""

BILL_IS_WHOLE: Final = DAY
"""After a box is gone. A bill that is too low before that may only be late."""

MAY_DIFFER_BY: Final = Decimal("0.10")
"""Of what was counted; more is a difference where it is also more than …"""
MAY_DIFFER_BY_USD: Final = Decimal("0.50")


class Entry(Frozen):
    """What the books have of a box when its bill comes."""

    key: str
    vast_id: int | None
    """None where the provider never told it: the rent came to nothing, or so we think."""
    meter: Meter
    spent_usd: Decimal
    charged_usd: Decimal | None = None
    """By the bill before this one, which came at `charged_at`."""
    charged_at: datetime | None = None

    def spent_by(self, now: datetime) -> Usd:
        """Counted on to this moment: the bill does not wait for our next look."""
        meter = self.meter
        if meter.gone_at is not None:
            return Usd(self.spent_usd)
        since = meter.rented_at if meter.accrued_until is None else meter.accrued_until
        return _sum([self.spent_usd, *split(meter.usd_per_hour, since, now).values()])

    def gone_for(self, now: datetime) -> timedelta:
        """Zero while it lives."""
        return timedelta(0) if self.meter.gone_at is None else now - self.meter.gone_at


class Doubt(Frozen):
    """Something that a person must be told, once for each `key`."""

    key: str
    text: str


def doubt_about(entry: Entry, bill: Bill, now: datetime) -> Doubt | None:
    """What does not fit between the books and the bill of a box, which came now. Of what a box does that is gone, its
    sum is only the consequence."""
    return _charged_while_gone(entry, bill, now) or _other_sum(entry, bill, now)


def _charged_while_gone(entry: Entry, bill: Bill, now: datetime) -> Doubt | None:
    """A bill that grows tells it, whatever days the provider writes on it."""
    gone_at = entry.meter.gone_at
    if gone_at is None or entry.gone_for(now) <= GONE_FOR_GOOD:
        return None
    before = _last_word(entry, gone_at)
    if before is None or bill.usd <= before:
        return None
    return Doubt(
        key=f"charged while gone: {entry.key}",
        text=f"vast.ai goes on charging for box {bill.vast_id}, which is gone for us since {gone_at:%Y-%m-%d %H:%M} UTC"
        f" ({entry.key}): {show_usd(bill.usd)} so far; look for it at vast.ai and destroy it there",
    )


def _last_word(entry: Entry, gone_at: datetime) -> Decimal | None:
    """What had been charged when nothing more was to come; None where nobody has looked since."""
    if entry.vast_id is None:
        return Decimal(0)
    looked = entry.charged_at is not None and entry.charged_at >= gone_at + GONE_FOR_GOOD
    return entry.charged_usd if looked else None


def _other_sum(entry: Entry, bill: Bill, now: datetime) -> Doubt | None:
    spent = entry.spent_by(now)
    difference = bill.rent_usd - spent
    if difference < 0 and entry.gone_for(now) <= BILL_IS_WHOLE:
        return None
    if abs(difference) <= max(MAY_DIFFER_BY * spent, MAY_DIFFER_BY_USD):
        return None
    return Doubt(
        key=f"charged otherwise: {entry.key}",
        text=f"vast.ai charged {show_usd(bill.rent_usd)} for GPUs and disk of box {bill.vast_id} ({entry.key}), and by "
        f"its price it comes to {show_usd(spent)}"
        + ("" if difference > 0 else "; GPUs are charged only while a box runs"),
    )


def nobodys(bill: Bill) -> Doubt:
    """Of a bill that carries our label and fits no box of the ledger."""
    return Doubt(
        key=f"charged and unknown: {bill.vast_id}",
        text=f"vast.ai charged {show_usd(bill.usd)} for box {bill.vast_id}, which carries our label {bill.label} and "
        "is not in the ledger; look for it at vast.ai and destroy it there",
    )


class Reckoning(Frozen):
    """What came of comparing: sums over all boxes whose bill was whole."""

    boxes: int = 0
    charged_usd: Decimal = Decimal(0)
    spent_usd: Decimal = Decimal(0)
    doubts: tuple[Doubt, ...] = ()

    def __add__(self, other: Reckoning) -> Reckoning:
        return Reckoning(
            boxes=self.boxes + other.boxes,
            charged_usd=self.charged_usd + other.charged_usd,
            spent_usd=self.spent_usd + other.spent_usd,
            doubts=self.doubts + other.doubts,
        )

    @property
    def headline(self) -> str:
        if not self.boxes and not self.doubts:
            return "no box to be charged for"
        charged, counted = show_usd(self.charged_usd), show_usd(self.spent_usd)
        told = f"{len(self.doubts)} do not fit" if self.doubts else "all fits"
        return f"{self.boxes} boxes: vast.ai charged {charged} with traffic, we counted {counted}; {told}"
