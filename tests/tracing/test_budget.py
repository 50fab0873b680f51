"""Budgets: calls of models in a block are refused before they pass a limit, whoever makes them."""

import asyncio
import errno
import os
import pickle
import re
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

import optree
from optree._store.files.shared import SharedBytes
from optree._store.files.system import OS
from optree._tracing import spending
from optree._tracing.budgets import OUTSIDE, named, names_of
from optree._tree import walk_ops

LONG = 60
AGENT = """
def call(usd=0.01):
    with optree.llm(provider="openai", model="gpt-4o") as op:
        op.account(input_tokens=3, output_tokens=2, cost_usd=usd)

def work(_=None):
    made = 0
    try:
        for _ in range(8):
            call()
            made += 1
    except optree.BudgetExceeded:
        pass
    return made
"""
FIGURES = {"usd": 0.0, "tokens": 0, "calls": 0}


def call(usd=None, **figures):
    """Make a call of a model that costs so much."""
    with optree.llm(provider="openai", model="gpt-4o") as op:
        if usd is not None or figures:
            op.account(cost_usd=usd, **figures)
    return op


def calls_until_refused(**figures):
    """Make calls until one is refused; returns how many were made, and the refusal."""
    made = 0
    try:
        while made < 100:
            call(**figures)
            made += 1
    except optree.BudgetExceeded as error:
        return made, error
    return made, None


def taken(budget):
    """Return what is used of a budget, but for the time, and what is reserved."""
    return {name: one for name, one in budget.used.items() if name != "seconds"}, budget.reserved


@pytest.mark.parametrize(
    ("limits", "figures", "made", "which"),
    [
        ({"usd": 1.0}, {"usd": 0.25}, 4, "usd"),
        ({"usd": 0.3}, {"usd": 0.1}, 3, "usd"),  # whose sum in binary fractions is more
        ({"usd": 1.0}, {"usd": 0.3}, 3, "usd"),
        ({"usd": 0.0}, {"usd": 0.3}, 0, "usd"),
        ({"tokens": 100}, {"input_tokens": 30, "output_tokens": 10}, 2, "tokens"),
        ({"calls": 5}, {}, 5, "calls"),
        ({"calls": 5, "usd": 0.5}, {"usd": 0.25}, 2, "usd"),
        ({"seconds": 0}, {}, 0, "seconds"),
        ({"usd": 1.0, "reserve_usd": 0.4}, {"usd": 0.1}, 7, "usd"),
        ({"tokens": Decimal(100), "reserve_tokens": 60}, {"input_tokens": 20}, 3, "tokens"),
        ({"calls": 1000}, {"usd": 5.0}, 100, None),
    ],
)
@pytest.mark.usefixtures("recording")
def test_a_call_that_would_pass_a_limit_is_not_made(limits, figures, made, which):
    """Calls are made as long as what the next one may take fits: what was said to be reserved, or as much as the largest so far."""
    with optree.session("lead") as session, optree.budget(**limits):
        found, error = calls_until_refused(**figures)
    assert (made, which) == (found, error and error.which)
    assert [made] * 2 == [session.totals.llm_requests, len([*walk_ops(session.tree)])]


@pytest.mark.usefixtures("recording")
def test_the_refusal_names_the_limit():
    """The exception has the limit, what is used and reserved, and what was wanted; it is an `OptreeError`, and can be pickled."""
    with optree.session("lead"), optree.budget(usd=1.0, reserve_usd=0.3), optree.llm("slow"):
        call(usd=0.25)
        call(usd=0.25)
        with pytest.raises(optree.BudgetExceeded) as raised:
            call()
    error = pickle.loads(pickle.dumps(raised.value))
    assert ("usd", 1.0, 0.5, 0.3, 0.3) == (error.which, error.limit, error.used, error.reserved, error.wanted)
    assert isinstance(error, optree.OptreeError)
    assert "budget of 1 usd: 0.5 used, 0.3 reserved by calls under way, and this call may take 0.3" in str(error)


def test_a_refused_call_is_no_op(recording):
    """A refused call leaves no op, a line on the op that it was to be made in, and the failure with those that it passes through."""
    with pytest.raises(optree.BudgetExceeded), optree.session("lead"), optree.turn(), optree.budget(calls=0), optree.tool("asks"):
        call()
    [op] = [op for _, _, op in walk_ops(recording.tree)]
    assert [("tool", "failed", "ERR")] == [(op.kind, op.status, line.severity) for line in op.logs]
    assert "BudgetExceeded: budget of 0 calls" in op.error


@pytest.mark.usefixtures("recording")
def test_decorated_functions_are_not_called():
    """What is decorated as a call of a model does not run where it is refused: functions, coroutines and generators."""
    ran = []

    @optree.llm
    def plain():
        ran.append("plain")

    @optree.llm
    async def awaited():
        ran.append("awaited")

    @optree.llm
    def generator():
        ran.append("generator")
        yield 1

    with optree.session("lead"), optree.budget(calls=0):
        for run in (plain, lambda: asyncio.run(awaited()), lambda: list(generator())):
            with pytest.raises(optree.BudgetExceeded):
                run()
    assert [] == ran


def test_another_open_op_stays_open_where_a_call_is_refused(recording):
    """An op that the program holds by its id alone is not taken for that of the call that was refused."""
    with optree.session("lead") as session, optree.budget(calls=0):
        name = session.builder.begin_op("llm", "explicit").id
        with pytest.raises(optree.BudgetExceeded):
            call()
        session.builder.append_log(name, "still open")
        assert [None] == [op.status for _, _, op in walk_ops(recording.tree)]


@pytest.mark.usefixtures("recording")
def test_nested_budgets_all_hold():
    """A call counts against each budget around it; one that the inner refuses holds nothing of the outer."""
    with optree.session("lead"), optree.budget(calls=5) as outer:
        with optree.budget(calls=2) as inner:
            assert (2, 2) == (calls_until_refused(usd=0.1)[0], inner.used["calls"])
        assert ({"usd": 0.2, "tokens": 0, "calls": 2}, FIGURES) == taken(outer)
        with optree.budget(calls=10) as wide:
            made, error = calls_until_refused(usd=0.1)
        assert (3, 5, 3) == (made, error.limit, wide.used["calls"])
    call()


@pytest.mark.usefixtures("recording")
def test_a_block_that_is_left_limits_nothing():
    """Behind its block a budget holds no more, and still tells what was used."""
    with optree.session("lead"):
        with optree.budget(calls=1) as budget:
            call(usd=0.5)
        call(usd=0.5)
    assert ({"usd": 0.5, "tokens": 0, "calls": 1}, {"calls": 1}) == (taken(budget)[0], budget.limits)


@pytest.mark.usefixtures("recording")
def test_outside_all_sessions():
    """A budget that is opened first holds for all sessions that begin in it, and its figures stand at each root session."""
    with optree.budget(calls=3) as budget:
        with optree.session("one") as first:
            call()
            with optree.session("sub"):
                call()
        with optree.session("two") as second:
            assert 1 == calls_until_refused()[0]
    assert (3, 3) == (budget.used["calls"], budget.unknown_cost)
    names = [f"optree.budget.{name}" for name in ("calls.limit", "calls.used", "unknown_cost")]
    assert [[3, 2, 2], [3, 3, 3]] == [[one.builder.node.attributes[name] for name in names] for one in (first, second)]


def test_a_call_without_a_session(runtime):
    """A call without a session is refused before one is begun for it."""
    with optree.budget(calls=1):
        call()
        with pytest.raises(optree.BudgetExceeded):
            call()
    optree.flush("snapshot")
    assert (1, {}) == (len(runtime.directory().saved()), runtime.sessions)


@pytest.mark.usefixtures("recording")
def test_figures_stand_at_the_op():
    """Limits and what was used of them are attributes of the op at which the budget was opened."""
    with optree.session("lead"), optree.tool("delegate") as op, optree.budget(usd=2.0, tokens=500):
        assert 2.0 == op.node.attributes["optree.budget.usd.limit"]
        call(usd=0.5, input_tokens=100, output_tokens=20)
    found = {name.removeprefix("optree.budget."): one for name, one in op.node.attributes.items() if name.startswith("optree.budget.")}
    assert {"usd.limit": 2.0, "usd.used": 0.5, "tokens.limit": 500, "tokens.used": 120} == found


@pytest.mark.usefixtures("recording")
def test_soft_limit_warns_once():
    """The op that passes a soft limit gets a warning, the next ones none."""
    with optree.session("lead"), optree.budget(usd=1.0, calls=100, soft=0.5):
        ops = [call(usd=0.2) for _ in range(5)]
    warned = [[line.message for line in op.node.logs if line.severity == "WRN"] for op in ops]
    assert [[], [], ["budget of 1 usd: 0.6 used, past its soft limit of 50%"], [], []] == warned


@pytest.mark.usefixtures("recording")
def test_unknown_cost():
    """A call whose cost nobody knows counts as 0 usd, and is counted as such, as in the session: one that failed too."""
    with optree.session("lead") as lead, optree.budget(usd=1.0) as budget:
        call(input_tokens=100)
        call()
        with pytest.raises(KeyError), optree.llm("m"):
            raise KeyError
    assert 3 == lead.totals.unknown_costs
    assert (3, {"usd": 0.0, "tokens": 100, "calls": 3}) == (budget.unknown_cost, taken(budget)[0])


@pytest.mark.usefixtures("recording")
def test_what_is_told_behind_the_end_counts():
    """A cost that the program gives to an op that has ended counts from the next look on."""
    with optree.session("lead"), optree.budget(usd=1.0) as budget:
        op = call()
        assert (1, 0.0) == (budget.unknown_cost, budget.used["usd"])
        op.account(cost_usd=0.5)
        assert 0.5 == budget.used["usd"]
        del op
        assert ({"usd": 0.5, "tokens": 0, "calls": 1}, FIGURES) == taken(budget)


@pytest.mark.usefixtures("recording")
def test_what_is_reserved_is_given_back():
    """A call holds what it may take while it is under way, and nothing once it is over, cheaper or dearer than that."""
    with optree.session("lead"), optree.budget(usd=10.0, reserve_usd=1.0) as budget:
        with optree.llm("m") as op:
            assert {"usd": 1.0, "tokens": 0, "calls": 1} == budget.reserved
            op.account(cost_usd=0.25)
        assert ({"usd": 0.25, "tokens": 0, "calls": 1}, FIGURES) == taken(budget)


@pytest.mark.parametrize("wrong", ["2", True, -1, float("nan"), float("inf"), 10**400, object(), b"1"])
@pytest.mark.parametrize("name", ["usd", "tokens", "calls", "seconds", "soft", "reserve_usd", "reserve_tokens"])
def test_what_is_no_amount_is_refused(name, wrong):
    """A figure that is no finite number from 0 on raises a ValueError that names it."""
    with pytest.raises(ValueError, match=rf"budget\({name}="):
        optree.budget(**{name: wrong})


def test_a_text_is_shown_as_one():
    """A text that looks like a number is shown with its quotes."""
    with pytest.raises(ValueError, match=re.escape("budget(usd='1') is no amount")):
        optree.budget(usd="1")


@pytest.mark.parametrize("figures", [{}, {"soft": 0.5}, {"reserve_usd": 1}])
def test_a_budget_without_a_limit_is_refused(figures):
    """A budget that limits nothing is a mistake, and the error names the limits."""
    with pytest.raises(ValueError, match="give usd, tokens, calls or seconds"):
        optree.budget(**figures)


@pytest.mark.parametrize("soft", [0, 1.5])
def test_soft_is_a_part(soft):
    """A soft limit is above 0, and at most the limit."""
    with pytest.raises(ValueError, match="no part of a limit"):
        optree.budget(usd=1, soft=soft)


@pytest.mark.usefixtures("recording")
def test_a_budget_is_entered_once():
    """A budget that is entered again is misuse, and says what to do."""
    with optree.session("lead"), optree.budget(usd=1) as budget, pytest.raises(optree.SetupError, match="entered once"), budget:
        pass


def test_switched_off():
    """While optree is switched off, so are its budgets; what was opened before limits nothing meanwhile."""
    with optree.session("lead"), optree.budget(calls=0):
        optree.configure(enabled=False)
        call()
        with optree.budget(calls=0) as budget:
            call()
        optree.configure(enabled=True)
        with pytest.raises(optree.BudgetExceeded):
            call()
    assert 0 == budget.used["calls"]


@pytest.mark.usefixtures("recording")
def test_generators_keep_their_budget():
    """A budget in a generator holds for what the generator does, not for what its consumer does between two items."""

    @optree.tool
    def asking():
        with optree.budget(calls=2):
            while True:
                call()
                yield

    with optree.session("lead"):
        items = asking()
        for _ in range(2):
            next(items)
            call()
        with pytest.raises(optree.BudgetExceeded):
            next(items)
        call()


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.usefixtures("recording")
def test_a_hundred_sub_agents_at_once(is_async):
    """A hundred sub-agents that run at once take all of a budget, and no cent more."""

    @optree.session
    async def sub():
        await asyncio.sleep(0)
        with optree.llm("m") as op:
            await asyncio.sleep(0)
            op.account(cost_usd=0.01, input_tokens=1)

    async def run():
        with optree.session("lead"):
            if is_async:
                async with optree.budget(usd=0.42, reserve_usd=0.01) as budget:
                    return budget, await asyncio.gather(*(sub() for _ in range(100)), return_exceptions=True)
            with optree.budget(usd=0.42, reserve_usd=0.01) as budget:
                return budget, await asyncio.gather(*(sub() for _ in range(100)), return_exceptions=True)

    budget, found = asyncio.run(run())
    assert 58 == sum(isinstance(one, optree.BudgetExceeded) for one in found)
    assert ({"usd": 0.42, "tokens": 42, "calls": 42}, FIGURES) == taken(budget)


@pytest.mark.parametrize("wrap", [optree.wrap, lambda function: function], ids=["wrapped", "plain"])
def test_threads(wrap):
    """Threads count against the budget of who started them, also those without context."""

    def work(_):
        return calls_until_refused(usd=0.01)[0]

    with optree.session("lead"), optree.turn(), optree.budget(usd=0.5, reserve_usd=0.01) as budget, ThreadPoolExecutor(8) as pool:
        assert 50 == sum(pool.map(wrap(work), range(8)))
    assert ({"usd": 0.5, "tokens": 0, "calls": 50}, FIGURES) == taken(budget)


def test_threads_of_other_sessions_have_no_part():
    """A session that another thread begins outside of the block is not limited by it."""
    made = []

    def other():
        with optree.session("other"):
            made.append(calls_until_refused()[0])

    with optree.session("lead"), optree.budget(calls=1):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(LONG)
    assert [100] == made


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_twenty_processes_at_once(finished, how):
    """Twenty processes share a budget: they take all of it, and no cent more."""
    code, out, err = finished(
        f"""{AGENT}
if __name__ == "__main__":
    import multiprocessing
    with optree.session("lead"), optree.turn(), optree.budget(usd=0.5, reserve_usd=0.01) as budget:
        with multiprocessing.get_context("{how}").Pool(20) as pool:
            made = sum(pool.map(optree.wrap(work), range(20), 1))
        print(made, budget.used["usd"], budget.used["calls"], budget.reserved["usd"], optree.health()["problems"])
    print(budget.used["usd"], os.listdir(optree.Directory.of().sessions).count("budgets"))
""",
        env={"OPTREE_CONSOLE": "0", "PYTHONWARNINGS": "ignore"},
    )
    assert (0, "50 0.5 50 0.0 []\n0.5 0\n") == (code, out), err


def test_child_processes_by_environment(script):
    """A process that is started with `child_env` counts against the budget, with those around it; without a session too."""
    with optree.budget(calls=10) as outer, optree.session("lead"), optree.budget(calls=3) as inner:
        process = script(f"{AGENT}\nprint(work())", env=optree.child_env({}))
        assert "3\n" == process.communicate(timeout=LONG)[0]
        assert (3, 3) == (inner.used["calls"], outer.used["calls"])
        with pytest.raises(optree.BudgetExceeded):
            call()
    with optree.budget(calls=2) as budget:
        process = script(f"{AGENT}\nprint(work())", env=optree.child_env({}))
        assert ("2\n", 2) == (process.communicate(timeout=LONG)[0], budget.used["calls"])
    assert "OPTREE_BUDGET" not in optree.child_env()


def test_a_child_that_outlives_the_block_is_not_limited(script):
    """Once the block is left, a process that was started in it counts against nothing."""
    with optree.budget(calls=1):
        process = script(
            f"{AGENT}\ncall()\nprint('made', flush=True)\nsys.stdin.readline()\nprint(work())",
            env=optree.child_env({}),
            stdin=subprocess.PIPE,
        )
        assert "made\n" == process.stdout.readline()
    assert "8\n" == process.communicate("\n", timeout=LONG)[0]


def test_a_budget_that_is_over_is_not_handed_on(monkeypatch):
    """Variables that name a budget, of this process or given, name none to a child once that is over, or where it does not hold."""
    with optree.session("lead"):
        with optree.budget(calls=1):
            within = optree.child_env({})
        assert {"OPTREE_BUDGET"} == within.keys() - optree.child_env({}).keys() == within.keys() - optree.child_env(within).keys()
    monkeypatch.setenv("OPTREE_BUDGET", within["OPTREE_BUDGET"])
    assert "OPTREE_BUDGET" not in optree.child_env()


def check_killed(script, wait):
    """Kill a process that has a call under way, and compare what the budget has once that has been waited for."""
    agent = f"""{AGENT}
with optree.session("child"):
    call()
    with optree.llm("m"):
        print("in", flush=True)
        sys.stdin.read()
"""
    with optree.budget(usd=0.05, reserve_usd=0.02) as budget:
        process = script(agent, env=optree.child_env({}), stdin=subprocess.PIPE)
        assert "in\n" == process.stdout.readline()
        assert (0.01, 0.02) == (budget.used["usd"], budget.reserved["usd"])
        with optree.llm("m") as op, pytest.raises(optree.BudgetExceeded):
            call(usd=0.01)
        op.account(cost_usd=0.0)
        process.kill()
        wait(process)
        assert 3 == calls_until_refused(usd=0.01)[0]
        assert (0.04, 0.0) == (budget.used["usd"], budget.reserved["usd"])


def test_a_killed_process_holds_nothing(script):
    """What was reserved by a process that is killed is free again; what it had counted stays counted."""
    check_killed(script, lambda process: process.wait(LONG))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="elsewhere such a process is taken to live")
def test_a_killed_process_that_its_parent_has_not_reaped_holds_nothing(script):
    """The same as soon as the process has ended, though its number is taken until its parent asks for its end."""
    check_killed(script, lambda process: os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT))


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="elsewhere such a process is taken to live")
def test_a_killed_process_whose_number_another_has_holds_nothing(script, directory):
    """The same where a process that began at another time has its number by now."""

    def wait(process):
        process.wait(LONG)
        [path] = (directory.sessions / "budgets").iterdir()
        SharedBytes(path).change(lambda data: re.sub(rb'"%d-\d+"' % process.pid, b'"%d-1"' % os.getppid(), data))

    check_killed(script, wait)


def test_rows_of_many_processes_that_have_gone_become_one(monkeypatch):
    """Where more processes than some had a part in a budget, what those took that have gone is added up: its file stays small."""
    monkeypatch.setattr(spending, "_MOST_ROWS", 2)
    with optree.budget(calls=100) as budget:
        for _ in range(6):
            if (child := os.fork()) == 0:
                call()
                os._exit(0)
            assert 0 == os.waitpid(child, 0)[1]
        assert 6 == budget.used["calls"]
        assert len(spending.read(budget.account.path).rows) <= 3


@pytest.mark.usefixtures("recording")
def test_a_fork_counts_once():
    """A forked process has its parent's budget, and not its parent's calls a second time."""
    with optree.session("lead"), optree.budget(calls=4) as budget:
        call()
        with optree.llm("under way"):
            if (child := os.fork()) == 0:
                made = 0
                try:
                    while made < 10:
                        budget.reserve(_here()).give_back()
                        with optree.llm("m"):
                            made += 1
                except optree.BudgetExceeded:
                    pass
                finally:
                    os._exit(made)
            assert 2 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ({"usd": 0.0, "tokens": 0, "calls": 4}, FIGURES) == taken(budget)


def _here():
    return optree._tracing.context.CURRENT.get()


class Refusing(OS):
    """A disk that refuses a call as long as it is told to."""

    def __init__(self, call):
        self.on = True
        real = getattr(super(), call)

        def refused(*args, **named):
            if self.on:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **named)

        setattr(self, call, refused)


@pytest.mark.parametrize("call_of_disk", ["open_shared", "write_all", "rewrite", "lock"])
def test_a_disk_that_refuses(monkeypatch, call_of_disk):
    """Where the disk refuses, each process counts its own calls, and that is said; once it takes them, nothing of them is lost."""
    disk = Refusing(call_of_disk)
    monkeypatch.setattr(spending, "SharedBytes", lambda path: SharedBytes(path, disk))
    monkeypatch.setattr(spending, "_PAUSE_SECONDS", 0.0)
    with optree.session("lead"), optree.budget(calls=6) as budget:
        call(usd=0.5)
        optree.child_env()
        call(usd=0.5)
        [problem] = optree.health()["problems"]
        assert "each process counts its own calls alone" in problem
        assert os.strerror(errno.ENOSPC) in problem
        disk.on = False
        optree.child_env()
        call(usd=0.5)
        assert [] == optree.health()["problems"]
        assert ({"usd": 1.5, "tokens": 0, "calls": 3}, FIGURES) == taken(budget)
        stored = spending.read(budget.account.path)
        assert (1.5, 3) == (stored.used().usd, stored.used().calls)
        assert 3 == calls_until_refused()[0]


def test_a_budget_that_was_never_shared_is_no_problem_once_it_is_over(monkeypatch):
    """What the disk refused of a budget whose block is left is over: nobody counts against it any more."""
    disk = Refusing("open_shared")
    monkeypatch.setattr(spending, "SharedBytes", lambda path: SharedBytes(path, disk))
    with optree.session("lead"), optree.budget(calls=6):
        optree.child_env()
        assert 1 == len(optree.health()["problems"])
    assert [] == optree.health()["problems"]


def test_a_file_that_is_damaged(tmp_path):
    """What is no budget's file is said, and the calls go on; of a write that was broken off what was there before is read."""
    shared = SharedBytes(tmp_path / "one" / "shared")
    shared.create(b"first")
    shared.change(lambda data: data + b" second")
    assert b"first second" == shared.read()
    data = bytearray(shared.path.read_bytes())
    data[data.index(b"second")] ^= 1
    shared.path.write_bytes(data)
    assert b"first" == shared.read()
    shared.path.write_bytes(b"nothing")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPTREE_BUDGET", str(shared.path))
        with optree.session("lead"):
            call()
    assert ["cannot join a budget"] == [problem[:20] for problem in optree.health()["problems"]]


def test_a_file_that_is_replaced_before_it_is_locked(tmp_path):
    """Nothing is written into a file that has lost its name meanwhile; where none has it by then, that is said."""

    class Replacing(OS):
        replaced = False

        def lock(self, fd, *, new=False):
            if not self.replaced:
                self.replaced = True
                shared.path.rename(tmp_path / "before")
                SharedBytes(shared.path).create(b"other")
            return super().lock(fd, new=new)

    system = Replacing()
    shared = SharedBytes(tmp_path / "one" / "shared", system)
    shared.create(b"first")
    shared.change(lambda data: data + b" second")
    assert (b"first", b"other second") == (SharedBytes(tmp_path / "before").read(), shared.read())


def test_files_of_budgets_that_were_killed_go(script, directory):
    """The file of a budget that was killed with all its processes is removed by one that comes an hour later, others stay."""
    agent = "with optree.budget(calls=1):\n    optree.child_env()\n    print('in', flush=True)\n    sys.stdin.read()"
    running = [script(agent, stdin=subprocess.PIPE) for _ in range(2)]
    assert ["in\n"] * 2 == [process.stdout.readline() for process in running]
    files = sorted((directory.sessions / "budgets").iterdir())
    assert 2 == len(files)
    for path in files:
        os.utime(path, (1, 1))
    running[0].kill()
    running[0].wait(LONG)
    with optree.budget(calls=1) as budget:
        optree.child_env()
        left = {*(directory.sessions / "budgets").iterdir()} - {budget.account.path}
    assert 1 == len(left & {*files})
    running[1].communicate(timeout=LONG)


@pytest.mark.parametrize(("minutes", "is_left"), [(50, True), (70, False)])
def test_the_file_of_a_budget_is_removed_after_an_hour(script, directory, minutes, is_left):
    """The file of a budget whose only process was killed stays for an hour: somebody may look at it, or have just been given it."""
    agent = "with optree.budget(calls=1):\n    optree.child_env()\n    print('in', flush=True)\n    sys.stdin.read()"
    process = script(agent, stdin=subprocess.PIPE)
    assert "in\n" == process.stdout.readline()
    process.kill()
    process.wait(LONG)
    [path] = (directory.sessions / "budgets").iterdir()
    made = time.time() - 60 * minutes
    os.utime(path, (made, made))
    with optree.budget(calls=1):
        optree.child_env()
        assert is_left == path.exists()


def test_what_a_child_accounts_for_in_its_parents_call(finished):
    """A forked process tells what it took in a call that its parent has open: the budget has both parts, and one call."""
    code, out, err = finished(
        """
        with optree.session("lead"), optree.turn(), optree.budget(usd=10.0) as budget:
            with optree.llm(provider="p", model="m") as op:
                op.account(input_tokens=1, output_tokens=1, cost_usd=0.25)
                if (child := os.fork()) == 0:
                    op.account(input_tokens=1, output_tokens=1, cost_usd=0.5)
                    os._exit(0 if optree.flush() else 1)
                assert 0 == os.waitpid(child, 0)[1]
            print(budget.used["usd"], budget.used["calls"])
        assert optree.flush("snapshot", 30)
        print(optree.load("last").session.totals.cost_usd)
        """
    )
    assert (0, "", "0.75 1\n0.75\n") == (code, err, out)


FORKING = """
import itertools, signal
calls = itertools.count()
def call(name):
    with optree.llm(provider="p", model=name) as op:
        op.account(input_tokens=1, output_tokens=1, cost_usd=0.25)
forked, is_child = 0, False
def handler(*_):
    global forked, is_child
    gate, open_gate = os.pipe()
    forked = os.fork()
    if forked == 0:
        is_child = True
        os.close(open_gate)
        os.read(gate, 1)  # goes on when the parent and a worker have
    handler.gate = open_gate
signal.signal(signal.SIGUSR1, handler)
def trace(frame, event, _):
    if WHERE:
        sys.settrace(None)
        signal.raise_signal(signal.SIGUSR1)
with optree.session("lead"), optree.turn(), optree.budget(usd=10.0) as budget:
    optree.child_env()  # the budget has a file
    sys.settrace(trace)
    call("own")
    sys.settrace(None)
    if is_child:
        optree.flush()
        os._exit(0)
    if (worker := os.fork()) == 0:
        call("worker's")
        call("worker's")
        optree.flush()
        os._exit(0)
    os.waitpid(worker, 0)
    os.close(handler.gate)
    os.waitpid(forked, 0)
    used = budget.used["usd"]
assert optree.flush("snapshot", 30)
print(used, optree.load("last").session.totals.cost_usd, optree.health()["problems"])
"""


@pytest.mark.parametrize(
    "where",
    [
        "event == 'call' and frame.f_code.co_name == '_packed' and next(calls) == 0",
        "event == 'call' and frame.f_code.co_name == '_packed' and next(calls) == 1",
        "event == 'call' and frame.f_code.co_name == 'rewrite' and next(calls) == 1",
        "event == 'call' and frame.f_code.co_name == 'begin_op'",
    ],
)
def test_a_fork_by_a_handler_in_a_change(finished, where):
    """A handler forks while a shared budget is changed, or behind that: what others count meanwhile stays, and each call counts."""
    code, out, err = finished(FORKING.replace("WHERE", where), env={"OPTREE_PURE": "1"})
    assert (0, "") == (code, err)
    used, billed, problems = out.split(maxsplit=2)
    assert (billed, "[]") == (used, problems.strip())
    assert float(billed) >= 0.75


@pytest.mark.usefixtures("saved")
def test_a_budget_that_a_stranger_names():
    """Names count in this process's own directory alone, what is none is passed over, and none puts its own budget out of force."""
    with optree.session("lead"), optree.turn(), optree.budget(calls=9) as budget:
        names = names_of(budget)
        assert budget is named(names)
        for other in ("", "../budgets", f"/{names}", f"{names} ../x", names[:-1], 7, None, [names], f"{names} " * 999):
            assert named(other) is None
    with optree.budget(calls=1) as own:
        assert own is OUTSIDE.get()
        with optree.session("lead"), optree.turn(), optree.budget(calls=2) as inner:
            names = names_of(inner)
            assert inner is named(names)
        assert own is named(names)
        assert own is named("mx000000-00000000")
