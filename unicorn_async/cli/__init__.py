"""The `unicorn` command."""
