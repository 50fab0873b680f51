import ast
import os
import pickle

import pytest

import optree
from optree._store import Directory
from optree._tracing import config
from optree._tracing.config import Config, ConfigInUse, carry
from optree._tracing.runtime import RUNTIME
from optree.redaction import Redaction

METHODS = ["spawn", "forkserver"]
SECRET = "4711-SECRET"
PROGRAM = """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    EVERYWHERE

    def mask(text):
        return text.replace("Jane Doe", "[name]")

    def shown():
        config = optree.configure()
        return {name: getattr(config, name) for name in NAMES} | {"problems": optree.health()["problems"]}

    def work():
        BEFORE
        with optree.tool("far") as op:
            op.log("customer_id=4711-SECRET of Jane Doe")
        optree.flush()
        return shown()

    def tell(queue):
        queue.put(work())

    if __name__ == "__main__":
        optree.configure(CONFIGURED)
        context = multiprocessing.get_context("METHOD")
        with optree.session("lead"), optree.turn(user="go"), optree.tool("near"):
            if "HOW" == "process":
                queue = context.SimpleQueue()
                process = context.Process(target=optree.wrap(tell), args=(queue,))
                process.start()
                print(queue.get())
                process.join()
            else:
                with ProcessPoolExecutor(1, context) as pool:
                    print(pool.submit(optree.wrap(work)).result())
"""


KEPT = """
    class Kept:
        def __call__(self, text):
            return text

        def __reduce__(self):
            return int, ("no number",)
"""


@pytest.fixture
def ran(finished):
    """Return a function that runs the program above and returns what its worker had, and what stood on stderr."""

    def run(configured, *names, method="spawn", how="pool", everywhere="", before="", env=None):
        source = PROGRAM.replace("EVERYWHERE", everywhere).replace("BEFORE", before).replace("NAMES", repr(names))
        source = source.replace("CONFIGURED", configured).replace("METHOD", method).replace("HOW", how)
        code, out, err = finished(source, env=env)
        assert 0 == code, err
        return ast.literal_eval(out), err

    return run


class Learns:
    """A callback that learns more words."""

    def __init__(self):
        self.words = set()

    def __call__(self, text):
        """Return a text as it is."""
        return text


def test_a_callback_that_has_changed(directory):
    """It goes over as it is then, though it is the same one."""
    learns = Learns()
    optree.configure(redact={"callback": learns})
    found = []
    for word in ("one", "two"):
        learns.words.add(word)
        found.append(pickle.loads(carry(RUNTIME.config, directory).callback).words)
    assert [{"one"}, {"one", "two"}] == found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_callback_that_cannot_be_pickled_is_there_by_a_fork(ran):
    """A forked worker uses its parent's callback, which it has; a spawned one cannot (see below)."""
    given = "redact={'callback': lambda text: text.replace('4711', '[number]')}"
    before = "from optree.redaction import redact; assert 'of [number]' == redact('of 4711'), redact('of 4711')"
    found, err = ran(given, method="fork", before=before)
    assert ([], False) == (found["problems"], "taken over" in err)


def on_disk(directory):
    """Return all that lies in the directory, journals that nobody has removed among it."""
    return b"".join(path.read_bytes() for path in directory.sessions.rglob("*") if path.is_file())


def ops(directory):
    """Return the only session's ops, by name, with what was logged in them."""
    assert 1 == len(directory.saved())
    return {op.name: [entry.message for entry in op.logs] for *_, op in optree.walk_ops(optree.load("last", directory).session)}


@pytest.mark.parametrize("how", ["process", "pool"])
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_records_where_the_process_does_that_wrapped(method, how, ran, directory, tmp_path):
    """The op of a wrapped function is in the session that `configure(base_dir=…)` has put elsewhere, and nothing is said."""
    assert ({"problems": []}, "") == ran("base_dir='here'", method=method, how=how)
    assert ["near", "far"] == [*ops(optree.Directory.of(tmp_path / "here"))]
    assert not directory.sessions.exists()


@pytest.mark.parametrize("how", ["process", "pool"])
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_saves_redacted_as_the_process_does_that_wrapped(method, how, ran, directory):
    """What `configure` was told to replace before it is saved is in no file, a worker's journal among them."""
    redact = "redacted_save=True, redact={'names': ['customer_id']}, compression='none'"
    assert ({"redacted_save": True, "problems": []}, "") == ran(redact, "redacted_save", method=method, how=how)
    assert ["customer_id=[REDACTED] of Jane Doe"] == ops(directory)["far"]
    assert SECRET.encode() not in on_disk(directory)


@pytest.mark.parametrize("how", ["process", "pool"])
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_records_no_content_where_the_process_does_not(method, how, ran, directory):
    """What a worker's tool answers is in no file where the process that wrapped records no content."""
    before = "optree.tool(lambda of: of)('Mary Roe')"
    configured = "content=False, compression='none'"
    assert ({"content": False, "problems": []}, "") == ran(configured, "content", method=method, how=how, before=before)
    assert ["near", "<lambda>", "far"] == [*ops(directory)]
    assert b"Mary" not in on_disk(directory)


def test_a_workers_journal_is_redacted(finished, directory):
    """The journal of a worker whose program is killed has nothing in the clear."""
    code, out, _ = finished("""
        import multiprocessing

        def work():
            with optree.tool("far") as op:
                op.log("customer_id=4711-SECRET")
            print(optree.flush(), flush=True)

        if __name__ == "__main__":
            optree.configure(redacted_save=True, redact={"names": ["customer_id"]})
            with optree.session("lead"), optree.turn(user="go"):
                process = multiprocessing.get_context("spawn").Process(target=optree.wrap(work))
                process.start()
                process.join()
                os.kill(os.getpid(), 9)
    """)
    assert (-9, "True\n") == (code, out)
    [journal] = directory.sessions.glob("*.live/j-0001-*")
    assert (1, 0) == (journal.read_bytes().count(b"customer_id=[REDACTED]"), journal.read_bytes().count(SECRET.encode()))


def test_the_other_options_go_along(ran):
    """An option that is written as text or as a switch is in a worker what it is in the process that wrapped, environment or not."""
    env = {"OPTREE_WRITE": "deferred", "OPTREE_SYNC": "turn", "OPTREE_TRACE_LLM": "1"}
    expected = {"write": "all", "sync": "turn", "trace_llm": False, "cycles": "block", "problems": []}
    assert expected == ran("write='all', trace_llm=False, cycles='block'", "write", "sync", "trace_llm", "cycles", env=env)[0]


def test_a_callback_of_a_module_goes_along(ran, directory):
    """A function that redacts is called in a worker too, if it can be imported there."""
    before = "print(optree.redaction.redact('to Jane Doe'), file=sys.stderr)"
    assert ({"problems": []}, "to [name]\n") == ran("redacted_save=True, redact={'callback': mask}, compression='none'", before=before)
    assert ["customer_id=4711-SECRET of [name]"] == ops(directory)["far"]


@pytest.mark.parametrize("callback", ["lambda text: mask(text)", "Kept()"])
def test_a_callback_that_cannot_go_along_leaves_nothing_in_the_clear(callback, ran, directory):
    """Where a worker cannot have the function that redacts, whole texts are replaced there, and it is said once."""
    configured = f"redacted_save=True, redact={{'callback': {callback}}}, compression='none'"
    shown, err = ran(configured, everywhere=KEPT)
    said = [problem for problem in shown["problems"] if "cannot be taken over" in problem]
    assert (1, 1) == (len(said), err.count("cannot be taken over"))
    assert {"near": [], "[REDACTED]": ["[REDACTED]"]} == ops(directory)
    assert SECRET.encode() not in on_disk(directory)


def test_what_a_worker_sets_itself_wins(ran, tmp_path):
    """What the worker's own program gave to `configure` stays, wherever the process is that wrapped; the rest is taken over."""
    everywhere = "if __name__ != '__main__': optree.configure(base_dir='mine', write='deferred')"
    shown, _ = ran("base_dir='here', write='all', sync='turn'", "write", "sync", everywhere=everywhere)
    assert ("deferred", "turn") == (shown["write"], shown["sync"])
    [problem] = shown["problems"]
    assert "cannot join session" in problem
    assert ["far"] == [*ops(optree.Directory.of(tmp_path / "mine"))]


def test_what_a_worker_sets_later_wins(ran, tmp_path):
    """What a wrapped function gives to `configure` itself holds from then on."""
    shown, _ = ran("base_dir='here', write='all'", "write", before="optree.configure(base_dir='mine', write='deferred')")
    assert "deferred" == shown["write"]
    assert ["far"] == [*ops(optree.Directory.of(tmp_path / "mine"))]


def test_a_variable_that_a_worker_sets_itself_wins(finished):
    """A variable of which the value is another one than in the process that wrapped holds in a worker; one that it inherited does not."""
    code, out, err = finished(
        """
        import multiprocessing, sys
        if __name__ != "__main__":
            os.environ["OPTREE_WRITE"] = "deferred"
        import optree
        from concurrent.futures import ProcessPoolExecutor

        def work():
            return optree.configure().write, optree.configure().sync

        if __name__ == "__main__":
            optree.configure(write="all", sync="op")
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                print(*pool.submit(optree.wrap(work)).result())
        """,
        head="import os\n",
        env={"OPTREE_WRITE": "structure"},
    )
    assert (0, "deferred op\n", "") == (code, out, err)


def test_redaction_is_never_weakened_by_a_worker(ran, directory):
    """Where a worker's program sets less, it replaces what the process that wrapped does, and what its own program says beside."""
    less = "redacted_save=False, redact={'patterns': ['Jane'], 'disable': ['jwt', 'stated-secret']}"
    everywhere = f"if __name__ != '__main__': optree.configure({less})"
    configured = "redacted_save=True, redact={'names': ['customer_id'], 'disable': ['jwt']}, compression='none'"
    shown, err = ran(configured, "redacted_save", everywhere=everywhere)
    assert ({"redacted_save": True, "problems": []}, "") == (shown, err)
    assert ["customer_id=[REDACTED] of [REDACTED] Doe"] == ops(directory)["far"]
    assert SECRET.encode() not in on_disk(directory)


def test_a_worker_redacts_by_its_own_callback_too(ran, directory):
    """With a callback of the worker's program beside the other one, each text goes through both."""
    everywhere = "if __name__ != '__main__': optree.configure(redact={'callback': lambda text: text.replace('4711', 'xxxx')})"
    assert ({"problems": []}, "") == ran("redacted_save=True, redact={'callback': mask}, compression='none'", everywhere=everywhere)
    assert ["customer_id=xxxx-SECRET of [name]"] == ops(directory)["far"]


def test_later_functions_bring_later_settings(finished):
    """A worker that lives longer has the settings of the time at which the function was handed over, also those set back."""
    code, out, err = finished("""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        def work():
            config = optree.configure()
            return config.write, config.redact.names, config.redacted_save

        if __name__ == "__main__":
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                carried = optree.wrap(work)
                optree.configure(write="all")
                print(*pool.submit(carried).result())
                optree.configure(write="structure", redact={"names": ["a"]}, redacted_save=True)
                print(*pool.submit(carried).result())
                optree.configure(redact={})
                print(*pool.submit(carried).result())
    """)
    assert (0, "all () False\nstructure ('a',) True\nstructure () True\n", "") == (code, out, err)


def test_prices_go_along_or_are_said(finished, tmp_path):
    """A file with prices that has gone meanwhile is a problem of the worker, said once, and nothing is raised."""
    (tmp_path / "prices.json").write_text('{"p": {"m": {"input": 1}}}')
    code, out, err = finished("""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        def work():
            with optree.llm(provider="p", model="m") as op:
                op.account(input_tokens=1_000_000)
            return op.node.accounting[0].cost_usd, len(optree.health()["problems"])

        if __name__ == "__main__":
            optree.configure(prices="prices.json")
            for n in range(2):
                with optree.session("lead"), optree.turn(), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    print(*[pool.submit(optree.wrap(work)).result() for _ in range(2)])
                if not n:
                    os.remove("prices.json")
    """)
    lines = out.splitlines()
    assert (0, "(1.0, 0) (1.0, 0)", "(None, 1) (None, 1)") == (code, *lines), err
    assert 1 == err.count("prices.json")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pool_that_is_older_than_the_settings(method, finished, directory):
    """A worker that was there before `configure` was called redacts as the process that wrapped does now."""
    code, out, err = finished(
        """
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        def work():
            with optree.tool("far") as op:
                op.log("customer_id=4711-SECRET")
            return optree.configure().redacted_save

        if __name__ == "__main__":
            optree.configure(redacted_save=False, compression="none")
            with ProcessPoolExecutor(1, multiprocessing.get_context("METHOD")) as pool:
                pool.submit(int).result()
                optree.configure(redacted_save=True, redact={"names": ["customer_id"]})
                with optree.session("lead"), optree.turn(user="go"):
                    print(pool.submit(optree.wrap(work)).result())
        """.replace("METHOD", method)
    )
    assert (0, "True\n", "") == (code, out, err)
    assert ["customer_id=[REDACTED]"] == ops(directory)["far"]
    assert SECRET.encode() not in on_disk(directory)


def test_the_process_that_wrapped_keeps_its_settings():
    """A wrapped function that comes back to the process that wrapped it, or that it never left, changes no setting."""
    optree.configure(write="all")
    back = pickle.loads(pickle.dumps(optree.wrap(len)))
    optree.configure(write="deferred")
    assert (2, "deferred") == (back("ab"), RUNTIME.config.write)


def test_a_child_gets_redaction_that_was_set_back(monkeypatch):
    """The environment of a child process has what `configure` says of redaction, also where it takes back what a variable says."""
    monkeypatch.setenv("OPTREE_REDACT", '{"disable":["jwt"]}')
    RUNTIME.__init__()
    assert '{"disable":["jwt"]}' == optree.child_env({})["OPTREE_REDACT"]
    optree.configure(redact={})
    assert "{}" == optree.child_env()["OPTREE_REDACT"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_what_was_configured_before_a_fork_redacts_too(tmp_path):
    """A server configures its redaction and forks its workers: one that gets a wrapped function replaces what either of both says."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            settings = ConfigInUse(Config(), lambda _config: None)
            settings.give({"redact": {"names": ["own"]}, "redacted_save": True})
            if os.fork() == 0:
                theirs = carry(Config(redact=Redaction(names=("theirs",))), Directory.of(tmp_path))
                settings.take(theirs._replace(process=(b"another", 1)))
                config = settings.give({"console": False})
                os.write(writing, f"{sorted(config.redact.names)} {config.redacted_save}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as said:
        assert "['own', 'theirs'] True" == said.read()


def test_callbacks_that_are_replaced_are_not_kept(tmp_path, monkeypatch):
    """Of those that a process had set before, the last 64 are kept at most, for processes that it forked; each is named once."""
    monkeypatch.setattr(config, "_callbacks", {})
    tokens = []
    for number in range(100):
        callback = str.upper if number == 99 else lambda text, number=number: f"{text} {number}"
        redacting = Config(redact=Redaction(callback=callback))
        tokens += [carry(redacting, Directory.of(tmp_path)).token, carry(redacting, Directory.of(tmp_path)).token]
    assert (64, 100, tokens[-1]) == (len(config._callbacks), len(set(tokens)), next(reversed(config._callbacks)))
