"""`python -m exporter` is the command."""

import sys

from exporter.cli import main

sys.exit(main())
