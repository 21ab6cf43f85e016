"""Where the frozen program begins: PyInstaller cannot freeze the `__main__.py` of a package."""

import sys

from kvchat.__main__ import main

sys.exit(main())
