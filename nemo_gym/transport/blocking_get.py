"""A blocking GET request for code without an event loop, used for the head server and to probe servers."""

import http.client

from nemo_gym.errors import DeadlineExceeded, ServerUnreachable
from nemo_gym.transport import run_token


def get_blocking(host: str, port: int, path: str, *, timeout: float, callee: str | None = None) -> tuple[int, bytes]:
    """Send one GET request, with the run token of the address, and return its status and body.

    `timeout` is the limit in seconds of each socket operation; `callee` names the server in errors.

    Raises:
        DeadlineExceeded: the server did not answer within `timeout`.
        ServerUnreachable: the connection failed or was lost.
    """
    callee = callee or f"{host}:{port}"
    connection = http.client.HTTPConnection("127.0.0.1" if host == "0.0.0.0" else host, port, timeout=timeout)
    try:
        connection.request("GET", path, headers=run_token.headers_for(host, port))
        response = connection.getresponse()
        return response.status, response.read()
    except TimeoutError as error:
        raise DeadlineExceeded(f"GET http://{host}:{port}{path} took longer than {timeout} s", where=callee) from error
    except (OSError, http.client.HTTPException) as error:
        raise ServerUnreachable(f"GET http://{host}:{port}{path} failed ({error})", where=callee) from error
    finally:
        connection.close()
