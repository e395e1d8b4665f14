"""``python -m gaussmatch``."""

import sys

from gaussmatch.cli import main

sys.exit(main())
