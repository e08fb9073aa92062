"""The simulated world as one process on two loopback ports.

    python -m fleet_agent.sim.server --vast-port 8101 --model-port 8102 --scenario first-light --speed 15

One server listens on both ports and hands a request to the face of the port it came in by, so that there is one loop,
one clock and one way to stop.
"""

import argparse
import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from fleet_agent.sim.clock import WallClock
from fleet_agent.sim.model_app import MODEL
from fleet_agent.sim.policies import POLICIES
from fleet_agent.sim.reporting import keep_reporting
from fleet_agent.sim.scenarios import CALM_DAY, SCENARIOS, Scenario
from fleet_agent.sim.world import open_world

LOOPBACK = "127.0.0.1"


async def serve(
    *,
    vast_port: int,
    model_port: int,
    seed: int,
    speed: float,
    origin: datetime,
    scenario: Scenario,
    policy_name: str,
    api_key: str | None,
    ready: Callable[[], None],
) -> None:
    """Runs the world until SIGINT or SIGTERM; `origin` is its business time now, `speed` how fast that goes on.

    Calls `ready` once both ports answer. Raises OSError, in one line, when a port cannot be had.
    """
    world = open_world(WallClock(origin, speed), scenario, seed=seed, policy=policy_name, api_key=api_key)
    with ExitStack() as stack:
        sockets = [stack.enter_context(_listening(port)) for port in (vast_port, model_port)]
        faces = dict(zip((vast_port, model_port), (world.vast_face, world.model_face), strict=True))
        config = uvicorn.Config(_by_port(faces), lifespan="off", log_level="warning", access_log=False)
        reporting = asyncio.create_task(keep_reporting(world.market, world.queue, speed=speed))
        try:
            await SimServer(config, ready).serve(sockets=sockets)
        finally:
            reporting.cancel()


class SimServer(uvicorn.Server):
    """Says when it is ready, and treats a signal as the end of its work, not as something to raise again."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def business_now(origin: datetime, *, since: datetime, speed: float) -> datetime:
    """The business time now, if it was `origin` at the real instant `since`: so every process of a tree agrees."""
    return origin + (datetime.now(UTC) - since) * speed


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    since = options.since or datetime.now(UTC)
    try:
        asyncio.run(
            serve(
                vast_port=options.vast_port,
                model_port=options.model_port,
                seed=options.seed,
                speed=options.speed,
                origin=business_now(options.origin or since, since=since, speed=options.speed),
                scenario=SCENARIOS[options.scenario],
                policy_name=options.policy,
                api_key=options.api_key,
                ready=lambda: print(_addresses(options.vast_port, options.model_port), flush=True),
            )
        )
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _listening(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {LOOPBACK}:{port}: {error.strerror} → choose another port") from error
    return listener


def _by_port(faces: Mapping[int, ASGIApp]) -> ASGIApp:
    async def dispatch(scope: Scope, receive: Receive, send: Send) -> None:
        _, port = scope["server"]
        await faces[port](scope, receive, send)

    return dispatch


def _addresses(vast_port: int, model_port: int) -> str:
    vast = f"http://{LOOPBACK}:{vast_port}"
    model = f"http://{LOOPBACK}:{model_port}/v1"
    settings = {
        "FLEET_VAST_URL": vast,
        "FLEET_VAST_API_KEY": "made-up",
        "FLEET_DEMAND_PROMETHEUS_URL": f"{vast}/demand",
        "FLEET_MODEL_URL": model,
        "FLEET_MODEL_NAME": MODEL,
    }
    return "\n".join(
        [
            *(f"vast.ai {vast}", f"demand  {vast}/demand", f"model   {model}"),
            *("", "for an agent of yours:", *(f"  export {name}={value}" for name, value in settings.items())),
            *("for the official command line:", f"  export VAST_URL={vast}; vastai --url {vast} show instances"),
        ]
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fleet-agent sim", description="The simulators alone.")
    parser.add_argument("--vast-port", type=int, required=True, help="the market, and the demand under /demand")
    parser.add_argument("--model-port", type=int, required=True, help="the model, OpenAI's API under /v1")
    parser.add_argument("--seed", type=int, default=0, help="which world: machines, delays, arrivals (default 0)")
    parser.add_argument("--speed", type=_positive, default=1.0, help="business seconds per real second (default 1)")
    parser.add_argument("--scenario", choices=tuple(SCENARIOS), default=CALM_DAY.name)
    parser.add_argument("--policy", choices=tuple(POLICIES), default="sensible", help="how the model behaves")
    parser.add_argument("--api-key", help="the only key that both faces accept (default: any)")
    parser.add_argument("--origin", type=_instant, help="business time at --since (default: the same as --since)")
    parser.add_argument("--since", type=_instant, help="real time at which business time was --origin (default: now)")
    return parser


def _positive(text: str) -> float:
    number = float(text)
    if number <= 0:
        raise ValueError(text)
    return number


def _instant(text: str) -> datetime:
    instant = datetime.fromisoformat(text)
    if instant.utcoffset() is None:
        raise ValueError(text)
    return instant.astimezone(UTC)


if __name__ == "__main__":
    sys.exit(main())
