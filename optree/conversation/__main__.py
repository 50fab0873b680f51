"""``python -m optree.conversation``."""

import sys

from optree.conversation.main import main

if __name__ == "__main__":
    sys.exit(main())
