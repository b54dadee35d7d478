"""`python -m peakward`."""

import sys

from peakward.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
