"""`python -m fleet_agent.worker`: the worker of the pool that the settings name, in this process."""

from __future__ import annotations

import argparse
import sys

from fleet_agent.errors import FleetAgentError
from fleet_agent.settings import Settings
from fleet_agent.worker.first_look import look_later
from fleet_agent.worker.life import Lifetime, work


def main() -> int:
    parser = argparse.ArgumentParser(prog="fleet-agent-worker", description=__doc__)
    parser.add_argument("--most-runs", type=int, default=Lifetime.runs, help="begin anew after so many runs")
    parser.add_argument("--most-megabytes", type=int, default=Lifetime.megabytes, help="begin anew when so large")
    arguments = parser.parse_args()
    try:
        settings = Settings.load()
        look_later(settings)
        work(settings, Lifetime(runs=arguments.most_runs, megabytes=arguments.most_megabytes))
    except FleetAgentError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
