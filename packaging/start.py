"""Entry point of the frozen program, because PyInstaller cannot freeze the `__main__.py` of a package."""

import sys

from kvchat.__main__ import main

sys.exit(main())
