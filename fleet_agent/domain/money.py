"""Amounts of money: always Decimal, always US dollars, the unit in the name.

`Usd` is an amount, `UsdPerHour` a rate. Floats enter only at the edge (the provider's JSON) and pass through
`usd()` or `usd_per_hour()`, which go by the printed digits and never by the binary value.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import ROUND_HALF_UP, Decimal
from typing import NewType

Usd = NewType("Usd", Decimal)
UsdPerHour = NewType("UsdPerHour", Decimal)

NO_USD = Usd(Decimal(0))
NO_USD_PER_HOUR = UsdPerHour(Decimal(0))


def usd(value: Decimal | float | int | str) -> Usd:
    return Usd(_exact(value))


def usd_per_hour(value: Decimal | float | int | str) -> UsdPerHour:
    return UsdPerHour(_exact(value))


def total(rates: list[UsdPerHour]) -> UsdPerHour:
    return UsdPerHour(sum(rates, start=Decimal(0)))


def cost(rate: UsdPerHour, duration: timedelta) -> Usd:
    return Usd(rate * Decimal(duration.total_seconds()) / 3600)


def runway(credit: Usd, burn: UsdPerHour) -> timedelta | None:
    """How long `credit` lasts at `burn`; None when nothing is burnt."""
    if burn <= 0:
        return None
    hours = min(credit / burn, Decimal(24 * 365))
    return max(timedelta(0), timedelta(hours=float(hours)))


def show_usd(amount: Decimal) -> str:
    """`$12.34`; amounts under a cent keep four digits, for the cost of a model call is often that small."""
    digits = Decimal("0.01") if amount == 0 or abs(amount) >= Decimal("0.01") else Decimal("0.0001")
    return f"${amount.quantize(digits, ROUND_HALF_UP)}"


def show_rate(rate: Decimal) -> str:
    """`$0.412/h`."""
    return f"${rate.quantize(Decimal('0.001'), ROUND_HALF_UP)}/h"


def _exact(value: Decimal | float | int | str) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(str(value))
