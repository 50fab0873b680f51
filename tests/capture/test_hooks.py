"""A generator that stands in the place of another is, to the program, that one."""

import asyncio

import pytest

from optree._capture.hooks import of_kind
from tests.capture.conftest import kind_of


def echoes(log):
    """Say what is sent in, and what is thrown in."""
    said = "begun"
    try:
        while True:
            try:
                said = yield said
            except KeyError as error:
                said = repr(error)
    finally:
        log.append("closed")


async def echoes_later(log):
    """Do so where that is awaited."""
    said = "begun"
    try:
        while True:
            try:
                said = yield said
            except KeyError as error:
                said = repr(error)
    finally:
        log.append("closed")


def answers(items):
    """Return what a generator says."""
    return [items.send(None), items.send("rain"), items.throw(KeyError("sun")), items.close()]


async def answers_later(items):
    """Return what one says that is awaited."""
    return [await items.asend(None), await items.asend("rain"), await items.athrow(KeyError("sun")), await items.aclose()]


@pytest.mark.parametrize(("function", "asked"), [(echoes, answers), (echoes_later, lambda items: asyncio.run(answers_later(items)))])
def test_a_generator_in_the_place_of_another(function, asked):
    """It is of the same kind, passes on what is sent to it and thrown into it, and closes the other one."""
    log = []

    def run(log):
        return function(log)

    made = of_kind(function, run)
    assert kind_of(function) == kind_of(made)
    assert ["begun", "rain", "KeyError('sun')", None] == asked(made(log))
    assert ["closed"] == log
