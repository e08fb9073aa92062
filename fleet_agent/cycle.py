"""The story of one run, top to bottom.

    open → observe → settle → collect → quiet? → (compose → ask → rule → act)… → conclude → close or go on

This is plain Python: no Prefect, no HTTP, no SQL. The ports do the reaching out, the domain decides, and this file
alternates the two. Whatever happens, the run ends with a row that says why (`exit_reason`), and what it had claimed
is either consumed by the transaction that closes it or released for the next run.

A run that was killed and is tried again at once goes on where its log ends: the same path is walked, past what is
answered already, and from there on nothing is different.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta

from fleet_agent.domain.actions import (
    EFFECTS,
    Effect,
    Finish,
    Malformed,
    Read,
    Tool,
    Write,
    cut_summary,
    parse_call,
)
from fleet_agent.domain.compaction import Cut
from fleet_agent.domain.context import (
    OUTPUTS_TOKENS,
    Budget,
    compose,
    meanwhile_block,
    resumed_block,
    taint_of,
    turn_block,
)
from fleet_agent.domain.exits import exit_reason
from fleet_agent.domain.guards import Guard, Nudge, Stop, says_something
from fleet_agent.domain.hygiene import clean, fence
from fleet_agent.domain.ledger import ActionStatus, Listing, Ruled, Unsettled
from fleet_agent.domain.money import show_usd
from fleet_agent.domain.observation import Observation
from fleet_agent.domain.report import Report, empty_report, failed_report, run_report
from fleet_agent.domain.run import (
    Claimed,
    Closed,
    Closing,
    Message,
    MessageKind,
    ModelReply,
    ModelRequest,
    NothingToDo,
    Progress,
    Result,
    Run,
    RunRequest,
    Standing,
    ToolCall,
    Usage,
    first_of,
    reason_of,
)
from fleet_agent.domain.spending import Booking
from fleet_agent.domain.taint import TAINT_LASTS, Taint
from fleet_agent.domain.tokens import factor_within, shortened
from fleet_agent.domain.triggers import Trigger
from fleet_agent.domain.verdict import NOTHING, Verdict, read_verdict, without_verdict
from fleet_agent.domain.waking import Look, bands, changes, reasons_to_ask
from fleet_agent.errors import (
    BudgetSpent,
    ContextTooLong,
    FixSetup,
    FleetAgentError,
)
from fleet_agent.ports import Ports
from fleet_agent.steps.act import act, hands_of
from fleet_agent.steps.alive import signs_of_life
from fleet_agent.steps.observe import observe
from fleet_agent.steps.read import read
from fleet_agent.steps.settle import settle

SAY_SOMETHING = "the summary says nothing. Say what you saw, what you decided and why: later runs see only that."

EFFECT_NAMES = {tool.name for tool in EFFECTS}


async def run_cycle(request: RunRequest, ports: Ports) -> Report:
    """Walk one run and report it.

    What a person must fix and what may work later end the run as failed, with the one-line reason in the report and
    in its row. Anything else is a defect: it is recorded the same way and raised.
    """
    opened = await ports.journal.open_run(request)
    if isinstance(opened, NothingToDo):
        return empty_report(opened)
    talk = Talk(run=opened, ports=ports, started=ports.clock.elapsed())
    async with signs_of_life(talk.run, ports):
        try:
            return await _walk(talk)
        except FleetAgentError as error:
            a_person_must_know = isinstance(error, FixSetup | BudgetSpent)
            await _fail(talk, exit_reason=exit_reason(type(error)), cause=str(error), tell=a_person_must_know)
            return failed_report(talk.run, talk.reason(), cause=str(error))
        except BaseException as error:
            await _fail(talk, exit_reason=exit_reason(type(error)), cause=f"{type(error).__name__}: {error}")
            raise


@dataclass
class Talk:
    """What one run has in hand while it lasts. Everything that must outlive it is in the journal."""

    run: Run
    ports: Ports
    started: timedelta
    claimed: Claimed = field(default_factory=Claimed)
    unshown: Claimed = field(default_factory=Claimed)
    """Of what is claimed: what no message carries yet."""
    unseen: Claimed = field(default_factory=Claimed)
    """Of what is claimed: what no answered request carried; the model has not had its say on it."""
    steps: list[Message] = field(default_factory=list[Message])
    listing: Listing = field(default_factory=Listing)
    usage: Usage = field(default_factory=Usage)
    answers: list[str] = field(default_factory=list[str])
    """What became of each effect the model asked for, refused ones too."""
    guard: Guard = field(default_factory=Guard)
    """Of this turn."""
    why: tuple[str, ...] = ()
    """Reasons to ask the model, as the run's first look found them."""
    factor: float = 1.0
    """By which a server was found, in this run, to count more tokens than we do."""
    cut: Cut | None = None
    """What the newest prompt left out: the next one leaves out as much."""
    turn: int = 1
    step: int = 0

    def spent(self) -> timedelta:
        """Real time; an attempt that goes on after an interruption has its own."""
        return self.ports.clock.elapsed() - self.started

    def take(self, new: Claimed) -> None:
        self.claimed += new
        self.unshown += new
        self.unseen += new

    def reason(self) -> str:
        """Why the run happens, in a few words."""
        return reason_of(self.claimed) or first_of(self.why)

    def turn_has_begun(self) -> bool:
        return any(message.turn == self.turn for message in self.steps)


@dataclass
class View:
    """What a turn is decided on: what is in force, what is seen, and what an earlier run left open."""

    standing: Standing
    observation: Observation
    unsettled: tuple[Unsettled, ...]
    carried_out: tuple[str, ...] = ()
    """What a person had approved and this look began with."""

    def look(self) -> Look:
        return Look(self.observation, self.unsettled, self.standing.approvals)


async def _walk(talk: Talk) -> Report:
    view = await _look(talk)
    at_hand = await _go_back_to(talk, view) if talk.run.resumed else None
    if not talk.turn_has_begun():
        talk.take(await talk.ports.journal.collect(talk.run, turn=talk.turn))
    talk.why = _why_ask(talk, view)
    while True:
        closing = _quiet_closing(view) if is_quiet(talk, view) else await _converse(talk, view, at_hand)
        may_go_on = talk.turn < view.standing.policy.run.max_turns and _exhausted(view, talk) is None
        end = await talk.ports.journal.close_or_go_on(talk.run, closing, may_go_on=may_go_on)
        if isinstance(end, Closed):
            return run_report(talk.run, talk.reason(), end, view.observation, tuple(talk.answers))
        talk.turn += 1
        talk.unshown, talk.unseen, at_hand, talk.guard = Claimed(), Claimed(), None, Guard()
        talk.take(end)
        view = await _look(talk)


async def _look(talk: Talk) -> View:
    """Read what is in force, look at the world, and see what an earlier run left open."""
    standing = await talk.ports.journal.standing(talk.run)
    observation = await observe(talk.run, talk.ports)
    settled = await settle(talk.run, talk.ports, standing, observation)
    if not settled.carried_out:
        return View(standing, observation, settled.open)
    talk.answers += settled.carried_out
    standing = await talk.ports.journal.standing(talk.run)
    observation = await observe(talk.run, talk.ports)
    return View(standing, observation, await talk.ports.journal.unsettled(talk.run), settled.carried_out)


async def _go_back_to(talk: Talk, view: View) -> Progress:
    """Where the attempt before this one was interrupted. Only its listing of offers is lost, which was in memory."""
    at_hand = await talk.ports.journal.recall(talk.run, view.observation)
    talk.turn, talk.step, talk.usage = at_hand.turn, at_hand.step, at_hand.usage
    talk.claimed, talk.unshown, talk.unseen = at_hand.claimed, at_hand.unshown(), at_hand.unseen()
    talk.steps = list(at_hand.said)
    told = [f"{call.name}: {result}" for call, result in at_hand.results() if call.name in EFFECT_NAMES]
    talk.answers = [*told, *talk.answers]
    talk.guard = Guard.after([message for message in talk.steps if message.turn == talk.turn])
    return at_hand


def is_quiet(talk: Talk, view: View) -> bool:
    """A heartbeat without a reason to ask the model closes at once; a run that has begun to talk goes on."""
    if view.carried_out:
        return False
    return talk.run.trigger is Trigger.HEARTBEAT and not talk.steps and not _why_ask(talk, view)


def _why_ask(talk: Talk, view: View) -> tuple[str, ...]:
    return reasons_to_ask(talk.run, talk.claimed, view.standing, view.look(), talk.ports.clock.now())


def _quiet_closing(view: View) -> Closing:
    return Closing(
        verdict=NOTHING,
        summary="Nothing changed since the last run; the model was not asked.",
        exit_reason="quiet",
        quiet=True,
        bands=bands(view.look(), view.standing.last_bands),
        asked_model=False,
    )


async def _converse(talk: Talk, view: View, at_hand: Progress | None) -> Closing:
    """Say what the turn is about, then step by step, until the model finishes, a bound is reached, or the session is
    reset."""
    closing = None
    if not talk.turn_has_begun():
        block = turn_block(
            talk.run,
            view.standing,
            talk.unshown,
            view.observation,
            view.unsettled,
            talk.ports.clock.now(),
            talk.ports.count_tokens,
            carried_out=view.carried_out,
            mark=talk.ports.draw_mark(),
        )
        await _show(talk, block)
    elif at_hand is not None:
        closing = await _pick_up(talk, view, at_hand)
    while closing is None:
        closing = await _step(talk, view)
    return closing


async def _pick_up(talk: Talk, view: View, at_hand: Progress) -> Closing | None:
    """Deal with the reply that was interrupted, as if it had just come, and tell the model how the world is now."""
    reply = at_hand.reply_at_hand()
    closing = await _follow(talk, view, reply, at_hand.ruled) if reply else None
    if closing is None:
        now = talk.ports.clock.now()
        await _say(talk, resumed_block(view.observation, view.unsettled, now, carried_out=view.carried_out))
    return closing


async def _step(talk: Talk, view: View) -> Closing | None:
    """One reply of the model and what follows from it; the closing where the run ends with it."""
    bound = _exhausted(view, talk)
    if bound is not None:
        return _derived_closing(talk, view, bound)
    meanwhile = await talk.ports.journal.meanwhile(talk.run, turn=talk.turn)
    if meanwhile.session_was_reset:
        return _derived_closing(talk, view, "the reset of the session")
    talk.take(meanwhile.claimed)
    if talk.unshown:
        await _show(talk, meanwhile_block(talk.unshown, talk.ports.count_tokens, mark=talk.ports.draw_mark()))
        view.standing = await talk.ports.journal.standing(talk.run)  # a limit or the objective may be what changed
    request = await _next_request(talk, view)
    too_dear = _too_dear(view, talk, request.most)
    if too_dear is not None and talk.step == 0:
        raise BudgetSpent(f"not one request fits within {too_dear}", "raise run.max_tokens or run.max_usd")
    bound = too_dear or _exhausted(view, talk)  # to compose it may have taken the rest of the time
    if bound is not None:
        return _derived_closing(talk, view, bound)
    talk.step += 1
    try:
        booking, reply = await _ask(talk, view, request)
    except ContextTooLong as error:
        if error.fits is None or factor_within(error.fits) <= talk.factor:
            raise
        talk.factor = factor_within(error.fits)
        booking, reply = await _ask(talk, view, await _next_request(talk, view))
    talk.unseen = Claimed()
    message, ruled = await _record_reply(talk, booking, reply, view)
    return await _follow(talk, view, message, ruled)


async def _follow(talk: Talk, view: View, reply: Message, ruled: Sequence[Ruled]) -> Closing | None:
    """Carry out what the reply asks for; the closing where it ends the run."""
    answers = _read_calls(reply)
    await _carry_out(talk, view, answers, {each.call_id: each for each in ruled})
    finish = next((tool for _, tool in answers if isinstance(tool, Finish) and says_something(tool.summary)), None)
    if finish is not None:
        return _closing(talk, view, finish.verdict(), finish.summary, "finished")
    if not talk.guard.may_send_back():
        return _derived_closing(talk, view, "no summary that says anything")
    match talk.guard.finding():
        case Stop(reason=reason):
            return _derived_closing(talk, view, reason)
        case _ if reply.calls:
            return None
        case _:
            return await _read_prose(talk, view, reply)


async def _read_prose(talk: Talk, view: View, reply: Message) -> Closing | None:
    """A reply without a call is a verdict in writing, or it is corrected."""
    verdict = read_verdict(reply.content)
    if verdict is not None:
        summary = without_verdict(reply.content) or "The model gave its verdict without a word."
        return _closing(talk, view, verdict, cut_summary(summary), "verdict in text")
    if not talk.guard.may_correct():
        return _derived_closing(talk, view, "no tool call and no verdict")
    await _say(talk, "That reply called no tool, so nothing was done. Call a tool; `finish` ends the run.")
    return None


def _exhausted(view: View, talk: Talk) -> str | None:
    """Which bound of the run is reached, or None."""
    bounds = view.standing.policy.run
    if talk.step >= bounds.max_steps:
        return f"the bound of {bounds.max_steps} steps"
    if talk.spent() >= bounds.max_real_time:
        return f"the bound of {bounds.max_real_time.total_seconds():.0f} s"
    return _too_dear(view, talk, Usage())


def _too_dear(view: View, talk: Talk, most: Usage) -> str | None:
    """Which bound of the run a request could break that may use `most`, or None."""
    bounds = view.standing.policy.run
    used = talk.usage + most
    if used.tokens > bounds.max_tokens:
        return f"the bound of {bounds.max_tokens:,} tokens"
    if used.cost_usd > bounds.max_usd:
        return f"the bound of {show_usd(bounds.max_usd)}"
    return None


async def _next_request(talk: Talk, view: View) -> ModelRequest:
    """What is to be sent next, within what whoever would be asked now has room for."""
    terms = await talk.ports.model.terms()
    prompt = compose(
        standing=view.standing,
        steps=talk.steps,
        count_tokens=talk.ports.count_tokens,
        cut=talk.cut,
        budget=Budget(factor=max(terms.factor, talk.factor)),
    )
    talk.cut = prompt.cut
    body = talk.ports.model.body(prompt.messages, prompt.tools)
    return ModelRequest(
        body=body,
        compaction=prompt.compaction,
        taint=prompt.tainted_until and Taint(mark=talk.ports.draw_mark(), until=prompt.tainted_until),
        model=terms.model,
        most=terms.most(prompt.tokens),
    )


async def _ask(talk: Talk, view: View, request: ModelRequest) -> tuple[Booking, ModelReply]:
    """Send it once its cost is in the books; a failure leaves there what it did cost."""
    booking = await talk.ports.journal.about_to_ask(talk.run, request)
    within = view.standing.policy.run.max_real_time - talk.spent()
    try:
        reply = await talk.ports.model.reply(request.body, within=within)
    except FleetAgentError as error:
        used = Usage(**error.spent._asdict()) if error.spent else None
        talk.usage += used or Usage()
        await talk.ports.journal.spend(talk.run, booking, used)
        raise
    talk.usage += reply.usage
    return booking, reply


def _read_calls(reply: Message) -> list[tuple[ToolCall, Tool | Malformed]]:
    return [(call, _read_call(call)) for call in reply.calls]


def _read_call(call: ToolCall) -> Tool | Malformed:
    if call.malformed:
        return Malformed(sentence=f"The arguments of {call.name} are not a JSON object. Nothing was done; try again.")
    return parse_call(call.name, call.arguments)


async def _record_reply(
    talk: Talk, booking: Booking, reply: ModelReply, view: View
) -> tuple[Message, tuple[Ruled, ...]]:
    """The reply, its rulings and its intents are committed before anything happens."""
    message = Message(
        turn=talk.turn,
        step=talk.step,
        role="assistant",
        kind=MessageKind.TOOL_CALL if reply.calls else MessageKind.NOTE,
        content=reply.text,
        calls=reply.calls,
        model=reply.model,
        estimate=reply.estimate,
        reported=reply.reported,
    )
    effects = [(call.id, tool) for call, tool in _read_calls(message) if isinstance(tool, Effect)]
    ruled = await talk.ports.journal.record_reply(
        talk.run,
        message,
        booking=booking,
        usage=reply.usage,
        effects=effects,
        observation=view.observation,
        listing=talk.listing,
    )
    talk.steps.append(message)
    talk.guard = talk.guard.replied(message)
    return message, ruled


async def _carry_out(
    talk: Talk, view: View, answers: Sequence[tuple[ToolCall, Tool | Malformed]], ruled: dict[str, Ruled]
) -> None:
    """One result for every call, in order; effects one at a time, and none once the run's time or a guard says stop."""
    share = OUTPUTS_TOKENS // max(len(answers), 1)
    answered = {message.call_id for message in talk.steps}
    for call, tool in answers:
        if call.id in answered:
            continue
        talk.guard = talk.guard.called(call)
        answer = Message(
            turn=talk.turn, step=talk.step, role="tool", kind=MessageKind.TOOL_RESULT, content="", call_id=call.id
        )
        withheld = _withheld(talk, view, call)
        if isinstance(tool, Write) and withheld is None:
            answer = answer.telling(await talk.ports.journal.write(talk.run, tool, answer=answer))
            talk.steps.append(answer)
        else:
            result = withheld or await _result_of(talk, view, call, tool, ruled)
            if call.id in ruled:
                talk.answers.append(f"{call.name}: {result.sentence}")
                await _drop(talk, ruled[call.id], withheld)
            answer = _entering(talk, answer, result, share)
            await _log(talk, answer)
        talk.guard = talk.guard.answered(call, answer)


def _withheld(talk: Talk, view: View, call: ToolCall) -> Result | None:
    """Why a call is not carried out, or None. `finish` always is: it is what is wanted of a run that must end."""
    if call.name == Finish.name:
        return None
    if talk.spent() >= view.standing.policy.run.max_real_time:
        return Result(sentence="Not done: the time of this run is over.", failed=True)
    match talk.guard.finding():
        case Stop(reason=reason):
            return Result(sentence=f"Not done: {reason}. The run ends here.", failed=True)
        case Nudge(sentence=sentence):
            return Result(sentence=sentence, failed=True)
        case None:
            return None


def _entering(talk: Talk, answer: Message, result: Result, share: int) -> Message:
    """A result as it enters the log, and so every prompt: capped, and words from outside in a fence."""
    text = shortened(result.sentence, share, talk.ports.count_tokens)
    if result.outside is None:
        return answer.telling(result.model_copy(update={"sentence": text}))
    fenced = fence(text, source=result.outside, mark=talk.ports.draw_mark())
    tainted_until = result.tainted_until or talk.ports.clock.now() + TAINT_LASTS
    return answer.telling(result.model_copy(update={"sentence": fenced})).model_copy(
        update={"tainted_until": tainted_until}
    )


async def _result_of(talk: Talk, view: View, call: ToolCall, tool: Tool | Malformed, ruled: dict[str, Ruled]) -> Result:
    match tool:
        case Malformed(sentence=sentence):
            return Result(sentence=sentence, failed=True)
        case Finish(summary=summary) if not says_something(summary):
            return Result(sentence=f"Not ended: {SAY_SOMETHING}", failed=True)
        case Finish():
            return Result(sentence="The run ends here.")
        case Effect():
            done = await act(hands_of(talk.run, talk.ports, view.standing), tool, ruled[call.id])
            return done.model_copy(update={"sentence": clean(done.sentence)})
        case Read():
            result, listing = await read(talk.run, talk.ports, tool, policy=view.standing.policy, seen=view.observation)
            talk.listing = listing or talk.listing
            return result
        case _:
            raise AssertionError(f"{tool.name} is of no sort that can be carried out")


async def _drop(talk: Talk, ruled: Ruled, withheld: Result | None) -> None:
    """What was allowed and is withheld reserves nothing for the rest of the run."""
    if withheld is not None and ruled.status is ActionStatus.INTENDED:
        await talk.ports.journal.drop(talk.run, ruled.key, withheld.sentence)


async def _show(talk: Talk, block: str) -> None:
    """Put what was claimed before the model. `block` says it in words."""
    events, wakes = talk.unshown.events, talk.unshown.wakes
    message = Message(
        turn=talk.turn,
        step=talk.step,
        role="user",
        kind=MessageKind.TRIGGER,
        content=block,
        events=tuple(event.id for event in events),
        wakes=tuple(wake.id for wake in wakes),
        tainted_until=taint_of(talk.unshown, talk.ports.clock.now()),
    )
    await _log(talk, message)
    talk.unshown = Claimed()


async def _say(talk: Talk, text: str) -> None:
    """A message from us to the model, kept in the log."""
    await _log(talk, Message(turn=talk.turn, step=talk.step, role="user", kind=MessageKind.NOTE, content=text))


async def _log(talk: Talk, message: Message) -> None:
    talk.steps.append(message)
    await talk.ports.journal.record(talk.run, message)


def _closing(talk: Talk, view: View, verdict: Verdict, summary: str, exit_reason: str) -> Closing:
    """What the model was to see and did not, waits again."""
    return Closing(
        verdict=verdict,
        summary=summary,
        exit_reason=exit_reason,
        quiet=False,
        bands=bands(view.look(), view.standing.last_bands),
        asked_model=talk.step > 0,
        unseen=tuple(event.id for event in talk.unseen.events),
        unseen_wakes=tuple(wake.id for wake in talk.unseen.wakes),
        reason=first_of(talk.why),
    )


def _derived_closing(talk: Talk, view: View, bound: str) -> Closing:
    """The model gave no verdict: what changed is derived, and the ledger adds what was done when the run closes."""
    changed = bool(changes(view.look(), view.standing.last_bands))
    asked_for = "; ".join(talk.answers) or "nothing"
    return _closing(
        talk,
        view,
        Verdict(action=False, state_changed=changed),
        f"The run ended without a conclusion of the model ({bound}). It had asked for: {asked_for}.",
        bound,
    )


async def _fail(talk: Talk, *, exit_reason: str, cause: str, tell: bool = False) -> None:
    """As far as it can be recorded while the database may be the trouble: the next run opens anew either way."""
    with suppress(FleetAgentError):
        await talk.ports.journal.fail_run(
            talk.run, exit_reason=exit_reason, summary=cause, reason=first_of(talk.why), tell=tell
        )
