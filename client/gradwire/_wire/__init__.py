"""Messages, arrays and argument checks shared by the clients and the server."""
