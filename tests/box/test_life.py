"""A box from its start to its end: the real entrypoint, with stubs of the proving stack and an owner who listens."""

from __future__ import annotations

import ctypes
import signal

import psutil
import pytest

from tests.box.conftest import Life, Machine
from tests.box.door import DRAIN, Owner
from tests.stack.waiting import until

LASTS = "exec sleep 1000"
"""A command that lives until it is ended."""

RUN = "curio run --name C.101"
CORDON = "curio cli --machine 127.0.0.1:12300 cordon"


def proves(machine: Machine, owner: Owner, **env: str) -> Life:
    """A box that has come to its work."""
    life = machine.starts(**env)
    owner.until(lambda words: words["stage"] == "proving")
    return life


# --- the way to the prover --------------------------------------------------------------------------------------------


def test_a_box_goes_its_whole_way_with_the_commands_of_curio_and_cuzk(machine: Machine, owner: Owner) -> None:
    owner.tasks = 2
    life = machine.starts()
    words = owner.until(lambda words: words["stage"] == "proving" and words["tasks"] == 2)

    assert owner.stages() == ["registered", "params_ready", "benchmarked", "proving"]
    assert [note for note in machine.notes() if note != "cuzk"] == [
        "curio fetch-params 32",
        "cuzk-bench status",
        "cuzk-bench batch",
        RUN,
    ]
    assert machine.notes().count("cuzk") == 1
    assert (words["proofs_per_hour"], words["fetched"]) == (30.0, 1.0)
    assert {words["tasks"] for words in owner.heard if words["stage"] in ("registered", "params_ready")} == {0}
    life.says("prover: the prover listens")


def test_a_box_without_an_owner_proves_all_the_same(machine: Machine, owner: Owner) -> None:
    life = machine.starts(FLEET_BOX_HOOK="")
    life.noted(RUN)

    assert owner.heard == []


def test_what_is_set_to_nothing_is_left_out(machine: Machine, owner: Owner) -> None:
    proves(machine, owner, BOX_FETCH="", BOX_DAEMON="", BOX_BENCH="", BOX_STATUS="")

    assert machine.notes() == [RUN]
    assert owner.stages() == ["registered", "params_ready", "proving"]
    assert not any("proofs_per_hour" in words for words in owner.heard)
    assert "tasks" not in owner.heard[-1]  # nobody counts them


@pytest.mark.parametrize(
    ("env", "why"),
    [
        ({"BOX_POLL": "soon"}, "BOX_POLL is 'soon', and must be a number"),
        ({"MIN_RATE": "nan"}, "MIN_RATE is 'nan', and must be a number"),
        ({"BOX_PROVE": " "}, "BOX_PROVE names no command"),
        ({"FLEET_BOX_HOOK": "not-an-address-but-a-secret"}, "FLEET_BOX_HOOK is no address"),
        ({"FLEET_BOX_HOOK": "http://host:port/not-an-address-but-a-secret"}, "FLEET_BOX_HOOK is no address"),
    ],
)
def test_a_variable_that_will_not_do_is_named(machine: Machine, env: dict[str, str], why: str) -> None:
    life = machine.starts(**env)

    assert life.ends() == 2
    assert why in life.log()
    assert "secret" not in life.log()
    assert machine.notes() == []


# --- parameters -------------------------------------------------------------------------------------------------------


def test_parameters_that_stand_still_end_the_box_with_a_word_of_why(machine: Machine, owner: Owner) -> None:
    life = machine.starts(BOX_FETCH=f"echo begins; {LASTS}", BOX_STALL="0.3")

    assert life.ends() == 3
    assert "the parameters stand still at 0.0 GB" in owner.heard[-1]["gave_up"]
    assert owner.heard[-1]["stage"] == "registered"
    assert RUN not in machine.notes()


GROWS = 'for i in $(seq 50); do head -c 500000 /dev/zero >> "$BOX_PARAMS/a"; sleep 0.05; done'
READS = 'exec python3 -c \'import time\nfor _ in range(50): open("/dev/zero", "rb").read(500000); time.sleep(0.05)\''


@pytest.mark.parametrize("slowly", [GROWS, READS], ids=["it grows", "it is verified"])
def test_parameters_that_come_slowly_are_waited_for(machine: Machine, owner: Owner, slowly: str) -> None:
    """Also while what came is only read again, and no file grows. The test before this one is the control."""
    machine.starts(BOX_FETCH=slowly, BOX_STALL="2")
    owner.until(lambda words: words["stage"] == "proving")


HALF = f'head -c 2000000 /dev/zero > "$BOX_PARAMS/a"; {LASTS}'


@pytest.mark.parametrize(("gb", "share"), [("0.004", 0.5), ("0.001", 1.0)])
def test_how_much_of_the_parameters_has_come_is_told_as_a_share(
    machine: Machine, owner: Owner, gb: str, share: float
) -> None:
    machine.starts(BOX_FETCH=HALF, BOX_PARAMS_GB=gb)

    owner.until(lambda words: words.get("fetched", 0) == pytest.approx(share, abs=0.01))
    owner.posts(2)
    assert owner.heard[-1]["fetched"] == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("gb", ["", "0"])
def test_of_parameters_whose_size_nobody_named_no_share_is_told_before_all_are_there(
    machine: Machine, owner: Owner, gb: str
) -> None:
    """What the default command fetches says nothing of another one."""
    goes_on = 'head -c 2000000 /dev/zero > "$BOX_PARAMS/a"; while ! test -e "$BOX_PARAMS/go"; do sleep 0.02; done'
    machine.starts(BOX_FETCH=goes_on, BOX_PARAMS_GB=gb)
    owner.posts(5)
    told = [words for words in owner.heard if "fetched" in words]
    (machine.folder / "params" / "go").touch()
    words = owner.until(lambda words: words["stage"] == "proving")

    assert (told, words["fetched"]) == ([], 1.0)


def test_a_fetch_that_breaks_off_is_tried_again_and_not_for_ever(machine: Machine, owner: Owner) -> None:
    """The control is one that succeeds the second time."""
    fails = 'echo tries >> "$NOTES"; exit 7'
    life = machine.starts(BOX_FETCH=fails)
    assert life.ends() == 3
    assert machine.notes() == ["tries"] * 3
    assert owner.heard[-1]["gave_up"] == "the parameters could not be fetched (status 7)"

    machine.starts(BOX_FETCH=f'test -e "$BOX_PARAMS/a" && exit 0; touch "$BOX_PARAMS/a"; {fails}')
    owner.until(lambda words: words["stage"] == "proving")
    assert machine.notes().count("tries") == 4


# --- the benchmark ----------------------------------------------------------------------------------------------------


def test_a_machine_that_is_too_slow_says_its_rate_and_never_proves(machine: Machine, owner: Owner) -> None:
    """The control is the same machine at a rate that it just makes."""
    life = machine.starts(MIN_RATE="30.5")
    assert life.ends() == 5
    last = owner.heard[-1]
    assert (last["stage"], last["proofs_per_hour"]) == ("benchmarked", 30.0)
    assert last["gave_up"] == "30 proofs an hour are fewer than the 30.5 it needs"
    assert RUN not in machine.notes()

    proves(machine, owner, MIN_RATE="30")


@pytest.mark.parametrize(
    ("bench", "why"),
    [
        ("exit 1", "the benchmark ended with status 1"),
        ("echo completed: 0", "the benchmark named no rate"),
        ("echo 0 proofs/h", "the benchmark named no rate"),
    ],
)
def test_a_machine_that_cannot_be_measured_gives_up(machine: Machine, owner: Owner, bench: str, why: str) -> None:
    life = machine.starts(BOX_BENCH=bench)

    assert life.ends() == 4
    assert owner.heard[-1]["gave_up"] == why


def test_a_benchmark_that_takes_too_long_is_given_up(machine: Machine, owner: Owner) -> None:
    life = machine.starts(BOX_BENCH=LASTS, BOX_BENCH_WITHIN="0.5")

    assert life.ends() == 4
    assert owner.heard[-1]["gave_up"] == "the benchmark took more than 0.5 s"


def test_a_daemon_that_dies_under_the_benchmark_is_not_waited_for(machine: Machine, owner: Owner) -> None:
    life = machine.starts(BOX_DAEMON="exit 9", BOX_BENCH=LASTS)

    assert life.ends() == 4
    assert owner.heard[-1]["gave_up"] == "the daemon died during the benchmark (status 9)"


def test_a_container_that_starts_again_does_not_measure_again(machine: Machine, owner: Owner) -> None:
    first = proves(machine, owner)
    first.end()
    first.ends()
    proves(machine, owner)

    assert machine.notes().count("cuzk-bench batch") == 1
    assert owner.heard[-1]["proofs_per_hour"] == 30.0


# --- a drain ----------------------------------------------------------------------------------------------------------


def test_a_box_that_is_to_drain_takes_no_more_and_ends_its_prover_when_nothing_is_at_hand(
    machine: Machine, owner: Owner
) -> None:
    owner.tasks = 2
    life = proves(machine, owner)
    owner.answer = lambda _: DRAIN
    life.noted(CORDON)
    owner.posts(5)
    busy = (owner.heard[-1], "curio ends" in machine.notes())

    owner.tasks = 0
    life.noted("curio ends")
    owner.posts(3)

    assert busy == (owner.heard[-1] | {"tasks": 2}, False)
    assert (owner.heard[-1]["tasks"], owner.heard[-1]["draining"]) == (0, True)
    assert machine.notes().count(CORDON) == 1
    assert life.lives()  # to be destroyed, not to pass for a failure


def test_a_box_that_is_not_to_drain_goes_on_with_nothing_at_hand(machine: Machine, owner: Owner) -> None:
    """The control of the one before."""
    proves(machine, owner)
    owner.posts(10)

    assert (CORDON in machine.notes(), "curio ends" in machine.notes()) == (False, False)
    assert not any("draining" in words for words in owner.heard)


def test_until_no_further_task_can_come_one_counts_as_at_hand(machine: Machine, owner: Owner) -> None:
    """Curio may take one more after its cordon, and who says that it has none is destroyed."""
    life = proves(machine, owner, BOX_SETTLE="1000")
    owner.answer = lambda _: DRAIN
    life.noted(CORDON)
    owner.posts(5)

    assert owner.heard[-1]["tasks"] == 1
    assert "draining" not in owner.heard[-1]
    assert "curio ends" not in machine.notes()


def test_where_the_drain_command_does_not_work_the_prover_is_ended_when_it_is_idle(
    machine: Machine, owner: Owner
) -> None:
    owner.tasks = 1
    life = proves(machine, owner, BOX_DRAIN='echo no such machine; echo asks >> "$NOTES"; exit 3')
    owner.answer = lambda _: DRAIN
    life.says("drains without it")
    owner.posts(3)
    busy = "curio ends" in machine.notes()
    owner.tasks = 0
    life.noted("curio ends")

    assert not busy
    assert machine.notes().count("asks") == 5
    assert "the drain command does not work (status 3): no such machine" in life.log()


def test_what_cannot_be_counted_any_more_counts_as_at_hand(machine: Machine, owner: Owner) -> None:
    life = proves(machine, owner)
    owner.tasks = None
    owner.answer = lambda _: DRAIN
    life.noted(CORDON)
    owner.posts(5)

    assert owner.heard[-1]["tasks"] == 1
    assert "curio ends" not in machine.notes()


@pytest.mark.parametrize("where", ["fetch", "bench"])
def test_a_box_that_is_to_drain_before_it_proves_never_does(machine: Machine, owner: Owner, where: str) -> None:
    waits = {"BOX_FETCH": LASTS} if where == "fetch" else {"BOX_BENCH": LASTS}
    life = machine.starts(**waits)
    owner.posts(5)
    owner.answer = lambda _: DRAIN
    life.says("waits to be destroyed")
    owner.posts(2)

    assert (owner.heard[-1]["tasks"], owner.heard[-1]["draining"]) == (0, True)
    assert not any(note.startswith(RUN) for note in machine.notes())
    assert life.children() == []


def test_a_prover_that_dies_while_it_drains_is_not_started_again(machine: Machine, owner: Owner) -> None:
    owner.tasks = 1
    life = proves(machine, owner, BOX_PROVE='echo starts >> "$NOTES"; while ! test -e die; do sleep 0.02; done')
    owner.answer = lambda _: DRAIN
    life.noted(CORDON)
    next(child for child in life.children() if "while" in " ".join(child.cmdline())).kill()
    life.says("waits to be destroyed")
    owner.posts(2)

    assert machine.notes().count("starts") == 1
    assert owner.heard[-1]["tasks"] == 0


def test_a_command_may_count_what_is_at_hand(machine: Machine, owner: Owner) -> None:
    proves(machine, owner, BOX_STATUS="echo 4")
    owner.until(lambda words: words["tasks"] == 4)


# --- a prover that dies -----------------------------------------------------------------------------------------------

DIES = 'echo starts >> "$NOTES"; exit 11'
DIES_BESIDE_ITS_DAEMON = """
    echo starts >> "$NOTES"
    until [ "$(grep -c '^cuzk$' "$NOTES")" = "$(grep -c starts "$NOTES")" ]; do sleep 0.02; done
    exit 11
"""


def test_a_prover_that_dies_is_started_again_once_and_then_given_up(machine: Machine, owner: Owner) -> None:
    life = machine.starts(BOX_PROVE=DIES_BESIDE_ITS_DAEMON)

    assert life.ends() == 6
    assert machine.notes().count("starts") == 2
    assert machine.notes().count("cuzk") == 2  # what it left behind is in the way
    assert owner.heard[-1]["gave_up"] == "the prover died again (status 11)"
    assert "proving" not in owner.stages()  # it never did


def test_a_prover_that_dies_now_and_then_goes_on(machine: Machine, owner: Owner) -> None:
    """The control: no death is soon after another one."""
    life = machine.starts(BOX_PROVE=DIES, BOX_RESTART_WINDOW="0")
    life.noted("starts", times=4)

    assert life.lives()


def test_with_the_daemon_the_prover_is_started_anew(machine: Machine, owner: Owner) -> None:
    life = proves(machine, owner)
    next(child for child in life.children() if child.name() == "sleep" and "1000" in child.cmdline()).kill()
    life.noted(RUN, times=2)
    owner.posts(3)

    assert machine.notes().count("cuzk") == 2
    assert machine.notes().count("curio ends") == 1
    assert life.lives()


def test_a_node_that_curio_asked_to_restart_has_not_died(machine: Machine, owner: Owner) -> None:
    life = machine.starts(BOX_PROVE='echo starts >> "$NOTES"; sleep 0.05; exit 100')
    life.noted("starts", times=4)

    assert life.lives()


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_prover_in_its_own_way_and_then_the_box(
    machine: Machine, owner: Owner, number: signal.Signals
) -> None:
    life = proves(machine, owner)
    children = life.children()
    life.end(number)

    assert life.ends() == 128 + number
    assert machine.notes().count("curio ends") == 1
    until(lambda: not any(child.is_running() for child in children))


STUBBORN = "trap 'echo asked >> \"$NOTES\"' TERM; while :; do sleep 0.02; done"


def test_a_second_signal_has_no_patience(machine: Machine, owner: Owner) -> None:
    life = proves(machine, owner, BOX_PROVE=STUBBORN, BOX_END_WITHIN="1000")
    life.end()
    life.noted("asked")
    assert life.lives()
    life.end()

    assert life.ends() == 128 + signal.SIGTERM


def test_a_prover_that_does_not_end_is_killed_in_the_end(machine: Machine, owner: Owner) -> None:
    life = proves(machine, owner, BOX_PROVE=STUBBORN, BOX_END_WITHIN="0.2")
    life.end()

    assert life.ends() == 128 + signal.SIGTERM
    assert machine.notes().count("asked") == 1


def test_a_signal_ends_a_box_that_has_drained(machine: Machine, owner: Owner) -> None:
    owner.answer = lambda _: DRAIN
    life = machine.starts()
    life.says("waits to be destroyed")
    life.end()

    assert life.ends() == 128 + signal.SIGTERM


def test_orphans_are_buried(machine: Machine, owner: Owner) -> None:
    """As process 1 of its container it inherits them; here it is made to."""

    def inherit() -> None:
        assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER

    life = machine.starts(before=inherit, BOX_PROVE='for i in 1 2 3; do (sh -c "exit 0" &); done; exec sleep 1000')
    owner.until(lambda words: words["stage"] == "proving")

    until(lambda: not any(child.status() == psutil.STATUS_ZOMBIE for child in life.children()))


# --- its log ----------------------------------------------------------------------------------------------------------


def test_the_token_is_in_no_line_whoever_writes_it(machine: Machine, owner: Owner) -> None:
    """Not even a command that goes and looks for it prints it; that it did find it is the control."""
    token = owner.address.rpartition("/")[2]
    looks = "env; tr '\\0' '\\n' < /proc/$PPID/environ; exit 1"
    life = machine.starts(BOX_FETCH=looks)
    life.ends()

    assert token not in life.log()
    assert "fetch: FLEET_BOX_HOOK=***" in life.log()


def test_the_commands_do_not_have_the_token(machine: Machine, owner: Owner) -> None:
    """The control is a variable that they have."""
    proves(machine, owner, BOX_FETCH='env | cut -d= -f1 >> "$NOTES"')

    assert "BOX_FETCH" in machine.notes()
    assert "FLEET_BOX_HOOK" not in machine.notes()


def test_a_flood_of_lines_neither_fills_the_disk_nor_hides_the_rate(machine: Machine, owner: Owner) -> None:
    flood = "yes a line of forty letters, as it may well be | head -n 100000; echo 30 proofs/h"
    life = proves(machine, owner, BOX_BENCH=flood)

    assert owner.heard[-1]["proofs_per_hour"] == 30
    assert len(life.log()) < 600_000


def test_a_line_without_an_end_fills_no_memory(machine: Machine, owner: Owner) -> None:
    life = machine.starts(BOX_FETCH=f"head -c 50000000 /dev/zero | tr '\\0' x; echo; echo the end; {LASTS}")
    life.says("fetch: the end")

    assert max(map(len, life.log().splitlines())) < 5_000
    assert psutil.Process(life.process.pid).memory_info().rss < 60_000_000


# --- the owner --------------------------------------------------------------------------------------------------------


def test_news_come_at_once_and_nothing_else_before_its_time(machine: Machine, owner: Owner) -> None:
    life = machine.starts(BOX_POLL="1000")
    life.noted(RUN)

    assert owner.stages() == ["registered", "params_ready", "benchmarked"]
    assert len(owner.heard) == 3
