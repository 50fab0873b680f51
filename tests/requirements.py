"""Says which requirements no test names: `python -m tests.requirements [GROUP]`. A name is its author's claim, and no proof."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "requirements.md"
NAMED = re.compile(r"\b(S\d)-(\d+)(?:\.\.(\d+))?")


def stated():
    """Return the requirements by id."""
    return dict(re.findall(r"^- (S\d-\d+) (.+)$", PAGE.read_text("utf-8"), re.MULTILINE))


def named():
    """Return the ids that tests name, each with the files that do; two dots between numbers name a range."""
    found = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for group, first, last in NAMED.findall(path.read_text("utf-8")):
            for number in range(int(first), int(last or first) + 1):
                found.setdefault(f"{group}-{number:02}", []).append(path.relative_to(ROOT))
    return found


def main(groups):
    """Print how many of each group are named, and those that are not."""
    wanted, found = stated(), named()
    for group in groups or sorted({one.partition("-")[0] for one in wanted}):
        ids = [one for one in wanted if one.startswith(f"{group}-")]
        print(f"{group}: {sum(one in found for one in ids)} of {len(ids)} are named")
        for one in ids:
            if one not in found:
                print(f"  {one} {wanted[one]}")


if __name__ == "__main__":
    main(sys.argv[1:])
