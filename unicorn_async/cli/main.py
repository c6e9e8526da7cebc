"""Where the `unicorn` command begins: it imports next to nothing before Ctrl-C is an exit status."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status: 130 where Ctrl-C ended it, at whatever moment.

    What the interpreter, and the script that calls this, do before it is out of reach.
    """
    try:
        from unicorn_async.cli.interrupt import exit_on_interrupt, raise_on_interrupt

        exit_on_interrupt()
        try:
            from unicorn_async.cli.command_line import run

            return run(arguments)
        finally:
            raise_on_interrupt()
    except KeyboardInterrupt:
        return 130
