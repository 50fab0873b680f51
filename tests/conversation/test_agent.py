import asyncio
import functools
import inspect

import pytest

from optree.conversation import (
    TOOLS,
    Agent,
    ApprovalHook,
    Hook,
    LoggedString,
    MessageString,
    RedactingHook,
    Session,
    SessionLogger,
    Tool,
    deliver,
)
from optree.errors import SetupError
from tests.conversation.conftest import Scripted, calls, lines, shape

CAFE = "You meet in a cafe. Introduce yourselves."


def heard(file, agent):
    """Return what an agent heard, as (content, substance)."""
    return [
        (one["content"], one.get("substance")) for one in lines(file) if one.get("agent_id") == agent.agent_id and one.get("role") == "user"
    ]


@pytest.fixture
def cafe(file, opened):
    """Return a root agent with the sub-agents Jack and Jill, in a file."""
    root, _ = opened(file, Scripted())
    for name in ("Jack", "Jill"):
        root.create(name, f"You are {name}.")
    return root


def test_signatures():
    """The agent's methods take what the seeds say, and nothing for logging (S0-44, S0-48, S1-38, S1-42)."""
    parameters = {name: list(inspect.signature(getattr(Agent, name)).parameters) for name in ("harken", "response", "inform", "discuss")}
    assert {"harken": ["self", "input"], "response": ["self"], "inform": ["self", "dst", "txt"]} == {
        name: parameters[name] for name in ("harken", "response", "inform")
    }
    assert ["self", "prompt", "speakers", "listeners"] == parameters["discuss"]
    assert ["self", "session", "system_prompt", "init_prompt"] == list(inspect.signature(Agent.__init__).parameters)[:4]
    assert inspect.iscoroutinefunction(Agent.response)


def test_ids_without_a_session(monkeypatch):
    """Agents without a session count their ids in the class, a subclass's too, and say the seeds' model (S0-48)."""
    monkeypatch.setattr(Agent, "_next_id", 7)
    first, second = Agent(), Agent(init_prompt=[{"role": "user", "content": "Hi"}])
    third = type("Other", (Agent,), {})(init_prompt=None, language_model="ollama/llama3:8b")
    assert (["agent_007", "agent_008", "agent_009"], 10) == ([one.agent_id for one in (first, second, third)], Agent._next_id)
    assert ("anthropic/claude-sonnet-4-5-20250929", {}, []) == (first.language_model, first.subagents, first.transcript)
    assert ("ollama/llama3:8b", []) == (third.language_model, third.transcript)
    assert [{"role": "user", "content": "Hi"}] == second.transcript


def test_harken(file, opened):
    """What an agent hears enters its transcript as plain text, and is logged with what it represents, if it carries that (S0-44, S1-39)."""
    root, _ = opened(file)
    root.harken("plain")
    root.harken(LoggedString("[Jack]: Hello", "msg_001"))
    root.harken(MessageString("[Jack]: Hello", content_id="msg_001"))
    assert [str] * 3 == [type(message["content"]) for message in root.transcript]
    assert [{"role": "user", "content": one} for one in ("plain", "[Jack]: Hello", "[Jack]: Hello")] == root.transcript
    assert [("plain", None), ("[Jack]: Hello", "msg_001"), ("[Jack]: Hello", "msg_001")] == heard(file, root)


def test_response(file, opened):
    """What the model says enters the transcript and the log, and is returned with its own id (S0-39, S0-45, S1-40)."""
    model = Scripted("Hello")
    root, _ = opened(file, model)
    root.harken("Hi")
    said = asyncio.run(root.response())
    assert (LoggedString, "Hello", "msg_003") == (type(said), said, said.message_id)
    assert [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}] == root.transcript
    assert ("msg_003", "assistant", "Hello") == tuple(lines(file)[-1][key] for key in ("message_id", "role", "content"))
    assert [{"role": "user", "content": "Hi"}] == model.asked[0][0]


def test_subagents(cafe):
    """An agent has its sub-agents by name (S0-49)."""
    asyncio.run(cafe.act(("task", {"name": "Joe"})))
    assert {"Jack": "agent_002", "Jill": "agent_003", "Joe": "agent_004"} == {name: one.agent_id for name, one in cafe.subagents.items()}
    assert all(isinstance(one, Agent) for one in cafe.subagents.values())


def test_inform(file, cafe):
    """A text that one agent sends another takes its identity along: the receiver's entry represents it (S0-32, S0-37, S0-46, S1-15).

    Formatting it makes no piece of text (S0-26, S1-16, S1-41).
    """
    jack, jill = cafe.subagents.values()
    said = jack.say("Hello")
    jack.inform(jill, LoggedString(f"[Jack]: {said}", said.message_id))
    assert [("[Jack]: Hello", said.message_id)] == heard(file, jill)
    assert not [one for one in lines(file) if one["event_type"] == "piece_of_text"]


def test_system_prompts(file, cafe):
    """An agent's creation is logged before its system prompt, which is an entry of its transcript; all once (S0-50, S0-83, S1-38)."""
    jack = cafe.subagents["Jack"]
    found = [one for one in lines(file) if one["agent_id"] == jack.agent_id]
    assert [("agent_created", "Jack"), ("transcript_entry", None)] == [(one["event_type"], one.get("name")) for one in found]
    assert ("system", "You are Jack.") == (found[1]["role"], found[1]["content"])
    assert 3 == sum(one["event_type"] == "agent_created" for one in lines(file))


def test_initial_transcript_is_not_logged(file, opened):
    """What an agent has for an initial transcript was logged before, and is not logged again (S1-38)."""
    _, session = opened(file)
    before = file.read_bytes()
    agent = Agent(session, init_prompt=[{"role": "system", "content": "old"}])
    assert before == file.read_bytes()
    agent.harken("new")
    assert ["new"] == [one["content"] for one in lines(file) if one["event_type"] == "transcript_entry"]


def test_without_logging(file, opened):
    """Without a session the agent does the same: its transcripts and what its model is asked are equal (S0-47, S0-51, S1-42)."""
    logged, bare = Scripted(), Scripted()
    root, _ = opened(file, logged)
    alone = Agent(model=bare, agent_id=root.agent_id)
    for agent in (root, alone):
        agent.harken("Create them")
        asyncio.run(agent.act(("task", {"name": "Jack", "system_prompt": "You are Jack."}), ("task", {"name": "Jill"})))
        asyncio.run(agent.discuss(CAFE, ["Jack", "Jill"]))
        asyncio.run(agent.act(("whisper", {"speaker": "Jack", "listener": "Jill"})))
        asyncio.run(agent.response())
    assert logged.asked == bare.asked
    assert root.transcript == alone.transcript
    assert [one.transcript for one in root.subagents.values()] == [one.transcript for one in alone.subagents.values()]
    assert not hasattr(alone, "logger")


def test_discuss(file, cafe):
    """A discussion gives all the same prompt, one piece of text, and each speaker's words to all others (S0-25, S0-52, S0-53).

    The result of the call names what it was compiled from (S1-13, S0-34).
    """
    cafe.create("Joe", None)
    result = asyncio.run(cafe.discuss(CAFE, ["Jack", "Jill"], ["Joe"]))
    jack, jill, joe = cafe.subagents.values()
    found = lines(file)
    [piece] = [one for one in found if one["event_type"] == "piece_of_text"]
    call = next(one for one in found if one.get("tool_calls"))
    assert (CAFE, cafe.agent_id, call["message_id"]) == (piece["content"], piece["agent_id"], piece["cause"])
    jacks, jills = (next(one["message_id"] for one in found if one.get("content") == f"words {number}") for number in (1, 2))
    told = (CAFE, piece["message_id"])
    assert [told, ("[Jill]: words 2", jills)] == heard(file, jack)
    assert [told, ("[Jack]: words 1", jacks)] == heard(file, jill)
    assert [told, ("[Jack]: words 1", jacks), ("[Jill]: words 2", jills)] == heard(file, joe)
    assert ("[Jack]: words 1\n[Jill]: words 2", [jacks, jills]) == (result, found[-1]["cause"])
    assert call["tool_calls"][0]["id"] == found[-1]["tool_call_id"]
    assert CAFE not in [message["content"] for message in cafe.transcript]


def test_pieces_are_in_no_transcript(file, cafe):
    """A piece of text is in nobody's transcript, and stored once, however many hear it (S0-23, S0-25, S0-27)."""
    asyncio.run(cafe.discuss(CAFE, listeners=["Jack", "Jill"]))
    found = lines(file)
    assert 1 == sum(one["event_type"] == "piece_of_text" for one in found)
    assert 2 == sum(one.get("content") == CAFE and one.get("role") == "user" for one in found)
    assert CAFE not in [message["content"] for message in cafe.session.transcript(cafe.agent_id)]


def test_one_utterance_is_the_result(file, cafe):
    """The result of a discussion with one speaker represents what that one said, and no other (S1-08)."""
    asyncio.run(cafe.discuss("What now?", ["Jack"]))
    said = next(one for one in lines(file) if one.get("content") == "words 1")
    assert (said["message_id"], "words 1") == (lines(file)[-1]["substance"], lines(file)[-1]["content"])


def test_the_right_call(file, opened):
    """With several calls in one message, the cause of what each makes is that call, not the first (S0-54, S0-55)."""
    asked = calls(
        ("c1", "task", {"name": "Jack"}),
        ("c2", "task", {"name": "Jill"}),
        ("c3", "discuss", {"prompt": "one", "listeners": ["Jack"]}),
        ("c4", "discuss", {"prompt": "two", "listeners": ["Jack"]}),
    )
    root, _ = opened(file, Scripted(asked, "Done"))
    root.harken("Go")
    assert "Done" == asyncio.run(root.response())
    causes = {one.get("name") or one["content"]: one["cause"] for one in lines(file) if isinstance(one.get("cause"), str)}
    assert {"Jack": "msg_003.c1", "Jill": "msg_003.c2", "one": "msg_003.c3", "two": "msg_003.c4"} == causes
    assert "msg_003" == root._find_msg_with_tool_call("c4")
    assert ["c1", "c2", "c3", "c4"] == [one["tool_call_id"] for one in lines(file) if one.get("role") == "tool"]


def test_tool_loop(file, opened):
    """A response makes the calls that the model asks for until it says something; a bad call's result is its error (S0-34, S1-18)."""
    bad = calls(("c1", "nope", {}), ("c2", "task", {"bad": 1}), ("c3", "discuss", {"speakers": ["Nobody"]}))
    bad["tool_calls"][1]["function"]["arguments"] = "{not JSON"
    model = Scripted(bad, "Sorry")
    root, _ = opened(file, model)
    assert "Sorry" == asyncio.run(root.response())
    results = [message for message in root.transcript if message["role"] == "tool"]
    assert ["c1", "c2", "c3"] == [message["tool_call_id"] for message in results]
    assert all(message["content"].startswith("Error: ") for message in results)
    assert {"task", "discuss", "whisper"} == {tool["function"]["name"] for tool in model.asked[0][1]}
    assert results == model.asked[1][0][1:]


def test_endless_tool_calls(file, opened):
    """A model that never stops to call tools is asked without them in the end."""
    model = Scripted(*[calls((f"c{number}", "nope", {})) for number in range(16)], "Enough")
    root, _ = opened(file, model)
    assert "Enough" == asyncio.run(root.response())
    assert [] == model.asked[-1][1]


def test_no_model(file, opened):
    """An agent without a model says how to give it one."""
    root, _ = opened(file)
    with pytest.raises(SetupError, match=r"give it one, Agent\(session, model=ChatModel"):
        asyncio.run(root.response())


# Hooks


def test_redaction(file, cafe):
    """A hook that changes what is delivered leaves both versions readable, under one substance (S0-33, S1-17)."""
    jack, jill = cafe.subagents.values()
    jack.hooks["Censor"] = RedactingHook(r"\d{4}")
    said = jack.say("password: 1234")
    asyncio.run(deliver(jack, jill, LoggedString(f"[Jack]: {said}", said.message_id)))
    assert [("[Jack]: password: [REDACTED]", said.message_id)] == heard(file, jill)
    assert "password: 1234" == jack.transcript[-1]["content"]


def test_denial(file, opened):
    """A hook agent is asked, decides in its own transcript, and its denial is the error that the call gets (S0-88, S0-94, S1-57)."""
    root, _ = opened(file, Scripted("Fine.", "DENY. Maximum subagents (2) already reached."))
    root.create("ResourceMonitor", "Monitor resource usage...")
    monitor = root.subagents["ResourceMonitor"]
    root.hooks["ResourceMonitor"] = ApprovalHook(monitor)
    results = [asyncio.run(root.act(("task", {"name": name})))[0] for name in ("Searcher1", "Searcher2")]
    assert [
        "Created subagent: Searcher1",
        "Error: Action blocked by hook 'ResourceMonitor': Maximum subagents (2) already reached.",
    ] == results
    question = f"Agent '{root.agent_id}' is attempting to create subagent 'Searcher2'. Current subagent count: 2. Approve?"
    assert [question, "DENY. Maximum subagents (2) already reached."] == [message["content"] for message in monitor.transcript[-2:]]
    assert {"ResourceMonitor", "Searcher1"} == set(root.subagents)
    assert results[1] == root.transcript[-1]["content"]


def test_other_calls(opened, file):
    """A hook that judges other calls than those of `task` is told their arguments; what does not begin with DENY is no denial."""
    root, _ = opened(file, Scripted("I would not DENY it.", "DENY"))
    judge = root.create("Judge")
    root.hooks["Judge"] = ApprovalHook(judge, tools=("discuss",))
    results = [asyncio.run(root.discuss("Hi", listeners=["Judge"])) for _ in range(2)]
    assert ["Delivered.", "Error: Action blocked by hook 'Judge': no reason was given"] == results
    question = f'Agent \'{root.agent_id}\' is attempting to use \'discuss\' with {{"prompt": "Hi", "listeners": ["Judge"]}}.'
    assert f"{question} Current subagent count: 1. Approve?" == judge.transcript[0]["content"]


class Withhold(Hook):
    """Lets nothing through."""

    async def passes(self, source, target, text):
        """Hold it back."""
        assert source is not target, text


def test_withheld(file, cafe):
    """What a hook holds back is not delivered, and stays in the speaker's transcript (S0-33)."""
    cafe.subagents["Jill"].hooks["Wall"] = Withhold()
    asyncio.run(cafe.discuss("Meet", ["Jack"], ["Jill"]))
    assert [] == heard(file, cafe.subagents["Jill"])
    assert "words 1" == cafe.subagents["Jack"].transcript[-1]["content"]


def test_memory_hook(file, cafe):
    """A hook with a memory of its own accumulates in its transcript, and gives context as messages (S0-95, S0-96)."""
    memory = Agent(cafe.session, name="Memory")
    cafe.session.log_agent_created(memory.agent_id, name="Memory")

    class Remember(RedactingHook):
        """Keeps what is delivered, and reminds who hears it."""

        async def passes(self, source, target, text):
            """Keep it, and add what is remembered."""
            assert source is not target
            memory.harken(text)
            return f"{text} (said {len(memory.transcript)} times)"

    jack, jill = cafe.subagents.values()
    jill.hooks["Memory"] = Remember("x")
    for _ in range(2):
        said = jack.say("Hello")
        asyncio.run(deliver(jack, jill, said))
    assert ["Hello (said 1 times)", "Hello (said 2 times)"] == [text for text, _ in heard(file, jill)]
    assert [text for text, _ in heard(file, memory)] == ["Hello", "Hello"]


# Patterns


def test_whisper(file, cafe):
    """A whisper is heard by one, represents what was said, and makes no piece of text (S0-92, S0-99)."""
    cafe.create("Joe", None)
    asyncio.run(cafe.act(("whisper", {"speaker": "Jack", "listener": "Jill"})))
    jack, jill, joe = cafe.subagents.values()
    said = next(one for one in lines(file) if one["agent_id"] == jack.agent_id and one.get("role") == "assistant")
    assert [("[Jack]: words 1", said["message_id"])] == heard(file, jill)
    assert ([], []) == (heard(file, joe), [one for one in lines(file) if one["event_type"] == "piece_of_text"])
    assert "words 1" not in str(cafe.transcript)


async def translate(agent, call, text, listeners):
    """Translate a text for others: a tool that optree knows nothing of."""
    told = agent.piece_of_text(f"<{text}>", call)
    for name in listeners:
        await deliver(agent, agent.subagent(name), told)
    return "translated"


def test_any_other_tool(file, cafe):
    """A new tool logs by the same pattern, a piece of text with its call for a cause, and the log has no new form for it (S0-06, S0-99)."""
    cafe.tools["translate"] = Tool(translate, "Translate.", {"text": {"type": "string"}})
    asyncio.run(cafe.act(("translate", {"text": "Hallo", "listeners": ["Jack", "Jill"]})))
    found = lines(file)
    [piece] = [one for one in found if one["event_type"] == "piece_of_text"]
    assert ("<Hallo>", found[-5]["message_id"]) == (piece["content"], piece["cause"])
    assert [("<Hallo>", piece["message_id"])] * 2 == [*heard(file, cafe.subagents["Jack"]), *heard(file, cafe.subagents["Jill"])]
    assert {"agent_created", "transcript_entry", "piece_of_text"} == {one["event_type"] for one in found}


def test_selective_information(cafe):
    """What an agent knows is what its transcript has: a strategist's plan reaches the tactician, not the student (S0-92, S0-97, S0-98)."""
    for name in ("Strategist", "Student"):
        cafe.create(name, None)
    asyncio.run(cafe.discuss("Plan the lesson.", ["Strategist"]))
    plan = cafe.subagents["Strategist"].transcript[-1]["content"]
    asyncio.run(cafe.discuss("Ask one question.", ["Jack"], ["Student"]))
    known = {name: str(agent.transcript) for name, agent in cafe.subagents.items()}
    assert [True, False, False] == [plan in known[name] for name in ("Strategist", "Student", "Jack")]
    assert cafe.subagents["Jack"].transcript[-1]["content"] in known["Student"]


def test_debate(cafe):
    """In a debate each agent's transcript has all turns in their order, from its own side (S0-91)."""
    asyncio.run(cafe.discuss("Tea or coffee?", ["Jack", "Jill", "Jack"]))
    jack, jill = ([(message["role"], message["content"]) for message in agent.transcript[2:]] for agent in cafe.subagents.values())
    assert [("assistant", "words 1"), ("user", "[Jill]: words 2"), ("assistant", "words 3")] == jack
    assert [("user", "[Jack]: words 1"), ("assistant", "words 2"), ("user", "[Jack]: words 3")] == jill


def test_external_events(file, cafe):
    """Triggers from outside are messages of the user, whenever they come, and need no type of their own (S0-07, S0-89, S0-93)."""

    async def run():
        jack, jill = cafe.subagents.values()

        async def trigger(agent):
            for number in range(3):
                agent.harken(f"File changed: {number}.json")
                await agent.response()

        await asyncio.gather(trigger(jack), trigger(jill))

    asyncio.run(run())
    for agent in cafe.subagents.values():
        assert [f"File changed: {number}.json" for number in range(3)] == [text for text, _ in heard(file, agent)]
        assert ["user", "assistant"] * 3 == [message["role"] for message in agent.transcript[1:]]


# Resume


def test_resume_after_each_response(file, opened):
    """After each response the session can be resumed whole, and goes on as if it had never stopped (S0-01, S0-84, S1-01, S1-53)."""
    straight, stopped = Scripted(), Scripted()
    one, _ = opened(file.with_name("straight.jsonl"), straight)
    two, session = opened(file, stopped)
    for step in range(4):
        for root in (one, two):
            root.harken(f"step {step}")
            if step == 1:
                asyncio.run(root.act(("task", {"name": "Jack", "system_prompt": "You are Jack."})))
            if step > 1:
                asyncio.run(root.discuss("Go on", ["Jack"]))
            asyncio.run(root.response())
        session.close()
        again, session = opened(file, stopped)
        assert shape(two) == shape(again)
        two = again
    assert shape(one) == shape(two)
    assert straight.asked == stopped.asked
    assert file.read_bytes() == file.with_name("straight.jsonl").read_bytes()


# Seed 000's logger, attached to an agent


def test_attached_logger(file):
    """Seed 000's main script works: its logger is attached to the agent and to agents made later, and each creation is logged once (S0-81).

    Texts carry their identity under that seed's names (S0-45, S0-47).
    """
    root = Agent(model=Scripted())
    logger = SessionLogger(file)
    logger.log_agent_created(agent_id=root.agent_id, language_model=root.language_model)
    root.logger = logger
    root.harken("Hi")
    said = asyncio.run(root.response())
    assert (MessageString, "msg_003", None) == (type(said), said.content_id, said.caused_by)
    asyncio.run(root.act(("task", {"name": "Jack"})))
    assert root.logger is root.subagents["Jack"].logger
    asyncio.run(root.discuss("Meet", ["Jack"]))
    created = [one for one in lines(file) if one["event_type"] == "agent_created"]
    assert [None, "Jack"] == [one.get("name") for one in created]
    assert {"caused_by", "content_id"} <= {key for one in lines(file) for key in one}
    assert not {"cause", "substance"} & {key for one in lines(file) for key in one}


def test_own_class(file):
    """A program's own agents keep their class in sub-agents, and their tools."""

    class Mine(Agent):
        """An agent of a program's own."""

    with Session(file) as session:
        root = Mine(session, tools={"task": TOOLS["task"]})
        session.log_agent_created(root.agent_id)
        asyncio.run(root.act(("task", {"name": "Jack"})))
        assert (Mine, ["task"]) == (type(root.subagents["Jack"]), list(root.subagents["Jack"].tools))


def test_factory(file, opened):
    """Loading makes agents by the program's own factory, which is given each agent's record and transcript (S1-37, S1-38)."""
    from optree.conversation import load_session

    root, session = opened(file)
    root.create("Jack", "You are Jack.")
    session.close()
    made = []

    def make(session, record, transcript, *, kind):
        made.append((kind, record.label, len(transcript)))
        return Agent(session, init_prompt=transcript, agent_id=record.agent_id, name=record.name)

    root, session = load_session(file, functools.partial(make, kind="mine"))
    session.close()
    assert [("mine", "agent_001", 0), ("mine", "Jack", 1)] == made
    assert ["Jack"] == list(root.subagents)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"speakers": "Jack"}, "speakers is to be of type array"),
        ({"speakers": 5}, "speakers is to be of type array"),
        ({"speakers": [{"name": "Jack"}]}, "speakers[0] is to be of type string"),
        ([], "the arguments are no JSON object"),
    ],
)
def test_arguments_are_checked(arguments, said):
    """Arguments of a model that are not as the tool declares them are told to the model as the call's result."""
    model = Scripted(calls(("c1", "discuss", arguments)), "sorry")
    root = Agent(model=model)
    root.create("Jack")
    assert "sorry" == asyncio.run(root.response())
    assert root.transcript[-2]["content"].startswith(f"Error: discuss: {said}")


def test_sub_agents_of_two_processes(file):
    """Sub-agents that two openings of one file create at once have ids of their own."""
    from optree.conversation import load_session

    pairs = [load_session(file) for _ in range(2)]
    made = [root.create("Jack", "You are Jack.").agent_id for root, _ in pairs]
    for _, session in pairs:
        session.close()
    assert 2 == len(set(made))
