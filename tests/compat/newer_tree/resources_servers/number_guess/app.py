"""A guessing game: a plain configuration, one mapping of states, and the number in `verifier_metadata`."""

from typing import Any

from nemo_gym.base_resources_server import BaseResourcesServerConfig
from nemo_gym.openai_utils import NeMoGymResponse
from resources_servers.gymnasium import GymnasiumServer, extract_text


class NumberGuessServer(GymnasiumServer):
    config: BaseResourcesServerConfig
    ray_enabled = False

    async def reset(self, metadata: dict, session_id: str | None = None) -> tuple[str | None, dict]:
        self.session_state[session_id] = {"number": metadata["number"], "left": metadata.get("tries", 3)}
        return "Guess the number.", {}

    async def step(
        self, action: NeMoGymResponse, metadata: dict, session_id: str | None = None
    ) -> tuple[str | None, float, bool, bool, dict[str, Any]]:
        state = self.session_state[session_id]
        state["left"] -= 1
        is_right = extract_text(action).strip() == str(state["number"])
        return "Wrong, again.", float(is_right), is_right, state["left"] <= 0, {"left": state["left"]}


if __name__ == "__main__":
    NumberGuessServer.run_webserver()
