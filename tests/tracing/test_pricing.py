"""Costs that are found by prices: totals are those of the entries at every moment, and nothing is billed twice or forgotten."""

import random
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import pytest
from msgspec import UNSET

import optree
from optree._builder.handles import account_late
from optree._nodes import SNAPSHOT, USAGE_AT_START, AccountingEntry
from optree._providers.prices import PRICES
from optree._providers.usage import parts_of
from optree._records import Accounted
from optree._store.files.system import REAL
from optree._store.ledger import Ledger
from optree._store.reading.directory import journals
from optree._store.reading.reader import read_journal
from optree._store.saving import StoreOptions
from optree._store.settle import settle_all
from optree._tree import Fold
from optree._tree.totals import of_entries, pico
from optree._values import decode

LONG = 60
MODELS = [
    "openai:gpt-4o",
    "openai:gpt-5",
    "anthropic:claude-sonnet-4-5",
    "ollama:llama3.2",
    "google:gemini-2.5-pro",
    "deepseek:deepseek-chat",
]


@pytest.fixture(autouse=True)
def prices(runtime):  # noqa: ARG001 - which has begun
    """Find prices in this test, with none remembered."""
    optree.configure(prices=True)
    return PRICES


def call(model="openai:gpt-4o", **figures):
    """Record a call of a model, and return its op."""
    with optree.llm(model) as op:
        op.account(**figures or {"input_tokens": 1000, "output_tokens": 100})
    return op


def figures(totals):
    """Return totals as what can be compared: money in trillionths, since floats are added in another order."""
    return {**{name: getattr(totals, name) for name in totals.__struct_fields__ if name != "cost_usd"}, "cost": pico(totals.cost_usd)}


def of_leaves(session):
    """Return the same of the entries in a session and below it, with how many tools ran, which no entry tells."""
    ops = [op for _, _, op in optree.walk_ops(session)]
    totals = of_entries(entry for op in ops for entry in op.accounting)
    totals.tools_run = sum(op.kind == "tool" for op in ops)
    return figures(totals)


def prices_of(session):
    """Return the names of the prices that a session's entries name, and those that it has."""
    named = [decode(entry.details).get("optree.price") for entry in entries_of(session) if entry.details is not UNSET]
    return {name for name in named if name is not None}, set(session.attributes.get(SNAPSHOT, {}))


def entries_of(session):
    """Return all entries of a session and below it."""
    return [entry for _, _, op in optree.walk_ops(session) for entry in op.accounting]


def test_a_price_is_everywhere(saved, directory):
    """The entry, the totals of all sessions above, the file and the ledger have the cost at once, and its price (S4-12)."""
    with optree.session("lead") as lead, optree.turn(), optree.session("reader") as reader, optree.turn():
        [entry] = call().node.accounting
        assert (0.0035, 0.0035, 0.0035) == (entry.cost_usd, lead.totals.cost_usd, reader.totals.cost_usd)
    assert optree.flush("snapshot", LONG)
    root = saved().session
    [(name, price)] = root.attributes[SNAPSHOT].items()
    assert ({name}, {name}) == prices_of(root)
    assert ("openai", "gpt-4o", 2.5, 10.0) == tuple(price[key] for key in ("provider", "model", "input", "output"))
    assert [of_leaves(one) for one in optree.walk_sessions(root)] == [figures(one.totals) for one in optree.walk_sessions(root)]
    assert [(0.0035, name)] == [(line["costUsd"], line["details"]["optree.price"]) for line in Ledger(directory.billing).read()]


@pytest.mark.parametrize("seed", range(6))
def test_totals_are_those_of_the_entries_at_every_moment(seed, saved, directory, prices, monkeypatch):
    """Threads and sub-agents call models, prices are forgotten and found again: live, on disk and in the ledger it is the same money.

    Costs have six digits: sums of more differ by their order, which may be seen in the twelfth.
    """
    monkeypatch.setattr("optree._builder.stream.WAIT_SECONDS", LONG)  # a busy machine's threads wait while the sums are looked at
    made = random.Random(seed)

    def work(number):
        mine = random.Random(f"{seed}.{number}")
        with optree.session(f"agent {number}"), optree.turn():
            for _ in range(20):
                if mine.random() < 0.2:
                    prices._known = {}
                given = {"cost_usd": round(mine.random(), 6)} if mine.random() < 0.2 else {}
                usage = {"cache_read_tokens": mine.randrange(50)} if mine.random() < 0.5 else {}
                with optree.llm(mine.choice(MODELS)) as op:
                    for _ in range(mine.randrange(3)):
                        op.account(input_tokens=mine.randrange(50, 5000), output_tokens=mine.randrange(500), **usage, **given)
                    if mine.random() < 0.1:
                        op.end("failed", "503")

    with optree.session("lead") as lead, optree.turn(), ThreadPoolExecutor(6) as pool:
        works = [pool.submit(optree.wrap(work), number) for number in range(6)]
        while not all(one.done() for one in works):
            stream = lead.builder.core.stream
            step = stream.enter()
            try:
                assert step is not None
                wrong = [one.path for one in optree.walk_sessions(lead.builder.whole) if of_leaves(one) != figures(one.totals)]
            finally:
                stream.leave(step)
            assert [] == wrong
            prices._known = {} if made.random() < 0.5 else prices._known
        for one in works:
            one.result()
    assert optree.flush("snapshot", LONG)
    root = saved().session
    assert figures(lead.totals) == figures(root.totals) == of_leaves(root)
    lines = Ledger(directory.billing).read()
    assert (root.totals.llm_requests, pico(root.totals.cost_usd)) == (len(lines), pico(sum(line.get("costUsd", 0) for line in lines)))
    assert root.totals.unknown_costs == sum("costUsd" not in line for line in lines)
    told = root.attributes[SNAPSHOT]
    assert {line["details"]["optree.price"] for line in lines if "optree.price" in line.get("details", {})} == set(told)
    assert {"openai", "anthropic", "google", "deepseek"} == {price["provider"] for price in told.values()}


KILLED = """
    with optree.session("lead") as lead, optree.turn():
        with optree.llm("openai:gpt-4o") as op:
            op.account(input_tokens=1000, output_tokens=100)
        AT
    os.kill(os.getpid(), 9)
    """


@pytest.mark.parametrize("damaged", [False, True])
def test_what_is_settled_has_the_costs_that_were_recorded(damaged, finished, saved, directory):
    """A session whose process was killed is billed with the costs of its tree, also where it is damaged, and where no prices are used."""
    code, _, _ = finished(KILLED.replace("AT", ""), env={"OPTREE_PRICES": "on"})
    [path] = journals(directory.live(saved().txn))
    lines = path.read_bytes().splitlines(keepends=True)
    [at] = [number for number, line in enumerate(lines) if b'"t":"session.set"' in line]
    path.write_bytes(b"".join(lines[:at] + ([lines[at].replace(b"gpt", b"gpx")] if damaged else [lines[at]]) + lines[at + 1 :]))
    optree.configure(prices=False)
    before = saved().session
    assert (-9, 0.0035, 0) == (code, before.totals.cost_usd, before.totals.unknown_costs)
    assert [] == settle_all(StoreOptions(directory))
    assert [entry.cost_usd for entry in entries_of(saved().session)] == [line["costUsd"] for line in Ledger(directory.billing).read()]
    assert (figures(before.totals), prices_of(before)) == (figures(saved().session.totals), prices_of(saved().session))


def test_a_session_that_goes_on_has_its_costs(finished, saved, directory, monkeypatch):
    """A session that is resumed has the cost of what came before, and names each price once."""
    code, _, _ = finished(KILLED.replace("AT", "os.kill(os.getpid(), 9)"), env={"OPTREE_PRICES": "on"})
    monkeypatch.setenv("OPTREE_RESUME", saved().txn)
    with optree.session("lead") as lead, optree.turn():
        call()
    assert optree.flush("snapshot", LONG)
    root = saved().session
    named, kept = prices_of(root)
    assert (-9, 1, named) == (code, len(named), kept)
    assert (0.007, 0, of_leaves(root)) == (root.totals.cost_usd, root.totals.unknown_costs, figures(root.totals))
    assert figures(root.totals) == figures(lead.totals)
    assert [0.0035] * 2 == [line["costUsd"] for line in Ledger(directory.billing).read()]


def test_processes_that_end_at_once(finished, saved, directory):
    """Forked and joined processes find the prices of their calls before they end, and the root session has all of them (S4-12)."""
    code, _, err = finished(
        r"""
        import subprocess

        JOINED = "import optree\nwith optree.llm('openai:gpt-5-mini') as op:\n    op.account(input_tokens=1000, output_tokens=100)"
        with optree.session("lead"), optree.turn(), optree.session("reader"), optree.turn():
            for _ in range(3):
                with optree.llm("openai:gpt-4o") as op:
                    op.account(input_tokens=1000, output_tokens=100)
                if (child := os.fork()) == 0:
                    with optree.llm("openai:gpt-5") as op:
                        op.account(input_tokens=1000, output_tokens=100)
                    os._exit(0)
                assert 0 == os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                with optree.tool("shell"):
                    subprocess.run([sys.executable, "-c", JOINED], env=optree.child_env(), check=True)
        assert optree.flush("snapshot", 60)
        """,
        env={"OPTREE_PRICES": "on"},
    )
    assert (0, "") == (code, err)
    root = saved().session
    assert (9, pico(3 * (0.0035 + 0.00225 + 0.00045)), 0) == (
        root.totals.known_costs, pico(root.totals.cost_usd), root.totals.unknown_costs
    )  # fmt: skip
    assert of_leaves(root) == figures(root.totals)
    assert pico(root.totals.cost_usd) == pico(sum(line.get("costUsd", 0) for line in Ledger(directory.billing).read()))
    named, kept = prices_of(root)
    assert (3, named) == (len(named), kept)
    assert {"gpt-4o", "gpt-5", "gpt-5-mini"} == {price["model"] for price in root.attributes[SNAPSHOT].values()}


def test_a_fork_while_the_library_is_read(finished, saved, tmp_path):
    """It waits for nothing, nor does the child, whose costs stay unknown: what another thread was importing stays locked there."""
    (tmp_path / "slow" / "genai_prices").mkdir(parents=True)
    (tmp_path / "slow" / "genai_prices" / "__init__.py").write_text("import sys\nsys.reading.set()\nsys.goes_on.wait()\n")
    code, out, err = finished(
        f"""
        import threading, warnings

        warnings.simplefilter("ignore")  # of a fork beside a thread, which is what is tried
        sys.path.insert(0, {str(tmp_path / "slow")!r})
        sys.reading, sys.goes_on = threading.Event(), threading.Event()
        reader = threading.Thread(target=lambda: optree.configure(prices=True))
        reader.start()
        sys.reading.wait()
        if (child := os.fork()) == 0:
            with optree.session("child"), optree.turn(), optree.llm("openai:gpt-4o") as op:
                op.account(input_tokens=1000, output_tokens=100)
            optree.flush("snapshot", 60)
            os._exit(op.node.accounting[0].cost_usd is not None)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        sys.goes_on.set()
        reader.join()
        """
    )
    assert (0, "0\n", True) == (code, out, "genai-prices cannot be used" in err)
    assert 1 == saved().session.totals.unknown_costs


def told_at_the_end(op):
    """Tell an op what its call took, for its end."""
    op.builder.set_op(op, **{USAGE_AT_START: {"usage": {"prompt_tokens": 1000, "completion_tokens": 100}}})


def told_late(op):
    """Tell an op after its end what its call took."""
    op.end()
    account_late(op, {"usage": {"prompt_tokens": 1000, "completion_tokens": 100}})


def recorded(op):
    """Record an entry as it was made elsewhere."""
    entry = AccountingEntry(f"{op.id}#9", op.builder.core.now_ms(), "llm", provider="openai", model="gpt-4o", tokens=parts_of(1000, 100))
    op.builder.record(Accounted(op.path, entry))


@pytest.mark.parametrize("way", [told_at_the_end, told_late, recorded])
def test_each_way_that_an_entry_comes(way, saved, directory):
    """Usage that is told for an op's end or after it, and an entry that is recorded whole, have their cost too."""
    with optree.session("lead") as lead, optree.turn():
        with optree.llm("openai:gpt-4o") as op:
            way(op)
        assert (0.0035, 1, 0) == (lead.totals.cost_usd, lead.totals.known_costs, lead.totals.unknown_costs)
    assert optree.flush("snapshot", LONG)
    root = saved().session
    named, kept = prices_of(root)
    assert (1, named, [0.0035]) == (len(named), kept, [line["costUsd"] for line in Ledger(directory.billing).read()])
    assert of_leaves(root) == figures(root.totals) == figures(lead.totals)


def test_records_that_come_again_take_no_cost_back(directory):
    """A fold that gets a journal's records twice, or the first half again, has the cost that was told late, once."""
    with optree.session("lead") as lead, optree.turn():
        with optree.llm("openai:gpt-4o") as op:
            told_late(op)
        with optree.llm("openai:gpt-4o") as op:
            op.account(input_tokens=1000, output_tokens=100)
            op.end("failed", "503")
        assert optree.flush("write", LONG)
        [path] = journals(directory.live(lead.txn))
        written = read_journal(path, 0, REAL).records
        assert [(None, "ok"), (0.0035, "ok"), (0.0035, "ok"), (0.0035, "failed")] == [
            (record.entry.cost_usd, record.entry.status) for record in written if isinstance(record, Accounted)
        ]
        for order in (written, written * 2, [*written, *written[: len(written) // 2]]):
            fold = Fold(lead.txn)
            for record in deepcopy(order):
                fold.apply(record)
            root = fold.finish().session
            assert (2, 0, pico(0.007), 1) == (
                root.totals.known_costs, root.totals.unknown_costs, pico(root.totals.cost_usd), root.totals.llm_failed
            )  # fmt: skip
            named, kept = prices_of(root)
            assert (1, named) == (len(named), kept)


WITHOUT = """
    STEP
    with optree.session("lead") as lead, optree.turn():
        with optree.llm("openai:gpt-4o") as op:
            op.account(input_tokens=1000, output_tokens=100)
    assert optree.flush("snapshot", 60)
    print(sorted(name for name in ("genai_prices", "pydantic") if sys.modules.get(name)), optree.health()["problems"])
    """
MISSING = 'sys.modules["genai_prices"] = None'


@pytest.mark.parametrize(
    ("step", "variable", "said"),
    [
        (MISSING, "on", '[] ["costs that nobody gives stay unknown: import of genai_prices halted; None in sys.modules; pip install'),
        ("optree.configure(prices=False)", "on", "[] []"),
        ("", "off", "[] []"),
        ("", "", "[] []"),
        ("", "/none/prices.json", "[] [\"OPTREE_PRICES is passed over: prices='/none/prices.json' cannot be read"),
    ],
)
def test_without_prices_costs_stay_unknown(step, variable, said, finished, saved):
    """By default, switched off, or with a file that cannot be read, nothing of the library is loaded; what is asked for in vain is said."""
    code, out, _ = finished(WITHOUT.replace("STEP", step), env={"OPTREE_PRICES": variable})
    assert (0, said) == (code, out[: len(said)])
    root = saved().session
    assert (0, 1, False) == (root.totals.known_costs, root.totals.unknown_costs, SNAPSHOT in root.attributes)
    assert [UNSET] == [entry.details for entry in entries_of(root)]


ASKED = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Weather?"}]}
SAID = {"object": "chat.completion", "model": "gpt-4o", "usage": {"prompt_tokens": 1000, "completion_tokens": 100},
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "It rains"}, "finish_reason": "stop"}]}  # fmt: skip
CAPTURED = f"""
import httpx
STEP
with httpx.Client(transport=httpx.MockTransport(lambda _request: httpx.Response(200, json={SAID!r}))) as client:
    with optree.session("lead") as session, optree.turn():
        client.post("https://api.openai.com/v1/chat/completions", json={ASKED!r})
        with optree.llm("openai:gpt-4o") as op:
            op.account(input_tokens=1000, output_tokens=100)
print(session.totals.cost_usd, session.totals.unknown_costs)
"""
"""A program with a call that is captured, if it is, and one that it records itself."""


@pytest.mark.parametrize(
    ("begin", "variable", "said"),
    [
        ("optree.instrument()", None, "0.007 0"),
        ("optree.instrument()", "off", "0.0 2"),
        ("optree.instrument(); optree.configure(prices=False)", None, "0.0 2"),
        ("optree.instrument(); optree.uninstrument()", None, "0.0 1"),
        ("", None, "0.0 1"),
        ("optree.instrument()", "", "0.007 0"),
        ("optree.instrument(); optree.configure(prices=False); optree.configure(prices=None)", None, "0.007 0"),
        ("sys.modules['genai_prices'] = None; optree.instrument()", None, "0.0 2"),
    ],
    ids=["captured", "off in the environment", "off", "no more", "by hand", "an empty variable", "the default again", "not installed"],
)
def test_a_program_that_is_captured_has_costs(begin, variable, said, finished):
    """While calls are captured their costs are found where the library is there, without a setting and a word; else they are unknown."""
    assert (0, f"{said}\n", "") == finished(CAPTURED.replace("STEP", begin), env={} if variable is None else {"OPTREE_PRICES": variable})


def test_a_child_has_the_prices_of_a_captured_program(runtime):  # noqa: ARG001 - which has begun
    """A process that is given this one's options has costs where this one has, though it may capture nothing."""
    optree.configure(prices=None)
    assert "OPTREE_PRICES" not in optree.child_env()
    optree.instrument()
    try:
        assert "1" == optree.child_env()["OPTREE_PRICES"]
    finally:
        optree.uninstrument()


def test_a_child_has_the_default_again(monkeypatch):
    """A program that takes back what its environment says of prices has its children do so too."""
    monkeypatch.setenv("OPTREE_PRICES", "on")
    optree.configure(prices=None)
    assert "" == optree.child_env()["OPTREE_PRICES"]


def test_own_prices_without_the_library(finished, saved, tmp_path):
    """A file of prices does without it; another process gets the file with the environment."""
    (tmp_path / "prices.toml").write_text("[acme.roadrunner]\ninput = 2\noutput = 8\n")
    code, out, err = finished(
        f"""
        {MISSING}
        optree.configure(prices="prices.toml")
        with optree.session("lead"), optree.turn():
            for model in ("acme:roadrunner", "openai:gpt-4o"):
                with optree.llm(model) as op:
                    op.account(input_tokens=100, output_tokens=10)
            print(optree.child_env()["OPTREE_PRICES"])
        assert optree.flush("snapshot", 60)
        """
    )
    assert (0, f"{tmp_path / 'prices.toml'}\n", "") == (code, out, err)
    root = saved().session
    assert (0.00028, 1, 1) == (root.totals.cost_usd, root.totals.known_costs, root.totals.unknown_costs)
    assert ["prices.toml"] == [price["source"] for price in root.attributes[SNAPSHOT].values()]


def test_configure_refuses_a_file_that_is_none(tmp_path):
    """`configure` says what is wrong, and prices are found as before."""
    with pytest.raises(optree.SetupError, match="cannot be read"):
        optree.configure(prices=tmp_path / "none.json")
    with pytest.raises(optree.SetupError, match="is not possible"):
        optree.configure(prices=1.5)
    with optree.session("lead"), optree.turn():
        call()
        assert optree.flush("write", LONG)
        assert 0.0035 == call().node.accounting[0].cost_usd
    assert optree.configure(prices="off").prices is False
    with optree.session("lead"), optree.turn():
        assert call().node.accounting[0].cost_usd is None


def test_the_library_is_read_before_what_is_timed(finished):
    """`import optree` reads nothing, whatever the environment says; the first session is begun when the library is read."""
    code, out, err = finished(
        """
        print("genai_prices" in sys.modules)
        with optree.session("lead") as lead:
            begun = lead.tree.session.started_at
            print(sys.modules["genai_prices"].data_snapshot.get_snapshot().timestamp.timestamp() * 1e3 <= begun)
        """,
        env={"OPTREE_PRICES": "on"},
    )
    assert (0, "False\nTrue\n", "") == (code, out, err)


def test_a_process_that_joins_reads_the_library_first(finished):
    """A process that joins a session reads the library before its first op begins, whose time it does not take."""
    code, out, err = finished(
        r"""
        import subprocess

        JOINED = (
            "import sys, optree\nprint('genai_prices' in sys.modules)\n"
            "with optree.llm('openai:gpt-4o'):\n    print('genai_prices' in sys.modules)"
        )
        with optree.session("lead"), optree.turn(), optree.tool("shell"):
            subprocess.run([sys.executable, "-c", JOINED], env=optree.child_env(), check=True)
        """,
        env={"OPTREE_PRICES": "on"},
    )
    assert (0, "False\nTrue\n", "") == (code, out, err)


def test_a_search_of_the_providers_own_is_not_passed_over():
    """A response whose provider searched the web has an unknown cost, whole or streamed; one that gives its cost has that."""
    items = [{"type": "web_search_call", "id": "ws"}, {"type": "message", "content": []}]
    answer = {"object": "response", "model": "gpt-4o", "output": items, "usage": {"input_tokens": 1000, "output_tokens": 100}}
    stream = [{"type": "response.created", "response": {**answer, "output": [], "usage": None}}]
    stream += [{"type": "response.output_item.done", "output_index": at, "item": item} for at, item in enumerate(items)]
    stream.append({"type": "response.completed", "response": {**answer, "output": []}})
    priced = {**answer, "usage": {**answer["usage"], "cost": 0.02}}
    with optree.session("lead") as lead, optree.turn():
        for told in (answer, priced):
            optree.llm("openai:gpt-4o")(lambda told=told: told)()
        list(optree.llm("openai:gpt-4o")(lambda: (yield from stream))())
    costs = [entry.cost_usd for entry in entries_of(lead.tree.session)]
    assert ([None, 0.02, None], 3000) == (costs, lead.totals.input_tokens)
    assert b'"server_tool_calls":{"web_search_call":1}' in bytes(entries_of(lead.tree.session)[0].details)


def test_what_the_provider_says_is_kept():
    """A cost that was given is never changed, nor one of 0, and no price stands by it."""
    with optree.session("lead") as lead, optree.turn():
        ops = [call(input_tokens=1000, output_tokens=1, cost_usd=given) for given in (0.5, 0.0)]
        ops.append(call(usage={"prompt_tokens": 10, "completion_tokens": 1, "cost": 0.25}))
        assert optree.flush("write", LONG)
    assert [0.5, 0.0, 0.25] == [op.node.accounting[0].cost_usd for op in ops]
    assert all(op.node.accounting[0].details is UNSET for op in ops)
    assert (0, SNAPSHOT in lead.tree.session.attributes) == (lead.totals.unknown_costs, False)


def test_a_detail_of_the_programs_own_stays(saved):
    """A figure that the program calls `price` is kept beside the name of the price that was used."""
    with optree.session("lead"), optree.turn(), optree.llm("openai:gpt-4o") as op:
        op.account(input_tokens=1000, output_tokens=100, price={"contract": "C-17"})
    assert optree.flush("snapshot", LONG)
    [entry] = saved().session.turns[0].ops[0].accounting
    assert {"contract": "C-17"} == decode(entry.details)["price"]
    assert 0.0035 == entry.cost_usd


@pytest.mark.usefixtures("recording")
@pytest.mark.parametrize("sent", [-5, 10**30, "many"])
def test_impossible_counts_have_no_price(sent):
    """A call that says a count which cannot be costs an unknown amount, and no price of what is left: never a guess."""
    with optree.session("lead") as session, optree.turn():
        op = call(input_tokens=sent, output_tokens=100)
        given = call(input_tokens=sent, output_tokens=100, cost_usd=0.5)
    assert (None, 0.5) == (op.node.accounting[0].cost_usd, given.node.accounting[0].cost_usd)
    assert (1, 1) == (session.totals.known_costs, session.totals.unknown_costs)
