"""The run's own conclusion, as the `finish` tool or a `<verdict>{…}</verdict>` block gives it.

A verdict explains; it never decides what is recorded. `action` is OR-ed with the ledger when the run closes, so no
verdict can hide an effect.
"""

from __future__ import annotations

import json
from typing import cast

from fleet_agent.domain.values import Frozen

_OPEN, _CLOSE = "<verdict>", "</verdict>"


class Verdict(Frozen):
    action: bool
    state_changed: bool

    def __or__(self, other: Verdict) -> Verdict:
        return Verdict(action=self.action or other.action, state_changed=self.state_changed or other.state_changed)


NOTHING = Verdict(action=False, state_changed=False)


def read_verdict(text: str) -> Verdict | None:
    """What the last verdict block of a reply says, or None. Anything but two booleans is no verdict."""
    begin, end = _last_block(text)
    try:
        found: object = json.loads(text[begin:end])
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    fields = cast("dict[str, object]", found)
    action, state_changed = fields.get("action"), fields.get("state_changed")
    if isinstance(action, bool) and isinstance(state_changed, bool):
        return Verdict(action=action, state_changed=state_changed)
    return None


def without_verdict(text: str) -> str:
    """What the reply says beside its last verdict block: the summary that later prompts carry."""
    begin, end = _last_block(text)
    if begin == end:
        return text.strip()
    return (text[: begin - len(_OPEN)] + text[end + len(_CLOSE) :]).strip()


def _last_block(text: str) -> tuple[int, int]:
    """Where the inside of the last block begins and ends; an empty span where there is none.

    Two searches from the end instead of a pattern: a reply of unclosed blocks must not take time to the square.
    """
    end = text.rfind(_CLOSE)
    opened = text.rfind(_OPEN, 0, max(end, 0))
    return (opened + len(_OPEN), end) if opened >= 0 else (0, 0)
