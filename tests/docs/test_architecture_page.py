import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_all_that_is_done_at_a_fork_or_at_the_end_is_in_the_table():
    """Each module that registers with `os.register_at_fork`, `atexit` or `multiprocessing` has its row, and no other."""
    hooks = re.compile(r"(register_at_fork|atexit\.register|register_after_fork)\((?!\*\*_hooks)")
    files = [path for folder in ("optree", "exporters") for path in (ROOT / folder).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if hooks.search(path.read_text("utf-8"))}
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    rows = re.findall(r"(?m)^\| `([^`]+)` \|", page.partition("## At a fork, and at the end")[2].partition("\n## ")[0])
    assert sorted(found) == sorted(rows)
