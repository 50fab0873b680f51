"""Makes optree's modules see another system's standard library; what else runs in the process sees its own."""

import os

if os.environ.get("OPTREE_TEST_SYSTEM"):
    import pretended

    pretended.begin(os.environ["OPTREE_TEST_SYSTEM"])
