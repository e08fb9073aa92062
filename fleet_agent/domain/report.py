"""What a run tells people: a headline for lists, a page for the one who looks closer, one value for programs."""

from __future__ import annotations

from typing import Any

from fleet_agent.domain.money import show_rate, show_usd
from fleet_agent.domain.observation import Known, Observation, Unknown
from fleet_agent.domain.run import Closed, NothingToDo, Run
from fleet_agent.domain.show import gpu, one_line, printable
from fleet_agent.domain.values import Frozen


class Report(Frozen):
    run_id: int | None
    headline: str
    markdown: str
    fleet_rows: list[dict[str, str]]
    summary: dict[str, Any]
    failed: str | None = None


def empty_report(nothing: NothingToDo) -> Report:
    """An empty flow run: it found nothing to do and opened no run."""
    return Report(
        run_id=None,
        headline=f"empty: {nothing.reason}",
        markdown=f"Nothing to do: {nothing.reason}.",
        fleet_rows=[],
        summary={"run_id": None, "empty": nothing.reason},
    )


def failed_report(run: Run, reason: str, *, cause: str) -> Report:
    return Report(
        run_id=run.run_id,
        headline=f"{_headline(run, reason)}: failed",
        markdown=f"# Run #{run.run_id} failed\n\n{cause}\n",
        fleet_rows=[],
        summary={"run_id": run.run_id, "trigger": run.trigger.value, "failed": cause},
        failed=cause,
    )


def run_report(run: Run, reason: str, closed: Closed, observation: Observation, answers: tuple[str, ...]) -> Report:
    usage = closed.usage
    asked_for = "\n".join(f"- {answer}" for answer in answers) or "- nothing"
    markdown = f"""\
# Run #{run.run_id} · {run.trigger.value}{f": {reason}" if reason else ""}

**{_outcome(closed)}** · {closed.exit_reason} · {usage.tokens:,} tokens · {show_usd(usage.cost_usd)}{_taint(closed)}

{printable(closed.summary)}

## Asked for, and what became of it
{asked_for}

## Seen
- demand: {_demand(observation)}
- credit: {_credit(observation)}
- boxes: {len(observation.live_boxes())} live, {show_rate(observation.burn())}
"""
    return Report(
        run_id=run.run_id,
        headline=_headline(run, reason),
        markdown=markdown,
        fleet_rows=_fleet_rows(observation),
        summary={
            "run_id": run.run_id,
            "trigger": run.trigger.value,
            "verdict": closed.verdict.model_dump(),
            "no_op": closed.no_op,
            "tainted": closed.tainted,
            "exit_reason": closed.exit_reason,
            "turns": closed.turns,
            "tokens": usage.tokens,
            "summary": closed.summary,
        },
    )


def _headline(run: Run, reason: str) -> str:
    return one_line(f"#{run.run_id} {run.trigger.value}{f': {reason}' if reason else ''}")


def _outcome(closed: Closed) -> str:
    if closed.no_op:
        return "No-op"
    return "Acted" if closed.verdict.action else "State changed" if closed.verdict.state_changed else "Looked"


def _taint(closed: Closed) -> str:
    return " · tainted: it read text from outside" if closed.tainted else ""


def _demand(observation: Observation) -> str:
    match observation.demand:
        case Known(value=demand):
            return f"{demand.pending} pending, {demand.running} running"
        case Unknown(reason=reason):
            return f"unknown ({reason})"


def _credit(observation: Observation) -> str:
    match observation.account:
        case Known(value=account):
            return show_usd(account.credit_usd)
        case Unknown(reason=reason):
            return f"unknown ({reason})"


def _fleet_rows(observation: Observation) -> list[dict[str, str]]:
    return [
        {
            "box": str(box.vast_id or "?"),
            "stage": box.stage.value,
            "gpu": gpu(box.num_gpus, box.gpu_name),
            "usd_per_hour": f"{box.usd_per_hour:.3f}",
            "label": box.label,
        }
        for box in observation.live_boxes()
    ]
