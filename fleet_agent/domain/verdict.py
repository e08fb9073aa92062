"""The run's own conclusion, as the `finish` tool or a `<verdict>{…}</verdict>` block gives it.

A verdict explains; it never decides what is recorded. `action` is OR-ed with the ledger when the run closes, so no
verdict can hide an effect.
"""

from __future__ import annotations

import json
import re
from typing import cast

from fleet_agent.domain.values import Frozen

_BLOCK = re.compile(r"<verdict>(.*?)</verdict>", re.DOTALL)


class Verdict(Frozen):
    action: bool
    state_changed: bool

    def __or__(self, other: Verdict) -> Verdict:
        return Verdict(action=self.action or other.action, state_changed=self.state_changed or other.state_changed)


NOTHING = Verdict(action=False, state_changed=False)


def read_verdict(text: str) -> Verdict | None:
    """The last well-formed verdict block of a reply, or None. Anything but two booleans is not well-formed."""
    for block in reversed(_BLOCK.findall(text)):
        try:
            found: object = json.loads(block)
        except ValueError:
            continue
        if isinstance(found, dict):
            fields = cast("dict[str, object]", found)
            action, state_changed = fields.get("action"), fields.get("state_changed")
            if isinstance(action, bool) and isinstance(state_changed, bool):
                return Verdict(action=action, state_changed=state_changed)
    return None


def without_verdict(text: str) -> str:
    """What the reply says beside its verdict block: the summary that later prompts carry."""
    return _BLOCK.sub("", text).strip()
