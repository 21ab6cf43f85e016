"""Where the frozen program begins. A file of its own, because PyInstaller cannot freeze a `__main__.py` in a package."""

import sys

from kvchat.__main__ import main

sys.exit(main())
