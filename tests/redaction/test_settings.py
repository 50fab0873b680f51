import os
import subprocess
import sys

import pytest

import optree
from optree import redaction
from optree._nodes import OperationNode
from optree.redaction import REDACTED, Redaction, may_hold_secret, redact, redact_pieces

KEY = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"


@pytest.fixture(autouse=True)
def as_before():
    """Redact as by default again when a test is over."""
    yield
    redaction.use(Redaction())
    redaction._failed = 0


def test_patterns_and_names_of_ones_own():
    """What a user adds is replaced like what is known; of a pattern with a group called secret only that (S4-79)."""
    optree.configure(redact=optree.Redaction(patterns=(r"ACME-\d{4}", r"pin (?P<secret>\d+)"), names=("customer_id",)))
    assert f"{REDACTED} and pin {REDACTED}" == redact("ACME-1234 and pin 99")
    assert {"customerId": REDACTED, "CUSTOMER-ID": REDACTED, "customer": "x"} == redact(
        {"customerId": "a", "CUSTOMER-ID": "b", "customer": "x"}
    )
    assert f'{{"customer_id": "{REDACTED}"}}' == redact('{"customer_id": "a7"}')
    assert may_hold_secret("ACME-1234")


def test_personal_data():
    """E-mail and IP addresses stay unless they are to be masked (S4-79)."""
    said = "jane.doe+x@mail.example.org from 192.168.1.20 and 2001:db8::1, at 12:30:45, v1.2.3"
    assert said == redact(said)
    optree.configure(redact={"mask": ["email"]})
    assert f"{REDACTED} from 192.168.1.20 and 2001:db8::1, at 12:30:45, v1.2.3" == redact(said)
    optree.configure(redact={"mask": ["email", "ip"]})
    assert f"{REDACTED} from {REDACTED} and {REDACTED}, at 12:30:45, v1.2.3" == redact(said)


def test_a_callback():
    """A callback sees each text last; where it raises, the text is replaced whole, and health says how often. Nothing is raised."""
    optree.configure(redact=Redaction(callback=lambda text: text.replace("blue", "[colour]")))
    assert {"a": [f"[colour] {REDACTED}"]} == redact({"a": [f"blue {KEY}"]})
    assert ["[colour] sky", ""] == redact_pieces(["bl", "ue sky"])

    def broken(text):
        if text == "anything":  # what a thread of another test's session says meanwhile is none of this one's
            raise RuntimeError(text)
        return text

    before = redaction.callback_errors()
    optree.configure(redact=Redaction(callback=broken))
    assert REDACTED == redact("anything")
    assert before + 1 == redaction.callback_errors()
    assert any("callback" in problem for problem in optree.health()["problems"])


def test_kinds_and_detectors_switched_off():
    """A kind, or one detector, is switched off by name; the others go on."""
    optree.configure(redact=Redaction(disable=("github",)))
    assert f"{KEY} {REDACTED}" == redact(f"{KEY} glpat-AbCdEfGhIjKlMnOpQrSt")
    optree.configure(redact=Redaction(disable=("form",)))
    assert {"a": KEY, "password": REDACTED} == redact({"a": KEY, "password": "x"})
    optree.configure(redact=Redaction(disable=("form", "name", "stated-secret")))
    assert {"a": KEY, "password": "x"} == redact({"a": KEY, "password": "x"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"patterns": ["("]}, "is none"),
        ({"patterns": ["a*"]}, "no length"),
        ({"patterns": "abc"}, "give texts"),
        ({"names": [1]}, "give texts"),
        ({"disable": ["nope"]}, "choose of"),
        ({"mask": ["phone"]}, "choose of email, ip"),
        ({"callback": 5}, "a function"),
        ({"unknown": 1}, "its members are"),
        ("{", "its members are"),
        (5, "optree.Redaction"),
    ],
)
def test_settings_that_cannot_be(given, said):
    """Misuse at set-up is told with what to do, and changes nothing."""
    with pytest.raises(optree.SetupError, match=said):
        optree.configure(redact=given)
    assert REDACTED == redact(KEY)


def test_other_processes():
    """A child process, and the command line, take settings from the environment; `child_env` hands them on."""
    optree.configure(redact=Redaction(patterns=(r"ACME-\d{4}",), mask=("email",)))
    env = optree.child_env({**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    code = "from optree.redaction import redact; print(redact('ACME-1234 a@b.org'))"
    shown = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True).stdout
    assert f"{REDACTED} {REDACTED}\n" == shown


def test_an_environment_that_cannot_be():
    """A malformed OPTREE_REDACT switches nothing off: a program goes on by default and says so once, the command line refuses."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPTREE_REDACT": '{"disable": ["form", "nope"]}'}
    shown = f"print(redact('{KEY}'))"
    code = f"import optree; from optree.redaction import redact; {shown}; optree.configure(verbose=True); {shown}"
    done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
    assert f"{REDACTED}\n{REDACTED}\n" == done.stdout
    assert [True] == ["OPTREE_REDACT is passed over" in line for line in done.stderr.splitlines()]
    command = [sys.executable, "-c", "from optree._cli import main; main()", "ls"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("nope"))


def test_what_is_remembered_is_forgotten_with_the_settings():
    """Settings that come later hold for names, keys and values that passed before: nothing that is kept outlives them (S4-79)."""
    from optree._builder.figures import provider_and_model
    from optree_otel.signals.limits import PROFILES, encode
    from optree_otel.signals.resource import Resources
    from optree_otel.signals.spans import Span

    span = Span(b"t" * 16, b"s" * 8, b"", "acme ACME-11111111", 1, 5, 6, [("customer", "ACME-22222222"), ("member", 7)])
    resources = Resources(service="s", attributes={"owner": "ACME-33333333"})

    def told():
        return encode(span, PROFILES["default"]) + resources.encoded("s")

    before = told()
    assert ("acme", "ACME-12345678") == provider_and_model("acme:ACME-12345678")[:2]
    assert [True] * 4 == [said in before for said in (b"ACME-1", b"ACME-2", b"ACME-3", b"\x18\x07")]
    optree.configure(redact=Redaction(patterns=(r"ACME-\d{8}",), names=("member",)))
    after = told()
    assert [False] * 4 == [said in after for said in (b"ACME-1", b"ACME-2", b"ACME-3", b"\x18\x07")]
    assert (None, None) == provider_and_model("acme:ACME-12345678")[:2]


@pytest.mark.parametrize("name", ["123456789:AAabcdefghijklmnopqrstuvwxyz0123456", "x:ACME-12345678"])
def test_a_name_that_holds_a_credential_is_not_parted(name):
    """The two parts of an llm op's name are taken once it is redacted whole, so that none of a credential over both is shown."""
    from optree_otel.signals.llm import called

    redaction.use(Redaction(patterns=(r"ACME-\d{8}",)))
    call = called(OperationNode("", "", "llm", name, 0.0, (), ()), {}, {})
    assert REDACTED == call.model
