"""The workers that carry out our flows and nothing else, of two kinds: the setting `FLEET_WORK_POOL` says which.

`resident.py` runs the flows inside its own process and is woken by Prefect's events: about a second from a trigger to
the first line of its run. `process.py` starts a process for each run, as Prefect's own worker does. What both refuse is
in `refusal.py`, how both begin a run in `beginning.py`, how both start, drain and begin anew in `life.py`.

Prefect imports `resident.py` in every program that asks which types of workers there are, by the entry point in
`pyproject.toml`. So nothing of ours is imported there but what a worker needs before its first run.
"""
