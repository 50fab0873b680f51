"""``python -m optree`` is the command `optree`."""

from optree._cli import main

if __name__ == "__main__":
    main()
