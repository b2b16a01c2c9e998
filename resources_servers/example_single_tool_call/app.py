"""The weather example: one tool, one call, and a verifier that accepts any answer."""

from typing import ClassVar

from fastapi import FastAPI
from pydantic import BaseModel

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)


class WeatherConfig(BaseResourcesServerConfig):
    REVERIFY_MODE: ClassVar[ReverifyMode] = ReverifyMode.STATELESS


class GetWeatherRequest(BaseModel):
    city: str


class GetWeatherResponse(BaseModel):
    city: str
    weather_description: str


class WeatherServer(SimpleResourcesServer):
    HOSTING = "cell"

    config: WeatherConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/get_weather")(self.get_weather)
        return app

    async def get_weather(self, body: GetWeatherRequest) -> GetWeatherResponse:
        """Tell the weather in a city."""
        return GetWeatherResponse(city=body.city, weather_description=f"The weather in {body.city} is cold.")

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**dict(body), reward=1.0)


# The names of these classes in NeMo Gym, for folders that import or subclass them.
SimpleWeatherResourcesServer = WeatherServer
SimpleWeatherResourcesServerConfig = WeatherConfig


if __name__ == "__main__":
    WeatherServer.run_webserver()
