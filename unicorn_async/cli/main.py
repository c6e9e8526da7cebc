"""Where the `unicorn` command begins: it imports nothing before Ctrl-C is an exit status."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 130 where Ctrl-C ended it, at whatever moment."""
    try:
        from unicorn_async.cli.command_line import run

        return run(arguments)
    except KeyboardInterrupt:
        return 130
