"""Calls between servers: deadlines, retries with an end, circuit breakers, in-memory dispatch, model endpoints."""
