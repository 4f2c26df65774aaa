"""Run the command line as `python -m hetplan`."""

import sys

from hetplan.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
