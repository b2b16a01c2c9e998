"""The control route of a model server: the ledger of a rollout, for the framework that trains on it."""

import hmac

from fastapi import FastAPI, HTTPException, Request

from nemo_gym.capture.store import safe_file_name
from nemo_gym.token_id_capture.staging.client import MANIFEST_PATH
from nemo_gym.token_id_capture.staging.records import CaptureLedger, RolloutManifest


def add_control_routes(app: FastAPI, ledger: CaptureLedger, token: str) -> None:
    """Add the control routes to the app of a model server; requests need the token."""
    expected = f"Bearer {token}".encode()

    async def manifest(rollout_id: str, request: Request) -> RolloutManifest:
        """Return the ledger rows and failures of a rollout."""
        if not hmac.compare_digest(request.headers.get("authorization", "").encode(), expected):
            raise HTTPException(401, "the control token is missing or wrong")
        try:
            safe_file_name(rollout_id)
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        return await ledger.manifest(rollout_id)

    app.get(MANIFEST_PATH, include_in_schema=False)(manifest)
