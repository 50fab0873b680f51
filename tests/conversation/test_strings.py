import copy
import json
import pickle

import pytest

from optree.conversation import LoggedString, MessageString, SessionLogger
from optree.conversation.strings import PieceId, causes_of, id_of, identity_of

ALL = [
    LoggedString("Hi", "msg_001"),
    LoggedString("Hi", cause=("msg_001", "msg_002")),
    MessageString("Hi", "msg_001", "msg_000"),
    PieceId("msg_001", "Hi", "msg_000"),
]


def test_logged_string():
    """A LoggedString is its text, with the id of its content, which a plain string has not (S1-23, S1-24)."""
    said = LoggedString("Hello", "msg_001")
    assert ("Hello", "msg_001") == (said, said.message_id)
    assert "msg_001" == getattr(said, "message_id", None)
    assert getattr("Hello", "message_id", None) is None
    assert LoggedString("Hello").message_id is None


def test_message_string():
    """A MessageString has the content's id, and a piece of text also its call; a plain string has neither (S0-38, S0-40, S0-42)."""
    said = MessageString("Hello", content_id="msg_015")
    assert ("Hello", "msg_015", None) == (said, said.content_id, said.caused_by)
    assert "msg_011" == MessageString("Please", "msg_012", caused_by="msg_011").caused_by
    assert "msg_015" == getattr(said, "content_id", None)
    assert getattr("Hello", "content_id", None) is None


def test_formatting():
    """What an f-string makes of one is a plain string; the identity is handed on by hand (S0-32, S0-43)."""
    said = MessageString("Hello", "msg_015")
    plain = f"[Jack]: {said}"
    assert str is type(plain)
    assert "msg_015" == MessageString(plain, content_id=said.content_id).content_id


@pytest.mark.parametrize("text", ALL[:3], ids=repr)
def test_is_a_string(text):
    """Operational code sees a string: it is equal, hashes, concatenates, formats, and goes into JSON as one (S0-41, S1-24)."""
    assert ("Hi", hash("Hi"), "Hi!", "HI", "Hi", '"Hi"') == (text, hash(text), text + "!", text.upper(), f"{text}", json.dumps(text))
    assert {"Hi": 1}[text] == 1
    assert str is type(str(text))


@pytest.mark.parametrize("text", ALL, ids=lambda text: f"{type(text).__name__} {identity_of(text)}")
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_copies(text, protocol):
    """Pickled under any protocol, and copied, it is the same with the same identity (S0-41, S1-24)."""
    for again in (pickle.loads(pickle.dumps(text, protocol)), copy.copy(text), copy.deepcopy(text)):
        assert type(text) is type(again)
        assert (text, str(text)) == (again, str(again))
        assert (identity_of(text), causes_of(text)) == (identity_of(again), causes_of(again))
        assert getattr(text, "caused_by", None) == getattr(again, "caused_by", None)


def test_no_content():
    """The content of a message that only calls tools is None: as a string it is empty, not the word (S1-24)."""
    assert ("", "") == (LoggedString(None, "msg_001"), MessageString(None))


def test_either_name():
    """Each of the two answers to the other's name, so code of both seeds reads both (S1-61)."""
    assert "msg_001" == LoggedString("a", "msg_001").content_id
    assert "msg_001" == MessageString("a", "msg_001").message_id
    assert ("msg_001", "msg_001", None) == (
        identity_of(LoggedString("a", "msg_001")),
        identity_of(MessageString("a", "msg_001")),
        identity_of("a"),
    )


def test_id_of_a_piece(file):
    """What logging a piece of text returns is its id, and can be delivered as the text, by the seed's own lines of code (S0-59)."""
    logger = SessionLogger(file)
    for _ in range(11):
        logger.log_agent_created("agent_001")
    prompt_id = logger.log_piece_of_text(content="Please introduce yourselves", caused_by="msg_011")

    assert "msg_012" == prompt_id
    assert '["msg_012"]' == json.dumps([prompt_id])
    as_id = MessageString("Please introduce yourselves", content_id=prompt_id)
    assert str is type(as_id.content_id)
    heard = {"role": "user", "content": str(prompt_id)}, getattr(prompt_id, "content_id", None)
    assert ({"role": "user", "content": "Please introduce yourselves"}, "msg_012") == heard
    assert ("msg_012", "msg_011") == (prompt_id.text.content_id, prompt_id.text.caused_by)
    assert "msg_012" == id_of(as_id)


def test_one_cause():
    """One cause may be given as it is: it is an id, not its letters."""
    assert ("msg_001",) == LoggedString("x", cause="msg_001").cause
