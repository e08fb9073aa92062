"""One run in the worker's own process, and the three ways in which it may end early.

A person cancels it: the flow's body is ended, with the time that it takes to clean up, and the run is Cancelled. The
worker cannot wait: it is ended wherever it is, and Prefect's engine reports it as crashed. The worker itself ends: the
cancellation of its task is passed on. Only the first of them may not reach the engine, which would take it for a crash;
so what is cancelled then is noted, and turned into a state inside the body.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from copy import copy
from typing import TYPE_CHECKING, Any

from prefect.states import Cancelled

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State
    from prefect.flows import Flow


class RunAtHand:
    """One run that is carried out in this process, and how it is ended early."""

    def __init__(self, flow_run: FlowRun) -> None:
        self.flow_run_id = flow_run.id
        self._flow_run = flow_run
        self._is_cancelled = False
        self._is_ended_now = False
        self._whole: asyncio.Task[Any] | None = None
        self._is_in_body = False

    def cancel(self) -> None:
        """A person cancelled it: end the flow's body, with the time it takes to clean up."""
        if self._is_cancelled:
            return
        self._is_cancelled = True
        if self._is_in_body and self._whole is not None:
            self._whole.cancel()

    def end_now(self) -> None:
        """End it wherever it is; Prefect's engine reports it as crashed, and is not disturbed while it does."""
        if self._is_ended_now:
            return
        self._is_ended_now = True
        if self._whole is not None:
            self._whole.cancel()

    async def carry_out(self, flow: Flow[..., Any]) -> State[Any] | None:
        """Run it through Prefect's engine; the state it ended in, None where the engine reported a crash.

        Raises what Prefect's engine raises where it could not report, and Abort where Prefect called the run off.
        """
        from prefect.flow_engine import run_flow

        self._whole = whole = asyncio.current_task()
        assert whole is not None
        try:
            return await run_flow(self._cancellable(flow), flow_run=self._flow_run, return_type="state")  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        except asyncio.CancelledError:
            if self._is_ended_now:
                whole.uncancel()
            elif whole.cancelling():
                raise  # the worker itself ends
            # Otherwise the engine ended it, whose lease could not be renewed, and has reported that.
        except (SystemExit, KeyboardInterrupt):
            pass  # of the flow, not of this process
        return None

    def _cancellable(self, flow: Flow[..., Any]) -> Flow[..., Any]:
        """The same flow, its body ended by `cancel`; this run's own, for the flow is shared."""
        own = copy(flow)

        @functools.wraps(flow.fn)
        async def body(*args: Any, **kwargs: Any) -> Any:
            return await self._body(flow.fn, *args, **kwargs)

        own.fn = body
        own.validate_parameters = flow.validate_parameters  # which looks for types in the module of the body
        return own

    async def _body(self, body: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        if self._is_cancelled:
            return Cancelled()
        self._is_in_body = True
        try:
            result = await body(*args, **kwargs)
            await asyncio.sleep(0)  # where a cancellation arrives that was on its way: here, not in the engine
            return result
        except asyncio.CancelledError:
            if not self._is_cancelled or self._is_ended_now:
                raise
            assert self._whole is not None
            self._whole.uncancel()
            return Cancelled()
        finally:
            self._is_in_body = False
