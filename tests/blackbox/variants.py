"""What is no setting of the product, as Python that the root of a tree runs before `up`: for controls, and for a worker
that is as Prefect's own."""

from __future__ import annotations

from textwrap import dedent

LEASES_IN_MEMORY = dedent("""
    from fleet_agent.stack import environments
    ours = environments.of_server
    environments.of_server = lambda *given: ours(*given) | {
        "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.memory"
    }
""")
"""Prefect's default."""


def prefetches(seconds: int) -> str:
    """The worker proposes a run to Prefect so long before its time; Prefect's own does so 10 s before."""
    worker = dedent(f"""
        from fleet_agent.worker import process, resident
        from fleet_agent.worker.__main__ import main
        process.PREFETCH_SECONDS = {seconds}
        made = resident.ResidentWorker.__init__
        def differently(self, *given, **named):
            made(self, *given, **named | {{"prefetch_seconds": {seconds}}})
        resident.ResidentWorker.__init__ = differently
        raise SystemExit(main())
    """)
    return dedent(f"""
        from dataclasses import replace
        from fleet_agent.stack import tree
        ours = tree._worker
        def differently(*given):
            command = ours(*given)
            return replace(command, arguments=(command.arguments[0], "-c", {worker!r}))
        tree._worker = differently
    """)
