from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseRunRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    ReverifyMode,
    SimpleResourcesServer,
)
from nemo_gym.failure_kinds import VERIFIER_ERROR
from nemo_gym.verifier_fixture import VerifierFixture
from resources_servers.word_count.counting import count_words


class WordCountResourcesServerConfig(BaseResourcesServerConfig):
    REVERIFY_MODE = ReverifyMode.STATELESS


class WordCountRunRequest(BaseRunRequest):
    expected_words: int


class WordCountVerifyRequest(WordCountRunRequest, BaseVerifyRequest):
    pass


class WordCountVerifyResponse(BaseVerifyResponse):
    words: int


class WordCountResourcesServer(SimpleResourcesServer):
    ray_enabled = False

    config: WordCountResourcesServerConfig

    async def verify(self, body: WordCountVerifyRequest) -> WordCountVerifyResponse:
        words = count_words(body.response.output_text)
        fields = {"words": words, "reward": float(words == body.expected_words)}
        if body.expected_words < 0:
            fields |= {"mask_sample": True, "failure_kind": VERIFIER_ERROR, "failure_reason": "negative"}
        return WordCountVerifyResponse(**body.model_dump(), **fields)


VERIFIER_FIXTURE = VerifierFixture(
    server_factory=WordCountResourcesServer, request_model=WordCountVerifyRequest, cases_path="unused"
)

if __name__ == "__main__":
    WordCountResourcesServer.run_webserver()
