"""The server side: plain ASGI middleware, the FastAPI app, the head server, and running them."""
