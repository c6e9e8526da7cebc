"""The server: OpenAI's Responses API over websockets and HTTP, Chat Completions, and the chat page on one port.

A name's module is imported when the name is first asked for: a port is open before what serves there is imported.
"""

TYPE_CHECKING = False

if TYPE_CHECKING:
    from unicorn_async.server.app import create_app, serve
    from unicorn_async.server.listener import bind
    from unicorn_async.server.model_host import ModelHost
    from unicorn_async.server.options import ServerOptions

__all__ = ["ModelHost", "ServerOptions", "bind", "create_app", "serve"]
_MODULES = {"ModelHost": "model_host", "ServerOptions": "options", "bind": "listener"}


if not TYPE_CHECKING:  # or checkers would believe that there is every name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'app')}"), name)
