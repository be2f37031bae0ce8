"""`python -m softrank_ext COMMAND` is `softrank COMMAND`."""

import sys

from softrank_ext.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
