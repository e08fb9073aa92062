"""The policy is changed by dotted keys; a bad value is one clear line and changes nothing."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from fleet_agent.domain.policy import Policy, changed, flattened
from fleet_agent.errors import PolicyInvalid


def test_a_policy_reads_back_what_it_prints() -> None:
    policy = changed(Policy(), {"limits.max_usd_per_hour": "2.50", "run.review_every": "PT30M"})
    assert changed(Policy(), flattened(policy)) == policy
    assert policy.limits.max_usd_per_hour == Decimal("2.50")
    assert policy.run.review_every == timedelta(minutes=30)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("limits.max_boxes", "-1", "limits.max_boxes"),
        ("limits.max_usd_per_hour", "NaN", "limits.max_usd_per_hour"),
        ("limits.max_usd_per_hour", "0", "limits.max_usd_per_hour"),
        ("launch.image", "prover:latest", "by digest"),
        ("limits.no_such_key", "1", "no policy key"),
        ("limits", "1", "no policy key"),
        ("launch.env", "[1]", "launch.env"),
        ("run.max_real_time", "PT0S", "run.max_real_time"),
        ("run.max_real_time", "PT10M", "run.max_real_time"),
        ("run.review_every", "-PT5M", "run.review_every"),
        ("offers.min_gpu_ram_gb", "9" * 400, "offers.min_gpu_ram_gb"),
        ("limits.max_boxes", "[" * 100_000, "limits.max_boxes"),
    ],
)
def test_a_bad_value_is_named_in_one_line(key: str, value: str, said: str) -> None:
    with pytest.raises(PolicyInvalid) as refused:
        changed(Policy(), {key: value})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
