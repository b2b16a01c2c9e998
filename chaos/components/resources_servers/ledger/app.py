"""A ledger per session, in memory only: the balance is right only if every deposit of the session is still there."""

from fastapi import FastAPI, Request
from pydantic import BaseModel, PrivateAttr

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseSeedSessionRequest,
    BaseSeedSessionResponse,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY


class LedgerSeedRequest(BaseSeedSessionRequest):
    opening: int


class DepositRequest(BaseModel):
    amount: int


class Balance(BaseModel):
    balance: int


class LedgerVerifyRequest(BaseVerifyRequest):
    expected_balance: int


class LedgerServer(SimpleResourcesServer):
    """Treats an unknown session as an empty ledger, as a careless server would."""

    HOSTING = "cell"

    config: BaseResourcesServerConfig
    _entries: dict[str, list[int]] = PrivateAttr(default_factory=dict)

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/deposit")(self.deposit)
        return app

    async def seed_session(self, request: Request, body: LedgerSeedRequest) -> BaseSeedSessionResponse:
        self._entries[request.session[SESSION_ID_KEY]] = [body.opening]
        return BaseSeedSessionResponse()

    async def deposit(self, request: Request, body: DepositRequest) -> Balance:
        """Add an amount to the ledger."""
        entries = self._entries.setdefault(request.session[SESSION_ID_KEY], [])
        entries.append(body.amount)
        return Balance(balance=sum(entries))

    async def verify(self, request: Request, body: LedgerVerifyRequest) -> BaseVerifyResponse:
        """Give the full reward if the balance is the expected one."""
        balance = sum(self._entries.pop(request.session[SESSION_ID_KEY], []))
        return BaseVerifyResponse(**dict(body), reward=float(balance == body.expected_balance))


if __name__ == "__main__":
    LedgerServer.run_webserver()
