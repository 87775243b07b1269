"""Imported by every interpreter that has this folder in its path: what a test wants changed in a server's processes.

The harness of tests/durability/killing.py puts it there. Whatever goes wrong here ends the process, loudly.
"""

import os
import sys
import traceback

if any("gateway.cli" in word for word in sys.orig_argv):
    try:
        from tests.durability import unguarded

        unguarded.apply(os.environ.get(unguarded.VARIABLE, ""))
    except BaseException:
        traceback.print_exc()
        os._exit(70)
