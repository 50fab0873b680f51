"""Lies where the PyTree library optree has its compiled part; nothing of ours imports it.

That library, installed over this one, replaces `optree/__init__.py`, so that ours cannot say what has happened. But it imports
`optree._C`, and Python takes a folder before a file of the same name: so this is found, and says it.
"""

from pathlib import Path

from optree._guard import refuse_the_other_optree

refuse_the_other_optree(str(Path(__file__).parents[1] / "__init__.py"))
raise ModuleNotFoundError("this is optree-tracing, which has no optree._C: that belongs to the PyTree library optree", name=__name__)
