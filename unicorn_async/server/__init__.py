"""The server: OpenAI's Responses API over websockets and HTTP, Chat Completions, and the chat page on one port."""

from unicorn_async.server.app import bind, create_app, serve
from unicorn_async.server.model_host import ModelHost
from unicorn_async.server.options import ServerOptions

__all__ = ["ModelHost", "ServerOptions", "bind", "create_app", "serve"]
