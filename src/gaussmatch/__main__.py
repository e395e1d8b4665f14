"""``python -m gaussmatch``."""

import sys

from gaussmatch.apps.cli import main

sys.exit(main())
