"""`python -m unicorn_async` is the `unicorn` command."""

import sys

from unicorn_async.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
