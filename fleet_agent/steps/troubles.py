"""Trouble that does not end what goes on for ever: told when it begins, when it changes and when it is over."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from fleet_agent.errors import FleetAgentError


@dataclass
class Troubles:
    """One line for each change; `tell` takes it to the log."""

    tell: Callable[[str], None]
    _lasting: dict[str, str] = field(default_factory=dict[str, str])

    @contextmanager
    def at(self, place: str) -> Generator[None]:
        """Go on after an error of ours within; any other is a defect, and is raised."""
        try:
            yield
        except FleetAgentError as error:
            if self._lasting.get(place) != str(error):
                self.tell(f"{place}: {error}")
            self._lasting[place] = str(error)
        else:
            if self._lasting.pop(place, None) is not None:
                self.tell(f"{place}: well again")

    def last(self, place: str) -> bool:
        """Whether the last pass at `place` failed."""
        return place in self._lasting
