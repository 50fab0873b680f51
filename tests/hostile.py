"""Values whose own code raises, whatever is asked of them."""


class Raising:
    """Whatever is asked of it raises."""

    def __str__(self):
        raise RuntimeError

    __repr__ = __iter__ = __len__ = __bool__ = __float__ = __str__

    def __eq__(self, other):
        raise RuntimeError

    def __getattr__(self, name):
        raise RuntimeError

    __hash__ = None


class RaisingText(str):
    """A text whose own code raises."""

    __slots__ = ()

    def __str__(self):
        raise RuntimeError

    __repr__ = __len__ = __iter__ = __str__


class RaisingMapping(dict):
    """A mapping that cannot be read."""

    def items(self):
        """Raise."""
        raise RuntimeError


class RaisingModel:
    """Like a pydantic model that cannot be dumped."""

    def model_dump(self):
        """Raise."""
        raise RuntimeError

    def __repr__(self):
        return "RaisingModel()"
