'use strict';

const assert = require('node:assert/strict');
const { test } = require('node:test');
const OpenAI = require('openai');
const { client, told, left, inFlight, freed, invalidKey } = require('./gateway.js');

const messages = [{ role: 'user', content: 'hello' }];
const hello = { model: 'grok-2', messages, max_completion_tokens: 4 };

async function refusal(promise) {
  return promise.then(
    () => assert.fail('it was answered'),
    (error) => error,
  );
}

test('a chat is answered whole', async () => {
  const { openai } = client('open');
  const answer = await openai.chat.completions.create(hello);
  assert.equal(answer.choices[0].message.content, ' t0 t1 t2 t3');
  assert.equal(answer.choices[0].finish_reason, 'length');
  assert.equal(answer.usage.completion_tokens, 4);
  told(answer._request_id, answer);
});

test('a text completion is answered whole and streamed', async () => {
  const { openai } = client('open');
  const asked = { model: 'grok-2', prompt: 'once', max_tokens: 3 };
  const whole = await openai.completions.create(asked);
  assert.equal(whole.choices[0].text, ' t0 t1 t2');
  told(whole._request_id, whole);
  const { data: stream, request_id } = await openai.completions.create({ ...asked, stream: true }).withResponse();
  let text = '';
  for await (const chunk of stream) text += chunk.choices[0].text;
  assert.equal(text, ' t0 t1 t2');
  told(request_id);
});

test('a stream has usage only for who asked', async () => {
  for (const asks of [false, true]) {
    const { openai } = client('open');
    const asked = { ...hello, stream: true, ...(asks && { stream_options: { include_usage: true } }) };
    const { data: stream, request_id } = await openai.chat.completions.create(asked).withResponse();
    let text = '', finish, usage;
    for await (const chunk of stream) {
      if (chunk.choices.length === 0) {
        assert.ok(asks && finish, 'a chunk without choices is the usage, at the end, of who asked');
        usage = chunk.usage;
      } else {
        assert.ok(!chunk.usage);
        text += chunk.choices[0].delta.content ?? '';
        finish = chunk.choices[0].finish_reason;
      }
    }
    assert.equal(text, ' t0 t1 t2 t3');
    assert.equal(finish, 'length');
    assert.equal(usage?.completion_tokens, asks ? 4 : undefined);
    told(request_id, { usage });
  }
});

test('the stream helper gathers the whole', async () => {
  const { openai, attempts } = client('open');
  const stream = openai.chat.completions.stream({ ...hello, n: 2, stream_options: { include_usage: true } });
  const whole = await stream.finalChatCompletion();
  assert.deepEqual(whole.choices.map((c) => c.message.content), [' t0 t1 t2 t3', ' t0 t1 t2 t3']);
  assert.equal(whole.usage.completion_tokens, 8);
  told(attempts[0].id, whole);
});

test('a tool is called, and its result is answered', async () => {
  for (const stream of [false, true]) {
    const { openai, attempts } = client('open');
    const given = [];
    const runner = openai.chat.completions.runTools({
      model: 'grok-2',
      messages,
      stream,
      ...(stream && { stream_options: { include_usage: true } }),
      tools: [{
        type: 'function',
        function: {
          name: 'look',
          description: 'Looks something up',
          parse: JSON.parse,
          function: ({ text }) => { given.push(text); return 'found'; },
          parameters: { type: 'object', properties: { text: { type: 'string' } }, required: ['text'] },
        },
      }],
      x_sim: { tool: 'look' },
    });
    const served = [];
    if (stream) {
      runner.on('chunk', (chunk) => { if (chunk.usage) served.push({ usage: chunk.usage }); });
    } else {
      runner.on('chatCompletion', (completion) => served.push(completion));
    }
    const text = Array.from({ length: 16 }, (_, i) => ` t${i}`).join('');
    assert.equal(await runner.finalContent(), text);
    assert.deepEqual(given, [text]);
    assert.equal(attempts.length, 2);
    assert.equal(served.length, 2);
    attempts.forEach((attempt, i) => told(attempt.id, served[i]));
  }
});

test('what a request says reaches the server as it is', async () => {
  const { openai } = client('open');
  const asked = {
    ...hello,
    messages: [
      { role: 'user', content: [{ type: 'text', text: 'line\u2028 😀 é' }, { type: 'image_url', image_url: { url: 'data:image/png;base64,iVBORw0KGgo=' } }] },
      { role: 'assistant', content: null, tool_calls: [{ id: 'c1', type: 'function', function: { name: 'f', arguments: '{"a": 1}' } }] },
      { role: 'tool', tool_call_id: 'c1', content: 'one' },
    ],
    tools: [{ type: 'function', function: { name: 'f', strict: true, parameters: { type: 'object', properties: { a: { anyOf: [{ type: 'number' }, { type: 'null' }] } } } } }],
    tool_choice: { type: 'function', function: { name: 'f' } },
    parallel_tool_calls: false,
    response_format: { type: 'json_schema', json_schema: { name: 's', schema: { type: 'object', additionalProperties: false } } },
    logit_bias: { 50256: -100 },
    logprobs: true,
    seed: 9007199254740991,
    unknown: { b: [1, null, 0.1] },
    x_sim: { echo: true },
  };
  const answer = await openai.chat.completions.create(asked);
  assert.deepEqual(JSON.parse(JSON.stringify(answer)), asked);
  told(answer._request_id, { least: 0 });
});

test('embeddings are decoded, as floats and as base64', async () => {
  for (const encoding_format of [undefined, 'float']) {
    const { openai } = client('open');
    const answer = await openai.embeddings.create({ model: 'grok-2', input: ['a', 'b'], ...(encoding_format && { encoding_format }) });
    assert.deepEqual(answer.data.map((d) => Array.from(d.embedding)), [[0.25, -0.5, 1], [0.25, -0.5, 1]]);
    told(answer._request_id, answer);
  }
});

test('models are listed', async () => {
  const { openai } = client('open');
  const names = [];
  for await (const model of openai.models.list()) names.push(model.id);
  assert.deepEqual(names, ['grok-2', 'grok-2-mini', 'grok-4']);
});

test('a wrong key is an AuthenticationError', async () => {
  const { openai, attempts } = client('open', { apiKey: invalidKey, maxRetries: 2 });
  const error = await refusal(openai.chat.completions.create(hello));
  assert.ok(error instanceof OpenAI.AuthenticationError);
  assert.deepEqual([error.status, error.type, error.code, error.param], [401, 'invalid_request_error', 'invalid_api_key', null]);
  assert.equal(error.requestID, attempts[0].id);
  assert.equal(attempts.length, 1, 'it is not worth a retry');
});

test('a used up limit is a RateLimitError, with type, code and the time to wait', async () => {
  const { openai } = client('once'); // a request a minute
  const answer = await openai.chat.completions.create(hello);
  told(answer._request_id, answer);
  for (const stream of [false, true]) {
    const error = await refusal(openai.chat.completions.create({ ...hello, stream }));
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.deepEqual([error.status, error.type, error.code], [429, 'rate_limit_exceeded', 'rate_limit_exceeded']);
    assert.match(error.message, /requests per minute/);
    const ms = Number(error.headers.get('retry-after-ms'));
    assert.ok(ms > 0 && ms <= 60_000);
    assert.equal(error.headers.get('retry-after'), String(Math.ceil(ms / 1000)));
    assert.equal(error.headers.get('x-ratelimit-remaining-requests'), '0');
  }
});

test('a model that was not bought is a PermissionDeniedError', async () => {
  const { openai, attempts } = client('small', { maxRetries: 2 });
  const error = await refusal(openai.chat.completions.create(hello));
  assert.ok(error instanceof OpenAI.PermissionDeniedError);
  assert.deepEqual([error.status, error.code, error.param], [403, 'model_not_allowed', 'model']);
  assert.equal(attempts.length, 1);
  const answer = await openai.chat.completions.create({ ...hello, model: 'grok-2-mini' });
  told(answer._request_id, answer);
});

test('more than a limit ever holds is a BadRequestError that no retry helps', async () => {
  const { openai, attempts } = client('daily', { maxRetries: 2 }); // 1,500 tokens a day
  const error = await refusal(openai.chat.completions.create({ ...hello, max_completion_tokens: 100_000 }));
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.deepEqual([error.status, error.type, error.code], [400, 'invalid_request_error', 'request_too_large']);
  assert.equal(attempts.length, 1);
});

test('what is not served is a NotFoundError', async () => {
  const { openai } = client('open');
  const error = await refusal(openai.responses.create({ model: 'grok-2', input: 'hello' }));
  assert.ok(error instanceof OpenAI.NotFoundError);
  assert.deepEqual([error.status, error.code], [404, 'not_found']);
});

test("a server's failure is an InternalServerError; each of the SDK's attempts is a request of its own", async () => {
  const { openai, attempts } = client('open', { maxRetries: 1 });
  const error = await refusal(openai.chat.completions.create({ ...hello, x_sim: { status: 500 } }));
  assert.ok(error instanceof OpenAI.InternalServerError);
  assert.deepEqual(attempts.map((a) => [a.status, a.retry]), [[500, 0], [500, 1]]);
  assert.notEqual(attempts[0].id, attempts[1].id);
});

test('a retry waits as long as it is told, and passes', async (t) => {
  const { openai, attempts } = client('paced', { maxRetries: 5 }); // 15 requests a minute, one more every 4 s
  let before;
  do {
    before = attempts.length;
    assert.ok(before < 100, 'no limit is reached');
    const answer = await openai.chat.completions.create(hello);
    told(answer._request_id, answer);
  } while (attempts.length === before + 1);
  const [first, second] = attempts.slice(before);
  assert.deepEqual(attempts.slice(before).map((a) => [a.status, a.retry]), [[429, 0], [200, 1]]);
  const waited = second.asked - first.answered;
  assert.ok(waited >= first.retryAfterMs - 5, `it was told ${first.retryAfterMs} ms and waited ${waited} ms`);
  t.diagnostic(`told ${first.retryAfterMs} ms, waited ${Math.round(waited)} ms`);
});

test('a stream ends with finish_reason "length" when the quota is used up', async () => {
  const { openai } = client('daily');
  const { data: stream, request_id } = await openai.chat.completions
    .create({ model: 'grok-2', messages, stream: true, stream_options: { include_usage: true }, x_sim: { tokens: 20_000 } })
    .withResponse();
  let chunks = 0, finish, usage;
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content) chunks++;
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(finish, 'length');
  assert.ok(chunks > 400 && chunks < 2000, `${chunks} chunks of 1,500 tokens`);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  told(request_id, { usage, outcome: 'ended' });
});

test('a stream that the server breaks off is an error', async () => {
  const { openai } = client('open');
  const { data: stream, request_id } = await openai.chat.completions.create({ ...hello, stream: true, x_sim: { tokens: 9, cut_after: 3 } }).withResponse();
  let chunks = 0;
  const error = await refusal((async () => { for await (const _ of stream) chunks++; })());
  assert.ok(error instanceof OpenAI.APIError);
  assert.deepEqual([error.type, error.code], ['upstream_error', 'upstream_cut']);
  assert.equal(chunks, 3);
  told(request_id, { outcome: 'failed', least: 3 });
});

test("a request that runs into the SDK's timeout is cancelled, and so is its retry", async () => {
  const { openai, attempts } = client('open', { maxRetries: 1, timeout: 1500 });
  const error = await refusal(openai.chat.completions.create({ ...hello, x_sim: { delay_ms: 60_000 } }));
  assert.ok(error instanceof OpenAI.APIConnectionTimeoutError);
  assert.equal(attempts.length, 0, 'none was answered');
  left('open', 2);
  await freed('open');
});

const leavings = {
  'leaving the loop': async (stream) => { for await (const _ of stream) return; },
  'aborting the controller': async (stream) => { for await (const _ of stream) stream.controller.abort(); },
  "aborting the request's signal": async (stream, controller) => { for await (const _ of stream) controller.abort(); },
};
for (const [how, leave] of Object.entries(leavings)) {
  test(`a client that ends its stream by ${how} has its slot back`, async () => {
    const { openai } = client('single'); // a request at a time
    await freed('single');
    const controller = new AbortController();
    const { data: stream, request_id } = await openai.chat.completions
      .create({ ...hello, stream: true, x_sim: { tokens: 1000, pace_ms: 20 } }, { signal: controller.signal })
      .withResponse();
    assert.equal(await inFlight('single'), 1);
    const error = await refusal(openai.chat.completions.create(hello));
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.match(error.message, /requests at a time/);
    await leave(stream, controller);
    await freed('single');
    told(request_id, { outcome: 'cancelled', least: 1 });
    const answer = await openai.chat.completions.create(hello);
    told(answer._request_id, answer);
  });
}
