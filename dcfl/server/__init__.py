"""The server side: pure functions of a state and the clients' replies."""

from dcfl.server.server import ClientReport, Server, ServerSettings, ServerState

__all__ = ["ClientReport", "Server", "ServerSettings", "ServerState"]
