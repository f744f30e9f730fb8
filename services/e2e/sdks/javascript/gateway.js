// What the tests share: clients of the prepared callers, and the account of what each request was answered, which is compared with the ledger
// afterwards (../README.md).
'use strict';

const assert = require('node:assert/strict');
const fs = require('node:fs');
const { setTimeout: sleep } = require('node:timers/promises');
const { OpenAI } = require('openai');

const setting = (name) => {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run these tests by make test-sdks`);
  return value;
};

const callers = JSON.parse(setting('TOLLGATE_SDK_CALLERS'));
const account = setting('TOLLGATE_SDK_ACCOUNT');

const note = (entry) => fs.appendFileSync(account, JSON.stringify(entry) + '\n');

// client is the SDK as anybody uses it: the base URL is OPENAI_BASE_URL's. attempts gets every HTTP request that it makes.
function client(caller, options = {}) {
  const attempts = [];
  const noting = async (url, init) => {
    const asked = performance.now();
    const response = await fetch(url, init);
    const attempt = {
      id: response.headers.get('x-request-id'),
      status: response.status,
      retry: Number(new Headers(init.headers).get('x-stainless-retry-count')),
      retryAfterMs: Number(response.headers.get('retry-after-ms')),
      asked,
      answered: performance.now(),
    };
    attempts.push(attempt);
    note({ id: attempt.id, caller, path: new URL(url).pathname, status: attempt.status });
    return response;
  };
  const openai = new OpenAI({ apiKey: callers[caller].secret, maxRetries: 0, fetch: noting, ...options });
  return { openai, attempts };
}

// told notes what the client was told of a request that was served.
function told(id, { outcome = 'completed', usage, least } = {}) {
  note({ id, outcome, input: usage?.prompt_tokens, output: usage?.completion_tokens ?? (usage && 0), least });
}

// left notes how many requests of the caller were left before they were answered: nobody has told their ids.
function left(caller, requests) {
  note({ caller, left: requests });
}

// inFlight asks enforcement how many slots of the caller are taken.
async function inFlight(caller) {
  const response = await fetch(`${setting('TOLLGATE_ENFORCEMENT_URL')}/internal/rate-limit/status/user/${callers[caller].user}`, {
    headers: { Authorization: `Bearer ${setting('TOLLGATE_SERVICE_TOKEN')}` },
  });
  assert.equal(response.status, 200);
  return (await response.json()).in_flight;
}

// freed waits until no slot of the caller is taken.
async function freed(caller) {
  for (const until = performance.now() + 10_000; (await inFlight(caller)) !== 0; ) {
    assert.ok(performance.now() < until, 'a slot is held though its request is over');
    await sleep(20);
  }
}

module.exports = { client, told, left, inFlight, freed, invalidKey: 'tg-unknown' };
