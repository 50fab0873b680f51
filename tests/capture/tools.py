"""Tools that programs on several frameworks have."""

import optree


def weather(city: str) -> str:
    """Tell the weather.

    Args:
        city: Where.
    """
    if (op := optree.current()) is not None:
        op.log(f"looking at {city}")
    with optree.tool("thermometer"):
        return f"rain in {city}"


def broken(city: str) -> str:
    """Do nothing good.

    Args:
        city: Where.
    """
    raise ConnectionError(f"no thermometer in {city}")


broken.__name__ = "weather"  # for models that ask for that
