"""Every case, and the controls, in several processes.

    make chaos                                       all of them
    make chaos ARGS='--every 10 --story "a run"'     each tenth of one story, in a tenth of the time

Lines go to stderr as violations are found, each with the name by which its case can be told again (`--only NAME`). The
last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from typing import Any

from tests.chaos.naive import CONTROLS
from tests.chaos.shares import Asked, Tally, tell_a_share
from tests.chaos.stories import STORIES


def main() -> None:
    parser = argparse.ArgumentParser(prog="make chaos", description="Every case of the chaos suite.")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes side by side")
    parser.add_argument("--story", action="append", choices=STORIES, help="only this story; may be repeated")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th case")
    parser.add_argument("--first", type=int, default=0, metavar="K", help="from the K-th on: N parts make the whole")
    parser.add_argument("--only", default="", metavar="NAME", help="only cases whose name contains this")
    given = parser.parse_args()
    asked = [
        Asked(tuple(given.story or STORIES), given.every, given.only, given.workers, share, given.first)
        for share in range(given.workers)
    ]
    began = time.monotonic()
    tally = Tally()
    with multiprocessing.get_context("spawn").Pool(given.workers) as pool:
        for share in pool.imap_unordered(tell_a_share, asked):
            tally += share
    print(json.dumps(_figures(tally) | {"wall_seconds": round(time.monotonic() - began, 1)}))
    is_whole = (
        not given.story and given.every == 1 and not given.only
    )  # a part may miss where a control breaks something
    controls_break = all(tally.control_violations[fault] for fault in CONTROLS)
    sys.exit(bool(tally.violations.total()) or (is_whole and not controls_break))


def _figures(tally: Tally) -> dict[str, Any]:
    return {
        "cases": tally.cases.total(),
        "violations": tally.violations.total(),
        "control_cases": tally.control_cases.total(),
        "control_violations": tally.control_violations.total(),
        "killed_for_good": tally.killed_for_good,
        "not_reached": tally.not_reached,
        "cases_by_fault": tally.cases,
        "violations_by_fault": tally.violations,
        "control_violations_by_fault": tally.control_violations,
        "faults_struck": tally.faults_struck,
    }


if __name__ == "__main__":
    main()
