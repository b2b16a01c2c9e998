"""`GET /`."""

from fastapi.testclient import TestClient

from nemo_gym.serve.app import create_app
from nemo_gym.serve.health import add_liveness


def test_liveness_is_answered_once_and_is_no_part_of_the_api():
    app = create_app()
    add_liveness(app)
    add_liveness(app)
    client = TestClient(app)

    assert client.get("/").json() == {"status": "ok"}
    assert "/" not in client.get("/openapi.json").json()["paths"]
    assert sum(getattr(route, "path", "") == "/" for route in app.router.routes) == 1


def test_a_servers_own_front_page_stays():
    """A folder that serves something at `/` was there first."""
    app = create_app()

    @app.get("/")
    async def own() -> str:
        return "mine"

    add_liveness(app)

    assert TestClient(app).get("/").json() == "mine"
