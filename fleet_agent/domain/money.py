"""Amounts of money: always Decimal, always US dollars, the unit in the name.

`Usd` is an amount, `UsdPerHour` a rate. Numbers from outside become Decimal by their printed digits, at the edge; a
binary float never takes part in a sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import Final, NewType

Usd = NewType("Usd", Decimal)
UsdPerHour = NewType("UsdPerHour", Decimal)

LONGEST_RUNWAY = timedelta(days=365)


def total(rates: Iterable[UsdPerHour]) -> UsdPerHour:
    return UsdPerHour(sum(rates, start=Decimal(0)))


def runway(credit: Usd, burn: UsdPerHour) -> timedelta | None:
    """How long `credit` lasts at `burn`, at most a year; None when nothing is burnt."""
    if burn <= 0:
        return None
    seconds = min(credit / burn * 3600, Decimal(LONGEST_RUNWAY.total_seconds()))
    return max(timedelta(0), timedelta(seconds=float(seconds)))


NOBODY_HAS: Final = Decimal(10) ** 15
"""Dollars, and dollars an hour. What is more came of a division by nearly nothing, or of a lie."""


def usd_per_proof(rate: Decimal, proofs_per_hour: float | None) -> Decimal | None:
    """What a proof costs; None where nobody measured the machine, or it has shown no proof at all."""
    return rate / Decimal(str(proofs_per_hour)) if proofs_per_hour else None


def show_usd(amount: Decimal) -> str:
    """`$12.34`; amounts under a cent keep four digits, for the cost of a model call is often that small."""
    if abs(amount) >= NOBODY_HAS:
        return f"${amount:.1e}"
    digits = Decimal("0.01") if amount == 0 or abs(amount) >= Decimal("0.01") else Decimal("0.0001")
    return f"${amount.quantize(digits, ROUND_HALF_UP)}"


def show_rate(rate: Decimal) -> str:
    """`$0.412/h`."""
    if abs(rate) >= NOBODY_HAS:
        return f"${rate:.1e}/h"
    return f"${rate.quantize(Decimal('0.001'), ROUND_HALF_UP)}/h"
