"""kvchat with a model that first calls a tool: python -m tests.e2e.forced_call TOOL ARGUMENTS COMMAND..."""

import sys

from kvchat.__main__ import main
from tests.bench.tools import forcing_calls

if __name__ == "__main__":
    tool, arguments = sys.argv[1:3]
    del sys.argv[1:3]
    with forcing_calls(tool, arguments, rounds=1):
        sys.exit(main())
