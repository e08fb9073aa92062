"""The named ways in which the simulated provider misbehaves.

Each was seen in the wild by somebody who then paid for it. A fault is armed by name, for a number of occurrences or
until it is disarmed, on one machine or on all; the market and its HTTP face ask for it at the place where it strikes.
"""

from dataclasses import dataclass
from datetime import timedelta

FAULTS = {
    "container_exits": "the main process of a running box ends",
    "create_lost": "a create makes the box and answers 504",
    "create_refused_but_made": "a create makes the box and answers success:false",
    "credit_zero": "the account's credit is gone; every box is stopped",
    "destroy_ignored": "a destroy is accepted and the box lives on",
    "dud_host": "the container of a new box never starts",
    "host_offline": "the host of a box loses its connection for `lasting`",
    "label_dropped": "a create forgets the label",
    "list_lag": "reads show the account as it was `lasting` ago",
    "list_partial": "a page of the list lacks half of its boxes and says that it is the last",
    "list_success_false": "the list answers 200 with success:false",
    "offer_gone": "somebody else takes the offer between search and create",
    "outbid": "somebody bids more for the GPUs of an interruptible box",
    "rate_limits": "the documented rate limits and the daily search quota are enforced",
    "server_error": "a request is answered 500 and does nothing",
    "stuck_loading": "a new box never gets beyond pulling its image",
}


@dataclass(slots=True)
class ArmedFault:
    """One fault waiting to strike: `times` left (None: until disarmed), on `machine_id` (None: any), for `lasting`."""

    name: str
    times: int | None
    machine_id: int | None
    lasting: timedelta


class Faults:
    """What is armed. A fault without a machine strikes whatever comes first."""

    def __init__(self) -> None:
        self._armed: list[ArmedFault] = []

    def arm(
        self,
        name: str,
        *,
        times: int | None = None,
        machine_id: int | None = None,
        lasting: timedelta = timedelta(seconds=300),
    ) -> None:
        """Arms a fault. Raises ValueError for a name that is not in FAULTS, and for `times` below 1."""
        if name not in FAULTS:
            raise ValueError(f"no fault is named {name!r}; the faults are {', '.join(FAULTS)}")
        if times is not None and times < 1:
            raise ValueError("times must be at least 1")
        self._armed.append(ArmedFault(name, times, machine_id, lasting))

    def disarm(self, name: str) -> None:
        self._armed = [fault for fault in self._armed if fault.name != name]

    def armed(self) -> list[ArmedFault]:
        return list(self._armed)

    def is_armed(self, name: str) -> bool:
        return any(fault.name == name for fault in self._armed)

    def take(self, name: str, machine_id: int | None = None) -> ArmedFault | None:
        """The fault that strikes here and now, if one is armed; one occurrence of it is used up."""
        for fault in self._armed:
            if fault.name == name and fault.machine_id in (None, machine_id):
                if fault.times is not None:
                    fault.times -= 1
                    if fault.times == 0:
                        self._armed.remove(fault)
                return fault
        return None
