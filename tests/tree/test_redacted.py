"""A copy of a tree has no credential in any of its fields; what it was made of stays as it is."""

import msgspec
import pytest

from optree import SessionTreeBuilder
from optree._tree.redacted import outline, redacted
from optree.testing import Ticking

SECRET = "sk-abcdefghijklmnopqrstuvwx"
FIELDS = {
    "title": lambda root, _: root.set_title(SECRET),
    "status": lambda root, _: root.set_title(status=f"with {SECRET}"),
    "a session's error": lambda root, _: root.end_session("failed", SECRET),
    "final report": lambda root, _: root.end_session("ok", final_report={"said": SECRET}),
    "prompt": lambda root, _: root.begin_turn(user=SECRET),
    "a turn's attributes": lambda root, _: root.begin_turn(attributes={"label": SECRET}),
    "an op's name": lambda root, _: root.begin_op("tool", SECRET),
    "an op's attributes": lambda root, _: root.begin_op("tool", "t", attributes={"said": SECRET}),
    "an op's error": lambda _, op: op.end("failed", SECRET),
    "line": lambda _, op: op.log(f"key {SECRET}"),
    "details": lambda _, op: op.log("x", details={"said": [SECRET]}),
    "chunk": lambda _, op: op.think(SECRET),
    "two chunks": lambda _, op: (op.think(SECRET[:9]), op.think(SECRET[9:])),
    "final reasoning": lambda _, op: op.end(reasoning=f"so {SECRET}"),
    "final reasoning beside chunks": lambda _, op: (op.think("hm"), op.end(reasoning=SECRET)),
    "request": lambda _, op: op.request(said=SECRET),
    "history": lambda _, op: op.request([{"role": "user", "content": SECRET}, {"role": "user", "content": "y" * 500}]),
    "response": lambda _, op: op.response({"said": SECRET}),
    "bill": lambda _, op: op.account(status="failed", error=SECRET),
    "message": lambda root, _: root.append_message({"role": "user", "content": SECRET}),
    "sub-agent": lambda root, _: root.attach_child_session(root.begin_op("session", "x"), "reader").begin_op("tool", SECRET),
}
JSON = {"final report", "an op's attributes", "details", "request", "history", "response", "message"}
"""What an outline has as it is: whoever shows some of it redacts that."""


def built(put):
    """Return a tree of some size, with something in it."""
    root = SessionTreeBuilder("lead", txn="t", now=Ticking())
    turn = root.begin_turn(user="why?")
    op = root.begin_op("llm", "m", turn=turn)
    put(root, op)
    root.begin_op("llm", "m", turn=turn).request([{"role": "user", "content": "z" * 500}])
    return root.tree


@pytest.mark.parametrize("field", FIELDS)
def test_a_credential_in_any_field_goes(field):
    """It is in no part of the copy, which says that there was one, and is in the tree as before."""
    tree = built(FIELDS[field])
    before = msgspec.json.encode(tree)
    copy, changed = redacted(tree)
    said = msgspec.json.encode(copy)
    assert (True, False, False) == (changed, SECRET[9:].encode() in said, SECRET[:9].encode() in said)
    assert before == msgspec.json.encode(tree)
    assert SECRET[9:].encode() in before


def test_a_tree_without_credentials_is_the_same():
    """Nothing is changed, and it is said that nothing is; what the tree refers to comes along."""
    tree = built(lambda root, op: (op.think("hm"), op.log("x", details={"n": 1}), op.end(reasoning="so"), root.end_session()))
    assert (tree, False) == redacted(tree)
    assert len(tree.pool.blobs) >= 1


def test_what_requests_and_answers_refer_to_is_in_the_copy():
    """Long members of requests, which stand in the tree's pool, are in the copy's too; what the copy no longer names is not."""
    secret, tools = {"said": "x" * 2000}, [{"name": "y" * 2000}]
    tree = built(lambda _, op: op.request([{"role": "user", "content": "hi"}], tools=tools, password=secret))
    before, after = (set(map(bytes, pool.blobs.values())) for pool in (tree.pool, redacted(tree)[0].pool))
    assert {msgspec.json.encode(secret)} == before - after
    assert msgspec.json.encode(tools) in after


def test_ids_stay_whatever_they_look_like():
    """What optree itself gave is no credential, also where a user has given a session a name that looks like one."""
    root = SessionTreeBuilder("a", txn=SECRET)
    child = root.attach_child_session(root.begin_op("session", "x"), "b")
    child.begin_op("tool", "y")
    assert (root.tree, False) == redacted(root.tree)


@pytest.mark.parametrize("field", FIELDS)
def test_an_outline_has_none_in_names_and_texts(field):
    """Names, texts, errors, reasoning and the attributes of turns are looked at; JSON that was recorded stays."""
    found = msgspec.json.encode(outline(built(FIELDS[field]).session))
    assert (field in JSON and field != "history") == (SECRET[9:].encode() in found)
