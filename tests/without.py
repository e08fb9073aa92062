"""The rules with some of them taken out: the control of whatever is said to be held by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet_agent.domain.rules import RULES, Actor, Rule, Rules


def without(*gone: Rule[Any]) -> Mapping[Actor, Rules]:
    """`RULES`, in which nobody asks these."""
    return {
        actor: {effect: [rule for rule in rules if rule not in gone] for effect, rules in lists.items()}
        for actor, lists in RULES.items()
    }
