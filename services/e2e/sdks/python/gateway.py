"""What the tests share: clients of the prepared callers, and the account of what each request was answered, which is compared with the ledger
afterwards (../README.md)."""

import json
import os
import time
import unittest
import urllib.request
from dataclasses import dataclass

import openai

INVALID_KEY = "tg-unknown"


def setting(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"{name} is not set: run these tests by make test-sdks")
    return value


callers = json.loads(setting("TOLLGATE_SDK_CALLERS"))
account = setting("TOLLGATE_SDK_ACCOUNT")


def note(**entry) -> None:
    with open(account, "a", encoding="utf-8") as f:
        f.write(json.dumps(entry) + "\n")


@dataclass
class Attempt:
    """An HTTP request that the SDK made. Times are in seconds."""

    id: str
    status: int
    retry: int
    retry_after_ms: float
    asked: float
    answered: float


class Attempts(list):
    """Hooks for the SDK's HTTP client, which note every request and its answer."""

    def __init__(self, caller: str):
        super().__init__()
        self.caller = caller

    def ask(self, request) -> None:
        request.extensions["asked"] = time.monotonic()

    def answer(self, response) -> None:
        request, headers = response.request, response.headers
        attempt = Attempt(
            id=headers["x-request-id"],
            status=response.status_code,
            retry=int(request.headers.get("x-stainless-retry-count", 0)),
            retry_after_ms=float(headers.get("retry-after-ms", 0)),
            asked=request.extensions["asked"],
            answered=time.monotonic(),
        )
        self.append(attempt)
        note(id=attempt.id, caller=self.caller, path=request.url.path, status=attempt.status)

    async def ask_async(self, request) -> None:
        self.ask(request)

    async def answer_async(self, response) -> None:
        self.answer(response)


def told(id: str, usage=None, outcome: str = "completed", least: int | None = None) -> None:
    """Notes what the client was told of a request that was served."""
    entry = {"id": id, "outcome": outcome, "least": least}
    if usage is not None:
        entry |= {"input": usage.prompt_tokens, "output": getattr(usage, "completion_tokens", 0)}
    note(**entry)


def left(caller: str, requests: int) -> None:
    """Notes how many requests of the caller were left before they were answered: nobody has told their ids."""
    note(caller=caller, left=requests)


def in_flight(caller: str) -> int:
    """How many slots of the caller are taken, by enforcement."""
    request = urllib.request.Request(
        f"{setting('TOLLGATE_ENFORCEMENT_URL')}/internal/rate-limit/status/user/{callers[caller]['user']}",
        headers={"Authorization": f"Bearer {setting('TOLLGATE_SERVICE_TOKEN')}"},
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.load(response)["in_flight"]


def await_freed(caller: str) -> None:
    """Waits until no slot of the caller is taken."""
    until = time.monotonic() + 10
    while in_flight(caller) != 0:
        if time.monotonic() > until:
            raise AssertionError("a slot is held though its request is over")
        time.sleep(0.02)


class GatewayTest(unittest.TestCase):
    """Gives clients of the SDK as anybody uses it: the base URL is OPENAI_BASE_URL's. The attempts get every HTTP request that they make."""

    def client(self, caller: str, **options) -> tuple[openai.OpenAI, Attempts]:
        attempts = Attempts(caller)
        http = openai.DefaultHttpxClient(event_hooks={"request": [attempts.ask], "response": [attempts.answer]})
        sdk = openai.OpenAI(**{"api_key": callers[caller]["secret"], "max_retries": 0, "http_client": http, **options})
        self.addCleanup(sdk.close)
        return sdk, attempts

    def async_client(self, caller: str) -> tuple[openai.AsyncOpenAI, Attempts]:
        """The test closes the client, in its own event loop."""
        attempts = Attempts(caller)
        http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [attempts.ask_async], "response": [attempts.answer_async]})
        return openai.AsyncOpenAI(api_key=callers[caller]["secret"], max_retries=0, http_client=http), attempts
