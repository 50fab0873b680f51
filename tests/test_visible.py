"""What a terminal would act on, or not show, is written out."""

import json
import sys
import unicodedata

import pytest

from optree._visible import columns, one_line, visible, visible_json

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[8mb\x1b[0m", "a\\x1b[8mb\\x1b[0m"),
        ("\x1b]0;title\x07\x1bP1$r\x1b\\", "\\x1b]0;title\\x07\\x1bP1$r\\x1b\\"),
        ("\x9b31m\x85\x7f\x00", "\\x9b31m\\x85\\x7f\\x00"),
        ("\u202eabc\u2066d\u200fe\u061c", "\\u202eabc\\u2066d\\u200fe\\u061c"),
        ("a\u200bb\u2060c\ufeffd\u00ade\u034f", "a\\u200bb\\u2060c\\ufeffd\\xade\\u034f"),
        ("\U000e0041\U000e007f\U000e0100x\ufe01", "\\U000e0041\\U000e007f\\U000e0100x\\ufe01"),
        ("\u2028\u2029\u3164\uffa0\u115f\u2800", "\\u2028\\u2029\\u3164\\uffa0\\u115f\\u2800"),
        ("one\r\ntwo\tthree\rfour", "one\ntwo\tthree\\rfour"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_cannot_be_seen(text, shown):
    """Escape sequences, controls, marks of direction, and characters without width are written out; lines and tabs stay."""
    assert shown == visible(text)


@pytest.mark.parametrize(
    "text", ["plain", "naïve café", "日本語 한국어", "مرحبا", "e\u0301", FAMILY, "❤\ufe0f", "1\ufe0f\u20e3", "👍🏽", "├─ ✓ → €"]
)
def test_what_can_be_seen(text):
    """Letters of all scripts, accents, and emoji with their joiners stay as they are."""
    assert (text, text) == (visible(text), one_line(text))


@pytest.mark.parametrize("text", ["a\u200db", "\u200d", "😀\u200dx", "x\ufe0f", "1\ufe0f2", "❤\ufe0f\ufe0f", "1\ufe0f\u200d😀"])
def test_joiners_that_join_no_emoji(text):
    """A joiner or selector stays only where it belongs to emoji: elsewhere it may carry what nobody sees."""
    assert text != visible(text)
    assert "\\u" in visible(text)


def test_whole_unicode():
    """No character that is a control, a format character, a separator of lines or half a pair is passed on alone."""
    hidden = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    passed = [one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(one) in hidden and one in visible(one)]
    assert ["\t", "\n"] == passed


def test_one_line():
    """Newlines and tabs are written out too: nothing can begin a line of its own."""
    assert "a\\n[txn:t] [path:1]\\tb\\r\\n" == one_line("a\n[txn:t] [path:1]\tb\r\n")


def test_json_says_the_same():
    """In JSON hidden characters are escapes, so that it means what it meant."""
    value = {"a\u202e": "\U000e0041 \u200b é 日 😀 \x7f"}
    written = visible_json(json.dumps(value, ensure_ascii=False))
    assert value == json.loads(written)
    assert [] == [one for one in written if not one.isprintable()]


def test_columns():
    """Wide characters take two columns, those that join the one before none."""
    assert (5, 4, 1, 2) == (columns("plain"), columns("日本"), columns("e\u0301"), columns("😀"))
