"""Is everything in place? Each finding is one sentence; a bad one says how to mend it.

Looks from the outside in: the settings, our database, the tree, then each neighbour by a call that changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from fleet_agent.domain.actions import tool_definitions
from fleet_agent.domain.fleet import Frozen
from fleet_agent.domain.money import show_usd
from fleet_agent.errors import FleetAgentError
from fleet_agent.ports import Orchestrator, Ports
from fleet_agent.settings import Settings, missing_for_up
