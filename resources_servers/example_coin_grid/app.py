"""Coins on a grid: tools as methods, an opening, a reward for each coin, and the map as an image."""

import random
import struct
import zlib
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from fastapi import HTTPException, Request
from pydantic import ConfigDict, Field, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    Opening,
    ReverifyMode,
    SessionId,
    SimpleResourcesServer,
    Step,
    ToolError,
    image_part,
    text_part,
    tool,
)
from nemo_gym.server_utils import SESSION_ID_KEY

SIZE = 5
MAX_MOVES = 20
DIRECTIONS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}
PIXELS_PER_CELL = 8
COLOURS = {".": b"\xf0\xf0\xf0", "o": b"\xe0\xb0\x10", "@": b"\x10\x60\xd0"}

Place = tuple[int, int]


@dataclass
class Walk:
    """The state of one episode: places are column and row, counted from the upper left corner."""

    coins: set[Place]
    place: Place = (0, 0)
    total: int = field(init=False)
    moves: int = 0

    def __post_init__(self) -> None:
        self.total = len(self.coins)

    @property
    def collected_coins(self) -> int:
        return self.total - len(self.coins)

    @property
    def is_over(self) -> bool:
        return not self.coins or self.moves >= MAX_MOVES

    def move(self, direction: str, steps: int) -> None:
        """Walk until the steps are done or a wall stops the player; collect the coins on the way."""
        across, down = DIRECTIONS[direction]
        for _ in range(steps):
            column, row = self.place[0] + across, self.place[1] + down
            if not (0 <= column < SIZE and 0 <= row < SIZE):
                break
            self.place = (column, row)
            self.coins.discard(self.place)
        self.moves += 1

    def map_rows(self) -> list[str]:
        """Return the map as text: `@` is the player, `o` a coin."""

        def cell(place: Place) -> str:
            return "@" if place == self.place else "o" if place in self.coins else "."

        return ["".join(cell((column, row)) for column in range(SIZE)) for row in range(SIZE)]


def coin_places(seed: int, count: int) -> set[Place]:
    """Draw the places of the coins, never the start. A generator per episode: the module's would be shared."""
    places = [(column, row) for row in range(SIZE) for column in range(SIZE)][1:]
    return set(random.Random(seed).sample(places, count))


def draw_png(rows: list[str]) -> bytes:
    """Draw a map as a PNG file with one square per cell."""
    lines = [b"".join(COLOURS[cell] * PIXELS_PER_CELL for cell in row) for row in rows for _ in range(PIXELS_PER_CELL)]
    side = SIZE * PIXELS_PER_CELL

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + line for line in lines)))
    return b"\x89PNG\r\n\x1a\n" + header + pixels + chunk(b"IEND", b"")


class CoinGridConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.UNSUPPORTED  # the verdict ends the session

    images: bool = False
    """Show the map as an image as well; the model must accept images."""


class CoinGridSeedRequest(BaseSeedSessionRequest):
    seed: int = Field(ge=0)
    coins: int = Field(default=3, ge=1, le=6)


class CoinGridRunRequest(BaseRunRequest):
    model_config = ConfigDict(extra="allow")

    seed: int = Field(ge=0)
    coins: int = Field(default=3, ge=1, le=6)


class CoinGridVerifyRequest(CoinGridRunRequest, BaseVerifyRequest):
    pass


class CoinGridVerifyResponse(BaseVerifyResponse):
    model_config = ConfigDict(extra="allow")

    collected: int
    moves: int


class CoinGridServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: CoinGridConfig
    _walks: dict[str, Walk] = PrivateAttr(default_factory=dict)

    async def seed_session(self, request: Request, body: CoinGridSeedRequest) -> Opening:
        walk = self._walks[request.session[SESSION_ID_KEY]] = Walk(coin_places(body.seed, body.coins))
        task = (
            f"You stand in the upper left corner of a grid of {SIZE} x {SIZE} cells with {walk.total} coins. "
            f"Collect all of them in at most {MAX_MOVES} moves."
        )
        return Opening(messages=[{"role": "user", "content": task}])

    @tool
    async def look(self, session: SessionId) -> Any:
        """Look at the map: `@` is you, `o` a coin, `.` an empty cell."""
        rows = self._walk(session).map_rows()
        text = "\n".join(rows)
        return [text_part(text), image_part(draw_png(rows))] if self.config.images else text

    @tool
    async def move(
        self,
        session: SessionId,
        direction: Literal["up", "down", "left", "right"],
        steps: Annotated[int, Field(ge=1, lt=SIZE)] = 1,
    ) -> Step:
        """Walk in one direction and collect the coins on the way.

        Args:
            direction: where to go.
            steps: number of cells.
        """
        walk = self._walk(session)
        before = walk.collected_coins
        walk.move(direction, steps)
        collected = walk.collected_coins - before
        text = f"You are in column {walk.place[0] + 1}, row {walk.place[1] + 1} and have {walk.collected_coins} coins."
        return Step(text, reward=collected / walk.total, done=walk.is_over)

    async def verify(self, request: Request, body: CoinGridVerifyRequest) -> CoinGridVerifyResponse:
        """Reward the share of the coins that was collected."""
        walk = self._walks.get(request.session[SESSION_ID_KEY])
        if walk is None:
            raise HTTPException(409, "this session has no walk: it was not seeded, or its verdict was already given")
        verdict = {"reward": walk.collected_coins / walk.total, "collected": walk.collected_coins, "moves": walk.moves}
        return CoinGridVerifyResponse(**(dict(body) | verdict))

    async def close(self, session_id: str) -> None:
        self._walks.pop(session_id, None)

    def _walk(self, session_id: str) -> Walk:
        walk = self._walks.get(session_id)
        if walk is None or walk.is_over:
            raise ToolError("The walk is over.")
        return walk


if __name__ == "__main__":
    CoinGridServer.run_webserver()
