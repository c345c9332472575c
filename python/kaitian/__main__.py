"""``python -m kaitian``: the same as the command ``kaitian``."""

import sys

from kaitian.cli import main

if __name__ == "__main__":
    sys.exit(main())
