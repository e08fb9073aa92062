"""A sender may say a storm at once, and afterwards only so much."""

from __future__ import annotations

from datetime import timedelta

from fleet_agent.hooks.rate import BURST, EACH, WORDS, Buckets


class Elapsed:
    def __init__(self) -> None:
        self.now = timedelta(hours=1)

    def __call__(self) -> timedelta:
        return self.now


def taken(buckets: Buckets, posts: int, source: str = "prom", fleet: str = "main") -> int:
    return sum(buckets.take(fleet, source) for _ in range(posts))


def test_a_storm_of_five_seconds_gets_through_and_an_endless_one_does_not() -> None:
    buckets = Buckets(Elapsed())

    assert taken(buckets, 5_000) == 5_000
    assert taken(buckets, 5_000) == BURST - 5_000


def test_an_empty_bucket_fills_again_with_time() -> None:
    elapsed = Elapsed()
    buckets = Buckets(elapsed)
    taken(buckets, BURST)
    elapsed.now += 3 * EACH

    assert taken(buckets, 10) == 3


def test_a_box_has_less_to_say_than_a_storm_of_alerts() -> None:
    buckets = Buckets(Elapsed())

    assert sum(buckets.take("main", "a box", most=WORDS) for _ in range(1_000)) == WORDS < BURST


def test_one_sender_takes_nothing_from_another() -> None:
    buckets = Buckets(Elapsed())
    taken(buckets, BURST)

    assert taken(buckets, 1) == 0
    assert taken(buckets, 1, source="curio") == taken(buckets, 1, fleet="east") == 1
